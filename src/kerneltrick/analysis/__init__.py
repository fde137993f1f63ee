"""What a map loses against softmax on given data, and what it costs: measured, never guessed."""

from kerneltrick.analysis._compare import Comparison, MapReport, compare_maps
from kerneltrick.analysis._cost import measure_time
from kerneltrick.analysis._files import load
from kerneltrick.analysis._quality import MapQuality, analyze_map
from kerneltrick.analysis._synthetic import QKV, synthetic
from kerneltrick.analysis._weights import WeightComparison, compare_weights

__all__ = [
    "QKV",
    "Comparison",
    "MapQuality",
    "MapReport",
    "WeightComparison",
    "analyze_map",
    "compare_maps",
    "compare_weights",
    "load",
    "measure_time",
    "synthetic",
]
