"""The adapter: what an operator is called like, and what it promises."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._kinds import kind_named
from kerneltrick.conformance._tokens import USUAL_SIZES, TrialSizes

KEYWORDS = ("mask", "segment_ids", "state", "dtype")
HALVES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # the spacing of numbers at 1


class AdapterError(ValueError):
    """An adapter does not return what it should."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """A function on NumPy arrays, and what it promises.

    run
        Called with the inputs of the kind in order (`KINDS[kind].inputs`), each (batch, heads, n)
        or (batch, heads, n, d); it returns the output (batch, heads, n, d). Keywords that it takes
        say what it can do: `mask` (batch, n), True for tokens that count; `segment_ids` (batch, n),
        which change where a text begins; `state`, None or what an earlier call returned, in which
        case it returns (output, state); `dtype`, "float16" or "bfloat16", in which it computes,
        with the arrays still float32.
    kind
        What it computes, one of `KINDS`.
    promises
        The names of checks that it promises beyond its definition and its keywords: see `Check`.
    exact
        Whether it promises bits, where a check can ask for them. Otherwise rounding may differ.
    gradient
        gradient(arrays, cotangent) → the gradients of (output · cotangent).sum(), one for each.
    save, load
        save(state, path) and load(path) → state.
    rewind
        rewind(state, count) → the state `count` tokens earlier. Where it is None, a caller goes
        back by keeping the earlier state.
    halves
        What `dtype` may be.
    floats
        The types of its arrays.
    grouped, wide
        Whether some heads may be shared, and whether values may be wider or narrower than keys.
    consumes_state
        Whether a call may overwrite the state that it is given.
    threads
        threads(count) → a context in which it runs with so many threads.
    sizes
        The inputs to check it on first; others are drawn, and some have twice as many tokens.
        Operators with chunks need more tokens than a chunk has.
    source
        The line of Python that makes `operator`, for reproducers.

    >>> import numpy as np
    >>> def attention(q, k, v):
    ...     score = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(q.shape[-1])
    ...     weight = np.tril(np.exp(score))
    ...     return weight / weight.sum(-1, keepdims=True) @ v
    >>> operator = Operator(attention, "softmax_attention")
    >>> operator.name, sorted(operator.abilities)
    ('attention', [])
    """

    run: Callable[..., Any]
    kind: str
    name: str = ""
    promises: frozenset[str] = frozenset()
    exact: bool = False
    gradient: Callable[[list[Array], Array], list[Array]] | None = None
    save: Callable[[Any, str], None] | None = None
    load: Callable[[str], Any] | None = None
    rewind: Callable[[Any, int], Any] | None = None
    halves: tuple[str, ...] = ("float16",)
    floats: tuple[str, ...] = ("float32",)
    grouped: bool = False
    wide: bool = False
    consumes_state: bool = False
    threads: Callable[[int], AbstractContextManager[Any]] | None = None
    sizes: TrialSizes = USUAL_SIZES
    source: str = ""
    abilities: frozenset[str] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        kind_named(self.kind)
        if not callable(self.run):
            raise TypeError(
                f"an operator needs a function on NumPy arrays, not {type(self.run).__name__}"
            )
        strange = set(self.halves) - set(HALVES)
        if strange:
            raise ValueError(
                f"halves must be names among {', '.join(HALVES)}, not {', '.join(sorted(strange))}"
            )
        abilities = {name for name in KEYWORDS if name in inspect.signature(self.run).parameters}
        if self.gradient is not None:
            abilities.add("gradient")
        if self.save is not None and self.load is not None:
            abilities.add("file")
        if self.threads is not None:
            abilities.add("threads")
        object.__setattr__(self, "abilities", frozenset(abilities))
        if not self.name:
            object.__setattr__(self, "name", _name(self.run))
        if not self.source:
            object.__setattr__(self, "source", source_of(self.run, self.kind, "Operator"))

    def __call__(self, *arrays: Array, **options: Any) -> tuple[Array, Any]:
        """The output, and the state after the last token, or None where there is none."""
        tokens = {key: x.copy() for key, x in options.items() if key in ("mask", "segment_ids")}
        return self.on_these(*map(_copied, arrays), **{**options, **tokens})

    def on_these(self, *arrays: Array, **options: Any) -> tuple[Array, Any]:
        """The same on the arrays themselves, which an operator may spoil."""
        found = self.run(*arrays, **options)
        state = None
        if "state" in self.abilities:
            if not isinstance(found, tuple) or len(found) != 2:
                raise AdapterError(
                    f"{self.name} takes a state, so its adapter must return (output, state), not "
                    f"{type(found).__name__}"
                )
            found, state = found
        return self._checked(found, arrays), state

    def _checked(self, output: Any, arrays: tuple[Array, ...]) -> Array:
        kind = kind_named(self.kind)
        shape, values = kind.output_shape([*arrays]), arrays[kind.value].shape
        if not isinstance(output, np.ndarray):
            raise AdapterError(
                f"the adapter of {self.name} returned {type(output).__name__}; it must return a "
                "NumPy array"
            )
        if output.shape != shape:
            raise AdapterError(
                f"the adapter of {self.name} returned an output of shape {output.shape} for values "
                f"of shape {values}; it must return (batch, heads, n, d), {shape}, so transpose or "
                "reshape there"
            )
        return output

    def gradients(self, arrays: list[Array], cotangent: Array) -> list[Array]:
        """The gradients of every input."""
        assert self.gradient is not None
        found = list(self.gradient([x.copy() for x in arrays], cotangent))
        shapes = [getattr(x, "shape", None) for x in found]
        if shapes != [x.shape for x in arrays]:
            raise AdapterError(
                f"the gradient of {self.name} returned shapes {shapes}; it must return one array "
                f"for each input, {[x.shape for x in arrays]}"
            )
        return found


def narrowed(kind: str, arrays: Iterable[Any], convert: Callable[[Any], Any]) -> list[Any]:
    """The inputs of an operator in a type of 16 bits: all but decays, beta and parameters."""
    narrow = kind_named(kind).narrow
    return [convert(x) if own else x for own, x in zip(narrow, arrays, strict=True)]


def source_of(function: Callable[..., Any], kind: str, maker: str) -> str:
    """The line of Python that makes an operator of a function, by `Operator` or `from_torch`."""
    module, name = getattr(function, "__module__", "__main__"), _name(function)
    return f"from {module} import {name}; operator = conformance.{maker}({name}, {kind!r})"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _copied(x: Array) -> Array:
    """A copy with the same strides unless one is negative, which PyTorch has not."""
    if x.flags.c_contiguous or not x.size or min(x.strides) < 0:
        return x.copy()
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True))
    memory = np.empty(reach // x.itemsize + 1, x.dtype)
    made = np.lib.stride_tricks.as_strided(memory, x.shape, x.strides)
    made[...] = x
    return made
