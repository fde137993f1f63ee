"""How lab 03 is graded."""

from __future__ import annotations

from kerneltrick.labs import feature_maps
from kerneltrick.labs.grader._lab import Lab
from kerneltrick.labs.grader._lab03_maps import ELU, EXP, RANDOM, RELU, SQUARED_RELU
from kerneltrick.labs.grader._lab03_weights import COMPARE, IMPLIED, QUALITY, SHOW

LAB = Lab(
    number="03",
    folder="lab03_feature_maps",
    title="Feature maps",
    reference=feature_maps,
    exercises=(ELU, RELU, SQUARED_RELU, EXP, RANDOM, IMPLIED, SHOW, COMPARE, QUALITY),
)
