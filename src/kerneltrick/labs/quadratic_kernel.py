"""Lab 04, the quadratic kernel: (q·k + 1)², its exact feature map, and O(n) attention with it.

Rows are tokens: Q and K have shape (n, d), V has (n, M) and φ(x) has (n, m).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.labs._inputs import in_float64

Array = np.ndarray[Any, Any]


def random_inputs(n: int, d: int, width: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Random Q (n, d), K (n, d) and V (n, width) in float64. q·k and V have variance 1.

    >>> Q, K, V = random_inputs(n=50, d=4, width=3)
    >>> Q.shape, K.shape, V.shape
    ((50, 4), (50, 4), (50, 3))
    """
    rng = np.random.default_rng([4, seed])
    Q, K = rng.standard_normal((2, n, d)) / d**0.25
    return Q, K, rng.standard_normal((n, width))


def similarity_conditions(S: Array) -> dict[str, bool]:
    """Check four conditions on a sample of a similarity: S (n, n) with Sᵢⱼ = sim(xᵢ, xⱼ).

    finite_output          no row adds up to 0, so attention can divide by the sums: every
                           |Σⱼ Sᵢⱼ| is above 1e-9 · Σⱼ |Sᵢⱼ|
    non_negative           no entry is below 0 (an entry may be 0)
    symmetric              |Sᵢⱼ − Sⱼᵢ| is at most 1e-9 of the largest |Sᵢⱼ|, for all i and j
    positive_semidefinite  symmetric, and no eigenvalue is below 0. Rounding can move an eigenvalue
                           0 slightly, so −1e-9 of the largest |eigenvalue| still counts as 0

    A sample can refute a condition for the similarity itself, but cannot prove it.

    >>> similarity_conditions(np.array([[4.0, 1.0], [1.0, 9.0]]))["positive_semidefinite"]
    True
    >>> found = similarity_conditions(np.array([[1.0, 2.0], [2.0, 1.0]]))  # eigenvalues 3 and −1
    >>> found["non_negative"], found["positive_semidefinite"]
    (True, False)
    """
    (S,) = in_float64(S=S)
    symmetric = bool(np.max(np.abs(S - S.T)) <= 1e-9 * np.max(np.abs(S)))
    eigenvalues = np.linalg.eigvalsh((S + S.T) / 2)
    no_negative = eigenvalues[0] >= -1e-9 * np.max(np.abs(eigenvalues))
    sums, sizes = np.abs(S.sum(axis=1)), np.abs(S).sum(axis=1)
    return {
        "finite_output": bool(np.all(sums > 1e-9 * sizes)),
        "non_negative": bool(np.all(S >= 0)),
        "symmetric": symmetric,
        "positive_semidefinite": bool(symmetric and no_negative),
    }


def factorises(S: Array, phi_Q: Array, phi_K: Array) -> bool:
    """Whether Sᵢⱼ = φ(qᵢ)·φ(kⱼ) for all i and j, to 1e-6 of the largest |Sᵢⱼ|.

    S is (n, l), phi_Q is (n, m) and phi_K is (l, m). Only a similarity that factorises can be used
    for linear attention.

    >>> factorises(np.array([[3.0, 8.0]]), np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0, 4]]))
    True
    """
    S, phi_Q, phi_K = in_float64(S=S, phi_Q=phi_Q, phi_K=phi_K)
    return bool(np.max(np.abs(phi_Q @ phi_K.T - S)) <= 1e-6 * np.max(np.abs(S)))


def quadratic_kernel(Q: Array, K: Array, constant: float = 1.0) -> Array:
    """Compute (qᵢ·kⱼ + c)² for all pairs: Q (n, d) and K (l, d) → (n, l), where c is `constant`.

    >>> quadratic_kernel(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]]))
    array([[144.,   1.]])
    """
    q, k = in_float64(Q=Q, K=K)
    return np.asarray((q @ k.T + constant) ** 2)


def square_map(x: Array) -> Array:
    """The φ with φ(q)·φ(k) = (q·k)² exactly and the fewest features, m = d(d+1)/2.

    x (n, d) → (n, m). The features are the squares and the products of different coordinates, each
    once, with the factors that the expansion of (Σqᵢkᵢ)² requires. Their order does not matter.

    >>> phi = square_map(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> phi.shape, round(float(phi[0] @ phi[1]), 9)  # (1·3 + 2·4)² = 121
    ((2, 3), 121.0)
    """
    (x,) = in_float64(x=x)
    i, j = np.triu_indices(x.shape[1], 1)
    return np.concatenate([x**2, np.sqrt(2) * x[:, i] * x[:, j]], axis=1)


