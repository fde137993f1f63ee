"""The scan of Mamba-1, as transformers calls it: channels before tokens."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.nn import functional

from kerneltrick.attention import selective_scan
from kerneltrick.hf._packed import segments
from kerneltrick.hf._watch import is_watched, show
from kerneltrick.torch import ScanOperator

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    use_mambapy: bool = False,
    use_associative_scan: bool = False,
    **more: Any,
) -> Any:
    """`selective_scan_fn`: hidden_states, dt and z (batch, channels, n), A (channels, N), B and C
    (batch, N, n). The last state is (batch, channels, N).
    """
    batch, _, n = hidden_states.shape
    options: dict[str, Any] = {"return_state": return_last_state}
    options["segment_ids"] = segments(more, batch, n)
    options["z"] = None if z is None else z.transpose(1, 2)
    x, dt, B, C = (tokens.transpose(1, 2) for tokens in (hidden_states, dt, B, C))
    if is_watched():
        wide = torch.promote_types(x.dtype, torch.float32)
        step = dt.to(wide) if delta_bias is None else dt.to(wide) + delta_bias.to(wide)
        step = functional.softplus(step) if delta_softplus else step
        rates, keys, queries = (y.to(wide) for y in (A, B, C))
        own = None if D is None else D.to(wide)
        given = {"segment_ids": options["segment_ids"]}
        show(ScanOperator(x.to(wide), step, rates, keys, queries, own, given))
    made = selective_scan(
        x, dt, A, B, C, D, dt_bias=delta_bias, dt_softplus=delta_softplus, **options
    )
    if return_last_state:
        return made[0].transpose(1, 2), made[1]
    return made.transpose(1, 2)
