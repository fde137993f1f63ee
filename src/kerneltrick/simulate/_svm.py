"""Compare a support vector machine and attention with the same kernel on the same points."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kerneltrick import kernels
from kerneltrick.attention import kernel_attention, linear_attention
from kerneltrick.simulate._check import Floats, fits, positive, whole

_TOLERANCE = 1e-6  # tolerance of the solvers; decisions are of order 1
_ITERATIONS = 1_000_000
_NEW = 2000


class Machine(NamedTuple):
    """A function on the plane whose sign is the class, made from n labelled points."""

    name: str
    accuracy: float  # on new points
    carriers: int  # the number of points that its value depends on
    largest: float  # the largest |value| at the new points
    by_features: float  # the largest difference to the result with m features
    without_one: float  # the largest change if a sure point is removed; NaN if there is none


class SVMAndAttention(NamedTuple):
    """An SVM with `coefficients` α, and attention with the labels as its values."""

    n: int
    C: float
    length: float
    order: int
    m: int  # features of the kernel
    kernel_difference: float  # the largest difference to the RBF kernel of that length
    noise: float
    seed: int
    x: Floats  # (n, 2)
    y: Floats  # (n,): −1 and 1
    coefficients: Floats  # (n,)
    left_out: int | None  # the point removed for `without_one`; None if all are support vectors
    machines: tuple[Machine, Machine]
    sharper: float  # accuracy of attention with the RBF kernel of half the length
    grid_x: Floats
    grid_y: Floats
    svm_grid: Floats  # values on the grid, (len(grid_y), len(grid_x))
    attention_grid: Floats


def svm(
    *,
    n: int = 200,
    C: float = 1.0,
    length: float = 0.6,
    order: int = 16,
    noise: float = 0.2,
    seed: int = 0,
) -> SVMAndAttention:
    """Classify two half moons of n points (needs the extra `sklearn`).

    The SVM is Σαᵢk(xᵢ, x) + b with learned α. Attention is Σk(xᵢ, x)yᵢ / Σk(xᵢ, x) with keys xᵢ
    and values yᵢ; nothing is learned. k is the RBF kernel with its series cut off at an even
    `order`, so that it is positive and has m = C(order + 2, 2) features. Both can be computed from
    the n×n matrix and from features.
    """
    who = "svm"
    n, seed = whole(who, "n", n, 4), whole(who, "seed", seed, 0)
    order = whole(who, "order", order, 2)
    if order % 2 or order > 60:
        raise ValueError(f"{who} needs an even order up to 60, not {order}: odd ones change sign")
    C, length = positive(who, "C", C), positive(who, "length", length)
    noise = positive(who, "noise", noise)
    fits(who, n, max(n, _NEW))
    from kerneltrick.sklearn import KernelSVC  # needs scikit-learn

    rng = np.random.default_rng([seed, n])
    (x, y), (new, truth) = _moons(n, noise, rng), _moons(_NEW, noise, rng)
    kernel = truncated_rbf(length, order)

    def machine(kept: Floats, labels: Floats, solver: str) -> KernelSVC:
        model = KernelSVC(kernel, C=C, solver=solver, tol=_TOLERANCE, max_iter=_ITERATIONS)
        return model.fit(kept, labels)

    trained = machine(x, y, "dual")
    alpha = trained.coefficients_[:, 0]
    decided, attended = trained.decision_function(new), attend(kernel, new, x, y)
    left_out = _surest(alpha, y * trained.decision_function(x))
    without = math.nan, math.nan
    if left_out is not None:
        kept, labels = np.delete(x, left_out, axis=0), np.delete(y, left_out)
        again = machine(kept, labels, "dual").decision_function(new)
        without = (
            _difference(decided, again),
            _difference(attended, attend(kernel, new, kept, labels)),
        )
    by_features = machine(x, y, "primal").decision_function(new)
    phi = kernel.feature_map
    assert phi is not None
    linear = np.asarray(linear_attention(new, x, y[:, None], phi))[:, 0]
    machines = (
        Machine(
            "SVM",
            _accuracy(decided, truth),
            int(np.count_nonzero(alpha)),
            float(np.abs(decided).max()),
            _difference(decided, by_features),
            without[0],
        ),
        Machine(
            "attention",
            _accuracy(attended, truth),
            n,
            float(np.abs(attended).max()),
            _difference(attended, linear),
            without[1],
        ),
    )
    rbf = kernels.RBF(length=length)
    grid_x, grid_y = np.linspace(-2.2, 2.2, 121), np.linspace(-1.6, 1.6, 89)
    grid = np.stack(np.meshgrid(grid_x, grid_y), axis=-1).reshape(-1, 2)
    shape = (len(grid_y), len(grid_x))
    return SVMAndAttention(
        n=n,
        C=C,
        length=length,
        order=order,
        m=(order + 1) * (order + 2) // 2,
        kernel_difference=float(np.abs(kernel(x) - rbf(x)).max()),
        noise=noise,
        seed=seed,
        x=x,
        y=y,
        coefficients=alpha,
        left_out=left_out,
        machines=machines,
        sharper=_accuracy(attend(kernels.RBF(length=length / 2), new, x, y), truth),
        grid_x=grid_x,
        grid_y=grid_y,
        svm_grid=trained.decision_function(grid).reshape(shape),
        attention_grid=attend(kernel, grid, x, y).reshape(shape),
    )


def truncated_rbf(length: float, order: int) -> kernels.Kernel:
    """e^{x·y/ℓ²} cut off after `order` and normalised, close to RBF for points within a few ℓ.

    >>> kernel = truncated_rbf(1.0, 12)
    >>> kernel([[0.0, 1.0]], [[1.0, 1.0]]).round(4), kernels.RBF()([[0, 1]], [[1, 1]]).round(4)
    (array([[0.6065]]), array([[0.6065]]))
    """
    return kernels.Normalized(kernels.Taylor(order=order, scale=1 / length**2))


def attend(kernel: kernels.Kernel, queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Σⱼ k(q, kⱼ)vⱼ / Σⱼ k(q, kⱼ) for queries (n_q, d), as (n_q,). It is NaN if all k are 0."""
    found = kernel_attention(queries, keys, values[:, None], kernel, on_zero="nan")
    return np.asarray(found)[:, 0]


def _surest(alpha: Floats, margins: Floats) -> int | None:
    """The point with the largest margin among those that are not support vectors."""
    others = np.flatnonzero(alpha == 0)
    return int(others[np.argmax(margins[others])]) if len(others) else None


def _moons(n: int, noise: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Two interlocking half circles with labels 1 and −1."""
    labels = np.where(np.arange(n) < n // 2, 1.0, -1.0)
    angle = rng.uniform(0, np.pi, n)
    x = labels * (np.cos(angle) - 0.5)
    y = labels * (np.sin(angle) - 0.25)
    return np.stack([x, y], axis=1) + noise * rng.standard_normal((n, 2)), labels


def _accuracy(values: Floats, truth: Floats) -> float:
    return float(np.mean(np.sign(values) == truth))


def _difference(a: Floats, b: Floats) -> float:
    return float(np.abs(a - b).max())
