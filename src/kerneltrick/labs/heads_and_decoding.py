"""Lab 05, heads and decoding: scaled dot products, many heads, and what a decoder must store.

Rows are tokens: Q and K have shape (..., n, d) and V has (..., n, M), with batch and head
dimensions in front. A layer has width d, h query heads of width k, and g key/value heads. Values
have width v, which may differ from k. b sequences are decoded at once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerneltrick.labs._inputs import in_float64

Array = np.ndarray[Any, Any]


def random_layer(
    d: int, h: int, g: int, k: int, v: int, seed: int = 0
) -> tuple[Array, Array, Array, Array]:
    """Random W_q (h, d, k), W_k (g, d, k), W_v (g, d, v) and W_o (h, v, d) for `decoding_step`.

    >>> [W.shape for W in random_layer(d=32, h=4, g=2, k=8, v=6)]
    [(4, 32, 8), (2, 32, 8), (2, 32, 6), (4, 6, 32)]
    """
    rng = np.random.default_rng(seed)
    shapes = ((h, d, k), (g, d, k), (g, d, v), (h, v, d))
    W_q, W_k, W_v, W_o = (rng.standard_normal(shape) / np.sqrt(d) for shape in shapes)
    return W_q, W_k, W_v, W_o


def dot_product_moments(
    d: int, mean_q: float, std_q: float, mean_k: float, std_k: float
) -> tuple[float, float, float]:
    """Return E[q·k], Var[q·k] and the scale s > 0 for which Var[s·q·k] = 1.

    The d coordinates of q are independent with mean μ_q and standard deviation σ_q. Those of k have
    μ_k and σ_k, and q and k are independent. Start from Var[XY] = E[X²]E[Y²] − E[X]²E[Y]² for one
    coordinate. The variances of independent terms add up.

    >>> dot_product_moments(64, 0.0, 1.0, 0.0, 1.0)
    (0.0, 64.0, 0.125)
    """
    mean = d * mean_q * mean_k
    variance = d * (std_q**2 * std_k**2 + mean_q**2 * std_k**2 + mean_k**2 * std_q**2)
    return mean, variance, 1 / math.sqrt(variance)


def softmax_attention(Q: Array, K: Array, V: Array, causal: bool = False) -> Array:
    """Compute softmax(QKᵀ/√d)V. The softmax runs over the keys, and d is the width of the keys.

    Q (..., n, d), K (..., n, d), V (..., n, M) → (..., n, M). With `causal`, query i sees only the
    keys j ≤ i, and its weights over these add up to 1. Subtract the largest score of each query
    before `np.exp`: that changes no weight, and exp(1000) is inf. With `causal`, it must be the
    largest score among the keys j ≤ i.

    >>> Q, K, V = np.eye(2), np.zeros((2, 2)), np.array([[1.0], [3.0]])
    >>> softmax_attention(Q, K, V)
    array([[2.],
           [2.]])
    >>> softmax_attention(Q, K, V, causal=True)
    array([[1.],
           [2.]])
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    output = weights / weights.sum(axis=-1, keepdims=True) @ v
    return np.asarray(output.astype(V.dtype))


def hard_attention(Q: Array, K: Array, V: Array) -> Array:
    """Return, for each query, the value whose key has the largest q·k; on ties, the first one.

    Q (n, d), K (l, d), V (l, M) → (n, M).

    >>> K = np.array([[1.0, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]])
    >>> V = np.array([[7.0, 0, 0], [1, 4, 3], [0, 7, 0], [0, 0, 7]])
    >>> hard_attention(np.array([[1.0, 1, 2]]), K, V)
    array([[1., 4., 3.]])
    """
    q, k = in_float64(Q=Q, K=K)
    best = np.argmax(q @ k.T, axis=1)
    return np.asarray(V[best])


def hard_attention_gradients(
    Q: Array, K: Array, V: Array, grad: Array
) -> tuple[Array, Array, Array]:
    """The gradients of a loss with respect to Q, K and V, through `hard_attention`.

    `grad` (n, M) is the gradient with respect to the output. No two scores of a query are equal. So
    a small change of Q or K selects the same values, and a small change of a selected value changes
    the output by the same amount. If several queries select the same value, their gradients add up.

    >>> K, V = np.array([[1.0, 0], [0, 1]]), np.array([[5.0], [6.0]])
    >>> Q, grad = np.array([[2.0, 1], [3, 0]]), np.array([[1.0], [10.0]])
    >>> dQ, dK, dV = hard_attention_gradients(Q, K, V, grad)
    >>> dV
    array([[11.],
           [ 0.]])
    """
    q, k = in_float64(Q=Q, K=K)
    best = np.argmax(q @ k.T, axis=1)
    dV = np.zeros_like(V)
    np.add.at(dV, best, grad)
    return np.zeros_like(Q), np.zeros_like(K), dV


def split_heads(X: Array, heads: int) -> Array:
    """Split the columns into equal blocks, one per head: (..., n, heads·w) → (..., heads, n, w).

    The first w columns of a token belong to head 0, the next w to head 1, and so on. w is the
    number of columns divided by the number of heads: the width of keys, or that of values.

    >>> split_heads(np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]]), heads=2)
    array([[[1., 2.],
            [5., 6.]],
    <BLANKLINE>
           [[3., 4.],
            [7., 8.]]])
    """
    width = X.shape[-1] // heads
    return np.swapaxes(X.reshape(*X.shape[:-1], heads, width), -3, -2)


def combine_heads(X: Array) -> Array:
    """Undo `split_heads`: (..., heads, n, w) → (..., n, heads·w).

    >>> combine_heads(np.array([[[1.0, 2], [5, 6]], [[3, 4], [7, 8]]]))
    array([[1., 2., 3., 4.],
           [5., 6., 7., 8.]])
    """
    X = np.swapaxes(X, -3, -2)
    return X.reshape(*X.shape[:-2], X.shape[-2] * X.shape[-1])


