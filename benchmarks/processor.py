"""CPU time of work on one thread. Unlike wall time, other processes hardly affect it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # NumPy reads it on import, so this module must come first


def milliseconds(run: Callable[[], Any], seconds: float = 0.3) -> float:
    """Return the least CPU time of repeated runs."""
    best, spent, runs = math.inf, 0.0, 0
    while runs < 3 or spent < seconds:
        before = time.process_time()
        run()
        took = time.process_time() - before
        best, spent, runs = min(best, took), spent + took, runs + 1
    return 1e3 * best
