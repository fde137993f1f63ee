"""What every engine is given, and the preparation of tokens they share.

Symbols: n tokens, d dimensions, m features, M value width, H key/value heads, g query heads per
key/value head. Every array keeps its tokens on axis −2. Values carry one more column of ones, so
that the sum U of φ(k)vᵀ and the normaliser's sum Z of φ(k) are the columns of one matrix, `sums`.
Shapes stand in annotations: `Annotated[Array, "bool (..., H, n, 1)"]` is a boolean array with any
leading axes. Nothing checks them; they are for readers.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Container
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    Namespace,
    Wide,
    all_finite,
    astype,
    clean_blocks_only,
    compute_dtype,
    contiguous,
    device,
    index_dtype,
    library,
    space,
    tree,
    wide,
    wide_add,
    wide_zeros,
    zeros,
)
from kerneltrick.maps import FeatureMap, Fused, feature_shape, fused, get

UNBOUNDED = 2**31 - 1  # a window that no token leaves


@tree
@dataclasses.dataclass(frozen=True)
class Rule:
    """Which attention: all of a call but its arrays. JAX compiles once for each rule."""

    operator: ClassVar[str] = "attention"
    feature_map: FeatureMap
    scale: float
    causal: bool = True
    normalize: bool = True
    zero_fill: float = math.nan  # what an output becomes where the normaliser is exactly 0
    chunk_size: int = 64
    window: int = 0  # keys less than so many unmasked tokens away are near: their weight is exact
    sinks: int = 0  # so are the first tokens of a segment, from anywhere
    near_scale: float = 1.0  # the weight of a near key is exp(near_scale · q·k)
    relative: bool = False  # far weights in units of the largest near one, not of 1
    wants_state: bool = True  # whether the state after the call is asked for
    starts_empty: bool = False  # whether the state before the call is known to be empty

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))

    @functools.cached_property
    def all_far(self) -> bool:
        """Whether every weight is the map's: linear attention."""
        return not (self.window or self.sinks)

    @functools.cached_property
    def stateless(self) -> bool:
        """Whether nobody sees a state: there is none before the call, and none is asked for."""
        return self.starts_empty and not self.wants_state

    @functools.cached_property
    def weighted(self) -> bool:
        """Whether the map holds arrays or code, which can change behind our back."""
        return self.feature_map.weighted

    @functools.cached_property
    def fused(self) -> Fused | None:
        """How to ask the compiled core for the map; None if the core does not know it."""
        return fused(self.feature_map)

    @functools.cached_property
    def text(self) -> str:
        """The rule of a fused map as text, which `rule_of` reads; learned weights are not in it."""
        assert self.fused is not None
        return json.dumps([self.fused.text, *(getattr(self, name) for name in _settings())])

    def numbers(self, names: Container[str]) -> dict[str, Any]:
        """The settings that are among these names."""
        return {name: getattr(self, name) for name in _settings() if name in names}


@functools.cache
def _settings() -> tuple[str, ...]:
    """The fields of a rule that are numbers."""
    names = (field.name for field in dataclasses.fields(Rule))
    return tuple(name for name in names if name != "feature_map")


@functools.lru_cache(maxsize=256)
def rule_of(text: str) -> Rule:
    """The rule that `Rule.text` wrote."""
    feature_map, *values = json.loads(text)
    return Rule(get(feature_map), **dict(zip(_settings(), values, strict=True)))


class Near(NamedTuple):
    """The tokens that are still near, as they were given: t = sinks slots, then r of the window.

    Slot b < t holds the token of rank b once it has left the window. The r ≤ window − 1 others are
    the last unmasked tokens in order, right-aligned. The rank of a token is how many unmasked ones
    its segment has before it.
    """

    k: Annotated[Array, "(..., H, t + r, d)"]
    v: Annotated[Array, "(..., H, t + r, M)"]
    positions: Annotated[Array, "(..., H, t + r, 1)"]
    keep: Annotated[Array, "bool (..., H, t + r, 1)"]  # whether the slot is used
    count: Annotated[Array, "(..., H, 1, 1)"]  # unmasked tokens of the segment so far


