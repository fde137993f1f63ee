"""Compare feature maps on scikit-learn's digits with its own kernel approximations at equal m.

python benchmarks/digits.py            print the table
python benchmarks/digits.py --quick    use small m and one draw only
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from typing import Any, NamedTuple

from processor import milliseconds  # first: it sets the number of threads

# isort: split

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem, PolynomialCountSketch, RBFSampler
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from kerneltrick import kernels
from kerneltrick.sklearn import KernelFeatures, KernelSVC

SIZES = (64, 256, 1024, 2080)  # 2080 = C(65, 2): the exact map of (x·y)²
QUICK_SIZES = (16, 64)
DRAWS = 5
PENALTIES = np.logspace(-4, 1, 6)  # leave-one-out chooses the best for each method


class Cell(NamedTuple):
    """Test accuracy over the draws, and the time to compute the features of all digits."""

    mean: float
    deviation: float
    ms: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.deviation:.1f}, {self.ms:.3g} ms"


def data() -> tuple[Any, ...]:
    """Return training points and test points (in [0, 1]) and their labels, split 2:1."""
    x, y = load_digits(return_X_y=True)
    return tuple(train_test_split(x / 16, y, test_size=1 / 3, stratify=y, random_state=0))


def methods(m: int, seed: int, gamma: float, n: int) -> dict[str, Any]:
    """Return all transformers with m features, named by their kernel."""
    favor = f"favor:features={m},kind=trig,seed={seed}"
    found: dict[str, Any] = {
        "RBF · **KernelFeatures** favor trig, orthogonal": KernelFeatures(
            favor, scale=2 * gamma, normalize=True
        ),
        "RBF · **KernelFeatures** favor positive": KernelFeatures(
            f"favor:features={m},seed={seed}", scale=2 * gamma, normalize=True
        ),
        "RBF · RBFSampler": RBFSampler(gamma=gamma, n_components=m, random_state=seed),
        "RBF · Nystroem": Nystroem(gamma=gamma, n_components=m, random_state=seed),
        "(x·y)² · **KernelFeatures** poly, exact": KernelFeatures("poly:degree=2,constant=0"),
        "(x·y)² · PolynomialCountSketch": PolynomialCountSketch(n_components=m, random_state=seed),
        "arc-cosine · **KernelFeatures** ReLU of ω·x": KernelFeatures(
            kernels.ArcCosine(degree=1).random_features(m, seed)
        ),
    }
    if m != math.comb(65, 2):
        del found["(x·y)² · **KernelFeatures** poly, exact"]
    if m > n:
        del found["RBF · Nystroem"]  # it needs m of the n points
    return found


def features(method: Any, train: Any, test: Any) -> None:
    """Compute the features of all points. This is what is timed."""
    fresh = clone(method)
    fresh.fit_transform(train)
    fresh.transform(test)


def measure(sizes: tuple[int, ...], draws: int, seconds: float) -> dict[str, dict[int, Cell]]:
    """Measure accuracy and time by method and m."""
    train, test, labels, truth = data()
    gamma = 1 / (train.shape[1] * train.var())  # what scikit-learn calls "scale"
    table: dict[str, dict[int, Cell]] = {}
    for m in sizes:
        scores: dict[str, list[float]] = {}
        times: dict[str, float] = {}
        for seed in range(draws):
            for name, method in methods(m, seed, gamma, len(train)).items():
                phi, new = method.fit_transform(train), method.transform(test)
                assert phi.shape[1] == m, (name, phi.shape)
                if seed == 0:
                    work = functools.partial(features, method, train, test)
                    times[name] = milliseconds(work, seconds)
                model = RidgeClassifierCV(alphas=PENALTIES).fit(phi, labels)
                scores.setdefault(name, []).append(model.score(new, truth))
        for name, found in scores.items():
            cell = Cell(float(np.mean(found)), float(np.std(found)), times[name])
            table.setdefault(name, {})[m] = cell
    return table


def machines() -> list[tuple[str, float, float]]:
    """Train support vector machines with the Gram matrix and with features."""
    train, test, labels, truth = data()
    gamma = 1 / (train.shape[1] * train.var())
    rbf = kernels.RBF(length=math.sqrt(0.5 / gamma))
    square = kernels.Polynomial(degree=2, constant=0)
    rows = []
    for name, model in {
        "SVC, its own RBF, one against one": SVC(gamma=gamma, C=10),
        "KernelSVC, RBF, Gram matrix": KernelSVC(rbf, C=10),
        "KernelSVC, RBF, 1024 features": KernelSVC(rbf.random_features(1024), C=10),
        "KernelSVC, (x·y)², Gram matrix": KernelSVC(square, C=0.1, solver="dual"),
        "KernelSVC, (x·y)², 2080 features": KernelSVC(square, C=0.1, solver="primal"),
    }.items():
        before = time.process_time()
        score = model.fit(train, labels).score(test, truth)
        rows.append((name, float(score), time.process_time() - before))
    return rows


def text(table: dict[str, dict[int, Cell]], sizes: tuple[int, ...]) -> str:
    """Write a Markdown table of kernel · method against m."""
    lines = [
        "| kernel · method | " + " | ".join(f"m = {m}" for m in sizes) + " |",
        "|---" + "|---:" * len(sizes) + "|",
    ]
    for name in sorted(table, key=lambda n: ("RBF" not in n, "arc" in n, "**" not in n)):
        row = " | ".join(str(table[name].get(m, "–")) for m in sizes)
        lines.append(f"| {name} | {row} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use small m and one draw only")
    quick = parser.parse_args().quick
    sizes, draws, seconds = (QUICK_SIZES, 1, 0.0) if quick else (SIZES, DRAWS, 0.5)
    print(
        f"Each cell has the accuracy in % on 599 digits (mean ± standard deviation of {draws} "
        f"draws) of a ridge\nclassifier trained on 1198 digits, with its penalty chosen by "
        f"leave-one-out, and the CPU time for\nthe features of all digits.\n"
    )
    print(text(measure(sizes, draws, seconds), sizes))
    if not quick:
        print("\n| support vector machine | accuracy, % | fit and score, s |\n|---|---:|---:|")
        for name, score, seconds in machines():
            print(f"| {name} | {100 * score:.1f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
