"""Lab 04, the quadratic kernel: (q·k + 1)², its exact feature map, and attention with it in O(n).

Rows are tokens: Q and K are (n, d), V is (n, M), φ(x) is (n, m).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def random_inputs(n: int, d: int, width: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Q (n, d), K (n, d) and V (n, width) in float64; q·k has variance 1, entries of V too.

    >>> Q, K, V = random_inputs(n=50, d=4, width=3)
    >>> Q.shape, K.shape, V.shape
    ((50, 4), (50, 4), (50, 3))
    """
    rng = np.random.default_rng([4, seed])
    Q, K = rng.standard_normal((2, n, d)) / d**0.25
    return Q, K, rng.standard_normal((n, width))


def similarity_conditions(S: Array) -> dict[str, bool]:
    """What can be said of a similarity from a sample of it: S (n, n), Sᵢⱼ = sim(xᵢ, xⱼ).

    finite_output          no row adds up to 0, so attention can divide by the sums: every
                           |Σⱼ Sᵢⱼ| is above 1e-9 · Σⱼ |Sᵢⱼ|
    non_negative           no entry is below 0 (0 itself may occur)
    symmetric              |Sᵢⱼ − Sⱼᵢ| is at most 1e-9 of the largest |Sᵢⱼ| everywhere
    positive_semidefinite  symmetric, and no eigenvalue is below 0. Rounding moves an eigenvalue
                           0 a little: at least −1e-9 of the largest |eigenvalue| counts as 0

    A sample can refute a condition for the similarity itself, and cannot prove it.

    >>> similarity_conditions(np.array([[4.0, 1.0], [1.0, 9.0]]))["positive_semidefinite"]
    True
    >>> found = similarity_conditions(np.array([[1.0, 2.0], [2.0, 1.0]]))  # eigenvalues 3 and −1
    >>> found["non_negative"], found["positive_semidefinite"]
    (True, False)
    """
    # YOUR CODE HERE
    raise NotImplementedError("similarity_conditions")


def factorises(S: Array, phi_Q: Array, phi_K: Array) -> bool:
    """Whether Sᵢⱼ = φ(qᵢ)·φ(kⱼ) for all i and j, to 1e-6 of the largest |Sᵢⱼ|.

    S (n, l), phi_Q (n, m) and phi_K (l, m). Only a similarity that factorises can be used for
    linear attention.

    >>> factorises(np.array([[3.0, 8.0]]), np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0, 4]]))
    True
    """
    # YOUR CODE HERE
    raise NotImplementedError("factorises")


def quadratic_kernel(Q: Array, K: Array, constant: float = 1.0) -> Array:
    """(qᵢ·kⱼ + c)² for all pairs: Q (n, d) and K (l, d) → (n, l); c is `constant`.

    >>> quadratic_kernel(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]]))
    array([[144.,   1.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("quadratic_kernel")


def square_map(x: Array) -> Array:
    """φ with φ(q)·φ(k) = (q·k)² exactly and as few features as possible, m = d(d+1)/2.

    x (n, d) → (n, m): the squares and the products of different coordinates, each once, with the
    factors that the expansion of (Σqᵢkᵢ)² asks for. The order of the features is yours.

    >>> phi = square_map(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> phi.shape, round(float(phi[0] @ phi[1]), 9)  # (1·3 + 2·4)² = 121
    ((2, 3), 121.0)
    """
    # YOUR CODE HERE
    raise NotImplementedError("square_map")


def quadratic_map(x: Array) -> Array:
    """φ with φ(q)·φ(k) = (q·k + 1)² exactly and as few features as possible, m = (d+1)(d+2)/2.

    x (n, d) → (n, m): the features of `square_map`, the coordinates and a constant, with the
    factors that the expansion of (Σqᵢkᵢ + 1)² asks for. The order of the features is yours.

    >>> phi = quadratic_map(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> phi.shape, round(float(phi[0] @ phi[1]), 9)  # (1·3 + 2·4 + 1)² = 144
    ((2, 6), 144.0)
    """
    # YOUR CODE HERE
    raise NotImplementedError("quadratic_map")


def attention_by_kernel(Q: Array, K: Array, V: Array) -> Array:
    """oᵢ = Σⱼ (qᵢ·kⱼ + 1)² vⱼ / Σⱼ (qᵢ·kⱼ + 1)², with the n×n similarities formed.

    Q (n, d), K (l, d), V (l, M) → (n, M). There is no 1/√d and no softmax. If all similarities of
    a query are exactly 0, it has no output: raise ZeroDivisionError.

    >>> attention_by_kernel(np.array([[1.0]]), np.array([[0.0], [1.0]]), np.array([[10.0], [20.0]]))
    array([[18.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("attention_by_kernel")


def attention_by_features(Q: Array, K: Array, V: Array) -> Array:
    """The output of `attention_by_kernel` from sums over the keys, without an n×n array.

    U = Σⱼ φ(kⱼ)vⱼᵀ (m, M) and Z = Σⱼ φ(kⱼ) (m,) are computed once; oᵢ = φ(qᵢ)ᵀU / φ(qᵢ)ᵀZ. The
    map φ is `quadratic_map`. Q (n, d), K (l, d), V (l, M) → (n, M).

    >>> Q, K, V = random_inputs(n=50, d=4, width=3)
    >>> bool(np.allclose(attention_by_features(Q, K, V), attention_by_kernel(Q, K, V)))
    True
    """
    # YOUR CODE HERE
    raise NotImplementedError("attention_by_features")


def causal_attention_by_features(Q: Array, K: Array, V: Array) -> Array:
    """The same where token i sees only the tokens j ≤ i, itself included: running sums.

    Uᵢ = Uᵢ₋₁ + φ(kᵢ)vᵢᵀ, Zᵢ = Zᵢ₋₁ + φ(kᵢ), oᵢ = φ(qᵢ)ᵀUᵢ / φ(qᵢ)ᵀZᵢ; no n×n array, no mask.
    Q (n, d), K (n, d), V (n, M) → (n, M). The first output is v₁.

    >>> Q, K, V = np.ones((2, 1)), np.array([[0.0], [1.0]]), np.array([[10.0], [20.0]])
    >>> causal_attention_by_features(Q, K, V).round(9)
    array([[10.],
           [18.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("causal_attention_by_features")


def softmax_multiply_adds(n: int, D: int, M: int) -> int:
    """n²(D + M): QKᵀ and weights·V of softmax attention.

    >>> softmax_multiply_adds(1000, 32, 80)
    112000000
    """
    return n * n * (D + M)


def quadratic_multiply_adds(n: int, D: int, M: int) -> int:
    """The multiply-adds of the two products of `attention_by_features`, U = φ(K)ᵀV and φ(Q)U.

    Queries and keys have D coordinates, values M; φ has m = (D+1)(D+2)/2 features. Z and φ itself
    are left out, as the row sums of softmax are in `softmax_multiply_adds`. A whole number.

    >>> quadratic_multiply_adds(1000, 32, 80)
    89760000
    """
    # YOUR CODE HERE
    raise NotImplementedError("quadratic_multiply_adds")


def crossover(D: int, M: int) -> int:
    """The least n ≥ 1 with quadratic_multiply_adds(n, D, M) < softmax_multiply_adds(n, D, M).

    At equal counts nothing is gained yet. A whole number.

    >>> crossover(32, 80)
    802
    """
    # YOUR CODE HERE
    raise NotImplementedError("crossover")
