"""A loop over blocks of tokens: Python's where arrays are eager, else one of the library's own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from kerneltrick._arrays._library import Array, device, is_concrete, library, space, zeros

Streams = tuple[Array | None, ...]
Body = Callable[[Any, Streams, Any, Array | None], tuple[Any, Streams]]


def scan(
    body: Body, carry: Any, streams: Streams, *, length: int, block: int, offset: int = 0
) -> tuple[Any, Streams]:
    """Feed streams (..., length, d) to body in blocks of `block` tokens, all of full size.

    body(carry, blocks, first, valid) → (carry, outputs). Block b covers the tokens from
    first = b·block − offset; tokens outside [0, length) are zeros and False in `valid` (block, 1),
    which is None where every token is real. Outputs (..., block, e) are joined and cut to length.
    """
    like = next(x for x in streams if x is not None)
    if library(like) == "jax":
        return _scan_jax(body, carry, streams, length, block, offset)
    if is_looped(like, length):
        from kerneltrick._arrays._scan_torch import scan_traced

        assert offset == 0
        return scan_traced(body, carry, streams, length, block)
    return _scan_eager(body, carry, streams, length, block, offset, like)


def _scan_eager(
    body: Body, carry: Any, streams: Streams, length: int, block: int, offset: int, like: Array
) -> tuple[Any, Streams]:
    xp = space(like)
    joined: list[_Join | None] | None = None
    for first in range(-offset, length, block):
        low, high = max(first, 0), min(first + block, length)
        before, after = low - first, first + block - high
        pieces = tuple(_cut(x, low, high, before, after, xp) for x in streams)
        valid = None
        if before or after:
            index = xp.arange(first, first + block, device=device(like))
            valid = ((index >= 0) & (index < length))[:, None]
        carry, outputs = body(carry, pieces, first, valid)
        if joined is None:
            joined = [None if y is None else _Join(length, xp) for y in outputs]
        for join, y in zip(joined, outputs, strict=True):
            if join is not None:
                assert y is not None
                join.put(y[..., before : block - after, :], low, high)
    assert joined is not None, "scan needs at least one block"
    return carry, tuple(None if join is None else join.result() for join in joined)


def _cut(x: Array | None, low: int, high: int, before: int, after: int, xp: Any) -> Array | None:
    if x is None:
        return None
    piece = x[..., low:high, :]
    if before or after:
        shape = piece.shape
        head = zeros((*shape[:-2], before, shape[-1]), x, x.dtype)
        tail = zeros((*shape[:-2], after, shape[-1]), x, x.dtype)
        piece = xp.concat([head, piece, tail], axis=-2)
    return piece


class _Join:
    """Joins outputs along the tokens: in a buffer, or by concat where gradients are recorded."""

    def __init__(self, length: int, xp: Any) -> None:
        self.length, self.xp = length, xp
        self.pieces: list[Array] = []
        self.buffer: Array | None = None

    def put(self, y: Array, low: int, high: int) -> None:
        if getattr(y, "requires_grad", False) or not is_concrete(y):
            self.pieces.append(y)
            return
        if self.buffer is None:
            shape = (*y.shape[:-2], self.length, y.shape[-1])
            self.buffer = self.xp.empty(shape, dtype=y.dtype, device=device(y))
        self.buffer[..., low:high, :] = y

    def result(self) -> Array:
        return self.xp.concat(self.pieces, axis=-2) if self.pieces else self.buffer


def _scan_jax(
    body: Body, carry: Any, streams: Streams, length: int, block: int, offset: int
) -> tuple[Any, Streams]:
    jax = sys.modules["jax"]
    jnp = jax.numpy
    steps = -(-(length + offset) // block)
    padded = steps * block
    whole = padded == length

    def split(x: Array | None) -> Array | None:
        if x is None:
            return None
        pad = [(0, 0)] * (x.ndim - 2) + [(offset, padded - length - offset), (0, 0)]
        x = jnp.pad(x, pad)
        return jnp.moveaxis(x.reshape((*x.shape[:-2], steps, block, x.shape[-1])), -3, 0)

    def join(y: Array | None) -> Array | None:
        if y is None:
            return None
        y = jnp.moveaxis(y, 0, -3)
        y = y.reshape((*y.shape[:-3], padded, y.shape[-1]))
        return y[..., offset : offset + length, :]

    def step(carry: Any, xs: Any) -> Any:
        number, pieces = xs
        first = number * block - offset
        index = first + jnp.arange(block)
        valid = None if whole else ((index >= 0) & (index < length))[:, None]
        return body(carry, pieces, first, valid)

    xs = (jnp.arange(steps), tuple(split(x) for x in streams))
    carry, outputs = jax.lax.scan(step, carry, xs)
    return carry, tuple(join(y) for y in outputs)


def is_looped(like: Array, length: Any) -> bool:
    """Whether blocks run in a loop of the library's own, which has arrays of one shape.

    In JAX always; in PyTorch while ONNX is written for any number of tokens.
    """
    if library(like) == "jax":
        return True
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(length, torch.SymInt) and torch.onnx.is_in_onnx_export()


def static_start(start: Any, like: Array, length: Any) -> Any:
    """start as a number to align chunks with, or 0 where the program is for any start."""
    return 0 if is_looped(like, length) else whole(start)


def whole(x: Any) -> Any:
    """x as a whole number of Python's, or as PyTorch's for one that compiled code is to be told."""
    torch = sys.modules.get("torch")
    return x if torch is not None and isinstance(x, torch.SymInt) else int(x)


def jit(function: Callable[..., Any], static: Any, data: Any, *, like: Array, keep: bool) -> Any:
    """function(static, data), in JAX compiled once per `static` and shapes, elsewhere as it is.

    Without `keep` nothing is kept compiled: `static` holds arrays or code, which can change. In
    torch, autocast is off inside: it would sum in half precision.
    """
    name = library(like)
    if name == "jax" and keep:
        return _jax_jit(function)(static, data)
    if name == "torch" and like.device.type != "meta":
        torch, kind = sys.modules["torch"], like.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return function(static, data)
    return function(static, data)


@functools.cache
def _jax_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    jitted: Callable[..., Any] = sys.modules["jax"].jit(function, static_argnums=0)
    return jitted


_registered: set[type] = set()


def register_pytree(cls: type, fields: tuple[str, ...], static: tuple[str, ...]) -> None:
    """Let JAX transformations see into a frozen dataclass, once JAX is in use."""
    if cls in _registered or "jax" not in sys.modules:
        return
    _registered.add(cls)

    def flatten(obj: Any) -> tuple[Any, Any]:
        return [getattr(obj, f) for f in fields], tuple(getattr(obj, f) for f in static)

    def unflatten(aux: Any, leaves: Any) -> Any:
        obj: Any = object.__new__(cls)
        for name, value in zip((*fields, *static), (*leaves, *aux), strict=True):
            object.__setattr__(obj, name, value)
        return obj

    sys.modules["jax"].tree_util.register_pytree_node(cls, flatten, unflatten)
