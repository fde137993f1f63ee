"""A call of attention, checked: what engines need, and what turns their result into ours."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import (
    Array,
    as_numpy,
    astype,
    is_concrete,
    is_floating,
    stand_in,
    surroundings,
    widened,
    zeros,
)
from kerneltrick.attention._arguments import (
    Inputs,
    VanishingNormalizerError,
    check_causal,
    check_count,
    check_decay,
    check_inputs,
    check_on_zero,
    restarts,
    token_array,
)
from kerneltrick.attention._dial import Dial, HeadGroup, Setting, check_far, resolve
from kerneltrick.attention._keywords import OnZero, Options, Positions
from kerneltrick.attention._state import State, carry_of, fingerprint, known_int
from kerneltrick.attention._state_file import LONGEST
from kerneltrick.engines import UNBOUNDED, Carry, Data, Rule, empty_carry


class CheckedCall(NamedTuple):
    """A checked call: what engines need, and what turns their result into the caller's."""

    inputs: Inputs
    rule: Rule
    data: Data
    raises: bool
    on_zero: OnZero | None
    fingerprint: str
    padded: tuple[bool, bool]  # a masked token stands in for an empty axis of queries, of keys


def check_call(
    who: str,
    q: Array,
    k: Array,
    v: Array,
    feature_map: Setting,
    options: Options,
) -> CheckedCall:
    """Check everything; an engine may trust what it is given.

    Where q, k and v are the only arrays, what is found depends on types, shapes and numbers. It is
    remembered, since for a small call the checks take longer than the work.
    """
    if isinstance(feature_map, Dial) and not (feature_map.far or options.window or options.sinks):
        options = options._replace(window=feature_map.window, sinks=feature_map.sinks)
        feature_map = feature_map.feature_map
    found = _remembered(who, q, k, v, feature_map, options)
    if found is None or any(found.padded):
        return _check(who, q, k, v, feature_map, options)
    if q.ndim == 2:
        q, k, v = q[None, ...], k[None, ...], v[None, ...]
    inputs = Inputs(found.inputs.xp, q, k, v, found.inputs.headless)
    data = Data._make((q, k, v, *found.data[3:]))
    return CheckedCall._make((inputs, found.rule, data, *found[3:]))


def _remembered(
    who: str, q: Array, k: Array, v: Array, feature_map: Setting, options: Options
) -> CheckedCall | None:
    """The checks of such a call, on arrays without values; None if more than that would count."""
    if options.has_arrays or not isinstance(feature_map, (str, maps.FeatureMap)):
        return None
    if isinstance(feature_map, maps.FeatureMap) and feature_map.weighted:
        return None
    around = surroundings(q, k, v)
    if around is None or not q.dtype == k.dtype == v.dtype:
        return None
    kind = type(q), q.dtype, q.shape, k.shape, v.shape
    try:
        return _check_kind(who, feature_map, kind, around, *options)
    except TypeError:  # a number that cannot be hashed, or a wrong one: the checks will say which
        return None


@functools.lru_cache(maxsize=256, typed=True)  # 1 and True are equal, but not both a scale
def _check_kind(
    who: str, feature_map: maps.MapLike, kind: tuple[Any, ...], around: Any, *options: Any
) -> CheckedCall:
    """The checks of every call of a kind. No engine writes into the empty state that is in it."""
    array, dtype, *shapes = kind
    q, k, v = (stand_in(array, dtype, shape) for shape in shapes)
    return _check(who, q, k, v, feature_map, Options(*options))


