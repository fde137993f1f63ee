"""Bad input to kernels raises an error that says what to do."""

import math

import numpy as np
import pytest
from cases import each
from kernel_cases import problem

from kerneltrick import kernels, maps
from kerneltrick.kernels import (
    NTK,
    RBF,
    ArcCosine,
    Cosine,
    Custom,
    EluDot,
    Exponential,
    GaussianProcess,
    KernelRidge,
    Linear,
    MapKernel,
    Normalized,
    RKHSFunction,
    compare_solvers,
    find_indefinite,
    gram,
    is_positive_semidefinite,
    nearest_psd,
    rkhs_descent,
)

x, y, z = problem(6)
BAD = {
    "one-dimensional points": (
        lambda: RBF()(x[:, 0]), ValueError,
        r"\(n, d\), not \(6,\); a single column is x\[:, None\]",
    ),
    "different widths": (lambda: RBF()(x, x[:, :2]), ValueError, "x has 3 coordinates and y has 2"),
    "no columns": (lambda: RBF()(x[:, :0]), ValueError, r"1 column, not \(6, 0\)"),
    "NaN": (lambda: Linear()([[1.0], [math.nan]]), ValueError, "x contains NaN or inf in row 1"),
    "infinity": (lambda: Linear()([[math.inf]]), ValueError, "NaN or inf in row 0"),
    "text": (lambda: Linear()([["a"]]), TypeError, "real numbers, not text"),
    "overflow": (
        lambda: Exponential(scale=1)([[100.0]]), ValueError, r"is inf between point 0 and point 0",
    ),
    "overflowing map": (
        lambda: MapKernel("exp")([[1.0], [1e3]]), ValueError, "exp overflows .* at point 1",
    ),
    "cosine of zero": (
        lambda: Cosine()([[1.0], [0.0]]), ValueError,
        "not defined for zero vectors, and point 1 is one",
    ),
    "normalised zero": (
        lambda: Normalized(MapKernel("relu"))([[1.0], [-1.0]]), ValueError,
        "not defined at point 1",
    ),
    "length of zero": (lambda: RBF(length=0), ValueError, "rbf needs length > 0"),
    "degree of three": (lambda: ArcCosine(3), ValueError, "degree 0, 1 or 2, not 3"),
    "negative multiple": (lambda: -1 * Linear(), ValueError, "c > 0 and finite, not -1"),
    "sum with a number": (lambda: Linear() + 1, TypeError, "unsupported operand"),
    "cosformer": (
        lambda: MapKernel("cosformer:horizon=9"), ValueError,
        "not a kernel of points alone",
    ),
    "map without features": (lambda: MapKernel("softmax")(x), ValueError, "'exponential'"),
    "map with two sets of weights": (
        lambda: MapKernel(maps.Hedgehog(key_weight=np.eye(3))), ValueError,
        "not symmetric and not a kernel",
    ),
    "map per head": (
        lambda: MapKernel(maps.Hedgehog(np.ones((1, 3, 4))))(x), ValueError,
        r"to \(1, 6, 8\); a kernel needs features \(n, m\)",
    ),
    "unknown kernel": (lambda: kernels.get("rfb"), ValueError, "did you mean 'rbf'"),
    "name of a map": (
        lambda: kernels.get("elu"), ValueError,
        r"this is a feature map, and its kernel is MapKernel\('elu'\)",
    ),
    "unknown parameter": (lambda: kernels.get("rbf:width=2"), ValueError, "no parameter 'width'"),
    "a class": (
        lambda: kernels.get(RBF), TypeError,
        r"RBF is a class; create a kernel with RBF\(\)",
    ),
    "no kernel": (lambda: kernels.get(3), TypeError, "not int"),
    "function of another shape": (
        lambda: Custom(lambda a, b: a @ a.T)(x, x[:2]), ValueError,
        r"\(6, 2\), not float64 \(6, 6\)",
    ),
    "kernel that is not symmetric": (
        lambda: gram(lambda a, b: a[:, :1] + 2 * b[:, :1].T, [[1.0], [2.0]]), ValueError,
        r"not symmetric: k\(x0, x1\) = 5 but k\(x1, x0\) = 4",
    ),
    "no random features": (lambda: Linear().random_features(4), ValueError, "no random features"),
    "deep random features": (
        lambda: NTK(hidden_layers=2).random_features(4), ValueError, "only for one hidden layer",
    ),
    "odd number of Fourier features": (lambda: RBF().random_features(3), ValueError, "even"),
    "matrix that is not square": (
        lambda: nearest_psd(np.ones((2, 3))), ValueError,
        r"not \(2, 3\)",
    ),
    "kernel without points": (
        lambda: is_positive_semidefinite("rbf"), TypeError, "needs points for rbf",
    ),
    "negative tolerance": (
        lambda: is_positive_semidefinite(np.eye(2), tolerance=-1), ValueError, "tolerance ≥ 0",
    ),
    "coefficients of a wrong number": (
        lambda: RKHSFunction("rbf", x, [1.0]), ValueError, r"\(6,\), not \(1,\)",
    ),
    "functions of two spaces": (
        lambda: RKHSFunction.at("rbf", x[0]).inner(RKHSFunction.at("rbf:length=2", x[0])),
        ValueError, "rbf:length=1, the other rbf:length=2",
    ),
    "weights without a map": (
        lambda: RKHSFunction.at("rbf", x[0]).weights, ValueError, "no finite feature map",
    ),
    "both penalties": (
        lambda: KernelRidge("rbf", mean_penalty=1, sum_penalty=1), ValueError,
        "needs either mean_penalty",
    ),
    "no penalty": (lambda: KernelRidge("rbf"), ValueError, "mean_penalty .*λ.* sum_penalty .*Nλ"),
    "λ of zero": (lambda: KernelRidge("rbf", mean_penalty=0), ValueError, "mean_penalty > 0"),
    "noise of zero": (lambda: GaussianProcess("rbf", noise_variance=0), ValueError, "variance > 0"),
    "descent without λ": (
        lambda: rkhs_descent("rbf", x, y, mean_penalty=0), ValueError, "mean_penalty > 0",
    ),
    "unknown solver": (
        lambda: KernelRidge("rbf", mean_penalty=1, solver="qr").fit(x, y), ValueError,
        "auto, dual, primal",
    ),
    "primal without a map": (
        lambda: KernelRidge("rbf", mean_penalty=1, solver="primal").fit(x, y), ValueError,
        "no finite feature map; use solver='dual', or MapKernel",
    ),
    "singular Gram matrix": (
        lambda: KernelRidge("linear", mean_penalty=1e-19, solver="dual").fit(x, y), ValueError,
        "singular to working precision.* use a larger penalty",
    ),
    "singular features": (
        lambda: KernelRidge("linear", mean_penalty=1e-19, solver="primal").fit(
            np.ones((6, 2)), y
        ), ValueError, "singular to working precision",
    ),
    "indefinite Gram matrix": (
        lambda: KernelRidge(EluDot(), sum_penalty=1e-3).fit([[-2.0], [-1.0], [1.0], [2.0]], y[:4]),
        ValueError, r"not positive semi-definite on these points.* eigenvalue -0\.0114",
    ),
    "descent with an indefinite kernel": (
        lambda: rkhs_descent(
            lambda a, b: -np.exp(a @ b.T), x, y, mean_penalty=0.1
        ), ValueError, "not positive semi-definite",
    ),
    "too few targets": (
        lambda: KernelRidge("rbf", mean_penalty=1).fit(x, y[:3]), ValueError,
        r"y \(6,\).*not \(3,\)",
    ),
    "no points": (
        lambda: KernelRidge("rbf", mean_penalty=1).fit(x[:0], []), ValueError, "at least 1 row",
    ),
    "many targets for a process": (
        lambda: GaussianProcess("rbf", noise_variance=1).fit(x, np.ones((6, 2))), ValueError,
        r"y \(6,\), not \(6, 2\)",
    ),
    "labels 0 and 1": (
        lambda: rkhs_descent("rbf", x, [0, 1] * 3, mean_penalty=1, loss="hinge"), ValueError,
        r"labels −1 and 1, but y contains 0, 1; write 2 \* y - 1",
    ),
    "labels of three kinds": (
        lambda: rkhs_descent("rbf", x, [1, 2, 3] * 2, mean_penalty=1, loss="logistic"), ValueError,
        "y contains 1, 2, 3$",
    ),
    "labels that are bools": (
        lambda: rkhs_descent("rbf", x, [True, False] * 3, mean_penalty=1), TypeError, "not bool",
    ),
    "unknown loss": (
        lambda: rkhs_descent("rbf", x, y, mean_penalty=1, loss="huber"), ValueError,
        "squared, logistic, hinge, not 'huber'",
    ),
    "too large a step": (
        lambda: rkhs_descent("rbf", x, y, mean_penalty=1, step_size=10), ValueError,
        r"diverges with step_size 10: it must be < 0\.",
    ),
    "step for the hinge": (
        lambda: rkhs_descent("rbf", x, z, mean_penalty=1, loss="hinge", step_size=1), ValueError,
        "do not give step_size",
    ),
    "search with a broken function": (
        lambda: find_indefinite(lambda a, b: a), ValueError,
        "not defined on any of the points tried: .* must map",
    ),
    "experiment without a map": (
        lambda: compare_solvers("rbf"), ValueError,
        "has no finite feature map; try",
    ),
}  # fmt: skip


@each("name", BAD)
def test_bad_input_is_refused(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
