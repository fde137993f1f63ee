"""What a feature map declares about itself: its formula, its kernel, its monomials, its cost."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple


class Operations(NamedTuple):
    """The number of features of φ and its operations for one token.

    Entries are numbers, or expressions if the input width is a symbol. `products` are the
    multiplications of the forward pass and `backward` those of the backward pass. `elementwise`
    counts all other operations of the forward pass.
    """

    features: Any
    products: Any
    backward: Any
    elementwise: Any


class KernelForm(NamedTuple):
    """φ(q)·φ(k) as a function of q·k, and why it has this form.

    With `coefficients` it is Σ cᵣ·(q·k + shift)ʳ, where r is the key of cᵣ. Without them it is
    e^{q·k}.
    """

    why: str
    coefficients: Mapping[int, Fraction] | None = None
    shift: Fraction = Fraction(0)


class Monomial(NamedTuple):
    """A feature √square · ∏ xᵢ over the variables of `row`; variable 0 is the constant 1."""

    square: Fraction
    row: tuple[int, ...]

    def named(self, inputs: list[str]) -> str:
        """The product of the names of its variables, such as "a^2 b"."""
        factors = [inputs[i - 1] for i in self.row if i]
        powers = {name: factors.count(name) for name in factors}
        return " ".join(n if p == 1 else f"{n}^{p}" for n, p in powers.items()) or "1"


def binomial(top: Any, bottom: int) -> Any:
    """C(top, bottom), where `top` is a number or an expression."""
    result: Any = Fraction(1)
    for i in range(bottom):
        result = result * (top - i) * Fraction(1, i + 1)
    return result


def decimal(x: float) -> Fraction:
    """A float as the decimal number that is written for it: 0.3 is 3/10."""
    return Fraction(repr(float(x)))
