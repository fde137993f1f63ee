"""The constant-size memory of causal linear attention, as a value."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import (
    Array,
    Wide,
    as_numpy,
    astype,
    clean_blocks_only,
    constant,
    copied,
    index_dtype,
    is_array,
    library,
    namespace,
    register_pytree,
    space,
    tree,
    whole,
    wide,
    wide_add,
    wide_narrow,
)
from kerneltrick._files import read_tensors, write
from kerneltrick.attention._arguments import Inputs, check_count, check_inputs
from kerneltrick.attention._dial import (
    Dial,
    Setting,
    by_head,
    combined,
    dial_text,
    resolve,
)
from kerneltrick.attention._heads import Windows
from kerneltrick.attention._state_file import LONGEST, encoded, tensors_of
from kerneltrick.engines import (
    UNBOUNDED,
    Carry,
    Near,
    Rule,
    empty_carry,
    merge,
)


@tree
@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """U = Σ φ(k)vᵀ and Z = Σ φ(k) over tokens start … stop−1, both times exp(−log_scale).

    Made by `linear_attention(..., return_state=True)` and given back to it as `state=`; never
    changed. Sums are float64, or pairs of float32 where the library has no float64. Heads with
    different windows have a `MixedState`, which consists of states.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 100, 8))
    >>> whole = kt.linear_attention(q, k, v, causal=True)
    >>> left, state = kt.linear_attention(q[:60], k[:60], v[:60], causal=True, return_state=True)
    >>> right = kt.linear_attention(q[60:], k[60:], v[60:], causal=True, state=state)
    >>> np.allclose(whole, np.concatenate([left, right])), state.U.shape, state.stop
    (True, (8, 8), 60)
    """

    carry: Carry  # what engines continue from, with a head axis; NaN in sums marks bad columns
    start: Any
    stop: Any
    fingerprint: str  # the map, its window and scale and the shapes
    window: int = 0
    sinks: int = 0
    headless: bool = False  # whether it is shown without the head axis, as the inputs had none

    def __post_init__(self) -> None:
        if isinstance(self.sums.hi, np.ndarray):
            for x in (self.sums.hi, *(() if self.near is None else self.near)):
                x.flags.writeable = False  # a value: nobody else holds these arrays
        if library(self.sums.hi) == "jax":
            label = ("fingerprint", "window", "sinks", "headless")
            register_pytree(State, ("carry", "start", "stop"), label)

    @property
    def sums(self) -> Wide:
        """U and, as the last column, Z: (..., H, m, M + 1)."""
        return self.carry.sums

    @property
    def near(self) -> Near | None:
        """The tokens that are still near; None without window and sinks."""
        return self.carry.near

    @property
    def U(self) -> Array:
        """Σ φ(k)vᵀ · exp(−log_scale), (..., H, m, M)."""
        return self._whole()[..., :-1]

    @property
    def Z(self) -> Array:
        """Σ φ(k) · exp(−log_scale), (..., H, m)."""
        return self._whole()[..., -1]

    @property
    def log_scale(self) -> Array:
        """What U and Z are relative to, (..., H); 0 for maps without a log-scale."""
        found = self.carry.log_scale
        if found is None:
            xp, sums = space(self.sums.hi), self.shown(self.sums.hi)
            return xp.zeros_like(xp.sum(sums[..., 0], axis=-1))
        return self.shown(found)[..., 0, 0]

    @property
    def log_decay(self) -> Array:
        """Σ log-decay from start to stop, (..., H, 1 or m); −inf if the state restarted between."""
        found = self.carry.log_decay
        if found is None:
            xp, sums = space(self.sums.hi), self.shown(self.sums.hi)
            return xp.zeros_like(xp.sum(sums[..., :1], axis=-2))
        return self.shown(wide_narrow(found, found.hi.dtype))[..., 0, :]

    def shown(self, x: Array) -> Array:
        """An array of the carry, without the head axis if the inputs had none."""
        return x[..., 0, :, :] if self.headless else x

    @property
    def nbytes(self) -> int:
        """Bytes held by U and Z, and by the keys and values that are still near."""
        parts = 1 if self.sums.lo is None else 2
        itemsize = 8 if self.sums.lo is None else 4
        size = parts * itemsize * int(math.prod(self.sums.hi.shape))
        for x in () if self.near is None else (self.near.k, self.near.v):
            size += space(x).finfo(x.dtype).bits // 8 * int(math.prod(x.shape))
        return size

    @property
    def bytes_by_head(self) -> tuple[int, ...]:
        """The bytes of each key–value head, over all streams."""
        heads = int(self.sums.hi.shape[-3])
        return (self.nbytes // heads,) * heads

    @property
    def parts(self) -> tuple[State, ...]:
        """The state of each kind of head: this one, unless heads differ."""
        return (self,)

    def _whole(self) -> Array:
        whole = self.shown(wide_narrow(self.sums, self.sums.hi.dtype))
        # NumPy's are read-only; what else could be changed in place is handed out as a copy.
        return whole if isinstance(whole, np.ndarray) else copied(whole)

    def __copy__(self) -> State:
        """The same state in arrays of its own."""

        def fresh(x: Any) -> Any:
            if isinstance(x, tuple):  # Carry, Wide, Near
                return type(x)(*(fresh(y) for y in x))
            return copied(x) if is_array(x) else x

        return State(*(fresh(value) for value in self._values()))

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return State, self._values()

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        return (
            f"<State of {self.fingerprint}, tokens {self.start}:{self.stop}, "
            f"U {_u_shape(self.shown(self.sums.hi))} {library(self.sums.hi)}>"
        )

    @staticmethod
    def empty(
        feature_map: Setting,
        k: Array,
        v: Array,
        *,
        start: int = 0,
        scale: float | None = None,
        decay_width: int = 0,
        window: Windows = 0,
        sinks: int | Sequence[int] = 0,
    ) -> State:
        """The state before token `start`, for keys and values shaped like k and v.

        Give it to the second half of a document to make a state that `merge` can append, or to
        `lax.scan` as its first carry; then decay_width (1, or m for a decay per feature) makes
        room for the log-decay to come, and there is room for a whole window.
        """
        start = check_count("State.empty", "start", start)
        if start >= LONGEST:
            raise ValueError(f"State.empty needs start < 2**53, not {start}")
        inputs = check_inputs("State.empty", k, k, v)
        if by_head(feature_map, window, sinks):
            from kerneltrick.attention._mixed import empty_mixed  # which is made of states

            assert not isinstance(feature_map, Rule)
            dial = Dial(*combined("State.empty", feature_map, window, sinks))
            rest: dict[str, Any] = {"start": start, "scale": scale, "decay_width": decay_width}
            return empty_mixed(dial, inputs, functools.partial(State.empty, **rest))
        rule, _ = resolve(
            "State.empty", feature_map, inputs, scale=scale, window=window, sinks=sinks
        )
        slots = 0 if rule.window == UNBOUNDED else max(rule.window - 1, 0)
        carry = empty_carry(rule, inputs.k, inputs.v, decay_width, slots)
        print_ = fingerprint(rule, k.shape[-1], carry)
        return state_of(carry, start, start, print_, rule, inputs.headless)

    def merge(
        self,
        right: State,
        feature_map: Setting | None = None,
        *,
        scale: float | None = None,
    ) -> State:
        """The state after both stretches: `right` must start where this one stops.

        exp(right.log_decay) ⊙ U + right.U, so halves of a sequence can be summed apart. Beside a
        window, tokens that are near at the end of a half and no longer at the end of the whole go
        into the sums, by the `feature_map` and `scale` that both were made with.
        """
        if not isinstance(right, State):
            raise TypeError(f"merge needs a State, not {type(right).__name__}")
        _same_kind(self, right, "merge")
        stop, start = known_int(self.stop), known_int(right.start)
        if stop is not None and start is not None and stop != start:
            raise ValueError(
                f"merge needs adjacent states, but the left one ends at token {self.stop} and the "
                f"right one starts at {right.start}"
            )
        rule = None
        if self.near is not None:
            if right.near is None:
                raise ValueError("merge needs both states with their near tokens")
            rule = self._rule(feature_map, scale)
        carry = _marked(merge(self.carry, right.carry, rule))
        return dataclasses.replace(self, carry=carry, stop=right.stop)

    def _rule(self, feature_map: Setting | None, scale: float | None) -> Rule:
        """What adds near tokens to the sums: the map that they were made with."""
        assert self.near is not None
        if feature_map is None and self.sums.hi.shape[-2]:
            raise ValueError(
                "merge of states with a window needs the feature map, for the tokens that are no "
                f"longer near: left.merge(right, feature_map), with that of {self.fingerprint}"
            )
        if feature_map is None:
            feature_map = maps.Softmax()
        elif not isinstance(feature_map, Rule):
            feature_map = Dial.get(feature_map).feature_map
        near = self.near
        inputs = Inputs(namespace(k=near.k), near.k, near.k, near.v, self.headless)
        rule, _ = resolve("merge", feature_map, inputs, scale=scale)
        rule = dataclasses.replace(rule, window=self.window, sinks=self.sinks)
        print_ = fingerprint(rule, int(near.k.shape[-1]), self.carry)
        if print_ != self.fingerprint:
            raise ValueError(f"the states are of {self.fingerprint}, but the map given is {print_}")
        return rule

    def select(self, streams: Array) -> State:
        """The states of these streams of a batch (whole numbers, along axis 0), in this order.

        A stream may be taken several times or not at all: beams are reordered so.
        """
        if self.headless or self.sums.hi.ndim < 4:
            raise ValueError(
                f"select needs a state of a batch, (streams, heads, m, M), not of U "
                f"{_u_shape(self.shown(self.sums.hi))}"
            )

        def pick(x: Any) -> Any:
            if isinstance(x, tuple):  # Carry, Wide, Near
                return type(x)(*(pick(y) for y in x))
            return space(x).take(x, streams, axis=0) if is_array(x) else x

        return dataclasses.replace(self, carry=pick(self.carry))

    def to(self, like: Array) -> State:
        """The same state as arrays of the library and on the device of `like`."""

        xp = namespace(like=like)
        probe = wide(constant(np.zeros(1), like, xp.float32))

        def move(values: np.ndarray[Any, Any]) -> Wide:
            hi = constant(values, like, probe.hi.dtype)
            if probe.lo is None:
                return Wide(hi, None)
            rest = np.where(np.isfinite(values), values - as_numpy(hi), 0.0)
            return Wide(hi, constant(rest, like, probe.hi.dtype))

        values, log_scale, log_decay = self.sums.numpy(), None, self.carry.log_decay
        if self.carry.log_scale is not None:
            exact = as_numpy(self.carry.log_scale)
            log_scale = constant(exact, like, probe.hi.dtype)
            # Where the log-scale had to be rounded, the sums take up the difference.
            finite = np.isfinite(exact)
            gap = np.where(finite, exact, 0.0) - np.where(finite, as_numpy(log_scale), 0.0)
            values = values * np.exp(gap)
        if log_decay is not None:
            log_decay = move(log_decay.numpy())
        near = None
        if self.near is not None:
            k, v, positions, keep, count = (as_numpy(x) for x in self.near)
            whole = index_dtype(like)
            kind = probe.hi.dtype if positions.dtype.kind == "f" else whole
            near = Near(
                constant(k, like, _nearest_dtype(k, like)),
                constant(v, like, _nearest_dtype(v, like)),
                constant(positions, like, kind),
                constant(keep, like, xp.bool),
                constant(count, like, whole),
            )
        carry = Carry(move(values), log_scale, log_decay, None, near)
        return dataclasses.replace(self, carry=carry)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, which appears whole or not at all; `-` is standard output."""
        write(path, encoded(*tensors_of(self)))

    @staticmethod
    def load(path: str | os.PathLike[str], like: Array | None = None) -> State:
        """Read a state back, as NumPy arrays or as those of the library of `like`."""
        from kerneltrick.attention._mixed import state_from  # which is made of states

        state = state_from(os.fspath(path), *read_tensors(path, "state file"))
        return state if like is None else state.to(like)


