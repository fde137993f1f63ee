"""Linear attention of a sequence whose tokens lie on several ranks, a contiguous shard on each.

A rank sums up its own shard as a `State`, all ranks exchange these, and each merges those of the
ranks before it: that is the state after which its shard goes on as any other sequence would. So one
exchange of a few states, whatever the length, is all that there is; gradients of states go back the
same way. Full attention merges all of them; beside a window it needs the tokens just ahead too,
which are what is near in the states of the shards read backwards.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, TypeAlias

import torch

from kerneltrick import attention, maps
from kerneltrick._arrays import Wide
from kerneltrick.attention import Dial, State
from kerneltrick.attention._call import OnZero, Positions
from kerneltrick.attention._dial import check_window, combined
from kerneltrick.engines import UNBOUNDED, Near
from kerneltrick.torch.distributed._exchange import Gather, Group, Ranks, after

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
    """`kerneltrick.linear_attention` of one sequence, whose tokens are spread over ranks in order.

    Every rank of `group` calls it with its own tokens, as many as it has, even none, and gets their
    outputs: those of the whole sequence. All else is as in `kerneltrick.linear_attention`, with
    arrays that have a number for each token cut like q, k and v.

    group
        A process group of torch.distributed, by default the one of all processes, or a DeviceMesh
        of one dimension, such as mesh["cp"].
    state
        Of what comes before the whole sequence: on the first rank.
    return_state
        Also the state after the tokens of this rank and those before it: on the last rank, and in
        full attention on every one, after the whole sequence.

    All ranks must call backward, or none. Calls that do not fit together are refused by all ranks
    before anything else is sent; a rank that dies or stalls is a `RankError` in all others, within
    the timeout of the group.
    """
    chosen, window, sinks, far = combined("linear_attention", feature_map, window, sinks, far)
    window, sinks = check_window("linear_attention", chosen, window, sinks)
    if not causal and (log_decay is not None or segment_ids is not None):
        raise ValueError("log_decay and segment_ids need causal=True: full attention has no order")
    ranks = Ranks(group, q.device)
    learned = (q, k, v, log_decay, *vars(chosen).values(), *_tensors(state))
    tracked = torch.is_grad_enabled() and any(
        torch.is_tensor(x) and x.requires_grad for x in learned
    )
    dial = Dial(chosen, _given(chosen, window), sinks)
    options = {
        "map": dial, "far": far is not None, "causal": causal, "scale": scale,
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
    shards = [
        _Shard(*row)
        for row in ranks.check_equal(
            text, (k.shape[-2], q.shape[-2], (state is not None) + 2 * tracked, held, *bounds)
        )
    ]
    ranks.check_first([shard.has_state for shard in shards])
    call = _Call(
        ranks, shards, dial, chosen, scale, window, sinks, causal, k, v, mask, log_decay,
        segment_ids, positions, any(shard.tracked for shard in shards),
    )  # fmt: skip
    rest: dict[str, Any] = {
        "scale": scale, "normalize": normalize, "on_zero": on_zero, "chunk_size": chunk_size,
        "engine": engine,
    }  # fmt: skip
    with_far = Dial(chosen, dial.window, sinks, far)
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
    """What every rank says of itself before anything else."""

    keys: int
    queries: int
    flags: int  # 1: a state before it was given, 2: there will be gradients
    held: int  # tokens of the window in its initial state
    start: int  # of its initial state
    stop: int

    @property
    def has_state(self) -> int:
        return self.flags & 1

    @property
    def tracked(self) -> int:
        return self.flags & 2


class _Call(NamedTuple):
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
    tracked: bool  # whether there will be gradients, on any rank

    @property
    def start(self) -> int:
        """The number of this rank's first key."""
        return self.first(self.ranks.rank)

    def first(self, rank: int) -> int:
        return self.shards[0].stop + sum(x.keys for x in self.shards[:rank])

    @property
    def total(self) -> int:
        return self.first(self.ranks.count)

    def slots(self, room: int) -> list[int]:
        """How many tokens of a window the state of each shard holds."""
        return [max(0, min(room, x.held + x.keys)) for x in self.shards]

    @property
    def places(self) -> bool:
        """Whether the map may look at positions."""
        ours = type(self.feature_map).__module__.startswith("kerneltrick.maps.")
        return not ours or isinstance(self.feature_map, maps.Cosformer)

    def key_positions(self) -> Tensor:
        if self.positions is not None:
            pair = self.positions
            return pair[1] if isinstance(pair, tuple) else pair
        return torch.arange(self.start, self.start + self.k.shape[-2], device=self.k.device)

    def query_positions(self, q: Tensor) -> Positions | None:
        """Positions of queries beside no keys."""
        if self.positions is not None:
            pair = self.positions
            own = pair[0] if isinstance(pair, tuple) else pair
        elif self.places:
            first = self.shards[0].stop + sum(x.queries for x in self.shards[: self.ranks.rank])
            own = torch.arange(first, first + q.shape[-2], device=q.device)
        else:
            return None
        return own, own[..., :0] if own.ndim == 1 else own[:1, ..., :0].reshape(0)


