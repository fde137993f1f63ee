"""ONNX Runtime's operator `com.microsoft::LinearAttention`."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from kerneltrick._arrays import Array


@functools.lru_cache(maxsize=64)
def _session(rule: str, heads: int, names: tuple[str, ...], dtype: str) -> Any:
    import onnxruntime
    from onnx import helper

    given = [name if name in names else "" for name in ORDER]
    node = helper.make_node(
        "LinearAttention",
        given,
        ["output", "present_state"],
        domain="com.microsoft",
        update_rule=rule,
        q_num_heads=heads,
        kv_num_heads=heads,
    )
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, element, None) for name in each]
        for each in (names, node.output)
    )
    model = helper.make_model(
        helper.make_graph([node], "linear_attention", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # an error is raised, so it need not be logged too
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


ORDER = ("query", "key", "value", "past_state", "decay", "beta")


def _run(rule: str, given: dict[str, Array], state: Any, dtype: str | None) -> tuple[Array, Any]:
    batch, heads, n, d = given["value"].shape
    packed = {name: np.ascontiguousarray(_packed(x)) for name, x in given.items()}
    if state is not None:
        packed["past_state"] = state
    kind = "float32" if dtype is None else dtype
    packed = {name: x.astype(kind) for name, x in packed.items()}
    names = tuple(name for name in ORDER if name in packed)
    o, after = _session(rule, heads, names, kind).run(None, packed)
    return np.moveaxis(o.reshape(batch, n, heads, d), 1, 2).astype(np.float32), after


def gated_linear_attention(
    q: Array, k: Array, v: Array, log_decay: Array, *, state: Any = None, dtype: str | None = None
) -> tuple[Array, Any]:
    given = {"query": q, "key": k, "value": v, "decay": log_decay}
    return _run("gated", given, state, dtype)


def gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    log_decay: Array,
    *,
    state: Any = None,
    dtype: str | None = None,
) -> tuple[Array, Any]:
    given = {"query": q, "key": k, "value": v, "decay": log_decay, "beta": beta}
    return _run("gated_delta", given, state, dtype)


def _packed(x: Array) -> Array:
    """(batch, heads, n, …) as (batch, n, width)."""
    moved = np.moveaxis(x, 1, 2)
    return moved.reshape(*moved.shape[:2], math.prod(moved.shape[2:]))
