"""How lab 06 is graded."""

from __future__ import annotations

from kerneltrick.labs import kernel_methods
from kerneltrick.labs.grader._lab import Lab
from kerneltrick.labs.grader._lab06_learning import DESCENT, DUAL, MACHINE, PRIMAL
from kerneltrick.labs.grader._lab06_space import (
    GRAM,
    NEGATIVE,
    NORM,
    POLYNOMIAL,
    RBF,
    REPRESENTER,
)

LAB = Lab(
    number="06",
    folder="lab06_kernels",
    title="Kernels",
    reference=kernel_methods,
    exercises=(
        POLYNOMIAL,
        RBF,
        GRAM,
        NEGATIVE,
        NORM,
        REPRESENTER,
        DUAL,
        PRIMAL,
        DESCENT,
        MACHINE,
    ),
)
