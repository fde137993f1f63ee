"""Run the checks on an operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kerneltrick._text import nearest
from kerneltrick.conformance._checks import CHECKS, Check
from kerneltrick.conformance._operator import Operator, TrialSizes
from kerneltrick.conformance._trial import Trial, Violation, attempt

PASSED, FAILED, NOT_PROMISED = "passed", "failed", "not promised"
# Where a violation is looked for again, the smallest inputs first.
SMALLER = [
    TrialSizes(batch, heads, n, d)
    for batch, heads, d in ((1, 1, 1), (1, 1, 2), (2, 1, 1), (2, 2, 4))
    for n in (1, 2, 3, 5, 9, 17, 33, 65)
]


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
    """

    operator: str
    kind: str
    check: str
    status: str
    holds: bool | None
    detail: str = ""
    reproducer: str = ""


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
        return "\n".join(lines)


def check(
    operator: Operator | Callable[..., Any],
    kind: str | None = None,
    *,
    checks: Iterable[str] | None = None,
) -> Conformance:
    """Run the named checks (all of them by default) on an operator.

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
    results = tuple(_judge(operator, CHECKS[name]) for name in names)
    return Conformance(operator.name, operator.kind, results)


def _judge(operator: Operator, check: Check) -> Result:
    def result(status: str, holds: bool | None, detail: str = "", script: str = "") -> Result:
        return Result(operator.name, operator.kind, check.name, status, holds, detail, script)

    missing = sorted(check.needs - operator.abilities)
    if missing:
        return result(NOT_PROMISED, None, f"it has no {' and no '.join(missing)}")
    promised = check.implied or check.name in operator.promises
    trial = Trial.of(operator, operator.sizes)
    violation = attempt(check.find, trial)
    if violation is None:
        to = "to rounding" if trial.rounded else ""
        return result(PASSED, True, to) if promised else result(NOT_PROMISED, True, "holds")
    trial, violation = next(_smaller(operator, check), (trial, violation))
    script = trial.script(violation)
    if promised:
        return result(FAILED, False, violation.message, script)
    return result(NOT_PROMISED, False, f"does not hold: {violation.message}", script)


def _smaller(operator: Operator, check: Check) -> Iterator[tuple[Trial, Violation]]:
    """Violations on smaller inputs, the smallest first."""
    for sizes in SMALLER:
        if sizes.n > operator.sizes.n:
            continue
        trial = Trial.of(operator, sizes)
        try:
            found = attempt(check.find, trial)
        except Exception:  # inputs that the check cannot cut, such as one token
            continue
        if found is not None and not found.message.startswith("it raised"):
            yield trial, found
