"""How lab 07 is graded."""

from __future__ import annotations

from kerneltrick.labs import based
from kerneltrick.labs.grader._lab import Lab
from kerneltrick.labs.grader._lab07_features import SIZE, TAYLOR, WEIGHTS
from kerneltrick.labs.grader._lab07_memory import RECALL, RECURRENT
from kerneltrick.labs.grader._lab07_window import WINDOW, WINDOWED

LAB = Lab(
    number="07",
    folder="lab07_based",
    title="Based and recurrent memory",
    reference=based,
    exercises=(TAYLOR, WEIGHTS, SIZE, RECURRENT, WINDOW, WINDOWED, RECALL),
)
