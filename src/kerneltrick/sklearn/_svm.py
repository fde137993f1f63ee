"""Kernel support vector machines: scikit-learn's, given the Gram matrix or the features."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from kerneltrick import kernels
from kerneltrick.kernels import Kernel

_ROUNDS = 20  # of the search for the free intercept; two or three are usual


class KernelSVC(ClassifierMixin, BaseEstimator):  # type: ignore[misc] # untyped bases
    """A support vector classifier with any kernel of kerneltrick, one class against the rest.

    Minimises ½‖f‖² + C·Σmax(0, 1 − yᵢ(f(xᵢ) + b)); the λ of `rkhs_descent` is 1/2NC.
    `solver` "dual" hands the n×n Gram matrix to `SVC`, "primal" the n×m features to `LinearSVC`,
    "auto" is primal where the kernel has a map of m ≤ n features. Both solve this one problem, to
    the tolerance of the solver, where the boundary passes through the cloud of samples; where it
    does not, `LinearSVC` keeps a small penalty on b.

    Parameters
    ----------
    kernel : kernel, text such as "rbf:length=2", feature map or function, default "rbf"
    C : number > 0, default 1
    solver : "auto", "dual" or "primal"
    tol : of the solver underneath
    max_iter : of LinearSVC

    Attributes
    ----------
    classes_, n_features_in_ : as in scikit-learn
    kernel_ : the kernel in use
    solver_ : "dual" or "primal"
    coefficients_ : α (n, machines) of f = Σαᵢk(xᵢ, ·) if dual, else the weights (m, machines)
    intercepts_ : b (machines,); two classes need one machine
    n_iter_ : iterations of the solver underneath, for the machine that took most

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
                f"KernelSVC needs at least two classes, but y holds one class, {self.classes_[0]}"
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
        """f(x) + b: (n,) for two classes, positive for the second; else (n, classes)."""
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
        """α, b and the iterations of SVC."""
        machine = SVC(C=self.C, kernel="precomputed", tol=self.tol).fit(matrix, positive)
        alpha = np.zeros(len(matrix))
        alpha[machine.support_] = machine.dual_coef_[0]
        return alpha, float(machine.intercept_[0]), int(np.max(machine.n_iter_))

    def _by_features(self, phi: Any, positive: Any) -> tuple[Any, float, int]:
        """w, b and the iterations of LinearSVC, with an intercept that costs nothing.

        LinearSVC penalises its intercept b′ = w·c + b, c the point it takes for the origin. So c
        is moved onto the boundary, where b′ = 0, until it stays there: then the penalty has no
        slope, and the solution is that of the problem without it. A boundary outside the cloud of
        samples, where labels are noise, is not followed: liblinear would not converge there.
        """
        middle = centre = (phi[positive].mean(axis=0) + phi[~positive].mean(axis=0)) / 2
        spread, iterations, inside = _length(phi - middle), 0, True
        for _ in range(_ROUNDS):
            moved = phi - centre
            length = _length(moved) or 1.0
            machine = LinearSVC(
                C=self.C, loss="hinge", tol=self.tol, max_iter=self.max_iter,
                intercept_scaling=length, random_state=0,
            ).fit(moved, positive)  # fmt: skip
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
    """The root of the mean squared length of the rows."""
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
