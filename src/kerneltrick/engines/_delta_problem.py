"""What an engine of the delta rule is given, and the preparation of tokens they share.

Symbols: n tokens, d features of a key, M value width, H value heads, H/g key heads: each key head
serves g value heads. Every array keeps its tokens on axis −2. Columns of the state never mix, so a
token that is not finite makes NaN whole columns and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any, ClassVar, NamedTuple

from kerneltrick._arrays import Array, Namespace, astype, compute_dtype, contiguous, space, zeros
from kerneltrick.engines._problem import blank, either, finite

TINY = 1e-6  # added to Σx² before the root, as the published models do


@dataclasses.dataclass(frozen=True)
class DeltaRule:
    """All of a call of the delta rule but its arrays. JAX compiles once for each rule."""

    operator: ClassVar[str] = "delta_rule"
    weighted: ClassVar[bool] = False  # no rule holds arrays or code
    scale: float  # q is multiplied by it
    normalize_qk: bool = False
    wants_state: bool = True  # whether the state after the call is asked for

    @property
    def text(self) -> str:
        """The rule as text, which `delta_rule_of` reads."""
        return f"[{self.scale!r}, {int(self.normalize_qk)}, {int(self.wants_state)}]"


@functools.lru_cache(maxsize=256)
def delta_rule_of(text: str) -> DeltaRule:
    """The rule that `DeltaRule.text` wrote."""
    scale, normalize_qk, wants_state = json.loads(text)
    return DeltaRule(scale, bool(normalize_qk), bool(wants_state))


class DeltaData(NamedTuple):
    """The arrays of a call."""

    q: Array  # (..., H/g, n, d)
    k: Array  # (..., H/g, n, d)
    v: Array  # (..., H, n, M)
    beta: Array | None  # (..., H, n, 1); None: 1
    log_decay: Array | None  # (..., H, n, 1 or d)
    erase: Array | None  # (..., H/g, n, d); None: k
    read: Array | None  # (..., H/g, n, d); None: k
    mask: Array | None  # (..., H or 1, n, 1) bool, True = keep
    restart: Array | None  # (..., H or 1, n, 1) bool: the state is emptied before this token
    state: Array | None  # (..., H, d, M), NaN in spoiled columns; None: 0
    start: Any  # absolute position of the first token

    @property
    def streams(self) -> tuple[Array | None, ...]:
        """What has one entry per token; `prepare_tokens` takes blocks of them."""
        return self[:9]


class DeltaResult(NamedTuple):
    output: Array  # (..., H, n, M)
    state: Array | None  # (..., H, d, M), NaN in spoiled columns; None if nobody asks for it


class DeltaCarry(NamedTuple):
    """The state of the recurrence after some tokens, without NaN. Heads are two axes."""

    state: Array  # (..., H/g, g, d, M) in the type of arithmetic
    bad: Array | None  # (..., H/g, g, 1, M): columns that a non-finite token has made NaN


class DeltaTokens(NamedTuple):
    """Tokens without NaN in the type of arithmetic; masked ones are zeros and change nothing.

    Heads are two axes: H/g key heads, and the g value heads of each (1 where they share).
    """

    q: Array  # (..., H/g, 1 or g, n, d), times scale
    k: Array  # (..., H/g, 1 or g, n, d)
    erase: Array | None  # the same; None: k
    read: Array  # (..., H/g, 1 or g, n, d), times β
    write: Array  # (..., H/g, g, n, M): β v
    log_decay: Array | None  # (..., H/g, g, n, 1 or d), 0 where masked
    restart: Array | None  # (..., H/g, 1 or g, n, 1) bool
    keep: Array | None  # (..., H/g, 1 or g, n, 1) bool
    bad: Array | None  # (..., H/g, g, n, M): columns that the token makes NaN
    bad_q: Array | None  # (..., H/g, 1 or g, n, 1): rows that are NaN


def prepare_tokens(rule: DeltaRule, streams: tuple[Array | None, ...], heads: int) -> DeltaTokens:
    """Clean, normalise and group tokens; `heads` is H/g. NaN and inf become flags."""
    q, k, v, beta, log_decay, erase, read, mask, restart = streams
    assert v is not None
    xp, dtype = space(v), compute_dtype(v)
    found: list[Array | None] = []  # where a token is not finite, (..., 1)

    def grouped(x: Array) -> Array:
        """(..., heads, n, w) → (..., H/g, 1 or g, n, w)."""
        if x.shape[-3] == 1:
            return xp.expand_dims(x, axis=-3)
        return xp.reshape(x, (*x.shape[:-3], heads, x.shape[-3] // heads, *x.shape[-2:]))

    keep = None if mask is None else grouped(mask)
    restart = None if restart is None else grouped(restart)

    def clean(x: Array | None, flags: list[Array | None]) -> Array | None:
        if x is None:
            return None
        x, bad = finite(blank(grouped(x), keep, xp), xp)
        if bad is not None:
            flags.append(xp.any(bad, axis=-1, keepdims=True))
        return contiguous(astype(x, dtype))

    bad_rows: list[Array | None] = []
    q, k = clean(q, bad_rows), clean(k, found)
    erase, read = clean(erase, found), clean(read, found)
    beta, log_decay = clean(beta, found), clean(log_decay, found)
    v, bad = finite(blank(grouped(v), keep, xp), xp)
    if rule.normalize_qk:
        q, k = unit(q, xp), unit(k, xp)
    read, write = k if read is None else read, contiguous(astype(v, dtype))
    if beta is not None:
        read = read * beta
        write, large = finite(write * beta, xp)
        bad = either(bad, large)
    for token in found:
        bad = either(bad, token)
    if bad is not None:
        bad = xp.broadcast_to(bad, write.shape)
    assert q is not None
    bad_q = bad_rows[0] if bad_rows else None
    return DeltaTokens(
        q=q * rule.scale,
        k=k,
        erase=erase,
        read=read,
        write=write,
        log_decay=log_decay,
        restart=restart,
        keep=keep,
        bad=bad,
        bad_q=bad_q,
    )


def unit(x: Array, xp: Namespace) -> Array:
    """x / √(Σx² + 1e-6)."""
    return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True) + TINY)


def finish_delta(output: Array, tokens: DeltaTokens, bad: Array | None, dtype: Any) -> Array:
    """Outputs (..., H, n, M): NaN where a token is not finite, 0 where it is masked."""
    xp = space(output)
    spoiled = either(bad, tokens.bad_q)
    if spoiled is not None:
        output = xp.where(spoiled, xp.full_like(output, math.nan), output)
    return flat_heads(astype(blank(output, tokens.keep, xp), dtype))


def first_carry(data: DeltaData) -> DeltaCarry:
    """What the recurrence begins with."""
    state, heads = data.state, data.k.shape[-3]
    if state is None:
        state = empty_state(data.k, data.v)
    xp = space(state)
    *lead, all_heads, d, width = state.shape
    state = xp.reshape(state, (*lead, heads, all_heads // heads, d, width))
    state, bad = finite(state, xp)
    return DeltaCarry(state, None if bad is None else xp.any(bad, axis=-2, keepdims=True))


def last_state(rule: DeltaRule, carry: DeltaCarry) -> Array | None:
    """The state after the call as the caller gets it, if asked for."""
    if not rule.wants_state:
        return None
    state, bad = carry
    if bad is not None:
        xp = space(state)
        state = xp.where(bad, xp.full_like(state, math.nan), state)
    return flat_heads(state)


def flat_heads(x: Array) -> Array:
    """(..., H/g, g, ·, ·) → (..., H, ·, ·)."""
    lead, heads = x.shape[:-4], x.shape[-4] * x.shape[-3]
    return space(x).reshape(x, (*lead, heads, *x.shape[-2:]))


def empty_state(k: Array, v: Array) -> Array:
    """The state before the first token, for keys (..., H/g, n, d) and values (..., H, n, M)."""
    return zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]), k, compute_dtype(k))