def _tensors(state: State | None) -> list[Any]:
    """What of a state may have a gradient."""
    if state is None:
        return []
    near = [] if state.near is None else [state.near.k, state.near.v]
    return [state.sums.hi, *near]


def _given(feature_map: maps.FeatureMap, window: int) -> int:
    """A window as `Dial` takes it: the map that is exact by itself has none."""
    return 0 if isinstance(feature_map, maps.Softmax) and window == UNBOUNDED else window


def _kind(log_decay: Any, k: Tensor) -> str:
    if log_decay is None or not torch.is_tensor(log_decay):
        return str(log_decay)
    each = log_decay.shape[-1] if log_decay.ndim == k.ndim and log_decay.ndim else 1
    return f"tensor of {log_decay.ndim} axes, {each} in each"


def _before(call: _Call, state: State | None) -> tuple[State | None, Tensor]:
    """The state that this rank goes on from, and the token of the exchange."""
    ranks = call.ranks
    fresh = _fresh_rows(call)
    if ranks.rank + 1 == ranks.count:  # whose tokens nobody goes on from
        own = _empty(call, call.dial, call.start)
    else:
        own = _state(call, state)
    if fresh is not None:
        assert own.decay_log is not None
        gone = torch.full_like(own.decay_log.hi, -math.inf)
        own = dataclasses.replace(
            own, decay_log=Wide(torch.where(fresh, gone, own.decay_log.hi), None)
        )
    used = [range(i) for i in range(ranks.count)]
    states, token = _gathered(call, own, used, call.dial, call.slots(call.window - 1))
    if ranks.rank == 0:
        return state, token
    before = _merged(states[: ranks.rank], call.dial, call.scale)
    return before if fresh is None else _emptied(before, fresh), token


def _total(call: _Call, state: State | None) -> tuple[State, Tensor]:
    """The state of all ranks together."""
    used = [range(call.ranks.count)] * call.ranks.count
    states, token = _gathered(call, _state(call, state), used, call.dial, [])
    return _merged(states, call.dial, call.scale), token


def _full_window(
    call: _Call, q: Tensor, query_mask: Tensor | None, state: State | None, dial: Dial, rest: Any
) -> tuple[Tensor, State, Tensor]:
    """Full attention beside a window: the shard and the tokens just ahead of it, all else summed.

    What lies behind is the state of the shards before, as in causal attention. What lies ahead is
    that of the shards after, read backwards, whose window is as long as the sinks may reach.
    """
    ranks, everyone = call.ranks, [range(call.ranks.count)] * call.ranks.count
    states, first = _gathered(
        call, _state(call, state), everyone, call.dial, call.slots(call.window - 1)
    )
    # Ahead of a query whose own key is masked there is one token more in the window.
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
        near = ahead.near
        assert near is not None
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
    """A mask as x has tokens, (..., heads, n)."""
    if mask is None:
        return torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    return _per_token(mask, x)


def _per_token(values: Tensor, x: Tensor) -> Tensor:
    """What is given for each token, (..., heads, n), (..., n) or (n,), as the first of these."""
    values = values.unsqueeze(-2) if x.ndim - 2 == values.ndim > 1 else values
    return values.expand(x.shape[:-1])


def _empty(call: _Call, dial: Dial, start: int) -> State:
    width = 0
    if call.log_decay is not None or call.segment_ids is not None:
        width = 1
        if torch.is_tensor(call.log_decay) and call.log_decay.ndim == call.k.ndim:
            width = call.log_decay.shape[-1]
    return State.empty(
        dial, call.k[..., :0, :], call.v[..., :0, :], start=start, scale=call.scale,
        decay_width=width,
    )  # fmt: skip


