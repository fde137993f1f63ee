"""Exchanges between ranks, their gradients, and naming the rank that failed."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow
Group: TypeAlias = Any  # a ProcessGroup, or a DeviceMesh of one dimension

GRACE = 5.0  # seconds in which the survivors of a failure report, to find out who is missing


OFF, IDLE, TRACKED = range(3)  # gradients: switched off, none needed here, needed here


class RankError(RuntimeError):
    """A rank died or stalled while others waited for it."""


class Ranks:
    """The processes of a group, in the order of their shards."""

    sent = 0  # bytes that this process has sent to others, over all groups

    def __init__(self, group: Group, device: Any = None) -> None:
        self.device = device  # for the tensors that are sent: NCCL cannot send from the CPU
        if not dist.is_initialized():
            raise RuntimeError(
                "context parallelism needs torch.distributed.init_process_group() first, in "
                "processes that torchrun starts"
            )
        if hasattr(group, "get_group"):
            if group.ndim != 1:
                raise ValueError(f"group must have one dimension, not {group.ndim}: use mesh[name]")
            group = group.get_group()
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not a member of the group")

    def gather(self, own: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which must have the same shape and dtype."""
        flat = own.detach().contiguous().reshape(-1).view(torch.uint8)
        made = [torch.empty_like(flat) for _ in range(self.count)]
        size = flat.numel() * (self.count - 1)
        self._do(lambda: dist.all_gather(made, flat, group=self.group), size)
        return [x.view(own.dtype).reshape(own.shape) for x in made]

    def deal(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Send one tensor of bytes to each rank; return those received, of these sizes."""
        made = parts[0].new_empty(sum(sizes))
        whole, own = torch.cat(list(parts)), [x.numel() for x in parts]
        self._do(
            lambda: dist.all_to_all_single(made, whole, list(sizes), own, group=self.group),
            whole.numel() - own[self.rank],
        )
        return list(made.split(list(sizes)))

    def check_equal(self, text: str, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of all ranks; every rank raises ValueError if their texts differ."""
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        found = [
            x.tolist() for x in self.gather(torch.tensor([digest, *numbers], device=self.device))
        ]
        if len({row[0] for row in found}) > 1:
            texts: list[Any] = [None] * self.count
            self._do(lambda: dist.all_gather_object(texts, text, group=self.group), len(text))
            other = next(i for i, x in enumerate(texts) if x != texts[0])
            ours, theirs = texts[0].split("; "), texts[other].split("; ")
            pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
            raise ValueError(
                f"the ranks of the group have different arguments: rank 0 has {pairs[0][0]}, rank "
                f"{other} has {pairs[0][1]}"
            )
        return [row[1:] for row in found]

    def check_gradients(self, kinds: Sequence[int]) -> bool:
        """Whether any rank will compute gradients; all raise ValueError if one of them cannot.

        `kinds` has one number for each rank, as `kind_of_gradients` gives it.
        """
        tracked = max(kinds) == TRACKED
        off = [i for i, kind in enumerate(kinds) if kind == OFF]
        if tracked and off:
            raise ValueError(
                f"rank {kinds.index(TRACKED)} computes gradients, but they are switched off on "
                f"rank {off[0]}, which would take no part in the backward pass"
            )
        return tracked

    def check_first(self, given: Sequence[int]) -> None:
        """All ranks raise ValueError if a rank other than the first was given a state."""
        late = [i for i, has in enumerate(given) if has and i]
        if late:
            raise ValueError(
                f"state= comes before the whole sequence: give it to rank 0, not to {late}"
            )

    def _do(self, exchange: Callable[[], Any], size: int) -> None:
        """Run an exchange; if it fails, raise RankError that names the missing ranks."""
        Ranks.sent += size
        try:
            exchange()
        except RuntimeError as error:
            missing = self._missing()
            if missing is None:
                raise RankError(
                    "the first process, or the one that hosts torchrun's store, is gone"
                ) from error
            if not missing:
                raise
            names = " and ".join(f"rank {i}" for i in missing)
            raise RankError(
                f"{names} of the group died or stalled while rank {self.rank} waited for it"
            ) from error

    def _missing(self) -> list[int] | None:
        """The ranks that do not report the failure; None if the store cannot be reached."""
        try:
            name = f"kerneltrick/failed/{self.group.group_name}"
            store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
            store.set(str(self.rank), "here")
            missing = []
            for i in range(self.count):
                try:
                    store.wait([str(i)], datetime.timedelta(seconds=GRACE))
                except dist.DistStoreError:
                    missing.append(i)
        except (dist.DistError, RuntimeError):
            return None
        return missing


def kind_of_gradients(tensors: Iterable[Any]) -> int:
    """What this rank says about gradients of a call that depends on these tensors."""
    if not torch.is_grad_enabled():
        return OFF
    needed = any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)
    return TRACKED if needed else IDLE


