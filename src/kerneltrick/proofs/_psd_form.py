"""Prove that a kernel is positive semi-definite from its normal form.

A form in q and k is a sum of terms c·u(q)·v(k)·M(q, k). M is a product of factors that are kernels
themselves: Σᵢ f(qᵢ)f(kᵢ), and exp of such products. If for every M the coefficients of u(q)·v(k)
form a positive semi-definite matrix, the form is a kernel, because sums and products of kernels are
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from kerneltrick.proofs._exponentials import exponents, has_positive_series, in_powers_of
from kerneltrick.proofs._form import Atom, Form, Monomial, atom, rebuilt
from kerneltrick.proofs._normal import REST

UNIT: Monomial = frozenset()
KERNEL = "K"  # a letter that stands for a kernel
LARGEST_MATRIX = 60
Matrix = list[list[Fraction]]


Groups = dict[tuple[Monomial, Monomial], dict[tuple[Monomial, Monomial], Fraction]]


def kernel_by_form(form: Form, least: int) -> str | None:
    """Why a form in q and k is a kernel in every dimension from `least` on; None if no proof is
    found. The atom `rest` stands for the number of coordinates that are not named."""
    groups: Groups | None = {}
    grows = False
    for m, c in form.terms.items():
        parts = _split(m)
        if parts is None or groups is None:
            groups = None
            break
        constant, u, v, mixed = parts
        grows |= any(a[0] == "exp" for a, _ in mixed)
        groups.setdefault((mixed, constant), {})[u, v] = c
    if groups is None or not (all(map(_psd, groups.values())) or _with_d(groups, least)):
        return _by_series(form)
    if grows:
        return "it is f(q)·f(k)·exp(a kernel), and exp has a power series with coefficients ≥ 0"
    return "its coefficients of q^α·k^β form a positive semi-definite matrix"


def _by_series(form: Form) -> str | None:
    """A proof by the powers of a kernel t in a form such as eᵗ − 1 − t or eᵗ + e⁻ᵗ."""
    for t in exponents(form):
        series = in_powers_of(t, form) if _is_product_of_kernels(t) else {}
        rests = [_split(rest) for rest in series]
        if not rests or not all(parts is not None and parts[1] == parts[2] for parts in rests):
            continue
        if all(map(has_positive_series, series.values())):
            return "it is a power series of a kernel with coefficients ≥ 0"
    return None


def conditional_by_form(form: Form, least: int) -> bool:
    """Whether a form is f(q) + f(k) + a kernel, so that Σ wᵢwⱼK_ij ≥ 0 for all w with Σ wᵢ = 0."""
    sides: dict[str, dict[Monomial, Fraction]] = {"q": {}, "k": {}, "": {}, "qk": {}}
    for m, c in form.terms.items():
        found = set[str]().union(*(vectors_of(a) for a, _ in m))
        sides["".join(x for x in "qk" if x in found)][m] = c
    mirror = {mirrored(m): c for m, c in sides["k"].items()}
    rest = Form(sides["qk"])
    return mirror == sides["q"] and (not rest or kernel_by_form(rest, least) is not None)


def _split(m: Monomial) -> tuple[Monomial, Monomial, Monomial, Monomial] | None:
    """Split a term into a constant ≥ 0, a function of q, a function of k, and kernels."""
    parts: dict[str, list[tuple[Atom, Fraction]]] = {"": [], "q": [], "k": [], "qk": []}
    for a, e in m:
        side = "".join(x for x in "qk" if x in vectors_of(a))
        if side == "qk" and not _is_kernel(a, e):
            return None
        if side == "" and a[0] not in ("prime", "pi", "exp", "rest"):
            return None
        parts[side].append((a, e))
    constant, u, v, mixed = (frozenset(parts[x]) for x in ("", "q", "k", "qk"))
    return constant, u, mirrored(v), mixed


def mirrored(m: Monomial) -> Monomial:
    """A monomial in k with q in place of k."""

    def leaf(a: Atom) -> Form | None:
        if a[0] in ("at", "any") and a[1] == "k":
            return atom(a[0], "q", a[2])
        if a[0] in ("sum", "ordered"):
            return atom(a[0], *(mirrored(part) for part in a[1:]))
        return None

    ((found, _),) = rebuilt(Form({m: Fraction(1)}), leaf, lambda _: "any").terms.items()
    return found


def _is_kernel(a: Atom, e: Fraction) -> bool:
    """Whether this power of an atom in q and k is a kernel."""
    if a == ("name", KERNEL) or (a[0] == "sum" and _is_mirrored(a[1])):
        return e.denominator == 1 and e > 0
    if a[0] == "exp":  # e^{c·M} with c > 0 and M a product of kernels
        return e > 0 and _is_product_of_kernels(a[1])
    return False


def _is_mirrored(m: Monomial) -> bool:
    """Whether a summed monomial is f(qᵢ)·f(kᵢ)."""
    sides: dict[str, list[Any]] = {"q": [], "k": []}
    for a, e in m:
        found = vectors_of(a)
        if len(found) != 1 or not found <= {"q", "k"}:
            return False
        sides[found.copy().pop()].append((a, e))
    return frozenset(sides["q"]) == mirrored(frozenset(sides["k"]))


def _is_product_of_kernels(m: Monomial) -> bool:
    parts = _split(m)
    if parts is None:
        return False
    _, u, v, _ = parts
    return u == v


def vectors_of(a: Atom) -> set[str]:
    """The vectors that occur in an atom."""
    if a == ("name", KERNEL):
        return {"q", "k"}
    if a[0] in ("at", "any"):
        return {a[1]}
    found = set[str]()
    for part in a[1:]:
        if isinstance(part, Form):
            found |= {x for y in part.atoms() for x in vectors_of(y)}
        elif isinstance(part, frozenset):
            found |= {x for y, _ in part for x in vectors_of(y)}
    return found


def _psd(table: dict[tuple[Monomial, Monomial], Fraction]) -> bool:
    keys = list(dict.fromkeys(x for pair in table for x in pair))
    if len(keys) > LARGEST_MATRIX:
        return all(u == v and c >= 0 for (u, v), c in table.items())
    zero = Fraction(0)
    return is_psd([[table.get((u, v), zero) for v in keys] for u in keys])


def is_psd(matrix: Sequence[Sequence[Fraction]]) -> bool:
    """Whether a matrix of fractions is symmetric and has no negative eigenvalue, exactly.

    That is so if every pivot of Gaussian elimination is ≥ 0, and the row of a zero pivot is 0."""
    rows = [list(row) for row in matrix]
    n = len(rows)
    if any(rows[i][j] != rows[j][i] for i in range(n) for j in range(i)):
        return False
    for i in range(n):
        pivot = rows[i][i]
        if pivot < 0:
            return False
        if pivot == 0:
            if any(rows[i][j] for j in range(i, n)):
                return False
            continue
        for j in range(i + 1, n):
            factor = rows[j][i] / pivot
            if factor:
                rows[j] = [x - factor * y for x, y in zip(rows[j], rows[i], strict=True)]
    return True


def _with_d(groups: Groups, least: int) -> bool:
    """The same test for diagonal coefficients that are polynomials in the number of coordinates."""
    polynomials: dict[tuple[Monomial, ...], dict[int, Fraction]] = {}
    for (mixed, constant), table in groups.items():
        exponent = dict(constant).get(REST, Fraction(0))
        if exponent.denominator != 1 or exponent < 0:
            return False
        power = int(exponent)
        others = frozenset(x for x in constant if x[0] != REST)
        for (u, v), c in table.items():
            if u != v:
                return False
            found = polynomials.setdefault((mixed, others, u), {})
            found[power] = found.get(power, Fraction(0)) + c
    return all(never_negative(p, least) for p in polynomials.values())


def never_negative(polynomial: dict[int, Fraction], least: int) -> bool:
    """Whether Σ cₑ·nᵉ ≥ 0 for every whole n ≥ least.

    It is evaluated up to Cauchy's bound on the roots; beyond it the leading term decides."""
    powers = {e: c for e, c in polynomial.items() if c}
    if not powers:
        return True
    top = max(powers)
    if powers[top] < 0:
        return False
    bound = 1 + max((abs(c / powers[top]) for e, c in powers.items() if e != top), default=ZERO)
    if bound > 10_000:
        return False
    return all(sum(c * n**e for e, c in powers.items()) >= 0 for n in range(least, int(bound) + 2))


ZERO = Fraction(0)