def _check(
    who: str,
    q: Array,
    k: Array,
    v: Array,
    feature_map: Setting,
    options: Options,
) -> CheckedCall:
    inputs = check_inputs(who, q, k, v)
    check_causal(who, inputs, options.causal)
    check_on_zero(options.on_zero)
    if options.causal and options.query_mask is not None:
        raise ValueError(f"causal {who} has one mask for queries and keys: use mask=")
    if not options.causal:
        for name in ("log_decay", "segment_ids"):
            if getattr(options, name) is not None:
                raise ValueError(f"{name} needs causal=True: full attention has no order of tokens")
    state = options.state
    if state is not None and not isinstance(state, State):
        raise TypeError(f"state must be a State, not {type(state).__name__}")
    start = 0 if state is None else state.stop
    known = known_int(start)
    stop = 0 if known is None else known + k.shape[-2]
    if isinstance(stop, int) and stop >= LONGEST:
        raise ValueError(f"{who} counts tokens below 2**53, but the state ends at {known}")
    rule, gain = _rule(who, feature_map, options, inputs)
    chosen = rule.feature_map
    q_positions, k_positions = _positions(options.positions, inputs)
    mask = token_array("mask", options.mask, inputs.k, "bool")
    query_mask = token_array("query_mask", options.query_mask, inputs.q, "bool")
    restart = restarts(options.segment_ids, inputs.k)
    probe = empty_carry(rule, inputs.k, inputs.v)
    m = probe.sums.hi.shape[-2]
    decay = check_decay(options.log_decay, inputs.k, m, inputs.headless, mask)
    width = decay.shape[-1] if decay is not None else int(restart is not None)
    carry = empty_carry(rule, inputs.k, inputs.v, width) if width else probe
    print_ = ""
    if state is not None or options.return_state:  # of learned weights it takes a while
        print_ = fingerprint(rule, q.shape[-1], carry)
    if state is not None:
        carry = carry_of(state, carry, print_, inputs.headless)
    _check_horizon(chosen, state, options.positions, inputs, restart)
    data = Data(
        q=inputs.q,
        k=inputs.k,
        v=inputs.v,
        mask=mask,
        query_mask=query_mask,
        log_decay=decay,
        restart=restart,
        q_positions=q_positions,
        k_positions=k_positions,
        start=start,
        carry=_with_positions(carry, k_positions),
        gain=gain,
    )
    data, padded = _pad_empty(data, rule.causal, inputs.xp)
    raises = rule.normalize and options.on_zero in ("raise", None)
    return CheckedCall(inputs, rule, data, raises, options.on_zero, print_, padded)


def _rule(
    who: str, setting: Setting, options: Options, inputs: Inputs
) -> tuple[Rule, Array | None]:
    """Which attention a call asks for, and the gains of its far weights (H_q, 1, 1)."""
    rule, far = resolve(
        who,
        setting,
        inputs,
        scale=options.scale,
        window=options.window,
        sinks=options.sinks,
        far=options.far,
    )
    sinks, n = rule.sinks, inputs.k.shape[-2]
    if options.state is None and not options.return_state and type(n) is int:
        sinks = min(sinks, max(n, 1))  # nobody keeps room for sinks that do not exist
    gain, relative = None, False
    if rule.window or sinks:
        _check_near(who, rule.window, options, inputs)
        gain, relative = check_far(far, rule.feature_map, inputs)
    elif far is not None:
        raise ValueError(
            "far sets the units of far weights against near ones; without window or sinks every "
            "weight is far"
        )
    rule = dataclasses.replace(
        rule,
        causal=bool(options.causal),
        normalize=bool(options.normalize),
        zero_fill=0.0 if options.on_zero == "zero" else math.nan,
        chunk_size=check_count(who, "chunk_size", options.chunk_size, least=1),
        sinks=sinks,
        relative=relative,
        wants_state=options.return_state,
        starts_empty=options.state is None,
    )
    return rule, gain


def _check_near(who: str, window: int, options: Options, inputs: Inputs) -> None:
    """Refuse what has no meaning beside exact weights."""
    if options.log_decay is not None:
        raise ValueError(
            "log_decay cannot be combined with window or sinks: exact weights do not decay"
        )
    n_q, n = inputs.q.shape[-2], inputs.k.shape[-2]
    if window not in (0, UNBOUNDED) and n_q != n:
        state = options.state
        before = 0 if state is None else known_int(state.stop)
        if before is None or window <= before + max(n_q, n):
            raise ValueError(
                f"{who} with a window needs as many queries as keys, to know which are near, but "
                f"there are {n_q} and {n}; a window longer than all of them takes any number"
            )


def _with_positions(carry: Carry, positions: Array | None) -> Carry:
    """The carry, its tokens' positions in floating point if those of the call are."""
    if carry.near is None or positions is None or not is_floating(positions):
        return carry
    held = astype(carry.near.positions, positions.dtype)
    return carry._replace(near=carry.near._replace(positions=held))


def _positions(positions: Positions | None, inputs: Inputs) -> tuple[Array | None, Array | None]:
    if positions is None:
        return None, None
    pair = positions if isinstance(positions, tuple) else (positions, positions)
    if len(pair) != 2:
        raise ValueError(f"positions must be an array or a pair of arrays, not {len(pair)} arrays")
    names = ("positions", "positions") if pair[0] is pair[1] else ("positions[0]", "positions[1]")
    arrays = (
        token_array(names[0], pair[0], inputs.q, "number"),
        token_array(names[1], pair[1], inputs.k, "number"),
    )
    queries, keys = (None if x is None else widened(x) for x in arrays)
    for name, x in zip(names, (queries, keys), strict=True):
        if x is not None and is_concrete(x) and (np.abs(as_numpy(x)) >= LONGEST).any():
            raise ValueError(f"{name} must be below 2**53, so that no two are rounded to one")
    return queries, keys


