"""Lab 02, the kernel trick: the same product in two orders, O(n²d) and O(nd²).

Rows are tokens: Q and K have shape (n, d), V has shape (n, M), with any batch dimensions in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs._inputs import floating, in_float64

Array = np.ndarray[Any, Any]
FeatureMap = Callable[[Array], Array]


def random_tensors(seq_len: int, d_model: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Random Q, K and V with N(0, 1) entries: three float32 arrays of shape (seq_len, d_model).

    >>> Q, K, V = random_tensors(seq_len=100, d_model=64)
    >>> Q.shape, str(V.dtype)
    ((100, 64), 'float32')
    """
    shape = (3, seq_len, d_model)
    Q, K, V = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return Q, K, V


def identity(x: Array) -> Array:
    """φ(x) = x, the map to use if you want no map.

    >>> identity(np.array([-1.0, 2.0]))
    array([-1.,  2.])
    """
    return x


def simple_feature_map(x: Array) -> Array:
    """φ(x) = x: the simplest feature map. Its similarity q·k may be negative.

    x and φ(x) have shape (..., n, d).

    >>> simple_feature_map(np.array([[-1.0, 2.0]]))
    array([[-1.,  2.]])
    """
    (x,) = floating(x=x)
    return x


def elu_feature_map(x: Array) -> Array:
    """φ(x) = ELU(x) + 1: x + 1 where x > 0, else eˣ. Strictly positive.

    x and φ(x) have shape (..., n, d). Write the two branches exactly as above. Computed literally,
    (eˣ − 1) + 1 is 0 for every x below −17.3 in float32, and no longer positive.

    >>> elu_feature_map(np.array([[2.0, 0.0]]))
    array([[3., 1.]])
    >>> bool(elu_feature_map(np.array([[-20.0]], dtype=np.float32)) > 0)
    True
    """
    (x,) = floating(x=x)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def standard_attention_order(Q: Array, K: Array, V: Array) -> tuple[Array, Array]:
    """Compute (QKᵀ)V with the n×n matrix, in O(n²d). There is no softmax.

    Q (n, d), K (n, d), V (n, M) → output (n, M) and weights QKᵀ (n, n), in the dtype of the
    inputs. Compute the sums in float64: in float32, the two orders differ by more than 1e-5.

    >>> Q, K, V = np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0], [10.0]])
    >>> output, weights = standard_attention_order(Q, K, V)
    >>> weights
    array([[1., 3.],
           [2., 4.]])
    >>> output
    array([[31.],
           [42.]])
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    weights = q @ np.swapaxes(k, -1, -2)
    output = weights @ v
    return output.astype(V.dtype), weights.astype(Q.dtype)


def linear_attention_order(
    Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False
) -> Array:
    """Compute φ(Q)(φ(K)ᵀV) without the n×n matrix, in O(nmM) for m features.

    With `normalize`, row i is divided by φ(qᵢ)·Z, Z = Σⱼφ(kⱼ), which makes it an average of the
    values. φ(qᵢ)·Z can be tiny or negative; divide by it as it is, with nothing added. Q (n, d),
    K (n, d), V (n, M) → output (n, M), in the dtype of the inputs, with sums in float64.
    `feature_map` turns arrays (..., n, d) into (..., n, m).

    >>> Q, K, V = random_tensors(seq_len=100, d_model=64)
    >>> out1, attn_matrix = standard_attention_order(Q, K, V)
    >>> out2 = linear_attention_order(Q, K, V, feature_map=identity)
    >>> np.testing.assert_allclose(out1, out2, rtol=1e-5)
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    phi_q, phi_k = feature_map(q), feature_map(k)
    output = phi_q @ (np.swapaxes(phi_k, -1, -2) @ v)
    if normalize:
        Z = phi_k.sum(axis=-2)
        output = output / (phi_q @ Z[..., None])
    return np.asarray(output.astype(V.dtype))


def verify_associativity(Q: Array, K: Array, V: Array) -> bool:
    """Whether (QKᵀ)V and Q(KᵀV), computed in float64, agree to 1e-5 of the largest entry.

    They always agree in exact arithmetic. They do not if an intermediate product overflows.

    >>> verify_associativity(*random_tensors(seq_len=100, d_model=64))
    True
    >>> big, small = np.full((2, 2), 1e200), np.full((2, 2), 1e-300)
    >>> verify_associativity(big, big, small)  # QKᵀ is inf, KᵀV is not
    False
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    with np.errstate(over="ignore", invalid="ignore"):
        left, _ = standard_attention_order(q, k, v)
        right = linear_attention_order(q, k, v, identity)
        atol = 1e-5 * np.max(np.abs(right), initial=0.0)
        return bool(np.all(np.isfinite(right)) and np.allclose(left, right, rtol=0, atol=atol))


def standard_operation_count(n: int, d: int) -> int:
    """The multiply-adds of QKᵀ, n²d. The product with V takes as many again.

    >>> standard_operation_count(4096, 64)
    1073741824
    """
    return n * n * d


def linear_operation_count(n: int, d: int) -> int:
    """The multiply-adds of KᵀV, nd². The product with Q takes as many again.

    >>> linear_operation_count(4096, 64)
    16777216
    """
    return n * d * d


def operation_ratio(n: int, d: int) -> float:
    """How many times fewer multiply-adds the linear order takes: n²d / nd² = n/d.

    Below 1 the linear order is slower. It is worthwhile for n > d.

    >>> operation_ratio(4096, 64)
    64.0
    """
    return standard_operation_count(n, d) / linear_operation_count(n, d)
