"""The keywords of linear attention: their types, once, and the values that a caller gave.

`linear_attention` writes its keywords out, for `help` and for completion. Functions that take the
same ones say `**keywords: Unpack[AttentionKeywords]`, and `with_keywords_of` shows them in full.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar

from kerneltrick._arrays import Array
from kerneltrick.attention._heads import Windows
from kerneltrick.attention._state import State

if TYPE_CHECKING:
    from typing import Unpack as Unpack  # Python 3.10 does not have it, and nothing evaluates it

OnZero = Literal["raise", "nan", "zero"]
Positions = Array | tuple[Array, Array]
Function = TypeVar("Function", bound=Callable[..., Any])


class AttentionKeywords(TypedDict, total=False):
    """What says which attention it is, and of which tokens; `linear_attention` explains each."""

    causal: bool
    scale: float | None
    log_decay: Annotated[Any, "(), (H,), (..., H, n) or (..., H, n, m)"]
    normalize: bool
    mask: Annotated[Array | None, "bool (..., H, n), (..., n) or (n,)"]
    query_mask: Annotated[Array | None, "bool (..., H_q, n_q), (..., n_q) or (n_q,)"]
    segment_ids: Annotated[Array | None, "integer (..., H, n), (..., n) or (n,)"]
    positions: Annotated[Positions | None, "(..., H, n), (..., n) or (n,)"]
    state: State | None
    window: Windows
    sinks: int | Sequence[int]
    far: Annotated[Any, "() or (H_q,)"]
    on_zero: OnZero | None


class LinearAttentionKeywords(AttentionKeywords, total=False):
    """And how it is computed."""

    chunk_size: int
    engine: str


class Options(NamedTuple):
    """The keywords as a caller gave them, but for `engine`."""

    causal: bool = False
    scale: float | None = None
    log_decay: Any = None
    normalize: bool = True
    mask: Array | None = None
    query_mask: Array | None = None
    segment_ids: Array | None = None
    positions: Positions | None = None
    state: State | None = None
    window: Windows = 0
    sinks: int | Sequence[int] = 0
    far: Any = None
    on_zero: OnZero | None = None
    chunk_size: int = 64
    return_state: bool = True

    @property
    def has_arrays(self) -> bool:
        """Whether the call depends on more arrays than q, k and v."""
        return not (
            self.log_decay is self.mask is self.query_mask is self.segment_ids is None
            and self.positions is self.state is self.far is None
        )


def read_options(who: str, keywords: Mapping[str, Any], known: type) -> Options:
    """The options that a function got as keywords; `known` is the TypedDict of those it takes."""
    for name in keywords:
        if name not in known.__annotations__:
            raise TypeError(f"{who}() got an unexpected keyword argument {name!r}")
    return Options(**{name: x for name, x in keywords.items() if name in Options._fields})


def with_keywords_of(source: Callable[..., Any], known: type) -> Callable[[Function], Function]:
    """Show `**keywords` as the keywords of `source` that are in the TypedDict `known`."""

    def decorate(function: Function) -> Function:
        own = inspect.signature(function)
        shown = [x for x in own.parameters.values() if x.kind is not x.VAR_KEYWORD]
        named = inspect.signature(source).parameters
        shown += [x for name, x in named.items() if name in known.__annotations__]
        function.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        return function

    return decorate
