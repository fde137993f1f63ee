"""The result of a sweep: accuracy against the bytes of the state, and the Pareto front."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from kerneltrick._text import to_json
from kerneltrick._version import __version__

FORMAT = "kerneltrick.recall/1"
WORD = 4  # bytes per number, as in published state sizes

# Published results as (bytes, accuracy), from the runs in Zoology's repository. Their task has a
# vocabulary of 8192 and up to 256 pairs: the task of the preset "paper", but with longer sequences.
PUBLISHED: dict[str, tuple[tuple[int, float], ...]] = {
    "Based": ((9_000, 0.67), (34_000, 0.84)),
    "DeltaNet": ((9_000, 0.79), (34_000, 0.96)),
    "gated DeltaNet": ((17_000, 0.89), (67_000, 0.99)),
    "RWKV-7": ((17_000, 0.82), (34_000, 0.91), (67_000, 0.98)),
    "GLA": ((17_000, 0.77), (67_000, 0.95)),
    "Mamba-2": ((9_000, 0.52), (17_000, 0.69), (34_000, 0.78), (67_000, 0.83)),
    "window": ((9_000, 0.08), (17_000, 0.15), (34_000, 0.31), (67_000, 0.51)),
}


@dataclasses.dataclass(frozen=True)
class Training:
    """One trained model: its settings and its result."""

    mixer: str
    width: int
    rate: float
    seed: int
    accuracy: float  # share of queries answered correctly
    numbers: int  # values in the state after one sequence
    held_bytes: int  # bytes they take in memory: sums are float64
    parameters: int
    steps: int  # fewer than requested if the loss became infinite or NaN
    seconds: float  # CPU time
    curve: list[list[float]]  # step, and the mean loss of the steps before it


@dataclasses.dataclass(frozen=True)
class Point:
    """A mixer at one width and its best learning rate: mean and range over the seeds."""

    mixer: str
    width: int
    rate: float
    bytes: int  # size of the state, four bytes per number
    accuracy: float
    lowest: float
    highest: float
    seeds: int
    on_front: bool = False


@dataclasses.dataclass(frozen=True)
class RecallResult:
    """All trained models of a sweep, and one point for each mixer and width."""

    settings: dict[str, Any]
    trainings: list[Training]
    points: list[Point]

    def to_dict(self) -> dict[str, Any]:
        """The result as a dictionary that JSON can hold."""
        return {
            "format": FORMAT,
            "version": __version__,
            "settings": self.settings,
            "points": [dataclasses.asdict(point) for point in self.points],
            "trainings": [dataclasses.asdict(training) for training in self.trainings],
            "published": self._published(),
        }

    def _published(self) -> dict[str, list[list[float]]]:
        if self.settings["task"]["name"] != "recall":
            return {}
        return {name: [list(point) for point in found] for name, found in PUBLISHED.items()}

    def to_json(self) -> str:
        """The text that `kerneltrick recall --json` writes."""
        return to_json(self.to_dict(), indent=1) + "\n"


def points_of(trainings: Iterable[Training]) -> list[Point]:
    """One point for each mixer and width, in the order of the trainings."""
    groups: dict[tuple[str, int], dict[float, list[Training]]] = {}
    for training in trainings:
        rates = groups.setdefault((training.mixer, training.width), {})
        rates.setdefault(training.rate, []).append(training)
    points = []
    for (mixer, width), rates in groups.items():
        rate, best = max(rates.items(), key=lambda item: _mean(item[1]))
        found = [training.accuracy for training in best]
        size = WORD * best[0].numbers
        spread = (_mean(best), min(found), max(found))
        points.append(Point(mixer, width, rate, size, *spread, seeds=len(found)))
    front = pareto([(point.bytes, point.accuracy) for point in points])
    return [dataclasses.replace(point, on_front=i in front) for i, point in enumerate(points)]


def pareto(points: Sequence[tuple[float, float]]) -> set[int]:
    """The indices of the points on the Pareto front: no smaller or equal state recalls as much.

    >>> sorted(pareto([(1, 0.2), (2, 0.1), (4, 0.9), (4, 0.5)]))
    [0, 2]
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    kept, best = set(), -1.0
    for i in order:
        if points[i][1] > best:
            kept.add(i)
            best = points[i][1]
    return kept


def _mean(trainings: Sequence[Training]) -> float:
    return sum(training.accuracy for training in trainings) / len(trainings)
