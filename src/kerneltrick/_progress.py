"""Progress reports of long runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

ProgressReport = Callable[[str, int, int], None]  # (current work, pieces done, total pieces)
PATIENCE = 2.0  # seconds before a run without a report prints its progress on a terminal
PAUSE = 0.2


class Progress:
    """Calls a report now and then; without one, prints a line on the terminal if it takes long."""

    def __init__(self, what: str, total: int, report: ProgressReport | None) -> None:
        self.what, self.total, self.report = what, total, report
        self.next = time.monotonic() + (PAUSE if report else PATIENCE)
        self.shown = False

    def __call__(self, done: int) -> None:
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + PAUSE
        if self.report is not None:
            self.report(self.what, done, self.total)
        elif sys.stderr.isatty():
            self.shown = True
            sys.stderr.write(f"\r{self.what}: {done}/{self.total}")
            sys.stderr.flush()

    def close(self, done: int) -> None:
        if self.report is not None:
            self.report(self.what, done, self.total)
        if self.shown:
            sys.stderr.write(f"\r{self.what}: {done}/{self.total}\n")


def paced(report: ProgressReport | None, tokens: int) -> ProgressReport | None:
    """Return a report that adds tokens per second, for pieces of `tokens` tokens each."""
    if report is None:
        return None
    begun: tuple[float, int] | None = None

    def told(what: str, done: int, total: int) -> None:
        nonlocal begun
        now = time.monotonic()
        begun = begun or (now, done)  # a resumed run does not start at 0
        seconds, pieces = now - begun[0], done - begun[1]
        pace = f", {pieces * tokens / seconds:,.0f} tokens/s" if seconds and pieces else ""
        report(what + pace, done, total)

    return told
