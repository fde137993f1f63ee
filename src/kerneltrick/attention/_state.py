"""The constant-size memory of causal linear attention, as a value."""

from __future__ import annotations

import dataclasses
import math
import os
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
from kerneltrick._files import write
from kerneltrick.attention._arguments import check_count, check_inputs, check_scale
from kerneltrick.attention._dial import Dial, check_window, combined, dial_text
from kerneltrick.attention._state_file import LONGEST, decoded, encoded, parts
from kerneltrick.engines import (
    UNBOUNDED,
    Carry,
    KeyValues,
    Near,
    Rule,
    add_to_sums,
    concatenated,
    empty_carry,
    near_ranks,
    split_near,
)


@tree
@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """U = Σ φ(k)vᵀ and Z = Σ φ(k) over tokens start … stop−1, both times exp(−log_scale).

    Made by `linear_attention(..., return_state=True)` and given back to it as `state=`; never
    changed. Sums are float64, or pairs of float32 where the library has no float64.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 100, 8))
    >>> whole = kt.linear_attention(q, k, v, causal=True)
    >>> left, state = kt.linear_attention(q[:60], k[:60], v[:60], causal=True, return_state=True)
    >>> right = kt.linear_attention(q[60:], k[60:], v[60:], causal=True, state=state)
    >>> np.allclose(whole, np.concatenate([left, right])), state.U.shape, state.stop
    (True, (8, 8), 60)
    """

    sums: Wide  # (..., H, m, M + 1): U and, as the last column, Z
    scale_log: Array | None  # (..., H, 1, 1)
    decay_log: Wide | None  # (..., H, 1, 1 or m)
    start: Any
    stop: Any
    fingerprint: str  # the map, its window and scale and the shapes
    near: Near | None = None  # the tokens that are still near; None without window and sinks
    window: int = 0
    sinks: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.sums.hi, np.ndarray):
            for x in (self.sums.hi, *(() if self.near is None else self.near)):
                x.flags.writeable = False  # a value: nobody else holds these arrays
        if library(self.sums.hi) == "jax":
            fields = ("sums", "scale_log", "decay_log", "start", "stop", "near")
            register_pytree(State, fields, ("fingerprint", "window", "sinks"))

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
        if self.scale_log is None:
            xp = space(self.sums.hi)
            return xp.zeros_like(xp.sum(self.sums.hi[..., 0], axis=-1))
        return self.scale_log[..., 0, 0]

    @property
    def log_decay(self) -> Array:
        """Σ log-decay from start to stop, (..., H, 1 or m); −inf if the state restarted between."""
        if self.decay_log is None:
            xp = space(self.sums.hi)
            return xp.zeros_like(xp.sum(self.sums.hi[..., :1], axis=-2))
        return wide_narrow(self.decay_log, self.decay_log.hi.dtype)[..., 0, :]

    @property
    def nbytes(self) -> int:
        """Bytes held by U and Z, and by the keys and values that are still near."""
        parts = 1 if self.sums.lo is None else 2
        itemsize = 8 if self.sums.lo is None else 4
        size = parts * itemsize * int(math.prod(self.sums.hi.shape))
        for x in () if self.near is None else (self.near.k, self.near.v):
            size += space(x).finfo(x.dtype).bits // 8 * int(math.prod(x.shape))
        return size

    def _whole(self) -> Array:
        whole = wide_narrow(self.sums, self.sums.hi.dtype)
        # NumPy's are read-only; what else could be changed in place is handed out as a copy.
        return whole if isinstance(whole, np.ndarray) else copied(whole)

    def __copy__(self) -> State:
        """The same state in arrays of its own."""

        def fresh(x: Any) -> Any:
            if isinstance(x, tuple):  # Wide, Near
                return type(x)(*(fresh(part) for part in x))
            return copied(x) if is_array(x) else x

        return State(*(fresh(value) for value in self._values()))

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return State, self._values()

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))

    def __repr__(self) -> str:
        shape = tuple(self.sums.hi.shape)
        return (
            f"<State of {self.fingerprint}, tokens {self.start}:{self.stop}, "
            f"U {(*shape[:-1], shape[-1] - 1)} {library(self.sums.hi)}>"
        )

    @staticmethod
    def empty(
        feature_map: maps.MapLike | Dial,
        k: Array,
        v: Array,
        *,
        start: int = 0,
        scale: float | None = None,
        decay_width: int = 0,
        window: int = 0,
        sinks: int = 0,
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
        chosen, window, sinks, _ = combined("State.empty", feature_map, window, sinks)
        if inputs.headless and isinstance(chosen, maps.Custom):
            chosen = maps.Custom(chosen.function, flat=True)
        d = k.shape[-1]
        scale = chosen.default_scale(d) if scale is None else check_scale("State.empty", scale)
        window, sinks = check_window("State.empty", chosen, window, sinks)
        rule = Rule(chosen, scale, True, True, math.nan, 1, window=window, sinks=sinks)
        slots = 0 if window == UNBOUNDED else max(window - 1, 0)
        carry = empty_carry(rule, inputs.k, inputs.v, decay_width, slots)
        print_ = fingerprint(rule, d, carry)
        return state_of(carry, start, start, print_, rule, inputs.headless)

    def merge(
        self,
        right: State,
        feature_map: maps.MapLike | Dial | None = None,
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
        xp = namespace(left=self.sums.hi, right=right.sums.hi)
        decay = None
        if right.decay_log is not None:
            decay = wide_narrow(right.decay_log, right.decay_log.hi.dtype)
        left_shift = right_shift = log_scale = None
        if self.scale_log is not None and right.scale_log is not None:
            slowest = self.scale_log
            if decay is not None:
                slowest = slowest + xp.astype(xp.max(decay, axis=-1, keepdims=True), slowest.dtype)
            log_scale = xp.maximum(slowest, right.scale_log)
            low = xp.where(log_scale == -math.inf, xp.zeros_like(log_scale), log_scale)
            left_shift, right_shift = self.scale_log - low, xp.exp(right.scale_log - low)
        factor = decay
        if left_shift is not None:
            factor = left_shift if factor is None else factor + left_shift
        grown = right.sums
        if right_shift is not None:
            grown = wide_add(grown, xp.zeros_like(grown.hi), right_shift.mT)
        sums = wide_add(self.sums, grown.hi, None if factor is None else xp.exp(factor).mT)
        if grown.lo is not None:
            sums = wide_add(sums, grown.lo)
        decay_log = self.decay_log
        if right.decay_log is not None:
            decay_log = right.decay_log
            if self.decay_log is not None:
                decay_log = wide_add(self.decay_log, decay_log.hi)
        carry = Carry(sums, log_scale, decay_log, None)
        rule = Rule(maps.Identity(), 1.0, True, True, math.nan, 1)
        if self.near is not None:
            rule = self._rule(feature_map, scale)
            carry = _with_near(rule, self, right, carry)
        return state_of(carry, self.start, right.stop, self.fingerprint, rule, headless=False)

    def _rule(self, feature_map: maps.MapLike | Dial | None, scale: float | None) -> Rule:
        """What folds near tokens into the sums: the map that they were made with."""
        assert self.near is not None
        if feature_map is None and self.sums.hi.shape[-2]:
            raise ValueError(
                "merge of states with a window needs the feature map, for the tokens that are no "
                f"longer near: left.merge(right, feature_map), with that of {self.fingerprint}"
            )
        chosen = maps.Softmax() if feature_map is None else Dial.get(feature_map).feature_map
        if isinstance(chosen, maps.Custom) and self.sums.hi.ndim == 2:
            chosen = maps.Custom(chosen.function, flat=True)
        d = int(self.near.k.shape[-1])
        scale = chosen.default_scale(d) if scale is None else check_scale("merge", scale)
        rule = Rule(chosen, scale, True, True, math.nan, 1, window=self.window, sinks=self.sinks)
        print_ = fingerprint(rule, d, Carry(self.sums, None, None, None))
        if print_ != self.fingerprint:
            raise ValueError(f"the states are of {self.fingerprint}, but the map given is {print_}")
        return rule

    def select(self, streams: Array) -> State:
        """The states of these streams of a batch (whole numbers, along axis 0), in this order.

        A stream may be taken several times or not at all: beams are reordered so.
        """
        if self.sums.hi.ndim < 4:
            raise ValueError(
                f"select needs a state of a batch, (streams, heads, m, M), not of U "
                f"{_u_shape(self.sums.hi)}"
            )

        def pick(x: Any) -> Any:
            if isinstance(x, tuple):  # Wide, Near
                return type(x)(*(pick(part) for part in x))
            return space(x).take(x, streams, axis=0) if is_array(x) else x

        return dataclasses.replace(
            self,
            sums=pick(self.sums),
            scale_log=pick(self.scale_log),
            decay_log=pick(self.decay_log),
            near=pick(self.near),
        )

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

        values, scale = self.sums.numpy(), None
        if self.scale_log is not None:
            exact = as_numpy(self.scale_log)
            scale = constant(exact, like, probe.hi.dtype)
            # Where the log-scale had to be rounded, the sums take up the difference.
            finite = np.isfinite(exact)
            gap = np.where(finite, exact, 0.0) - np.where(finite, as_numpy(scale), 0.0)
            values = values * np.exp(gap)
        decay = None if self.decay_log is None else move(self.decay_log.numpy())
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
        return dataclasses.replace(
            self, sums=move(values), scale_log=scale, decay_log=decay, near=near
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, which appears whole or not at all; `-` is standard output."""
        write(path, encoded(*parts(self)))

    @staticmethod
    def load(path: str | os.PathLike[str], like: Array | None = None) -> State:
        """Read a state back, as NumPy arrays or as those of the library of `like`."""
        state = State(*decoded(path))
        return state if like is None else state.to(like)


def _nearest_dtype(x: Any, like: Array) -> Any:
    """The dtype of NumPy's x in the library of `like`, or the widest it has."""
    xp = space(like)
    if x.dtype == np.float64:
        return wide(constant(np.zeros(1), like, xp.float32)).hi.dtype
    return getattr(xp, str(x.dtype), xp.float32)


def _with_near(rule: Rule, left: State, right: State, carry: Carry) -> Carry:
    """The carry of merged sums with the near tokens of both: those that are still near."""
    if left.near is None or right.near is None:
        raise ValueError("merge needs both states with their near tokens")
    xp = space(left.near.k)
    headless = carry.sums.hi.ndim == 2

    def lift(x: Array) -> Array:
        return x[None, ...] if headless else x

    first, second = (Near._make([lift(x) for x in near]) for near in (left.near, right.near))
    base, held = first.count, first.keep
    if carry.log_decay is not None and right.decay_log is not None:
        restarted = lift(right.decay_log.hi) == -math.inf  # decays are refused beside a window
        base = xp.where(restarted, xp.zeros_like(base), base)
        held = held & ~restarted
    tokens = concatenated(KeyValues(*first[:3], keep=held), KeyValues(*second[:4]))
    own = near_ranks(rule, second) + base
    rank = xp.concat([near_ranks(rule, first), own], axis=-2)
    slots = tokens.k.shape[-2] - 2 * rule.sinks
    room = max(min(rule.window - 1, slots), 0)
    near, leaving = split_near(rule, tokens, rank, base + second.count, room, mixed=True)
    sums = Wide(*(None if x is None else lift(x) for x in carry.sums))
    log_scale = None if carry.log_scale is None else lift(carry.log_scale)
    made = add_to_sums(rule, Carry(sums, log_scale, None, None, near), leaving)
    if not headless:
        return made._replace(log_decay=carry.log_decay)

    def strip(x: Array | None) -> Array | None:
        return None if x is None else x[0, ...]

    return Carry(
        Wide(strip(made.sums.hi), strip(made.sums.lo)), strip(made.log_scale), carry.log_decay,
        strip(made.bad), Near._make([strip(x) for x in near]),
    )  # fmt: skip


def fingerprint(rule: Rule, d: int, carry: Carry) -> str:
    m, width = carry.sums.hi.shape[-2:]
    text = dial_text(str(rule.feature_map), rule.window % UNBOUNDED, rule.sinks)
    return f"{text} (scale {rule.scale:.9g}, d = {d}, m = {m}, M = {width - 1})"


def state_of(carry: Carry, start: Any, stop: Any, print_: str, rule: Rule, headless: bool) -> State:
    """A state from the engines' carry; columns spoiled by NaN or inf become NaN."""
    xp = space(carry.sums.hi)
    hi, lo = carry.sums
    if carry.bad is not None:
        hi = xp.where(carry.bad, xp.full_like(hi, math.nan), hi)

    def strip(x: Array | None) -> Array | None:
        return x[0, ...] if headless and x is not None else x

    decay = carry.log_decay
    if decay is not None:
        decay = Wide(strip(decay.hi), strip(decay.lo))
    near = carry.near
    if near is not None:
        near = Near._make([strip(x) for x in near])
    sums = Wide(strip(hi), strip(lo))
    return State(
        sums, strip(carry.log_scale), decay, start, stop, print_, near, rule.window, rule.sinks
    )


def carry_of(state: State, expected: Carry, print_: str, headless: bool) -> Carry:
    """The engines' carry from a state, checked against the empty carry of this call."""
    if not isinstance(state, State):
        raise TypeError(f"state must be a State, not {type(state).__name__}")
    if state.fingerprint != print_:
        raise ValueError(f"the state is of {state.fingerprint}, but this call needs {print_}")
    ours, theirs = library(state.sums.hi), library(expected.sums.hi)
    if ours != theirs:
        raise TypeError(f"the state holds {ours} arrays, the inputs are {theirs}; use state.to(q)")

    def lift(x: Array) -> Array:
        return x[None, ...] if headless else x

    hi, lo = lift(state.sums.hi), None if state.sums.lo is None else lift(state.sums.lo)
    if hi.shape != expected.sums.hi.shape:
        raise ValueError(
            f"the state has U {_u_shape(hi)}, but these inputs need {_u_shape(expected.sums.hi)}"
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
        exact = lift(state.scale_log)
        log_scale = xp.astype(exact, log_scale.dtype)
        if exact.dtype != log_scale.dtype:  # the sums take up what rounding the log-scale changes
            empty = exact == -math.inf
            rounded = xp.astype(log_scale, exact.dtype)
            zero = xp.zeros_like(exact)
            gap = xp.where(empty, zero, exact) - xp.where(empty, zero, rounded)
            sums = wide_add(sums, xp.zeros_like(hi), xp.exp(gap))
    log_decay = expected.log_decay
    if state.decay_log is not None:
        shape = lift(state.decay_log.hi).shape
        if log_decay is not None and log_decay.hi.shape[-1] > shape[-1]:
            shape = log_decay.hi.shape
        parts = [None if x is None else xp.broadcast_to(lift(x), shape) for x in state.decay_log]
        log_decay = Wide(*parts)
    near = state.near
    if near is not None:
        assert expected.near is not None
        near = Near._make([lift(x) for x in near])
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
    if needed != (state.scale_log is not None):
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
    if left.sums.hi.shape != right.sums.hi.shape:
        raise ValueError(
            f"{who} needs states of one shape: left has U {_u_shape(left.sums.hi)}, "
            f"right {_u_shape(right.sums.hi)}"
        )
    check_log_scale(left, right.scale_log is not None)


def known_int(position: Any) -> int | None:
    """A position as a number; None while it is being traced."""
    try:
        return whole(position)  # type: ignore[no-any-return] # PyTorch's number, where it is not int
    except Exception:
        return None
