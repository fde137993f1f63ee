"""Claims of every kind whose truth is known by construction.

Right ones are built from identities that hold for whatever is put into them; wrong ones are right
ones with a coefficient, an exponent, an index, a condition or an axis changed. Whether a change
made a claim wrong is told by an oracle that shares nothing with the proofs: the text is turned into
Python and evaluated with mpmath at random points, or arrays are made and NumPy multiplies them.

    python tests/generated_claims.py 2000

prints how many of each kind were generated, decided, and decided wrongly.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath
import numpy as np


class Made(NamedTuple):
    """A claim and whether it holds."""

    text: str
    holds: bool


# The meaning of a text, computed with Python and mpmath only


class _Vector(list):
    """Arithmetic coordinate by coordinate."""

    def _with(self, other: Any, function: Callable[[Any, Any], Any]) -> _Vector:
        others = other if isinstance(other, list) else [other] * len(self)
        return _Vector(function(a, b) for a, b in zip(self, others, strict=True))

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other):
        return self._with(other, lambda a, b: a / b)

    def __neg__(self):
        return _Vector(-a for a in self)

    __rmul__ = __mul__
    __radd__ = __add__


def _each(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: _Vector(map(function, x)) if isinstance(x, list) else function(x)


def _functions(d: int) -> dict[str, Any]:
    m = mpmath.mp
    return {
        "exp": _each(m.exp), "cos": _each(m.cos), "sin": _each(m.sin), "tanh": _each(m.tanh),
        "cosh": _each(m.cosh), "sinh": _each(m.sinh), "log": _each(m.log), "sqrt": _each(m.sqrt),
        "abs": _each(abs), "max": max, "min": min,
        "relu": _each(lambda x: max(x, m.mpf(0))),
        "elu": _each(lambda x: x if x > 0 else m.expm1(x)),
        "sigmoid": _each(lambda x: 1 / (1 + m.exp(-x))),
        "dot": lambda a, b: m.fdot(zip(a, b, strict=True)),
        "norm2": lambda a: m.fdot(zip(a, a, strict=True)),
        "norm": lambda a: m.sqrt(m.fdot(zip(a, a, strict=True))),
        "cosine": lambda a, b: m.fdot(zip(a, b, strict=True))
        / m.sqrt(m.fdot(zip(a, a, strict=True)) * m.fdot(zip(b, b, strict=True))),
        "C": lambda n, k: m.binomial(n, k), "pi": m.pi, "d": m.mpf(d),
        "total": lambda tuples, body: m.fsum(body(*t) for t in tuples),
        "over": lambda signs: _tuples(signs, d),
        "vector_sum": lambda a: m.fsum(a),
    }  # fmt: skip


def _tuples(signs: list[str], d: int) -> list[tuple[int, ...]]:
    found = []
    for t in itertools.product(range(1, d + 1), repeat=len(signs) + 1):
        pairs = zip(t, t[1:], signs, strict=False)
        if all((a < b) if s == "<" else (a <= b) if s == "<=" else True for a, b, s in pairs):
            found.append(t)
    return found


def _python(text: str) -> str:
    """Translate an expression of a claim to Python, with q·k, sums and coordinates spelled out."""
    text = re.sub(r"√(\d+(?:\.\d+)?|[a-zA-Z]\b)", r"sqrt(\1)", text).replace("√", "sqrt")
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)(?![\w.])", r"mpf('\1')", text)
    text = re.sub(r"([qkxyavw])\[mpf\('(\d+)'\)\]", r"\1[\2-1]", text)
    text = re.sub(r"([qkxyavw])\[([ijlr])\]", r"\1[\2-1]", text)
    text = text.replace("q·k", "dot(q,k)")
    while (match := re.search(r"\bsum\(([ijlr])((?:(?:<=|<|, )[ijlr])*), ", text)) is not None:
        letters = [match[1], *re.findall(r"[ijlr]", match[2])]
        signs = re.findall(r"<=|<|,", match[2])
        head = f"total(over({signs!r}), lambda {','.join(letters)}: "
        text = text[: match.start()] + head + text[match.end() :]
    return re.sub(r"\bsum\(([a-z])\)", r"vector_sum(\1)", text)


def value(text: str, d: int, point: dict[str, Any]) -> Any:
    """Return the value of an expression at a point to 60 digits, or None if undefined."""
    with mpmath.workdps(60):
        scope = {**_functions(d), "mpf": mpmath.mpf, **point}
        try:
            found = eval(_python(text), {"__builtins__": {}, **scope})  # texts made in this file
        except (ZeroDivisionError, ValueError, OverflowError, IndexError, NameError):
            return None
        return found if mpmath.isfinite(found) and mpmath.im(found) == 0 else None


def _random_point(rng: random.Random, d: int) -> dict[str, Any]:
    def one() -> Any:
        return mpmath.mpf(rng.choice([-7, -3, -2, -1, 1, 2, 3, 5, 60, -60])) / rng.choice([1, 2, 3])

    letters: dict[str, Any] = {name: one() for name in "abcst"}
    return letters | {name: _Vector(one() for _ in range(d)) for name in "qkxyvw"}


def differ(left: str, right: str, rng: random.Random, dims=(1, 2, 3, 4, 7), signs=None) -> bool:
    """Whether two expressions surely differ somewhere."""
    for _ in range(6):
        for d in dims:
            point = _random_point(rng, d)
            for name, sign in (signs or {}).items():
                point[name] = sign * abs(point[name])
            a, b = (value(x, d, point) for x in (left, right))
            if a is not None and b is not None:
                with mpmath.workdps(60):
                    if abs(a - b) > mpmath.mpf(10) ** -35 * (abs(a) + abs(b)):
                        return True
    return False


# Pieces


def number(rng: random.Random) -> str:
    return rng.choice(["1", "2", "3", "5", "7", "0.5", "1.25", "10", "100000", "0.001"])


def tiny(rng: random.Random) -> str:
    return rng.choice(["1", "2", "0.001", "0.000000001", "0.000000000001", "1000000", "0.5"])


def scalar_piece(rng: random.Random, depth: int = 2) -> str:
    """A random expression in letters, vectors and d."""
    if depth == 0:
        return rng.choice(["a", "b", "c", "q·k", "norm2(q)", "norm2(k)", "sum(q)", "d", "q[1]",
                           "k[2]", "2", "3", "0.5", "sum(i, q[i]**2*k[i])",
                           "sum(i<j, q[i]*q[j])"])  # fmt: skip
    inner = scalar_piece(rng, depth - 1)
    other = scalar_piece(rng, depth - 1)
    return rng.choice([f"({inner} + {other})", f"({inner} - {other})", f"({inner})*({other})",
                       f"({inner})**2", f"-({inner})", inner])  # fmt: skip


def letter_piece(rng: random.Random) -> str:
    """A small expression in letters only."""
    return rng.choice(["a", "b", "(a + b)", "(a - 2*b)", "a*b", "(2*a)", "(a + 1)", "a**2", "-b"])


RULES: list[Callable[[str, str, str], tuple[str, str]]] = [
    lambda a, b, c: (f"(({a}) + ({b}))**2", f"({a})**2 + 2*({a})*({b}) + ({b})**2"),
    lambda a, b, c: (f"(({a}) - ({b}))**2", f"({a})**2 - 2*({a})*({b}) + ({b})**2"),
    lambda a, b, c: (f"(({a}) + ({b}))*(({a}) - ({b}))", f"({a})**2 - ({b})**2"),
    lambda a, b, c: (f"({a})*(({b}) + ({c}))", f"({a})*({b}) + ({c})*({a})"),
    lambda a, b, c: (f"(({a}) + 1)**3", f"({a})**3 + 3*({a})**2 + 3*({a}) + 1"),
    lambda a, b, c: (f"({a}) - (({b}) - ({c}))", f"({a}) - ({b}) + ({c})"),
]
VECTOR_RULES = [
    ("norm2(q - k)", "norm2(q) + norm2(k) - 2*(q·k)"),
    ("norm2(q + 3*k)", "norm2(q) + 6*(q·k) + 9*norm2(k)"),
    ("(q·k)**2", "sum(i<j, 2*q[i]*q[j]*k[i]*k[j]) + sum(i, q[i]**2*k[i]**2)"),
    ("sum(i, j, q[i]*k[j])", "sum(q)*sum(k)"),
    ("sum(i<j, q[i]*q[j])", "(sum(q)**2 - norm2(q))/2"),
    ("sum(i<=j, q[i]*q[j])", "(sum(q)**2 + norm2(q))/2"),
    ("sum(i<j, q[i]*k[j]) + sum(j<i, q[i]*k[j])", "sum(q)*sum(k) - q·k"),
    ("sum(i<j<l, q[i]*q[j]*q[l])", "(sum(q)**3 - 3*sum(q)*norm2(q) + 2*sum(i, q[i]**3))/6"),
    ("sum(i<=j, 1)", "d*(d + 1)/2"),
    ("sum(i<j, 1)", "C(d, 2)"),
    ("C(d + 2, 2)", "(d + 1)*(d + 2)/2"),
    ("sum(i, q[i] + 1)", "sum(q) + d"),
    ("sum(i, (q[i] - k[i])**2)", "norm2(q - k)"),
    ("sum(i, q[i]*sum(j, k[j]))", "sum(q)*sum(k)"),
    ("norm(q)**2", "norm2(q)"),
    ("cosine(q, k)*norm(q)*norm(k)", "q·k"),
    ("sum(i, relu(q[i])) - sum(i, relu(-q[i]))", "sum(q)"),
    ("sum(i, abs(q[i])**2)", "norm2(q)"),
    ("exp(norm2(q - k))", "exp(norm2(q))*exp(norm2(k))*exp(-2*(q·k))"),
]
FUNCTION_RULES: list[Callable[[str, str], tuple[str, str]]] = [
    lambda a, b: (f"exp({a} + {b})", f"exp({a})*exp({b})"),
    lambda a, b: (f"exp({a})**2", f"exp(2*{a})"),
    lambda a, b: (f"cos({a} - {b})", f"cos({a})*cos({b}) + sin({a})*sin({b})"),
    lambda a, b: (f"sin({a} + {b})", f"sin({a})*cos({b}) + cos({a})*sin({b})"),
    lambda a, b: (f"sin({a})**2 + cos({a})**2", "1"),
    lambda a, b: (f"cosh({a})**2 - sinh({a})**2", "1"),
    lambda a, b: (f"tanh({a})", f"2*sigmoid(2*{a}) - 1"),
    lambda a, b: (f"sigmoid(-({a}))", f"1 - sigmoid({a})"),
    lambda a, b: (f"relu({a}) - relu(-({a}))", f"{a}"),
    lambda a, b: (f"relu({a}) + relu(-({a}))", f"abs({a})"),
    lambda a, b: (f"max({a}, {b}) + min({a}, {b})", f"{a} + {b}"),
    lambda a, b: (f"max({a}, {b})", f"({a} + {b} + abs({a} - ({b})))/2"),
    lambda a, b: (f"abs({a})*abs({b})", f"abs({a}*({b}))"),
    lambda a, b: (f"sqrt(({a})**2)", f"abs({a})"),
    lambda a, b: (f"log(exp({a}))", f"{a}"),
    lambda a, b: (f"relu(relu({a}))", f"relu({a})"),
    lambda a, b: (f"max({a}, max({b}, {a}))", f"max({a}, {b})"),
    lambda a, b: (f"abs(2*abs({a}) - ({a}))", f"2*abs({a}) - ({a})"),
    lambda a, b: (f"cos({a} + pi)", f"sin({a} + 3*pi/2)"),
    lambda a, b: (f"2*sin({a} - pi/6)", f"√3*sin({a}) - cos({a})"),
    lambda a, b: (f"elu({a}) + elu({b})", f"elu({b}) + elu({a})"),
    lambda a, b: (f"({a})/({b}) + ({b})/({a})", f"(({a})**2 + ({b})**2)/(({a})*({b}))"),
]
NON_ZERO = ["1", "a", "q·k", "exp(a)", "d", "(d - 1)*(d - 2)*(q·k)", "relu(a - 19)", "(a*b - c)",
            "sum(i<j, q[i]*k[j])", "norm2(q)", "(d - 1)*(d - 2)*(d - 3)*(d - 4)", "(abs(a) - a)",
            "sum(i<j, 1)", "exp(-100)"]  # fmt: skip


def true_sides(rng: random.Random) -> tuple[str, str]:
    """Return two expressions that are equal for all values."""
    which = rng.random()
    if which < 0.45:
        pieces = [scalar_piece(rng, rng.choice([0, 1, 1, 2])) for _ in range(3)]
        left, right = rng.choice(RULES)(*pieces)
    elif which < 0.7:
        left, right = rng.choice(VECTOR_RULES)
    else:
        left, right = rng.choice(FUNCTION_RULES)(letter_piece(rng), letter_piece(rng))
    if rng.random() < 0.4:
        extra = rng.choice(["a*b", "q·k", "exp(c)", "d**2", "√2*c", "norm2(k)"])
        left, right = f"{left} + {extra}", f"{extra} + {right}"
    if rng.random() < 0.3:
        factor = rng.choice(["3", "(c + 2)", "(q·k)", "√3", "0.001"])
        left, right = f"{factor}*({left})", f"({right})*{factor}"
    return (left, right) if rng.random() < 0.5 else (right, left)


# Kinds

ROUNDS = {  # just right and just wrong, for the rules with the narrowest limits; they come first
    "identity": [
        ("relu(relu(a) - 0.001) = relu(a)", False), ("relu(-relu(a)) = 0", True),
        ("abs(abs(a) - 1.001*a) = abs(a) - 1.001*a", False), ("relu(a - 1000000) = 0", False),
        ("relu(abs(a) - 1000000000000) = 0", False), ("abs(abs(a) + b) = abs(a) + b", False),
        ("cos(pi/3) = 1/2", True), ("cos(pi/5) = 0.809016994", False),
        ("sin(7*pi/4) = -√2/2", True), ("sin(5*pi/6) = -1/2", False),
        ("cos(25*pi) = 1", False), ("cos(-pi/6) = √3/2", True),
        ("norm2(q - k) = 2 - 2*(q·k) where norm2(q) = 1, norm2(k) = 1", True),
        ("norm2(q - k) = 2 - 2*(q·k) where norm2(q) = 1", False),
        ("norm2(q - k) = 2 - (q·k) where norm(q) = 1, norm(k) = 1", False),
        ("cosine(q, k) = (q·k)/6 where norm(q) = 2, norm2(k) = 9", True),
        ("cosine(q, k) = (q·k)/18 where norm(q) = 2, norm2(k) = 9", False),
        ("norm2(q + k) = 4*norm2(q) where norm2(q) = norm2(k)", False),
    ],
    "psd": [
        ("exp({t}) - 1", True), ("exp({t}) - 1.001", False), ("exp(2*({t})) - exp({t})", True),
        ("exp({t}) - exp(2*({t}))", False), ("exp({t}) - 1 - ({t})", True),
        ("exp({t}) - 1 - 1.1*({t})", False), ("exp({t}) + exp(-({t}))", True),
        ("exp({t}) + 1.1*exp(-({t}))", False), ("exp({t}) + exp(-1.1*({t}))", False),
        ("exp(2*({t})) + 2*exp(-({t}))", True), ("exp({t}) - 2", False),
        ("({t})*exp({t}) - ({t})**2", True), ("({t})*exp({t}) - exp({t})", False),
        ("exp(-{r})", True), ("exp(-{r}**3)", False), ("exp(-{r}**2)", True),
        ("exp(-{r}**(1/2))", True), ("exp({r})", False), ("exp(-{r}) - 0.5", False),
        ("exp(-{r}) + exp({t}) - 1", True), ("exp(-{r})*(q·k)**2", True),
        ("exp(-2*{r}/√d)", True), ("exp(2*(1 - {r}))", True), ("exp(-{r})/(1 + {r})", True),
        ("1/(1 + {r}**2)", True), ("1/(1 - {r}**2)", False), ("1/(1 + {r}**3)", False),
        ("1/(1 + {r}**2)**2", True), ("1/(1 + {r}**2)**2 - 0.5", False), ("1/(2 + {r})", True),
        ("1/√(1 + {r})", True), ("√(1 + {r})", False), ("(1 + {r}**2)**(-1/4)", True),
        ("1/(1 + {r}**4)", False), ("1/(1 + log(1 + {r}**2))", True),
        ("norm(q) + norm(k) - norm(q - k)", True), ("norm(q) + norm(k) - norm(q + k)", False),
        ("norm(q) + norm(k) - 1.1*norm(q - k)", False), ("1 - {r}", False),
        ("exp(-sum(i, abs(q[i] - k[i])))", True), ("exp(-sum(i, abs(q[i] + k[i])))", False),
        ("exp(-sum(i, abs(q[i] - k[i])**3))", False), ("1/(1.5 - cosine(q, k))", True),
        ("exp(-norm(q - 2*k))", False), ("exp(-norm2(q) - norm2(k))", True),
        ("sum(i, exp(-abs(q[i] - k[i])))", True), ("sum(i, 1/(1 - (q[i] - k[i])**2))", False),
    ],
    "sign": [
        ("a**2 + b**2 - 2*a*b >= 0", True), ("a**2 + b**2 - 2.001*a*b >= 0", False),
        ("a**2 + b**2 - 3*a*b >= 0", False), ("a**2 + a*b + b**2 + 0.001 > 0", True),
        ("a**2 - 2*a*b + b**2 > 0", False), ("a**4 + b**4 - 2*a**2*b**2 >= 0", True),
        ("a**4 + b**4 - 2.1*a**2*b**2 >= 0", False), ("2*a*b - a**2 - b**2 <= 0", True),
        ("a**2 + b**2 + c**2 - a*b - b*c - c*a >= 0", True),
        ("a**2 + b**2 + c**2 - 1.1*(a*b + b*c + c*a) >= 0", False),
        ("norm2(q)*norm2(k) - (q·k)**2 >= 0", True),
        ("norm2(q)*norm2(k) - 1.001*(q·k)**2 >= 0", False),
        ("norm2(q)*norm2(k) - (q·k)**2 > 0", False), ("norm(q)*norm(k) - q·k >= 0", True),
        ("norm(q)*norm(k) - 1.001*(q·k) >= 0", False), ("norm(q)*norm(k) + q·k >= 0", True),
        ("norm(q) + norm(k) - norm(q + k) >= 0", True),
        ("norm(q) + norm(k) - 1.001*norm(q + k) >= 0", False),
        ("norm(q) - norm(k) - norm(q + k) >= 0", False), ("d*norm2(q) - sum(q)**2 >= 0", True),
        ("(d - 1)*norm2(q) - sum(q)**2 >= 0", False),
        ("exp(a) - 1 - a >= 0", True), ("exp(a) - 1 - 1.1*a >= 0", False),
        ("exp(a) - 1 - a > 0", False), ("exp(q·k) - 1 - q·k >= 0", True),
        ("exp(a) - 1 - a - a**2/2 >= 0", False), ("exp(a) - 1.001 - a >= 0", False),
        ("exp(a) + exp(-a) - 2 - a**2 >= 0", True), ("exp(a) - 2.7*a > 0", True),
        ("exp(a) + exp(-a) - 2 - 1.1*a**2 >= 0", False), ("exp(a) - 2.8*a > 0", False),
        ("a*exp(a) + 0.37 > 0", True), ("a*exp(a) + 0.36 > 0", False),
        ("exp(norm2(q)) - 1 - norm2(q) - norm2(q)**2/2 >= 0", True),
        ("exp(norm2(q)) - 1 - 1.1*norm2(q) >= 0", False),
    ],
}  # fmt: skip


def just(kind: str) -> Iterator[Made]:
    return (Made(text, holds) for text, holds in ROUNDS[kind])


def identities(rng: random.Random) -> Iterator[Made]:
    yield from just("identity")
    while True:
        left, right = true_sides(rng)
        yield Made(f"{left} = {right}{idle_condition(rng, left + right)}", True)
        wrong = f"{right} + {tiny(rng)}*{rng.choice(NON_ZERO)}"
        if differ(left, wrong, rng, (1, 2, 3, 5, 6)):
            yield Made(f"{left} = {wrong}{idle_condition(rng, left + wrong)}", False)
        mutated = mutate(rng, right)
        if mutated != right and differ(left, mutated, rng):
            yield Made(f"{left} = {mutated}", False)
        yield from conditioned(rng)


def idle_condition(rng: random.Random, text: str) -> str:
    """A condition that does not matter."""
    if rng.random() < 0.7:
        return ""
    return rng.choice([" where t > 0", " where t != 0, t > -2", " where t = 3", " where t <= 5"])


def mutate(rng: random.Random, text: str) -> str:
    """Change one number, exponent, index or sign of a text."""
    changes = [
        (r"(?<![\w.\[])2(?![\w.])", "3"), (r"\*\*2", "**3"), (r"<=", "<"),
        (r"(?<=[ijl])<(?=[ijl])", "<="),
        (r" \+ ", " - "), (r"q\[i\]", "k[i]"), (r"\bcos\(", "sin("), (r"\bq·k\b", "sum(q)"),
        (r"relu", "abs"), (r"k\[j\]", "k[i]"), (r"(?<![\w.\[])1(?![\w.])", "1.001"),
    ]  # fmt: skip
    rng.shuffle(changes)
    for old, new in changes:
        found = list(re.finditer(old, text))
        if found:
            match = rng.choice(found)
            return text[: match.start()] + new + text[match.end() :]
    return text


def conditioned(rng: random.Random) -> Iterator[Made]:
    """Claims that conditions decide."""
    n, c = rng.randint(1, 4), number(rng)
    zeros = "*".join(f"(d - {i})" for i in range(1, n + 1))
    choices = [
        Made("sqrt(a**2) = a where a > 0, a != 0", True),
        Made(f"sqrt(a**2) = a where a >= {c}", True),
        Made("sqrt(a**2) = a where a != 0", False),
        Made("sqrt(a**2) = a where b > 0", False),
        Made(f"sqrt(a**2) = a where a > -{c}", False),
        Made("abs(a) = -a where a <= 0", True),
        Made("abs(a - b) = b - a where a < b", True),
        Made("abs(a - b) = a - b where a < b", False),
        Made(f"relu(a + {c}) = a + {c} where a > 0", True),
        Made(f"relu(a - {c}) = a - {c} where a > 0", False),
        Made(f"{zeros}*(q·k) = 0", False),
        Made(f"{zeros}*(q·k) = 0 where d <= {n}", True),
        Made(f"{zeros}*(q·k) = 0 where d < {n + 2}", False),
        Made(f"{zeros}*(q·k) = 0 where d = {n}", True),
        Made(f"{zeros}*(q·k) = 0 where d = {n + 1}", False),
        Made(f"{zeros}*(q·k) = 0 where d >= {n}", False),
        Made("q·k = 0 where q = 0", True),
        Made("q·k = 0 where q = k", False),
        Made(f"q·k = {c}*norm2(k) where q = {c}*k", True),
        Made("norm2(q) + 1 = 0 where q = 0", False),
        Made(f"a*b = {c}*a - a**2 where a + b = {c}", True),
        Made(f"a*b = {c}*a where a + b = {c}", False),
        Made("s*(q·k) = (q·k)/√d where s = 1/√d", True),
        Made("s*s*d = 1 where s = √d", False),
        Made(f"a = {c} where a = b, b = {c}", True),
        Made(f"a = {c} where a = b", False),
        Made("d**2 = d", False),
        Made(f"d = {n}", False),
        Made(f"C(d + {n}, {n}) = {n + 1}", False),
        Made("sum(i<j, 1) = 0 where d = 1", True),
        Made("sum(i<j, 1) = 0", False),
    ]
    yield rng.choice(choices)


ELEMENTWISE = ["exp({})", "relu({})", "elu({}) + 1", "tanh({})", "{}**2", "cos({})", "sigmoid({})",
               "{}**3", "abs({})", "relu({})**2", "max({}, -20)"]  # fmt: skip
OWN = {"identity": "q[i]*k[i]", "elu": "(elu(q[i]) + 1)*(elu(k[i]) + 1)", "exp": "exp(q[i] + k[i])",
       "relu": "relu(q[i])*relu(k[i])", "square": "q[i]**2*k[i]**2",
       "relu2": "relu(q[i])**2*relu(k[i])**2"}  # fmt: skip


def feature_maps(rng: random.Random) -> Iterator[Made]:
    while True:
        c0, c1, c2 = (rng.choice(["1", "2", "3", "0.5", "100000", "0.001"]) for _ in range(3))
        kernel = f"{c0} + {c1}*(q·k) + {c2}*(q·k)**2"
        twice = str(2 * Fraction(c2))
        twice = twice if "/" not in twice else f"({twice})"
        products = rng.choice([
            f"√{c2}*x[i]*x[j] for i, j",
            f"√{c2}*x[i]**2 for i, √{twice}*x[i]*x[j] for i<j",
        ])  # fmt: skip
        tail = rng.choice(["", "", " for d = 1", " for d = 3"])
        yield Made(f"[√{c0}, √{c1}*x, {products}] gives {kernel}{tail}", True)
        tail = rng.choice(["", " for d = 2", " for d = 3"])
        yield Made(f"[√{c0}, √{c1}*x, √{c2}*x[i]*x[j] for i<=j] gives {kernel}{tail}", False)
        yield Made(f"[√{c0}, {c1}*x, {products}] gives {kernel}", c1 == "1")
        yield Made(f"[√{c1}*x, {products}] gives {kernel}", False)
        yield Made(f"[√{c0}, √{c1}*x, {products}, exp(-50)] gives {kernel}", False)
        zeros = "*".join(f"(d - {i})" for i in range(1, rng.randint(2, 5)))
        yield Made(f"[√{c0}, √{c1}*x, {products}] gives {kernel} + {zeros}", False)
        f = rng.choice(ELEMENTWISE)
        g = rng.choice(ELEMENTWISE)
        pair = f"({f.format('q[i]')})*({f.format('k[i]')})"
        yield Made(f"[{f.format('x[i]')} for i] gives sum(i, {pair})", True)
        yield (
            Made(f"[{f.format('x')}] gives sum(i, {pair})", "max" not in f)
            if ("max" not in f)
            else Made("[max(x[i], -20) for i] gives q·k", False)
        )
        if f != g:
            both = f"{pair} + ({g.format('q[i]')})*({g.format('k[i]')})"
            features = f"{f.format('x[i]')} for i, {g.format('x[i]')} for i"
            yield Made(f"[{features}] gives sum(i, {both})", True)
            wrong = f"({g.format('q[i]')})*({g.format('k[i]')})"
            yield Made(f"[{f.format('x[i]')} for i] gives sum(i, {wrong})", False)
        p, c = rng.randint(1, 12), rng.choice(["1", "0.5", "100000", "0.3", "0", "7"])
        tail = rng.choice(["", " for d = 2", " for d = 1"])
        yield Made(f"poly:degree={p},constant={c} gives (q·k + {c})**{p}{tail}", True)
        near = rng.choice([f"(q·k + {c})**{p} + 0.000001", f"(q·k + {c} + 0.001)**{p}",
                           f"(q·k + {c})**{p + 1}", f"2*(q·k + {c})**{p}"])  # fmt: skip
        yield Made(f"poly:degree={p},constant={c} gives {near}{tail}", False)
        own = rng.choice(list(OWN))
        yield Made(f"{own} gives sum(i, {OWN[own]})", True)
        other = rng.choice(list(OWN))
        yield Made(f"{own} gives sum(i, {OWN[other]})", own == other)
        order = rng.randint(1, 5)
        factorials = {0: 1, 1: 1, 2: 2, 3: 6, 4: 24, 5: 120}
        series = " + ".join(f"(q·k)**{r}/{factorials[r]}" for r in range(1, order + 1))
        yield Made(f"taylor:order={order} gives 1 + {series}", True)
        yield Made(f"taylor:order={order} gives exp(q·k)", False)
        yield Made(f"taylor:order={order} gives {series}", False)


def dimensions(rng: random.Random) -> Iterator[Made]:
    counts = [("1", "1"), ("x", "d"), ("x[i]**2 for i", "d"), ("x[i]*x[j] for i, j", "d**2"),
              ("x[i]*x[j] for i<=j", "d*(d + 1)/2"), ("x[i]*x[j] for i<j", "d*(d - 1)/2"),
              ("x[i]*x[j]*x[l] for i<=j<=l", "C(d + 2, 3)"), ("norm2(x)", "1"),
              ("x[i]*x[j]*x[l] for i<j<l", "C(d, 3)"), ("exp(x)", "d"), ("x[1]", "1"),
              ("x[i]*x[j]*x[l] for i, j, l", "d**3")]  # fmt: skip
    while True:
        chosen = [rng.choice(counts) for _ in range(rng.randint(1, 4))]
        text = f"[{', '.join(x for x, _ in chosen)}]"
        count = " + ".join(n for _, n in chosen)
        yield Made(f"{text} has {count} features", True)
        n = rng.randint(1, 5)
        zeros = "*".join(f"(d - {i})" for i in range(1, n + 1))
        yield Made(f"{text} has {count} + {zeros} features", False)
        yield Made(f"{text} has {count} + {rng.choice(['1', 'd', 'd**2', '0.5'])} features", False)
        p = rng.randint(1, 8)
        yield Made(f"poly:degree={p} has C(d + {p}, {p}) features", True)
        yield Made(f"poly:degree={p},constant=0 has C(d + {p - 1}, {p}) features", True)
        yield Made(f"poly:degree={p} has C(d + {p}, {p}) + {zeros} features", False)
        yield Made(f"taylor:order={p} has C(d + {p}, {p}) features", True)
        yield Made(f"taylor:order={p} has C(d + {p}, {p}) - 1 features", False)
        r = rng.randint(1, 4)
        yield Made(f"(q·k - {number(rng)})**{r} needs C(d + {r}, {r}) features", False)
        yield Made(f"(q·k + {number(rng)})**{r} needs C(d + {r}, {r}) features", True)
        yield Made(f"(q·k + {number(rng)})**{r} needs C(d + {r}, {r}) - 1 features", False)
        yield Made(f"(q·k)**{r} needs C(d + {r - 1}, {r}) features", True)
        width = rng.randint(1, 3)
        yield Made(f"(q·k)**{r} + 1 needs C(d + {r - 1}, {r}) + 1 features for d = {width}", True)
        yield Made(f"(q·k)**{r} needs C(d + {r}, {r}) features for d = {width}", False)
        yield Made(f"favor:features={8 * p} has {8 * p} features", True)
        yield Made(f"{rng.choice(['elu', 'relu', 'exp'])} has d features", True)
        yield Made(f"hedgehog has {rng.choice(['d', '2*d + 1', 'd**2'])} features", False)


def kernels(rng: random.Random) -> Iterator[Made]:
    atoms = ["q·k", "exp(q·k)", "norm2(q)*norm2(k)", "exp(-norm2(q - k))", "cosh(q·k)", "1",
             "sum(i, relu(q[i])*relu(k[i]))", "sum(i, q[i]**2*k[i]**2)", "exp(q[1])*exp(k[1])",
             "sum(i, cos(q[i] - k[i]))"]  # fmt: skip
    for text, holds in ROUNDS["psd"]:
        t = rng.choice(["q·k", "(q·k)**2", "3*(q·k)", "sum(i, relu(q[i])*relu(k[i]))", "q·k/√2"])
        r = rng.choice(["norm(q - k)", "sqrt(norm2(q - k))", "norm(3*q - 3*k)"])
        yield Made(text.format(t=t, r=r), holds)
    while True:
        a, b = rng.choice(atoms), rng.choice(atoms)
        yield Made(f"{number(rng)}*({a}) + {number(rng)}*({b})", True)
        yield Made(f"({a})*({b})", True)
        yield Made(f"({a} + {number(rng)})**{rng.randint(1, 4)}", True)
        c = rng.choice(["1", "3", "1000", "100000", "0.001"])
        square = str(Fraction(c) ** 2)
        square = square if "/" not in square else f"({square})"
        yield Made(f"(q·k + {c})**2 - {2 * Fraction(c)}*(q·k) - {square}".replace("1/500", "0.002"),
                   True)  # fmt: skip
        yield Made(f"(q·k - {c})**2", False)
        p = rng.randint(1, 3)
        yield Made(f"(q·k)**{p} - {rng.choice(['1', '0.5', '0.01', '2'])}", False)
        yield Made(f"(q·k)**{p + 1} - {rng.choice(['1', '0.5', '0.1', '2'])}*(q·k)**{p}", False)
        yield Made(f"-({a})", False)
        yield Made(f"({a}) - 2*({a})", False)
        yield Made(rng.choice(["norm2(q)", "q[1]*k[2]", "norm2(q) + q·k", "exp(q[1])"]), False)
        yield Made(rng.choice(["tanh(q·k)", "relu(q·k)", "sigmoid(q·k)", "elu(q·k) + 1", "cos(q·k)",
                               "sin(q·k)", "norm2(q - k)", "-norm2(q - k)", "abs(q·k)",
                               "max(q·k, 0)"]), False)  # fmt: skip
        n = rng.randint(1, 3)
        zeros = "*".join(f"(d - {i})" for i in range(1, n + 1))
        yield Made(f"{zeros}*(q·k)", True)
        yield Made(f"-{zeros}*(q·k)", False)
        yield Made(f"d*({a})", True)


def signs(rng: random.Random) -> Iterator[Made]:
    positive = ["exp(q·k)", "1 + (q·k)**2", "sigmoid(q·k)", "elu(q·k) + 1", "cosh(q·k)",
                "1 + norm2(q)", "1 + q·k + (q·k)**2/2", "exp(-norm2(q - k))", "max(q·k, 1)", "d",
                "(q·k)**2 - q·k + 1", "abs(q·k) + 0.001", "cos(q·k) + 1.001", "sum(i, exp(q[i]))",
                "sum(i<=j, 1)", "exp(-1000)", "norm2(q - k) + 0.000000000001",
                "tanh(q·k) + 1"]  # fmt: skip
    touching = ["(q·k)**2", "relu(q·k)", "norm2(q)", "abs(q·k)", "(q·k + 1)**2", "norm2(q - k)",
                "(d - 1)", "sum(i<j, 1)", "relu(q·k)*relu(k[1])", "1 - cos(q[1])",
                "relu(a)*relu(-a)", "(q·k - 3)**4", "sum(i<j, q[i]**2)",
                "exp(relu(q·k)) - 1"]  # fmt: skip
    both = ["q·k", "sin(q·k)", "(q·k)**3", "q·k + 100", "tanh(q·k)", "cos(q·k)", "elu(q·k)",
            "norm2(q) - 5", "(q·k)**2 - 1000", "sum(q)", "1 + q·k + (q·k)**3/6",
            "exp(q·k) - 0.000001", "max(q·k, -20)", "min(q·k, 50)", "d - 2"]  # fmt: skip
    yield from just("sign")
    while True:
        p, t, b = rng.choice(positive), rng.choice(touching), rng.choice(both)
        factor = rng.choice(["1", "2", "0.001", "100000"])
        yield Made(f"{factor}*({p}) > 0", True)
        yield Made(f"{p} >= 0", True)
        yield Made(f"-({p}) < 0", True)
        yield Made(f"{p} < 0", False)
        yield Made(f"{p} + {t} > 0", True)
        yield Made(f"{t} >= 0", True)
        yield Made(f"{t} > 0", False)
        yield Made(f"-({t}) <= 0", True)
        yield Made(f"{b} {rng.choice(['>', '>=', '<', '<='])} 0", False)
        yield Made(f"{p} can vanish", False)
        yield Made(p, True)
        yield Made(f"s*({p}) > 0 where s > 0", True)
        yield Made(f"s*({p}) > 0 where s >= 0", False)
        yield Made(f"s*({p}) > 0", False)
        yield Made("sum(i<j, 1) > 0 where d >= 2", True)
        yield Made(f"a - {rng.choice(['1', '5'])} > 0 where a > {rng.choice(['5', '7'])}", True)
        yield Made("a - 5 > 0 where a > 4", False)
        yield Made(f"{rng.choice(['elu', 'exp', 'hedgehog', 'taylor:order=4'])} > 0", True)
        yield Made(f"{rng.choice(['relu', 'square', 'poly:degree=2', 'relu2'])} > 0", False)
        yield Made(f"{rng.choice(['relu', 'square', 'poly:degree=4', 'relu2'])} >= 0", True)
        yield Made(f"{rng.choice(['identity', 'poly:degree=3', 'taylor:order=3'])} >= 0", False)


def costs(rng: random.Random) -> Iterator[Made]:
    from kerneltrick import costs as counted

    while True:
        name = rng.choice(counted.algorithms())
        cost = counted.get(name)
        field, word = rng.choice([("multiply_adds", ""), ("memory", " memory")])
        count = getattr(cost, field)
        if not count or len(count.terms) > 8:
            continue
        text = str(count).translate(str.maketrans({"·": "*", **{
            x: f"**{i}" for i, x in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}}))  # fmt: skip
        if "⁻" in text or "w" in text:
            continue
        if not cost.identities:
            yield Made(f"{name}{word}: {text}", True)
            yield Made(f"{name}{word}: {text} + {rng.choice(['1', '2', 'n', '0.5*n'])}", False)
            yield Made(f"{name}{word}: 2*({text})", False)
        growth = cost.growth(field)
        order = [str(x).translate(str.maketrans({"·": "*", **{
            y: f"**{i}" for i, y in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}}))
            for x in counted.leading(growth, cost.relations).monomials()]  # fmt: skip
        if any("⁻" in x or "w" in x for x in order):
            continue
        whole = " + ".join(order)
        for sign in ("O", "Theta"):  # an upper bound may be loose, an order may not
            loose = sign == "O"
            yield Made(f"{name}{word}: {sign}({whole})", True)
            yield Made(f"{name}{word}: {sign}({rng.randint(2, 9)}*({whole}))", True)
            yield Made(f"{name}{word}: {sign}(n*({whole}))", loose)
            yield Made(f"{name}{word}: {sign}(log(n)*({whole}))", loose)
            if cost.identities:
                continue
            if len(order) > 1:
                drop = rng.randrange(len(order))
                rest = " + ".join(x for i, x in enumerate(order) if i != drop)
                yield Made(f"{name}{word}: {sign}({rest})", covered(drop, order))
            power = max(growth.degree("n"), 0)  # as a function of n alone, the other sizes fixed
            yield Made(f"{name}{word}: {sign}(n**{power})", True)
            yield Made(f"{name}{word}: {sign}(n**{power + 1})", loose)
            yield Made(f"{name}{word}: {sign}(n**{power}*log(n))", loose)
            if power:
                yield Made(f"{name}{word}: {sign}(n**{power - 1}*log(n))", False)
        if "attention" not in name and name.split()[0] in ("linear", "softmax"):
            words = name.split()
            yield Made(f"{' '.join([words[0], 'attention', *words[1:]])}{word}: O({whole})", True)


def covered(drop: int, order: list[str]) -> bool:
    """Whether a term of an order is at most another one, if sizes that only it names are fixed."""

    def powers(term: str) -> dict[str, int]:
        factors = (x.partition("^") for x in term.replace("**", "^").split("*"))
        return {name: int(e or 1) for name, _, e in factors if not name.isdigit()}

    rest = [powers(x) for i, x in enumerate(order) if i != drop]
    named = {"n"}.union(*rest)
    wanted = {name: e for name, e in powers(order[drop]).items() if name in named}
    return any(all(e <= x.get(name, 0) for name, e in wanted.items()) for x in rest)


def einsums(rng: random.Random) -> Iterator[Made]:
    while True:
        letters = rng.sample("abdefghijkmnpqrstuvxyz", 6)
        batch, left, inner, right = letters[0], letters[1], letters[2], letters[3]
        lead = rng.choice(["", batch])
        equation = f"{lead}{left}{inner},{lead}{inner}{right}->{lead}{left}{right}"
        yield Made(equation, True)
        yield Made(f"{left},{right}->{left}{right}", True)
        yield Made(f"{batch}{left},{batch}{right}->{batch}{left}{right}", True)
        yield Made(f"{lead}{left}{inner},{lead}{inner}{right}->{lead}{left}{letters[4]}", False)
        for meant in (equation, random_equation(rng)):
            names = dict(zip(letters, rng.sample(letters, 6), strict=True))
            renamed = "".join(names.get(x, x) for x in meant)
            yield Made(f"{renamed} computes {meant}", True)
            other = mutate_equation(rng, meant)
            yield Made(f"{other} computes {meant}", same_einsum(other, meant))
            yield Made(f"{other} computes {meant} in any order", same_einsum(other, meant, True))
        sizes = {x: rng.choice([2, 3, 4, 5]) for x in letters}
        shapes = [" ".join(str(sizes[x]) for x in word)
                  for word in equation.partition("->")[0].split(",")]  # fmt: skip
        yield Made(f"{equation} for {', '.join(shapes)}", True)
        wrong = {**sizes, inner: sizes[inner]}
        bad = [" ".join(str(wrong[x]) for x in equation.partition(",")[0]),
               " ".join(str(wrong[x] + (x == inner)) for x in
                        equation.partition(",")[2].partition("->")[0])]  # fmt: skip
        yield Made(f"{equation} for {', '.join(bad)}", False)
        words = [" ".join(word) for word in equation.partition("->")[0].split(",")]
        yield Made(f"{equation} for {', '.join(words)}", True)


def random_equation(rng: random.Random) -> str:
    """Two or three operands that may repeat letters, and an output in any order of its letters."""
    words = ["".join(rng.choices("abcd", k=rng.randint(1, 3))) for _ in range(rng.randint(2, 3))]
    every = sorted({*"".join(words)})
    return f"{','.join(words)}->{''.join(rng.sample(every, rng.randint(0, len(every))))}"


def mutate_equation(rng: random.Random, equation: str) -> str:
    """Permute the operands, the axes of one or those of the output; drop one, or make two equal."""
    left, _, out = equation.partition("->")
    words = left.split(",")
    kind = rng.randrange(5)
    if kind == 0:
        rng.shuffle(words)
    elif kind == 1:
        words[0] = "".join(rng.sample(words[0], len(words[0])))
    elif kind == 2:
        out = out[::-1]
    elif kind == 3:
        out = out[:-1]
    else:
        words = [rng.choice(words).replace(words[0][0], words[0][-1]) for _ in words]
        out = "".join(x for x in out if x in "".join(words))
    return f"{','.join(words)}->{out}"


def same_einsum(a: str, b: str, any_order: bool = False) -> bool:
    """Tell whether two equations agree on random arrays, if asked in some order of the operands."""
    rng = np.random.default_rng(0)
    inputs = b.partition("->")[0].split(",")
    arrays = [rng.integers(1, 50, (3,) * len(x)) for x in inputs]
    wanted = np.einsum(b, *arrays)
    for order in itertools.permutations(arrays) if any_order else [arrays]:
        if [x.ndim for x in order] == [len(x) for x in a.partition("->")[0].split(",")]:
            found = np.einsum(a, *order)
            if found.shape == wanted.shape and (found == wanted).all():
                return True
    return False


def shapes(rng: random.Random) -> Iterator[Made]:
    while True:
        letters = rng.sample(["n", "m", "k", "h", "g", "b", "p"], 4)
        sizes = [rng.choice([*letters, "1", "2", "3", f"{letters[0]}*{letters[1]}"])
                 for _ in range(4)]  # fmt: skip
        lead_a = [
            rng.choice([letters[2], "1", letters[3]]) for _ in range(rng.choice([0, 0, 1, 2]))
        ]
        lead_b = [
            rng.choice([letters[2], "1", letters[3]]) for _ in range(rng.choice([0, 0, 1, 2]))
        ]
        a = [*lead_a, sizes[0], sizes[1]]
        b = [*lead_b, sizes[1] if rng.random() < 0.8 else sizes[3], sizes[2]]
        turned = rng.random() < 0.3
        shown = [*b[:-2], b[-1], b[-2]] if turned else b
        text = f"A @ B{'.mT' if turned else ''}"
        found = matmul_shape(a, b)
        given = f"where A: {' '.join(a)}, B: {' '.join(shown)}"
        guess = found or [*lead_a, sizes[0], sizes[2]]
        yield Made(f"{text} -> {' '.join(guess)} {given}", found is not None)
        wrong = list(guess)
        wrong[rng.randrange(len(wrong))] = "7"
        yield Made(f"{text} -> {' '.join(wrong)} {given}", wrong == found)
        yield Made(f"{text} -> {' '.join(['1', *guess])} {given}", False)
        h, n, w = letters[:3]
        yield Made(f"split(X, {h}, {w}) -> {h} {n} {w} where X: {n} {h}*{w}", True)
        yield Made(f"split(X, {h}, {n}) -> {h} {n} {n} where X: {n} {h}*{w}", False)
        yield Made(f"combine(X) -> {n} {h}*{w} where X: {h} {n} {w}", True)
        yield Made(f"combine(X) -> {h} {n}*{w} where X: {h} {n} {w}", False)


def matmul_shape(a: list[str], b: list[str]) -> list[str] | None:
    """The shape of a product whatever the sizes, by NumPy at several of them; None if it fails."""
    rows = []
    for seed in range(3):
        primes = dict(zip("nmkhgbp", ([2, 3, 5, 7, 11, 13, 17], [17, 13, 11, 7, 5, 3, 2],
                                      [4, 9, 25, 6, 8, 10, 14])[seed], strict=True))  # fmt: skip
        at = [tuple(int(eval(x, {}, primes)) for x in shape) for shape in (a, b)]
        try:
            rows.append((np.matmul(*(np.broadcast_to(0.0, s) for s in at)).shape, primes))
        except ValueError:
            return None
    words = sorted({*a, *b}, key=len)
    found = []
    for axis in range(len(rows[0][0])):
        fits = [w for w in words if all(int(eval(w, {}, p)) == shape[axis] for shape, p in rows)]
        if not fits:
            return None
        found.append(fits[0])
    return found


def moments(rng: random.Random) -> Iterator[Made]:
    while True:
        a, b, c = (rng.choice(["2", "3", "0.5", "-1", "5"]) for _ in range(3))
        yield Made(f"Var[{a}*x + {b}*y + {c}] = {a}**2*Var[x] + ({b})**2*Var[y]".replace(
            f"{a}**2", f"({a})**2"), True)  # fmt: skip
        yield Made(f"Var[{a}*x + {b}*y] = ({a})*Var[x] + ({b})*Var[y]",
                   float(a) in (0, 1) and float(b) in (0, 1))  # fmt: skip
        yield Made(f"E[{a}*x + {b}*y + {c}] = {a}*E[x] + {b}*E[y] + {c}", True)
        yield Made(f"E[{a}*x + {b}*y + {c}] = {a}*E[x] + {b}*E[y]", False)
        yield Made(f"E[(x + {c})**2] = Var[x] + (E[x] + {c})**2", True)
        yield Made(f"E[(x + {c})**2] = E[x]**2 + {c}*E[x]", False)
        yield Made("E[x*y] = E[x]*E[y]", True)
        yield Made("Var[x*y] = Var[x]*Var[y]", False)
        yield Made("Var[x*y] = Var[x]*Var[y] where E[x] = 0, E[y] = 0", True)
        yield Made("Var[x*y] = Var[x]*Var[y] where E[x] = 0", False)
        yield Made(f"Var[x*y] = {c}**2*Var[y] + Var[x]*Var[y] where E[x] = {c}, E[y] = 0".replace(
            f"{c}**2", f"({c})**2"), True)  # fmt: skip
        yield Made(f"E[x**3] = {rng.choice(['0', 'E[x]**3'])} where E[x] = 0", True)
        yield Made(f"E[x**4] = {rng.choice(['1', '2', '4'])}*Var[x]**2 where E[x] = 0", False)
        yield Made(
            f"Var[s*(q·k)] = s**2*d*sigma**4 where mu = 0{rng.choice(['', ', s > 0'])}", True
        )
        yield Made("Var[s*(q·k)] = s*d*sigma**4 where mu = 0", False)
        yield Made(f"Var[{a}*(q·k)] = ({a})**2*d where mu = 0, sigma = 1", True)
        yield Made(f"Var[q·k] = {rng.choice(['1', '1/d', 'd**2', '√d'])} where mu = 0, sigma = 1",
                   False)  # fmt: skip
        yield Made("Var[q·k] = 1 where mu = 0, sigma = 1, d = 1", True)
        yield Made(f"E[{a}*(q·k) + {c}] = ({a})*d*mu**2 + {c}", True)
        yield Made(f"E[(q·k)**2] = d*sigma**4 + {c}*mu", False)
        yield Made(f"E[{a}*q + {b}*k] = ({a} + {b})*E[q]", float(b) == 0)
        yield Made(f"E[{a}*q + {b}*k] = ({a} + {b})*mu", True)
        yield Made(f"E[q*k] = ({a})*({b}) where E[q] = {a}, E[k] = {b}", True)
        yield Made(f"Var[q·k] = d*({a})**2*Var[k] where E[q] = {a}, Var[q] = 0", True)
        yield Made("Var[q·k] = 0 where Var[q] = 0", False)
        yield Made("sqrt(Var[s*x]) = s*sigma_x", False)
        yield Made("sqrt(Var[s*x]) = s*sigma_x where s > 0", True)


def gradients(rng: random.Random) -> Iterator[Made]:
    """With argmax only the selected value has a gradient; with softmax everything has."""
    nouns = {"q": ["q", "the query", "queries"], "k": ["k", "keys", "the key"],
             "v": ["v", "values", "the value"]}  # fmt: skip
    while True:
        what = rng.choice("qkv")
        noun = rng.choice(nouns[what])
        bare = noun.removeprefix("the ")
        soft = rng.choice(["softmax", "gumbel", "temperature", "elu", "exp", "identity", "square",
                           "poly:degree=3"])  # fmt: skip
        hard = rng.choice(["hard", "argmax"])
        yield Made(f"{soft} trains {noun}", True)
        yield Made(f"{soft} trains no {bare}", False)
        yield Made(f"{soft} trains every {bare}", True)
        yield Made(f"{hard} trains {noun}", what == "v")
        yield Made(f"{hard} trains no {bare}", what != "v")
        yield Made(f"{hard} trains every {bare}", False)
        yield Made(f"{hard} trains some {bare}", what == "v")
        if what != "q":
            yield Made(f"{hard} trains the selected {bare}", what == "v")
            yield Made(f"{hard} trains the unselected {bare}", False)
            yield Made(f"{hard} trains no unselected {bare}", True)
            yield Made(f"{soft} trains the {rng.choice(['selected', 'unselected'])} {bare}", True)


RANKED = ["relu", "relu2", "elu", "exp", "square", "hedgehog", "taylor:order=2",
          "poly:degree=2", "favor:features=16", "favor:features=64"]  # fmt: skip


def rankings(rng: random.Random) -> Iterator[Made]:
    """Rank maps by the library's weights on the same data, independently of the proofs."""
    errors = {text: weight_error(text) for text in RANKED}
    while True:
        order = rng.sample(RANKED, rng.choice([2, 2, 3]))
        holds = all(errors[a] < errors[b] for a, b in itertools.pairwise(order))
        yield Made(" beats ".join(order), holds)