def _state(call: _Call, state: State | None) -> State:
    """The state of this rank's own tokens, and of what the first rank was given."""
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
    else:  # full attention of no queries: sums, and nothing else
        places = None
        if call.positions is not None:
            own = call.key_positions()
            places = (own.reshape(-1)[:0], own)
        _, made = attention.linear_attention(
            k[..., :0, :], k, v, call.dial, positions=places, state=before, on_zero="zero", **given
        )
    return made


def _reversed_state(call: _Call, dial: Dial) -> State:
    """The state of this rank's own tokens read backwards."""
    stop = call.start + call.k.shape[-2]
    k, v = call.k.flip(-2), call.v.flip(-2)
    return attention.linear_attention(
        k.detach(), k, v, dial, causal=True, scale=call.scale, normalize=False,
        mask=None if call.mask is None else call.mask.flip(-1),
        positions=call.key_positions().flip(-1), return_state=True,
        state=_empty(call, dial, call.total - stop),
    )[1]  # fmt: skip


def _fresh_rows(call: _Call) -> Tensor | None:
    """Where another segment begins with this shard: bool, with the axes of a state."""
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
    """The state with nothing in these rows, where another segment begins."""

    def without(x: Any, value: float) -> Any:
        return None if x is None else torch.where(rows, torch.full_like(x, value), x)

    near = state.near
    if near is not None:
        near = near._replace(keep=near.keep & ~rows, count=without(near.count, 0))
    return dataclasses.replace(
        state, sums=Wide(without(state.sums.hi, 0), None),
        scale_log=without(state.scale_log, -math.inf), near=near,
    )  # fmt: skip


def _merged(states: list[State], dial: Dial, scale: float | None) -> State:
    made = states[0]
    for state in states[1:]:
        made = made.merge(state, dial, scale=scale)
    return made


def _with_far(state: State, ahead: State) -> State:
    """The state with the sums of another one added, whatever is near in that."""
    bare = dataclasses.replace(state, near=None, window=0, sinks=0)
    other = dataclasses.replace(
        ahead, near=None, window=0, sinks=0, start=state.stop, stop=state.stop,
        fingerprint=state.fingerprint,
    )  # fmt: skip
    return dataclasses.replace(bare.merge(other), near=state.near, window=state.window,
                               sinks=state.sinks)  # fmt: skip


def _gathered(
    call: _Call, own: State, used: list[range], dial: Dial, slots: list[int]
) -> tuple[list[State], Tensor]:
    """The states of all ranks, by one exchange; `slots` say how many near tokens each holds."""
    ranks = call.ranks
    near: list[Tensor] = []
    if own.near is not None:
        near = [_cut(x, dial.sinks, max(slots)) for x in own.near[:4]] + [own.near.count]
    optional = [own.scale_log, None if own.decay_log is None else own.decay_log.hi]
    parts = [own.sums.hi, *(x for x in optional if x is not None), *near]
    anchor = torch.zeros(1, dtype=torch.float64, requires_grad=call.tracked)
    token, *flat = Gather.apply(ranks, used, anchor, *parts)
    states = []
    for i in range(ranks.count):
        found = flat[i * len(parts) : (i + 1) * len(parts)]
        sums, *rest = found
        scale_log = rest.pop(0) if own.scale_log is not None else None
        decay = Wide(rest.pop(0), None) if own.decay_log is not None else None
        held = None
        if rest:
            held = Near._make([*(_cut(x, dial.sinks, slots[i]) for x in rest[:4]), rest[4]])
        first, stop = call.first(i), call.first(i + 1)
        if dial is not call.dial:  # read backwards
            first, stop = call.total - stop, call.total - first
        elif i == 0:
            first = call.shards[0].start
        made = dataclasses.replace(
            own, sums=Wide(sums, None), scale_log=scale_log, decay_log=decay, start=first,
            stop=stop, near=held,
        )  # fmt: skip
        states.append(made)
    return states, token


def _cut(x: Tensor, sinks: int, slots: int) -> Tensor:
    """Near tokens with so many slots for the window: unused ones come and go in front."""
    have = x.shape[-2] - sinks
    ring = x[..., sinks + max(have - slots, 0) :, :]
    room = x.new_zeros((*x.shape[:-2], max(slots - have, 0), x.shape[-1]))
    return torch.cat([x[..., :sinks, :], room, ring], dim=-2)
