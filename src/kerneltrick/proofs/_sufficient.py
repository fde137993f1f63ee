"""Decide which conditions on similarities keep their sum from being 0."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from kerneltrick.proofs._syntax import ClaimError
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

_CONDITION = re.compile(r"^(some\s+)?sim\s*(>=|<=|!=|>|<|≥|≤|≠)\s*0$")
_SPELLED = {"≥": ">=", "≤": "<=", "≠": "!="}
_TESTS: dict[str, Callable[[int], bool]] = {
    ">": lambda s: s > 0,
    ">=": lambda s: s >= 0,
    "<": lambda s: s < 0,
    "<=": lambda s: s <= 0,
    "!=": lambda s: s != 0,
}
Test = Callable[[Sequence[int]], bool]


def check_sufficient(text: str) -> Verdict:
    """Decide whether a condition suffices (or is necessary) for Σⱼ sim ≠ 0.

    A condition is "sim > 0" (for all keys), "some sim != 0", or several joined by "and". Only the
    signs matter. If all similarities have the same sign and not all are 0, their sum is not 0. If
    both signs are allowed, their sizes can be chosen so that they cancel.

    >>> print(check_sufficient("some sim != 0 suffices"))
    FALSE: some sim != 0 suffices
      similarities of both signs are allowed, and they can cancel
      counterexample: similarities = (-1, 1), sum = 0
    """
    head, word = _split(text)
    tests = [_test(text, part) for part in re.split(r"\s+and\s+|\s*,\s*", head)]

    def holds(signs: Sequence[int]) -> bool:
        return all(test(signs) for test in tests)

    patterns = [p for n in (1, 2, 3) for p in itertools.product((-1, 0, 1), repeat=n)]
    if word == "is necessary":
        return _necessary(text, holds, patterns)
    allowed = [p for p in patterns if holds(p)]
    if not allowed:
        return Verdict.undecided(text, "no similarities satisfy this condition")
    zeros = next((p for p in allowed if not any(p)), None)
    if zeros is not None:
        return _insufficient(text, holds, list(zeros), "similarities that are all 0 are allowed")
    mixed = next((p for p in allowed if min(p) < 0 < max(p)), None)
    if mixed is not None:
        reason = "similarities of both signs are allowed, and they can cancel"
        return _insufficient(text, holds, _balanced(mixed), reason)
    # Conditions distinguish only three signs, so three keys show everything that can happen.
    reason = "all similarities have the same sign and not all are 0, so their sum has that sign"
    return Verdict.true(text, Derivation(reason))


def _insufficient(text: str, holds: Test, values: list[int], reason: str) -> Verdict:
    def vanishes() -> bool:
        return holds(values) and sum(values) == 0

    point = {"similarities": values, "sum": 0}
    return Verdict.false(text, Counterexample(reason, point, vanishes))


def _necessary(text: str, holds: Test, patterns: Sequence[Sequence[int]]) -> Verdict:
    """Decide whether the condition holds whenever the sum is not 0."""
    for pattern in patterns:
        for sizes in itertools.product((1, 2), repeat=len(pattern)):
            values = [s * size for s, size in zip(pattern, sizes, strict=True)]  # whole numbers
            if sum(values) and not holds(values):
                point = {"similarities": values, "sum": sum(values)}
                reason = "the sum can differ from 0 without it"

                def breaks(values: Sequence[int] = values) -> bool:
                    return sum(values) != 0 and not holds(values)

                return Verdict.false(text, Counterexample(reason, point, breaks))
    return Verdict.true(text, Derivation("without it every sum is 0"))


def _split(text: str) -> tuple[str, str]:
    match = re.search(r"\s+(suffices|is sufficient|is necessary)\s*$", text)
    if match is None:
        raise ClaimError(text, len(text), "expected '… suffices' or '… is necessary'")
    return text[: match.start()].strip(), match[1]


def _test(text: str, part: str) -> Test:
    match = _CONDITION.match(part.strip())
    if match is None:
        at = max(text.find(part), 0)
        raise ClaimError(
            text, at, "a condition is 'sim > 0', 'some sim != 0' or several joined by 'and'"
        )
    one = _TESTS[_SPELLED.get(match[2], match[2])]
    return (lambda s: any(map(one, s))) if match[1] else (lambda s: all(map(one, s)))


def _balanced(signs: Sequence[int]) -> list[int]:
    """Numbers with these signs and sum 0."""
    up, down = sum(s > 0 for s in signs), sum(s < 0 for s in signs)
    return [down if s > 0 else -up if s < 0 else 0 for s in signs]
