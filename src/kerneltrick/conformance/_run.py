"""Run the checks on an operator."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from kerneltrick._text import nearest
from kerneltrick.conformance._checks import CHECKS, EXTREME, Check
from kerneltrick.conformance._kinds import kind_named
from kerneltrick.conformance._operator import AdapterError, Operator
from kerneltrick.conformance._tokens import TrialSizes, draw_sizes, ranges_of
from kerneltrick.conformance._trial import Trial, Violation, attempt

PASSED, FAILED, NOT_PROMISED = "passed", "failed", "not promised"
DRAWS = 3  # how many inputs of other sizes each check draws
SHAPES = ("long", "many", "wide")
# Where a violation is looked for again, the smallest inputs first.
SMALLER = [
    TrialSizes(batch, heads, n, d, groups)
    for batch, heads, d, groups in (
        (1, 1, 1, 1), (1, 1, 2, 1), (2, 1, 1, 1), (3, 1, 1, 1), (1, 2, 1, 2), (1, 3, 1, 1),
        (2, 2, 4, 1), (1, 1, 17, 1),
    )
    for n in (1, 2, 3, 5, 9, 17, 33, 65, 129)
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Result:
    """What one check says of one operator.

    status
        "passed", "failed" or "not promised".
    holds
        Whether the property holds all the same; None where it could not be tried.
    detail
        In one line: how it fails, why it is not promised, or that it holds to rounding only.
    reproducer
        A program that shows the failure on the smallest inputs found, or "".
    again
        The line of Python that runs the check again with the same seed, or "".
    """

    operator: str
    kind: str
    check: str
    status: str
    holds: bool | None
    detail: str = ""
    reproducer: str = ""
    again: str = ""


@dataclasses.dataclass(frozen=True)
class Conformance:
    """The results of an operator, one for each check."""

    operator: str
    kind: str
    results: tuple[Result, ...]

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.status == FAILED]

    def __getitem__(self, check: str) -> Result:
        return next(result for result in self.results if result.check == check)

    def cells(self) -> list[str]:
        """✓ passed, ✗ failed, and for what is not promised: (✓) holds, (✗) does not, – untried."""
        signs = {True: "✓", False: "✗", None: "–"}
        return [
            f"({signs[result.holds]})"
            if result.status == NOT_PROMISED and result.holds is not None
            else signs[result.holds]
            for result in self.results
        ]

    def __str__(self) -> str:
        lines = [f"{self.operator} ({self.kind})"]
        for result in self.results:
            detail = f": {result.detail}" if result.detail else ""
            lines.append(f"  {result.check}: {result.status}{detail}")
            lines += [f"    {result.again}"] if result.status == FAILED else []
        return "\n".join(lines)


def check(
    operator: Operator | Callable[..., Any],
    kind: str | None = None,
    *,
    checks: Iterable[str] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Conformance:
    """Run the named checks (all of them by default) on an operator.

    Each is tried on inputs of the operator's own sizes, and on `draws` others that `seed` decides:
    long texts, many rows and heads, wide heads, and values of every size.

    `operator` is an `Operator`, or a function on NumPy arrays together with its `kind`. A violation
    is looked for again on smaller inputs, and comes with a program that shows it.

    >>> import kerneltrick as kt
    >>> def forgetful(q, k, v, beta, log_decay, *, state=None):
    ...     out, after = kt.delta_rule(q, k, v, beta, log_decay=log_decay, return_state=True)
    ...     return out, after  # the state that was given is not used
    >>> found = check(forgetful, kind="delta_rule")
    >>> found["batch of one = batch of many"].status
    'passed'
    >>> print(found.failures[0].check, "|", found.failures[0].detail)
    prefill = decode at any split | reading in parts that begin at [0, 1] changes outputs: ...
    """
    if not isinstance(operator, Operator):
        if kind is None:
            raise ValueError("check needs kind=, such as kind='delta_rule', for a plain function")
        operator = Operator(operator, kind)
    elif kind is not None and kind != operator.kind:
        raise ValueError(f"{operator.name} is of kind {operator.kind!r}, not {kind!r}")
    names = [*CHECKS] if checks is None else list(checks)
    for name in names:
        if name not in CHECKS:
            raise ValueError(f"unknown check {name!r}; {nearest(name, [*CHECKS])}")
    _try_adapter(operator, names)
    results = tuple(_judge(operator, CHECKS[name], seed, draws) for name in names)
    return Conformance(operator.name, operator.kind, results)


def _try_adapter(operator: Operator, names: list[str]) -> None:
    """Raise what an adapter returns that it should not, which is no matter of promises."""
    trial = Trial.of(operator, operator.sizes)
    try:
        with np.errstate(all="ignore"):
            o = trial.output()
            if operator.gradient is not None and "gradient against float64" in names:
                operator.gradients(trial.arrays, o)
    except AdapterError:
        raise
    except Exception:  # whatever the operator raises, the checks will say
        return


def _judge(operator: Operator, check: Check, seed: int, draws: int) -> Result:
    def result(status: str, holds: bool | None, detail: str = "", script: str = "") -> Result:
        again = ""
        if script:
            chosen = f"checks=[{check.name!r}], seed={seed}, draws={draws}"
            again = f"from kerneltrick import conformance; {operator.source}; "
            again += f"print(conformance.check(operator, {chosen}))"
        return Result(
            operator.name, operator.kind, check.name, status, holds, detail, script, again
        )

    missing = sorted(check.needs - operator.abilities)
    if missing:
        return result(NOT_PROMISED, None, f"it has no {' and no '.join(missing)}")
    promised = check.implied or check.name in operator.promises
    rounded = False
    for trial, values in _trials(operator, check, seed, draws):
        violation = attempt(check, trial)
        rounded |= bool(trial.rounded)
        if violation is not None:
            trial, violation = next(_smaller(trial, violation, values, check), (trial, violation))
            script = trial.script(violation)
            if promised:
                return result(FAILED, False, violation.message, script)
            return result(NOT_PROMISED, False, f"does not hold: {violation.message}", script)
    to = "to rounding" if rounded else ""
    return result(PASSED, True, to) if promised else result(NOT_PROMISED, True, "holds")


def _trials(operator: Operator, check: Check, seed: int, draws: int) -> Iterator[tuple[Trial, str]]:
    """Inputs of the operator's own sizes, then some of drawn sizes, with their ranges of values."""
    rng = np.random.default_rng([seed, zlib.crc32(check.name.encode())])
    ranges = [values for values in check.ranges if values in ranges_of(kind_named(operator.kind))]
    if check.name == EXTREME:
        first = ranges
    else:
        first = ranges[:1]
        ranges = ranges if EXTREME in operator.promises else first
    for values in first:
        yield Trial.of(operator, operator.sizes, values=values, seed=seed), values
    start = int(rng.integers(6))
    for i in range(draws):
        shape, values = SHAPES[i % len(SHAPES)], ranges[(start + i) % len(ranges)]
        dtype = operator.floats[(start + i) % len(operator.floats)]
        sizes = draw_sizes(
            rng, shape, 2 * operator.sizes.n, grouped=operator.grouped, wide=operator.wide
        )
        drawn = int(rng.integers(1, 10**6))
        yield Trial.of(operator, sizes, dtype, values=values, seed=drawn, few=True), values


def _smaller(
    failed: Trial, violation: Violation, values: str, check: Check
) -> Iterator[tuple[Trial, Violation]]:
    """Violations on smaller inputs of the same range and seed, the smallest first."""
    operator, dtype = failed.operator, str(failed.arrays[0].dtype)
    for sizes in SMALLER:
        if not sizes.within(failed.sizes):
            continue
        trial = Trial.of(operator, sizes, dtype, values=values, seed=failed.seed)
        found = attempt(check, trial)
        if found is not None and found.raised == violation.raised:
            yield trial, found
