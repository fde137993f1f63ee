"""One operator on one set of inputs, and what a check says about it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._kinds import RATES, OperatorKind, kind_named
from kerneltrick.conformance._operator import Operator
from kerneltrick.conformance._tokens import USUAL_SIZES, TrialSizes, tokens

ROUNDING = 64  # how many spacings of the type two orders of the same sums may differ by


@dataclasses.dataclass(frozen=True)
class Violation:
    """A promise that does not hold: in words, and the lines of Python that show it."""

    message: str
    lines: tuple[str, ...]
    raised: bool = False


@dataclasses.dataclass(frozen=True)
class Trial:
    """An operator, its inputs, and the places at which checks cut them."""

    operator: Operator
    arrays: list[Array]
    cuts: tuple[int, ...]
    data: str = ""  # the expression of Python that makes the arrays
    made: str = ""  # the expression of Python that makes the trial
    seed: int = 0
    sizes: TrialSizes = USUAL_SIZES
    few: bool = False  # whether one of many trials, each of which need not try everything
    rounded: list[str] = dataclasses.field(default_factory=list)  # where bits differed, and may

    @staticmethod
    def of(
        operator: Operator,
        sizes: TrialSizes,
        dtype: str = "float32",
        *,
        values: str = "plain",
        seed: int = 0,
        few: bool = False,
    ) -> Trial:
        """The inputs that `tokens` draws."""
        shape = dataclasses.asdict(sizes)
        arrays = tokens(operator.kind, **shape, values=values, dtype=dtype, seed=seed)
        places = {1, sizes.n // 2, 64, sizes.n - 1}
        if few:
            rng = np.random.default_rng(seed)
            places = {*rng.choice([1, 16, 63, 64, 65, sizes.n // 2, sizes.n - 1], 2).tolist()}
        cuts = tuple(sorted(places & set(range(1, sizes.n)))) or (1,)[: sizes.n - 1]
        options = "" if values == "plain" else f", values={values!r}"
        options += "" if dtype == "float32" else f", dtype={dtype!r}"
        options += f", seed={seed}" if seed else ""
        data = f"conformance.tokens({operator.kind!r}{sizes}{options})"
        made = f"conformance.Trial.of(operator, conformance.{sizes!r}{options}, few={few})"
        return Trial(operator, arrays, cuts, data, made, seed, sizes, few)

    @property
    def kind(self) -> OperatorKind:
        return kind_named(self.operator.kind)

    @property
    def names(self) -> list[str]:
        return [*self.kind.inputs]

    @property
    def given(self) -> str:
        """The inputs as a reproducer writes them."""
        return ", ".join(self.names)

    @property
    def sequences(self) -> list[str]:
        """The inputs that have one value for each token; the others are parameters."""
        return [name for name, axes in self.kind.inputs.items() if "n" in axes]

    @property
    def n(self) -> int:
        return int(self.arrays[self.kind.value].shape[2])

    @property
    def batch(self) -> int:
        return int(self.arrays[self.kind.value].shape[0])

    @functools.cached_property
    def clean(self) -> Array:
        """The output for the inputs as they are."""
        return self.output()

    def output(self, arrays: Sequence[Array] | None = None, **options: Any) -> Array:
        return self.operator(*(self.arrays if arrays is None else arrays), **options)[0]

    def between(self, start: int | None, stop: int | None) -> list[Array]:
        """The tokens start … stop−1."""
        return at(self.arrays, slice(start, stop))

    def in_parts(self, edges: Sequence[int], **options: Any) -> Array:
        """The outputs of a text that is read in parts with these edges."""
        outputs, state = [], None
        for start, stop in itertools.pairwise(edges):
            out, state = self.operator(*self.between(start, stop), state=state, **options)
            outputs.append(out)
        return np.concatenate(outputs, axis=2)

    def every_row(self, values: Array) -> Array:
        """A mask or segment ids for each row of the batch."""
        return np.broadcast_to(values, (self.batch, len(values)))

    def changed(self, names: Iterable[str], index: Any, value: Any) -> list[Array]:
        """The inputs, with other values for these names at some tokens."""
        made = [x.copy() for x in self.arrays]
        for name in names:
            made[self.names.index(name)][:, :, index] = value
        return made

    def finite(self) -> list[str]:
        """The inputs of tokens that may be anything, which rates may not."""
        return [name for name in self.sequences if name not in RATES]

    def differ(self, a: Array, b: Array, *, exact: bool = False, size: Array | None = None) -> str:
        """How two outputs that should be equal differ; empty if they may differ so.

        `exact`: the check asks for bits, which an operator may promise. `size`: see `close`.
        """
        if a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes():
            return ""
        if exact and self.operator.exact:
            return f"bits differ by up to {_largest(a, b):.2g}"
        if close(a, b, size):
            if exact:
                self.rounded.append("to rounding")
            return ""
        if np.isnan(a).any() != np.isnan(b).any():
            return "NaN appears in one of them"
        worst = np.unravel_index(np.nanargmax(_gap(a, b) - _allowed(a, b, size)), a.shape)
        gap, allowed = _gap(a, b)[worst], np.broadcast_to(_allowed(a, b, size), a.shape)[worst]
        return f"they differ by {gap:.2g}, beyond rounding ({allowed:.2g})"

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


def attempt(check: Any, trial: Trial) -> Violation | None:
    """What a check finds; an operator that raises an error breaks its promise too."""
    try:
        with np.errstate(all="ignore"):
            found: Violation | None = check.find(trial)
    except Exception as error:  # whatever the operator raises
        text = str(error).strip().partition("\n")[0]
        lines = (f"trial = {trial.made}", f"conformance.CHECKS[{check.name!r}].find(trial)")
        return Violation(f"it raised {type(error).__name__}: {text:.160}", lines, raised=True)
    return found


def at(arrays: Sequence[Array], tokens: Any = slice(None), rows: Any = slice(None)) -> list[Array]:
    """Some tokens of every input (batch, heads, n, …), and some rows; parameters stay whole.

    >>> [x.shape for x in at([np.ones((2, 3, 5, 4)), np.ones((4, 4))], slice(1, 3))]
    [(2, 3, 2, 4), (4, 4)]
    """
    return [x[rows][:, :, tokens] if x.ndim > 2 else x for x in arrays]


def listed(numbers: list[int]) -> str:
    """Numbers in a message, which leaves some out where there are many."""
    return str(numbers) if len(numbers) < 7 else f"{numbers[0]}, {numbers[1]}, …, {numbers[-1]}"


def close(a: Array, b: Array, size: Array | None = None) -> bool:
    """Whether two outputs differ by rounding only, and have NaN in the same places.

    `size` says for each output how large what it adds up is (`OperatorKind.size`); otherwise the
    largest of all outputs counts.

    >>> close(np.float32([1.0, 100.0]), np.float32([1.0001, 100.0]))
    True
    >>> close(np.float32([1.0, 100.0]), np.float32([1.0001, 100.0]), np.array([1.0, 100.0]))
    False
    """
    return np.array_equal(np.isnan(a), np.isnan(b)) and bool(
        (_gap(a, b) <= _allowed(a, b, size)).all()
    )


def _allowed(a: Array, b: Array, size: Array | None) -> Any:
    """A few spacings of the coarser type, where numbers have all their digits."""
    coarse = max((np.finfo(x.dtype) for x in (a, b)), key=lambda info: float(info.eps))
    if size is None:
        size = np.abs(b[np.isfinite(b)], dtype=np.float64).max(initial=0)
    return ROUNDING * (float(coarse.eps) * size + float(coarse.tiny))


def _gap(a: Array, b: Array) -> Array:
    """How far apart the outputs are; equal infinities and NaN in both are not."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return np.where((a == b) | np.isnan(gap), 0, gap)


def _largest(a: Array, b: Array) -> float:
    return float(_gap(a, b).max(initial=0))
