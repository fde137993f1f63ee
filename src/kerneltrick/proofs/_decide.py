"""Read claims and pass each kind to its check."""

from __future__ import annotations

import re
from collections.abc import Callable

from kerneltrick import _text, costs
from kerneltrick.proofs._cost import QUANTITIES, check_cost
from kerneltrick.proofs._dimension import check_dimension
from kerneltrick.proofs._einsum import check_einsum
from kerneltrick.proofs._feature_map import check_feature_map
from kerneltrick.proofs._gradient import read_gradient
from kerneltrick.proofs._identity import check_identity
from kerneltrick.proofs._moments import check_moments
from kerneltrick.proofs._psd import check_psd
from kerneltrick.proofs._ranking import read_ranking
from kerneltrick.proofs._shapes import check_shapes
from kerneltrick.proofs._sign import check_sign
from kerneltrick.proofs._syntax import LONGEST, ClaimError
from kerneltrick.proofs._verdict import NotBrokenError, Verdict

_FOR_D = re.compile(r"\s+for\s+d\s*=\s*(\d{1,2})\s*$")
_FOR_SOME = re.compile(r"\s+for\s+some\s+([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*$")


def decide(kind: str, claim: str) -> Verdict:
    """Decide a claim of a kind in this process, without a time limit.

    >>> decide("einsum", "bd,dk->bk").status
    'true'
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of claim {kind!r}; {_text.nearest(kind, KINDS)}")
    if len(claim) > LONGEST:
        raise ClaimError(claim, LONGEST, f"a claim has at most {LONGEST} characters")
    if not claim.strip():
        raise ClaimError(claim, 0, f"the claim is empty; an example is {EXAMPLES[kind]}")
    try:
        verdict = KINDS[kind](claim)
    except NotBrokenError as error:  # exact evaluation did not confirm what was found
        return Verdict.undecided(" ".join(claim.split()), str(error))
    if kind in ("psd", "sign", "einsum"):  # their verdicts spell out the claim
        return verdict
    return verdict.of(" ".join(claim.split()))


def _map(claim: str) -> Verdict:
    """PHI gives KERNEL [for some a] [for d = 2]"""
    text, d, some = claim, None, tuple[str, ...]()
    if (match := _FOR_D.search(text)) is not None:
        text, d = text[: match.start()], int(match[1])
    if (match := _FOR_SOME.search(text)) is not None:
        text, some = text[: match.start()], tuple(re.split(r"\s*,\s*", match[1]))
    parts = re.split(r"\s+gives\s+", text)
    if len(parts) == 1 and text.lstrip().startswith("["):
        head, equals, tail = text.rpartition("]")[0] + "]", "=", text.rpartition("]")[2]
        if tail.strip().startswith(equals):
            parts = [head, tail.strip()[1:]]
    if len(parts) > 2 or (len(parts) == 1 and text.lstrip().startswith("[")):
        raise ClaimError(claim, len(text), f"expected a claim such as {EXAMPLES['map']}")
    phi, kernel = parts[0].strip(), parts[1].strip() if len(parts) == 2 else None
    return _located(claim, (phi, kernel), lambda: check_feature_map(phi, kernel, d, some=some))


def _cost(claim: str) -> Verdict:
    """ALGORITHM [QUANTITY]: CLAIM"""
    head, colon, tail = claim.rpartition(": ")
    if not colon:
        head, colon, tail = claim.rpartition(":")
    if not colon:
        problem = (
            f"expected an algorithm, a colon and its cost, such as {EXAMPLES['cost']}; known "
            f"algorithms are {', '.join(costs.algorithms())}"
        )
        raise ClaimError(claim, len(claim), problem)
    words = head.split()
    quantity = words.pop() if len(words) > 1 and words[-1] in QUANTITIES else "time"
    return _located(claim, (tail,), lambda: check_cost(tail.strip(), " ".join(words), quantity))


def _einsum(claim: str) -> Verdict:
    """EQUATION [for b d, h d k] [computes EQUATION [in any order]]"""
    text, _, meant = claim.partition(" computes ")
    meant, any_order = re.subn(r"\s+in any order(?=\s|$)", "", meant)
    if " for " in meant:
        meant, _, tail = meant.partition(" for ")
        text += f" for {tail}"
    equation, word, sizes = text.partition(" for ")
    flat = re.sub(r"\(([^()]*)\)", lambda match: match[1].replace(",", " "), sizes)
    shapes = [_sizes(claim, part) for part in flat.split(",")] if word else None
    return _located(
        claim,
        (equation, meant),
        lambda: check_einsum(
            equation.strip(), shapes, meant=meant.strip() or None, any_order=bool(any_order)
        ),
    )


def _sizes(claim: str, part: str) -> list[int | str]:
    """The sizes of one array: b d, 2 3, 2×3 or 2x3. Brackets are removed before."""
    words = re.sub(r"(?<=\d)x(?=\d)|×", " ", part).split()
    for word in words:
        if not re.fullmatch(r"[1-9]\d*|[A-Za-z]\w*", word):
            raise ClaimError(claim, max(claim.rfind(word), 0), "sizes are numbers ≥ 1 or letters")
    return [int(x) if x.isdigit() else x for x in words]


def _psd(claim: str) -> Verdict:
    """KERNEL [is positive semi-definite] [for d = 2]"""
    text, d = claim, None
    if (match := _FOR_D.search(text)) is not None:
        text, d = text[: match.start()], int(match[1])
    text = re.sub(r"\s+is\s+(positive semi-?definite|psd)\s*$", "", text, flags=re.IGNORECASE)
    return _located(claim, (text,), lambda: check_psd(text.strip(), d))


def _dimension(claim: str) -> Verdict:
    """MAP has N features, or KERNEL needs N features"""
    text, d = claim, None
    if (match := _FOR_D.search(text)) is not None:
        text, d = text[: match.start()], int(match[1])
    found = re.fullmatch(r"\s*(.+?)\s+(has|needs)\s+(.+?)(?:\s+features?)?\s*", text)
    if found is None:
        raise ClaimError(claim, len(claim), f"expected a claim such as {EXAMPLES['dimension']}")
    subject, verb, count = found.groups()
    return _located(
        claim,
        (subject, count),
        lambda: check_dimension(subject, count, d, minimal=verb == "needs"),
    )


def _shapes(claim: str) -> Verdict:
    """EXPRESSION -> n M where Q: n m, S: m M"""
    found = re.fullmatch(r"\s*(.+?)\s*->\s*(.+?)\s+where\s+(.+?)\s*", claim)
    if found is None:
        raise ClaimError(claim, len(claim), f"expected a claim such as {EXAMPLES['shapes']}")
    expression, result, given = found.groups()
    shapes = {}
    for part in given.split(","):
        name, colon, sizes = part.partition(":")
        if not colon or not sizes.split():
            raise ClaimError(claim, claim.rfind(part), "shapes have the form Q: n m, S: m M")
        if name.strip() in shapes:
            raise ClaimError(claim, claim.rfind(part), f"{name.strip()} is given two shapes")
        shapes[name.strip()] = re.split(r"[\s×]+", sizes.strip())
    parts = (expression, *(x for sizes in shapes.values() for x in sizes))
    return _located(
        claim, parts, lambda: check_shapes(expression, shapes, re.split(r"[\s×]+", result))
    )


def _located(claim: str, parts: tuple[str | None, ...], check: Callable[[], Verdict]) -> Verdict:
    """Run the check. An error in a part of the claim is shown in the whole claim."""
    try:
        return check()
    except ClaimError as error:
        for part in filter(None, parts):
            if error.text.strip() == part.strip():
                inner = len(error.text) - len(error.text.lstrip())
                start = claim.find(part.strip())
                raise ClaimError(claim, start + error.at - inner, error.problem) from None
        raise


KINDS: dict[str, Callable[[str], Verdict]] = {
    "map": _map,
    "identity": check_identity,
    "cost": _cost,
    "einsum": _einsum,
    "sign": check_sign,
    "psd": _psd,
    "moments": check_moments,
    "dimension": _dimension,
    "shapes": _shapes,
    "gradient": read_gradient,
    "ranking": read_ranking,
}
EXAMPLES = {
    "map": "[1, √2*x, x[i]*x[j] for i, j] gives (q·k + 1)**2",
    "identity": "(q·k + 1)**2 = (q·k)**2 + 2*(q·k) + 1",
    "cost": "quadratic: O(n*D**2*M)",
    "einsum": "bd,hdk->bhk",
    "sign": "relu(q·k) > 0",
    "psd": "elu(q·k) + 1",
    "moments": "Var[q·k] = d where mu = 0, sigma = 1",
    "dimension": "taylor:order=2 has C(d+2, 2) features",
    "shapes": "phi @ S -> n M where phi: n m, S: m M",
    "gradient": "hard trains k",
    "ranking": "relu beats elu",
}
