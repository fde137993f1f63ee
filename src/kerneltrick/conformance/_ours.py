"""Our own operators, each engine by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerneltrick._arrays import Array, astype
from kerneltrick.attention import DeltaState, State, delta_rule, linear_attention
from kerneltrick.conformance._adapters import from_torch
from kerneltrick.conformance._checks import CHECKS
from kerneltrick.conformance._operator import Operator, TrialSizes

EVERYTHING = frozenset(CHECKS)
STATES = {"delta_rule": DeltaState, "delta_rule_per_feature": DeltaState}


def attention_call(kind: str, engine: str) -> Callable[..., Any]:
    """A kind of operator as one call of ours, on arrays of any library."""

    def call(
        q: Array,
        k: Array,
        v: Array,
        *rates: Array,
        mask: Array | None = None,
        segment_ids: Array | None = None,
        state: Any = None,
    ) -> tuple[Array, Any]:
        options = {"mask": mask, "segment_ids": segment_ids, "state": state, "engine": engine}
        if kind in STATES:
            beta, log_decay = rates
            return delta_rule(q, k, v, beta, log_decay=log_decay, return_state=True, **options)
        if kind == "state_space":
            (dt,) = rates
            v, rates, scale = astype(v * dt[..., None], v.dtype), (-dt,), 1.0
        else:
            scale = q.shape[-1] ** -0.5
        if rates:
            options |= {"log_decay": rates[0], "normalize": False, "scale": scale}
        name = {"softmax_attention": "softmax", "linear_attention": "elu"}.get(kind, "identity")
        return linear_attention(q, k, v, name, causal=True, return_state=True, **options)

    return call


def numpy_operator(kind: str, engine: str, name: str) -> Operator:
    """Ours on NumPy arrays, which promises everything but gradients."""
    call = attention_call(kind, engine)

    def run(
        *arrays: Array,
        mask: Array | None = None,
        segment_ids: Array | None = None,
        state: Any = None,
        dtype: str | None = None,
    ) -> tuple[Array, Any]:
        given = [x if dtype is None or i > 2 else x.astype(dtype) for i, x in enumerate(arrays)]
        o, after = call(*given, mask=mask, segment_ids=segment_ids, state=state)
        return o, after

    # Token by token in Python: a few tokens are enough, since it has no chunks.
    sizes = TrialSizes(n=17) if engine == "recurrent" else TrialSizes()
    return Operator(run, kind, name, exact=True, promises=EVERYTHING, sizes=sizes, **_files(kind))


def torch_operator(kind: str, engine: str, name: str) -> Operator:
    """Ours on tensors of PyTorch."""
    call = attention_call(kind, engine)
    more = _files(kind, tensors=True)
    return from_torch(call, kind, name, exact=True, promises=EVERYTHING, **more)


def _files(kind: str, *, tensors: bool = False) -> dict[str, Any]:
    owner: Any = STATES.get(kind, State)

    def load(path: str) -> Any:
        if not tensors:
            return owner.load(path)
        import torch

        return owner.load(path, like=torch.zeros(1))

    return {"save": lambda state, path: state.save(path), "load": load}
