"""ONNX's own NumPy reference of `LinearAttention` as a second oracle of our recurrences."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import kerneltrick as kt  # noqa: E402

pytestmark = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 27, reason="this ONNX has no LinearAttention"
)
BATCH, HEADS, N, D, M = 2, 3, 19, 4, 5


def reference(rule, scale, **given):
    """The output and the state of arrays (batch, heads, n, width), by ONNX's reference."""
    order = ("query", "key", "value", "past_state", "decay", "beta")
    feeds = {
        name: x if name == "past_state" else np.moveaxis(x, 1, 2).reshape(BATCH, N, -1)
        for name, x in given.items()
    }
    feeds = {name: x.astype(np.float32) for name, x in feeds.items()}
    node = helper.make_node(
        "LinearAttention",
        [name if name in given else "" for name in order],
        ["output", "present_state"],
        update_rule=rule,
        q_num_heads=HEADS,
        kv_num_heads=HEADS,
        scale=scale,
    )
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in each]
        for each in (feeds, node.output)
    )
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 27)],
    )
    o, state = ReferenceEvaluator(model).run(None, feeds)
    return np.moveaxis(o.reshape(BATCH, N, HEADS, M), 2, 1), state


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    q, k = random.standard_normal((2, BATCH, HEADS, N, D))
    return {
        "q": q,
        "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": random.standard_normal((BATCH, HEADS, N, M)),
        "state": random.standard_normal((BATCH, HEADS, D, M)),
        "beta": random.uniform(0, 1, (BATCH, HEADS, N)),
        "head": -random.uniform(0, 1, (BATCH, HEADS, N)),
        "feature": -random.uniform(0, 1, (BATCH, HEADS, N, D)),
    }


def check(found, expected):
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-5)


def test_linear_attention_is_that_of_onnx(arrays):
    q, k, v = (arrays[name] for name in "qkv")
    options = {"causal": True, "normalize": False, "scale": 1.0, "return_state": True}
    for rule, name in (("linear", None), ("gated", "head"), ("gated", "feature")):
        decay = arrays.get(name)
        o, state = kt.linear_attention(q, k, v, "identity", log_decay=decay, **options)
        given = {} if decay is None else {"decay": decay}
        check((o, state.U), reference(rule, 1.0, query=q, key=k, value=v, **given))


def test_the_delta_rule_is_that_of_onnx(arrays):
    q, k, v, beta, before = (arrays[name] for name in ("q", "k", "v", "beta", "state"))
    options = {"scale": 0.5, "state": kt.DeltaState(before), "return_state": True}
    for rule, name in (("delta", None), ("gated_delta", "head"), ("gated_delta", "feature")):
        decay = arrays.get(name)
        o, state = kt.delta_rule(q, k, v, beta, log_decay=decay, **options)
        given = {"query": q, "key": k, "value": v, "beta": beta, "past_state": before}
        given |= {} if decay is None else {"decay": decay}
        check((o, state.S), reference(rule, 0.5, **given))
