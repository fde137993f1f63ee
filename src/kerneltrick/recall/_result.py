"""What a sweep found: accuracy against the bytes of the state, and the front that nothing beats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from kerneltrick._text import to_json
from kerneltrick._version import __version__

FORMAT = "kerneltrick.recall/1"
WORD = 4  # bytes of a number, as published state sizes count

# Published accuracies at (bytes, accuracy): the runs of Zoology's repository, on its task of 8192
# tokens and up to 256 pairs, which is that of the preset "paper" but for longer texts.
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
    """One model: what it was, and what it came to."""

    mixer: str
    width: int
    rate: float
    seed: int
    accuracy: float  # the share of queries answered
    numbers: int  # that the state holds after a text
    held_bytes: int  # in which it holds them: sums are float64
    parameters: int
    steps: int  # fewer than asked for if the loss was no number
    seconds: float  # of processor time
    curve: list[list[float]]  # step, and the mean loss of the steps before


@dataclasses.dataclass(frozen=True)
class Point:
    """A mixer at a width, at its best rate: the mean over seeds, and the spread."""

    mixer: str
    width: int
    rate: float
    bytes: int  # of the state, four for each number
    accuracy: float
    lowest: float
    highest: float
    seeds: int
    on_front: bool = False


@dataclasses.dataclass(frozen=True)
class RecallResult:
    """A sweep."""

    settings: dict[str, Any]
    trainings: list[Training]
    points: list[Point]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "format": FORMAT,
            "version": __version__,
            "settings": self.settings,
            "points": [dataclasses.asdict(point) for point in self.points],
            "trainings": [dataclasses.asdict(training) for training in self.trainings],
            "published": {name: [list(p) for p in found] for name, found in PUBLISHED.items()},
        }

    def to_json(self) -> str:
        """What `kerneltrick recall --json` writes."""
        return to_json(self.to_dict(), indent=1) + "\n"


def points_of(trainings: Iterable[Training]) -> list[Point]:
    """One point for each mixer and width, in the order in which they come."""
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
    """Which points no other beats: none as small recalls as much.

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
