"""How lab 01 is graded: the cases. Its mistakes are in lab01.txt."""

from __future__ import annotations

import numpy as np

from kerneltrick.labs import complexity
from kerneltrick.labs.grader._lab import Case, Exercise, Lab

EXACT = 1e-9  # counts are whole numbers; floats that hold them exactly pass


SOFTMAX_COUNT = Exercise(
    "softmax_multiply_adds",
    cases=(
        Case((1000, 32, 80), about="for n = 1000, D = 32, M = 80"),
        Case((4096, 64, 64), about="for n = 4096 and D = M = 64"),
        Case((10, 3, 4), {"causal": True}, about="with causal=True"),
        Case((1000, 32, 80), {"causal": True}, about="with causal=True"),
        Case((1, 5, 2), about="for a single token"),
    ),
    tolerance=EXACT,
)

LINEAR_COUNT = Exercise(
    "linear_multiply_adds",
    cases=(
        Case((1000, 561, 80), about="for n = 1000, m = 561, M = 80"),
        Case((4096, 64, 64), about="for n = 4096 and m = M = 64"),
        Case((10, 7, 3), {"causal": True}, about="with causal=True"),
        Case((1000, 48, 16), {"causal": True}, about="with causal=True"),
    ),
    tolerance=EXACT,
)

WEIGHTS_BYTES = Exercise(
    "weights_bytes",
    cases=(
        Case((4096,), about="for n = 4096 in float32"),
        Case((100,), {"dtype": "float16"}, about="in float16"),
        Case((100, 8, "float64"), about="for 8 heads in float64"),
        Case((333,), {"heads": 12}, about="for 12 heads"),
    ),
    tolerance=EXACT,
)

STATE_BYTES = Exercise(
    "state_bytes",
    cases=(
        Case((64, 48), about="for m = 64, M = 48 in float32"),
        Case((561, 80), {"dtype": "float16"}, about="in float16"),
        Case((16, 24, 8, "float64"), about="for 8 heads in float64"),
        Case((100, 7), {"heads": 3}, about="for 3 heads"),
    ),
    tolerance=EXACT,
)


CROSSOVER = Exercise(
    "crossover_length",
    cases=(
        Case((64, 64, 64), about="for D = m = M = 64"),
        Case((32, 561, 80), about="for D = 32, m = 561, M = 80"),
        Case((16, 256, 48), about="for D = 16, m = 256, M = 48"),
        Case((64, 256, 64), about="for 256 features"),
        Case((64, 64, 64), {"causal": True}, about="with causal=True"),
        Case((32, 561, 80), {"causal": True}, about="with causal=True"),
        Case((16, 256, 48), {"causal": True}, about="with causal=True"),
        Case((500, 1, 1), {"causal": True}, about="where it is cheaper from the first token on"),
    ),
    tolerance=EXACT,
)


def _seconds(lengths: list[int], power: float, seed: int) -> list[float]:
    """As if measured: a power of n, each time up to 30 % longer."""
    late = 1 + 0.3 * np.random.default_rng([1, seed]).random(len(lengths))
    return [float(x) for x in 2e-9 * np.array(lengths, dtype=float) ** power * late]


DOUBLED = [128, 256, 512, 1024, 2048, 4096]
UNEVEN = [50, 100, 300, 1000, 5000]
GROWTH = Exercise(
    "growth_exponent",
    cases=(
        Case((DOUBLED, [144 * n * n for n in DOUBLED]), about="for costs 144·n²"),
        Case((UNEVEN, [0.5 * n**1.5 for n in UNEVEN]), about="for lengths that are not doubled"),
        Case((DOUBLED, _seconds(DOUBLED, 2, 0)), about="for costs that were measured"),
        Case((UNEVEN, _seconds(UNEVEN, 1, 1)), about="for costs that were measured"),
    ),
    tolerance=1e-6,
)

GIB = 2**30
CONTEXT = Exercise(
    "longest_context",
    cases=(
        Case((64 * 2**20,), about="for 64 MiB in float32, which n = 4096 fills exactly"),
        Case((10**9,), about="for 10⁹ bytes in float32"),
        Case((8 * GIB, 12), about="for 12 heads and 8 GiB"),
        Case((16 * GIB,), {"dtype": "float16"}, about="in float16"),
        Case((10**8, 8, "float64"), about="for 8 heads in float64"),
    ),
    tolerance=EXACT,
)

LAB = Lab(
    number="01",
    folder="lab01_complexity",
    title="Complexity",
    reference=complexity,
    exercises=(
        SOFTMAX_COUNT,
        LINEAR_COUNT,
        WEIGHTS_BYTES,
        STATE_BYTES,
        CROSSOVER,
        GROWTH,
        CONTEXT,
    ),
)