class Carry(NamedTuple):
    """The state of the recurrence after some tokens: U and Z are e^{log_scale} · sums."""

    sums: Annotated[Wide, "(..., H, m, M + 1)"]
    log_scale: Annotated[Array | None, "(..., H, 1, 1)"]  # None if the map has no log-scale
    # Σ log-decay since the start; None if no decay
    log_decay: Annotated[Wide | None, "(..., H, 1, 1 or m)"]
    # columns that a non-finite k or v has made NaN
    bad: Annotated[Array | None, "(..., H, 1, M + 1)"]
    near: Near | None = None  # what the sums do not hold yet; None if every weight is the map's


class Data(NamedTuple):
    """The arrays of a call."""

    q: Annotated[Array, "(..., H·g, n_q, d)"]
    k: Annotated[Array, "(..., H, n, d)"]
    v: Annotated[Array, "(..., H, n, M)"]
    mask: Annotated[Array | None, "bool (..., H or 1, n, 1)"]  # True = keep
    query_mask: Annotated[Array | None, "bool (..., H·g or 1, n_q, 1)"]  # full attention only
    log_decay: Annotated[Array | None, "(..., H, n, 1 or m)"]
    # the state is emptied before this token
    restart: Annotated[Array | None, "bool (..., H or 1, n, 1)"]
    q_positions: Annotated[Array | None, "(..., H·g or 1, n_q, 1)"]
    k_positions: Annotated[Array | None, "(..., H or 1, n, 1)"]
    start: Any  # absolute position of the first token
    carry: Carry
    gain: Annotated[Array | None, "(H·g, 1, 1)"] = None  # far weights are multiplied by e^gain


class Result(NamedTuple):
    output: Annotated[Array, "(..., H·g, n_q, M)"]
    zero: Annotated[Array | None, "bool (..., H·g, n_q, 1)"]  # rows whose normaliser is exactly 0
    carry: Carry


class Keys(NamedTuple):
    """Tokens ready to be summed; masked ones are zeros."""

    features: Annotated[Array, "(..., H, n, m)"]
    values: Annotated[Array, "(..., H, n, M + 1)"]  # last column 1
    log_scale: Annotated[Array | None, "(..., H, n, 1)"]  # in the dtype of sums, −inf where masked
    log_decay: Annotated[Array | None, "(..., H, n, 1 or m)"]  # 0 where masked, −inf at a restart
    bad: Annotated[Array | None, "(..., H, n, M + 1)"]
    # k · √near_scale; None if every weight is the map's
    exact: Annotated[Array | None, "(..., H, n, d)"]


class Queries(NamedTuple):
    features: Annotated[Array, "(..., H, g, n, m)"]
    log_scale: Annotated[Array | None, "(..., H, g, n, 1)"]
    keep: Annotated[Array | None, "bool (..., H, 1 or g, n, 1)"]
    bad: Annotated[Array | None, "(..., H, g, n, 1)"]
    exact: Annotated[Array | None, "(..., H, g, n, d)"]  # as of keys


