"""The delta rule by chunks: inside a chunk a triangular system, between chunks the state.

With g(i, j) the decay from token j to token i, and S the state before the chunk, token i finds what
was left of S and of the writes before it, and corrects it. Without erase vectors the corrections
uᵢ = βᵢ(vᵢ − what token i reads) solve a unit lower triangular system,

    uᵢ + Σ_{j<i} βᵢ (eᵢ·g(i, j)⊙kⱼ) uⱼ = βᵢ (vᵢ − (eᵢ⊙g(i, 0))ᵀ S).

With them it is what is erased that solves such a system, beside the writes βv. The matrix does not
depend on S, so those of a group of chunks are inverted at once; only a few products wait for S.

A number that overflows is set to 0, and what depends on it becomes NaN later: as 0 · inf it would
reach earlier tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kerneltrick._arrays import Array, Namespace, constant, is_looped, scan, space, static_start
from kerneltrick.engines._chunked import BLOCK_NUMBERS, MOST_CHUNKS, split, spoiled, summed_decays
from kerneltrick.engines._delta_problem import (
    DeltaCarry,
    DeltaData,
    DeltaResult,
    DeltaRule,
    DeltaTokens,
    finish_delta,
    first_carry,
    last_state,
    prepare_tokens,
)
from kerneltrick.engines._problem import either, finite

CHUNK = 32  # a power of 2
FEATURE_DECAY_CHUNK = 16  # with a decay per feature, scores are sums over d of C² products


def delta_chunked(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    """All chunks in order; the memory used beyond inputs and outputs does not grow with n."""
    heads, n = data.k.shape[-3], data.v.shape[-2]
    chunk, group, offset = _sizes(data)

    def body(carry: DeltaCarry, streams: Any, first: Any, valid: Array | None) -> Any:
        tokens = prepare_tokens(rule, streams, heads)
        carry, output, bad = _group(carry, _with_restarts(tokens), chunk)
        return carry, (finish_delta(output, tokens, bad, data.v.dtype),)

    carry = first_carry(data)
    carry, (output,) = scan(body, carry, data.streams, length=n, block=chunk * group, offset=offset)
    return DeltaResult(output, last_state(rule, carry))


def _sizes(data: DeltaData) -> tuple[int, int, int]:
    """The chunk length, how many chunks to take at once (which changes no number), and how far
    into its chunk the first token is.
    """
    d, width = data.k.shape[-1], data.v.shape[-1]
    per_feature = data.log_decay is not None and data.log_decay.shape[-1] > 1
    chunk = FEATURE_DECAY_CHUNK if per_feature else CHUNK
    if is_looped(data.v, data.v.shape[-2]):  # whose steps cost nothing
        return chunk, 1, 0
    rows = math.prod(data.v.shape[:-2])
    largest = rows * chunk * max(d, width, chunk * (d if per_feature else 1))
    offset = static_start(data.start, data.v, data.v.shape[-2]) % chunk
    chunks = -(-(data.v.shape[-2] + offset) // chunk)
    most = max(1, min(MOST_CHUNKS, BLOCK_NUMBERS // max(largest, 1)))
    groups = -(-chunks // most)
    return chunk, max(1, -(-chunks // max(groups, 1))), offset


def _with_restarts(tokens: DeltaTokens) -> DeltaTokens:
    """Restarts as log-decays of −inf: what came before has the weight 0."""
    if tokens.restart is None:
        return tokens
    xp, log_decay = space(tokens.write), tokens.log_decay
    log_decay = xp.zeros_like(tokens.k[..., :1]) if log_decay is None else log_decay
    log_decay = xp.where(tokens.restart, xp.full_like(log_decay, -math.inf), log_decay)
    return tokens._replace(log_decay=log_decay)


class _Decays(NamedTuple):
    """Decays within a chunk, (..., chunks, C, ·) with · = 1, or d if they are per feature."""

    pair: Array | None  # (..., C, C, ·): from token j to token i; 1 for j ≥ i
    entry: Array | None  # (..., C, ·): from the state before the chunk to token i
    leave: Array | None  # (..., C, ·): from token j to the end of the chunk
    through: Array | None  # (..., 1, ·): over the chunk

    @staticmethod
    def of(log_decay: Array | None, xp: Namespace) -> _Decays:
        if log_decay is None:
            return _Decays(None, None, None, None)
        between, since = summed_decays(log_decay, xp)
        pair, entry = xp.exp(between), xp.exp(since)
        return _Decays(pair, entry, pair[..., -1, :, :], entry[..., -1:, :])

    def scores(self, rows: Array, columns: Array) -> Array:
        """Σ_f rowsᵢ_f · columnsⱼ_f · pairᵢⱼ_f, (..., C, C)."""
        if self.pair is None:
            return rows @ columns.mT
        if self.pair.shape[-1] == 1:
            return (rows @ columns.mT) * self.pair[..., 0]
        seen = columns[..., None, :, :] * self.pair
        return (rows[..., None, :] @ seen.mT)[..., 0, :]


def _times(x: Array, factor: Array | None) -> Array:
    return x if factor is None else x * factor


def _group(
    carry: DeltaCarry, tokens: DeltaTokens, chunk: int
) -> tuple[DeltaCarry, Array, Array | None]:
    """Outputs of a group of chunks, the state after it, and which outputs are NaN."""
    xp = space(tokens.write)
    q, k, erase, read, write, log_decay = (
        split(x, chunk, xp)
        for x in (tokens.q, tokens.k, tokens.erase, tokens.read, tokens.write, tokens.log_decay)
    )
    assert q is not None
    assert k is not None
    assert write is not None
    decays = _Decays.of(log_decay, xp)
    x = k if erase is None else erase
    lower, lost = _finite_rows(xp.tril(decays.scores(read, x), k=-1), None, xp)
    inverse, lost = inverse_of_unit(lower, lost, xp)
    new = xp.tril(decays.scores(q, k))  # weights of writes in outputs
    q_entry, read_entry = _times(q, decays.entry), _times(read, decays.entry)
    k_leave = _times(k, decays.leave)
    if erase is not None:
        found = xp.tril(decays.scores(read, k), k=-1) @ write  # what is read of the chunk's writes
        old = xp.tril(decays.scores(q, erase))
        erase_leave = _times(erase, decays.leave)

    S, outputs, flags = carry.state, [], []
    for c in range(write.shape[-3]):
        at = (..., c, slice(None), slice(None))
        before = read_entry[at] @ S
        right = write[at] - before if erase is None else before + found[at]
        solved, bad = _solve(lower[at], inverse[at], right, xp)
        output = q_entry[at] @ S
        if decays.through is not None:
            S = decays.through[at].mT * S
        if erase is None:
            output = output + new[at] @ solved
            S = S + k_leave[at].mT @ solved
        else:
            output = output + (new[at] @ write[at] - old[at] @ solved)
            S = S + (k_leave[at].mT @ write[at] - erase_leave[at].mT @ solved)
        S, full = finite(S, xp)
        outputs.append(output)
        flags.append(_flags(bad, full, output, xp))
    bad = tokens.bad
    if lost is not None:
        bad = either(bad, xp.reshape(lost, (*lost.shape[:-3], chunk * lost.shape[-3], 1)))
    if any(x is not None for x in flags):
        none = xp.zeros_like(outputs[0], dtype=xp.bool)
        bad = either(bad, xp.concat([none if x is None else x for x in flags], axis=-2))
    if bad is not None:
        bad = xp.broadcast_to(bad, tokens.write.shape)
    after, rows = spoiled(carry.bad, bad, tokens.log_decay, tokens.write, xp)
    return DeltaCarry(S, after), xp.concat(outputs, axis=-2), rows


def _flags(bad: Array | None, full: Array | None, output: Array, xp: Namespace) -> Array | None:
    """Which columns overflowed at which token of a chunk; the state's own, at its last token."""
    if full is None:
        return bad
    none = xp.zeros_like(output[..., :-1, :], dtype=xp.bool)
    last = xp.concat([none, xp.any(full, axis=-2, keepdims=True)], axis=-2)
    return either(bad, last)


