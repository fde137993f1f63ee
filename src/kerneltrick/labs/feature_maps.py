"""Lab 03, feature maps: functions φ, the attention they imply, and how far it is from softmax.

Rows are tokens: Q and K have shape (n, d), V has (n, M) and φ(x) has (n, m), with any batch
dimensions in front. A feature map is any function that turns arrays (..., n, d) into (..., n, m).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs._inputs import floating, in_float64

Array = np.ndarray[Any, Any]
FeatureMap = Callable[[Array], Array]


def random_projection(features: int, d: int, seed: int = 0) -> Array:
    """Draw m = `features` vectors ω ~ N(0, I_d), as the rows of a float64 array (m, d).

    >>> random_projection(256, 64).shape
    (256, 64)
    """
    # With default_rng(seed) alone, the draws would repeat data made with the same seed.
    return np.random.default_rng([seed, features, d]).standard_normal((features, d))


def elu_plus_one(x: Array) -> Array:
    """φ(x) = ELU(x) + 1: x + 1 where x > 0, else eˣ. Strictly positive.

    Katharopoulos et al. 2020, Eq. 7. Write the two branches exactly as above. Computed literally,
    (eˣ − 1) + 1 is 0 for every x below −17.3 in float32.

    >>> elu_plus_one(np.array([[2.0, 0.0]]))
    array([[3., 1.]])
    """
    (x,) = floating(x=x)
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def relu_feature_map(x: Array) -> Array:
    """φ(x) = max(0, x). Exactly 0 below 0, so a query can have weight 0 with every key.

    >>> relu_feature_map(np.array([[-2.0, 3.0]]))
    array([[0., 3.]])
    """
    (x,) = floating(x=x)
    return np.maximum(x, 0)


def squared_relu_feature_map(x: Array) -> Array:
    """φ(x) = max(0, x)². Non-negative like ReLU, but with a continuous gradient at 0.

    >>> squared_relu_feature_map(np.array([[-2.0, 3.0]]))
    array([[0., 9.]])
    """
    (x,) = floating(x=x)
    return np.maximum(x, 0) ** 2


def exp_feature_map(x: Array) -> Array:
    """φ(x) = eˣ of each coordinate. Positive; φ(q)·φ(k) is Σ exp(qᵢ + kᵢ), not exp(q·k).

    >>> exp_feature_map(np.array([[0.0, -np.inf]]))
    array([[1., 0.]])
    """
    (x,) = floating(x=x)
    return np.exp(x)


def softmax_kernel_feature_map(x: Array, projection_matrix: Array) -> Array:
    """φ(x) = exp(ω·x′ − ‖x′‖²/2)/√m with x′ = x·d^(−1/4), one feature for each row ω.

    x (..., n, d) and projection_matrix (m, d) → (..., n, m). All features are positive. If the rows
    are drawn from N(0, I), φ(q)·φ(k) is an unbiased estimate of exp(q·k/√d), the kernel of softmax
    attention (Choromanski et al. 2021, Lemma 1). The form with cos and sin is unbiased too, but it
    can be negative.

    >>> softmax_kernel_feature_map(np.zeros((1, 2)), np.ones((4, 2)))
    array([[0.5, 0.5, 0.5, 0.5]])
    """
    y, projection = in_float64(x=x, projection_matrix=projection_matrix)
    d = y.shape[-1] if y.ndim else 0
    if d == 0 or projection.ndim != 2 or projection.shape[0] == 0 or projection.shape[1] != d:
        raise ValueError(
            f"projection_matrix must be (m, d) for x (..., n, d), both at least 1, "
            f"but projection_matrix is {projection.shape} and x is {y.shape}"
        )
    y = y * d**-0.25
    exponents = y @ projection.T - np.sum(y**2, axis=-1, keepdims=True) / 2
    return np.asarray((np.exp(exponents) / np.sqrt(len(projection))).astype(x.dtype))


def compute_implicit_attention(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    """The weights (n, n) that linear attention implies: Aᵢⱼ = φ(qᵢ)·φ(kⱼ) / Σ_l φ(qᵢ)·φ(k_l).

    Every row adds up to 1. If the sum of a row is exactly 0, the row has no weights: raise
    ZeroDivisionError, and do not hide it with a small number in the denominator. A sum can also be
    negative or tiny; divide by it as it is.

    >>> compute_implicit_attention(np.eye(2), np.eye(2), relu_feature_map)
    array([[1., 0.],
           [0., 1.]])
    """
    q, k = in_float64(Q=Q, K=K)
    weights = feature_map(q) @ np.swapaxes(feature_map(k), -1, -2)
    sums = weights.sum(axis=-1, keepdims=True)
    empty = np.argwhere(sums[..., 0] == 0)
    if len(empty):
        raise ZeroDivisionError(f"the weights of query {tuple(empty[0].tolist())} add up to 0")
    return np.asarray((weights / sums).astype(Q.dtype))


def show_attention(A: Array) -> None:
    """Display the weights A (queries, keys): a line for each query, a mark for each key.

    You choose how. Print characters that are darker for larger weights, as here, or draw the
    weights with matplotlib, `plt.imshow(A)`. The function is graded only for running without an
    error, also for negative weights, zeros, and more keys than queries.

    >>> show_attention(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))
    █··
    ▒▒·
    ░░▒
    """
    shades = "·░▒▓█"
    largest = np.max(A, initial=0.0) or 1.0
    for row in A:
        steps = np.rint((len(shades) - 1) * np.clip(row / largest, 0, 1)).astype(int)
        print("".join(shades[step] for step in steps))


def compare_to_softmax(
    Q: Array, K: Array, feature_map: FeatureMap, scale: float | None = None
) -> dict[str, float]:
    """Compare the weights A of a feature map with the softmax weights S = softmax(s·QKᵀ).

    mse          the mean of (A − S)² over all entries
    max_diff     the largest |A − S|
    correlation  the Pearson correlation of the entries of A with those of S

    s is `scale`, or 1/√d if it is None. Scores can be large: subtract the largest score of each row
    before `np.exp`. Raise ZeroDivisionError if A does not exist.

    >>> Q, K = np.random.default_rng(0).standard_normal((2, 100, 64))
    >>> sorted(compare_to_softmax(Q, K, elu_plus_one))
    ['correlation', 'max_diff', 'mse']
    """
    q, k = in_float64(Q=Q, K=K)
    s = q.shape[-1] ** -0.5 if scale is None else scale
    A, S = compute_implicit_attention(q, k, feature_map), _softmax_weights(q, k, s)
    with np.errstate(invalid="ignore"):  # equal weights have no correlation: it is NaN
        return {
            "mse": float(np.mean((A - S) ** 2)),
            "max_diff": float(np.max(np.abs(A - S))),
            "correlation": float(np.corrcoef(A.ravel(), S.ravel())[0, 1]),
        }


def _softmax_weights(Q: Array, K: Array, s: float) -> Array:
    scores = s * (Q @ np.swapaxes(K, -1, -2))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def analyze_feature_map_quality(
    feature_map: FeatureMap, Q: Array, K: Array, V: Array
) -> dict[str, float]:
    """Compare a feature map with softmax attention, s = 1/√d: outputs, weights, stability.

    A are the weights of the map, S those of softmax, and B = φ(Q)φ(K)ᵀ the weights before they are
    normalised.

    output_relative_error  ‖AV − SV‖ / ‖SV‖, Frobenius norms
    output_cosine          the cosine of (AV)ᵢ and (SV)ᵢ, averaged over the rows i
    mse, max_diff, correlation   of A and S, as in `compare_to_softmax`
    smallest_normalizer    the smallest |Σⱼ Bᵢⱼ| of any row
    condition_number       the largest Σⱼ|Bᵢⱼ| / |Σⱼ Bᵢⱼ| of any row; 1 if nothing cancels
    negative_fraction      the share of entries of A below 0

    Raise ZeroDivisionError if A does not exist.

    >>> Q, K, V = np.random.default_rng(0).standard_normal((3, 100, 64))
    >>> quality = analyze_feature_map_quality(elu_plus_one, Q, K, V)
    >>> quality["negative_fraction"], round(quality["condition_number"], 9)
    (0.0, 1.0)
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    s = q.shape[-1] ** -0.5
    A, S = compute_implicit_attention(q, k, feature_map), _softmax_weights(q, k, s)
    B = feature_map(q) @ np.swapaxes(feature_map(k), -1, -2)
    mapped, exact = A @ v, S @ v
    lengths = np.linalg.norm(mapped, axis=-1) * np.linalg.norm(exact, axis=-1)
    with np.errstate(invalid="ignore"):  # equal weights have no correlation: it is NaN
        found = {
            "output_relative_error": np.linalg.norm(mapped - exact) / np.linalg.norm(exact),
            "output_cosine": np.mean(np.sum(mapped * exact, axis=-1) / lengths),
            "mse": np.mean((A - S) ** 2),
            "max_diff": np.max(np.abs(A - S)),
            "correlation": np.corrcoef(A.ravel(), S.ravel())[0, 1],
            "smallest_normalizer": np.min(np.abs(B.sum(axis=-1))),
            "condition_number": np.max(np.abs(B).sum(axis=-1) / np.abs(B.sum(axis=-1))),
            "negative_fraction": np.mean(A < 0),
        }
    return {name: float(value) for name, value in found.items()}
