"""The arrays of a backward pass of linear attention by the compiled core."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from kerneltrick.engines._core_call import CoreCall, NumpyArray, aligned
from kerneltrick.engines._native import Arguments, give_saved, type_number
from kerneltrick.engines._problem import rule_of


class CoreGradients(NamedTuple):
    """Gradients as the core writes them: those of weights, gains and the state in float64."""

    q: NumpyArray | None
    k: NumpyArray | None
    v: NumpyArray | None
    log_decay: NumpyArray | None
    sums: NumpyArray | None
    # of the map's own weights, and behind them of those of keys
    weight: Annotated[NumpyArray | None, "(weight_heads + key_weight_heads, d, columns)"]
    bias: Annotated[NumpyArray | None, "(weight_heads, columns)"]
    near_k: NumpyArray | None
    near_v: NumpyArray | None
    gain: Annotated[NumpyArray | None, "(..., H·g)"]


def give_gradients(
    given: Arguments,
    call: CoreCall,
    d_output: NumpyArray,
    d_sums: NumpyArray | None,
    output: NumpyArray,
    saved: NumpyArray,
    sums_alone: bool = False,
) -> CoreGradients:
    """The arrays that the backward pass reads and writes, which the call is given.

    Outputs and their gradient are in the type of sums, as `compute` makes them for a gradient.
    `sums_alone`: only the gradient of the sums before the call is wanted.
    """
    lead, lead_q = given.k.shape[:-2], given.q.shape[:-2]
    call["output_type"] = type_number(output.dtype.name)
    call.view("output", output, lead_q)
    call.view("d_output", d_output, lead_q)
    give_saved(call, saved)
    call.array("sums", given.sums)
    call.array("log_scale", given.log_scale)
    made: dict[str, Any] = dict.fromkeys(CoreGradients._fields)

    def zeros(name: str, shape: tuple[int, ...]) -> None:
        made[name] = call.array(f"d_{name}", np.zeros(shape))

    if given.sums is not None:
        zeros("sums", given.sums.shape)
        if d_sums is not None:
            np.copyto(made["sums"], d_sums)
    if sums_alone:
        return CoreGradients(**made)
    for name, where in (("q", lead_q), ("k", lead), ("v", lead)):
        x = getattr(given, name)
        made[name] = aligned(x.shape, x.dtype)
        call.view(f"d_{name}", made[name], where)
    for name in ("near_k", "near_v"):
        x = getattr(given, name)
        if x is not None:
            made[name] = np.zeros(x.shape, x.dtype)
            call.view(f"d_{name}", made[name], lead)
    if not rule_of(given.rule).all_far:
        zeros("gain", lead_q)
    if given.log_decay is not None:
        zeros("log_decay", given.log_decay.shape)
    heads, columns = call["weight_heads"], call["columns"]
    if not (given.weight is None and given.bias is None and given.key_weight is None):
        zeros("weight", (heads + call["key_weight_heads"], call["inputs"], columns))
    if given.bias is not None:
        zeros("bias", (heads, columns))
    return CoreGradients(**made)