def _check_horizon(
    feature_map: maps.FeatureMap,
    state: State | None,
    positions: Positions | None,
    inputs: Inputs,
    restart: Array | None,
) -> None:
    """Ask the map whether it can serve tokens as far apart as these."""
    if type(feature_map).check_positions is maps.FeatureMap.check_positions:
        return
    longest = max(inputs.q.shape[-2], inputs.k.shape[-2])
    before = (0, 0) if state is None else (known_int(state.start), known_int(state.stop))
    if longest == 0 or before[0] is None or before[1] is None:
        return
    first, last = before[0], before[1] + longest - 1
    if positions is not None:
        pair = positions if isinstance(positions, tuple) else (positions,)
        if not all(is_concrete(x) for x in pair):
            return
        values = np.concatenate([as_numpy(x).ravel() for x in pair])
        if values.size == 0:
            return
        lowest = float(values.min())
        first = int(lowest if state is None else min(lowest, first))
        last = int(values.max())
    elif restart is not None and is_concrete(restart):
        flags = as_numpy(restart)[..., 0].reshape(-1, longest)
        last = first
        for row in flags:  # the longest segment; the first one continues the state
            edges = np.concatenate([[0], np.flatnonzero(row), [longest]])
            spans = np.diff(edges)
            spans[0] += before[1] - before[0]
            last = max(last, first + int(spans.max()) - 1)
    feature_map.check_positions(first, last)


def _pad_empty(data: Data, causal: bool, xp: Any) -> tuple[Data, tuple[bool, bool]]:
    """One masked token in place of an empty axis, so that engines always have one."""
    no_queries, no_keys = data.q.shape[-2] == 0, data.k.shape[-2] == 0

    def one(x: Array | None) -> Array | None:
        if x is None:
            return None
        # Joined to what is empty, so that the result is a function of it to gradients.
        return xp.concat([x, zeros((*x.shape[:-2], 1, x.shape[-1]), x, x.dtype)], axis=-2)

    hidden = zeros((*(1,) * (data.k.ndim - 2), 1, 1), data.k, xp.bool)
    if no_keys:
        data = data._replace(
            k=one(data.k),
            v=one(data.v),
            mask=hidden,
            log_decay=one(data.log_decay),
            restart=None,
            k_positions=one(data.k_positions),
        )
    if no_queries:
        data = data._replace(
            q=one(data.q),
            q_positions=one(data.q_positions),
            query_mask=None if causal else hidden,
        )
    return data, (no_queries, no_keys)


def report_zero(
    call: CheckedCall, zero: Array | None, rows: Any = None, group: HeadGroup | None = None
) -> None:
    """Raise if a normaliser is 0; `rows` and `group` say which queries and heads these are."""
    if not call.raises or zero is None:
        return
    if type(zero) is np.ndarray and not np.count_nonzero(zero):  # faster than any()
        return
    if not is_concrete(zero):
        if call.on_zero is None:
            return
        raise ValueError(
            'on_zero="raise" needs values that can be looked at; in traced or device code use '
            '"nan" or "zero"'
        )
    flags = as_numpy(zero)
    if not np.count_nonzero(flags):
        return
    flags = flags[..., 0]
    where = [int(x) for x in np.argwhere(flags)[0]]
    if rows is not None:
        where[-1] = int(rows[where[-1]])
    if group is not None:
        where[-2] = group.queries[where[-2]]
    index = where[1:] if call.inputs.headless else where
    chosen = call.rule.feature_map
    mask = call.data.mask
    if call.padded[1] or (mask is not None and not as_numpy(mask).any(axis=-2).all()):
        reason = "there is no key that it may see; check mask"
    else:
        reason = {
            "positive": "is positive, so features underflow; use a wider dtype, smaller inputs",
            "non-negative": "is non-negative, not positive; choose a positive map",
            "any": "has similarities of any sign, which can cancel; choose a positive map",
        }[chosen.sign]
        reason = f"{chosen} {reason}"
    count = int(flags.sum())
    raise VanishingNormalizerError(
        f"the weights of {count} {'query sums' if count == 1 else 'queries sum'} to exactly 0, the "
        f'first at index {tuple(index)}: {reason}, or pass on_zero="nan" or "zero"'
    )
