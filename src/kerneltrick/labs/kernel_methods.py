"""Lab 06, kernels: Gram matrices, the function space of a kernel, and learning in it.

Points are rows: X has shape (n, d), and its Gram matrix K (n, n) has the entries Kᵢⱼ = k(xᵢ, xⱼ). A
function of the space is f = Σᵢ αᵢ k(xᵢ, ·), so its values at the points are Kα.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.labs._inputs import in_float64

Array = np.ndarray[Any, Any]


def evaluate(alpha: Array, K_new: Array) -> Array:
    """Evaluate f = Σᵢ αᵢ k(xᵢ, ·) at l new points. K_new (l, n) holds k(new point, xᵢ).

    >>> evaluate(np.array([3.0, 1.0]), np.array([[5.0, 14.0]]))
    array([29.])
    """
    return np.asarray(K_new @ alpha)


def polynomial_gram(X: Array, Y: Array, degree: int = 2, constant: float = 1.0) -> Array:
    """Compute k(x, y) = (x·y + c)ᵖ for all pairs, where p is `degree` and c is `constant`.

    X (n, d) and Y (l, d) → (n, l), without a loop over pairs. p = 1 and c = 0 give the linear
    kernel.

    >>> polynomial_gram(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]]))
    array([[144.,   1.]])
    """
    x, y = in_float64(X=X, Y=Y)
    return np.asarray((x @ y.T + constant) ** degree)


def rbf_gram(X: Array, Y: Array, length: float = 1.0) -> Array:
    """Compute k(x, y) = exp(−‖x − y‖² / 2ℓ²) for all pairs, where ℓ is `length`.

    X (n, d) and Y (l, d) → (n, l), without a loop over pairs: ‖x − y‖² = ‖x‖² + ‖y‖² − 2x·y.
    Libraries often write exp(−γ‖x − y‖²), with γ = 1/2ℓ².

    >>> rbf_gram(np.array([[0.0, 0.0]]), np.array([[0.0, 0.0], [2.0, 0.0]]), length=2.0).round(4)
    array([[1.    , 0.6065]])
    """
    x, y = in_float64(X=X, Y=Y)
    squares = np.sum(x**2, axis=1)[:, None] + np.sum(y**2, axis=1) - 2 * x @ y.T
    squares = np.maximum(squares, 0)  # rounding can make a 0 negative
    return np.asarray(np.exp(-squares / (2 * length**2)))


def is_gram_matrix(K: Array) -> bool:
    """Whether K (n, n) is positive semi-definite: symmetric, and no eigenvalue below 0.

    Symmetric means that |Kᵢⱼ − Kⱼᵢ| is at most 1e-9 of the largest |Kᵢⱼ|. An eigenvalue counts as
    negative if it is below −1e-9 of the largest |eigenvalue|, because rounding can move a 0 to
    either side. The signs of the entries do not matter.

    >>> is_gram_matrix(np.array([[1.0, -1.0], [-1.0, 1.0]]))  # eigenvalues 2 and 0
    True
    >>> is_gram_matrix(np.array([[1.0, 2.0], [2.0, 1.0]]))  # eigenvalues 3 and −1
    False
    """
    (K,) = in_float64(K=K)
    symmetric = np.max(np.abs(K - K.T)) <= 1e-9 * np.max(np.abs(K))
    eigenvalues = np.linalg.eigvalsh((K + K.T) / 2)
    return bool(symmetric and eigenvalues[0] >= -1e-9 * np.max(np.abs(eigenvalues)))


def negative_direction(K: Array) -> Array:
    """Find a vector c (n,) with cᵀKc < 0: a proof that the symmetric K (n, n) is not a Gram matrix.

    K has an eigenvalue clearly below 0. Every c with cᵀKc < 0 is right. If Kᵢⱼ were φ(xᵢ)·φ(xⱼ),
    cᵀKc would be ‖Σcᵢφ(xᵢ)‖² ≥ 0, so c rules out every φ at once.

    >>> K = np.array([[1.0, 2.0], [2.0, 1.0]])
    >>> c = negative_direction(K)
    >>> c.shape, bool(c @ K @ c < 0)
    ((2,), True)
    """
    (K,) = in_float64(K=K)
    _, vectors = np.linalg.eigh(K)  # in ascending order of the eigenvalues
    return vectors[:, 0]


def rkhs_norm(alpha: Array, K: Array) -> float:
    """The norm ‖f‖ of f = Σᵢ αᵢ k(xᵢ, ·), from ‖f‖² = Σᵢⱼ αᵢαⱼk(xᵢ, xⱼ). alpha (n,), K (n, n).

    >>> rkhs_norm(np.array([3.0, 2.0]), np.array([[1.0, 0.0], [0.0, 4.0]]))
    5.0
    """
    alpha, K = in_float64(alpha=alpha, K=K)
    squared = float(alpha @ K @ alpha)
    return float(np.sqrt(max(squared, 0.0)))  # rounding can make a 0 negative


def representer(gamma: Array, K_XZ: Array, K_XX: Array) -> Array:
    """The part of g = Σⱼ γⱼ k(zⱼ, ·) that the points xᵢ see: α (n,) of f = Σᵢ αᵢ k(xᵢ, ·).

    f is the orthogonal projection of g onto the span of the k(xᵢ, ·). So f(xᵢ) = g(xᵢ) at every
    xᵢ, and ‖f‖ ≤ ‖g‖. This is the proof of the representer theorem as a computation: no loss at the
    points can distinguish f from g, and f has the smaller norm. gamma is (l,). K_XZ (n, l) holds
    k(xᵢ, zⱼ). K_XX (n, n) holds k(xᵢ, xⱼ) and is invertible.

    >>> representer(np.array([1.0]), np.array([[2.0], [3.0]]), np.array([[1.0, 0.0], [0.0, 2.0]]))
    array([2. , 1.5])
    """
    gamma, K_XZ, K_XX = in_float64(gamma=gamma, K_XZ=K_XZ, K_XX=K_XX)
    return np.linalg.solve(K_XX, K_XZ @ gamma)


def ridge_dual(K: Array, y: Array, penalty: float) -> Array:
    """The α (n,) of the f = Σᵢ αᵢ k(xᵢ, ·) that minimises (1/n) Σᵢ (f(xᵢ) − yᵢ)² + λ‖f‖².

    K is (n, n), y is (n,) and λ is `penalty`. The gradient with respect to α is
    (2/n) K (Kα − y + nλα); find the α for which the bracket is 0. Note the mean: λ beside the mean
    of the squares corresponds to nλ beside their sum.

    >>> ridge_dual(np.eye(2), np.array([4.0, 8.0]), penalty=0.5)
    array([2., 4.])
    """
    K, y = in_float64(K=K, y=y)
    return np.linalg.solve(K + len(y) * penalty * np.eye(len(y)), y)


def ridge_primal(Phi: Array, y: Array, penalty: float) -> Array:
    """The w (m,) of the f(x) = w·φ(x) that minimises (1/n) Σᵢ (f(xᵢ) − yᵢ)² + λ‖w‖².

    The rows of Phi (n, m) are φ(xᵢ), and y is (n,). Solve an m×m system in O(n·m²), without an n×n
    array. With K = ΦΦᵀ this is the function of `ridge_dual`: w = Φᵀα.

    >>> ridge_primal(np.array([[1.0], [1.0]]), np.array([4.0, 8.0]), penalty=1.0)
    array([3.])
    """
    Phi, y = in_float64(Phi=Phi, y=y)
    n, m = Phi.shape
    return np.linalg.solve(Phi.T @ Phi + n * penalty * np.eye(m), Phi.T @ y)


def rkhs_descent(K: Array, y: Array, penalty: float, rate: float, steps: int) -> Array:
    """The α (n,) after `steps` steps f ← f − η∇J(f) of gradient descent, starting from f = 0.

    J(f) = (1/n) Σᵢ (f(xᵢ) − yᵢ)² + λ‖f‖², where λ is `penalty` and η is `rate`. Its gradient is the
    *function* ∇J(f) = (2/n) Σᵢ (f(xᵢ) − yᵢ) k(xᵢ, ·) + 2λf. Write f = Σᵢ αᵢ k(xᵢ, ·) and see what a
    step does to αᵢ. This is not the derivative of J with respect to αᵢ, which has another K in
    front.

    >>> rkhs_descent(np.eye(2), np.array([4.0, 8.0]), penalty=0.5, rate=0.5, steps=1)
    array([2., 4.])
    """
    K, y = in_float64(K=K, y=y)
    alpha = np.zeros(len(y))
    for _ in range(steps):
        residual = K @ alpha - y
        alpha = alpha - rate * (2 / len(y) * residual + 2 * penalty * alpha)
    return alpha


def svm_objectives(beta: Array, K: Array, y: Array, C: float) -> tuple[float, float]:
    """Return the objective that `svm_dual` maximises, and ½‖f‖² + C Σ max(0, 1 − yᵢf(xᵢ)).

    The second number is the loss of the machine, and the first is a lower bound of it. If they are
    equal, both are optimal. Their difference, the duality gap, tells how far beta is from optimal.

    >>> svm_objectives(np.array([1.0]), np.array([[1.0]]), np.array([1.0]), C=2.0)
    (0.5, 0.5)
    """
    f = K @ (y * beta)
    half = 0.5 * float((y * beta) @ f)
    return float(np.sum(beta)) - half, half + C * float(np.sum(np.maximum(0.0, 1 - y * f)))


def svm_dual(K: Array, y: Array, C: float) -> Array:
    """The β (n,) with 0 ≤ βᵢ ≤ C that maximises Σᵢ βᵢ − ½ Σᵢⱼ βᵢβⱼ yᵢyⱼ k(xᵢ, xⱼ).

    This is the support vector machine without an offset: f = Σᵢ yᵢβᵢ k(xᵢ, ·), with labels yᵢ = ±1
    and K (n, n). As a function of one βᵢ, the objective is a parabola with slope 1 − yᵢf(xᵢ) and
    curvature −Kᵢᵢ. Move to its top, βᵢ + (1 − yᵢf(xᵢ))/Kᵢᵢ, and clip to [0, C]. Do this for each i
    in turn, round after round, until the duality gap (`svm_objectives`) is at most 1e-3 of the
    loss. Other methods work as well.

    >>> X = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> y = np.array([1.0, 1.0, -1.0, -1.0])
    >>> K = rbf_gram(X, X, length=0.5)
    >>> np.sign(K @ (y * svm_dual(K, y, C=10.0)))
    array([ 1.,  1., -1., -1.])
    """
    K, y = in_float64(K=K, y=y)
    beta, f = np.zeros(len(y)), np.zeros(len(y))
    for _ in range(10_000):
        for i in range(len(y)):
            top = beta[i] + (1 - y[i] * f[i]) / K[i, i]
            change = min(max(top, 0.0), C) - beta[i]
            beta[i] += change
            f += change * y[i] * K[:, i]
        dual, loss = svm_objectives(beta, K, y, C)
        if loss - dual <= 1e-6 * loss:
            break
    return beta
