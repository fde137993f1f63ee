"""Compare Gaussian process regression by the n×n Gram matrix with that by m features.

python benchmarks/solvers.py    print the tables
"""

from __future__ import annotations

from processor import milliseconds

from kerneltrick import kernels


def main() -> None:
    exact = kernels.compare_solvers("polynomial:degree=2", d=16, milliseconds=milliseconds)
    print(exact.table)
    print()
    # Both solvers use the kernel of these 128 random features, not the RBF kernel itself.
    fourier = kernels.RBF(length=0.5).random_features(128)
    random = kernels.compare_solvers(kernels.MapKernel(fourier), d=16, milliseconds=milliseconds)
    print(random.table)


if __name__ == "__main__":
    main()
