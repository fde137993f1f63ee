"""Lab 01, complexity: what attention costs in multiply-adds and bytes, and which form is cheaper.

There are n tokens. Queries and keys have width D, values have width M, and there are m features. A
product (a×b)(b×c) takes a·b·c multiply-adds: a multiplication and the addition that follows it
count as one. All counts are exact whole numbers, for one head unless `heads` says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np


def quadratic_features(D: int) -> int:
    """The number of features of the exact map of (q·k + 1)²: m = (D+1)(D+2)/2.

    >>> quadratic_features(32)
    561
    """
    return (D + 1) * (D + 2) // 2


def doubling(
    cost: Callable[[int], float], start: int, doublings: int
) -> tuple[list[int], list[float]]:
    """The lengths start, 2·start, 4·start, … and the cost at each length.

    >>> doubling(lambda n: n * n, start=10, doublings=2)
    ([10, 20, 40], [100, 400, 1600])
    """
    lengths = [start * 2**power for power in range(doublings + 1)]
    return lengths, [cost(n) for n in lengths]


def softmax_multiply_adds(n: int, D: int, M: int, causal: bool = False) -> int:
    """Count the multiply-adds of softmax(QKᵀ/√D)V: the scores and the weighted sum of the values.

    Each pair of a query and a key takes D multiply-adds for the score and M for the value. The
    softmax itself takes none. With `causal`, token i sees only the tokens j ≤ i, including itself,
    and only these pairs are computed.

    >>> softmax_multiply_adds(1000, D=32, M=80)
    112000000
    >>> softmax_multiply_adds(2, D=3, M=5, causal=True)
    24
    """
    pairs = n * (n + 1) // 2 if causal else n * n
    return pairs * (D + M)


def linear_multiply_adds(n: int, m: int, M: int, causal: bool = False) -> int:
    """Count the multiply-adds of linear attention with m features, without those of φ itself.

    Each key is added to U = Σφ(k)vᵀ (m×M) and to Z = Σφ(k) (m entries). Each query reads φ(q)ᵀU
    and φ(q)ᵀZ. An addition to Z counts as a multiply-add (by one). With `causal`, U and Z are
    carried along the sequence, and each token updates and reads them once.

    >>> linear_multiply_adds(1000, m=561, M=80)
    90882000
    """
    return 2 * n * m * (M + 1)


def weights_bytes(n: int, heads: int = 1, dtype: str = "float32") -> int:
    """The bytes of the n×n weights of all heads, stored as full arrays of `dtype`.

    `dtype` is a NumPy name such as "float16". `np.dtype(dtype).itemsize` is its size in bytes.

    >>> weights_bytes(4096)
    67108864
    """
    return heads * n * n * np.dtype(dtype).itemsize


def state_bytes(m: int, M: int, heads: int = 1, dtype: str = "float32") -> int:
    """The bytes of the state of linear attention: U (m×M) and Z (m entries) for every head.

    >>> state_bytes(64, 64)
    16640
    """
    return heads * (m * M + m) * np.dtype(dtype).itemsize


def crossover_length(D: int, m: int, M: int, causal: bool = False) -> int:
    """The smallest n ≥ 1 at which linear attention takes fewer multiply-adds than softmax.

    It must take strictly fewer: at equal counts nothing is gained yet. Use the counts of
    `softmax_multiply_adds` and `linear_multiply_adds`. The answer is a whole number, so use `//` or
    be careful with rounding.

    >>> crossover_length(D=64, m=64, M=64)
    66
    >>> crossover_length(D=64, m=64, M=64, causal=True)
    130
    """
    per_token = linear_multiply_adds(1, m, M)
    per_pair = softmax_multiply_adds(1, D, M)
    if causal:  # (n + 1)/2 keys for each query on average
        return max(2 * per_token // per_pair, 1)
    return per_token // per_pair + 1


def growth_exponent(lengths: Sequence[float], costs: Sequence[float]) -> float:
    """The exponent p such that costs grow like nᵖ: the least-squares slope of log cost by log n.

    For costs c·nᵖ the slope is p, whatever c is. Measured costs do not lie exactly on a line, and
    least squares uses all of them, not only the first and the last.

    >>> round(growth_exponent([100, 200, 400], [3e4, 12e4, 48e4]), 9)
    2.0
    """
    x, y = np.log(np.asarray(lengths, dtype=float)), np.log(np.asarray(costs, dtype=float))
    x = x - x.mean()
    return float(x @ y / (x @ x))


def longest_context(budget: int, heads: int = 1, dtype: str = "float32") -> int:
    """The largest n for which the n×n weights of all heads fit into `budget` bytes.

    Weights that fill the budget exactly still fit. The answer is a whole number, rounded down.

    >>> longest_context(64 * 2**20)
    4096
    """
    return math.isqrt(budget // (heads * np.dtype(dtype).itemsize))
