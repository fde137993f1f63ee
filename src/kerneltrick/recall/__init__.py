"""How much a mixer remembers for each byte of its state: multi-query associative recall."""

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
