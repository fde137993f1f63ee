"""Whether a measurement had the machine to itself."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURN = 0.1  # seconds of one turn: shorter than this, the clock ticks of other processes do not show
NOISE = 0.03  # seconds by which two readings of those ticks may differ for nothing


class Quiet:
    """Tells whether other processes were at work, and waits for them, `patience` seconds in all."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    @staticmethod
    def others() -> float:
        """Seconds of processor time that others have used so far (0 where that is not known)."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return 0.0
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split()[1:9])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy - time.process_time()

    def turn(self, function: Callable[..., Any], data: list[Any]) -> tuple[float, float, bool]:
        """Repeat function(*data) for a turn: the best time, the time of the turn, and whether the
        others used less than 5 % of it. After a turn that was disturbed, wait for quiet.
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
