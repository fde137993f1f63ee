"""A call of the delta rule: its keywords as given, and what is left of them once checked."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    astype,
    autocast,
    compute_dtype,
    constant,
    is_floating,
    namespace,
    zeros,
)
from kerneltrick.attention._arguments import (
    Inputs,
    check_arrays,
    check_causal,
    check_decay,
    check_scale,
    restarts,
    shapes,
    token_array,
)
from kerneltrick.attention._delta_state import DeltaState, checked_state
from kerneltrick.attention._state import known_int
from kerneltrick.attention._state_file import LONGEST
from kerneltrick.engines import DeltaData, DeltaRule


class DeltaOptions(NamedTuple):
    """The keywords of `delta_rule` as the caller gave them."""

    log_decay: Any = None
    erase: Array | None = None
    read: Array | None = None
    scale: float | None = None
    normalize_qk: bool = False
    mask: Array | None = None
    segment_ids: Array | None = None
    state: DeltaState | None = None
    return_state: bool = False


class DeltaCall(NamedTuple):
    """A checked call: what engines need, and what turns their result into the caller's."""

    inputs: Inputs
    rule: DeltaRule
    data: DeltaData
    padded: bool  # a masked token stands in for none


def check_delta_call(
    who: str, q: Array, k: Array, v: Array, beta: Any, options: DeltaOptions
) -> DeltaCall:
    """Check everything; an engine may trust what it is given."""
    q, k, v, erase, read = _one_dtype(who, q, k, v, options.erase, options.read)
    inputs = check_arrays(who, q, k, v)
    check_causal(who, inputs, causal=True)
    _check_heads(who, inputs)
    erase, read = (
        _like_keys(who, name, x, inputs) for name, x in (("erase", erase), ("read", read))
    )
    headless, d = inputs.headless, q.shape[-1]
    q, k, v, state = inputs.q, inputs.k, inputs.v, options.state
    S = None
    if state is not None:
        S = checked_state(state, k, v, headless)
    start = 0 if state is None else state.stop
    known = known_int(start)
    stop = 0 if known is None else known + v.shape[-2]
    if isinstance(stop, int) and stop >= LONGEST:
        raise ValueError(f"{who} counts tokens below 2**53, but the state ends at {known}")
    rule = DeltaRule(
        scale=1 / math.sqrt(d) if options.scale is None else check_scale(who, options.scale),
        normalize_qk=bool(options.normalize_qk),
        wants_state=options.return_state,
    )
    mask = token_array("mask", options.mask, v, "bool")
    data = DeltaData(
        q,
        k,
        v,
        _check_beta(who, beta, inputs),
        check_decay(options.log_decay, v, d, headless, mask, "value head"),
        erase,
        read,
        mask,
        restarts(options.segment_ids, v),
        S,
        start,
    )
    padded = v.shape[-2] == 0
    return DeltaCall(inputs, rule, _one_token(data) if padded else data, padded)


def _one_dtype(who: str, *arrays: Array | None) -> tuple[Any, ...]:
    """q, k, v, erase and read in one dtype: they must have it, but under autocast."""
    given = [x for x in arrays if x is not None]
    names = ("q", "k", "v", "erase", "read")
    namespace(**dict(zip(names, arrays, strict=True)))
    if all(x.dtype == given[0].dtype for x in given):
        return arrays
    same = autocast(*given)
    if same is None:
        found = ", ".join(
            f"{n}: {x.dtype}" for n, x in zip(names, arrays, strict=True) if x is not None
        )
        raise TypeError(f"{who} needs {', '.join(names)} of one dtype, but got {found}")
    rest = iter(same)
    return tuple(None if x is None else next(rest) for x in arrays)


def _check_heads(who: str, inputs: Inputs) -> None:
    q, k, v = inputs.q, inputs.k, inputs.v
    if q.shape[:-2] != k.shape[:-2] or k.shape[:-3] != v.shape[:-3]:
        raise ValueError(
            f"{who} needs the same leading dimensions for q, k and v; only the heads (axis -3) "
            f"of v may be a multiple of those of q and k ({shapes(inputs)})"
        )
    if k.shape[-3] == 0 or v.shape[-3] == 0 or v.shape[-3] % k.shape[-3]:
        raise ValueError(
            f"{who} needs the number of value heads to be a multiple of the number of query/key "
            f"heads, but there are {v.shape[-3]} and {k.shape[-3]} ({shapes(inputs)})"
        )


def _like_keys(who: str, name: str, x: Array | None, inputs: Inputs) -> Array | None:
    if x is None:
        return None
    shape = tuple(inputs.restore(inputs.k).shape)
    if tuple(x.shape) != shape:
        raise ValueError(f"{who} needs {name} with the shape of k, {shape}, not {tuple(x.shape)}")
    return x[None, ...] if inputs.headless else x


def _check_beta(who: str, beta: Any, inputs: Inputs) -> Array | None:
    """β as (..., H, n, 1); None stands for 1."""
    v, dtype = inputs.v, compute_dtype(inputs.v)
    if isinstance(beta, (int, float, np.number)) and not isinstance(beta, bool):
        if not math.isfinite(beta):
            raise ValueError(f"{who} needs a finite beta, not {beta}")
        if beta == 1:
            return None
        number = constant(np.asarray(float(beta)), v, dtype)
        return inputs.xp.broadcast_to(number, (*v.shape[:-1], 1))
    namespace(v=v, beta=beta)
    if not is_floating(beta):
        raise TypeError(f"{who} needs a floating-point beta, not {beta.dtype}")
    shape = tuple(inputs.restore(v).shape[:-1])
    beta = astype(beta, dtype)
    if beta.shape == ():
        return inputs.xp.broadcast_to(beta, (*v.shape[:-1], 1))
    if tuple(beta.shape) != shape:
        raise ValueError(
            f"{who} needs beta to be a number or one per token and value head {shape}, not an "
            f"array {tuple(beta.shape)}"
        )
    beta = beta[..., None]
    return beta[None, ...] if inputs.headless else beta


def _one_token(data: DeltaData) -> DeltaData:
    """One masked token in place of none, so that engines always have one."""
    xp = namespace(v=data.v)

    def one(x: Array | None) -> Array | None:
        if x is None:
            return None
        # Joined to what is empty, so that the result is a function of it to gradients.
        return xp.concat([x, zeros((*x.shape[:-2], 1, x.shape[-1]), x, x.dtype)], axis=-2)

    hidden = zeros((*(1,) * (data.v.ndim - 2), 1, 1), data.v, xp.bool)
    streams = (*(one(x) for x in data.streams[:7]), hidden, None)
    return DeltaData._make((*streams, data.state, data.start))
