"""The course: which page, chapter of `kerneltrick explore` and lab belong together."""

from __future__ import annotations

from dataclasses import dataclass

CHAPTER_MINUTES = 10  # to play with a chapter and answer its questions
FUNCTION_MINUTES = 15  # to write and check a function of a lab


@dataclass(frozen=True)
class Step:
    """A step of the course; its lab, if there is one, has the number of the page."""

    page: str  # docs/01_complexity.md is "01"
    title: str
    reading: int  # minutes, at about 130 words a minute
    chapters: tuple[str, ...] = ()  # of the page to explore

    def minutes(self, functions: int) -> int:
        """About how long the step takes, with a lab of so many functions.

        >>> COURSE[0].minutes(functions=4)
        90
        """
        explored = CHAPTER_MINUTES * len(self.chapters)
        return self.reading + explored + FUNCTION_MINUTES * functions


COURSE = (
    Step("01", "Complexity", 20, ("Two orders",)),
    Step("02", "Kernel trick", 25, ("Two orders", "A stream")),
    Step("03", "Feature maps", 40, ("The map", "The dial")),
    Step("04", "Quadratic kernel", 15, ("The map",)),
    Step("05", "Heads and decoding", 15),
    Step("06", "Kernels and RKHS", 35),
    Step("07", "Based", 35, ("The dial", "Recall")),
    Step("08", "Modern kin", 45, ("A stream",)),
)


def how_long(minutes: int) -> str:
    """Write a number of minutes, rounded to quarters of an hour above an hour.

    >>> how_long(40), how_long(60), how_long(95)
    ('40 min', '1 h', '1 h 30')
    """
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(15 * round(minutes / 15), 60)
    return f"{hours} h {rest}" if rest else f"{hours} h"