def _solve(lower: Array, inverse: Array, right: Array, xp: Namespace) -> tuple[Array, Array | None]:
    """The solution of (I + L) u = right, and where it overflowed.

    The inverse alone is rough where β is near 2. One step of refinement makes it as good as
    substitution row by row.
    """
    right, bad = finite(right, xp)
    rough, more = finite(inverse @ right, xp)
    rest, large = finite(right - rough - lower @ rough, xp)
    solved, last = finite(rough + inverse @ rest, xp)
    return solved, either(either(bad, more), either(large, last))


def inverse_of_unit(lower: Array, lost: Array | None, xp: Namespace) -> tuple[Array, Array | None]:
    """(I + L)⁻¹ of strictly lower triangular L (..., C, C), and which rows overflowed.

    Diagonal blocks of 1, 2, 4, … rows at a time: [[A, 0], [B, D]]⁻¹ = [[A⁻¹, 0], [−D⁻¹BA⁻¹, D⁻¹]].
    """
    size = lower.shape[-1]
    inverse = constant(np.eye(size), lower)
    index, half = np.arange(size), 1
    while half < size:
        i, j = index[:, None] // half, index // half
        below = constant((i % 2 == 1) & (i == j + 1), lower, xp.bool)
        step, lost = _finite_rows(xp.where(below, lower, xp.zeros_like(lower)) @ inverse, lost, xp)
        inverse, lost = _finite_rows(inverse - inverse @ step, lost, xp)
        half *= 2
    return inverse, lost


def _finite_rows(x: Array, lost: Array | None, xp: Namespace) -> tuple[Array, Array | None]:
    x, bad = finite(x, xp)
    if bad is not None:
        lost = either(lost, xp.any(bad, axis=-1, keepdims=True))
    return x, lost
