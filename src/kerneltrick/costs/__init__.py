"""Exact costs of attention: multiply-adds, bytes moved, memory and crossover lengths."""

from kerneltrick._pictures import save_figure
from kerneltrick.costs._attention import (
    chunked,
    linear,
    projections,
    quadratic,
    recurrent,
    softmax,
    windowed,
)
from kerneltrick.costs._communication import FORMULAS as FORMULAS
from kerneltrick.costs._communication import (
    Exchange,
    Machine,
    communication_figure,
    context_parallel,
    ring,
    state_bytes,
)
from kerneltrick.costs._communication import powers as powers
from kerneltrick.costs._cost import Cost, Numbers
from kerneltrick.costs._crossover import crossover
from kerneltrick.costs._decoding import decoding, linear_decoding, multi_head
from kerneltrick.costs._delta import delta_chunked, delta_decoding, delta_recurrent
from kerneltrick.costs._features import FeatureCost, feature_cost
from kerneltrick.costs._order import Direction, Relation, leading, missing_terms, outgrows
from kerneltrick.costs._plot import figure
from kerneltrick.costs._polynomial import Polynomial, binomial, symbol, symbols
from kerneltrick.costs._registry import algorithms, get
from kerneltrick.costs._summary import Row, Sizes, lab_ratio, paper_crossover, summary

# The public names. Imports of the form `x as x` are for other rooms of the package.
__all__ = [
    "Cost",
    "Direction",
    "Exchange",
    "FeatureCost",
    "Machine",
    "Numbers",
    "Polynomial",
    "Relation",
    "Row",
    "Sizes",
    "algorithms",
    "binomial",
    "chunked",
    "communication_figure",
    "context_parallel",
    "crossover",
    "decoding",
    "delta_chunked",
    "delta_decoding",
    "delta_recurrent",
    "feature_cost",
    "figure",
    "get",
    "lab_ratio",
    "leading",
    "linear",
    "linear_decoding",
    "missing_terms",
    "multi_head",
    "outgrows",
    "paper_crossover",
    "projections",
    "quadratic",
    "recurrent",
    "ring",
    "save_figure",
    "softmax",
    "state_bytes",
    "summary",
    "symbol",
    "symbols",
    "windowed",
]
