"""The functions of the labs; `labs/` in the repository holds the student folders.

`complexity` is lab 01, `kernel_trick` 02, `feature_maps` 03, `quadratic_kernel` 04,
`heads_and_decoding` 05, `kernel_methods` 06, `based` 07, `delta_rule` 08. The student files are
made from these modules by `make labs`, so each function here is also the model answer to its
exercise. `grader` grades a student's file, and `walls` runs it.
"""

from kerneltrick.labs import (
    based,
    complexity,
    delta_rule,
    feature_maps,
    heads_and_decoding,
    kernel_methods,
    kernel_trick,
    quadratic_kernel,
)
from kerneltrick.labs._course import COURSE as COURSE
from kerneltrick.labs._course import how_long as how_long

# The public names. Imports of the form `x as x` are for other rooms of the package.
__all__ = [
    "based",
    "complexity",
    "delta_rule",
    "feature_maps",
    "heads_and_decoding",
    "kernel_methods",
    "kernel_trick",
    "quadratic_kernel",
]
