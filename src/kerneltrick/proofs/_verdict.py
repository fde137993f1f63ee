"""The answer to a claim, and the evidence that it needs.

A verdict is TRUE only with a `Derivation`. It is FALSE only with a `Counterexample` that was
evaluated exactly, or with a derivation of the opposite. Claims about given numbers, such as
rankings on given data, rest on a `Computation`. Everything else is undecided and says what is
missing.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal

from kerneltrick._text import to_json

Status = Literal["true", "false", "undecided"]
WIDTH = 100  # columns of a verdict as text
_MARKS = {"true": "TRUE", "false": "FALSE", "undecided": "UNDECIDED"}
REAL = "all numbers are real"
WHOLE = "d is a whole number ≥ 1"
DEFINED = "where both sides are defined"


@dataclasses.dataclass(frozen=True)
class Derivation:
    """The reason why a claim holds, or cannot hold, and what the reason assumes."""

    reason: str
    assumptions: tuple[str, ...] = ()
    basis = "proof"


@dataclasses.dataclass(frozen=True)
class Computation:
    """A result computed from the numbers that a claim is about. It says nothing about others."""

    reason: str
    assumptions: tuple[str, ...] = ()
    basis = "measurement"


class NotBrokenError(ValueError):
    """Exact evaluation shows that the values do not break the claim."""


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """Values for which a claim fails.

    `breaks` evaluates the claim and its conditions exactly. If the claim does not fail, the
    constructor raises an error.

    >>> Counterexample("2 is not 3", {"a": 2}, lambda: 2 == 3)
    Traceback (most recent call last):
    ...
    kerneltrick.proofs._verdict.NotBrokenError: these values do not break the claim: {'a': 2}
    """

    reason: str
    values: Mapping[str, Any]
    breaks: dataclasses.InitVar[Callable[[], bool]]
    assumptions: tuple[str, ...] = ()
    basis = "counterexample"

    def __post_init__(self, breaks: Callable[[], bool]) -> None:
        if breaks() is not True:
            raise NotBrokenError(f"these values do not break the claim: {dict(self.values)}")


Evidence = Derivation | Counterexample | Computation


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The answer to a claim: whether it holds, why, and a counterexample if there is one.

    `bool(verdict)` is True only if the claim holds; it is False for "undecided". `basis` says what
    the answer rests on: "proof", "counterexample", "measurement" (of the numbers that the claim is
    about, or without a definite result) or "none". `assumptions` lists what the answer assumes.
    Verdicts are created by `Verdict.true`, `Verdict.false` and `Verdict.undecided`.

    >>> found = Counterexample("the sides differ by 1", {"left": 2, "right": 3}, lambda: 2 != 3)
    >>> verdict = Verdict.false("2 = 3", found)
    >>> print(verdict)
    FALSE: 2 = 3
      the sides differ by 1
      counterexample: left = 2, right = 3
    >>> bool(verdict)
    False
    """

    status: Status
    claim: str
    reason: str
    details: tuple[str, ...] = ()
    counterexample: Mapping[str, Any] | None = None
    basis: str = "none"
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    evidence: dataclasses.InitVar[Evidence | None] = None

    def __post_init__(self, evidence: Evidence | None) -> None:
        if (self.status == "undecided") != (evidence is None):
            raise ValueError("a verdict is true or false with evidence, and undecided without it")
        if self.status == "true" and isinstance(evidence, Counterexample):
            raise ValueError("a counterexample cannot make a claim true")

    @classmethod
    def true(
        cls,
        claim: str,
        evidence: Derivation | Computation,
        details: tuple[str, ...] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> Verdict:
        return cls(
            status="true",
            claim=claim,
            reason=evidence.reason,
            details=details,
            counterexample=None,
            basis=evidence.basis,
            facts=facts or {},
            assumptions=evidence.assumptions,
            evidence=evidence,
        )

    @classmethod
    def false(
        cls,
        claim: str,
        evidence: Evidence,
        details: tuple[str, ...] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> Verdict:
        values = evidence.values if isinstance(evidence, Counterexample) else None
        return cls(
            status="false",
            claim=claim,
            reason=evidence.reason,
            details=details,
            counterexample=values,
            basis=evidence.basis,
            facts=facts or {},
            assumptions=evidence.assumptions,
            evidence=evidence,
        )

    @classmethod
    def undecided(
        cls,
        claim: str,
        missing: str,
        details: tuple[str, ...] = (),
        facts: Mapping[str, Any] | None = None,
        basis: str = "none",
    ) -> Verdict:
        return cls(
            status="undecided",
            claim=claim,
            reason=missing,
            details=details,
            counterexample=None,
            basis=basis,
            facts=facts or {},
        )

    def of(self, claim: str) -> Verdict:
        """The same verdict with another wording of the claim."""
        return Verdict.from_dict({**self.to_dict(), "claim": claim})

    def __bool__(self) -> bool:
        return self.status == "true"

    def __str__(self) -> str:
        lines = [f"  {self.reason}", *(f"  - {line}" for line in self.details)]
        if self.counterexample:
            shown = ", ".join(f"{name} = {_show(x)}" for name, x in self.counterexample.items())
            lines.append(f"  counterexample: {shown}")
        if self.assumptions:
            lines.append(f"  assumed: {'; '.join(self.assumptions)}")
        wrapped = (
            textwrap.fill(
                x, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
            )
            for x in lines
        )
        return "\n".join((f"{_MARKS[self.status]}: {self.claim}", *wrapped))

    def to_json(self) -> str:
        """The verdict as one JSON object."""
        return to_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values: numbers, texts and lists."""
        return {
            "status": self.status,
            "claim": self.claim,
            "reason": self.reason,
            "details": list(self.details),
            "counterexample": _plain(self.counterexample),
            "basis": self.basis,
            "facts": _plain(self.facts),
            "assumptions": list(self.assumptions),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """Restore the verdict that `to_dict` returned."""
        found = cls.undecided(
            values["claim"],
            values["reason"],
            tuple(values["details"]),
            values["facts"],
            values["basis"],
        )
        for name in ("status", "counterexample"):
            object.__setattr__(found, name, values[name])
        object.__setattr__(found, "assumptions", tuple(values["assumptions"]))
        return found


def _show(x: Any) -> str:
    if isinstance(x, list | tuple):
        return "(" + ", ".join(map(_show, x)) + ")"
    return f"{x:.6g}" if isinstance(x, float) else str(x)  # 2.0 as 2


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, bool | int | str):
        return x
    if isinstance(x, float):
        return x if x - x == 0 else str(x)  # JSON knows no inf and no nan
    if isinstance(x, Mapping):
        return {str(name): _plain(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(value) for value in x]
    return str(x)
