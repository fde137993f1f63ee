"""What lies before the tokens of a rank: how many of their text, the last of them, and a state."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import torch

from kerneltrick.torch._short_convolution import tail_after
from kerneltrick.torch._tokens import count_tokens
from kerneltrick.torch.distributed._exchange import Gather, Group, Ranks, after

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@dataclasses.dataclass(frozen=True, eq=False)
class Before:
    """What a layer knows of the tokens before those of this rank, on others and in a state."""

    ranks: Ranks
    stop: int  # how many there are
    count: Tensor | None  # (batch,): those of the text that took part; None: all, `stop`
    ends: list[Tensor]  # (batch,): with how many of these each rank before this one ends
    fresh: Tensor | None  # (batch,): where another text begins with this rank's first token
    longest: int  # tokens of one rank, and of the state on the first
    tracked: bool  # whether there will be gradients, on any rank

    @staticmethod
    def look(
        group: Group,
        layer: str,
        x: Tensor,
        mask: Tensor | None,
        segment_ids: Tensor | None,
        runs: Tensor | None,
        bounds: tuple[int, Tensor | None] | None,
        tracked: bool,
    ) -> Before:
        """All ranks of a group tell each other what tokens x (batch, n, ·) of a layer they have.

        `runs` are this rank's segments numbered from 0, `segment_ids` the same by their own
        numbers; `bounds` are `stop` and `count` of a state, which only the first rank may have.
        """
        ranks, (batch, n) = Ranks(group, x.device), x.shape[:2]
        stop, count = (0, None) if bounds is None else bounds
        text = (
            f"layer {layer}; batch {batch}; dtype {x.dtype}; mask {mask is not None}; "
            f"segments {runs is not None}"
        )
        numbers = (n, stop, bounds is not None, count is not None, tracked)
        rows = ranks.check_equal(text, numbers)
        ranks.check_first([row[2] for row in rows])
        sizes = [row[0] for row in rows]
        start = rows[0][1] + sum(sizes[: ranks.rank])
        longest = max(rows[0][1] + sizes[0], *sizes)
        tracked = any(row[4] for row in rows)

        def whole(number: int) -> Tensor:
            return torch.full((batch,), number, dtype=torch.int64, device=x.device)

        if mask is None and runs is None and not rows[0][3]:
            ends = [whole(size) for size in (rows[0][1] + sizes[0], *sizes[1:])]
            return Before(ranks, start, None, ends[: ranks.rank], None, longest, tracked)
        held = whole(stop) if count is None else count
        own = torch.stack([held if ranks.rank == 0 else whole(0), *[whole(0)] * 3])
        if n:
            own[0] = count_tokens(x, mask, runs, 0, own[0].clone())[1]
        if n and runs is not None and segment_ids is not None:
            own[1], own[2], own[3] = runs[:, -1], segment_ids[..., 0], segment_ids[..., -1]
        found = ranks.gather(own)
        texts = _texts(sizes, found)
        first = texts[ranks.rank][0]
        ends = [torch.where(texts[i][1] == first, found[i][0], 0) for i in range(ranks.rank)]
        before = sum(ends, whole(0)) if ranks.rank else held
        fresh = None
        if runs is not None:
            fresh = first != (texts[ranks.rank - 1][1] if ranks.rank else 0)
        return Before(ranks, start, before, ends, fresh, longest, tracked)

    def tail(
        self, x: Tensor, tail: Tensor | None, count: int, mask: Tensor | None, runs: Tensor | None
    ) -> Tensor:
        """The last `count` tokens before x (batch, n, channels), as `tail_after` gives them.

        `tail` is that of the state, on the first rank.
        """
        size = min(count, max(self.longest, 1))
        own = tail_after(x, tail, count, mask, runs)
        found, token = self._gather(own[:, count - size :])
        if not self.ends:
            start = own.new_zeros(own.shape) if tail is None else tail.to(x.dtype)
            return after(start, token)
        slots = torch.arange(size, 0, -1, device=x.device)
        held = torch.cat([slots <= end[:, None] for end in self.ends], dim=1)
        others = torch.cat([each[0] for each in found[: self.ranks.rank]], dim=1)
        return after(tail_after(others, None, count, held, None), token)

    def carried(self, A: Tensor, B: Tensor, state: Tensor | None) -> Tensor:
        """S (batch, heads, d, M) before x, which on every rank becomes A S + B.

        `state` is S before all tokens, on the first rank.
        """
        start = torch.zeros_like(B) if state is None else state.to(B.dtype)
        if not self.ends:
            B = A @ start + B
        fresh = None if self.fresh is None else self.fresh[:, None, None, None]
        if fresh is not None:
            A = torch.where(fresh, torch.zeros_like(A), A)
        found, token = self._gather(A, B)
        for moved, added in found[: self.ranks.rank]:
            start = moved @ start + added
        if fresh is not None:
            start = torch.where(fresh, torch.zeros_like(start), start)
        return after(start, token)

    def _gather(self, *own: Tensor) -> tuple[list[list[Tensor]], Tensor]:
        """These tensors of every rank, which those after it use, and the token of the exchange."""
        used = [range(i) for i in range(self.ranks.count)]
        anchor = torch.zeros(1, dtype=torch.float64, requires_grad=self.tracked)
        token, *flat = Gather.apply(self.ranks, used, anchor, *own)
        size = len(own)
        return [flat[i : i + size] for i in range(0, len(flat), size)], token


def _texts(sizes: list[int], found: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The texts that each rank begins and ends in, numbered over all ranks: of their own numbers
    one may have been there before. Without tokens a rank is in the text of those before it."""
    last, name, texts = torch.zeros_like(found[0][0]), None, []
    for size, (_, more, begin, end) in zip(sizes, found, strict=True):
        first = last if name is None or not size else last + (begin != name)
        last, name = first + more, end if size else name
        texts.append((first, last))
    return texts