def _nearest_dtype(x: Any, like: Array) -> Any:
    """The dtype of NumPy's x in the library of `like`, or the widest it has."""
    xp = space(like)
    if x.dtype == np.float64:
        return wide(constant(np.zeros(1), like, xp.float32)).hi.dtype
    return getattr(xp, str(x.dtype), xp.float32)


def fingerprint(rule: Rule, d: int, carry: Carry) -> str:
    m, width = carry.sums.hi.shape[-2:]
    text = dial_text(str(rule.feature_map), rule.window % UNBOUNDED, rule.sinks)
    return f"{text} (scale {rule.scale:.9g}, d = {d}, m = {m}, M = {width - 1})"


def state_of(carry: Carry, start: Any, stop: Any, print_: str, rule: Rule, headless: bool) -> State:
    """A state from the engines' carry."""
    return State(_marked(carry), start, stop, print_, rule.window, rule.sinks, headless)


def _marked(carry: Carry) -> Carry:
    """The carry with NaN in the columns that a NaN or inf has made bad."""
    if carry.bad is None:
        return carry
    xp, hi = space(carry.sums.hi), carry.sums.hi
    hi = xp.where(carry.bad, xp.full_like(hi, math.nan), hi)
    return carry._replace(sums=Wide(hi, carry.sums.lo), bad=None)


