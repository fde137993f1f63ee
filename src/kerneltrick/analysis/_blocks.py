"""The weights of softmax and of a map, one block of rows at a time, in NumPy.

They are float64 up to n = 2048 and float32 above, which is several times as fast.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kerneltrick import maps
from kerneltrick._arrays import Array, as_numpy, constant, is_array, library, wide
from kerneltrick.attention import (
    Dial,
    check_causal,
    check_far,
    check_inputs,
    check_scale,
    resolve,
)
from kerneltrick.engines import Rule

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

WHOLE_UP_TO = 2048  # number of tokens up to which every row is used, in float64
BLOCK_NUMBERS = 1 << 18  # numbers in one block of weights: 2 MiB, which fits in the cache
LEAST_ROWS = 32  # fewer make matrix products inefficient
WIDE_MAP = 4  # maps with more than this times d features use their closed form


class MapComparison(NamedTuple):
    """A checked call; leading dimensions are flattened into L, H is the number of query heads."""

    q: Floats  # (L, H, n_q, d)
    k: Floats  # (L, H_kv, n, d)
    v: Floats  # (L, H_kv, n, M)
    rule: Rule  # its near_scale is the scale of the softmax that the map is compared with
    gain: Floats | None = None  # (H, 1, 1), of the keys that are not near; None if none is near

    @property
    def groups(self) -> int:
        """Number of query heads that share one key/value head."""
        return int(self.q.shape[1] // self.k.shape[1])

    def in_float64(self) -> MapComparison:
        q, k, v = (x.astype(np.float64, copy=False) for x in (self.q, self.k, self.v))
        return self._replace(q=q, k=k, v=v)


class Block(NamedTuple):
    """Rows `rows` of the weights of every head at one leading index; they see at most c keys.

    Rows where the map has no output are False in `defined`, and their weights are 0.
    """

    lead: int
    rows: NDArray[np.int64]
    softmax: Floats  # (H, r, c)
    log_softmax: Floats  # (H, r, c), 0 where not allowed
    weights: Floats  # (H, r, c), normalised
    allowed: Bools | None  # (r, c), j ≤ i; None if every key is seen
    defined: Bools  # (H, r)
    log_normalizer: Floats  # (H, r): log |Σ_j φ(q)·φ(k_j)|, −inf where the sum is 0

    @property
    def entries(self) -> Bools | None:
        """The entries (H, r, c) that are visible and in a defined row; None means all."""
        if self.defined.all():
            if self.allowed is None:
                return None
            return np.broadcast_to(self.allowed, self.weights.shape)
        rows = self.defined[..., None]
        return np.broadcast_to(
            rows if self.allowed is None else self.allowed & rows, self.weights.shape
        )


def check_problem(
    who: str,
    q: Array,
    k: Array,
    v: Array,
    setting: maps.MapLike | Dial,
    causal: bool,
    scale: float | None,
    softmax_scale: float | None,
) -> MapComparison:
    inputs = check_inputs(who, q, k, v)
    check_causal(who, inputs, causal)
    dial = Dial.get(setting)
    if dial.by_head:
        groups = dial.groups(inputs.k.shape[-3], inputs.q.shape[-3])
        dial = groups[0].dial if len(groups) == 1 else dial
    chosen = numpy_map(dial.feature_map, q)
    dial = dataclasses.replace(dial, feature_map=chosen)
    rule, _ = resolve(who, dial, inputs._replace(headless=False), scale=scale)
    gain, relative = None, False
    if not rule.all_far:
        gain, relative = check_far(dial.far, chosen, inputs)
        gain = as_numpy(gain).astype(np.float64)
    d, n_q, n = q.shape[-1], q.shape[-2], k.shape[-2]
    if n_q == 0 or n == 0 or math.prod(inputs.q.shape[:-2]) == 0:
        raise ValueError(
            f"{who} needs at least one query and one key to compare "
            f"(q: {tuple(q.shape)}, k: {tuple(k.shape)})"
        )
    chosen.check_positions(0, max(n_q, n) - 1)
    softmax_scale = 1 / math.sqrt(d) if softmax_scale is None else check_scale(who, softmax_scale)
    if 0 < rule.window < max(n_q, n) and n_q != n:
        raise ValueError(f"{who}: a window needs as many queries as keys, not {n_q} and {n}")
    check_finite(q=q, k=k, v=v)
    dtype = np.float64 if max(n_q, n) <= WHOLE_UP_TO else np.float32
    flat_q, flat_k, flat_v = (_flat(x, dtype) for x in (inputs.q, inputs.k, inputs.v))
    rule = dataclasses.replace(rule, causal=causal, near_scale=softmax_scale, relative=relative)
    return MapComparison(flat_q, flat_k, flat_v, rule, gain)


def check_finite(**arrays: Array) -> None:
    """Raise ValueError that names the first array with NaN or infinity, and the place."""
    for name, x in arrays.items():
        bad = ~np.isfinite(as_numpy(x))
        if bad.any():
            count, where = int(bad.sum()), tuple(int(i) for i in np.argwhere(bad)[0])
            values = "1 value that is" if count == 1 else f"{count} values that are"
            raise ValueError(f"{name} holds {values} NaN or infinite, the first at index {where}")


def numpy_map(feature_map: maps.MapLike, like: Array) -> maps.FeatureMap:
    """Return the map for NumPy arrays; a function of another library still gets its own arrays."""
    chosen = maps.get(feature_map)
    if isinstance(chosen, maps.Custom):
        if library(like) == "numpy":
            return chosen
        function, dtype = chosen.function, wide(like[..., :1, :1]).hi.dtype
        return maps.Custom(lambda x: as_numpy(function(constant(x, like, dtype))).astype(x.dtype))
    foreign = {
        field.name: as_numpy(value)
        for field in dataclasses.fields(chosen)
        if is_array(value := getattr(chosen, field.name)) and library(value) != "numpy"
    }
    return dataclasses.replace(chosen, **foreign) if foreign else chosen


def blocks(
    problem: MapComparison, rows: int | None = None, only: NDArray[np.int64] | None = None
) -> Iterator[Block]:
    """Yield all rows of all heads, or `only` some, `rows` at a time (by default about 2 MiB)."""
    heads, n_q, n = problem.q.shape[1], problem.q.shape[2], problem.k.shape[2]
    if rows is None:
        rows = max(1, LEAST_ROWS // heads, BLOCK_NUMBERS // (heads * n))
    elif isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ValueError(f"rows must be a whole number ≥ 1, the rows of a block, not {rows!r}")
    wanted = np.arange(n_q) if only is None else only
    for lead in range(problem.q.shape[0]):
        similar = similarities(problem, problem.k[lead])
        keys = repeated(problem.k[lead], problem.groups)
        for first in range(0, len(wanted), rows):
            chosen = wanted[first : first + rows]
            q = problem.q[lead][:, chosen]
            seen = int(chosen.max()) + 1 if problem.rule.causal else n
            allowed = np.arange(seen) <= chosen[:, None] if problem.rule.causal else None
            scores = (q * problem.rule.near_scale) @ keys[:, :seen].mT
            near = near_keys(problem, scores, chosen)
            weights, defined, log_normalizer = normalized(*similar(q, chosen, seen), allowed, near)
            softmax, log_softmax = _softmax(scores, allowed)
            yield Block(
                lead, chosen, softmax, log_softmax, weights, allowed, defined, log_normalizer
            )


class NearKeys(NamedTuple):
    """The keys with softmax weights, and the units of the other weights."""

    close: Bools  # (r, c)
    scores: Floats  # (H, r, c): s·q·k
    gain: Floats  # (H, 1, 1)
    relative: bool


def near_keys(problem: MapComparison, scores: Floats, rows: NDArray[np.int64]) -> NearKeys | None:
    """Return the keys near the queries at `rows`; None if the map weights all keys."""
    if problem.gain is None:
        return None
    keys = np.arange(scores.shape[-1])
    close = (np.abs(rows[:, None] - keys) < problem.rule.window) | (keys < problem.rule.sinks)
    return NearKeys(close, scores, problem.gain, problem.rule.relative)


# Queries (H, r, d) at positions (r,) against the first `seen` keys: similarities (H, r, seen), and
# the log-scales of the queries (H, r) and of those keys (H, seen), or None.
Similar: TypeAlias = Callable[
    [Floats, NDArray[np.int64], int], tuple[Floats, Floats | None, Floats | None]
]


def similarities(problem: MapComparison, k: Floats) -> Similar:
    """Return a function that compares queries with the keys k (H_kv, n, d) of one leading index."""
    feature_map, root = problem.rule.feature_map, math.sqrt(problem.rule.scale)
    d, where = k.shape[-1], np.arange(k.shape[-2])
    if _has_closed_form(feature_map) and feature_map.dim(d) > WIDE_MAP * d:
        keys = repeated(k * root, problem.groups)

        def closed_form(q: Floats, at: NDArray[np.int64], seen: int) -> tuple[Floats, None, None]:
            with np.errstate(over="ignore", invalid="ignore"):  # `normalized` finds such rows
                found = feature_map.kernel(q * root, keys[:, :seen], at, where[:seen])
            return found, None, None

        return closed_form

    phi_k, log_k = feature_map.phi_key(k * root, where)
    phi_k = repeated(phi_k, problem.groups)
    log_k = None if log_k is None else repeated(log_k, problem.groups)

    def products(
        q: Floats, at: NDArray[np.int64], seen: int
    ) -> tuple[Floats, Floats | None, Floats | None]:
        phi_q, log_q = feature_map.phi_query(q * root, at)
        return phi_q @ phi_k[:, :seen].mT, log_q, None if log_k is None else log_k[:, :seen]

    return products


def _has_closed_form(feature_map: maps.FeatureMap) -> bool:
    return feature_map.exact and type(feature_map).kernel is not maps.FeatureMap.kernel


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def normalized(
    weights: Floats,
    log_q: Floats | None,
    log_k: Floats | None,
    allowed: Bools | None,
    near: NearKeys | None = None,
) -> tuple[Floats, Bools, Floats]:
    """Return weights divided by their sums, which rows are defined, and log |sum|."""
    reference: Any = 0.0
    if near is not None:
        weights, reference = _joined(weights, log_q, log_k, allowed, near)
        log_q = None
    elif log_k is not None:
        exponent = np.broadcast_to(log_k[:, None, :], weights.shape)
        if allowed is not None:
            exponent = np.where(allowed, exponent, -math.inf)
        top = exponent.max(axis=-1, keepdims=True)
        weights = weights * np.exp(exponent - top)
        reference = top[..., 0]
    if allowed is not None:
        weights = np.where(allowed, weights, 0.0)
    total = weights.sum(axis=-1)
    defined = np.isfinite(total) & (total != 0)
    log_normalizer = np.log(np.abs(total)) + reference + (0.0 if log_q is None else log_q)
    weights = weights / np.where(defined, total, 1.0)[..., None]
    if not defined.all():
        weights = np.where(defined[..., None], weights, 0.0)
    return weights, defined, log_normalizer


def _joined(
    weights: Floats,
    log_q: Floats | None,
    log_k: Floats | None,
    allowed: Bools | None,
    near: NearKeys,
) -> tuple[Floats, Floats]:
    """Join near weights e^{s·q·k} and far ones, relative to the exponential of one row maximum."""
    far = ~near.close if allowed is None else allowed & ~near.close
    close = near.close if allowed is None else allowed & near.close
    scores = np.where(close, near.scores, -math.inf)
    top = scores.max(axis=-1, keepdims=True)
    exponent = np.broadcast_to(near.gain, weights.shape).astype(weights.dtype)
    if near.relative:
        exponent += np.where(np.isfinite(top), top, 0.0)
    for log, axis in ((log_q, -1), (log_k, -2)):
        if log is not None:
            exponent += np.expand_dims(log, axis)
    exponent[~far | (weights == 0)] = -math.inf  # keys without weight do not set the scale
    reference = np.maximum(top, exponent.max(axis=-1, keepdims=True))
    reference = np.where(np.isfinite(reference), reference, 0.0)
    joined = np.where(far, weights * np.exp(exponent - reference), np.exp(scores - reference))
    return joined, reference[..., 0]


def _softmax(scores: Floats, allowed: Bools | None) -> tuple[Floats, Floats]:
    if allowed is not None:
        scores = np.where(allowed, scores, -math.inf)
    scores -= scores.max(axis=-1, keepdims=True)
    weights: Floats = np.exp(scores)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= total
    scores -= np.log(total)
    if allowed is not None:
        scores[..., ~allowed] = 0.0
    return weights, scores


def repeated(x: Floats, groups: int) -> Floats:
    """Repeat key heads for the query heads that share them; return x itself if none are shared."""
    return x if groups == 1 else np.repeat(x, groups, axis=0)


def _flat(x: Array, dtype: Any) -> Floats:
    values: Floats = as_numpy(x).astype(dtype)
    return values.reshape(-1, *values.shape[-3:])
