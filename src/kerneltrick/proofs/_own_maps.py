"""kerneltrick's own maps in exact form: what they are by definition, not in floats."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

from kerneltrick import maps
from kerneltrick.proofs._sympy import Expr, sympy
from kerneltrick.proofs._syntax import Node, read_expression, read_features

MOST_SHOWN = 200  # features that are written out to explain a mistake
_FEATURES: dict[type[maps.FeatureMap], str] = {
    maps.Identity: "[x]",
    maps.Elu: "[elu(x[i]) + 1 for i]",
    maps.Relu: "[relu(x[i]) for i]",
    maps.Relu2: "[relu(x[i])**2 for i]",
    maps.Exp: "[exp(x[i]) for i]",
    maps.Square: "[x[i]**2 for i]",
}
_HEDGEHOG = {
    "exp": "[exp(x[i]) for i, exp(-x[i]) for i]",
    "softmax": "[exp(x[i])/sum(j, exp(x[j]) + exp(-x[j])) for i, "
    "exp(-x[i])/sum(j, exp(x[j]) + exp(-x[j])) for i]",
    "separate": "[exp(x[i])/sum(j, exp(x[j])) for i, exp(-x[i])/sum(j, exp(-x[j])) for i]",
}


def own_features(feature_map: maps.FeatureMap) -> Node | None:
    """The features as a text would give them; None if they are not of that kind."""
    if isinstance(feature_map, maps.Hedgehog):
        if feature_map.weight is not None or feature_map.key_weight is not None:
            return None
        apart = feature_map.separate and feature_map.activation == "softmax"
        return read_features(_HEDGEHOG["separate" if apart else feature_map.activation])
    text = _FEATURES.get(type(feature_map))
    return None if text is None else read_features(text)


def own_kernel(feature_map: maps.FeatureMap) -> tuple[Node, str] | None:
    """φ(q)·φ(k) of a map as an expression in q·k, with the theorem it follows from."""
    t = read_expression("q·k")
    if isinstance(feature_map, maps.Poly):
        shifted = _op("+", t, _number(decimal(feature_map.constant)))
        why = "by the multinomial theorem its features give (q·k + c)ᵖ"
        return _op("**", shifted, _number(Fraction(feature_map.degree))), why
    if isinstance(feature_map, maps.Taylor):
        total = _number(Fraction(1))
        for r in range(1, feature_map.order + 1):
            part = _op("**", t, _number(Fraction(r)))
            total = _op("+", total, _op("/", part, _number(Fraction(math.factorial(r)))))
        return total, "by the multinomial theorem its features give Σ (q·k)ʳ/r!"
    if isinstance(feature_map, maps.Softmax):
        return read_expression(
            "exp(q·k)"
        ), "it has no features: its kernel is e^{q·k} by definition"
    if isinstance(feature_map, maps.Favor):
        why = "each ω is N(0, I), so the mean of φ(q)·φ(k) over draws is e^{q·k}"
        return read_expression("exp(q·k)"), f"{why} (Choromanski et al. 2021, Lemma 1)"
    return None


def decimal(x: float) -> Fraction:
    """A parameter as it is written: 0.3 is 3/10."""
    return Fraction(repr(float(x)))


def monomial_features(feature_map: maps.FeatureMap, xs: list[Expr]) -> list[Expr] | None:
    """The features of poly and taylor one by one, to explain what is wrong with a claim."""
    d = len(xs)
    if not isinstance(feature_map, maps.Poly | maps.Taylor) or feature_map.dim(d) > MOST_SHOWN:
        return None
    if isinstance(feature_map, maps.Poly):
        degree, constant = feature_map.degree, decimal(feature_map.constant)
    else:
        degree, constant = feature_map.order, Fraction(1)
    first = sympy.sqrt(sympy.Rational(constant.numerator, constant.denominator))
    variables = range(1 if constant == 0 else 0, d + 1)
    features = []
    for row in itertools.combinations_with_replacement(variables, degree):
        counts = Counter(row)
        bottom = math.prod(math.factorial(a) for a in counts.values())
        top = math.factorial(degree)
        if isinstance(feature_map, maps.Taylor):  # without p!/α₀!, the coefficient of Σ tʳ/r!
            top = math.factorial(counts[0])
        product = sympy.sqrt(sympy.Rational(top, bottom))
        for i in row:
            product *= first if i == 0 else xs[i - 1]
        features.append(product)
    return features


def _op(sign: str, left: Node, right: Node) -> Node:
    return Node("op", 0, sign, (left, right))


def _number(x: Fraction) -> Node:
    return Node("number", 0, x)
