"""Which inputs of an attention receive a gradient?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick import _text, maps
from kerneltrick.attention import hard_attention, linear_attention, softmax_attention
from kerneltrick.proofs._syntax import ClaimError
from kerneltrick.proofs._verdict import Verdict

Attention = Callable[[Any, Any, Any], Any]
POINTS = 20
STEP = 1e-6
INPUTS = ("q", "k", "v")
_KNOWN: dict[str, Attention] = {
    "hard": lambda q, k, v: hard_attention(q, k, v),
    "argmax": lambda q, k, v: hard_attention(q, k, v),
    "softmax": lambda q, k, v: softmax_attention(q, k, v),
    "gumbel": lambda q, k, v: hard_attention(q, k, v, substitute="gumbel"),
    "temperature": lambda q, k, v: hard_attention(q, k, v, substitute="temperature"),
}


def check_gradient(attention: str | Attention, trains: str = "k") -> Verdict:
    """Whether an input ("q", "k" or "v") of an attention has a gradient that is not 0.

    `attention` is "hard" (argmax), "softmax", "gumbel", "temperature", a feature map for linear
    attention, or a function (q, k, v). Inputs are moved by a little at random points: where the
    output does not change in any bit, it is piecewise constant there and the gradient is 0.

    >>> print(check_gradient("hard", "k"))  # doctest: +ELLIPSIS
    FALSE: hard trains k
      the gradient to every k is 0: the choice stays when k moves a little ...
    """
    if trains not in INPUTS:
        raise ValueError(f"trains must be one of q, k, v, not {trains!r}")
    function, name = _function(attention)
    claim = f"{name} trains {trains}"
    moved = {which: _moves(function, which) for which in INPUTS}
    facts = {"gradient": {which: share > 0 for which, share in moved.items()}}
    if moved[trains] > 0:
        largest = f"in {100 * moved[trains]:.0f} % of {POINTS} random points"
        reason = f"moving {trains} a little moves the output {largest}"
        if name in ("hard", "argmax"):
            reason += "; only the chosen value receives a gradient"
        return Verdict("true", claim, reason, basis="measurement", facts=facts)
    if name in ("hard", "argmax"):
        reason = (
            f"the gradient to every {trains} is 0: the choice stays when {trains} moves a little "
            f"(all but ties, which have measure 0), and at {POINTS} random points no bit changed"
        )
        return Verdict("false", claim, reason, basis="proof", facts=facts)
    reason = f"at {POINTS} random points no bit of the output changed when {trains} moved a little"
    return Verdict("false", claim, reason, basis="measurement", facts=facts)


def read_gradient(text: str) -> Verdict:
    """ "hard trains k", "softmax trains the selected key"."""
    match = re.fullmatch(r"\s*(.+?)\s+trains\s+(.+?)\s*", text)
    if match is None:
        raise ClaimError(text, len(text), "expected a claim such as 'hard trains k'")
    words = match[2].lower()
    letters = {"quer": "q", "key": "k", "value": "v"}
    found = words if words in INPUTS else next((x for w, x in letters.items() if w in words), "")
    if not found:
        raise ClaimError(text, match.start(2), "expected q, k or v, or query, key or value")
    return check_gradient(match[1], found)


def _function(attention: str | Attention) -> tuple[Attention, str]:
    if callable(attention):
        return attention, str(getattr(attention, "__name__", "attention"))
    if attention in _KNOWN:
        return _KNOWN[attention], attention
    if attention.partition(":")[0] in maps.names():
        feature_map = maps.get(attention)
        return lambda q, k, v: linear_attention(q, k, v, feature_map), attention
    known = [*_KNOWN, *maps.names()]
    raise ValueError(f"unknown attention {attention!r}; {_text.nearest(attention, known)}")


def _moves(function: Attention, which: str) -> float:
    """The share of random points at which the output changes when one input moves."""
    rng = np.random.default_rng([0, *b"gradient"])
    changed = 0
    for _ in range(POINTS):
        inputs = dict(zip(INPUTS, rng.standard_normal((3, 5, 4)), strict=True))
        before = np.asarray(function(*inputs.values()))
        inputs[which] = inputs[which] + STEP * rng.standard_normal((5, 4))
        after = np.asarray(function(*inputs.values()))
        changed += not np.array_equal(before, after)
    return changed / POINTS
