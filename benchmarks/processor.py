"""Processor time, which other processes do not lengthen; for work on one thread."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when NumPy is imported, so this module is imported first


def milliseconds(run: Callable[[], Any], seconds: float = 0.3) -> float:
    """The least of repeated runs."""
    best, spent, runs = math.inf, 0.0, 0
    while runs < 3 or spent < seconds:
        before = time.process_time()
        run()
        took = time.process_time() - before
        best, spent, runs = min(best, took), spent + took, runs + 1
    return 1e3 * best
