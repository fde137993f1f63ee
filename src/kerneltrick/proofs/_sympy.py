"""Import sympy, or say what to install; and write its expressions as text."""

from __future__ import annotations

from kerneltrick._install import missing

try:
    import sympy
    from mpmath import iv
except ImportError as error:  # pragma: no cover - the test extra installs it
    raise missing("kerneltrick.proofs needs sympy", "proofs") from error

from fractions import Fraction
from typing import Any

Expr = Any  # sympy is untyped

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

__all__ = ["Expr", "exact", "iv", "real", "subscript", "sympy", "vector", "write", "write_monomial"]


def real(name: str) -> Expr:
    return sympy.Symbol(name, real=True)


def vector(name: str, d: int) -> list[Expr]:
    """The symbols name₁ … name_d."""
    return [sympy.Symbol(subscript(name, i), real=True) for i in range(d)]


def subscript(name: str, place: int) -> str:
    """The name of a coordinate: place 0 of q is q₁."""
    return f"{name}{str(place + 1).translate(_LOWERED)}"


def exact(x: float) -> Expr:
    """Recognise a float as a fraction or the square root of one.

    The relative tolerance is 1e-12: 0.5 → 1/2, 1.4142135623730951 → √2. A float that is not
    recognised is returned unchanged.

    >>> exact(1.4142135623730951), exact(0.3), exact(0.7071067811865476)
    (sqrt(2), 3/10, sqrt(2)/2)
    """
    if x == 0:
        return sympy.Integer(0)
    plain = _fraction(x)
    if plain is not None:
        return sympy.Rational(plain.numerator, plain.denominator)
    square = _fraction(x * x)
    if square is not None:
        root = sympy.sqrt(sympy.Rational(square.numerator, square.denominator))
        return root if x > 0 else -root
    return sympy.Float(x)


def _fraction(x: float) -> Fraction | None:
    guess = Fraction(x).limit_denominator(100_000)
    return guess if abs(float(guess) - x) <= 1e-12 * abs(x) else None


def write(expression: Expr) -> str:
    """An expression as people write it: 2·x₁² + √2."""
    text = str(sympy.sstr(expression, order="lex"))
    for power in range(9, 1, -1):
        text = text.replace(f"**{power}", str(power).translate(_RAISED))
    return text.replace("sqrt(2)", "√2").replace("sqrt(3)", "√3").replace("*", "·")


def write_monomial(parts: list[tuple[str, int]]) -> str:
    """x₁²·x₂ from [("x₁", 2), ("x₂", 1)]; 1 for none."""
    return "·".join(s + (str(e).translate(_RAISED) if e != 1 else "") for s, e in parts if e) or "1"