def carry_of(state: State, expected: Carry, print_: str, headless: bool) -> Carry:
    """The engines' carry from a state, checked against the empty carry of this call."""
    if not isinstance(state, State):
        raise TypeError(f"state must be a State, not {type(state).__name__}")
    if state.fingerprint != print_:
        raise ValueError(f"the state is of {state.fingerprint}, but this call needs {print_}")
    ours, theirs = library(state.sums.hi), library(expected.sums.hi)
    if ours != theirs:
        raise TypeError(f"the state holds {ours} arrays, the inputs are {theirs}; use state.to(q)")

    hi, lo = state.sums
    if hi.shape != expected.sums.hi.shape or state.headless != headless:
        needed = expected.sums.hi[0, ...] if headless else expected.sums.hi
        raise ValueError(
            f"the state has U {_u_shape(state.shown(hi))}, but these inputs need {_u_shape(needed)}"
        )
    xp = space(hi)
    nan = xp.isnan(hi)
    bad = None
    if not (clean_blocks_only(hi) and not bool(xp.any(nan))):
        bad = xp.any(nan, axis=-2, keepdims=True)
        hi = xp.where(nan, xp.zeros_like(hi), hi)
        lo = None if lo is None else xp.where(nan, xp.zeros_like(lo), lo)
    log_scale, sums = expected.log_scale, Wide(hi, lo)
    check_log_scale(state, log_scale is not None)
    if log_scale is not None:
        exact = state.carry.log_scale
        assert exact is not None
        log_scale = xp.astype(exact, log_scale.dtype)
        if exact.dtype != log_scale.dtype:  # the sums take up what rounding the log-scale changes
            empty = exact == -math.inf
            rounded = xp.astype(log_scale, exact.dtype)
            zero = xp.zeros_like(exact)
            gap = xp.where(empty, zero, exact) - xp.where(empty, zero, rounded)
            sums = wide_add(sums, xp.zeros_like(hi), xp.exp(gap))
    log_decay = expected.log_decay
    if state.carry.log_decay is not None:
        shape = state.carry.log_decay.hi.shape
        if log_decay is not None and log_decay.hi.shape[-1] > shape[-1]:
            shape = log_decay.hi.shape
        both = (None if x is None else xp.broadcast_to(x, shape) for x in state.carry.log_decay)
        log_decay = Wide(*both)
    near = state.near
    if near is not None:
        assert expected.near is not None
        wanted = expected.near
        for name, own, other in (("keys", near.k, wanted.k), ("values", near.v, wanted.v)):
            if own.shape[:-2] != other.shape[:-2] or own.shape[-1] != other.shape[-1]:
                raise ValueError(
                    f"the state has {name} {tuple(own.shape)} in its window, but these inputs need "
                    f"{(*other.shape[:-2], own.shape[-2], other.shape[-1])}"
                )
        near = near._replace(k=astype(near.k, wanted.k.dtype), v=astype(near.v, wanted.v.dtype))
    return Carry(sums, log_scale, log_decay, bad, near)


