"""The answer to a claim."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any, Literal

from kerneltrick._text import to_json

Status = Literal["true", "false", "undecided"]
WIDTH = 100  # columns of a verdict as text
_MARKS = {"true": "TRUE", "false": "FALSE", "undecided": "UNDECIDED"}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, why, and a counterexample where there is one.

    `bool(verdict)` is True only for a claim that holds; "undecided" is never True. `basis` says
    what the answer rests on: "proof", "counterexample" or "measurement" (with its confidence in
    words in the reason).

    >>> verdict = Verdict("false", "2 = 3", "the sides differ by 1", basis="counterexample")
    >>> print(verdict)
    FALSE: 2 = 3
      the sides differ by 1
    >>> bool(verdict)
    False
    """

    status: Status
    claim: str
    reason: str
    details: tuple[str, ...] = ()
    counterexample: Mapping[str, Any] | None = None
    basis: str = "proof"
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.status == "true"

    def __str__(self) -> str:
        lines = [f"  {self.reason}", *(f"  - {line}" for line in self.details)]
        if self.counterexample:
            shown = ", ".join(f"{name} = {_show(x)}" for name, x in self.counterexample.items())
            lines.append(f"  counterexample: {shown}")
        wrapped = (textwrap.fill(x, WIDTH, subsequent_indent="    ", break_long_words=False,
                                 break_on_hyphens=False) for x in lines)  # fmt: skip
        return "\n".join((f"{_MARKS[self.status]}: {self.claim}", *wrapped))

    def to_json(self) -> str:
        """One JSON object."""
        return to_json(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """As plain values: numbers, texts, lists."""
        return {
            "status": self.status,
            "claim": self.claim,
            "reason": self.reason,
            "details": list(self.details),
            "counterexample": _plain(self.counterexample),
            "basis": self.basis,
            "facts": _plain(self.facts),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        return cls(**{**values, "details": tuple(values["details"])})


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
