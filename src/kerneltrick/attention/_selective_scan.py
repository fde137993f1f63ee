"""The selective scan of Mamba: checks a call and picks an engine."""

from __future__ import annotations

from typing import Literal, overload

from kerneltrick import engines
from kerneltrick._arrays import Array, namespace, untranslated
from kerneltrick.attention._arguments import token_array
from kerneltrick.attention._sequence import (
    before_writing,
    check_parameter,
    check_state,
    check_tokens,
    restarts,
    write_state,
)
from kerneltrick.engines import ScanData, ScanRule

WHO = "selective_scan"


@overload
def selective_scan(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = ...,
    *,
    z: Array | None = ...,
    dt_bias: Array | None = ...,
    dt_softplus: bool = ...,
    mask: Array | None = ...,
    segment_ids: Array | None = ...,
    state: Array | None = ...,
    return_state: Literal[False] = ...,
    inplace: bool = ...,
    engine: str = ...,
) -> Array: ...


@overload
def selective_scan(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = ...,
    *,
    z: Array | None = ...,
    dt_bias: Array | None = ...,
    dt_softplus: bool = ...,
    mask: Array | None = ...,
    segment_ids: Array | None = ...,
    state: Array | None = ...,
    return_state: Literal[True],
    inplace: bool = ...,
    engine: str = ...,
) -> tuple[Array, Array]: ...


def selective_scan(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    *,
    z: Array | None = None,
    dt_bias: Array | None = None,
    dt_softplus: bool = False,
    mask: Array | None = None,
    segment_ids: Array | None = None,
    state: Array | None = None,
    return_state: bool = False,
    inplace: bool = False,
    engine: str = "auto",
) -> Array | tuple[Array, Array]:
    """h_t = e^{Δ_t A} ⊙ h_{t−1} + (Δ_t ⊙ x_t) B_tᵀ, y_t = (h_t C_t + D ⊙ x_t) ⊙ silu(z_t).

    This is the recurrence of Mamba (Gu & Dao 2023, Algorithm 2). Each channel remembers N numbers,
    the rows of h, which decay at their own rates.

    Parameters
    ----------
    x, dt
        (..., n, channels), of any array library and with any strides.
    A
        (channels, N), usually negative.
    B, C
        (..., n, N), shared by all channels.
    D
        (channels,): the share of the token itself. None: 0.
    z
        (..., n, channels): the gate. None: no gate.
    dt_bias, dt_softplus
        Δ = dt + dt_bias, or softplus(dt + dt_bias) with `dt_softplus`; dt_bias is (channels,).
    mask
        (..., n) or (n,), True = keep. A masked token does not change h, and its output is 0.
    segment_ids
        Whole numbers (..., n) or (n,): h restarts from 0 where the number changes. The first text
        continues `state`.
    state, return_state
        h before x, (..., channels, N), None for zeros. With `return_state`, also return h after x,
        in float32, or float64 if x is.
    inplace
        Write h after x into `state` itself, which saves a copy in each step of a decoder.
    engine
        "native" (compiled, for arrays on the CPU), "chunked" or "recurrent" (any array library), or
        "auto": native where it can be, else chunked.

    Returns
    -------
    The output, in the shape and dtype of x; with `return_state` also the state.

    float16 and bfloat16 are computed in float32. A NaN makes NaN exactly the outputs that depend on
    it: for one in x those of its channel from its token on.

    >>> import numpy as np, kerneltrick as kt
    >>> x = dt = np.ones((4, 1))
    >>> A, B, C = np.log([[0.5]]), np.ones((4, 1)), np.ones((4, 1))
    >>> kt.selective_scan(x, dt, A, B, C)[:, 0]
    array([1.   , 1.5  , 1.75 , 1.875])
    """
    made, after = scan(
        x, dt, A, B, C, D, z, dt_bias, bool(dt_softplus), mask, segment_ids, state,
        return_state, inplace, engine,
    )  # fmt: skip
    if inplace:
        after = write_state(state, after)
    return (made, after) if return_state else made


@untranslated
def scan(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None,
    z: Array | None,
    dt_bias: Array | None,
    dt_softplus: bool,
    mask: Array | None,
    segment_ids: Array | None,
    state: Array | None,
    return_state: bool,
    inplace: bool,
    engine: str,
) -> tuple[Array, Array | None]:
    """The output, and the state if it is asked for, or is to be overwritten."""
    if inplace and state is not None and mask is None and segment_ids is None and engine == "auto":
        step = ScanData(x, dt, A, B, C, D, z, dt_bias, None, None, state)
        again = engines.repeat(ScanRule(dt_softplus, True, True), step)
        if again is not None:
            return again, state
    namespace(
        x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias, mask=mask, segment_ids=segment_ids,
        state=state,
    )  # fmt: skip
    given = {"x": x, "dt": dt, "B": B, "C": C}
    x, dt, B, C, *gate = check_tokens(WHO, given if z is None else {**given, "z": z})
    channels, lead = x.shape[-1], tuple(x.shape[:-1])
    if A.ndim != 2 or A.shape[0] != channels or A.shape[1] == 0:
        raise ValueError(
            f"{WHO} needs A (channels, N) for x (..., n, channels), but A is {tuple(A.shape)} and "
            f"x is {tuple(x.shape)}"
        )
    check_parameter(WHO, "A", A, tuple(A.shape))
    check_parameter(WHO, "D", D, (channels,))
    check_parameter(WHO, "dt_bias", dt_bias, (channels,))
    widths = {"dt": (dt, channels), "B": (B, A.shape[1]), "C": (C, A.shape[1])}
    if gate:
        widths["z"] = (gate[0], channels)
    for name, (y, width) in widths.items():
        if tuple(y.shape) != (*lead, width):
            raise ValueError(
                f"{WHO} needs {name} {(*lead, width)} beside x {tuple(x.shape)} and A "
                f"{tuple(A.shape)}, not {tuple(y.shape)}"
            )
    if inplace:
        state = before_writing(WHO, state, (x, dt, A, B, C, D, z, dt_bias))
    check_state(WHO, state, (*lead[:-1], *A.shape))
    data = ScanData(
        x, dt, A, B, C, D, gate[0] if gate else None, dt_bias,
        token_array("mask", mask, x, "bool"), restarts(segment_ids, x), state,
    )  # fmt: skip
    rule = ScanRule(dt_softplus, return_state or inplace, inplace)
    output, after = engines.run(engine, rule, data)
    return output, after
