"""What a map loses against softmax on given data, and what it costs: measured, never guessed."""

from kerneltrick._executor import Processes
from kerneltrick._progress import ProgressReport
from kerneltrick.analysis._compare import compare
from kerneltrick.analysis._data import AttentionData, sample
from kerneltrick.analysis._files import load_attention
from kerneltrick.analysis._files import save as save_attention
from kerneltrick.analysis._fitted import FittedMaps
from kerneltrick.analysis._limit import Limit, weight_limit
from kerneltrick.analysis._picture import picture
from kerneltrick.analysis._quality import MapQuality, analyze_map
from kerneltrick.analysis._synthetic import synthetic_attention
from kerneltrick.analysis._types import Comparison, HeadMetrics, MapReport
from kerneltrick.analysis._weights import WeightComparison, compare_weights

__all__ = [
    "AttentionData",
    "Comparison",
    "FittedMaps",
    "HeadMetrics",
    "Limit",
    "MapQuality",
    "MapReport",
    "Processes",
    "ProgressReport",
    "WeightComparison",
    "analyze_map",
    "compare",
    "compare_weights",
    "load_attention",
    "picture",
    "sample",
    "save_attention",
    "synthetic_attention",
    "weight_limit",
]
