"""Multi-head attention one can read: NumPy, shared key/value heads, wide values, a KV cache."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from kerneltrick.attention._dense import softmax_attention

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


def split_heads(x: Floats, heads: int) -> Floats:
    """(..., n, heads·width) → (..., heads, n, width); the width is whatever is left."""
    if x.shape[-1] % heads:
        raise ValueError(f"cannot split {x.shape[-1]} columns among {heads} heads")
    return np.swapaxes(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads), -3, -2)


def combine_heads(x: Floats) -> Floats:
    """(..., heads, n, width) → (..., n, heads·width); the inverse of `split_heads`."""
    x = np.swapaxes(x, -3, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


class KVCache(NamedTuple):
    """Keys (b, g, n, k) and values (b, g, n, v) of the tokens decoded so far."""

    k: Floats
    v: Floats

    @property
    def numbers(self) -> int:
        """How many numbers are cached: b·n·g·(k + v)."""
        return int(self.k.size + self.v.size)


@dataclasses.dataclass(frozen=True, eq=False)
class MultiHeadAttention:
    """h query heads over g key/value heads: multi-head (g = h), grouped, multi-query (g = 1).

    Weights W_q (h, d, k), W_k (g, d, k), W_v (g, d, v), W_o (h, v, d); v may differ from k.

    >>> layer = MultiHeadAttention.random(width=16, heads=4, kv_heads=2, value_width=6, seed=0)
    >>> x = np.random.default_rng(1).standard_normal((3, 10, 16))
    >>> whole, cache = layer(x), layer.empty_cache(batch=3)
    >>> for t in range(10):
    ...     y, cache = layer.step(x[:, t], cache)
    >>> bool(np.allclose(y, whole[:, -1])), cache.numbers == 3 * 10 * 2 * (4 + 6)
    (True, True)
    """

    W_q: Floats
    W_k: Floats
    W_v: Floats
    W_o: Floats

    def __post_init__(self) -> None:
        h, d, k = self.W_q.shape
        g, v = self.W_k.shape[0], self.W_v.shape[-1]
        expected = {"W_k": (g, d, k), "W_v": (g, d, v), "W_o": (h, v, d)}
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(
                    f"{name} must be {shape} beside W_q {self.W_q.shape}, "
                    f"not {getattr(self, name).shape}"
                )
        if h % g:
            raise ValueError(f"{h} query heads cannot share {g} key/value heads evenly")

    @staticmethod
    def random(
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        seed: int = 0,
    ) -> MultiHeadAttention:
        """A layer with weights N(0, 1/fan-in); key and value width default to width/heads."""
        if key_width is None and width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads; give key_width")
        k = width // heads if key_width is None else key_width
        v = k if value_width is None else value_width
        g = heads if kv_heads is None else kv_heads
        rng = np.random.default_rng(seed)

        def draw(shape: tuple[int, ...], fan_in: int) -> Floats:
            return np.asarray(rng.standard_normal(shape) / math.sqrt(fan_in))

        return MultiHeadAttention(
            draw((heads, width, k), width),
            draw((g, width, k), width),
            draw((g, width, v), width),
            draw((heads, v, width), heads * v),
        )

    def __call__(
        self, x: Floats, *, causal: bool = True, mask: np.ndarray[Any, Any] | None = None
    ) -> Floats:
        """x (b, n, d) → (b, n, d)."""
        q = np.einsum("bnd,hdk->bhnk", x, self.W_q)
        k = np.einsum("bnd,gdk->bgnk", x, self.W_k)
        v = np.einsum("bnd,gdv->bgnv", x, self.W_v)
        output = softmax_attention(q, k, v, causal=causal, mask=mask)
        return np.asarray(np.einsum("bhnv,hvd->bnd", output, self.W_o))

    def empty_cache(self, batch: int) -> KVCache:
        g, _, k = self.W_k.shape
        v, dtype = self.W_v.shape[-1], self.W_k.dtype
        return KVCache(np.zeros((batch, g, 0, k), dtype), np.zeros((batch, g, 0, v), dtype))

    def step(self, x: Floats, cache: KVCache) -> tuple[Floats, KVCache]:
        """Decode one token x (b, d) after those in the cache; the cache given is not changed."""
        h, _, width = self.W_q.shape
        g = self.W_k.shape[0]
        q = np.einsum("bd,hdk->bhk", x, self.W_q)
        k = np.einsum("bd,gdk->bgk", x, self.W_k)
        v = np.einsum("bd,gdv->bgv", x, self.W_v)
        cache = KVCache(
            np.concatenate([cache.k, k[:, :, None]], axis=2),
            np.concatenate([cache.v, v[:, :, None]], axis=2),
        )
        q = q.reshape(len(x), g, h // g, width)  # query head i reads key head i // (h/g)
        scores = np.einsum("bgrk,bgnk->bgrn", q, cache.k) / math.sqrt(width)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        output = np.einsum("bgrn,bgnv->bgrv", weights, cache.v)
        output = output.reshape(len(x), h, -1)
        return np.einsum("bhv,hvd->bd", output, self.W_o), cache

    def step_multiply_adds(self, batch: int, n: int) -> int:
        """Multiply-adds of one step with n tokens in the cache, the new one included.

        b(2d² + 2d·g·k + 2n·d) for k = v = d/h; sharing heads (g < h) does not lower the 2n·d.
        """
        h, d, k = self.W_q.shape
        g, v = self.W_k.shape[0], self.W_v.shape[-1]
        projections = d * h * k + d * g * k + d * g * v + h * v * d
        return int(batch * (projections + n * h * (k + v)))

    def cache_numbers(self, batch: int, n: int) -> int:
        """Numbers in the cache after n tokens: 2·b·n·g·k for v = k."""
        return int(batch * n * self.W_k.shape[0] * (self.W_k.shape[-1] + self.W_v.shape[-1]))
