"""Can the normaliser Σⱼ sim(q, kⱼ) vanish? Proofs of sign, and witnesses."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

from kerneltrick import maps
from kerneltrick.proofs._interval import ALL, POSITIVE, Interval, interval
from kerneltrick.proofs._sufficient import check_sufficient
from kerneltrick.proofs._symbolic import Kernel, KernelLike, Phi
from kerneltrick.proofs._sympy import real, sympy, write
from kerneltrick.proofs._syntax import ClaimError, Node, Reader, Side, read_features
from kerneltrick.proofs._verdict import Status, Verdict
from kerneltrick.proofs._witness import RANDOM, Known, Subject, find_witness, of_dot

_CLAIM = re.compile(r"^(?P<sim>.*?)\s*(?P<relation>>=|<=|!=|>|<|≥|≤|≠)\s*0\s*$", re.DOTALL)
_SPELLED = {"≥": ">=", "≤": "<=", "≠": "!="}
_WORDS = {">": "positive", ">=": "non-negative", "<": "negative", "<=": "non-positive"}


def check_sign(sim: KernelLike, relation: str | None = None) -> Verdict:
    """Whether a similarity keeps a sign, and so whether its normaliser can vanish.

    `sim` is a text, also with a relation ("relu(q·k) > 0"), a feature map, a list of features
    or a function. Without a relation the claim is that Σⱼ sim(q, kⱼ) is never 0. Proven by the
    values each part can take, by the real roots of polynomials in q·k, and by the sign of
    features; refuted by a query and keys. "… suffices" and "… is necessary" judge conditions:
    "sim > 0 suffices", "some sim != 0 suffices".

    >>> print(check_sign("1 + q·k + (q·k)**2/2"))
    TRUE: Σ 1 + q·k + (q·k)**2/2 is never 0
      it is positive: as a polynomial in t = q·k it has no real root and is 1 at t = 0
    >>> print(check_sign("relu(q·k) > 0"))
    FALSE: relu(q·k) > 0
      it is non-negative, but 0 is reached
      counterexample: q = (1), k = (-1), sim = 0
    """
    if isinstance(sim, str):
        if re.search(r"\b(suffices|is sufficient|is necessary)\s*$", sim):
            return check_sufficient(sim)
        match = re.search(r"\s+can vanish\s*$", sim)
        if match is not None:
            return _flipped(check_sign(sim[: match.start()], "!="), sim)
    subject, relation, limits, claim = _read(sim, relation)
    known = _prove(subject, limits)
    if _settles(known.sign, relation):
        return Verdict("true", claim, f"it is {known.sign}: {known.why}", facts=_facts(known))
    found = find_witness(subject, relation, known, limits)
    if found is None:
        reason = f"no proof, and no counterexample on a grid and {RANDOM} random points"
        return Verdict("undecided", claim, reason, facts=_facts(known))
    witness, why = found
    return Verdict("false", claim, why, (), witness.shown(), "counterexample", facts=_facts(known))


def _read(sim: KernelLike, relation: str | None) -> tuple[Subject, str, dict[str, Interval], str]:
    limits: dict[str, Interval] = {}
    text = sim if isinstance(sim, str) else None
    body = text
    if text is not None:
        head, word, tail = text.partition(" where ")
        match = _CLAIM.match(head)
        if match is not None and relation is None:
            body = match["sim"]
            relation = _SPELLED.get(match["relation"], match["relation"])
        elif word:
            body = head
        if word:
            limits = _limits(text, len(head) + 1)
        if not body or not body.strip():
            raise ClaimError(text, 0, "expected a similarity such as relu(q·k)")
    relation = relation or "!="
    if relation not in (*_WORDS, "!="):
        raise ValueError(f"relation must be one of >, >=, <, <=, !=, not {relation!r}")
    shown = body if body is not None else sim
    subject = _subject(shown)
    tail = f" where {text.partition(' where ')[2]}" if text and " where " in text else ""
    claim = f"{subject.text.strip()} {relation} 0{tail}"
    if relation == "!=":
        claim = f"Σ {subject.text.strip()} is never 0{tail}"
    return subject, relation, limits, claim


def _subject(sim: Any) -> Subject:
    if isinstance(sim, maps.FeatureMap):
        return Phi(sim)
    if isinstance(sim, str):
        word = sim.strip().partition(":")[0].strip()
        if sim.lstrip().startswith("[") or word in maps.names():
            return Phi(sim.strip())
        return Kernel(sim.strip())
    return Kernel(sim)


def _limits(text: str, at: int) -> dict[str, Interval]:
    """Letters with a sign: where s > 0, c >= 0."""
    reader = Reader(text[at:])
    found: dict[str, Interval] = {}
    for sides in reader.conditions():
        name, bound = sides[0].node, sides[-1]
        if len(sides) != 2 or name.kind != "name" or bound.node.value != 0:
            raise ClaimError(text, at + name.at, "conditions are of the form s > 0")
        found[str(name.value)] = _limit(bound)
    return found


def _limit(side: Side) -> Interval:
    positive = POSITIVE._replace(low_open=side.relation in (">", "<"))
    if side.relation in (">", ">="):
        return positive
    if side.relation in ("<", "<="):
        return Interval(-math.inf, Fraction(0), True, positive.low_open)
    return ALL


def _settles(sign: str, relation: str) -> bool:
    accepted = {
        ">": ("positive",),
        ">=": ("positive", "non-negative"),
        "<": ("negative",),
        "<=": ("negative", "non-positive"),
        "!=": ("positive", "negative"),
    }
    return sign in accepted[relation]


def _facts(known: Known) -> dict[str, Any]:
    return {"sign": known.sign}


def _prove(subject: Subject, limits: dict[str, Interval]) -> Known:
    if isinstance(subject, Phi):
        return _prove_features(subject)
    if subject.node is None:
        return Known("any", "a function is not looked into")
    values = interval(subject.node, limits)
    if _word(values) != "any":
        return Known(_word(values), f"its values lie in {values}")
    return _prove_polynomial(subject.node, subject.text) or Known("any", "")


def _prove_features(phi: Phi) -> Known:
    if phi.map is not None:
        reason = {
            "positive": "every feature is > 0",
            "non-negative": "no feature changes its sign",
        }
        if isinstance(phi.map, maps.Poly | maps.Taylor):
            reason = dict.fromkeys(reason, "a polynomial of even degree in q·k")
        return Known(phi.map.sign, f"{reason.get(phi.map.sign, '')}, by the map's definition")
    if phi.node is None:
        return Known("any", "")
    parts = [p.parts[1] if p.kind == "for" else p for p in read_features(phi.text).parts]
    found = [interval(part, {}) for part in parts]
    # φ(q)·φ(k) is a sum of products of one feature at two places.
    if all(x.positive or x.negative for x in found):
        return Known("positive", "no feature changes its sign or vanishes")
    if all(x.low >= 0 or x.high <= 0 for x in found):
        return Known("non-negative", "no feature changes its sign")
    return Known("any", "")


def _word(values: Interval) -> str:
    if values.positive:
        return "positive"
    if values.negative:
        return "negative"
    if values.low >= 0:
        return "non-negative"
    return "non-positive" if values.high <= 0 else "any"


def _prove_polynomial(node: Node, text: str) -> Known | None:
    """The sign of a polynomial in t = q·k, by its real roots."""
    t = real("t")
    expression = of_dot(node, text, t)
    if expression is None or expression.free_symbols - {t} or not expression.is_polynomial(t):
        return None
    polynomial = sympy.Poly(expression, t)
    if polynomial.degree() < 1:
        return None
    roots = sympy.real_roots(polynomial)
    start = expression.subs(t, 0)
    what = "as a polynomial in t = q·k it has"
    if not roots:
        sign = "positive" if start > 0 else "negative"
        return Known(sign, f"{what} no real root and is {write(start)} at t = 0")
    if all(roots.count(r) % 2 == 0 for r in roots):
        beyond = expression.subs(t, max(roots) + 1)
        sign = "non-negative" if beyond > 0 else "non-positive"
        return Known(sign, f"{what} only double roots")
    return None


def _flipped(verdict: Verdict, claim: str) -> Verdict:
    """The verdict on "can vanish" from the one on "is never 0"."""
    opposite: dict[Status, Status] = {"true": "false", "false": "true", "undecided": "undecided"}
    return Verdict(
        opposite[verdict.status],
        claim,
        f"the sum is never 0: {verdict.reason}" if verdict else verdict.reason,
        verdict.details + (() if verdict or not verdict.counterexample else (
            "example: " + ", ".join(f"{a} = {b}" for a, b in verdict.counterexample.items()),
        )),
        facts=verdict.facts,
    )  # fmt: skip