def exchanged(ranks: Ranks, own: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of all ranks, those of the first rank first."""
    shapes = [(x.shape, x.dtype) for x in own]
    return [x for each in ranks.gather(pack(own)) for x in unpack(each, shapes)]


class Gather(torch.autograd.Function):  # type: ignore[misc] # PyTorch's
    """Exchange tensors between all ranks; backward, send every gradient back where it belongs.

    `used` says for each rank of the group whose tensors it uses. Every rank must take part in the
    exchange of the backward pass, even one whose own tensors have no gradient and one that uses
    nothing from others. Two things make sure that it does: the first result is a token that holds
    nothing, on which the output of the call is made to depend (`after`), and `anchor` leads to
    every tensor that somebody may ask a gradient for (`anchored`). `found` is what `exchanged` has
    given, if the tensors were exchanged before; then this is the exchange of the gradients alone.
    """

    @staticmethod
    def forward(
        ctx: Any,
        ranks: Ranks,
        used: Sequence[range],
        anchor: Tensor,
        found: list[Tensor] | None,
        *own: Tensor,
    ) -> Any:
        ctx.ranks, ctx.used = ranks, used
        ctx.shapes = [(x.shape, x.dtype) for x in own]
        ctx.differentiable = [x.dtype.is_floating_point for x in own]
        flat = exchanged(ranks, own) if found is None else [x.clone() for x in found]
        ctx.mark_non_differentiable(*(x for x in flat if not x.dtype.is_floating_point))
        return torch.zeros_like(anchor), *flat

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator] # PyTorch's
    def backward(ctx: Any, _: Any, *gradients: Any) -> tuple[Any, ...]:
        ranks, size = ctx.ranks, len(ctx.shapes)
        shapes = [x for x, yes in zip(ctx.shapes, ctx.differentiable, strict=True) if yes]
        parts, sizes = [], []
        for i in range(ranks.count):
            each = zip(gradients[i * size : (i + 1) * size], ctx.differentiable, strict=True)
            mine = pack([x for x, yes in each if yes])
            parts.append(mine if i in ctx.used[ranks.rank] else mine[:0])
            sizes.append(mine.numel() if ranks.rank in ctx.used[i] else 0)
        found = [unpack(x, shapes) for x in ranks.deal(parts, sizes) if x.numel()]
        sums = iter([sum(each) for each in zip(*found, strict=True)])
        back = [next(sums, None) if yes else None for yes in ctx.differentiable]
        return None, None, None, None, *back


class _Leading(torch.autograd.Function):  # type: ignore[misc] # PyTorch's
    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        ctx.none = (None,) * len(others)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return gradient, *ctx.none


def leading(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """x, from which paths in the graph lead to `others` too; no gradient goes along them."""
    return _Leading.apply(x, *others) if others else x


def anchored(tracked: bool, tensors: Iterable[Any]) -> Tensor:
    """The anchor of an exchange that has a backward pass if `tracked`.

    `torch.autograd.grad` and `backward(inputs=...)` run only those parts of the graph that lead to
    a tensor that is asked for. A rank that skips an exchange leaves the others waiting, so the
    exchange leads to all of `tensors`: everything that may be asked for and that the call, or the
    layer around it, depends on. A leaf of its own stands for a rank where no tensor has a gradient.
    """
    leaf = torch.zeros(1, dtype=torch.float64, requires_grad=tracked)
    known = [x for x in tensors if isinstance(x, torch.Tensor) and x.requires_grad]
    return leading(leaf, known) if tracked else leaf


class _After(torch.autograd.Function):  # type: ignore[misc] # PyTorch's
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor) -> Tensor:
        ctx.token = token.shape, token.dtype, token.device
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        shape, dtype, device = ctx.token
        return gradient, torch.zeros(shape, dtype=dtype, device=device)


def after(x: Tensor, token: Tensor) -> Tensor:
    """x, whose backward pass takes part in the exchange of `token`, which other ranks wait for."""
    return _After.apply(x, token) if token.requires_grad else x


class _Instead(torch.autograd.Function):  # type: ignore[misc] # PyTorch's
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


def instead(x: Tensor, other: Tensor) -> Tensor:
    """x, whose gradient goes to `other`, of the same shape."""
    return _Instead.apply(x, other)


class _Sooner(torch.autograd.Function):  # type: ignore[misc] # PyTorch's
    @staticmethod
    def forward(ctx: Any, leaf: Tensor, source: Tensor, *results: Tensor) -> tuple[Tensor, ...]:
        ctx.leaf, ctx.results = leaf, results
        return tuple(x.view_as(x) for x in results)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator] # PyTorch's
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (found,) = torch.autograd.grad(ctx.results, ctx.leaf, gradients, retain_graph=True)
        return None, found, *gradients


def sooner(leaf: Tensor, source: Tensor, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results, computed from a leaf that has the value of `source`.

    In the backward pass the gradient of `source` is computed alone, before all other gradients of
    the results.
    """
    made: tuple[Tensor, ...] = _Sooner.apply(leaf, source, *results)
    return made


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the bytes of all tensors."""
    parts = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in tensors]
    return torch.cat(parts)


def unpack(flat: Tensor, shapes: Sequence[tuple[Any, Any]]) -> list[Tensor]:
    made, at = [], 0
    for shape, dtype in shapes:
        size = shape.numel() * dtype.itemsize
        # Copied, because the bytes before may be an odd number.
        made.append(flat[at : at + size].clone().view(dtype).reshape(shape))
        at += size
    return made
