"""Measure what a feature map loses compared with softmax on given data, and what it costs."""

from kerneltrick._executor import Processes
from kerneltrick._progress import ProgressReport
from kerneltrick.analysis import _timing as timings  # noqa: F401 # for other rooms
from kerneltrick.analysis._compare import compare
from kerneltrick.analysis._data import AttentionData, sample
from kerneltrick.analysis._files import AXES as AXES
from kerneltrick.analysis._files import load_attention
from kerneltrick.analysis._files import save as save_attention
from kerneltrick.analysis._fitted import FittedMaps
from kerneltrick.analysis._fitted import Setting as Setting
from kerneltrick.analysis._fitted import hashes as hashes
from kerneltrick.analysis._fitted import names_file as names_file
from kerneltrick.analysis._fitted import of_heads as of_heads
from kerneltrick.analysis._fitted import read_setting as read_setting
from kerneltrick.analysis._fitted import smallest_hashes as smallest_hashes
from kerneltrick.analysis._limit import Limit, weight_limit
from kerneltrick.analysis._metrics import documented as documented
from kerneltrick.analysis._metrics import mean as mean
from kerneltrick.analysis._metrics import metric as metric
from kerneltrick.analysis._metrics import metrics_of as metrics_of
from kerneltrick.analysis._picture import picture
from kerneltrick.analysis._quality import MapQuality, analyze_map
from kerneltrick.analysis._repeats import STRETCH as STRETCH
from kerneltrick.analysis._repeats import identifying_run as identifying_run
from kerneltrick.analysis._result import plain as plain
from kerneltrick.analysis._store import Store as Store
from kerneltrick.analysis._store import finish as finish
from kerneltrick.analysis._store import run_key as run_key
from kerneltrick.analysis._synthetic import synthetic_attention
from kerneltrick.analysis._types import METRICS as METRICS
from kerneltrick.analysis._types import Comparison, HeadMetrics, MapReport
from kerneltrick.analysis._weights import WeightComparison, compare_weights

# The public names. Imports of the form `x as x` are for other rooms of the package.
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
