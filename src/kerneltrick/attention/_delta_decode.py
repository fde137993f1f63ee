"""Decoding with the delta rule: one token at a time for a batch of streams."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

import numpy as np

from kerneltrick._arrays import Array, constant
from kerneltrick.attention._arguments import check_count, check_scale
from kerneltrick.attention._decode import check_step_decay, dtype_name_of, values_of
from kerneltrick.attention._delta import delta_rule
from kerneltrick.attention._delta_call import DeltaOptions, check_delta_call
from kerneltrick.attention._delta_state import DeltaState, checked_state
from kerneltrick.engines import delta_decoder, empty_state


class DeltaDecoder:
    """The delta rule a token at a time: S ← D S − x (β eᵀ D S) + k (β v)ᵀ, o = scale · Sᵀ q.

    `shape` is the shape of the streams and value heads, (..., H_v); `groups` of them share a head
    of q and k. The state is changed in place, so a step reads and writes it once, whatever came
    before; there are no gradients. `state` continues a prompt that `delta_rule(...,
    return_state=True)` has read; `snapshot()` gives the state back.

    Steps that several threads take with one decoder come one after the other. Copies, and the child
    of a fork between steps, go on by themselves; to send a decoder elsewhere, save its snapshot.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 16))  # 2 heads, 100 tokens
    >>> options = {"log_decay": -0.1, "normalize_qk": True}
    >>> whole = kt.delta_rule(q, k, v, 0.5, **options)
    >>> _, state = kt.delta_rule(
    ...     q[:, :99], k[:, :99], v[:, :99], 0.5, return_state=True, **options
    ... )
    >>> decoder = kt.DeltaDecoder(
    ...     shape=(2,), d=16, decay=1, normalize_qk=True, dtype="float64", state=state
    ... )
    >>> out = decoder.step(q[:, 99], k[:, 99], v[:, 99], 0.5, log_decay=-0.1)
    >>> bool(np.allclose(out, whole[:, 99])), decoder.snapshot().stop
    (True, 100)
    """

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        d: int,
        value_width: int | None = None,
        groups: int = 1,
        dtype: Any = "float32",
        scale: float | None = None,
        normalize_qk: bool = False,
        decay: int = 0,
        state: DeltaState | None = None,
    ) -> None:
        """`decay`: how many log-decays a step takes for each value head: 0, 1 or d.

        `dtype` is that of q, k and v: a name, or NumPy's, PyTorch's or JAX's own. NumPy has no
        bfloat16; give float32 arrays to a decoder of bfloat16.
        """
        who = "DeltaDecoder"
        self.shape = tuple(check_count(who, "shape", size) for size in shape)
        self.groups = check_count(who, "groups", groups, least=1)
        if not self.shape or self.shape[-1] % self.groups:
            raise ValueError(
                f"{who} needs shape=(..., value heads), with a multiple of groups={self.groups} "
                f"heads, not {self.shape}"
            )
        self.d = check_count(who, "d", d, least=1)
        width = self.d if value_width is None else value_width
        self.value_width = check_count(who, "value_width", width)
        self.dtype = dtype_name_of(dtype)
        self.scale = None if scale is None else check_scale(who, scale)
        self.normalize_qk = bool(normalize_qk)
        if isinstance(decay, bool) or decay not in (0, 1, self.d):
            raise ValueError(f"{who} needs decay to be 0, 1 or {self.d} (d), not {decay!r}")
        self.decay = int(decay)
        self._lock = threading.Lock()  # held while the state changes, or is read
        self._compute = np.float64 if self.dtype == "float64" else np.float32
        self._given = np.dtype("float32" if self.dtype == "bfloat16" else self.dtype)
        self._load(state)

    def _load(self, state: DeltaState | None) -> None:
        keys = (*self.shape[:-1], self.shape[-1] // self.groups)
        self._shapes = ((*keys, self.d), (*keys, self.d), (*self.shape, self.value_width))
        self._decay_shape = self.shape if self.decay == 1 else (*self.shape, self.decay)
        # Shape and dtype of q, k, v, beta, log_decay, erase and read, and whether it must be there.
        token, vector, wide = self._given, self._shapes[0], np.dtype(self._compute)
        self._expected = (
            (vector, token, True),
            (vector, token, True),
            (self._shapes[2], token, True),
            (self.shape, wide, False),
            (self._decay_shape if self.decay else None, wide, self.decay > 0),
            (vector, token, False),
            (vector, token, False),
        )
        q, k, v = (np.zeros((*x[:-1], 1, x[-1]), self._given) for x in self._shapes)
        decay = None
        if self.decay:
            decay = np.zeros(self._decay_shape, self._compute)
            decay = decay[..., None] if self.decay == 1 else decay[..., None, :]
        options = DeltaOptions(
            log_decay=decay, scale=self.scale, normalize_qk=self.normalize_qk, return_state=True
        )
        call = check_delta_call("DeltaDecoder", q, k, v, 1.0, options)
        S = empty_state(k, v)
        self._start = self._stop = 0
        if state is not None:
            own = state.to(q) if isinstance(state, DeltaState) else state
            S = checked_state(own, k, v, headless=False)
            self._start, self._stop = state.start, state.stop
        self._S = np.array(S, order="C")  # changed in place by every step
        self._steps = delta_decoder(call.rule, call.data, self._given.name, self._S)

    def step(
        self,
        q: Array,
        k: Array,
        v: Array,
        beta: Any = 1.0,
        *,
        log_decay: Any = None,
        erase: Array | None = None,
        read: Array | None = None,
    ) -> Array:
        """The next token: q, k (..., H_k, d), v (..., H_v, M), beta (..., H_v) → (..., H_v, M)."""
        given = None if type(beta) is float and beta == 1 else beta
        if self._steps is not None and self._fits((q, k, v, given, log_decay, erase, read)):
            out = np.empty(self._shapes[2], self._given)
            with self._lock:
                if self._steps.step(q, k, v, given, out, log_decay, erase, read):
                    self._stop += 1
                    return out
        return self._step_checked(q, k, v, beta, log_decay, erase, read)

    def _fits(self, arrays: tuple[Any, ...]) -> bool:
        """Whether these are NumPy arrays as the core takes them, or None where there need be none.

        Whether they are contiguous, and decays are ≤ 0, the core sees for itself.
        """
        for x, (shape, dtype, needed) in zip(arrays, self._expected, strict=True):
            if x is None:
                if needed:
                    return False
            elif type(x) is not np.ndarray or x.shape != shape or x.dtype != dtype:
                return False
        return True

    def _step_checked(
        self,
        q: Array,
        k: Array,
        v: Array,
        beta: Any,
        log_decay: Any,
        erase: Array | None,
        read: Array | None,
    ) -> Array:
        """The same for arrays of other libraries, and for those that are refused."""
        arrays = [x if type(x) is np.ndarray else values_of(x) for x in (q, k, v)]
        more = [None if x is None else values_of(x) for x in (erase, read)]
        for x, shape in zip((*arrays, *more), (*self._shapes, *self._shapes[:1] * 2), strict=True):
            if x is not None and (x.shape != shape or x.dtype != self._given):
                self._refuse([y for y in (*arrays, *more) if y is not None])
        if (log_decay is None) != (self.decay == 0):
            raise ValueError(
                f"this decoder was made with decay={self.decay}: "
                f"{'every step needs a' if self.decay else 'a step takes no'} log_decay"
            )
        if log_decay is not None:
            log_decay = check_step_decay(log_decay, self._decay_shape, self._compute)
        if not (isinstance(beta, (int, float)) and beta == 1):
            beta = self._check_beta(beta)
        with self._lock:
            if self._steps is None:
                out = self._step_by_engine(arrays, beta, log_decay, more)
            else:
                out = np.empty(self._shapes[2], self._given)
                flat = [None if x is None else np.ascontiguousarray(x) for x in (*arrays, *more)]
                given = None if isinstance(beta, (int, float)) else beta
                self._steps.step(*flat[:3], given, out, log_decay, *flat[3:])
            self._stop += 1
        return out if type(q) is np.ndarray else constant(out, q)

    def _check_beta(self, beta: Any) -> Any:
        number = isinstance(beta, (int, float, np.number))
        values = np.asarray(beta if number else values_of(beta))
        if values.shape not in ((), self.shape):
            raise ValueError(
                f"this decoder takes a number or beta of shape {self.shape} for each token, not "
                f"{values.shape}"
            )
        return np.array(np.broadcast_to(values, self.shape), self._compute, order="C")

    def _step_by_engine(self, arrays: list[Any], beta: Any, log_decay: Any, more: list[Any]) -> Any:
        """Where no core is compiled: the recurrent engine."""
        q, k, v = (x[..., None, :] for x in arrays)
        erase, read = (None if x is None else x[..., None, :] for x in more)
        if log_decay is not None:
            log_decay = log_decay[..., None] if self.decay == 1 else log_decay[..., None, :]
        out, after = delta_rule(
            q,
            k,
            v,
            beta if isinstance(beta, (int, float)) else beta[..., None],
            log_decay=log_decay,
            erase=erase,
            read=read,
            scale=self.scale,
            normalize_qk=self.normalize_qk,
            state=DeltaState(self._S.copy()),
            return_state=True,
            engine="recurrent",
        )
        self._S[...] = after.S
        return out[..., 0, :]

    def _refuse(self, arrays: list[Any]) -> NoReturn:
        keys, _, values = self._shapes
        raise ValueError(
            f"this decoder takes q, k, erase and read {keys} and v {values} of {self._given} for "
            f"each token, not {', '.join(f'{x.shape} {x.dtype}' for x in arrays)}"
        )

    def snapshot(self) -> DeltaState:
        """The state after the last step, as a value of its own."""
        with self._lock:
            if self._steps is not None:
                self._steps.finish()
            return DeltaState(self._S.copy(), self._start, self._stop)

    @property
    def stop(self) -> int:
        """How many tokens there were, those of `state` included."""
        return int(self._stop)

    @property
    def compiled(self) -> bool:
        """Whether the compiled core takes the steps; otherwise the recurrent engine does."""
        return self._steps is not None

    @property
    def nbytes(self) -> int:
        """The bytes of the state, which a step reads and writes."""
        return int(self._S.nbytes)

    def __repr__(self) -> str:
        return (
            f"<DeltaDecoder of the delta rule (d = {self.d}, M = {self.value_width}), tokens "
            f"{self._start}:{self._stop}, streams and heads {self.shape} {self.dtype}>"
        )

    def __copy__(self) -> DeltaDecoder:
        """Another decoder that goes on from here."""
        return DeltaDecoder(
            shape=self.shape,
            d=self.d,
            value_width=self.value_width,
            groups=self.groups,
            dtype=self.dtype,
            scale=self.scale,
            normalize_qk=self.normalize_qk,
            decay=self.decay,
            state=self.snapshot(),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> DeltaDecoder:
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a DeltaDecoder is not pickled; save decoder.snapshot().save(path), and continue with "
            "DeltaDecoder(..., state=DeltaState.load(path))"
        )
