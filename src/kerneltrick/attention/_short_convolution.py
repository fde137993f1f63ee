"""The short convolution: checks a call and picks an engine."""

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
from kerneltrick.engines import ConvolutionData, ConvolutionRule

Activation = Literal["silu", "swish"]
ACTIVATIONS: dict[str | None, bool] = {None: False, "silu": True, "swish": True}
WHO = "short_convolution"


@overload
def short_convolution(
    x: Array,
    weight: Array,
    bias: Array | None = ...,
    *,
    activation: Activation | None = ...,
    mask: Array | None = ...,
    segment_ids: Array | None = ...,
    state: Array | None = ...,
    return_state: Literal[False] = ...,
    inplace: bool = ...,
    engine: str = ...,
) -> Array: ...


@overload
def short_convolution(
    x: Array,
    weight: Array,
    bias: Array | None = ...,
    *,
    activation: Activation | None = ...,
    mask: Array | None = ...,
    segment_ids: Array | None = ...,
    state: Array | None = ...,
    return_state: Literal[True],
    inplace: bool = ...,
    engine: str = ...,
) -> tuple[Array, Array]: ...


def short_convolution(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    activation: Activation | None = None,
    mask: Array | None = None,
    segment_ids: Array | None = None,
    state: Array | None = None,
    return_state: bool = False,
    inplace: bool = False,
    engine: str = "auto",
) -> Array | tuple[Array, Array]:
    """y_t = act(b + Σ_j w_j ⊙ x_{t−taps+1+j}) for each channel: a depthwise causal convolution.

    Parameters
    ----------
    x
        (..., n, channels), of any array library and with any strides: an array (batch, channels, n)
        can be given as a transposed view, which is not copied.
    weight, bias
        (channels, taps) and (channels,). The last tap multiplies the token itself, as in
        `torch.nn.Conv1d`.
    activation
        "silu" (also called "swish"), or None.
    mask
        (..., n) or (n,), True = keep. A masked token has no effect, the taps reach past it, and its
        output is 0.
    segment_ids
        Whole numbers (..., n) or (n,): where the number changes a new text begins, and no tap
        reaches into another one. The first text continues `state`.
    state, return_state
        The last taps − 1 tokens before x, (..., taps − 1, channels), the latest at the end; None
        stands for zeros. With `return_state`, also return those after x.
    inplace
        Write the state after x into `state` itself, which saves a copy in each step of a decoder.
    engine
        "native" (compiled, for arrays on the CPU), "direct" (any array library), or "auto": native
        where it can be, else direct.

    Returns
    -------
    The output, in the shape and dtype of x; with `return_state` also the state.

    float16 and bfloat16 are computed in float32. A NaN makes NaN exactly the outputs whose taps
    reach it.

    >>> import numpy as np, kerneltrick as kt
    >>> x, weight = np.ones((5, 1)), np.asarray([[8.0, 4.0, 2.0, 1.0]])
    >>> kt.short_convolution(x, weight)[:, 0]
    array([ 1.,  3.,  7., 15., 15.])
    >>> left, state = kt.short_convolution(x[:2], weight, return_state=True)
    >>> kt.short_convolution(x[2:], weight, state=state)[:, 0]
    array([ 7., 15., 15.])
    """
    made, after = convolve(
        x, weight, bias, activation, mask, segment_ids, state, return_state, inplace, engine
    )
    if inplace:
        after = write_state(state, after)
    return (made, after) if return_state else made


@untranslated
def convolve(
    x: Array,
    weight: Array,
    bias: Array | None,
    activation: str | None,
    mask: Array | None,
    segment_ids: Array | None,
    state: Array | None,
    return_state: bool,
    inplace: bool,
    engine: str,
) -> tuple[Array, Array | None]:
    """The output, and the state if it is asked for, or is to be overwritten."""
    plain = mask is None and segment_ids is None and engine == "auto" and activation in ACTIVATIONS
    if inplace and state is not None and plain:
        rule = ConvolutionRule(ACTIVATIONS[activation], True, True)
        again = engines.repeat(rule, ConvolutionData(x, weight, bias, None, None, state))
        if again is not None:
            return again, state
    namespace(x=x, weight=weight, bias=bias, mask=mask, segment_ids=segment_ids, state=state)
    if activation not in ACTIVATIONS:
        raise ValueError(f'activation must be "silu", "swish" or None, not {activation!r}')
    (x,) = check_tokens(WHO, {"x": x})
    channels = x.shape[-1]
    if weight.ndim != 2 or weight.shape[0] != channels or weight.shape[1] == 0:
        raise ValueError(
            f"{WHO} needs weight (channels, taps) for x (..., n, channels), but weight is "
            f"{tuple(weight.shape)} and x is {tuple(x.shape)}; the weight of torch.nn.Conv1d has "
            f"an axis more: weight[:, 0]"
        )
    check_parameter(WHO, "weight", weight, tuple(weight.shape))
    check_parameter(WHO, "bias", bias, (channels,))
    lead = tuple(x.shape[:-2])
    if inplace:
        state = before_writing(WHO, state, (x, weight, bias))
    check_state(WHO, state, (*lead, weight.shape[1] - 1, channels))
    data = ConvolutionData(
        x,
        weight,
        bias,
        token_array("mask", mask, x, "bool"),
        restarts(segment_ids, x),
        state,
    )
    rule = ConvolutionRule(ACTIVATIONS[activation], return_state or inplace, inplace)
    output, after = engines.run(engine, rule, data)
    return output, after