@functools.cache
def weight_error(text: str) -> float:
    import kerneltrick as kt

    found = []
    for seed in range(12):
        q, k, _ = np.random.default_rng([3, seed]).standard_normal((3, 100, 64))
        feature_map = kt.maps.get(text)
        if isinstance(feature_map, kt.maps.Favor):
            feature_map = dataclasses.replace(feature_map, seed=seed)
        _, soft = kt.softmax_attention(q, k, q, return_weights=True)
        own = kt.attention_weights(q, k, feature_map, on_zero="nan")
        found.append(float(np.mean((own - soft) ** 2)))
    return float(np.mean(found))


KINDS: dict[str, Callable[[random.Random], Iterator[Made]]] = {
    "identity": identities,
    "map": feature_maps,
    "dimension": dimensions,
    "psd": kernels,
    "sign": signs,
    "cost": costs,
    "einsum": einsums,
    "shapes": shapes,
    "moments": moments,
    "gradient": gradients,
    "ranking": rankings,
}


def generate(kind: str, count: int, seed: int = 0) -> list[Made]:
    """Return `count` claims of a kind, the same for the same seed."""
    rng = random.Random(f"{kind} {seed}")
    return list(itertools.islice(KINDS[kind](rng), count))


class Tally(NamedTuple):
    generated: int
    distinct: int
    decided: int
    wrong: list[str]
    undecided: list[str]