def quadratic_map(x: Array) -> Array:
    """The φ with φ(q)·φ(k) = (q·k + 1)² exactly and the fewest features, m = (d+1)(d+2)/2.

    x (n, d) → (n, m). The features are those of `square_map`, the coordinates and a constant, with
    the factors that the expansion of (Σqᵢkᵢ + 1)² requires. Their order does not matter.

    >>> phi = quadratic_map(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> phi.shape, round(float(phi[0] @ phi[1]), 9)  # (1·3 + 2·4 + 1)² = 144
    ((2, 6), 144.0)
    """
    (x,) = in_float64(x=x)
    return np.concatenate([np.ones((len(x), 1)), np.sqrt(2) * x, square_map(x)], axis=1)


def attention_by_kernel(Q: Array, K: Array, V: Array) -> Array:
    """Compute oᵢ = Σⱼ (qᵢ·kⱼ + 1)² vⱼ / Σⱼ (qᵢ·kⱼ + 1)² with the n×n similarities.

    Q (n, d), K (l, d), V (l, M) → (n, M). There is no 1/√d and no softmax. If all similarities of
    a query are exactly 0, it has no output: raise ZeroDivisionError. Tiny similarities are fine.

    >>> attention_by_kernel(np.array([[1.0]]), np.array([[0.0], [1.0]]), np.array([[10.0], [20.0]]))
    array([[18.]])
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    S = quadratic_kernel(q, k)
    sums = S.sum(axis=1, keepdims=True)
    if np.any(sums == 0):
        raise ZeroDivisionError("all similarities of a query are 0")
    return np.asarray(S @ v / sums)


def attention_by_features(Q: Array, K: Array, V: Array) -> Array:
    """Compute the output of `attention_by_kernel` from sums over the keys, without an n×n array.

    U = Σⱼ φ(kⱼ)vⱼᵀ (m, M) and Z = Σⱼ φ(kⱼ) (m,) are computed once. Then oᵢ = φ(qᵢ)ᵀU / φ(qᵢ)ᵀZ.
    The map φ is `quadratic_map`. Q (n, d), K (l, d), V (l, M) → (n, M).

    >>> Q, K, V = random_inputs(n=50, d=4, width=3)
    >>> bool(np.allclose(attention_by_features(Q, K, V), attention_by_kernel(Q, K, V)))
    True
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    phi_Q, phi_K = quadratic_map(q), quadratic_map(k)
    U, Z = phi_K.T @ v, phi_K.sum(axis=0)
    return np.asarray(phi_Q @ U / (phi_Q @ Z)[:, None])


def causal_attention_by_features(Q: Array, K: Array, V: Array) -> Array:
    """Compute the same with running sums: token i sees only the tokens j ≤ i, including itself.

    Uᵢ = Uᵢ₋₁ + φ(kᵢ)vᵢᵀ, Zᵢ = Zᵢ₋₁ + φ(kᵢ), oᵢ = φ(qᵢ)ᵀUᵢ / φ(qᵢ)ᵀZᵢ, without an n×n array and
    without a mask. Q (n, d), K (n, d), V (n, M) → (n, M). The first output is v₁.

    >>> Q, K, V = np.ones((2, 1)), np.array([[0.0], [1.0]]), np.array([[10.0], [20.0]])
    >>> causal_attention_by_features(Q, K, V).round(9)
    array([[10.],
           [18.]])
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    phi_Q, phi_K = quadratic_map(q), quadratic_map(k)
    U, Z = np.zeros((phi_K.shape[1], v.shape[1])), np.zeros(phi_K.shape[1])
    output = np.zeros((len(q), v.shape[1]))
    for i in range(len(q)):
        U += np.outer(phi_K[i], v[i])
        Z += phi_K[i]
        output[i] = phi_Q[i] @ U / (phi_Q[i] @ Z)
    return output


def softmax_multiply_adds(n: int, D: int, M: int) -> int:
    """The multiply-adds of softmax attention, n²(D + M): QKᵀ and weights·V.

    >>> softmax_multiply_adds(1000, 32, 80)
    112000000
    """
    return n * n * (D + M)


def quadratic_multiply_adds(n: int, D: int, M: int) -> int:
    """Count the multiply-adds of the two products of `attention_by_features`: φ(K)ᵀV and φ(Q)U.

    Queries and keys have D coordinates and values have M. φ has m = (D+1)(D+2)/2 features. Z and φ
    itself are not counted, just as `softmax_multiply_adds` does not count the row sums. The answer
    is a whole number.

    >>> quadratic_multiply_adds(1000, 32, 80)
    89760000
    """
    m = (D + 1) * (D + 2) // 2
    return 2 * n * m * M


def crossover(D: int, M: int) -> int:
    """The smallest n ≥ 1 with quadratic_multiply_adds(n, D, M) < softmax_multiply_adds(n, D, M).

    At equal counts nothing is gained yet. The answer is a whole number.

    >>> crossover(32, 80)
    802
    """
    m = (D + 1) * (D + 2) // 2
    return 2 * m * M // (D + M) + 1