def prepare_keys(
    rule: Rule,
    k: Array,
    v: Array,
    keep: Array | None,
    log_decay: Array | None,
    restart: Array | None,
    positions: Array | None,
) -> Keys:
    """Clean, scale and map keys and values. NaN and inf become flags: 0 · NaN must not spread."""
    xp = space(k)
    dtype = compute_dtype(k)
    k, v = blank(k, keep, xp, 1), blank(v, keep, xp)
    k, bad_k = finite(k, xp, 1)
    v, bad_v = finite(v, xp)
    bad = None
    if bad_k is not None or bad_v is not None:
        bad_k = xp.zeros_like(k, dtype=xp.bool) if bad_k is None else bad_k
        bad_v = xp.zeros_like(v, dtype=xp.bool) if bad_v is None else bad_v
        token = xp.any(bad_k, axis=-1, keepdims=True)
        bad = xp.concat([bad_v | token, token], axis=-1)
    x = _scaled(k, rule.scale, dtype)
    features, log_scale = rule.feature_map.phi_key(x, positions)
    features = blank(features, keep, xp)
    if log_scale is not None:
        log_scale = wide(log_scale).hi[..., None]
        if keep is not None:
            log_scale = xp.where(keep, log_scale, xp.full_like(log_scale, -math.inf))
    v = astype(v, dtype)
    values = xp.concat([v, xp.ones_like(x[..., :1])], axis=-1)
    if log_decay is not None:
        log_decay = blank(astype(log_decay, dtype), keep, xp)
    if restart is not None:
        zero = xp.zeros_like(x[..., :1])
        log_decay = zero if log_decay is None else log_decay
        log_decay = xp.where(restart, xp.full_like(log_decay, -math.inf), log_decay)
    exact = None if rule.all_far else _scaled(k, rule.near_scale, dtype)
    return Keys(contiguous(features), values, log_scale, log_decay, bad, exact)


