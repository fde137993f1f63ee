"""Tell whether other processes were busy during a measurement."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURN = 0.1  # seconds per turn; the clock ticks of other processes do not show in shorter ones
NOISE = 0.03  # seconds by which two readings of those ticks may differ on an idle machine


class Quiet:
    """Detects busy processes and waits for them, for at most `patience` seconds in total."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    @staticmethod
    def others() -> float:
        """Return the CPU seconds that other processes have used so far, or 0 if not known."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return 0.0
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy - time.process_time()

    def turn(self, function: Callable[..., Any], data: list[Any]) -> tuple[float, float, bool]:
        """Repeat function(*data) for one turn.

        Return the best time, the time of the turn, and whether other processes used less than 5 %
        of it. After a disturbed turn, wait until the others are quiet.
        """
        others, start, best = self.others(), time.perf_counter(), math.inf
        while (before := time.perf_counter()) - start < TURN:
            function(*data)
            best = min(best, time.perf_counter() - before)
        took = time.perf_counter() - start
        alone = self.others() - others < max(NOISE, 0.05 * took)
        if not alone and self.patience > 0:
            self.patience -= took
            self.wait()
        return best, took, alone

    def wait(self) -> None:
        while self.patience > 0:
            others = self.others()
            time.sleep(TURN)
            if self.others() - others < NOISE:
                return
            self.patience -= TURN
