"""Heads that differ: which key–value heads attend alike, and what belongs to some of them.

A call whose heads have different windows is a few ordinary calls, one for each kind of head. So
every engine and library can run it, its results are those of separate calls to the bit, and no head
pays for the window of another.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array, constant, index_dtype, is_array, space
from kerneltrick.attention._arguments import check_count
from kerneltrick.engines import UNBOUNDED

Windows: TypeAlias = int | Sequence[int | None] | None  # None: the whole text
HeadKind: TypeAlias = tuple[tuple[int, ...], int, int, bool]  # heads, window, sinks, whether bare
WHOLE = "whole"  # its name in texts


def check_windows(who: str, window: Any) -> int | tuple[int, ...]:
    """One window, or one for each head; None and what no text fills become UNBOUNDED."""

    def check(value: Any) -> int:
        return UNBOUNDED if value is None else min(check_count(who, "window", value), UNBOUNDED)

    return tuple(map(check, window)) if _is_sequence(window) else check(window)


def check_sinks(who: str, sinks: Any) -> int | tuple[int, ...]:
    """A number of sinks, or one for each head."""
    if _is_sequence(sinks):
        return tuple(check_count(who, "sinks", value) for value in sinks)
    return check_count(who, "sinks", sinks)


def check_heads(who: str, name: str, given: Any) -> tuple[int, ...]:
    """Numbers of heads, each once and in increasing order."""
    if not _is_sequence(given):
        raise TypeError(
            f"{who} needs {name} to be a sequence of heads, such as (0, 5), not {given!r}"
        )
    heads = tuple(check_count(who, f"the heads in {name}", head) for head in given)
    if list(heads) != sorted(set(heads)):
        raise ValueError(
            f"{who} needs the heads in {name} once each and in increasing order, not {heads}"
        )
    return heads


def _is_sequence(x: Any) -> bool:
    return isinstance(x, (Sequence, np.ndarray)) and not isinstance(x, (str, bytes))


def numbers_text(values: Any) -> str:
    """Numbers of heads, or windows, as text: 0+5+7, or 64+whole+16."""
    values = [values] if isinstance(values, int) else values
    return "+".join(WHOLE if value == UNBOUNDED else str(value) for value in values)


def read_numbers(text: str) -> int | tuple[int | None, ...] | None:
    """What `numbers_text` wrote; ValueError if it is something else."""
    values = [None if word.strip() == WHOLE else int(word) for word in text.split("+")]
    return values[0] if len(values) == 1 else tuple(values)


def read_heads(text: str) -> tuple[int, ...]:
    """Numbers of heads, such as 0+5+7."""
    return tuple(int(word) for word in text.split("+"))


def for_each(who: str, what: str, values: Any, heads: int) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,) * heads
    if len(values) != heads:
        raise ValueError(
            f"{who} got {len(values)} {what} for {heads} key–value heads: give one for each, or a "
            "number for all"
        )
    return tuple(values)


@functools.lru_cache(maxsize=256)
def head_kinds(
    windows: tuple[int, ...],
    sinks: tuple[int, ...],
    whole: tuple[int, ...],
    bare: tuple[int, ...],
    features: bool,
) -> tuple[HeadKind, ...]:
    """The heads of each kind, their window and sinks, and whether they do without the map."""
    found: dict[tuple[int, int, bool], list[int]] = {}
    for head, (window, own) in enumerate(zip(windows, sinks, strict=True)):
        kind = (window, own, head in bare)
        if head in whole or window == UNBOUNDED or not (features or window or own):
            kind = (UNBOUNDED, 0, False)
        found.setdefault(kind, []).append(head)
    return tuple((tuple(heads), *kind) for kind, heads in found.items())


def of_heads(feature_map: maps.FeatureMap, own: tuple[int, ...], heads: int) -> maps.FeatureMap:
    """The map with those of its weights (rows, ·, ·) that these of all key–value heads use."""
    weights = {
        field.name: select(x, _rows(int(x.shape[0]), own, heads), 0)
        for field in dataclasses.fields(feature_map)
        if is_array(x := getattr(feature_map, field.name)) and x.ndim == 3 and x.shape[0] > 1
    }
    return dataclasses.replace(feature_map, **weights) if weights else feature_map


def _rows(rows: int, own: tuple[int, ...], heads: int) -> tuple[int, ...]:
    """Which rows these heads use: heads may share one, or have several for their query heads."""
    if rows % heads == 0:
        each = rows // heads
        return tuple(head * each + i for head in own for i in range(each))
    if heads % rows == 0:
        return tuple(head * rows // heads for head in own)
    raise ValueError(
        f"the map has weights for {rows} heads, but there are {heads} key–value heads: heads that "
        "differ need a row for each, or rows shared by equally many"
    )


def select(x: Array, chosen: tuple[int, ...], axis: int) -> Array:
    """These entries of an axis: a view where they are evenly spaced."""
    index = places(chosen)
    if isinstance(index, slice):
        before: tuple[Any, ...] = (slice(None),) * (axis % x.ndim)
        return x[(*before, index)]
    return space(x).take(x, constant(index, x, index_dtype(x)), axis=axis)


@functools.lru_cache(maxsize=256)
def places(chosen: tuple[int, ...]) -> slice | np.ndarray[Any, Any]:
    """An index for these entries: a slice where they are evenly spaced."""
    step = chosen[1] - chosen[0] if len(chosen) > 1 else 1
    if step > 0 and chosen == tuple(range(chosen[0], chosen[-1] + 1, step)):
        return slice(chosen[0], chosen[-1] + 1, step)
    return np.asarray(chosen)


def joined(
    parts: Sequence[Annotated[Array, "(..., own heads, n, M)"]], heads: Iterable[tuple[int, ...]]
) -> Annotated[Array, "(..., heads, n, M)"]:
    """The results of groups of heads as one array, heads in their order."""
    whole, order = space(parts[0]).concat(list(parts), axis=-3), _order(tuple(heads))
    return whole if order is None else select(whole, order, -3)


@functools.lru_cache(maxsize=256)
def _order(heads: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """Where each head is among these groups; None if they are in order."""
    every = [head for own in heads for head in own]
    found = tuple(sorted(range(len(every)), key=every.__getitem__))
    return None if list(found) == sorted(found) else found
