"""The carry after two adjacent stretches of tokens, from the carries of each."""

from __future__ import annotations

import math

from kerneltrick._arrays import Array, namespace, space, wide_add, wide_narrow
from kerneltrick.engines._near import KeyValues, add_to_sums, concatenated, near_ranks, split_near
from kerneltrick.engines._problem import Carry, Near, Rule, safe


def merge(left: Carry, right: Carry, rule: Rule | None = None) -> Carry:
    """exp(right.log_decay) ⊙ U + right.U, and the tokens of both that are near at the end.

    Tokens that are near at the end of a stretch and no longer at the end of both go into the sums,
    by the map of `rule`; it is not needed where every weight is the map's.
    Columns that are NaN are so in the sums themselves; `bad` is not looked at.
    """
    xp = namespace(left=left.sums.hi, right=right.sums.hi)
    decay = None
    if right.log_decay is not None:
        decay = wide_narrow(right.log_decay, right.log_decay.hi.dtype)
    left_shift = right_shift = log_scale = None
    if left.log_scale is not None and right.log_scale is not None:
        slowest = left.log_scale
        if decay is not None:
            slowest = slowest + xp.astype(xp.max(decay, axis=-1, keepdims=True), slowest.dtype)
        log_scale = xp.maximum(slowest, right.log_scale)
        low = safe(log_scale, xp)
        left_shift, right_shift = left.log_scale - low, xp.exp(right.log_scale - low)
    factor = decay
    if left_shift is not None:
        factor = left_shift if factor is None else factor + left_shift
    added = right.sums
    if right_shift is not None:
        added = wide_add(added, xp.zeros_like(added.hi), right_shift.mT)
    sums = wide_add(left.sums, added.hi, None if factor is None else xp.exp(factor).mT)
    if added.lo is not None:
        sums = wide_add(sums, added.lo)
    log_decay = left.log_decay
    if right.log_decay is not None:
        log_decay = right.log_decay
        if left.log_decay is not None:
            log_decay = wide_add(left.log_decay, log_decay.hi)
    if left.near is None or right.near is None:
        return Carry(sums, log_scale, log_decay, None)
    assert rule is not None
    restarted = None
    if right.log_decay is not None:  # decays are refused beside a window
        restarted = right.log_decay.hi == -math.inf
    near, leaving = _merge_near(rule, left.near, right.near, restarted)
    merged = add_to_sums(rule, Carry(sums, log_scale, None, None, near), leaving)
    return merged._replace(log_decay=log_decay)


def _merge_near(
    rule: Rule, left: Near, right: Near, restarted: Array | None
) -> tuple[Near, KeyValues]:
    """The near tokens of both stretches that are near at the end, and the others."""
    xp = space(left.k)
    base, held = left.count, left.keep
    if restarted is not None:
        base = xp.where(restarted, xp.zeros_like(base), base)
        held = held & ~restarted
    tokens = concatenated(KeyValues(*left[:3], keep=held), KeyValues(*right[:4]))
    rank = xp.concat([near_ranks(rule, left), near_ranks(rule, right) + base], axis=-2)
    slots = tokens.k.shape[-2] - 2 * rule.sinks
    room = max(min(rule.window - 1, slots), 0)
    return split_near(rule, tokens, rank, base + right.count, room, mixed=True)
