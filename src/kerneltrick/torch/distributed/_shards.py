"""The states of shards: each rank's own, exchanged and merged."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from kerneltrick import attention
from kerneltrick._arrays import Wide
from kerneltrick.attention import Options, Positions, State
from kerneltrick.engines import Carry, Near, Rule, merge
from kerneltrick.torch.distributed._exchange import (
    Gather,
    Ranks,
    anchored,
    exchanged,
    instead,
    sooner,
)

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


class Shard(NamedTuple):
    """What every rank tells the others first."""

    keys: int
    queries: int
    flags: int  # bit 0: it was given a state; the others: `kind_of_gradients`
    held: int  # tokens of the window in its initial state
    start: int  # start and stop of its initial state
    stop: int

    @property
    def has_state(self) -> int:
        return self.flags & 1

    @property
    def gradients(self) -> int:
        return self.flags >> 1


class ShardedCall(NamedTuple):
    ranks: Ranks
    shards: list[Shard]
    rule: Rule
    k: Tensor
    v: Tensor
    options: Options
    tracked: bool  # whether any rank will compute gradients
    learned: tuple[Any, ...]  # what somebody may ask a gradient for

    @property
    def start(self) -> int:
        """The number of the first key of this rank."""
        return self.first(self.ranks.rank)

    def first(self, rank: int) -> int:
        return self.shards[0].stop + sum(x.keys for x in self.shards[:rank])

    @property
    def total(self) -> int:
        return self.first(self.ranks.count)

    def slots(self, room: int) -> list[int]:
        """The number of window tokens in the state of each shard."""
        return [max(0, min(room, x.held + x.keys)) for x in self.shards]

    @property
    def places(self) -> bool:
        """Whether the map may use positions."""
        feature_map = self.rule.feature_map
        ours = type(feature_map).__module__.startswith("kerneltrick.maps.")
        return not ours or feature_map.uses_positions

    def key_positions(self) -> Tensor:
        if self.options.positions is not None:
            pair = self.options.positions
            return pair[1] if isinstance(pair, tuple) else pair
        return torch.arange(self.start, self.start + self.k.shape[-2], device=self.k.device)

    def query_positions(self, q: Tensor) -> Positions | None:
        """The positions of queries, and of no keys."""
        if self.options.positions is not None:
            pair = self.options.positions
            own = pair[0] if isinstance(pair, tuple) else pair
        elif self.places:
            first = self.shards[0].stop + sum(x.queries for x in self.shards[: self.ranks.rank])
            own = torch.arange(first, first + q.shape[-2], device=q.device)
        else:
            return None
        return own, own[..., :0] if own.ndim == 1 else own[:1, ..., :0].reshape(0)


def continued(
    call: ShardedCall,
    state: State | None,
    from_state: Callable[[State | None], tuple[Tensor, State]],
) -> tuple[Tensor, State, Tensor]:
    """What `from_state` makes of the state before this rank, and the token of the exchange."""
    own = empty_state(call, call.rule, call.start)
    if all(x is None for x in (own.carry.log_scale, own.carry.log_decay, own.near)):
        return _continued_sums(call, own, state, from_state)
    before, token = _state_before(call, own, state)
    return *from_state(before), token


def _continued_sums(
    call: ShardedCall,
    own: State,
    state: State | None,
    from_state: Callable[[State | None], tuple[Tensor, State]],
) -> tuple[Tensor, State, Tensor]:
    """`continued` where a state is nothing but sums, so that what tokens add does not depend on it.

    The state of the shard then has the gradient that `from_state` gives for the state after it. In
    the backward pass each rank first computes the gradient of the state before it, alone; then the
    ranks exchange these; then each has all that its other gradients depend on.
    """
    rank, last = call.ranks.rank, call.ranks.count - 1
    used = [range(i) for i in range(last + 1)]
    with torch.no_grad():
        if rank < last:  # no rank continues from the last one
            own = state_of_shard(call, state)
        found = exchanged(call.ranks, [own.sums.hi])
        states, token = gathered(call, own, used, call.rule, [], found)
        before = merged(states[:rank], call.rule) if rank else state
    if not call.tracked:
        return *from_state(before), token
    if rank:
        assert before is not None
        leaf = before.sums.hi.detach().requires_grad_()
        before = _with_sums(before, leaf)
    output, made = from_state(before)
    if rank < last and made.sums.hi.requires_grad:
        own = _with_sums(own, instead(own.sums.hi, made.sums.hi))
    states, token = gathered(call, own, used, call.rule, [], found)
    if rank:
        source = merged(states[:rank], call.rule).sums.hi
        output, sums = sooner(leaf, source, (output, made.sums.hi))
        made = _with_sums(made, sums)
    return output, made, token


def _state_before(
    call: ShardedCall, empty: State, state: State | None
) -> tuple[State | None, Tensor]:
    """The state that this rank continues from, and the token of the exchange."""
    ranks = call.ranks
    fresh = _fresh_rows(call)
    # No rank continues from the last one.
    own = empty if ranks.rank + 1 == ranks.count else state_of_shard(call, state)
    if fresh is not None:
        assert own.carry.log_decay is not None
        total = own.carry.log_decay.hi
        total = torch.where(fresh, torch.full_like(total, -math.inf), total)
        own = _with(own, log_decay=Wide(total, None))
    used = [range(i) for i in range(ranks.count)]
    states, token = gathered(call, own, used, call.rule, call.slots(call.rule.window - 1))
    if ranks.rank == 0:
        return state, token
    before = merged(states[: ranks.rank], call.rule)
    return before if fresh is None else _emptied(before, fresh), token


def state_of_all(call: ShardedCall, state: State | None) -> tuple[State, Tensor]:
    """The merged state of all ranks."""
    used = [range(call.ranks.count)] * call.ranks.count
    states, token = gathered(call, state_of_shard(call, state), used, call.rule, [])
    return merged(states, call.rule), token


def empty_state(call: ShardedCall, rule: Rule, start: int) -> State:
    width, log_decay = 0, call.options.log_decay
    if log_decay is not None or call.options.segment_ids is not None:
        width = 1
        if torch.is_tensor(log_decay) and log_decay.ndim == call.k.ndim:
            width = log_decay.shape[-1]
    k, v = call.k[..., :0, :], call.v[..., :0, :]
    return State.empty(rule, k, v, start=start, decay_width=width)


def state_of_shard(call: ShardedCall, state: State | None) -> State:
    """The state of the tokens of this rank, after the given state on the first rank."""
    k, v = call.k, call.v
    options, positions = call.options, call.options.positions
    before = empty_state(call, call.rule, call.start) if state is None else state
    made: State
    ordered = not call.rule.all_far or options.log_decay is not None
    if ordered or options.segment_ids is not None:
        _, made = attention.linear_attention(
            k.detach(),
            k,
            v,
            call.rule,
            causal=True,
            log_decay=options.log_decay,
            normalize=False,
            mask=options.mask,
            segment_ids=options.segment_ids,
            positions=None if positions is None else call.key_positions(),
            state=before,
            return_state=True,
        )
    else:  # full attention of no queries: only the sums
        places = None
        if positions is not None:
            own = call.key_positions()
            places = (own.reshape(-1)[:0], own)
        _, made = attention.linear_attention(
            k[..., :0, :],
            k,
            v,
            call.rule,
            mask=options.mask,
            positions=places,
            state=before,
            on_zero="zero",
            return_state=True,
        )
    return made


def reversed_state(call: ShardedCall, rule: Rule) -> State:
    """The state of the tokens of this rank, read backwards."""
    stop, mask = call.start + call.k.shape[-2], call.options.mask
    k, v = call.k.flip(-2), call.v.flip(-2)
    return attention.linear_attention(
        k.detach(),
        k,
        v,
        rule,
        causal=True,
        normalize=False,
        mask=None if mask is None else mask.flip(-1),
        positions=call.key_positions().flip(-1),
        state=empty_state(call, rule, call.total - stop),
        return_state=True,
    )[1]


def _fresh_rows(call: ShardedCall) -> Tensor | None:
    """Where a new text begins with this shard: bool, with the axes of a state."""
    ids, ranks = call.options.segment_ids, call.ranks
    if ids is None:
        return None
    n, shape = ids.shape[-1], (2, *ids.shape[:-1])
    ends = torch.zeros(shape, dtype=torch.int64, device=ids.device)
    if n:
        ends = torch.stack([ids[..., 0], ids[..., -1]]).to(torch.int64)
    found = ranks.gather(ends)
    earlier = [i for i in range(ranks.rank) if call.shards[i].keys]
    fresh = torch.zeros(shape[1:], dtype=torch.bool, device=ids.device)
    if n and earlier:
        fresh = found[earlier[-1]][1] != ends[0]
    axes = 2 if ids.ndim == call.k.ndim - 1 else 3
    return fresh.reshape(*fresh.shape, *(1,) * min(axes, call.k.ndim))


def _emptied(state: State, rows: Tensor) -> State:
    """The state with these rows emptied, because a new text begins there."""

    def without(x: Any, value: float) -> Any:
        return None if x is None else torch.where(rows, torch.full_like(x, value), x)

    near = state.near
    if near is not None:
        near = near._replace(keep=near.keep & ~rows, count=without(near.count, 0))
    sums, log_scale = without(state.sums.hi, 0), without(state.carry.log_scale, -math.inf)
    return _with(state, sums=Wide(sums, None), log_scale=log_scale, near=near)


def _with_sums(state: State, sums: Tensor) -> State:
    return _with(state, sums=Wide(sums, None))


def _with(state: State, **arrays: Any) -> State:
    """The state with other arrays in its carry."""
    return dataclasses.replace(state, carry=state.carry._replace(**arrays))


def merged(states: list[State], rule: Rule) -> State:
    return functools.reduce(lambda left, right: left.merge(right, rule), states)


def with_far_sums(state: State, ahead: State) -> State:
    """The state plus the sums of another one, without the near tokens of that one."""
    carry = merge(state.carry._replace(near=None), ahead.carry._replace(near=None))
    return _with(state, sums=carry.sums, log_scale=carry.log_scale, log_decay=carry.log_decay)


def gathered(
    call: ShardedCall,
    own: State,
    used: list[range],
    rule: Rule,
    slots: list[int],
    found: list[Tensor] | None = None,
) -> tuple[list[State], Tensor]:
    """The states of all ranks, by one exchange; `slots` is the number of near tokens of each.

    `found`: their arrays, if they were exchanged before.
    """
    ranks = call.ranks
    near: list[Tensor] = []
    if own.near is not None:
        near = [_cut(x, rule.sinks, max(slots)) for x in own.near[:4]] + [own.near.count]
    log_scale, log_decay = own.carry.log_scale, own.carry.log_decay
    optional = [log_scale, None if log_decay is None else log_decay.hi]
    parts = [own.sums.hi, *(x for x in optional if x is not None), *near]
    anchor = anchored(call.tracked, (*call.learned, *parts))
    token, *flat = Gather.apply(ranks, used, anchor, found, *parts)
    states = []
    for i in range(ranks.count):
        sums, *rest = flat[i * len(parts) : (i + 1) * len(parts)]
        carry = Carry(
            Wide(sums, None),
            None if log_scale is None else rest.pop(0),
            None if log_decay is None else Wide(rest.pop(0), None),
            None,
        )
        if rest:
            held = Near._make([*(_cut(x, rule.sinks, slots[i]) for x in rest[:4]), rest[4]])
            carry = carry._replace(near=held)
        first, stop = call.first(i), call.first(i + 1)
        if rule is not call.rule:  # read backwards
            first, stop = call.total - stop, call.total - first
        elif i == 0:
            first = call.shards[0].start
        states.append(dataclasses.replace(own, carry=carry, start=first, stop=stop))
    return states, token


def _cut(x: Tensor, sinks: int, slots: int) -> Tensor:
    """Cut or pad near tokens to `slots` slots for the window; unused ones are in front."""
    have = x.shape[-2] - sinks
    ring = x[..., sinks + max(have - slots, 0) :, :]
    room = x.new_zeros((*x.shape[:-2], max(slots - have, 0), x.shape[-1]))
    return torch.cat([x[..., :sinks, :], room, ring], dim=-2)
