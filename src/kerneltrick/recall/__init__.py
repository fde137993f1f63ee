"""What a mixer can remember and track, per byte of its state: recall and other small tasks."""

from kerneltrick.recall._copying import Copy, Selective
from kerneltrick.recall._result import PUBLISHED, Point, RecallResult, Training
from kerneltrick.recall._settings import MIXERS, TASKS, RecallSettings, preset
from kerneltrick.recall._sweep import check, recall
from kerneltrick.recall._task import Examples, Task
from kerneltrick.recall._tracking import Parity, Permutation

__all__ = [
    "MIXERS",
    "PUBLISHED",
    "TASKS",
    "Copy",
    "Examples",
    "Parity",
    "Permutation",
    "Point",
    "RecallResult",
    "RecallSettings",
    "Selective",
    "Task",
    "Training",
    "check",
    "preset",
    "recall",
]
