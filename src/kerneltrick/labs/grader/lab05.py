"""How lab 05 is graded."""

from __future__ import annotations

from kerneltrick.labs import heads_and_decoding
from kerneltrick.labs.grader._lab import Lab
from kerneltrick.labs.grader._lab05_attention import MOMENTS, SOFTMAX
from kerneltrick.labs.grader._lab05_decoding import KEPT, STEP, STEP_COUNT
from kerneltrick.labs.grader._lab05_hard import GRADIENTS, HARD
from kerneltrick.labs.grader._lab05_heads import COMBINE, MULTI_HEAD, MULTI_QUERY, SPLIT

LAB = Lab(
    number="05",
    folder="lab05_heads_and_decoding",
    title="Heads and decoding",
    reference=heads_and_decoding,
    exercises=(
        MOMENTS,
        SOFTMAX,
        HARD,
        GRADIENTS,
        SPLIT,
        COMBINE,
        MULTI_HEAD,
        MULTI_QUERY,
        STEP,
        STEP_COUNT,
        KEPT,
    ),
)
