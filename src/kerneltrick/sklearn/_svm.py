"""A kernel support vector classifier on top of scikit-learn's solvers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kerneltrick import kernels
from kerneltrick.kernels import Kernel

_ROUNDS = 20  # the most rounds of the search for the intercept; it usually takes two or three


class KernelSVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # untyped bases
    """A support vector classifier with any kernel of kerneltrick, one class against the rest.

    It minimises ½‖f‖² + C·Σmax(0, 1 − yᵢ(f(xᵢ) + b)), where λ of `rkhs_descent` is 1/2NC. Both
    solvers solve this problem to their tolerance if the boundary passes through the cloud of
    samples. If it does not, `LinearSVC` keeps a small penalty on b.

    Parameters
    ----------
    kernel : kernel, text, feature map or function, default="rbf"
        The kernel, for example "rbf:length=2".
    C : float, default=1
        The weight of the errors, C > 0.
    solver : {"auto", "dual", "primal"}, default="auto"
        "dual" passes the n×n Gram matrix to `SVC`, and "primal" passes the n×m features to
        `LinearSVC`. "auto" chooses primal if the kernel has a map with m ≤ n features.
    tol : float, default=1e-3
        The tolerance of the underlying solver.
    max_iter : int, default=10000
        The largest number of iterations of `LinearSVC`.

    Attributes
    ----------
    classes_, n_features_in_ :
        The classes and the number of input features, as in scikit-learn.
    kernel_ : Kernel
        The kernel that is used.
    solver_ : str
        The solver that is used, "dual" or "primal".
    coefficients_ : ndarray
        α (n, machines) of f = Σαᵢk(xᵢ, ·) for dual, or the weights (m, machines) for primal.
    intercepts_ : ndarray
        b (machines,). Two classes need one machine.
    n_iter_ : int
        The iterations of the underlying solver, for the machine that took the most.

    Examples
    --------
    >>> X, y = [[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0]
    >>> KernelSVC("rbf", C=10).fit(X, y).predict(X)
    array([0, 1, 1, 0])
    """

    def __init__(
        self,
        kernel: kernels.KernelLike = "rbf",
        *,
        C: float = 1.0,
        solver: str = "auto",
        tol: float = 1e-3,
        max_iter: int = 10_000,
    ) -> None:
        self.kernel = kernel
        self.C = C
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any) -> KernelSVC:
        """Train on samples X (n, d) with one class label each."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"KernelSVC needs at least two classes, but y has one class, {self.classes_[0]}"
            )
        self.kernel_ = kernels.get(self.kernel)
        self.solver_ = _solver(self.solver, self.kernel_, *X.shape)
        chosen = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        if self.solver_ == "primal":
            phi = self._features(X)
            machines = [self._by_features(phi, y == label) for label in chosen]
        else:
            self.points_ = X
            matrix = kernels.gram(self.kernel_, X)
            machines = [self._by_gram(matrix, y == label) for label in chosen]
        self.coefficients_ = np.stack([machine[0] for machine in machines], axis=1)
        self.intercepts_ = np.array([machine[1] for machine in machines])
        self.n_iter_ = max(machine[2] for machine in machines)
        return self

    def decision_function(self, X: Any) -> Any:
        """f(x) + b: for two classes (n,), positive for the second one, otherwise (n, classes)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        primal = self.solver_ == "primal"
        given = self._features(X) if primal else self.kernel_(X, self.points_)
        decisions = given @ self.coefficients_ + self.intercepts_
        return decisions[:, 0] if len(self.classes_) == 2 else decisions

    def predict(self, X: Any) -> Any:
        """The class with the largest decision."""
        decisions = self.decision_function(X)
        chosen = (decisions > 0).astype(int) if decisions.ndim == 1 else decisions.argmax(axis=1)
        return self.classes_[chosen]

    def _by_gram(self, matrix: Any, positive: Any) -> tuple[Any, float, int]:
        """Train SVC; return α, b and the number of iterations."""
        machine = SVC(C=self.C, kernel="precomputed", tol=self.tol).fit(matrix, positive)
        alpha = np.zeros(len(matrix))
        alpha[machine.support_] = machine.dual_coef_[0]
        return alpha, float(machine.intercept_[0]), int(np.max(machine.n_iter_))

    def _by_features(self, phi: Any, positive: Any) -> tuple[Any, float, int]:
        """Train LinearSVC without a penalty on b; return w, b and the number of iterations.

        LinearSVC penalises its intercept b′ = w·c + b, where c is the point that it takes as the
        origin. Therefore c is moved onto the boundary, where b′ = 0, until it stays there. Then the
        penalty has no slope, and the solution is that of the problem without a penalty. A boundary
        outside the cloud of samples (labels that are noise) is not followed, because liblinear
        would not converge there.
        """
        middle = centre = (phi[positive].mean(axis=0) + phi[~positive].mean(axis=0)) / 2
        spread, iterations, inside = _length(phi - middle), 0, True
        for _ in range(_ROUNDS):
            moved = phi - centre
            length = _length(moved) or 1.0
            machine = LinearSVC(
                C=self.C,
                loss="hinge",
                tol=self.tol,
                max_iter=self.max_iter,
                intercept_scaling=length,
                random_state=0,
            ).fit(moved, positive)
            w, offset = machine.coef_[0], float(machine.intercept_[0])
            intercept = offset - float(w @ centre)
            iterations = max(iterations, int(machine.n_iter_))
            if abs(offset) <= self.tol or not inside or not w.any():
                break
            move = centre - offset / (w @ w) * w - middle
            inside = float(np.linalg.norm(move)) <= spread
            centre = middle + (move if inside else move * (spread / np.linalg.norm(move)))
        return w, intercept, iterations

    def _features(self, X: Any) -> Any:
        phi = self.kernel_.feature_map
        assert phi is not None
        return phi.phi(X)


def _length(phi: Any) -> float:
    """The root mean square of the lengths of the rows."""
    return float(np.sqrt(np.mean(np.sum(phi**2, axis=1))))


def _solver(solver: str, kernel: Kernel, n: int, d: int) -> str:
    if solver not in ("auto", "dual", "primal"):
        raise ValueError(f"KernelSVC needs solver auto, dual or primal, not {solver!r}")
    phi = kernel.feature_map
    if solver == "primal" and phi is None:
        raise ValueError(
            f"KernelSVC has solver='primal', but {kernel} has no finite feature map; use "
            f"solver='dual', or kernel.random_features(256) for an approximation"
        )
    if solver == "auto":
        return "primal" if phi is not None and phi.dim(d) <= n else "dual"
    return solver
