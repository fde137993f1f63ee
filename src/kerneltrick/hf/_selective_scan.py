"""The scan of Mamba-1, as transformers calls it: channels before tokens."""

from __future__ import annotations

from typing import Any, TypeAlias

from kerneltrick.attention import selective_scan
from kerneltrick.hf._packed import segments

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
    made = selective_scan(
        x, dt, A, B, C, D, dt_bias=delta_bias, dt_softplus=delta_softplus, **options
    )
    if return_last_state:
        return made[0].transpose(1, 2), made[1]
    return made.transpose(1, 2)
