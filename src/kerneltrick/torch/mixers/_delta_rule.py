"""The delta rule: a state that is corrected instead of only added to."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.nn import functional

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    *,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    runs: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor]:
    """S_t = a_t S_{t−1} + β_t k_t (v_t − a_t S_{t−1}ᵀ k_t)ᵀ, o_t = S_tᵀ q_t, and S at the end.

    The shapes are q, k (batch, heads, n, d), v (batch, heads, n, M), β and log a ≤ 0 (batch, heads,
    n) and S (batch, heads, d, M). S is float32 or wider. `mask` (batch, n) is True where a token
    takes part. `runs` (batch or 1, n) is the number of the text of each token, starting at 0; S
    restarts with each text.

    The computation goes by chunks. Inside a chunk, the corrections u_t = β_t (v_t − a_t S_{t−1}ᵀ
    k_t) solve a triangular system, the WY form (Yang et al. 2024, Section 3.2; with decays Yang et
    al. 2025, Section 3.3). So a chunk is a few matrix products, and only n/chunk_size steps are
    sequential.

    >>> k = torch.eye(4)[None, None, [0, 1, 0]]  # the first key again: its value is replaced
    >>> v, beta = torch.tensor([[[[1.0], [2.0], [5.0]]]]), torch.ones(1, 1, 3)
    >>> o, state = delta_rule(k, k, v, beta)
    >>> o.flatten().tolist(), state.flatten().tolist()
    ([1.0, 2.0, 5.0], [5.0, 2.0, 0.0, 0.0])
    """
    batch, heads, n, d = q.shape
    width, dtype = v.shape[-1], v.dtype
    wide = torch.promote_types(dtype, torch.float32)
    q, k, v, beta = (x.to(wide) for x in (q, k, v, beta))
    log_decay = torch.zeros_like(beta) if log_decay is None else log_decay.to(wide)
    if state is None:
        state = q.new_zeros(batch, heads, d, width)
    if n == 0:
        return v.to(dtype), state
    if mask is not None:  # a masked token neither corrects nor decays
        kept = mask[:, None]
        beta, log_decay = (torch.where(kept, x, torch.zeros_like(x)) for x in (beta, log_decay))

    size = min(chunk_size, n)
    short = -n % size  # tokens that fill the last chunk, with β = 0
    q, k, v = (functional.pad(x, (0, 0, 0, short)).unflatten(2, (-1, size)) for x in (q, k, v))
    beta, log_decay = (
        functional.pad(x, (0, short)).unflatten(2, (-1, size)) for x in (beta, log_decay)
    )
    total = log_decay.cumsum(-1)
    entering = torch.exp(total)  # decay from the start of the chunk to token t
    leaving = torch.exp(total[..., -1:] - total)  # decay from token j to the end of the chunk
    seen = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if runs is not None:
        runs = runs.expand(batch, n)
        runs = torch.cat([runs, runs[:, -1:].expand(batch, short)], 1).unflatten(1, (-1, size))
        own = torch.cat([torch.zeros_like(runs[:, :1, -1]), runs[:, :-1, -1]], dim=1)
        entering = entering * (runs == own[..., None])[:, None]
        leaving = leaving * (runs == runs[..., -1:])[:, None]
        seen = (seen & (runs[..., :, None] == runs[..., None, :]))[:, None]
    # Differences of summed logs, never ratios of products. exp turns −∞ into 0.
    since = torch.where(seen, total[..., :, None] - total[..., None, :], -torch.inf)
    weight = torch.exp(since)

    matrix = torch.eye(size, dtype=wide, device=q.device)
    matrix = matrix + beta[..., None] * (k @ k.mT * weight).tril(-1)
    right = beta[..., None] * torch.cat([v, entering[..., None] * k], dim=-1)
    solved = torch.linalg.solve_triangular(matrix, right, upper=False, unitriangular=True)
    u, w = solved.split([width, d], dim=-1)  # corrections for an empty state; w @ S is subtracted
    inside = q @ k.mT * weight
    q, k = entering[..., None] * q, leaving[..., None] * k
    outputs = []
    for c in range(q.shape[2]):
        corrected = u[:, :, c] - w[:, :, c] @ state
        outputs.append(q[:, :, c] @ state + inside[:, :, c] @ corrected)
        state = entering[:, :, c, -1, None, None] * state + k[:, :, c].mT @ corrected
    return torch.cat(outputs, dim=2)[:, :, :n].to(dtype), state
