"""Kernel methods without attention: Gram matrices, RKHS functions, regression, network kernels.

Every method works with the n×n Gram matrix ("dual") and, in O(n·m²), with m explicit features
("primal"). All computations use NumPy in float64.
"""

from kerneltrick.kernels._base import Kernel, Normalized, Product, Scaled, Sum
from kerneltrick.kernels._descent import Descent, rkhs_descent
from kerneltrick.kernels._dot import (
    Cosine,
    EluDot,
    Exponential,
    Linear,
    Polynomial,
    ReluDot,
    Taylor,
)
from kerneltrick.kernels._experiment import SolverComparison, SolverTime, compare_solvers
from kerneltrick.kernels._gaussian_process import GaussianProcess, ProcessFit
from kerneltrick.kernels._network import NTK, ArcCosine
from kerneltrick.kernels._of_map import Custom, MapKernel
from kerneltrick.kernels._psd import (
    PSDResult,
    find_indefinite,
    gram,
    is_positive_semidefinite,
    nearest_psd,
)
from kerneltrick.kernels._registry import KernelLike, get, names
from kerneltrick.kernels._ridge import KernelRidge, RidgeFit
from kerneltrick.kernels._rkhs import RKHSFunction
from kerneltrick.kernels._shift import RBF

__all__ = [
    "NTK",
    "RBF",
    "ArcCosine",
    "Cosine",
    "Custom",
    "Descent",
    "EluDot",
    "Exponential",
    "GaussianProcess",
    "Kernel",
    "KernelLike",
    "KernelRidge",
    "Linear",
    "MapKernel",
    "Normalized",
    "PSDResult",
    "Polynomial",
    "ProcessFit",
    "Product",
    "RKHSFunction",
    "ReluDot",
    "RidgeFit",
    "Scaled",
    "SolverComparison",
    "SolverTime",
    "Sum",
    "Taylor",
    "compare_solvers",
    "find_indefinite",
    "get",
    "gram",
    "is_positive_semidefinite",
    "names",
    "nearest_psd",
    "rkhs_descent",
]
