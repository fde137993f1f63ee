"""What ranks send to each other: bytes, and gradients the other way; and who it was that failed."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow
Group: TypeAlias = Any  # a ProcessGroup, or a DeviceMesh of one dimension

GRACE = (
    5.0  # seconds that survivors of a failure wait for each other, to know who is not among them
)


class RankError(RuntimeError):
    """Ranks died or stalled: those that the others waited for in vain."""


class Ranks:
    """The processes of a group, in the order of their shards."""

    sent = 0  # bytes that this process has sent to others, of all groups

    def __init__(self, group: Group, device: Any = None) -> None:
        self.device = device  # of what is sent: NCCL takes nothing of the CPU's
        if not dist.is_initialized():
            raise RuntimeError(
                "context parallelism needs torch.distributed.init_process_group() first; torchrun "
                "starts processes that can"
            )
        if hasattr(group, "get_group"):
            if group.ndim != 1:
                raise ValueError(
                    f"group must have one dimension, not {group.ndim}: take mesh[name] of a mesh"
                )
            group = group.get_group()
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not a member of the group given")

    def gather(self, own: Tensor) -> list[Tensor]:
        """The tensor of every rank: all of one shape and dtype."""
        flat = own.detach().contiguous().reshape(-1).view(torch.uint8)
        made = [torch.empty_like(flat) for _ in range(self.count)]
        size = flat.numel() * (self.count - 1)
        self._do(lambda: dist.all_gather(made, flat, group=self.group), size)
        return [x.view(own.dtype).reshape(own.shape) for x in made]

    def deal(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """One tensor of bytes to each rank, and what came from each, of these sizes."""
        made = parts[0].new_empty(sum(sizes))
        whole, own = torch.cat(list(parts)), [x.numel() for x in parts]
        self._do(
            lambda: dist.all_to_all_single(made, whole, list(sizes), own, group=self.group),
            whole.numel() - own[self.rank],
        )
        return list(made.split(list(sizes)))

    def check_equal(self, text: str, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank; ValueError in all of them if their texts differ."""
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
                f"the ranks of the group call for different things: rank 0 has {pairs[0][0]}, "
                f"rank {other} has {pairs[0][1]}"
            )
        return [row[1:] for row in found]

    def check_first(self, given: Sequence[int]) -> None:
        """ValueError in all ranks if another than the first was given a state."""
        late = [i for i, has in enumerate(given) if has and i]
        if late:
            raise ValueError(f"state= is what comes before the sequence: of rank 0, not of {late}")

    def _do(self, exchange: Callable[[], Any], size: int) -> None:
        """An exchange; if it fails, RankError with the ranks that are not there to say so."""
        Ranks.sent += size
        try:
            exchange()
        except RuntimeError as error:
            missing = self._missing()
            if missing is None:
                raise RankError(
                    "rank 0 of all is gone, or the process that torchrun keeps their addresses in"
                ) from error
            if not missing:
                raise
            names = " and ".join(f"rank {i}" for i in missing)
            raise RankError(
                f"{names} of the group died or stalled: rank {self.rank} waited for it in vain"
            ) from error

    def _missing(self) -> list[int] | None:
        """The ranks that do not notice the failure too; None if nobody can be asked."""
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


class Gather(torch.autograd.Function):  # type: ignore[misc] # PyTorch's
    """Tensors of all ranks by one exchange of bytes; backward, each rank gets its gradients back.

    `used` says for every rank of the group whose tensors it uses. All ranks must take part in the
    exchange backward, also one whose own tensors have no gradient, and one that uses no others:
    that is what `anchor` is for, which wants a gradient in all of them or in none, and the first
    result, a token that holds nothing (`after`).
    """

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, used: Sequence[range], anchor: Tensor, *own: Tensor) -> Any:
        ctx.ranks, ctx.used = ranks, used
        ctx.shapes = [(x.shape, x.dtype) for x in own]
        ctx.differentiable = [x.dtype.is_floating_point for x in own]
        found = [unpack(x, ctx.shapes) for x in ranks.gather(pack(own))]
        flat = [x for each in found for x in each]
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
        return None, None, None, *back


class _After(torch.autograd.Function):  # type: ignore[misc] # PyTorch's
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor) -> Tensor:
        ctx.token = token.shape
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.new_zeros(ctx.token, dtype=torch.float64)


def after(x: Tensor, token: Tensor) -> Tensor:
    """x, so that its backward takes part in the exchange of `token`, which others wait for."""
    return _After.apply(x, token) if token.requires_grad else x


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors in a row."""
    parts = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in tensors]
    return torch.cat(parts)


def unpack(flat: Tensor, shapes: Sequence[tuple[Any, Any]]) -> list[Tensor]:
    made, at = [], 0
    for shape, dtype in shapes:
        size = shape.numel() * dtype.itemsize
        # A copy: the bytes before may be an odd number.
        made.append(flat[at : at + size].clone().view(dtype).reshape(shape))
        at += size
    return made
