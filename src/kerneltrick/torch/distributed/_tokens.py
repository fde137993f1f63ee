"""What lies before the tokens of a rank: their number, the last of them, and a state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from kerneltrick.torch._short_convolution import tail_after
from kerneltrick.torch._tokens import count_tokens
from kerneltrick.torch.distributed._exchange import (
    Gather,
    Group,
    Ranks,
    after,
    anchored,
    kind_of_gradients,
    leading,
)

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@dataclasses.dataclass(frozen=True, eq=False)
class Before:
    """What a layer knows about the tokens before those of this rank, on others or in a state."""

    ranks: Ranks
    stop: int  # their number
    count: Tensor | None  # (batch,): those of the text that took part; None: all, `stop`
    ends: list[Tensor]  # (batch,) for each earlier rank: how many of those are at its end
    fresh: Tensor | None  # (batch,): where a new text begins with the first token of this rank
    longest: int  # most tokens on one rank, including the state on the first
    tracked: bool  # whether any rank will compute gradients
    learned: tuple[Tensor, ...]  # every tensor of the layer that somebody may ask a gradient for

    @staticmethod
    def look(
        group: Group,
        layer: str,
        x: Tensor,
        mask: Tensor | None,
        segment_ids: Tensor | None,
        runs: Tensor | None,
        bounds: tuple[int, Tensor | None] | None,
        learned: Iterable[Any],
    ) -> Before:
        """Exchange what tokens x (batch, n, ·) of a layer each rank of a group has.

        `runs` numbers the texts of this rank from 0; `segment_ids` has their original numbers.
        `bounds` are `stop` and `count` of a state, which only the first rank may have. `learned`
        is everything of the layer that may have a gradient.
        """
        ranks, (batch, n) = Ranks(group, x.device), x.shape[:2]
        stop, count = (0, None) if bounds is None else bounds
        text = (
            f"layer {layer}; batch {batch}; dtype {x.dtype}; mask {mask is not None}; "
            f"segments {runs is not None}"
        )
        known = tuple(x for x in learned if isinstance(x, torch.Tensor) and x.requires_grad)
        numbers = (n, stop, bounds is not None, count is not None, kind_of_gradients(known))
        rows = ranks.check_equal(text, numbers)
        ranks.check_first([row[2] for row in rows])
        sizes = [row[0] for row in rows]
        start = rows[0][1] + sum(sizes[: ranks.rank])
        longest = max(rows[0][1] + sizes[0], *sizes)
        tracked = ranks.check_gradients([row[4] for row in rows])

        def whole(number: int) -> Tensor:
            return torch.full((batch,), number, dtype=torch.int64, device=x.device)

        if mask is None and runs is None and not rows[0][3]:
            ends = [whole(size) for size in (rows[0][1] + sizes[0], *sizes[1:])]
            return Before(ranks, start, None, ends[: ranks.rank], None, longest, tracked, known)
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
        return Before(ranks, start, before, ends, fresh, longest, tracked, known)

    def tail(
        self, x: Tensor, tail: Tensor | None, count: int, mask: Tensor | None, runs: Tensor | None
    ) -> Tensor:
        """The last `count` tokens before x (batch, n, channels), as `tail_after` returns them.

        `tail` is the tail of the state, on the first rank.
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
        """The state S (batch, heads, d, M) before x; the tokens of each rank turn S into A S + B.

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

    def leading(self, x: Tensor) -> Tensor:
        """x, so that an exchange of it is part of every backward pass of the layer."""
        return leading(x, self.learned)

    def _gather(self, *own: Tensor) -> tuple[list[list[Tensor]], Tensor]:
        """These tensors of all ranks, for the ranks after each, and the token of the exchange."""
        used = [range(i) for i in range(self.ranks.count)]
        anchor = anchored(self.tracked, (*self.learned, *own))
        token, *flat = Gather.apply(self.ranks, used, anchor, None, *own)
        size = len(own)
        return [flat[i : i + size] for i in range(0, len(flat), size)], token


def _texts(sizes: list[int], found: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The texts that each rank begins and ends in, numbered over all ranks.

    Segment numbers may repeat, so they cannot be used directly. A rank without tokens is in the
    text of the ranks before it.
    """
    last, name, texts = torch.zeros_like(found[0][0]), None, []
    for size, (_, more, begin, end) in zip(sizes, found, strict=True):
        first = last if name is None or not size else last + (begin != name)
        last, name = first + more, end if size else name
        texts.append((first, last))
    return texts
