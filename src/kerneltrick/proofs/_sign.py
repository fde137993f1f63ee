"""Decide whether a similarity keeps its sign, and whether Σⱼ sim(q, kⱼ) can be 0."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, NamedTuple

from kerneltrick import maps
from kerneltrick.proofs._derive import assumptions, setting, span
from kerneltrick.proofs._feature_map import product_of
from kerneltrick.proofs._form import Form, NotNormalError
from kerneltrick.proofs._interval import ALL, Interval, interval
from kerneltrick.proofs._normal import Space, scalar
from kerneltrick.proofs._own_maps import own_features, own_kernel
from kerneltrick.proofs._search import NOTHING, dimensions, search, speaks_of_something
from kerneltrick.proofs._sign_of_form import (
    Known,
    atom_name,
    one_atom,
    sign_of_node,
    strongest,
)
from kerneltrick.proofs._statement import Condition, Statement, breaks, read_conditions
from kerneltrick.proofs._sufficient import check_sufficient
from kerneltrick.proofs._symbolic import Kernel, KernelLike, Phi
from kerneltrick.proofs._sympy import sympy, write
from kerneltrick.proofs._syntax import ClaimError, Node, Reader, names, place
from kerneltrick.proofs._verdict import (
    Counterexample,
    Derivation,
    Evidence,
    Verdict,
)
from kerneltrick.proofs._witness import (
    drawn_witness,
    function_witness,
    sum_witness,
    zero_features,
)

_CLAIM = re.compile(r"^(?P<sim>.*?)\s*(?P<relation>>=|<=|!=|>|<|≥|≤|≠)\s*0\s*$", re.DOTALL)
_SPELLED = {"≥": ">=", "≤": "<=", "≠": "!="}
_WORDS = {">": "positive", ">=": "non-negative", "<": "negative", "<=": "non-positive"}
_ZERO = Node("number", 0, Fraction(0))
Subject = Kernel | Phi


class _SignClaim(NamedTuple):
    """A claim `sim relation 0` under conditions. `node` is sim as an expression, if it has one."""

    subject: Subject
    node: Node | None
    relation: str
    conditions: tuple[Condition, ...]
    text: str

    @property
    def statement(self) -> Statement:
        assert self.node is not None
        return Statement(self.subject.text, self.node, self.relation, _ZERO, self.conditions)


def check_sign(sim: KernelLike, relation: str | None = None) -> Verdict:
    """Decide whether a similarity keeps its sign, and so whether its normaliser can be 0.

    `sim` is a text, a feature map, a list of features or a function. A text may contain a relation
    ("relu(q·k) > 0") and conditions ("where s > 0"). Without a relation the claim is that
    Σⱼ sim(q, kⱼ) is never 0. Proofs use the range of each part, the real roots of polynomials, and
    the signs of features. A query and keys refute a claim. Texts that end in "suffices" or "is
    necessary" are claims about conditions: "sim > 0 suffices", "some sim != 0 suffices".

    >>> print(check_sign("1 + q·k + (q·k)**2/2"))
    TRUE: Σ 1 + q·k + (q·k)**2/2 is never 0
      it is positive: as a polynomial in t = q·k it has no real root and is 1 at t = 0 (every d)
      assumed: all numbers are real; d is a whole number ≥ 1
    >>> print(check_sign("relu(q·k) > 0"))
    FALSE: relu(q·k) > 0
      it is non-negative, but 0 is reached
      counterexample: q = (1), k = (0), sim = 0
      assumed: all numbers are real; d is a whole number ≥ 1
    """
    if isinstance(sim, str):
        if re.search(r"\b(suffices|is sufficient|is necessary)\s*$", sim):
            return check_sufficient(sim)
        match = re.search(r"\s+can vanish\s*$", sim)
        if match is not None:
            return _flipped(*_judge(_read(sim[: match.start()], "!=")), sim)
    claim = _read(sim, relation)
    evidence, holds, known = _judge(claim)
    facts = {"sign": known.sign}
    if evidence is None:
        missing = known.or_missing("a counterexample was found")
        return Verdict.undecided(claim.text, missing, facts=facts)
    if holds and not isinstance(evidence, Counterexample):
        return Verdict.true(claim.text, evidence, facts=facts)
    return Verdict.false(claim.text, evidence, facts=facts)


def _judge(claim: _SignClaim) -> tuple[Evidence | None, bool, Known]:
    """The evidence, whether the claim holds, and what is known about the sign."""
    tried = search(claim.statement, 1) if claim.node is not None else None  # refuses unknown names
    if claim.node is not None and _contradictory(claim.statement):
        return None, False, Known("any", NOTHING)
    known, taken = _prove(claim)
    if tried is None and _decides(known.sign, claim.relation):
        if claim.node is not None and not speaks_of_something(claim.statement):
            return None, False, Known("any", NOTHING)
        return Derivation(f"it is {known.sign}: {known.why}", taken), True, known
    return _witness(claim, known), False, known


def _witness(claim: _SignClaim, known: Known) -> Counterexample | None:
    proven = f"it is {known.sign}, but " if known.sign != "any" else ""
    subject = claim.subject
    if claim.node is None:
        if isinstance(subject, Kernel):
            return function_witness(subject, claim.relation)
        if isinstance(subject.map, maps.Favor):
            return drawn_witness(subject.map, claim.relation)
        return zero_features(subject, claim.relation)
    statement = claim.statement
    beyond = {">": ">=", "<": "<="}.get(claim.relation)  # a wrong sign says more than a zero
    found = search(statement._replace(relation=beyond)) if beyond else None
    found = found or search(statement)
    if found is not None:
        sign = found.left.sign
        what = (
            "0 is reached" if sign == 0 else f"it is {'negative' if sign < 0 else 'positive'} here"
        )
        return Counterexample(
            proven + what,
            {**found.shown(statement), "sim": found.sides("sim", "")["sim"]},
            lambda: breaks(statement, found.d, found.point) is not None,
            assumptions(statement),
        )
    return _root(statement) or (
        sum_witness(statement, dimensions(statement)) if claim.relation == "!=" else None
    )


def _root(statement: Statement) -> Counterexample | None:
    """Find an irrational zero of a polynomial in q·k, which takes every value."""
    if statement.relation in (">=", "<=") or statement.conditions:
        return None

    def polynomial() -> Any:
        found = one_atom(scalar(statement.left, setting(statement).space))
        return None if found is None or atom_name(found[0]) != "q·k" else found[1]

    try:
        found = polynomial()
    except (NotNormalError, ZeroDivisionError):
        return None
    if found is None or found.is_zero or found.count_roots() == 0:
        return None
    root = write(sympy.real_roots(found)[0])
    return Counterexample(
        f"it is 0 where q·k = {root}, and q·k takes every value",
        {"q·k": root, "sim": 0},
        lambda: bool(polynomial().count_roots() > 0),
        assumptions(statement),
    )


def _read(sim: KernelLike, relation: str | None) -> _SignClaim:
    body: Any = sim
    tail, conditions = "", tuple[Condition, ...]()
    if isinstance(sim, str):
        head, word, tail = sim.partition(" where ")
        match = _CLAIM.match(head)
        body = head
        if match is not None and relation is None:
            body = match["sim"]
            relation = _SPELLED.get(match["relation"], match["relation"])
        if word:
            conditions = _conditions(sim, len(head) + 1)
            tail = word + tail
        if not body.strip():
            raise ClaimError(sim, 0, "expected a similarity such as relu(q·k)")
        body = body.strip()
    relation = relation or "!="
    if relation not in (*_WORDS, "!="):
        raise ValueError(f"relation must be one of >, >=, <, <=, !=, not {relation!r}")
    subject = _subject(body)
    if conditions and not (isinstance(subject, Kernel) and subject.node is not None):
        raise ClaimError(
            str(sim),
            str(sim).find(" where "),
            "conditions need a similarity that is written as an expression",
        )
    text = f"{subject.text} {relation} 0{tail}"
    if relation == "!=":
        text = f"Σ {subject.text} is never 0{tail}"
    return _SignClaim(subject, _node(subject), relation, conditions, text)


def _conditions(text: str, at: int) -> tuple[Condition, ...]:
    try:
        return read_conditions(text, Reader(text[at:]).conditions())
    except ClaimError as error:
        raise ClaimError(text, at + error.at, error.problem) from None


def _subject(sim: Any) -> Subject:
    if isinstance(sim, maps.FeatureMap):
        return Phi(sim)
    if isinstance(sim, str):
        word = sim.partition(":")[0].strip()
        if sim.startswith("[") or word in maps.names():
            return Phi(sim)
    return Kernel(sim)


def _node(subject: Subject) -> Node | None:
    """The similarity as an expression in q and k, if it has one."""
    if isinstance(subject, Kernel):
        if subject.node is not None:
            for name in sorted(names(subject.node) & {"x", "y", "w"}):
                at = place(subject.node, name)
                raise ClaimError(
                    subject.text, at, f"a similarity is a function of q and k, not of {name}"
                )
        return subject.node
    if subject.map is None:
        return None if subject.node is None else product_of(subject.node)
    if isinstance(subject.map, maps.Favor):
        return None
    known = own_kernel(subject.map)
    if known is not None:
        return known[0]
    features = own_features(subject.map)
    return None if features is None else product_of(features)


def _decides(sign: str, relation: str) -> bool:
    accepted = {
        ">": ("positive",),
        ">=": ("positive", "non-negative"),
        "<": ("negative",),
        "<=": ("negative", "non-positive"),
        "!=": ("positive", "negative"),
    }
    return sign in accepted[relation]


def _prove(claim: _SignClaim) -> tuple[Known, tuple[str, ...]]:
    """The strongest proven sign, and the assumptions of its proof."""
    subject = claim.subject
    if claim.node is None:
        return _by_definition(subject), ()
    statement = claim.statement
    given = setting(statement)
    covered = f" ({span(statement, given)})" if statement.speaks_of_d else ""
    limits = {name: _limits(name, given.space) for name in statement.letters}
    whole = sign_of_node(claim.node, given.space, limits, _least(claim))
    best = strongest(_by_features(subject), whole)
    return Known(best.sign, best.why + covered), assumptions(statement)


def _by_definition(subject: Subject) -> Known:
    if isinstance(subject, Phi) and subject.map is not None:
        if isinstance(subject.map, maps.Favor):
            if subject.map.kind != "trig":
                return Known("positive", "every feature is an exponential")
        elif isinstance(subject.map, maps.T2R):
            return Known("non-negative", "every feature ends in a ReLU")
        elif isinstance(subject.map, maps.Cosformer):
            why = "it is ReLU(q)·ReLU(k)·cos(π(i−j)/2N), and refuses |i − j| > N"
            return Known("non-negative", why)
    return Known("any", "a function cannot be analysed")


def _by_features(subject: Subject) -> Known:
    """The sign of φ(q)·φ(k), a sum of products of one feature at q and at k."""
    if isinstance(subject, Kernel):
        return Known("any", "")
    node = subject.node or (own_features(subject.map) if subject.map is not None else None)
    if node is None:
        return Known("any", "")
    kept, sometimes = list[Interval](), list[bool]()
    for item in node.parts:
        body, strict = item, 1
        if item.kind == "for":
            body = item.parts[1]
            strict += str(item.parts[0].value).split("|").count("<")
        kept.append(interval(body, {}))
        sometimes.append(strict > 1)  # for i<j there may be no such feature
    if all(x.low >= 0 or x.high <= 0 for x in kept):
        always = [x for x, rare in zip(kept, sometimes, strict=True) if not rare]
        if any(x.positive or x.negative for x in always):
            return Known("positive", "no feature changes its sign, and one is never 0")
        return Known("non-negative", "no feature changes its sign")
    return Known("any", "")


def _contradictory(statement: Statement) -> bool:
    """Whether conditions contradict each other: an equation never holds, or c < 0 and c > 1."""
    given = setting(statement)
    limits = (_limits(name, given.space) for name in statement.letters)
    return bool(given.impossible) or any(x.empty for x in limits)


def _limits(name: str, space: Space) -> Interval:
    """The interval of a letter according to conditions of the form c·letter + r ≥ 0."""
    found, own = ALL, frozenset([(("name", name), Fraction(1))])
    for form, strict in space.positive:
        c = form.terms.get(own)
        rest = Form({m: x for m, x in form.terms.items() if m != own}).constant
        if c is None or rest is None:
            continue
        bound = -rest / c
        if c > 0 and bound >= found.low:
            is_open = strict or (bound == found.low and found.low_open)
            found = found._replace(low=bound, low_open=is_open)
        if c < 0 and bound <= found.high:
            is_open = strict or (bound == found.high and found.high_open)
            found = found._replace(high=bound, high_open=is_open)
    return found


def _least(claim: _SignClaim) -> int:
    """The smallest d that conditions such as d >= 2 allow."""
    found = 1
    for left, relation, right in claim.conditions:
        if left.kind == "name" and left.value == "d" and isinstance(right.value, Fraction):
            if relation in (">=", "="):
                found = max(found, -(-right.value.numerator // right.value.denominator))
            if relation == ">":
                found = max(found, right.value.numerator // right.value.denominator + 1)
    return found


def _flipped(evidence: Evidence | None, holds: bool, known: Known, claim: str) -> Verdict:
    """The verdict on "can vanish" from the evidence on "is never 0"."""
    facts = {"sign": known.sign}
    if evidence is None:
        missing = known.or_missing("keys with sum 0 were found")
        return Verdict.undecided(claim, missing, facts=facts)
    if isinstance(evidence, Counterexample):
        example = ", ".join(f"{a} = {b}" for a, b in evidence.values.items())
        derived = Derivation(evidence.reason, evidence.assumptions)
        return Verdict.true(claim, derived, (f"example: {example}",), facts)
    reason = f"the sum is never 0: {evidence.reason}"
    assert holds
    return Verdict.false(claim, Derivation(reason, evidence.assumptions), facts=facts)
