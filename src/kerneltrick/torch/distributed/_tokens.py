"""How many tokens of its text lie before a shard: what positions of a layer are counted from."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from kerneltrick.torch._tokens import count_tokens
from kerneltrick.torch.distributed._exchange import Group, Ranks

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def count_before(
    group: Group,
    x: Tensor,
    mask: Tensor | None,
    segment_ids: Tensor | None,
    runs: Tensor | None,
    stop: int,
    count: Tensor | None,
) -> tuple[int, Tensor | None]:
    """`stop` and `count` of the state that this rank goes on from, as `count_tokens` takes them.

    x (batch, n, ·) are the tokens of this rank, `runs` its segments numbered from 0, `segment_ids`
    the same by their own numbers; `stop` and `count` are of what comes before the first rank.
    """
    ranks, (batch, n) = Ranks(group, x.device), x.shape[:2]
    counted = mask is not None or runs is not None
    text = f"batch {batch}; mask {mask is not None}; segments {runs is not None}"
    rows = ranks.check_equal(text, (n, stop, count is not None))
    before = rows[0][1] + sum(row[0] for row in rows[: ranks.rank])
    if not counted and not rows[0][2]:
        return before, None
    own = torch.zeros((4, batch), dtype=torch.int64, device=x.device)  # tokens, restarts, ids
    if ranks.rank == 0:
        own[0] = stop if count is None else count
    if n:
        own[0] = count_tokens(x, mask, runs, 0, own[0].clone())[1]
    if n and runs is not None and segment_ids is not None:
        own[1] = runs[:, -1] > 0
        own[2], own[3] = segment_ids[..., 0], segment_ids[..., -1]
    found = ranks.gather(own)
    total, last = found[0][0].clone(), found[0][3] if rows[0][0] else None
    for i in range(1, ranks.rank + 1):
        if not rows[i][0]:
            continue
        tokens, restarts, first, end = found[i]
        if last is not None:
            total = torch.where(first != last, 0, total)
        last = end
        if i < ranks.rank:
            total = tokens + torch.where(restarts > 0, 0, total)
    return before, (own[0] * 0 + (stop if count is None else count)) if ranks.rank == 0 else total
