"""Decoding: one token at a time for a batch of streams, with a state that does not grow."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array, Wide, as_numpy, constant, is_array
from kerneltrick.attention._arguments import VanishingNormalizerError, check_count, check_on_zero
from kerneltrick.attention._call import check_call
from kerneltrick.attention._dial import Dial, HeadGroup, combined
from kerneltrick.attention._heads import Windows, places
from kerneltrick.attention._keywords import OnZero, Options
from kerneltrick.attention._linear import linear_attention
from kerneltrick.attention._mixed import MixedState, states_of
from kerneltrick.attention._state import State, state_of
from kerneltrick.engines import Carry, decoder, in_lines

DTYPES = ("float16", "bfloat16", "float32", "float64")


class _HeadDecoder(NamedTuple):
    """The decoder of heads that attend alike, and where these heads are."""

    decoder: Decoder
    group: HeadGroup
    heads: Any
    queries: Any


class Decoder:
    """Linear attention a token at a time: U ← a⊙U + φ(k)vᵀ, Z ← a⊙Z + φ(k), o = φ(q)ᵀU / φ(q)ᵀZ.

    `shape` is the shape of the streams and key heads, (..., H_kv); q has `groups` times as many
    heads. The state is kept in float64 and changed in place, so a step costs one pass over it,
    whatever came before; there are no gradients. `state` continues a prompt that
    `linear_attention(..., return_state=True)` has read; `snapshot()` gives the state back.

    Steps that several threads take with one decoder come one after the other. Copies, and the child
    of a fork between steps, go on by themselves; to send a decoder elsewhere, save its snapshot.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 16))  # 2 heads, 100 tokens
    >>> whole = kt.linear_attention(q, k, v, "elu", causal=True)
    >>> _, state = kt.linear_attention(
    ...     q[:, :99], k[:, :99], v[:, :99], "elu", causal=True, return_state=True
    ... )
    >>> decoder = kt.Decoder("elu", shape=(2,), d=16, dtype="float64", state=state)
    >>> bool(np.allclose(decoder.step(q[:, 99], k[:, 99], v[:, 99]), whole[:, 99]))
    True
    >>> decoder.snapshot().stop
    100
    """

    def __init__(
        self,
        feature_map: maps.MapLike | Dial = "elu",
        *,
        shape: tuple[int, ...],
        d: int,
        value_width: int | None = None,
        groups: int = 1,
        dtype: Any = "float32",
        scale: float | None = None,
        normalize: bool = True,
        on_zero: OnZero = "raise",
        decay: int = 0,
        window: Windows = 0,
        sinks: int | Sequence[int] = 0,
        far: Any = None,
        state: State | None = None,
    ) -> None:
        """`decay`: how many log-decays a step takes for each key head: 0, 1 or one per feature.

        `dtype` is that of q, k and v: a name, or NumPy's, PyTorch's or JAX's own. NumPy has no
        bfloat16; give float32 arrays to a decoder of bfloat16.
        `window`, `sinks` and `far` are those of `linear_attention`; heads may differ.
        """
        who = "Decoder"
        self.shape = tuple(check_count(who, "shape", size) for size in shape)
        if not self.shape:
            raise ValueError("Decoder needs shape=(..., key heads), for example (8, 32)")
        self.d = check_count(who, "d", d, least=1)
        width = self.d if value_width is None else value_width
        self.value_width = check_count(who, "value_width", width)
        self.groups = check_count(who, "groups", groups, least=1)
        self.dtype = dtype_name_of(dtype)
        check_on_zero(on_zero)
        self.on_zero, self.normalize, self.scale = on_zero, bool(normalize), scale
        self.feature_map, *near = combined(who, feature_map, window, sinks, far)
        self.window, self.sinks, self.far, self.whole, self.bare = near
        if state is not None and not isinstance(state, State):
            raise TypeError(f"state must be a State, not {type(state).__name__}")
        self._start = 0 if state is None else state.start
        self._stop = 0 if state is None else state.stop
        self._lock = threading.Lock()  # held while the state changes, or is read
        self._compute = np.float64 if self.dtype == "float64" else np.float32
        # NumPy has no bfloat16, so such tokens come as float32. A dtype is quicker to compare than
        # its name.
        self._given = np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)
        m = self.feature_map.dim(self.d)
        if isinstance(decay, bool) or decay not in (0, 1, m):
            raise ValueError(
                f"Decoder needs decay to be 0, 1 or {m} (one per feature), not {decay!r}"
            )
        self.decay = int(decay)
        queries = (*self.shape[:-1], self.shape[-1] * self.groups)
        self._shapes = ((*queries, self.d), (*self.shape, self.d), (*self.shape, self.value_width))
        self._out_shape = (*queries, self.value_width)
        self._decay_shape = self.shape if self.decay == 1 else (*self.shape, self.decay)
        self._parts: list[_HeadDecoder] = []  # if heads differ, a decoder for each kind of head
        dial = Dial(self.feature_map, self.window, self.sinks, None, self.whole, self.bare)
        if dial.by_head:
            self._split(state)
        else:
            self._load(state)

    def _split(self, state: State | None) -> None:
        """Make a decoder for each kind of head; if there is only one kind, become that."""
        dial = Dial(*self._setting())
        groups = dial.groups(self.shape[-1], self.shape[-1] * self.groups)
        if len(groups) == 1:
            own = groups[0].dial
            self.feature_map, self.window, self.sinks = own.feature_map, own.window, own.sinks
            self.far, self.whole, self.bare = own.far, (), ()
            self._load(state)
            return
        for group, before in zip(groups, states_of("Decoder", state, groups), strict=True):
            made = self._like(group.dial, (*self.shape[:-1], len(group.heads)), before)
            self._parts.append(
                _HeadDecoder(made, group, places(group.heads), places(group.queries))
            )

    def _load(self, state: State | None) -> None:
        q, k, v = (np.ones((*x[:-1], 1, x[-1]), self._compute) for x in self._shapes)
        log_decay = None
        if self.decay:
            token = (*self.shape, 1) if self.decay == 1 else (*self.shape, 1, self.decay)
            log_decay = np.zeros(token, self._compute)
        options = Options(
            causal=True,
            scale=self.scale,
            log_decay=log_decay,
            normalize=self.normalize,
            state=None if state is None else state.to(q),
            on_zero=self.on_zero,
            window=self.window,
            sinks=self.sinks,
            far=self.far,
            chunk_size=1,
        )
        call = check_call("Decoder", q, k, v, self.feature_map, options)
        carry = call.data.carry
        total, bad = carry.log_decay, np.zeros((*self.shape, 1, self.value_width + 1), np.uint8)
        self._earlier = None if total is None else total.hi  # Σ log-decay of `state`
        if carry.bad is not None:
            bad[...] = carry.bad
        # The buffers that every step changes in place.
        self._sums = in_lines(carry.sums.hi)
        self._scales = None if carry.log_scale is None else np.array(carry.log_scale, order="C")
        self._total = np.zeros((*self.shape, 1, self.decay))  # Σ log-decay since
        self._bad = bad
        self._fingerprint = call.fingerprint
        self._near, self._rule = carry.near, call.rule
        self._steps = decoder(
            call.rule, call.data, self._given.name, self._sums, self._scales, self._total, bad
        )

    def step(
        self,
        q: Annotated[Array, "(..., H_q, d)"],
        k: Annotated[Array, "(..., H, d)"],
        v: Annotated[Array, "(..., H, M)"],
        log_decay: Annotated[Any, "(), (..., H) or (..., H, m)"] = None,
    ) -> Annotated[Array, "(..., H_q, M)"]:
        """The next token: q (..., H_q, d), k (..., H, d), v (..., H, M) → output (..., H_q, M)."""
        arrays = [x if type(x) is np.ndarray else values_of(x) for x in (q, k, v)]
        for x, shape in zip(arrays, self._shapes, strict=True):
            if x.shape != shape:
                self._refuse(arrays)
            if x.dtype != self._given:
                raise TypeError(
                    f"this decoder computes with {self.dtype}, but q, k, v are "
                    f"{', '.join(str(y.dtype) for y in arrays)}; cast them, or say dtype="
                )
        if (log_decay is None) != (self.decay == 0):
            raise ValueError(
                f"this decoder was made with decay={self.decay}: "
                f"{'every step needs a' if self.decay else 'a step takes no'} log_decay"
            )
        if log_decay is not None:
            log_decay = check_step_decay(log_decay, self._decay_shape, self._compute)
        with self._lock:
            position = self._stop
            self.feature_map.check_positions(self._start, position)
            out, vanished = self._advance(arrays, log_decay)
        if vanished and self.on_zero in ("raise", None):
            raise VanishingNormalizerError(
                f"the weights of a query sum to exactly 0 at token {position} (which the "
                f"state now has): choose a positive map instead of {self.feature_map}, or "
                f'on_zero="nan" or "zero"'
            )
        return out if type(q) is np.ndarray else constant(out, q)

    def _advance(self, arrays: list[Any], log_decay: Any) -> tuple[Any, bool]:
        """Take a step, and say whether a normaliser was 0."""
        if self._parts:
            out, vanished = np.empty(self._out_shape, self._given), False
            for part in self._parts:
                chosen = (part.queries, part.heads, part.heads)
                own = [x[..., i, :] for x, i in zip(arrays, chosen, strict=True)]
                out[..., part.queries, :], zero = part.decoder._advance(own, None)
                vanished = vanished or zero
        elif self._steps is None:
            out, vanished = self._step_by_engine(arrays, log_decay)
        else:
            out = np.empty(self._out_shape, self._given)
            flat = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in arrays]
            vanished = not self._steps.step(self._stop, *flat, out, log_decay)
        self._stop += 1
        return out, vanished

    def _step_by_engine(self, arrays: list[Any], log_decay: Any) -> tuple[Any, bool]:
        """For maps that are not compiled in, and where nothing is: the recurrent engine."""
        q, k, v = (x[..., None, :] for x in arrays)
        token = log_decay
        if log_decay is not None:
            token = log_decay[..., None] if self.decay == 1 else log_decay[..., None, :]

        def run(on_zero: OnZero) -> tuple[Any, State]:
            return linear_attention(
                q,
                k,
                v,
                self.feature_map,
                causal=True,
                scale=self.scale,
                log_decay=token,
                normalize=self.normalize,
                state=self._state(),
                return_state=True,
                window=self.window,
                sinks=self.sinks,
                far=self.far,
                on_zero=on_zero,
                engine="recurrent",
            )

        vanished = False
        try:
            out, state = run(self.on_zero)
        except VanishingNormalizerError:
            vanished = True
            out, state = run("nan")
        nan = np.isnan(state.sums.hi)
        self._sums[...] = np.where(nan, 0, state.sums.hi)
        self._bad[...] = nan.any(axis=-2, keepdims=True)
        if self._scales is not None:
            self._scales[...] = state.carry.log_scale
        if log_decay is not None:
            self._total += log_decay.reshape(self._total.shape)
        self._near = state.near
        return out[..., 0, :], vanished

    def _refuse(self, arrays: list[Any]) -> None:
        raise ValueError(
            f"this decoder takes q, k and v of shapes {self._shapes} for each token, not "
            f"{', '.join(str(x.shape) for x in arrays)}"
        )

    def snapshot(self) -> State:
        """The state after the last step, as a value of its own."""
        with self._lock:
            return self._state()

    def _state(self) -> State:
        if self._parts:
            parts = [part.decoder._state() for part in self._parts]
            return MixedState(parts, [part.group.heads for part in self._parts])
        total = None
        if self._earlier is not None:  # with a decay there is one, of zeros if need be
            total = Wide(self._earlier + self._total if self.decay else self._earlier.copy(), None)
        scales = None if self._scales is None else self._scales.copy()
        bad = self._bad.astype(bool) if self._bad.any() else None
        near = self._near if self._steps is None else self._steps.near()
        carry = Carry(Wide(self._sums.copy(), None), scales, total, bad, near)
        return state_of(carry, self._start, self._stop, self._fingerprint, self._rule, False)

    @property
    def stop(self) -> int:
        """How many tokens there were, those of `state` included."""
        return int(self._stop)

    @property
    def compiled(self) -> bool:
        """Whether the compiled core takes the steps; otherwise the recurrent engine does."""
        if self._parts:
            return all(part.decoder.compiled for part in self._parts)
        return self._steps is not None

    @property
    def nbytes(self) -> int:
        """The bytes of the state: a step reads all, and writes them but for the near tokens."""
        if self._parts:
            return sum(part.decoder.nbytes for part in self._parts)
        if self._steps is not None:
            return int(self._sums.nbytes) + self._steps.near_bytes
        near = () if self._near is None else (self._near.k, self._near.v)
        return int(self._sums.nbytes) + sum(int(x.nbytes) for x in near)

    def __repr__(self) -> str:
        return (
            f"<Decoder of {self.snapshot().fingerprint}, tokens {self._start}:{self._stop}, "
            f"streams and heads {self.shape} {self.dtype}>"
        )

    def __copy__(self) -> Decoder:
        return self._again(self.feature_map)

    def __deepcopy__(self, memo: dict[int, Any]) -> Decoder:
        return self._again(copy.deepcopy(self.feature_map, memo))

    def _again(self, feature_map: maps.FeatureMap) -> Decoder:
        """Another decoder that goes on from here."""
        return self._like(Dial(feature_map, *self._setting()[1:]), self.shape, self.snapshot())

    def _setting(self) -> tuple[Any, ...]:
        """The fields of the dial of this decoder."""
        return self.feature_map, self.window, self.sinks, self.far, self.whole, self.bare

    def _like(self, dial: Dial, shape: tuple[int, ...], state: State | None) -> Decoder:
        """A decoder with the same keywords but for these."""
        return Decoder(
            dial,
            shape=shape,
            d=self.d,
            value_width=self.value_width,
            groups=self.groups,
            dtype=self.dtype,
            scale=self.scale,
            normalize=self.normalize,
            on_zero=self.on_zero,
            decay=self.decay,
            state=state,
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a Decoder is not pickled; save decoder.snapshot().save(path), and continue with "
            "Decoder(..., state=State.load(path))"
        )


def check_step_decay(log_decay: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """The log-decays of one token, as an array of this shape."""
    numbers = isinstance(log_decay, (int, float, np.number)) or is_array(log_decay)
    values = np.asarray(values_of(log_decay) if is_array(log_decay) else log_decay)
    if not numbers or values.dtype.kind not in "fiu":
        raise TypeError(f"log_decay must be a number or an array of numbers, not {log_decay!r}")
    if not (np.isfinite(values).all() and (values <= 0).all()):
        raise ValueError("log_decay must be finite and ≤ 0")
    values = np.maximum(values, np.finfo(dtype).min)  # e^x is 0 for both
    try:
        return np.array(np.broadcast_to(values, shape), dtype, order="C")
    except ValueError:
        raise ValueError(
            f"this decoder takes log_decay of shape {shape} for each token, not {values.shape}"
        ) from None


def dtype_name_of(dtype: Any) -> str:
    """The name of a dtype of any library."""
    try:
        name = "" if dtype is None else np.dtype(dtype).name
    except TypeError:  # PyTorch's own, or no dtype
        name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"a decoder needs dtype to be one of {', '.join(DTYPES)}, not {dtype!r}")
    return name


def values_of(x: Any) -> Any:
    """The values of an array of any library."""
    if not is_array(x):
        raise TypeError(f"a decoder takes arrays, not {type(x).__name__}")
    return as_numpy(x)
