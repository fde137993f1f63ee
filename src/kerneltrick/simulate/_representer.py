"""Kernel regression by gradient descent in the RKHS, and the minimiser that it approaches."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kerneltrick.kernels import RBF, KernelRidge, RKHSFunction, rkhs_descent
from kerneltrick.simulate._check import Floats, fits, positive, whole

SHOWN = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


class PathRow(NamedTuple):
    """f after some steps: its loss (1/N)Σ(f(xᵢ) − yᵢ)², its norm, and its distance to the end."""

    step: int
    loss: float
    norm: float  # ‖f‖
    objective: float  # loss + λ‖f‖²
    distance: float  # ‖f − f*‖, where f* is the ridge solution
    bound: float  # √(gap/λ) ≥ ‖f − f*‖, known without f*


class RidgePoint(NamedTuple):
    """The minimiser for one λ."""

    mean_penalty: float
    loss: float
    norm: float


class Representer(NamedTuple):
    """A descent. `values` has the functions of `rows` on `grid`, `ridge_values` the solution."""

    mean_penalty: float
    length: float
    seed: int
    x: Floats  # (n,)
    y: Floats  # (n,)
    grid: Floats
    truth: Floats
    values: Floats  # (rows, grid)
    ridge_values: Floats
    coefficients: Floats  # (n,): α of the last row
    ridge_coefficients: Floats  # (n,): (K + NλI)⁻¹y
    rows: tuple[PathRow, ...]
    ridge: RidgePoint
    ridge_path: tuple[RidgePoint, ...]  # the minimisers for other λ


def representer(
    *,
    n: int = 24,
    mean_penalty: float = 1e-3,
    length: float = 0.5,
    noise: float = 0.2,
    steps: int = 3000,
    seed: int = 0,
) -> Representer:
    """Fit n noisy values of sin 2x + x/2 on [−3, 3] with an RBF kernel.

    Every f on the way is Σαᵢk(xᵢ, ·), because the gradient of the objective lies in that span.

    >>> found = representer(n=12, steps=300)
    >>> found.rows[0].norm, found.rows[-1].distance < found.rows[1].distance
    (0.0, True)
    """
    who = "representer"
    n, steps = whole(who, "n", n), whole(who, "steps", steps)
    seed, penalty = whole(who, "seed", seed, 0), positive(who, "mean_penalty", mean_penalty)
    if noise != 0:
        noise = positive(who, "noise", noise)
    fits(who, n, n)
    fits(who, steps, n)
    kernel = RBF(length=positive(who, "length", length))
    rng = np.random.default_rng([seed, n])
    x = np.sort(rng.uniform(-3, 3, n))
    y = _truth(x) + noise * rng.standard_normal(n)
    grid = np.linspace(-3.4, 3.4, 240)
    run = rkhs_descent(kernel, x[:, None], y, mean_penalty=penalty, steps=steps)
    best = KernelRidge(kernel, mean_penalty=penalty).fit(x[:, None], y).function
    shown = [record for record, step in enumerate(run.steps) if step in SHOWN or step == steps]
    rows = []
    for record in shown:
        rows.append(
            PathRow(
                step=run.steps[record],
                loss=float(run.losses[record]),
                norm=float(run.norms[record]),
                objective=float(run.objectives[record]),
                distance=_norm_of(best, run.coefficients[record] - best.coefficients),
                bound=math.sqrt(run.gaps[record] / penalty),
            )
        )
    others = penalty * np.geomspace(1e-3, 1e4, 36)
    return Representer(
        mean_penalty=penalty,
        length=kernel.length,
        seed=seed,
        x=x,
        y=y,
        grid=grid,
        truth=_truth(grid),
        values=np.array([run.at(record)(grid[:, None]) for record in shown]),
        ridge_values=best(grid[:, None]),
        coefficients=run.function.coefficients,
        ridge_coefficients=best.coefficients,
        rows=tuple(rows),
        ridge=_point(best, penalty, y),
        ridge_path=tuple(_ridge_point(kernel, x, y, float(other)) for other in others),
    )


def _norm_of(f: RKHSFunction, coefficients: Floats) -> float:
    """The norm of the function with these coefficients at the points of f.

    Coefficients can be subtracted accurately; the values of two functions would cancel.
    """
    return RKHSFunction(f.kernel, f.points, coefficients).norm


def _truth(x: Floats) -> Floats:
    return np.asarray(np.sin(2 * x) + x / 2)


def _ridge_point(kernel: RBF, x: Floats, y: Floats, penalty: float) -> RidgePoint:
    fit = KernelRidge(kernel, mean_penalty=penalty).fit(x[:, None], y)
    return _point(fit.function, penalty, y)


def _point(f: RKHSFunction, penalty: float, y: Floats) -> RidgePoint:
    loss = float(np.mean((f(f.points) - y) ** 2))
    return RidgePoint(penalty, loss, f.norm)
