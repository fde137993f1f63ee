"""A call whose heads differ: one ordinary call for each kind of head, and their states together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from kerneltrick._arrays import Array, is_array, library, register_pytree, register_tree
from kerneltrick.attention._arguments import Inputs, check_inputs
from kerneltrick.attention._dial import Dial, HeadGroup, Setting, combined, head_groups
from kerneltrick.attention._heads import (
    joined,
    numbers_text,
    of_heads,
    select,
)
from kerneltrick.attention._keywords import Options
from kerneltrick.attention._state import State
from kerneltrick.attention._state_file import MIXED, fields, whole_number
from kerneltrick.engines import Carry, Rule


class PartialCall(NamedTuple):
    """The part of a call that one kind of head has."""

    group: HeadGroup
    q: Array
    k: Array
    v: Array
    options: Options

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """The queries, keys and values of these heads."""
        return self.q, self.k, self.v


def split_call(
    who: str, q: Array, k: Array, v: Array, setting: Setting, options: Options
) -> list[PartialCall]:
    """The ordinary calls that a call with different heads consists of; one if they are alike."""
    inputs = check_inputs(who, q, k, v)
    assert not isinstance(setting, Rule)
    given = combined(who, setting, options.window, options.sinks, options.far)
    groups = head_groups(who, Dial(*given), inputs.k.shape[-3], inputs.q.shape[-3])
    plain = options._replace(window=0, sinks=0, far=None)
    if len(groups) == 1:
        own = groups[0]
        return [PartialCall(own, q, k, v, plain)]
    if options.log_decay is not None:
        raise ValueError(
            "log_decay cannot be combined with window or sinks: exact weights do not decay"
        )
    states = states_of(who, options.state, groups)
    return [
        PartialCall(
            group,
            select(q, group.queries, -3),
            select(k, group.heads, -3),
            select(v, group.heads, -3),
            _options_of(group, plain, inputs)._replace(state=state),
        )
        for group, state in zip(groups, states, strict=True)
    ]


def together(calls: Sequence[PartialCall], made: Sequence[Any], with_states: bool = False) -> Any:
    """The results of these calls as one, heads in their order: arrays, or (array, state) each."""
    if len(made) == 1:
        return made[0]
    queries = [call.group.queries for call in calls]
    if not with_states:
        return joined(made, queries)
    outputs, states = zip(*made, strict=True)
    return joined(outputs, queries), MixedState(states, [call.group.heads for call in calls])


def _options_of(group: HeadGroup, options: Options, inputs: Inputs) -> Options:
    """The options, with those entries of masks and other arrays that belong to these heads."""

    def entries(x: Any, like: Array, chosen: tuple[int, ...]) -> Any:
        per_head = is_array(x) and tuple(x.shape) == tuple(like.shape[:-1])
        return select(x, chosen, -2) if per_head else x

    q, k, positions = inputs.q, inputs.k, options.positions
    if isinstance(positions, tuple) and len(positions) == 2:
        positions = entries(positions[0], q, group.queries), entries(positions[1], k, group.heads)
    else:
        positions = entries(positions, q, group.queries)
    return options._replace(
        mask=entries(options.mask, k, group.heads),
        query_mask=entries(options.query_mask, q, group.queries),
        segment_ids=entries(options.segment_ids, k, group.heads),
        positions=positions,
    )


def states_of(who: str, state: Any, groups: tuple[HeadGroup, ...]) -> tuple[State | None, ...]:
    """The state before the call of each kind of head."""
    if state is None:
        return (None,) * len(groups)
    heads = tuple(group.heads for group in groups)
    if isinstance(state, MixedState) and state.heads == heads:
        return state.parts
    if not isinstance(state, State):
        raise TypeError(f"state must be a State, not {type(state).__name__}")
    needed = ", ".join(f"{group.dial} in heads {numbers_text(group.heads)}" for group in groups)
    raise ValueError(f"the state is of {state.fingerprint}, but {who} needs {needed}")


class MixedState(State):
    """The state of heads that differ: an ordinary `State` for each kind of head.

    `parts[i]` is the state of the key–value heads `heads[i]`. Heads that see the whole text keep
    their keys and values, all others a state of constant size.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 4, 100, 8))
    >>> _, state = kt.linear_attention(
    ...     q, k, v, "elu", causal=True, window=(16, None, 16, None), return_state=True
    ... )
    >>> state.heads, [part.nbytes for part in state.parts], state.stop
    (((0, 2), (1, 3)), [4992, 25600], 100)
    """

    heads: tuple[tuple[int, ...], ...]

    def __init__(self, parts: Iterable[State], heads: Iterable[Iterable[int]]) -> None:
        object.__setattr__(self, "_parts", tuple(parts))
        object.__setattr__(self, "heads", tuple(tuple(own) for own in heads))
        if any(library(part.sums.hi) == "jax" for part in self.parts):
            register_pytree(MixedState, ("_parts",), ("heads",))

    @property
    def parts(self) -> tuple[State, ...]:
        """The state of each kind of head."""
        found: tuple[State, ...] = self._parts  # type: ignore[attr-defined]
        return found

    @property
    def carry(self) -> Carry:
        raise AttributeError(
            "the heads of this state differ, so their sums are not one array: each of state.parts "
            "has its own"
        )

    @property
    def start(self) -> Any:
        """The first token."""
        return self.parts[0].start

    @property
    def stop(self) -> Any:
        """The token after the last one."""
        return self.parts[0].stop

    @property
    def fingerprint(self) -> str:
        """The fingerprint of each part, and its heads."""
        return "; ".join(
            f"heads {numbers_text(heads)}: {part.fingerprint}"
            for heads, part in zip(self.heads, self.parts, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def bytes_by_head(self) -> tuple[int, ...]:
        """The bytes of each key–value head, over all streams."""
        found: dict[int, int] = {}
        for own, part in zip(self.heads, self.parts, strict=True):
            found |= zip(own, part.bytes_by_head, strict=True)
        return tuple(found[head] for head in sorted(found))

    def _each(self, change: Callable[[State], State]) -> MixedState:
        return MixedState(map(change, self.parts), self.heads)

    def __copy__(self) -> MixedState:
        return self._each(copy.copy)

    def __reduce__(self) -> tuple[Any, ...]:
        return MixedState, (self.parts, self.heads)

    def __repr__(self) -> str:
        return f"<MixedState of {self.fingerprint}, tokens {self.start}:{self.stop}>"

    def merge(
        self, right: State, feature_map: Setting | None = None, *, scale: float | None = None
    ) -> MixedState:
        """The state after both stretches, as `State.merge` makes it for each part."""
        if not isinstance(right, MixedState) or right.heads != self.heads:
            kind = right.fingerprint if isinstance(right, State) else type(right).__name__
            raise ValueError(
                f"merge needs states of one map: left is {self.fingerprint}, right {kind}"
            )
        count = sum(map(len, self.heads))

        def one(own: tuple[int, ...], left: State, right: State) -> State:
            if feature_map is None or not left.sums.hi.shape[-2]:  # which has no features
                return left.merge(right, scale=scale)
            assert not isinstance(feature_map, Rule)
            mapped = of_heads(Dial.get(feature_map).feature_map, own, count)
            return left.merge(right, mapped, scale=scale)

        made = map(one, self.heads, self.parts, right.parts)
        return MixedState(made, self.heads)

    def select(self, streams: Array) -> MixedState:
        """The states of these streams of a batch, in this order."""
        return self._each(lambda part: part.select(streams))

    def to(self, like: Array) -> MixedState:
        """The same state as arrays of the library and on the device of `like`."""
        return self._each(lambda part: part.to(like))


register_tree(MixedState, ("parts", "heads"))


def empty_mixed(dial: Dial, inputs: Inputs, empty: Callable[[Dial, Array, Array], State]) -> State:
    """The state before the first token of keys and values like these, made by `empty`."""
    heads = inputs.k.shape[-3]
    groups = head_groups("State.empty", dial, heads, heads)
    if len(groups) == 1:
        return empty(groups[0].dial, inputs.restore(inputs.k), inputs.restore(inputs.v))
    made = [
        empty(group.dial, select(inputs.k, group.heads, -3), select(inputs.v, group.heads, -3))
        for group in groups
    ]
    return MixedState(made, [group.heads for group in groups])


def state_from(path: str, metadata: dict[str, str], tensors: dict[str, Any]) -> State:
    """The State that a file holds; `path` is for errors."""
    if metadata.get("format") != MIXED:
        return State(*fields(path, metadata, tensors))

    def fail(reason: str) -> ValueError:
        return ValueError(f"{path} is not a state of this package: {reason}")

    def of_part(i: int, entries: dict[str, Any]) -> dict[str, Any]:
        mark = f"{i}."
        return {x.removeprefix(mark): value for x, value in entries.items() if x.startswith(mark)}

    try:
        heads = [_heads(words) for words in metadata["heads"].split(" ")]
    except (KeyError, ValueError) as error:
        raise fail(f"missing or malformed entry {error}") from None
    every = sorted(head for own in heads for head in own)
    if len(heads) < 2 or every != list(range(len(every))):
        raise fail(f"its parts have the heads {heads}")
    known = tuple(f"{i}." for i in range(len(heads)))
    unknown = [name for name in tensors if not name.startswith(known)]
    if unknown:
        raise fail(f"unexpected tensors {sorted(unknown)}")
    parts = [
        State(*fields(path, of_part(i, metadata), of_part(i, tensors))) for i in range(len(heads))
    ]
    for own, part in zip(heads, parts, strict=True):
        lead = tuple(part.sums.hi.shape[:-2])
        expected = (*parts[0].sums.hi.shape[:-3], len(own))
        if (
            part.headless
            or lead != expected
            or (part.start, part.stop)
            != (
                parts[0].start,
                parts[0].stop,
            )
        ):
            raise fail(
                f"its parts do not belong together: one has streams and heads {lead} and tokens "
                f"{part.start}:{part.stop}, but its heads are {own}"
            )
    return MixedState(parts, heads)


def _heads(words: str) -> tuple[int, ...]:
    return tuple(whole_number(word) for word in words.split("+"))
