"""Multi-query associative recall: how much a mixer remembers per byte of its state."""

from kerneltrick.recall._result import PUBLISHED, Point, RecallResult, Training
from kerneltrick.recall._settings import MIXERS, RecallSettings, preset
from kerneltrick.recall._sweep import check, recall
from kerneltrick.recall._task import Examples, Task

__all__ = [
    "MIXERS",
    "PUBLISHED",
    "Examples",
    "Point",
    "RecallResult",
    "RecallSettings",
    "Task",
    "Training",
    "check",
    "preset",
    "recall",
]
