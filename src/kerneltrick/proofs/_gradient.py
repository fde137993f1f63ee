"""Decide which inputs of an attention receive a gradient."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from kerneltrick import _text, maps
from kerneltrick.attention import hard_attention, linear_attention, softmax_attention
from kerneltrick.proofs._own_maps import own_features, own_kernel
from kerneltrick.proofs._syntax import ClaimError, Node, names
from kerneltrick.proofs._verdict import Derivation, Verdict

Attention = Callable[[Any, Any, Any], Any]
POINTS = 20
STEP = 1e-6
INPUTS = ("q", "k", "v")
ANALYTIC = ", and an analytic function that is not constant is 0 only on a set of measure 0"
_ANALYTIC = ("exp", "cos", "sin", "cosh", "sinh", "tanh", "sigmoid", "dot", "norm2", "sum")
GENERIC = "at least two keys, values that differ, and no ties (which have measure 0)"
TWO = "at least two features, because a single one cancels (d ≥ 2 for elementwise maps)"
_HARD, _SOFT = ("hard", "argmax"), ("softmax", "gumbel", "temperature")
_KNOWN: dict[str, Attention] = {
    "hard": lambda q, k, v: hard_attention(q, k, v),
    "argmax": lambda q, k, v: hard_attention(q, k, v),
    "softmax": lambda q, k, v: softmax_attention(q, k, v),
    "gumbel": lambda q, k, v: hard_attention(q, k, v, substitute="gumbel"),
    "temperature": lambda q, k, v: hard_attention(q, k, v, substitute="temperature"),
}
_SLOPES = {  # of o = Σ wⱼvⱼ, w = softmax of scores s·q·kⱼ
    "q": "∂o/∂q = s·Σ wⱼ(vⱼ − o)kⱼᵀ",
    "k": "∂o/∂kⱼ = s·wⱼ(vⱼ − o)qᵀ",
    "v": "∂o/∂vⱼ = wⱼ > 0",
}
_LINEAR_SLOPES = {  # of o = Σ φ(q)·φ(kⱼ)vⱼ / Σ φ(q)·φ(kⱼ)
    "q": "∂o/∂q = Σ (vⱼ − o)·∂(φ(q)·φ(kⱼ))/∂q / Σ φ(q)·φ(kⱼ), and φ is not constant",
    "k": "∂o/∂kⱼ = (vⱼ − o)·∂(φ(q)·φ(kⱼ))/∂kⱼ / Σ φ(q)·φ(kⱼ), and φ is not constant",
    "v": "∂o/∂vⱼ = φ(q)·φ(kⱼ) / Σ φ(q)·φ(kⱼ)",
}
_NOUNS = {"q": "q", "query": "q", "queries": "q", "k": "k", "key": "k", "keys": "k",
          "v": "v", "value": "v", "values": "v"}  # fmt: skip
_HOW_MANY = {"no": "no", "every": "every", "all": "every", "each": "every", "some": "some",
             "a": "some", "any": "some"}  # fmt: skip
_WHICH = {"selected": "selected", "chosen": "selected", "unselected": "unselected",
          "unchosen": "unselected"}  # fmt: skip


class Trained(NamedTuple):
    """The inputs that a claim says receive a gradient."""

    what: str  # q, k or v
    how_many: str = ""  # "", some, every or no
    which: str = ""  # "", selected or unselected

    def __str__(self) -> str:
        return " ".join(x for x in (self.how_many, self.which, self.what) if x)


def check_gradient(attention: str | Attention, trains: str = "k") -> Verdict:
    """Decide whether inputs receive a gradient: "q", "every key", "no unselected value".

    `attention` is "hard" (argmax), "softmax", "gumbel", "temperature", a feature map for linear
    attention, or a function of (q, k, v). `trains` names the inputs. The choice of an argmax is
    piecewise constant; the other kinds have the derivatives that the verdict shows. The inputs of
    a function are moved slightly at random points, which proves nothing.

    >>> print(check_gradient("hard", "k"))  # doctest: +ELLIPSIS
    FALSE: hard trains k
      the gradient to every k is 0: a small change of k does not change the choice ...
    """
    said = _read(trains, trains)
    function, name = _function(attention)
    claim = f"{name} trains {trains}"
    if callable(attention) and attention not in (softmax_attention, hard_attention):
        return _measured(claim, said, function)
    if name in _HARD:
        return _hard(claim, said)
    if name in _SOFT:
        return _decided(claim, said, True, _SLOPES[said.what])
    return _linear(claim, said, maps.get(name))


def read_gradient(text: str) -> Verdict:
    """ "hard trains k", "softmax trains the selected key"."""
    match = re.fullmatch(r"\s*(.+?)\s+trains\s+(.+?)\s*", text)
    if match is None:
        raise ClaimError(text, len(text), "expected a claim such as 'hard trains k'")
    _read(match[2], text, match.start(2))
    return check_gradient(match[1], match[2])


def _read(words: str, text: str, at: int = 0) -> Trained:
    """Read which inputs are meant. Unknown words are refused."""
    found = {"how_many": "", "which": "", "what": ""}
    tables = {"how_many": _HOW_MANY, "which": _WHICH, "what": _NOUNS}
    for match in re.finditer(r"\S+", words):
        word = match[0].lower()
        if word == "the":
            continue
        kind = next((x for x, known in tables.items() if word in known), None)
        if kind is None or found[kind] or found["what"]:
            raise ClaimError(
                text,
                at + match.start(),
                "expected q, k, v, query, key or value, optionally after "
                "every, some or no, and selected or unselected",
            )
        found[kind] = tables[kind][word]
    if not found["what"]:
        raise ClaimError(text, at + len(words), "expected q, k, v, query, key or value")
    if found["what"] == "q" and found["which"]:
        raise ClaimError(text, at, "only keys and values can be selected, not queries")
    return Trained(**found)


def _hard(claim: str, said: Trained) -> Verdict:
    """The verdict for argmax: the selected value always receives a gradient, nothing else does."""
    facts = {"gradient": {"q": False, "k": False, "v": True}}
    if said.what != "v":
        reason = (
            f"the gradient to every {said.what} is 0: a small change of {said.what} does not "
            "change the choice (except at ties, which have measure 0)"
        )
        return _decided(claim, said, False, reason, facts)
    reason = "o is the selected value itself: only the chosen value receives a gradient"
    if said.which == "unselected":
        return _decided(claim, said, False, reason, facts)
    if said.how_many == "every" and not said.which:
        return Verdict.false(claim, Derivation(reason, (GENERIC,)), facts=facts)
    return _decided(claim, said, True, reason, facts)


def _decided(
    claim: str,
    said: Trained,
    trained: bool,
    reason: str,
    facts: dict[str, Any] | None = None,
    taken: tuple[str, ...] = (),
) -> Verdict:
    """The verdict if either all the inputs that are meant are trained, or none of them."""
    facts = facts or {"gradient": dict.fromkeys(INPUTS, True)}
    derived = Derivation(reason, (GENERIC, *taken))
    if trained == (said.how_many != "no"):
        return Verdict.true(claim, derived, facts=facts)
    return Verdict.false(claim, derived, facts=facts)


def _linear(claim: str, said: Trained, feature_map: maps.FeatureMap) -> Verdict:
    reason = _LINEAR_SLOPES[said.what]
    if said.what == "q" and feature_map.dim(2) == 1:
        facts = {"gradient": {"q": False, "k": True, "v": True}}
        reason = "with one feature φ(q) cancels from the fraction, so o does not depend on q"
        return _decided(claim, said, False, reason, facts)
    if said.what == "q" and said.how_many == "every" and feature_map.flat_below_zero:
        missing = f"{feature_map} is flat below 0, so the data decides which queries get a gradient"
        return Verdict.undecided(claim, missing)
    all_alike = feature_map.sign == "positive" or said.what == "q"
    if (said.how_many == "every" or said.which) and not all_alike:
        if _is_analytic(feature_map):
            return _decided(claim, said, True, reason + ANALYTIC)
        missing = (
            f"{feature_map} can give a pair no weight, so the data decides which inputs get one"
        )
        return Verdict.undecided(claim, missing)
    return _decided(claim, said, True, reason, None, (TWO,) if said.what == "q" else ())


def _is_analytic(feature_map: maps.FeatureMap) -> bool:
    """Whether φ(q)·φ(k) is written with functions that have a power series around every point."""
    kernel = own_kernel(feature_map)
    node = kernel[0] if kernel is not None else own_features(feature_map)
    return node is not None and _has_series(node)


def _has_series(node: Node) -> bool:
    if node.kind == "call" and node.value not in _ANALYTIC and names(node):
        return False
    power = node.parts[1].value if node.kind == "op" and node.value == "**" else Fraction(0)
    whole = isinstance(power, Fraction) and power.denominator == 1 and power >= 0
    return whole and node.value != "/" and all(map(_has_series, node.parts))


def _measured(claim: str, said: Trained, function: Attention) -> Verdict:
    share = _moves(function, said.what)
    missing = (
        f"a function cannot be analysed; a small change of {said.what} changed its output at "
        f"{100 * share:.0f} % of {POINTS} random points, which is not a proof"
    )
    return Verdict.undecided(claim, missing, facts={"moved": share}, basis="measurement")


def _function(attention: str | Attention) -> tuple[Attention, str]:
    if callable(attention):
        if attention in (softmax_attention, hard_attention):
            return attention, "softmax" if attention is softmax_attention else "hard"
        return attention, str(getattr(attention, "__name__", "attention"))
    if attention in _KNOWN:
        return _KNOWN[attention], attention
    if attention.partition(":")[0] in maps.names():
        feature_map = maps.get(attention)
        return lambda q, k, v: linear_attention(q, k, v, feature_map), attention
    known_names = [*_KNOWN, *maps.names()]
    raise ValueError(f"unknown attention {attention!r}; {_text.nearest(attention, known_names)}")


def _moves(function: Attention, which: str) -> float:
    """The share of random points at which the output changes with one input."""
    rng = np.random.default_rng([0, *b"gradient"])
    changed = 0
    for _ in range(POINTS):
        inputs = dict(zip(INPUTS, rng.standard_normal((3, 5, 4)), strict=True))
        before = np.asarray(function(*inputs.values()))
        inputs[which] = inputs[which] + STEP * rng.standard_normal((5, 4))
        after = np.asarray(function(*inputs.values()))
        changed += not np.array_equal(before, after)
    return changed / POINTS
