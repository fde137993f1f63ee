"""Sums that are wider than the numbers summed.

A running sum over a million float32 tokens must not lose the small ones. Where the library has
float64 the sum is a float64 array; where it has not (JAX without x64) it is an unevaluated pair of
float32 arrays hi + lo, kept exact to about 48 bits with the error-free transformations of
Knuth (sum) and Dekker (product).
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from kerneltrick._arrays._library import (
    Array,
    Namespace,
    as_numpy,
    astype,
    is_concrete,
    library,
    space,
    zeros,
)


class Wide(NamedTuple):
    """An array hi (float64), or the pair hi + lo (float32) where there is no float64."""

    hi: Array
    lo: Array | None

    def numpy(self) -> np.ndarray[Any, Any]:
        """The value as NumPy float64."""
        value = as_numpy(self.hi).astype(np.float64)
        return value if self.lo is None else value + as_numpy(self.lo).astype(np.float64)


def has_float64(x: Array) -> bool:
    lib = library(x)
    if lib == "jax":
        return bool(sys.modules["jax"].config.jax_enable_x64)
    if lib == "torch":
        return bool(x.device.type != "mps")
    return True


def wide(x: Array) -> Wide:
    xp = space(x)
    if has_float64(x):
        return Wide(astype(x, xp.float64), None)
    x = astype(x, xp.float32)
    return Wide(x, xp.zeros_like(x))


def wide_zeros(shape: tuple[int, ...], like: Array, xp: Namespace) -> Wide:
    if library(like) == "torch" and is_concrete(like):
        # Torch would fill them on all its threads, which then wait awake and take cores from ours.
        return Wide(sys.modules["torch"].from_numpy(np.zeros(shape)), None)
    if has_float64(like):
        return Wide(zeros(shape, like, xp.float64), None)
    return Wide(zeros(shape, like, xp.float32), zeros(shape, like, xp.float32))


def wide_narrow(w: Wide, dtype: Any) -> Array:
    """The nearest array of an ordinary dtype."""
    return astype(w.hi if w.lo is None else w.hi + w.lo, dtype)


def wide_add(w: Wide, x: Array, factor: Array | None = None) -> Wide:
    """factor ⊙ w + x; a factor of 0 forgets w whatever it holds, inf and NaN included."""
    xp = space(w.hi)
    if w.lo is None:
        hi = w.hi
        if factor is not None:
            factor = astype(factor, xp.float64)
            hi = xp.where(factor == 0, xp.zeros_like(hi), hi) * factor
        return Wide(hi + astype(x, xp.float64), None)
    hi, lo = w.hi, w.lo
    if factor is not None:
        forget = factor == 0
        hi = xp.where(forget, xp.zeros_like(hi), hi)
        lo = xp.where(forget, xp.zeros_like(lo), lo)
        hi, error = _two_product(hi, xp.broadcast_to(factor, hi.shape), xp)
        lo = lo * factor + error
    total, error = _two_sum(hi, astype(x, xp.float32))
    lo = xp.where(xp.isfinite(total), lo + error, xp.zeros_like(total))
    hi = total + lo
    return Wide(hi, xp.where(xp.isfinite(hi), lo - (hi - total), xp.zeros_like(lo)))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Knuth: a + b = s + e exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _two_product(a: Array, b: Array, xp: Namespace) -> tuple[Array, Array]:
    """Dekker: a · b = p + e exactly, by splitting float32 into halves of 12 bits."""
    p = a * b
    a1, a2 = _split(a)
    b1, b2 = _split(b)
    e = ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2
    return p, xp.where(xp.isfinite(e), e, xp.zeros_like(e))  # the split overflows above 2^115


def _split(a: Array) -> tuple[Array, Array]:
    t = a * 4097.0
    high = t - (t - a)
    return high, a - high
