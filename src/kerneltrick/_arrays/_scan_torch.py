"""The loop over blocks as PyTorch's `scan`, for a number of tokens that only running will tell."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._higher_order_ops.scan import scan_op
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
    Mode: TypeAlias = Any
else:
    Tensor = torch.Tensor
    Mode = TorchFunctionMode


# How values become tensors. PyTorch's loop takes those as inputs only.
CONSTANTS = (torch.tensor, torch.asarray, torch.as_tensor, torch.from_numpy)


class _Uses(Mode):  # type: ignore[misc] # PyTorch's
    """Finds what a body uses beside its inputs: tensors from outside, and constants."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self._made = {id(x): x for x in inputs}  # which keeps them alive, and so their ids unique
        self.outside: dict[int, Tensor] = {}
        self.constants: list[Any] = []  # each as a function that makes it

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CONSTANTS and not isinstance(args[0], torch.Tensor):
            self.constants.append(functools.partial(func, *args, **kwargs))
        for x in _tensors((args, kwargs)):
            if id(x) not in self._made:
                self.outside[id(x)] = x
        result = func(*args, **kwargs)
        self._made.update((id(x), x) for x in _tensors(result))
        return result


class _Replaced(Mode):  # type: ignore[misc] # PyTorch's
    """Gives a body its inputs in place of what it would take from outside, and of constants."""

    def __init__(self, outside: dict[int, Tensor], constants: Iterator[Tensor]) -> None:
        super().__init__()
        self._outside, self._constants = outside, constants

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in CONSTANTS and not isinstance(args[0], torch.Tensor):
            return next(self._constants)
        args, kwargs = _pytree.tree_map_only(
            torch.Tensor, lambda x: self._outside.get(id(x), x), (args, kwargs or {})
        )
        return func(*args, **kwargs)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in _pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def scan_traced(body: Any, carry: Any, streams: Any, length: Any, block: int) -> tuple[Any, Any]:
    """`scan` without an offset, while a program is traced that is to run for any length."""
    like = next(x for x in streams if x is not None)
    steps = torch.sym_max((length + block - 1) // block, 1)  # ONNX Runtime cannot loop 0 times
    first = torch.arange(steps, device=like.device) * block
    inside = first[:, None, None] + torch.arange(block, device=like.device)[:, None] < length

    def split(x: Tensor) -> Tensor:
        """(..., length, d) → (steps, ..., block, d)."""
        x = torch.nn.functional.pad(x, (0, 0, 0, steps * block - length))
        return x.unflatten(-2, (steps, block)).movedim(-3, 0).contiguous()

    given = [first, inside, *(split(x) for x in streams if x is not None)]
    leaves, spec = _pytree.tree_flatten(carry)
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    shape: list[Any] = []  # the outputs as the body gave them

    def step(inits: list[Tensor], pieces: list[Tensor]) -> list[Tensor]:
        number, valid, *rest = pieces
        parts = iter(rest)
        blocks = tuple(None if x is None else next(parts) for x in streams)
        held = list(leaves)
        for i, x in zip(places, inits, strict=True):
            held[i] = x
        after, outputs = body(_pytree.tree_unflatten(held, spec), blocks, number, valid)
        shape[:] = outputs
        kept = _pytree.tree_leaves(after)
        made = [kept[i] for i in places] + [y for y in outputs if y is not None]
        # Outputs of PyTorch's loop may not share memory with one another or with its inputs.
        return [x.clone(memory_format=torch.contiguous_format) for x in made]

    inits = [leaves[i].contiguous() for i in places]
    samples = inits, [x[0] for x in given]
    with disable_proxy_modes_tracing(), _Uses(_tensors(samples)) as uses:
        step(*samples)
    outside = list(uses.outside.values())
    extra = (*outside, *(make() for make in uses.constants))
    count = len(inits)

    def combine(*flat: Tensor) -> list[Tensor]:
        inputs, rest = flat[: count + len(given)], flat[count + len(given) :]
        instead = {id(x): y for x, y in zip(outside, rest, strict=False)}
        with _Replaced(instead, iter(rest[len(outside) :])):
            return step(list(inputs[:count]), list(inputs[count:]))

    made = scan_op(combine, inits, given, extra)
    held = list(leaves)
    for i, x in zip(places, made[:count], strict=True):
        held[i] = x
    results = iter(made[count:])

    def join(y: Tensor) -> Tensor:
        y = y.movedim(0, -3)
        return y.flatten(-3, -2)[..., :length, :]

    outputs = tuple(None if y is None else join(next(results)) for y in shape)
    return _pytree.tree_unflatten(held, spec), outputs
