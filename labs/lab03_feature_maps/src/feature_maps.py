"""Lab 03, feature maps: φ functions, the attention they imply, and how far it is from softmax.

Rows are tokens: Q and K are (n, d), V is (n, M), φ(x) is (n, m), with any batch dimensions in
front. A feature map is any function that turns arrays (..., n, d) into (..., n, m).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FeatureMap = Callable[[Array], Array]


def random_projection(features: int, d: int, seed: int = 0) -> Array:
    """m = `features` draws ω ~ N(0, I_d) as the rows of a float64 array (m, d).

    >>> random_projection(256, 64).shape
    (256, 64)
    """
    # A stream of its own: with default_rng(seed) the draws would repeat data made with that seed.
    return np.random.default_rng([seed, features, d]).standard_normal((features, d))


def elu_plus_one(x: Array) -> Array:
    """φ(x) = ELU(x) + 1: x + 1 where x > 0, else eˣ. Strictly positive.

    Katharopoulos et al. 2020, Eq. 7. Write the two branches as they stand here: computed
    literally, (eˣ − 1) + 1 is 0 for every x below −17.3 in float32.

    >>> elu_plus_one(np.array([[2.0, 0.0]]))
    array([[3., 1.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("elu_plus_one")


def relu_feature_map(x: Array) -> Array:
    """φ(x) = max(0, x). Non-negative, but a query can have the weight 0 with every key.

    >>> relu_feature_map(np.array([[-2.0, 3.0]]))
    array([[0., 3.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("relu_feature_map")


def squared_relu_feature_map(x: Array) -> Array:
    """φ(x) = max(0, x)². Non-negative like ReLU, with a gradient that is continuous at 0.

    >>> squared_relu_feature_map(np.array([[-2.0, 3.0]]))
    array([[0., 9.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("squared_relu_feature_map")


def exp_feature_map(x: Array) -> Array:
    """φ(x) = eˣ, each coordinate alone. Positive; φ(q)·φ(k) = Σ exp(qᵢ + kᵢ), not exp(q·k).

    >>> exp_feature_map(np.array([[0.0, -np.inf]]))
    array([[1., 0.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("exp_feature_map")


def softmax_kernel_feature_map(x: Array, projection_matrix: Array) -> Array:
    """φ(x) = exp(ω·x′ − ‖x′‖²/2)/√m with x′ = x·d^(−1/4), one feature for each row ω.

    x (..., n, d) and projection_matrix (m, d) → (..., n, m). Positive. If the rows are draws from
    N(0, I), φ(q)·φ(k) is an unbiased estimate of exp(q·k/√d), the kernel of softmax attention
    (Choromanski et al. 2021, Lemma 1). The form with cos and sin is unbiased too, but can be
    negative.

    >>> softmax_kernel_feature_map(np.zeros((1, 2)), np.ones((4, 2)))
    array([[0.5, 0.5, 0.5, 0.5]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("softmax_kernel_feature_map")


def compute_implicit_attention(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    """The weights (n, n) that linear attention implies: Aᵢⱼ = φ(qᵢ)·φ(kⱼ) / Σ_l φ(qᵢ)·φ(k_l).

    Every row adds up to 1. A row whose sum is exactly 0 has no weights: raise ZeroDivisionError,
    do not hide it with a small number in the denominator.

    >>> compute_implicit_attention(np.eye(2), np.eye(2), relu_feature_map)
    array([[1., 0.],
           [0., 1.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("compute_implicit_attention")


def show_attention(A: Array) -> None:
    """Make the weights A (queries, keys) visible: a line for each query, a mark for each key.

    How is yours to choose: print characters, darker for larger weights, as here, or draw them with
    matplotlib, `plt.imshow(A)`. It is graded only for running, whatever weights come: negative
    ones, zeros, more keys than queries.

    >>> show_attention(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]))
    █··
    ▒▒·
    ░░▒
    """
    # YOUR CODE HERE
    raise NotImplementedError("show_attention")


def compare_to_softmax(
    Q: Array, K: Array, feature_map: FeatureMap, scale: float | None = None
) -> dict[str, float]:
    """How far the weights A of a feature map are from the softmax weights S = softmax(s·QKᵀ).

    mse          the mean of (A − S)² over all entries
    max_diff     the largest |A − S|
    correlation  the Pearson correlation of the entries of A with those of S

    s is 1/√d unless `scale` gives it. Raises ZeroDivisionError where A does not exist.

    >>> Q, K = np.random.default_rng(0).standard_normal((2, 100, 64))
    >>> sorted(compare_to_softmax(Q, K, elu_plus_one))
    ['correlation', 'max_diff', 'mse']
    """
    # YOUR CODE HERE
    raise NotImplementedError("compare_to_softmax")


def analyze_feature_map_quality(
    feature_map: FeatureMap, Q: Array, K: Array, V: Array
) -> dict[str, float]:
    """A feature map against softmax attention with s = 1/√d: outputs, weights, stability.

    With A the weights of the map, S those of softmax, B = φ(Q)φ(K)ᵀ before normalising:

    output_relative_error  ‖AV − SV‖ / ‖SV‖, Frobenius norms
    output_cosine          the cosine of (AV)ᵢ and (SV)ᵢ, averaged over the rows i
    mse, max_diff, correlation   of A and S, as in `compare_to_softmax`
    smallest_normalizer    the smallest |Σⱼ Bᵢⱼ| of any row
    condition_number       the largest Σⱼ|Bᵢⱼ| / |Σⱼ Bᵢⱼ| of any row; 1 if nothing cancels
    negative_fraction      the share of entries of A below 0

    Raises ZeroDivisionError where A does not exist.

    >>> Q, K, V = np.random.default_rng(0).standard_normal((3, 100, 64))
    >>> quality = analyze_feature_map_quality(elu_plus_one, Q, K, V)
    >>> quality["negative_fraction"], round(quality["condition_number"], 9)
    (0.0, 1.0)
    """
    # YOUR CODE HERE
    raise NotImplementedError("analyze_feature_map_quality")