def multi_head_attention(
    X: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, heads: int, causal: bool = False
) -> Array:
    """Attention with several heads, and with values of any width.

    X (..., n, d), W_q and W_k (d, heads·k), W_v (d, heads·v), W_o (heads·v, d) → (..., n, d).
    Project X to queries, keys and values, split each into heads, compute attention in each head
    with the scale 1/√k of its own width, combine the heads, and project with W_o. Scores can be
    large.

    >>> X, W = np.eye(2), np.eye(2)
    >>> multi_head_attention(X, 0 * W, 0 * W, 4 * W, W, heads=2)  # uniform weights
    array([[2., 2.],
           [2., 2.]])
    """
    x, w_q, w_k, w_v, w_o = in_float64(X=X, W_q=W_q, W_k=W_k, W_v=W_v, W_o=W_o)
    q, k, v = (split_heads(x @ w, heads) for w in (w_q, w_k, w_v))
    output = combine_heads(softmax_attention(q, k, v, causal)) @ w_o
    return np.asarray(output.astype(X.dtype))


def multi_query_attention(X: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array) -> Array:
    """Causal attention with h query heads that share one key head and one value head.

    X (b, n, d), W_q (h, d, k), W_k (d, k), W_v (d, v), W_o (h, v, d) → (b, n, d). The output of
    each head goes through its own (v, d) slice of W_o, and the results add up. `np.einsum` is
    convenient here: an index that is summed over is missing on the right, and every index on the
    right appears on the left. The scale is 1/√k. Scores can be large.

    >>> X, ones = np.array([[[1.0], [3.0]]]), np.ones((2, 1, 1))
    >>> multi_query_attention(X, 0 * ones, ones[0], ones[0], ones)
    array([[[2.],
            [4.]]])
    """
    x, w_q, w_k, w_v, w_o = in_float64(X=X, W_q=W_q, W_k=W_k, W_v=W_v, W_o=W_o)
    q = np.einsum("bnd,hdk->bhnk", x, w_q)
    k, v = (x @ w_k)[:, None], (x @ w_v)[:, None]
    output = softmax_attention(q, k, v, causal=True)
    return np.asarray(np.einsum("bhnv,hvd->bnd", output, w_o).astype(X.dtype))


def decoding_step(
    x: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, keys: Array, values: Array
) -> tuple[Array, Array, Array]:
    """Decode one new token of each sequence, and return the output and the longer cache.

    x (b, d), W_q (h, d, k), W_k (g, d, k), W_v (g, d, v), W_o (h, v, d), and the cache so far,
    `keys` (b, g, n, k) and `values` (b, g, n, v) → output (b, d), keys (b, g, n+1, k), values
    (b, g, n+1, v). The new token is appended at the end of the cache and sees itself. Query head i
    uses key/value head i // (h/g), so neighbouring heads share one. The outputs of the heads go
    through W_o and add up. The scale is 1/√k. Scores can be large.

    >>> x, ones, empty = np.array([[3.0]]), np.ones((1, 1, 1)), np.ones((1, 1, 0, 1))
    >>> output, keys, values = decoding_step(x, ones, ones, ones, ones, empty, empty)
    >>> output, keys.shape
    (array([[3.]]), (1, 1, 1, 1))
    """
    new, w_q, w_k, w_v, w_o, k, v = in_float64(
        x=x, W_q=W_q, W_k=W_k, W_v=W_v, W_o=W_o, keys=keys, values=values
    )
    q = np.einsum("bd,hdk->bhk", new, w_q)[:, :, None]
    new_k = np.einsum("bd,gdk->bgk", new, w_k)[:, :, None]
    new_v = np.einsum("bd,gdv->bgv", new, w_v)[:, :, None]
    k, v = np.concatenate([k, new_k], axis=2), np.concatenate([v, new_v], axis=2)
    share = len(w_q) // len(w_k)
    output = softmax_attention(q, np.repeat(k, share, axis=1), np.repeat(v, share, axis=1))
    output = np.einsum("bhnv,hvd->bd", output, w_o)
    return output.astype(x.dtype), k.astype(x.dtype), v.astype(x.dtype)


def decoding_multiply_adds(b: int, n: int, d: int, h: int, g: int) -> int:
    """Count the multiply-adds of one decoding step of b sequences, with k = v = d/h.

    Count for each sequence the projections of x to h queries, g keys and g values, the scores of h
    queries with n keys, the weighted sums of n values, and the output projection. n is the number
    of tokens in the cache, including the new one. The softmax takes no multiply-adds.

    >>> decoding_multiply_adds(b=3, n=4096, d=512, h=8, g=1)
    14352384
    """
    k = d // h
    projections = 2 * d * d + 2 * d * g * k
    return b * (projections + 2 * n * d)


def kept_bytes(
    b: int, n: int, g: int, k: int, v: int, m: int | None = None, dtype: str = "float32"
) -> int:
    """The bytes that a decoder of b sequences stores after n tokens, with g key/value heads.

    Softmax attention stores a cache: a key of width k and a value of width v for each token and
    head. If `m` is given, it is linear attention with m features, which stores a state instead: U
    (m×v) and Z (m entries) for each head. `np.dtype(dtype).itemsize` is the size of a number.

    >>> kept_bytes(b=1, n=4096, g=8, k=64, v=64)
    16777216
    >>> kept_bytes(b=1, n=4096, g=8, k=64, v=64, m=64)
    133120
    """
    numbers = n * (k + v) if m is None else m * (v + 1)
    return b * g * numbers * np.dtype(dtype).itemsize