def check_log_scale(state: State, needed: bool) -> None:
    """ValueError unless the state has a log-scale where its map needs one, as some files have not.

    Whether it does is not in the fingerprint, and a file names maps that nobody has at hand.
    """
    if needed != (state.carry.log_scale is not None):
        has, wants = ("no", "one") if needed else ("a", "none")
        raise ValueError(
            f"the state has {has} log_scale, but {state.fingerprint} needs {wants}: it was not "
            "written by State.save"
        )


def _u_shape(sums: Array) -> tuple[int, ...]:
    return (*sums.shape[:-1], sums.shape[-1] - 1)


def _same_kind(left: State, right: State, who: str) -> None:
    if left.fingerprint != right.fingerprint:
        raise ValueError(
            f"{who} needs states of one map: left is {left.fingerprint}, right {right.fingerprint}"
        )
    if left.sums.hi.shape != right.sums.hi.shape or left.headless != right.headless:
        raise ValueError(
            f"{who} needs states of one shape: left has U "
            f"{_u_shape(left.shown(left.sums.hi))}, right {_u_shape(right.shown(right.sums.hi))}"
        )
    check_log_scale(left, right.carry.log_scale is not None)


def known_int(position: Any) -> int | None:
    """A position as a number; None while it is being traced."""
    try:
        return whole(position)  # type: ignore[no-any-return] # PyTorch's number, where it is not int
    except Exception:
        return None
