"""Placement of labels that overlap neither each other nor the dots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )


def place_labels(
    dots: Sequence[tuple[float, float]],
    texts: Sequence[str],
    width: float,
    height: float,
    size: float = 8.0,
) -> list[tuple[float, float]]:
    """Return the offset of the lower left corner of each text from its dot, in points.

    The placement is greedy: each label takes the nearest free place inside the picture (0…width,
    0…height), to the right of its dot if possible. A letter is taken to be 0.56 of the size wide.

    >>> place_labels([(10, 10), (12, 10)], ["a", "b"], 100, 100)
    [(6.0, -4.0), (-10.48, -4.0)]
    """
    taken = [Box(x - 4, y - 4, x + 4, y + 4) for x, y in dots]
    offsets = []
    for (x, y), text in zip(dots, texts, strict=True):
        w = 0.56 * size * len(text)
        places = [
            (dx, side * step * size - size / 2)
            for step in (0.0, 1.1, 1.7, 2.5, 3.5, 4.5, 5.5)
            for side in ((1,) if step == 0 else (1, -1))
            for dx in (6.0, -w - 6.0, -w / 2)
        ]

        def box(place: tuple[float, float], x: float = x, y: float = y, w: float = w) -> Box:
            left, bottom = x + place[0], y + place[1]
            return Box(left, bottom, left + w, bottom + 1.15 * size)

        inside = [
            place
            for place in places
            if box(place).left >= 0
            and box(place).right <= width
            and box(place).bottom >= 0
            and box(place).top <= height
        ]
        best = min(
            inside or places,
            key=lambda place: sum(box(place).overlaps(other) for other in taken),
        )
        taken.append(box(best))
        offsets.append((round(best[0], 2), round(best[1], 2)))
    return offsets
