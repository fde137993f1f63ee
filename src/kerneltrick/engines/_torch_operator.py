"""Operators of PyTorch that call the core: computed, traced, differentiated and batched.

`define` registers an `Operator` and its gradient, which is an operator too. The gradient of that is
the one of an engine that PyTorch itself differentiates. Where the core gives nothing, an operator
has an empty tensor of one axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from kerneltrick._arrays import recorded
from kerneltrick.engines._core_call import aligned
from kerneltrick.engines._torch_host import traced

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
    Function: TypeAlias = Any
else:
    Tensor = torch.Tensor
    Function = torch.autograd.Function

# Arguments with one entry for all heads or for each: the others have all leading axes.
BROADCAST = frozenset({"mask", "query_mask", "restart", "q_positions", "k_positions"})
TYPES = {"str": "str", "bool": "bool", "Any": "SymInt"}  # of numbers, by annotation

LIBRARY = torch.library.Library("kerneltrick", "FRAGMENT")
OPERATORS: dict[Any, Callable[..., Any]] = {}  # by the function that autograd records


class Operator(NamedTuple):
    """An operator and its gradient."""

    name: str
    arguments: Any  # a NamedTuple: tensors first, then numbers
    results: Any  # a NamedTuple of tensors
    followed: tuple[str, ...]  # the results that gradients come from; the first always has one
    saved: tuple[str, ...]  # the results that the gradient needs
    gradients: tuple[str, ...]  # the arguments that have a gradient
    run: Callable[..., tuple[Tensor, ...]]  # arguments → results
    shapes: Callable[..., tuple[Tensor, ...]]  # the same for fake tensors
    run_backward: Callable[
        ..., tuple[Tensor | None, ...]
    ]  # d_followed, saved, arguments → gradients
    again: Callable[[Any], tuple[Tensor, ...]]  # arguments → followed, for PyTorch to differentiate
    shared: tuple[str, ...] = ()  # arguments without leading axes
    batch_axis: Mapping[str, int] = {}  # of results whose leading axes are not in front
    # d_followed, saved, arguments → the gradient of the argument of that name, in less time than
    # those of all; or None
    alone: Mapping[str, Callable[..., Tensor | None]] = {}

    @property
    def tensors(self) -> int:
        """How many of the arguments are tensors."""
        return sum("Array" in text for text in self.annotations.values())

    @property
    def annotations(self) -> dict[str, str]:
        found = self.arguments.__annotations__
        return {name: getattr(found[name], "__forward_arg__", str(found[name])) for name in found}

    @property
    def schema(self) -> str:
        types = (
            ("Tensor?" if "None" in text else "Tensor") if "Array" in text else TYPES[text]
            for text in self.annotations.values()
        )
        return ", ".join(f"{x} {name}" for x, name in zip(types, self.annotations, strict=True))


def define(operator: Operator) -> Any:
    """Register an operator and its gradient; return the function that autograd records."""
    named, tensors = operator.arguments._fields, operator.tensors
    results, shared = operator.results._fields, frozenset(operator.shared)
    followed = tuple(map(results.index, operator.followed))
    saved = tuple(map(results.index, operator.saved))
    unfollowed = tuple(i for i in range(len(results)) if i not in followed)
    before = len(followed) + len(saved)  # so many tensors come before the arguments of a gradient
    at = tuple(map(named.index, operator.gradients))

    def batched(info: Any, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> list[Any]:
        """The arguments of one call for the whole batch, as one more leading axis."""
        found = list(arguments)
        for i, name in enumerate(named[:tensors]):
            x, dim = arguments[i], dims[i]
            if x is None or name in shared or (name in BROADCAST and dim is None):
                continue
            found[i] = in_front(x, dim, info.batch_size)
        return found

    def run_backward(d_first: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        made = operator.run_backward(d_first, *rest)
        return tuple(d_first.new_empty(0) if x is None else x for x in made)

    def backward_shapes(d_first: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        given = (rest[before - 1 + i] for i in at)
        return tuple(
            d_first.new_empty(0)
            if x is None
            else torch.empty_like(x, memory_format=torch.contiguous_format)
            for x in given
        )

    class Forward(Function):  # type: ignore[misc] # PyTorch's
        """The operator with its gradient, for autograd and for torch.func."""

        @staticmethod
        def forward(*arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return OPERATORS[Forward](*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            kept = []
            for i in saved:
                x = output[i]
                # The caller may change what it gets, unless that is another array in another type.
                kept.append(copy(x) if i in followed and x.dtype == inputs[0].dtype else x)
            ctx.save_for_backward(*kept, *inputs[:tensors])
            ctx.numbers = inputs[tensors:]
            ctx.first = output[followed[0]].shape, output[followed[0]].dtype
            ctx.mark_non_differentiable(*(output[i] for i in unfollowed))
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, *d_results: Any) -> tuple[Any, ...]:
            found = ctx.saved_tensors
            kept, inputs = found[: len(saved)], (*found[len(saved) :], *ctx.numbers)
            first, *rest = (d_results[i] for i in followed)
            if first is None:
                shape, dtype = ctx.first
                first = inputs[0].new_zeros(shape, dtype=dtype)
            rest = [None if x is None or x.ndim == 1 else x for x in rest]  # of what is not there
            grads: list[Any] = [None] * len(inputs)
            only = _asked_alone(ctx, operator, inputs)
            if only is not None:
                made = operator.alone[only](first, *rest, *kept, *inputs)
                if made is not None:
                    grads[named.index(only)] = made
                    return tuple(grads)
            made = apply(Backward, (first, *rest, *kept, *inputs))
            for i, gradient in zip(at, made, strict=True):
                if ctx.needs_input_grad[i]:
                    grads[i] = gradient.to(inputs[i].dtype)
            return tuple(grads)

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
            if any(
                dim is not None and name in shared for name, dim in zip(named, dims, strict=True)
            ):
                return one_by_one(Forward, info, dims, arguments)
            made = list(apply(Forward, tuple(batched(info, dims, arguments))))
            axes: list[int | None] = []
            for i, (name, x) in enumerate(zip(results, made, strict=True)):
                axes.append(operator.batch_axis.get(name, 0) if x.numel() else None)
                if x.ndim == 1 and x.numel():  # what only the core looks into
                    made[i] = x.reshape(info.batch_size, -1)
            return tuple(made), tuple(axes)

    class Backward(Function):  # type: ignore[misc] # PyTorch's
        """Its derivative with one of its own."""

        @staticmethod
        def forward(*arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return OPERATORS[Backward](*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            given = inputs[before:]
            ctx.save_for_backward(*inputs[: len(followed)], *given[:tensors])
            ctx.numbers = given[tensors:]
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, *seconds: Any) -> tuple[Any, ...]:
            """By another engine, differentiated twice: the core has first derivatives only."""
            found = ctx.saved_tensors
            given = operator.arguments(*found[len(followed) :], *ctx.numbers)
            ends = {i: x for i, x in enumerate(found[: len(followed)]) if x is not None}
            names = [name for name in operator.gradients if getattr(given, name) is not None]

            def first(ends: tuple[Tensor, ...], *inputs: Tensor) -> Any:
                def again(*inputs: Tensor) -> Any:
                    made = operator.again(given._replace(**dict(zip(names, inputs, strict=True))))
                    return tuple(made[i] for i in which)

                return torch.func.vjp(again, *inputs)[1](ends)

            which, inputs = tuple(ends), (getattr(given, name) for name in names)
            made, pull = torch.func.vjp(first, tuple(ends.values()), *inputs)
            asked = dict(zip(operator.gradients, seconds, strict=True))
            back, *rest = pull(
                tuple(
                    torch.zeros_like(x) if asked[name] is None else asked[name]
                    for name, x in zip(names, made, strict=True)
                )
            )
            d_ends = dict(zip(which, back, strict=True))
            d_given = dict(zip(names, rest, strict=True))
            return (
                *(d_ends.get(i) for i in range(len(followed))),
                *(None,) * len(saved),
                *(d_given.get(name) for name in named),
            )

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
            if any(arguments[before + named.index(name)] is not None for name in shared):
                return one_by_one(Backward, info, dims, arguments)  # or they would be summed
            axes = (operator.batch_axis.get(name, 0) for name in operator.saved)
            first = (
                None if x is None else in_front(x, dim, info.batch_size, axis)
                for x, dim, axis in zip(
                    arguments[:before], dims[:before], (*(0,) * len(followed), *axes), strict=True
                )
            )
            rest = batched(info, dims[before:], arguments[before:])
            made = tuple(apply(Backward, (*first, *rest)))
            return made, tuple(0 if x.numel() else None for x in made)

    first, *others = operator.followed
    given = (
        f"Tensor d_{first}",
        *(f"Tensor? d_{name}" for name in others),
        *(f"Tensor {name}" for name in operator.saved),
        operator.schema,
    )
    name = operator.name
    _register(name, Forward, operator.schema, len(results), operator.run, operator.shapes)
    _register(
        f"{name}_backward", Backward, ", ".join(given), len(at), run_backward, backward_shapes
    )
    return Forward


def _register(name: str, function: Any, inputs: str, results: int, run: Any, shapes: Any) -> None:
    """An operator that computes by `run` on CPU tensors, and is differentiated by `function`."""
    made = ", ".join(["Tensor"] * results)
    tag = torch.Tag.pt2_compliant_tag
    LIBRARY.define(f"{name}({inputs}) -> ({made})", tags=(tag,))
    operator = getattr(torch.ops.kerneltrick, name).default
    LIBRARY.impl(name, run, "CPU")
    torch.library.register_fake(f"kerneltrick::{name}", shapes, lib=LIBRARY)

    def autograd(*arguments: Any) -> Any:
        if recorded(*arguments):
            return function.apply(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    LIBRARY.impl(name, autograd, "Autograd")
    OPERATORS[function] = operator


def _asked_alone(ctx: Any, operator: Operator, inputs: tuple[Any, ...]) -> str | None:
    """The argument of `operator.alone` that is all a backward pass asks a gradient for."""
    named = operator.arguments._fields
    if not any(ctx.needs_input_grad[named.index(name)] for name in operator.alone):
        return None
    if torch._C._are_functorch_transforms_active() or traced(inputs[0]):
        return None
    if torch.is_grad_enabled() or dispatch_watched():
        return None  # what is recorded or watched is the operator
    edges = iter(ctx.next_functions)
    nodes = {x: next(edges)[0] for x, y in zip(named, inputs, strict=True) if torch.is_tensor(y)}
    asked = [name for name, node in nodes.items() if _is_asked(node)]
    return asked[0] if len(asked) == 1 and asked[0] in operator.alone else None


def _is_asked(node: Any) -> bool:
    """Whether the backward pass under way goes on to a node of the graph.

    `needs_input_grad` does not know what `torch.autograd.grad` was asked for.
    """
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf that torch.autograd.grad was asked for
        return True


def dispatch_watched() -> bool:
    """Whether somebody sees every operator: a mode that counts operations, or a profiler."""
    return bool(
        torch._C._len_torch_dispatch_stack() or torch.autograd.profiler._is_profiler_enabled
    )


def apply(function: Any, arguments: tuple[Any, ...], known: bool | None = None) -> Any:
    """The operator of a function; torch.func sees only functions that say how to be batched.

    `known` is what `recorded` says of the arguments, where the caller has asked already.
    """
    if torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    if recorded(*arguments) if known is None else known:
        return OPERATORS[function](*arguments)
    with torch._C._AutoDispatchBelowAutograd():  # which would only pass it on
        return OPERATORS[function](*arguments)


def one_by_one(function: Any, info: Any, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    calls = []
    for i in range(info.batch_size):
        own = (
            x if dim is None else x.select(dim, i) for x, dim in zip(arguments, dims, strict=True)
        )
        calls.append(apply(function, tuple(own)))
    made = tuple(torch.stack(parts) for parts in zip(*calls, strict=True))
    return made, (0,) * len(made)


def in_front(x: Tensor, dim: int | None, size: int, axis: int = 0) -> Tensor:
    """x with its batch axis at `axis`; one is made if it has none."""
    if dim is not None:
        return x.movedim(dim, axis)
    return x.unsqueeze(axis).expand(*x.shape[:axis], size, *x.shape[axis:])


def computed_in(x: Tensor) -> torch.dtype:
    """The type of the core's arithmetic with a tensor."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def bits(x: Tensor) -> Any:
    """The memory of a tensor as NumPy sees it: bfloat16, which NumPy lacks, as int16.

    Only for what the core reads or writes in the type that the call declares (`AS_GIVEN`). The
    values of any other tensor come from `as_numpy`, which turns bfloat16 into float32.
    """
    if x.requires_grad:
        x = x.detach()
    if x.is_neg():
        x = x.resolve_neg()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


def to_torch(x: Any, dtype: torch.dtype | None = None) -> Tensor:
    made = torch.from_numpy(x)
    return made.view(torch.bfloat16) if dtype == torch.bfloat16 else made


def to_torch_or_empty(x: Any, dtype: torch.dtype) -> Tensor:
    """An array of the core as a tensor of this type; None as an empty one."""
    return torch.empty(0, dtype=dtype) if x is None else to_torch(x, dtype)


def copy(x: Tensor) -> Tensor:
    """As x.clone(), which would have to fault in fresh pages."""
    if traced(x):
        return x.clone()
    return to_torch(aligned(tuple(x.shape), bits(x).dtype), x.dtype).copy_(x)
