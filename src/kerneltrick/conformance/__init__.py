"""Which promises an operator on tokens keeps: named checks for any implementation of attention.

An operator is any function on NumPy arrays. `check` runs the checks on it, and says for each
whether it passed, failed (with a program of a few lines that shows it) or was not promised.
"""

from kerneltrick.conformance._accuracy import gradient, half_error, representable
from kerneltrick.conformance._adapters import from_library, from_torch
from kerneltrick.conformance._checks import CHECKS, EXTREME, Check
from kerneltrick.conformance._installed import KnownOperator, find, known
from kerneltrick.conformance._kinds import KINDS, OperatorKind
from kerneltrick.conformance._operator import AdapterError, Operator, narrowed
from kerneltrick.conformance._purity import LAYOUTS
from kerneltrick.conformance._reference import delta_loop, linear_loop
from kerneltrick.conformance._run import Conformance, Result, check
from kerneltrick.conformance._survey import survey
from kerneltrick.conformance._tokens import TrialSizes, tokens
from kerneltrick.conformance._trial import Trial, Violation, at, close

__all__ = [
    "CHECKS",
    "EXTREME",
    "KINDS",
    "LAYOUTS",
    "AdapterError",
    "Check",
    "Conformance",
    "KnownOperator",
    "Operator",
    "OperatorKind",
    "Result",
    "Trial",
    "TrialSizes",
    "Violation",
    "at",
    "check",
    "close",
    "delta_loop",
    "find",
    "from_library",
    "from_torch",
    "gradient",
    "half_error",
    "known",
    "linear_loop",
    "narrowed",
    "representable",
    "survey",
    "tokens",
]
