"""Linear attention of a sequence whose tokens are split over ranks, a contiguous shard on each.

Each rank sums its own shard into a `State`, all ranks exchange these, and each merges the states of
the ranks before it. Its shard then continues from the merged state like any other sequence. So one
exchange of a few states is enough, whatever the length; the gradients of the states go back the
same way. Full attention merges the states of all ranks. With a window it also needs the tokens just
ahead, which are the near tokens in the states of the shards read backwards.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils import _pytree

from kerneltrick import attention, maps
from kerneltrick._arrays import Wide, is_array
from kerneltrick.attention import Dial, Far, OnZero, Positions, State, check_window, combined
from kerneltrick.engines import UNBOUNDED, Carry, Near, merge
from kerneltrick.torch.distributed._exchange import (
    Gather,
    Group,
    Ranks,
    after,
    anchored,
    kind_of_gradients,
)

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: maps.MapLike | Dial = "elu",
    *,
    group: Group = None,
    causal: bool = False,
    scale: float | None = None,
    log_decay: Any = None,
    normalize: bool = True,
    mask: Tensor | None = None,
    query_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    positions: Positions | None = None,
    state: State | None = None,
    window: int = 0,
    sinks: int = 0,
    far: Any = None,
    return_state: bool = False,
    on_zero: OnZero | None = None,
    chunk_size: int = 64,
    engine: str = "auto",
) -> Any:
    """`kerneltrick.linear_attention` of one sequence whose tokens are split over ranks, in order.

    Every rank of `group` calls this function with its own tokens, any number of them or none, and
    gets their outputs, as computed from the whole sequence. All other arguments are those of
    `kerneltrick.linear_attention`; arrays with one entry per token are split like q, k and v.

    group
        A process group of torch.distributed, or a one-dimensional DeviceMesh such as mesh["cp"].
        The default is the group of all processes.
    state
        The state before the whole sequence, on the first rank.
    return_state
        Whether to return the state after the tokens of this rank and all before it. On the last
        rank, and in full attention on every rank, that is the state of the whole sequence.

    All ranks must run a backward pass, or none. Each rank may ask for other gradients, with
    `torch.autograd.grad` or `backward(inputs=...)`, as long as it asks for one tensor at least that
    this call depends on: its q, k or v, a weight, a decay, the state. A rank that needs none of
    them calls `backward()`.

    Calls that do not fit together are refused by all ranks before anything else is sent. If a rank
    dies or stalls, all others raise `RankError` within the timeout of the group.
    """
    chosen, window, sinks, far = combined("linear_attention", feature_map, window, sinks, far)
    window, sinks = check_window("linear_attention", chosen, window, sinks)
    if not causal and (log_decay is not None or segment_ids is not None):
        raise ValueError("log_decay and segment_ids need causal=True: full attention has no order")
    ranks = Ranks(group, q.device)
    dial = Dial(chosen, _given(chosen, window), sinks)
    with_far = Dial(chosen, dial.window, sinks, far)
    learned = (q, k, v, log_decay, *_weights(chosen, k), *_pytree.tree_leaves(state))
    options = {
        "map": dial, "far": _text_of(with_far.far), "causal": causal, "scale": scale,
        "normalize": normalize, "log_decay": _kind(log_decay, k), "mask": mask is not None,
        "segments": None if segment_ids is None else segment_ids.ndim,
        "positions": positions is not None,
        "q": (*q.shape[:-2], "n", q.shape[-1], q.dtype),
        "k": (*k.shape[:-2], "n", k.shape[-1], k.dtype),
        "v": (*v.shape[:-2], "n", v.shape[-1], v.dtype),
    }  # fmt: skip
    text = "; ".join(f"{name} {value}" for name, value in options.items())
    held = 0 if state is None or state.near is None else state.near.k.shape[-2] - sinks
    bounds = (0, 0) if state is None else (int(state.start), int(state.stop))
    flags = (state is not None) + 2 * kind_of_gradients(learned)
    shards = [
        _Shard(*row)
        for row in ranks.check_equal(text, (k.shape[-2], q.shape[-2], flags, held, *bounds))
    ]
    ranks.check_first([shard.has_state for shard in shards])
    tracked = ranks.check_gradients([shard.gradients for shard in shards])
    gain = None if with_far.far is None else with_far.far.gain
    call = _ShardedCall(
        ranks, shards, dial, chosen, scale, window, sinks, causal, k, v, mask, log_decay,
        segment_ids, positions, tracked, (*learned, gain),
    )  # fmt: skip
    rest: dict[str, Any] = {
        "scale": scale, "normalize": normalize, "on_zero": on_zero, "chunk_size": chunk_size,
        "engine": engine,
    }  # fmt: skip
    if causal:
        before, token = _before(call, state)
        output, made = attention.linear_attention(
            q, k, v, with_far, causal=True, log_decay=log_decay, mask=mask,
            segment_ids=segment_ids, positions=positions, state=before, return_state=True, **rest,
        )  # fmt: skip
    elif not (window or sinks):
        total, token = _total(call, state)
        made, none = total, slice(0, 0)
        output = attention.linear_attention(
            q, k[..., none, :], v[..., none, :], with_far, query_mask=query_mask,
            positions=call.query_positions(q), state=total, **rest,
        )  # fmt: skip
    else:
        output, made, token = _full_window(call, q, query_mask, state, with_far, rest)
    output = after(output, token)
    return (output, made) if return_state else output


class _Shard(NamedTuple):
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


class _ShardedCall(NamedTuple):
    ranks: Ranks
    shards: list[_Shard]
    dial: Dial  # without far
    feature_map: maps.FeatureMap
    scale: float | None
    window: int
    sinks: int
    causal: bool
    k: Tensor
    v: Tensor
    mask: Tensor | None
    log_decay: Any
    segment_ids: Tensor | None
    positions: Positions | None
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
        ours = type(self.feature_map).__module__.startswith("kerneltrick.maps.")
        return not ours or isinstance(self.feature_map, maps.Cosformer)

    def key_positions(self) -> Tensor:
        if self.positions is not None:
            pair = self.positions
            return pair[1] if isinstance(pair, tuple) else pair
        return torch.arange(self.start, self.start + self.k.shape[-2], device=self.k.device)

    def query_positions(self, q: Tensor) -> Positions | None:
        """The positions of queries, and of no keys."""
        if self.positions is not None:
            pair = self.positions
            own = pair[0] if isinstance(pair, tuple) else pair
        elif self.places:
            first = self.shards[0].stop + sum(x.queries for x in self.shards[: self.ranks.rank])
            own = torch.arange(first, first + q.shape[-2], device=q.device)
        else:
            return None
        return own, own[..., :0] if own.ndim == 1 else own[:1, ..., :0].reshape(0)


def _weights(feature_map: maps.FeatureMap, k: Tensor) -> list[Any]:
    """What a map may have gradients for: its arrays, and the features of a token.

    A function or a map of somebody else may hold weights where nobody finds them.
    """
    found = list(vars(feature_map).values())
    ours = type(feature_map).__module__.startswith("kerneltrick.maps.")
    if not ours or isinstance(feature_map, maps.Custom):
        found.append(feature_map.phi_key(k.new_ones(*k.shape[:-2], 1, k.shape[-1]))[0])
    return found


def _text_of(far: Far | None) -> str:
    """What ranks compare of `far`: two gains are the same if all their bits are."""
    if far is None:
        return "None"
    gain = far.gain
    known = gain is None or not is_array(gain)
    return f"gain={gain if known else maps.digest(gain)}, relative={far.relative}"


def _given(feature_map: maps.FeatureMap, window: int) -> int:
    """The window as `Dial` takes it: softmax, which is exact everywhere, has none."""
    return 0 if isinstance(feature_map, maps.Softmax) and window == UNBOUNDED else window


def _kind(log_decay: Any, k: Tensor) -> str:
    """What ranks compare of the decays: their shape, and the values of those that all share."""
    if log_decay is None or not torch.is_tensor(log_decay):
        return str(log_decay)
    if log_decay.ndim < min(2, k.ndim - 1):  # one for all, or one for each head
        return f"tensor {tuple(log_decay.shape)} of {maps.digest(log_decay)}"
    each = log_decay.shape[-1] if log_decay.ndim == k.ndim else 1
    return f"tensor of {log_decay.ndim} axes, {each} in each"


def _before(call: _ShardedCall, state: State | None) -> tuple[State | None, Tensor]:
    """The state that this rank continues from, and the token of the exchange."""
    ranks = call.ranks
    fresh = _fresh_rows(call)
    if ranks.rank + 1 == ranks.count:  # no rank continues from the last one
        own = _empty(call, call.dial, call.start)
    else:
        own = _state(call, state)
    if fresh is not None:
        assert own.carry.log_decay is not None
        total = own.carry.log_decay.hi
        total = torch.where(fresh, torch.full_like(total, -math.inf), total)
        own = _with(own, log_decay=Wide(total, None))
    used = [range(i) for i in range(ranks.count)]
    states, token = _gathered(call, own, used, call.dial, call.slots(call.window - 1))
    if ranks.rank == 0:
        return state, token
    before = _merged(states[: ranks.rank], call.dial, call.scale)
    return before if fresh is None else _emptied(before, fresh), token


def _total(call: _ShardedCall, state: State | None) -> tuple[State, Tensor]:
    """The merged state of all ranks."""
    used = [range(call.ranks.count)] * call.ranks.count
    states, token = _gathered(call, _state(call, state), used, call.dial, [])
    return _merged(states, call.dial, call.scale), token


def _full_window(
    call: _ShardedCall,
    q: Tensor,
    query_mask: Tensor | None,
    state: State | None,
    dial: Dial,
    rest: Any,
) -> tuple[Tensor, State, Tensor]:
    """Full attention with a window: the shard, the tokens just ahead of it, and sums of the rest.

    The tokens behind are the state of the shards before, as in causal attention. The tokens ahead
    are the state of the shards after, read backwards, with a window that the sinks can reach.
    """
    ranks, everyone = call.ranks, [range(call.ranks.count)] * call.ranks.count
    states, first = _gathered(
        call, _state(call, state), everyone, call.dial, call.slots(call.window - 1)
    )
    # Ahead of a query whose own key is masked, the window has one token more.
    room = call.window if call.window == UNBOUNDED else max(call.window, call.sinks) + 1
    back = Dial(call.feature_map, _given(call.feature_map, room), 0)
    shards = [x._replace(held=0) for x in call.shards]
    flipped, second = _gathered(
        call, _reversed_state(call, back), everyone, back,
        call._replace(shards=shards).slots(room - 1),
    )  # fmt: skip
    before = _merged(states[: ranks.rank], call.dial, call.scale) if ranks.rank else state
    if before is None:
        before = _empty(call, call.dial, call.start)
    k, v, n = call.k, call.v, call.k.shape[-2]
    mask, places = _whole_mask(call.mask, k), _per_token(call.key_positions(), k)
    if ranks.rank + 1 < ranks.count:
        ahead = _merged(flipped[: ranks.rank : -1], back, call.scale)
        assert ahead.near is not None
        near = Near._make(map(ahead.shown, ahead.near))
        before = _with_far(before, ahead)
        k, v = (torch.cat([x, y.flip(-2).to(x.dtype)], -2) for x, y in ((k, near.k), (v, near.v)))
        mask = torch.cat([mask, near.keep[..., 0].flip(-1)], -1)
        places = torch.cat([places, near.positions[..., 0].flip(-1).to(places.dtype)], -1)
    more = k.shape[-2] - n
    positions = None
    if call.positions is not None or call.places:
        own = call.query_positions(q)
        assert own is not None
        where = _per_token(own[0], q)
        positions = (torch.nn.functional.pad(where, (0, more)), places)
    seen = _whole_mask(query_mask, q)
    output = attention.linear_attention(
        torch.nn.functional.pad(q, (0, 0, 0, more)), k, v, dial, mask=mask,
        query_mask=torch.nn.functional.pad(seen, (0, more)), positions=positions, state=before,
        **rest,
    )  # fmt: skip
    total = _merged(states, call.dial, call.scale)
    return after(output[..., : q.shape[-2], :], first), total, second


def _whole_mask(mask: Tensor | None, x: Tensor) -> Tensor:
    """The mask for the tokens of x, (..., heads, n)."""
    if mask is None:
        return torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    return _per_token(mask, x)


def _per_token(values: Tensor, x: Tensor) -> Tensor:
    """Expand values for each token, (..., heads, n), (..., n) or (n,), to (..., heads, n)."""
    values = values.unsqueeze(-2) if x.ndim - 2 == values.ndim > 1 else values
    return values.expand(x.shape[:-1])


def _empty(call: _ShardedCall, dial: Dial, start: int) -> State:
    width = 0
    if call.log_decay is not None or call.segment_ids is not None:
        width = 1
        if torch.is_tensor(call.log_decay) and call.log_decay.ndim == call.k.ndim:
            width = call.log_decay.shape[-1]
    return State.empty(
        dial, call.k[..., :0, :], call.v[..., :0, :], start=start, scale=call.scale,
        decay_width=width,
    )  # fmt: skip


def _state(call: _ShardedCall, state: State | None) -> State:
    """The state of the tokens of this rank, after the given state on the first rank."""
    k, v = call.k, call.v
    given: dict[str, Any] = {"scale": call.scale, "mask": call.mask, "return_state": True}
    before = _empty(call, call.dial, call.start) if state is None else state
    made: State
    ordered = call.window or call.sinks or call.log_decay is not None
    if ordered or call.segment_ids is not None:
        _, made = attention.linear_attention(
            k.detach(), k, v, call.dial, causal=True, log_decay=call.log_decay,
            segment_ids=call.segment_ids, state=before, normalize=False,
            positions=None if call.positions is None else call.key_positions(), **given,
        )  # fmt: skip
    else:  # full attention of no queries: only the sums
        places = None
        if call.positions is not None:
            own = call.key_positions()
            places = (own.reshape(-1)[:0], own)
        _, made = attention.linear_attention(
            k[..., :0, :], k, v, call.dial, positions=places, state=before, on_zero="zero", **given
        )
    return made


def _reversed_state(call: _ShardedCall, dial: Dial) -> State:
    """The state of the tokens of this rank, read backwards."""
    stop = call.start + call.k.shape[-2]
    k, v = call.k.flip(-2), call.v.flip(-2)
    return attention.linear_attention(
        k.detach(), k, v, dial, causal=True, scale=call.scale, normalize=False,
        mask=None if call.mask is None else call.mask.flip(-1),
        positions=call.key_positions().flip(-1), return_state=True,
        state=_empty(call, dial, call.total - stop),
    )[1]  # fmt: skip


def _fresh_rows(call: _ShardedCall) -> Tensor | None:
    """Where a new text begins with this shard: bool, with the axes of a state."""
    ids, ranks = call.segment_ids, call.ranks
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


def _with(state: State, **arrays: Any) -> State:
    """The state with other arrays in its carry."""
    return dataclasses.replace(state, carry=state.carry._replace(**arrays))


def _merged(states: list[State], dial: Dial, scale: float | None) -> State:
    made = states[0]
    for state in states[1:]:
        made = made.merge(state, dial, scale=scale)
    return made


def _with_far(state: State, ahead: State) -> State:
    """The state plus the sums of another one, without the near tokens of that one."""
    carry = merge(state.carry._replace(near=None), ahead.carry._replace(near=None))
    return _with(state, sums=carry.sums, log_scale=carry.log_scale, log_decay=carry.log_decay)


def _gathered(
    call: _ShardedCall, own: State, used: list[range], dial: Dial, slots: list[int]
) -> tuple[list[State], Tensor]:
    """The states of all ranks, by one exchange; `slots` is the number of near tokens of each."""
    ranks = call.ranks
    near: list[Tensor] = []
    if own.near is not None:
        near = [_cut(x, dial.sinks, max(slots)) for x in own.near[:4]] + [own.near.count]
    log_scale, log_decay = own.carry.log_scale, own.carry.log_decay
    optional = [log_scale, None if log_decay is None else log_decay.hi]
    parts = [own.sums.hi, *(x for x in optional if x is not None), *near]
    anchor = anchored(call.tracked, (*call.learned, *parts))
    token, *flat = Gather.apply(ranks, used, anchor, *parts)
    states = []
    for i in range(ranks.count):
        found = flat[i * len(parts) : (i + 1) * len(parts)]
        sums, *rest = found
        carry = Carry(
            Wide(sums, None),
            None if log_scale is None else rest.pop(0),
            None if log_decay is None else Wide(rest.pop(0), None),
            None,
        )
        if rest:
            held = Near._make([*(_cut(x, dial.sinks, slots[i]) for x in rest[:4]), rest[4]])
            carry = carry._replace(near=held)
        first, stop = call.first(i), call.first(i + 1)
        if dial is not call.dial:  # read backwards
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
