"""Our own operators, each engine by itself, on arrays of each library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from kerneltrick._arrays import Array, astype, space
from kerneltrick.attention import (
    DeltaState,
    State,
    delta_rule,
    linear_attention,
    selective_scan,
    short_convolution,
)
from kerneltrick.conformance._adapters import from_library, from_torch
from kerneltrick.conformance._checks import CHECKS
from kerneltrick.conformance._kinds import SINKS, WINDOW
from kerneltrick.conformance._operator import Operator, narrowed
from kerneltrick.conformance._tokens import TrialSizes
from kerneltrick.engines import core, set_num_threads

LIBRARIES = ("NumPy", "PyTorch", "JAX", "array-api-strict")
MODULES = {"PyTorch": "torch", "JAX": "jax", "array-api-strict": "array_api_strict"}
EVERYTHING = frozenset(CHECKS)
SEQUENCE = ("selective_scan", "short_convolution")
MAPS: dict[str, dict[str, Any]] = {
    "softmax_attention": {"feature_map": "softmax"},
    "window_attention": {"feature_map": "softmax", "window": WINDOW, "sinks": SINKS},
    "near_far_attention": {"feature_map": "elu", "window": WINDOW, "sinks": SINKS, "far": 0.0},
    "linear_attention": {"feature_map": "elu"},
}


def engines_of(kind: str) -> tuple[str, ...]:
    """The engines that have an operator, the one that is the default at the end."""
    if kind == "short_convolution":
        return ("direct", "native")
    dense = () if kind.startswith("delta") or kind == "selective_scan" else ("dense",)
    return (*dense, "recurrent", "chunked", "native")


def goes_with(kind: str, engine: str, library: str) -> bool:
    """Whether an engine has an operator on arrays of a library."""
    if engine != "native":
        return True
    return library in ("NumPy", "PyTorch") or (library == "JAX" and kind not in SEQUENCE)


def attention_call(kind: str, engine: str) -> Callable[..., Any]:
    """A kind of operator as one call of ours, on arrays of any library."""

    def call(
        *arrays: Array,
        mask: Array | None = None,
        segment_ids: Array | None = None,
        state: Any = None,
    ) -> Any:
        options: dict[str, Any] = {
            "mask": mask,
            "segment_ids": segment_ids,
            "state": state,
            "engine": engine,
        }
        options["return_state"] = True
        if kind in SEQUENCE:
            shape = arrays[0].shape[:-1]
            for name, x in (("mask", mask), ("segment_ids", segment_ids)):
                if x is not None:  # for these, heads are rows like any others
                    options[name] = space(x).broadcast_to(x[:, None, :], shape)
        if kind == "short_convolution":
            return short_convolution(*arrays, **options)
        if kind == "selective_scan":
            C, B, x, dt, A = arrays
            return selective_scan(x, dt, A, B, C, **options)
        q, k, v, *rates = arrays
        if kind.startswith("delta"):
            beta, log_decay = rates
            return delta_rule(q, k, v, beta, log_decay=log_decay, **options)
        chosen: dict[str, Any] = {"causal": True, **MAPS.get(kind, {"feature_map": "identity"})}
        if kind == "state_space":
            (dt,) = rates
            v, rates = astype(v * dt[..., None], v.dtype), [-dt]
            chosen["scale"] = 1.0
        elif rates:
            chosen["scale"] = q.shape[-1] ** -0.5
        if rates:
            chosen |= {"log_decay": rates[0], "normalize": False}
        return linear_attention(q, k, v, **chosen, **options)

    return call


def our_operator(kind: str, engine: str, library: str, name: str) -> Operator:
    """Ours on arrays of a library, which promises everything but what the library has not."""
    call = attention_call(kind, engine)
    # Token by token in Python: a few tokens are enough, since it has no chunks.
    sizes = TrialSizes(n=9) if engine == "recurrent" else TrialSizes()
    more: dict[str, Any] = {
        "exact": True,
        "promises": EVERYTHING,
        "sizes": sizes,
        "floats": ("float32", "float64"),
        "grouped": True,
        "wide": True,
        "threads": _threads if engine == "native" and core() is not None else None,
        **_files(kind, library),
    }
    if library == "NumPy":
        return Operator(_with_halves(kind, call), kind, name, **more)
    if library == "PyTorch":
        return from_torch(call, kind, name, **more)
    if library == "JAX":
        import jax

        def gradient(function: Any, arrays: list[Any], cotangent: Any) -> Any:
            return jax.vjp(lambda *x: function(*x)[0], *arrays)[1](cotangent)

        # XLA compiles every shape anew, and has no float64 unless it is switched on.
        more |= {"sizes": TrialSizes(n=6), "floats": ("float32",), "gradient": gradient}
        return from_library(call, kind, name, asarray=jax.numpy.asarray, **more)
    import array_api_strict

    return from_library(call, kind, name, asarray=array_api_strict.asarray, **more)


def _with_halves(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        *arrays: Array,
        mask: Array | None = None,
        segment_ids: Array | None = None,
        state: Any = None,
        dtype: str | None = None,
    ) -> tuple[Array, Any]:
        given = arrays if dtype is None else narrowed(kind, arrays, lambda x: x.astype(dtype))
        found: tuple[Array, Any] = call(*given, mask=mask, segment_ids=segment_ids, state=state)
        return found

    return run


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads of the core, at work however little there is; then as many as usual."""
    set_num_threads(count)
    core().wake_always(count > 1)
    try:
        yield
    finally:
        core().wake_always(False)
        set_num_threads(None)


def _files(kind: str, library: str) -> dict[str, Any]:
    if kind in SEQUENCE or library not in ("NumPy", "PyTorch"):
        return {}  # their states are arrays, and saved as such
    owner: Any = DeltaState if kind.startswith("delta") else State

    def load(path: str) -> Any:
        if library == "NumPy":
            return owner.load(path)
        import torch

        state = owner.load(path)
        dtype = getattr(torch, (state.S if kind.startswith("delta") else state.U).dtype.name)
        return state.to(torch.zeros(1, dtype=dtype))

    return {"save": lambda state, path: state.save(path), "load": load}
