"""One operator on one set of inputs, and what a check says about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._kinds import kind_named, tokens
from kerneltrick.conformance._operator import AdapterError, Operator, TrialSizes

ROUNDING = 64  # how many spacings of the type two orders of the same sums may differ by


@dataclasses.dataclass(frozen=True)
class Violation:
    """A promise that does not hold: in words, and the lines of Python that show it."""

    message: str
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Trial:
    """An operator, its inputs, and the places at which checks cut them."""

    operator: Operator
    arrays: list[Array]
    cuts: tuple[int, ...]
    data: str = ""  # the expression of Python that makes the arrays
    rounded: list[str] = dataclasses.field(default_factory=list)  # where bits differed, and may

    @staticmethod
    def of(operator: Operator, sizes: TrialSizes, dtype: str = "float32") -> Trial:
        arrays = tokens(operator.kind, **dataclasses.asdict(sizes), dtype=dtype)
        cuts = tuple(sorted({1, sizes.n // 2, 64, sizes.n - 1} & set(range(1, sizes.n))))
        data = f"conformance.tokens({operator.kind!r}{sizes})"
        return Trial(operator, arrays, cuts, data)

    @property
    def names(self) -> list[str]:
        return [*kind_named(self.operator.kind).inputs]

    @property
    def given(self) -> str:
        """The inputs as a reproducer writes them."""
        return ", ".join(self.names)

    @property
    def n(self) -> int:
        return int(self.arrays[2].shape[2])

    def output(self, arrays: Sequence[Array] | None = None, **options: Any) -> Array:
        return self.operator(*(self.arrays if arrays is None else arrays), **options)[0]

    def between(self, start: int | None, stop: int | None) -> list[Array]:
        """The tokens start … stop−1."""
        return [x[:, :, start:stop] for x in self.arrays]

    def differ(self, a: Array, b: Array, *, exact: bool = False) -> str:
        """How two outputs that should be equal differ; empty if they may differ so.

        `exact`: the check asks for bits, which an operator may promise.
        """
        if a.dtype == b.dtype and a.tobytes() == b.tobytes():
            return ""
        if exact and self.operator.exact:
            return f"bits differ by up to {_largest(a, b):.2g}"
        if close(a, b):
            if exact:
                self.rounded.append("to rounding")
            return ""
        if np.isnan(a).any() != np.isnan(b).any():
            return "NaN appears in one of them"
        return f"they differ by {_largest(a, b):.2g}, beyond rounding ({_allowed(a, b):.2g})"

    def same(self, a: str, b: str) -> str:
        """The expression of Python that says whether two outputs are equal, as `differ` asks."""
        equal = f"np.array_equal({a}, {b})"
        return equal if self.operator.exact else f"conformance.close({a}, {b})"

    def script(self, violation: Violation) -> str:
        """A program that shows a violation."""
        lines = (
            "import numpy as np",
            "from kerneltrick import conformance",
            self.operator.source,
            f"{self.given} = {self.data}",
            *violation.lines,
        )
        return "\n".join(lines) + "\n"


def attempt(find: Any, trial: Trial) -> Violation | None:
    """What a check finds; an operator that raises an error breaks its promise too."""
    try:
        with np.errstate(all="ignore"):
            found: Violation | None = find(trial)
    except AdapterError:
        raise
    except Exception as error:  # whatever the operator raises
        text = str(error).strip().partition("\n")[0]
        message = f"it raised {type(error).__name__}: {text:.160}"
        return Violation(
            message, (f"operator({trial.given})  # one call of the check raised this",)
        )
    return found


def listed(numbers: list[int]) -> str:
    """Numbers in a message, which leaves some out where there are many."""
    return str(numbers) if len(numbers) < 7 else f"{numbers[0]}, {numbers[1]}, …, {numbers[-1]}"


def close(a: Array, b: Array) -> bool:
    """Whether two outputs differ by rounding only, and have NaN in the same places.

    >>> close(np.float32([1.0, 100.0]), np.float32([1.0001, 100.0]))
    True
    >>> close(np.float32([1.0]), np.float32([1.0001]))
    False
    """
    return np.array_equal(np.isnan(a), np.isnan(b)) and _largest(a, b) <= _allowed(a, b)


def _allowed(a: Array, b: Array) -> float:
    """A few spacings of the coarser type, at the largest of the numbers."""
    epsilon = max(float(np.finfo(x.dtype).eps) for x in (a, b))
    return ROUNDING * epsilon * float(np.abs(b[np.isfinite(b)]).max(initial=0))


def _largest(a: Array, b: Array) -> float:
    with np.errstate(invalid="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(np.nanmax(np.where(np.isnan(gap), 0, gap), initial=0))