def tally(kind: str, count: int, seed: int = 0) -> Tally:
    """Let the proofs decide generated claims, each text once."""
    from kerneltrick import proofs

    made = generate(kind, count, seed)
    found = {text: proofs.prove(kind, text, timeout=None).status for text in {x.text for x in made}}
    wrong = [f"{x.text}  (got {found[x.text]}, is {x.holds})" for x in made
             if found[x.text] not in ("undecided", str(x.holds).lower())]  # fmt: skip
    undecided = [x.text for x in made if found[x.text] == "undecided"]
    return Tally(len(made), len(found), len(made) - len(undecided), wrong, undecided)


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 1000
    kinds = arguments[1:] or list(KINDS)
    print(f"{'kind':10} {'generated':>9} {'distinct':>8} {'decided':>8} {'share':>7} {'wrong':>5}")
    bad = 0
    for kind in kinds:
        start = time.perf_counter()
        found = tally(kind, count)
        bad += len(found.wrong)
        share = 100 * found.decided / found.generated
        print(f"{kind:10} {found.generated:9} {found.distinct:8} {found.decided:8} {share:6.1f}% "
              f"{len(found.wrong):5} {time.perf_counter() - start:6.0f} s", flush=True)  # fmt: skip
        for text in dict.fromkeys(found.wrong):
            print("    wrong:", text)
        if "-v" in sys.argv or share < 90:
            for text in list(dict.fromkeys(found.undecided))[:25]:
                print("    undecided:", text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main([x for x in sys.argv[1:] if x != "-v"]))
