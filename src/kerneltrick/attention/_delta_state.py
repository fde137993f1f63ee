"""The state of the delta rule, as a value."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import numpy as np

from kerneltrick._arrays import (
    Array,
    as_numpy,
    compute_dtype,
    constant,
    copied,
    dtype_name,
    library,
    namespace,
    register_pytree,
    space,
    tree,
    zeros,
)
from kerneltrick._files import read_tensors, write
from kerneltrick.attention._arguments import check_count
from kerneltrick.attention._state_file import LONGEST, encoded, whole_number

FORMAT = "kerneltrick.DeltaState/1"


@tree
@dataclasses.dataclass(frozen=True, eq=False)
class DeltaState:
    """S after tokens start … stop−1 of the delta rule: Sᵀq is what it answers to q.

    Made by `delta_rule(..., return_state=True)` and given back to it as `state=`; never changed. S
    is (..., heads of v, d, M), float64 for float64 inputs and float32 for all others. To start from
    an array of your own, write `DeltaState(S)`.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 100, 8))
    >>> options = {"beta": 0.5, "log_decay": -0.1, "normalize_qk": True}
    >>> whole = kt.delta_rule(q, k, v, **options)
    >>> left, state = kt.delta_rule(q[:60], k[:60], v[:60], return_state=True, **options)
    >>> right = kt.delta_rule(q[60:], k[60:], v[60:], state=state, **options)
    >>> np.allclose(whole, np.concatenate([left, right])), state
    (True, <DeltaState of the delta rule (d = 8, M = 8), tokens 0:60, S (8, 8) float64 numpy>)
    """

    S: Array  # (..., H, d, M), NaN in columns that a non-finite token has spoiled
    start: Any = 0
    stop: Any = None  # None: start

    def __post_init__(self) -> None:
        if self.stop is None:
            object.__setattr__(self, "stop", self.start)
        if isinstance(self.S, np.ndarray):
            S = self.S.view()  # a value: whoever holds the array may not change it through us
            S.flags.writeable = False
            object.__setattr__(self, "S", S)
        if library(self.S) == "jax":
            register_pytree(DeltaState, ("S", "start", "stop"), ())

    @property
    def fingerprint(self) -> str:
        """The rule and the shapes that the state is of."""
        return fingerprint(self.S.shape)

    @property
    def nbytes(self) -> int:
        """Bytes held by S."""
        return int(space(self.S).finfo(self.S.dtype).bits // 8 * math.prod(self.S.shape))

    def __copy__(self) -> DeltaState:
        """The same state in an array of its own."""
        return DeltaState(copied(self.S), self.start, self.stop)

    def __deepcopy__(self, memo: dict[int, Any]) -> DeltaState:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return DeltaState, (self.S, self.start, self.stop)

    def __repr__(self) -> str:
        return (
            f"<DeltaState of {self.fingerprint}, tokens {self.start}:{self.stop}, "
            f"S {tuple(self.S.shape)} {dtype_name(self.S)} {library(self.S)}>"
        )

    @staticmethod
    def empty(k: Array, v: Array, *, start: int = 0) -> DeltaState:
        """The state before token `start`, for keys and values shaped like k and v.

        `lax.scan` takes it as its first carry.
        """
        start = check_count("DeltaState.empty", "start", start)
        namespace(k=k, v=v)
        shape = (*v.shape[:-2], k.shape[-1], v.shape[-1])
        return DeltaState(zeros(shape, k, compute_dtype(k)), start)

    def select(self, streams: Array) -> DeltaState:
        """The states of these streams of a batch (whole numbers, along axis 0), in this order.

        A stream may be taken several times or not at all: beams are reordered so.
        """
        if self.S.ndim < 4:
            raise ValueError(
                "select needs a state of a batch, (streams, heads, d, M), not of S "
                f"{tuple(self.S.shape)}"
            )
        return DeltaState(space(self.S).take(self.S, streams, axis=0), self.start, self.stop)

    def to(self, like: Array) -> DeltaState:
        """The same state for inputs such as `like`: its library, device and arithmetic."""
        namespace(like=like)
        S = constant(as_numpy(self.S), like, compute_dtype(like))
        return DeltaState(S, self.start, self.stop)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, which appears whole or not at all; `-` is standard output."""
        metadata = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "start": str(int(self.start)),
            "stop": str(int(self.stop)),
        }
        write(path, encoded({"S": as_numpy(self.S)}, metadata))

    @staticmethod
    def load(path: str | os.PathLike[str], like: Array | None = None) -> DeltaState:
        """Read a state back, as a NumPy array or as one of the library of `like`."""
        state = _read(os.fspath(path), *read_tensors(path, "state file"))
        return state if like is None else state.to(like)


def fingerprint(shape: tuple[int, ...]) -> str:
    return f"the delta rule (d = {shape[-2]}, M = {shape[-1]})"


def _read(path: str, metadata: dict[str, str], tensors: dict[str, Any]) -> DeltaState:
    """The state that a file holds, checked."""

    def fail(reason: str) -> ValueError:
        return ValueError(f"{path} is not a state of the delta rule: {reason}")

    if metadata.get("format") != FORMAT:
        raise fail(f"expected format {FORMAT!r}, found {metadata.get('format')!r}")
    try:
        start, stop = whole_number(metadata["start"]), whole_number(metadata["stop"])
        S = tensors.pop("S")
    except (KeyError, ValueError) as error:
        raise fail(f"missing or malformed entry {error}") from None
    if tensors:
        raise fail(f"unexpected tensors {sorted(tensors)}")
    if S.dtype not in (np.float32, np.float64) or S.ndim < 2:
        raise fail(f"S is {S.dtype} {S.shape}")
    if metadata.get("fingerprint") != fingerprint(S.shape):
        raise fail(f"S is {S.shape}, but it is of {metadata.get('fingerprint')!r:.80}")
    if not 0 <= start <= stop < LONGEST:
        raise fail(f"it covers tokens {start}:{stop}; expected 0 ≤ start ≤ stop < 2**53")
    return DeltaState(S, start, stop)


def checked_state(state: Any, k: Array, v: Array, headless: bool) -> Array:
    """S of a state that goes on with keys (..., H/g, n, d) and values (..., H, n, M)."""
    if not isinstance(state, DeltaState):
        kind = type(state).__name__
        theirs = getattr(state, "fingerprint", None)
        of = f" (of {theirs})" if theirs else ""
        raise TypeError(f"state must be a DeltaState, not {kind}{of}; DeltaState(S) makes one")
    S, ours, theirs = state.S, library(state.S), library(k)
    if ours != theirs:
        raise TypeError(f"the state holds {ours} arrays, the inputs are {theirs}; use state.to(q)")
    namespace(inputs=k, state=S)
    if S.dtype != compute_dtype(k):
        needed = dtype_name(zeros((), k, compute_dtype(k)))
        raise TypeError(
            f"the state is {dtype_name(S)}, but these inputs compute in {needed}; use state.to(q)"
        )
    shape = (*v.shape[1 if headless else 0 : -2], k.shape[-1], v.shape[-1])
    if tuple(S.shape) != shape:
        raise ValueError(
            f"the state is of {state.fingerprint} with S {tuple(S.shape)}, but this call needs "
            f"{fingerprint(shape)} with S {shape}"
        )
    return S[None, ...] if headless else S
