"""Linear attention of a sequence whose tokens are split over ranks, a contiguous shard on each.

Each rank sums its own shard into a `State`, all ranks exchange these, and each merges the states of
the ranks before it. Its shard then continues from the merged state like any other sequence. So one
exchange of a few states is enough, whatever the length; the gradients of the states go back the
same way. Full attention merges the states of all ranks. With a window it also needs the tokens just
ahead, which are the near tokens in the states of the shards read backwards.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils import _pytree

from kerneltrick import attention, maps
from kerneltrick._arrays import is_array
from kerneltrick.attention import (
    Dial,
    Far,
    LinearAttentionKeywords,
    Options,
    State,
    by_head,
    check_inputs,
    combined,
    read_options,
    resolve,
    split_call,
    together,
    with_keywords_of,
)
from kerneltrick.engines import UNBOUNDED, Near
from kerneltrick.torch.distributed._exchange import (
    Group,
    Ranks,
    after,
    kind_of_gradients,
)
from kerneltrick.torch.distributed._shards import (
    Shard,
    ShardedCall,
    continued,
    empty_state,
    gathered,
    merged,
    reversed_state,
    state_of_all,
    state_of_shard,
    with_far_sums,
)

if TYPE_CHECKING:
    from typing import Unpack

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@with_keywords_of(attention.linear_attention, LinearAttentionKeywords)
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: maps.MapLike | Dial = "elu",
    *,
    group: Group = None,
    return_state: bool = False,
    **keywords: Unpack[LinearAttentionKeywords],
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
    who = "linear_attention"
    options = read_options(who, keywords, LinearAttentionKeywords)
    if by_head(feature_map, options.window, options.sinks):
        calls = split_call(who, q, k, v, feature_map, options)
        outputs = []
        for each in calls:
            own: Any = {x: y for x, y in each.options._asdict().items() if x in keywords}
            how: Any = {**keywords, **own, "group": group, "return_state": return_state}
            outputs.append(linear_attention(*each.arrays, each.group.dial, **how))
        return together(calls, outputs, return_state)
    state = options.state
    dial = Dial(*combined(who, feature_map, options.window, options.sinks, options.far))
    chosen = dial.feature_map
    if not options.causal and not (options.log_decay is None and options.segment_ids is None):
        raise ValueError("log_decay and segment_ids need causal=True: full attention has no order")
    ranks = Ranks(group, q.device)
    learned = (q, k, v, options.log_decay, *_weights(chosen, k), *_pytree.tree_leaves(state))
    held = 0 if state is None or state.near is None else state.near.k.shape[-2] - dial.sinks
    bounds = (0, 0) if state is None else (int(state.start), int(state.stop))
    flags = (state is not None) + 2 * kind_of_gradients(learned)
    text = _text_of_call(q, k, v, dial, options)
    shards = [
        Shard(*row)
        for row in ranks.check_equal(text, (k.shape[-2], q.shape[-2], flags, held, *bounds))
    ]
    ranks.check_first([shard.has_state for shard in shards])
    tracked = ranks.check_gradients([shard.gradients for shard in shards])
    rule, _ = resolve(who, dial, check_inputs(who, q, k, v), scale=options.scale)
    gain = None if dial.far is None else dial.far.gain
    call = ShardedCall(ranks, shards, rule, k, v, options, tracked, (*learned, gain))
    rest: dict[str, Any] = {
        name: keywords[name]
        for name in ("scale", "normalize", "on_zero", "chunk_size", "engine")
        if name in keywords
    }
    if options.causal:

        def from_state(before: State | None) -> Any:
            return attention.linear_attention(
                q,
                k,
                v,
                dial,
                causal=True,
                log_decay=options.log_decay,
                mask=options.mask,
                segment_ids=options.segment_ids,
                positions=options.positions,
                state=before,
                return_state=True,
                **rest,
            )

        output, made, token = continued(call, state, from_state)
    elif rule.all_far:
        total, token = state_of_all(call, state)
        made, none = total, slice(0, 0)
        output = attention.linear_attention(
            q,
            k[..., none, :],
            v[..., none, :],
            dial,
            query_mask=options.query_mask,
            positions=call.query_positions(q),
            state=total,
            **rest,
        )
    else:
        output, made, token = _full_window(call, q, state, dial, rest)
    output = after(output, token)
    return (output, made) if return_state else output


def _text_of_call(q: Tensor, k: Tensor, v: Tensor, dial: Dial, options: Options) -> str:
    """What all ranks must agree on."""
    ids = options.segment_ids
    said = {
        "map": dataclasses.replace(dial, far=None),
        "far": _text_of(dial.far),
        "causal": options.causal,
        "scale": options.scale,
        "normalize": options.normalize,
        "log_decay": _kind(options.log_decay, k),
        "mask": options.mask is not None,
        "segments": None if ids is None else ids.ndim,
        "positions": options.positions is not None,
        "q": (*q.shape[:-2], "n", q.shape[-1], q.dtype),
        "k": (*k.shape[:-2], "n", k.shape[-1], k.dtype),
        "v": (*v.shape[:-2], "n", v.shape[-1], v.dtype),
    }
    return "; ".join(f"{name} {value}" for name, value in said.items())


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


def _kind(log_decay: Any, k: Tensor) -> str:
    """What ranks compare of the decays: their shape, and the values of those that all share."""
    if log_decay is None or not torch.is_tensor(log_decay):
        return str(log_decay)
    if log_decay.ndim < min(2, k.ndim - 1):  # one for all, or one for each head
        return f"tensor {tuple(log_decay.shape)} of {maps.digest(log_decay)}"
    each = log_decay.shape[-1] if log_decay.ndim == k.ndim else 1
    return f"tensor of {log_decay.ndim} axes, {each} in each"


def _full_window(
    call: ShardedCall, q: Tensor, state: State | None, dial: Dial, rest: Any
) -> tuple[Tensor, State, Tensor]:
    """Full attention with a window: the shard, the tokens just ahead of it, and sums of the rest.

    The tokens behind are the state of the shards before, as in causal attention. The tokens ahead
    are the state of the shards after, read backwards, with a window that the sinks can reach.
    """
    ranks, everyone = call.ranks, [range(call.ranks.count)] * call.ranks.count
    states, first = gathered(
        call, state_of_shard(call, state), everyone, call.rule, call.slots(call.rule.window - 1)
    )
    # Ahead of a query whose own key is masked, the window has one token more.
    window, sinks = call.rule.window, call.rule.sinks
    room = window if window == UNBOUNDED else max(window, sinks) + 1
    back = dataclasses.replace(call.rule, window=room, sinks=0)
    slots = call._replace(shards=[x._replace(held=0) for x in call.shards]).slots(room - 1)
    flipped, second = gathered(call, reversed_state(call, back), everyone, back, slots)
    before = merged(states[: ranks.rank], call.rule) if ranks.rank else state
    if before is None:
        before = empty_state(call, call.rule, call.start)
    k, v, n = call.k, call.v, call.k.shape[-2]
    mask, places = _whole_mask(call.options.mask, k), _per_token(call.key_positions(), k)
    if ranks.rank + 1 < ranks.count:
        ahead = merged(flipped[: ranks.rank : -1], back)
        assert ahead.near is not None
        near = Near._make(map(ahead.shown, ahead.near))
        before = with_far_sums(before, ahead)
        k, v = (torch.cat([x, y.flip(-2).to(x.dtype)], -2) for x, y in ((k, near.k), (v, near.v)))
        mask = torch.cat([mask, near.keep[..., 0].flip(-1)], -1)
        places = torch.cat([places, near.positions[..., 0].flip(-1).to(places.dtype)], -1)
    more = k.shape[-2] - n
    positions = None
    if call.options.positions is not None or call.places:
        own = call.query_positions(q)
        assert own is not None
        where = _per_token(own[0], q)
        positions = (torch.nn.functional.pad(where, (0, more)), places)
    seen = _whole_mask(call.options.query_mask, q)
    output = attention.linear_attention(
        torch.nn.functional.pad(q, (0, 0, 0, more)),
        k,
        v,
        dial,
        mask=mask,
        query_mask=torch.nn.functional.pad(seen, (0, more)),
        positions=positions,
        state=before,
        **rest,
    )
    total = merged(states, call.rule)
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