def prepare_queries(
    rule: Rule, q: Array, keep: Array | None, positions: Array | None, heads: int
) -> Queries:
    """Clean, scale and map queries, and sort query heads under the key head they share."""
    xp = space(q)

    def grouped(x: Array) -> Array:
        return xp.reshape(x, (*x.shape[:-3], heads, x.shape[-3] // heads, *x.shape[-2:]))

    if keep is not None:
        keep = xp.expand_dims(keep, axis=-3) if keep.shape[-3] in (1, heads) else grouped(keep)
    groups = q.shape[-3] // heads
    if keep is not None:
        shape = (*q.shape[:-3], heads, groups, q.shape[-2], 1)
        flat = xp.reshape(xp.broadcast_to(keep, shape), (*q.shape[:-1], 1))
        q = blank(q, flat, xp, 1)
    q, bad = finite(q, xp, 1)
    dtype = compute_dtype(q)
    features, log_scale = rule.feature_map.phi_query(_scaled(q, rule.scale, dtype), positions)
    return Queries(
        grouped(contiguous(features)),
        None if log_scale is None else grouped(log_scale[..., None]),
        keep,
        None if bad is None else grouped(xp.any(bad, axis=-1, keepdims=True)),
        None if rule.all_far else grouped(_scaled(q, rule.near_scale, dtype)),
    )


def both(mask: Array | None, valid: Array | None) -> Array | None:
    """A mask (..., n, 1) and the validity (n, 1) of a block's tokens, as one."""
    if mask is None or valid is None:
        return valid[None, ...] if mask is None and valid is not None else mask
    return mask & valid


def block_positions(given: Array | None, start: Any, first: Any, count: int, like: Array) -> Array:
    """Positions (..., n) of a block: as given (..., n, 1), or counted from the start."""
    if given is not None:
        return given[..., 0]
    xp = space(like)
    dev = None if library(like) == "jax" else device(like)
    return xp.arange(count, device=dev) + (start + first)


def blank(x: Array, keep: Array | None, xp: Namespace, fill: int = 0) -> Array:
    """x with zeros where a token is not kept; before φ with ones, as φ(0) need not exist."""
    return x if keep is None else xp.where(keep, x, xp.full_like(x, fill))


def finite(x: Array, xp: Namespace, fill: int = 0) -> tuple[Array, Array | None]:
    """x with `fill` for NaN and inf, and where they were (None: there were surely none)."""
    if clean_blocks_only(x) and all_finite(x):
        return x, None
    good = xp.isfinite(x)
    return xp.where(good, x, xp.full_like(x, fill)), ~good


def _scaled(x: Array, scale: float, dtype: Any) -> Array:
    x = contiguous(astype(x, dtype))
    return x if scale == 1 else x * math.sqrt(scale)


def empty_carry(
    rule: Rule, k: Array, v: Array, decay_width: int = 0, window_slots: int = 0
) -> Carry:
    """The state before the first token, shaped for keys k and values v; decay_width 0, 1 or m."""
    xp = space(k)
    m, has_scale = feature_shape(rule.feature_map, k)
    lead = k.shape[:-2]
    sums = wide_zeros((*lead, m, v.shape[-1] + 1), k, xp)
    log_scale = xp.full_like(sums.hi[..., :1, :1], -math.inf) if has_scale else None
    log_decay = None
    if decay_width:
        log_decay = wide_zeros((*lead, 1, decay_width), k, xp)
    bad = None
    if not clean_blocks_only(k):
        bad = zeros((*lead, 1, v.shape[-1] + 1), k, xp.bool)
    near = None
    if not rule.all_far:
        slots, count = rule.sinks + window_slots, index_dtype(k)
        near = Near(
            zeros((*lead, slots, k.shape[-1]), k, k.dtype),
            zeros((*lead, slots, v.shape[-1]), k, v.dtype),
            zeros((*lead, slots, 1), k, count),
            zeros((*lead, slots, 1), k, xp.bool),
            zeros((*lead, 1, 1), k, count),
        )
    return Carry(sums, log_scale, log_decay, bad, near)


def add_decay(total: Wide | None, log_decay: Array | None) -> Wide | None:
    if total is None or log_decay is None:
        return total
    with np.errstate(over="ignore"):  # −inf decays as much
        return wide_add(total, log_decay)


def either(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def safe(log_scale: Array, xp: Namespace) -> Array:
    """A log-scale to subtract: 0 in place of −inf, where nothing is summed yet."""
    return xp.where(log_scale == -math.inf, xp.zeros_like(log_scale), log_scale)


def times(x: Array, factor: Array, xp: Namespace) -> Array:
    """x · factor, where a factor of 0 forgets x even if it has overflowed to inf."""
    x, factor = xp.broadcast_arrays(x, factor)
    return xp.where(factor == 0, xp.zeros_like(x), x) * factor


def vanishes(total: Array, dtype: Any) -> Array:
    """Whether a sum of weights counts as 0: below the normal numbers of `dtype`, in which they were
    formed, weights have lost their digits."""
    xp = space(total)
    return xp.abs(total) < float(xp.finfo(dtype).smallest_normal)


def finish(
    rule: Rule,
    mixed: Array,
    reference: Array | None,
    queries: Queries,
    bad: Array | None,
    dtype: Any,
) -> tuple[Array, Array | None]:
    """Outputs (..., H·g, n, M) from sums (..., H, g, n, M + 1): normalise, then mark NaN and masks.

    `reference` is the log-scale the sums are relative to; `bad` says which columns are NaN.
    """
    xp = space(mixed)
    output, zero = mixed[..., :-1], None
    if rule.normalize:
        total = mixed[..., -1:]
        zero = empty = vanishes(total, total.dtype)
        if bad is not None:
            zero = zero & ~bad[..., -1:]
        if queries.bad is not None:
            zero = zero & ~queries.bad
        if queries.keep is not None:
            zero = zero & queries.keep
        # Dividing by 1 where the sum is 0 keeps the gradient of that row exactly 0.
        output = output / xp.where(empty, xp.ones_like(total), total)
        if not clean_blocks_only(total) or bool(xp.any(empty)):
            output = xp.where(empty, xp.full_like(output, rule.zero_fill), output)
    else:
        # In wide arithmetic: the sum of two large log-scales must not be rounded before exp.
        logs = [x for x in (queries.log_scale, reference) if x is not None]
        if reference is not None:
            logs[-1] = safe(reference, xp)
        if logs:
            factor = astype(xp.exp(sum(wide(x).hi for x in logs)), output.dtype)
            output = times(factor, output, xp)
    spoiled = either(queries.bad, None if bad is None else bad[..., :-1])
    if spoiled is not None:
        output = xp.where(spoiled, xp.full_like(output, math.nan), output)
    output = astype(blank(output, queries.keep, xp), dtype)
    flat = (*output.shape[:-4], output.shape[-4] * output.shape[-3], *output.shape[-2:])
    if zero is not None:
        zero = xp.reshape(zero, (*flat[:-1], 1))
    return xp.reshape(output, flat), zero
