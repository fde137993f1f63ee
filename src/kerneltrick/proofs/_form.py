"""Normal forms: sums of products of atoms with rational coefficients.

Definite verdicts rest on two small modules, this one and `_number`. Two expressions are called
equal only if their normal forms are the same. An atom is a letter, a coordinate, a root of a prime,
a function of a form, or a sum over all coordinates. The rules below hold for all real numbers for
which the expressions are defined. Expressions with different forms may still be equal; this module
does not decide that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from kerneltrick.proofs._sympy import sympy

Atom = tuple[Any, ...]
Monomial = frozenset[tuple[Atom, Fraction]]
# The sign of an atom or of ("form", form): "positive", "non-negative", "non-positive", "negative",
# or "any".
Known = Callable[[Atom], str]

UNIT: Monomial = frozenset()
MOST_TERMS = 20_000
LARGEST_ANGLE = 12  # multiples of an angle that are expanded
LARGEST_FACTORED = 10**18
_ONE, _HALF = Fraction(1), Fraction(1, 2)
_PI: Monomial = frozenset([(("pi",), _ONE)])
# cos²(π/n) for the angles whose cosine and sine are square roots
_TURNS = {n: Fraction(x, 4) for n, x in ((1, 4), (2, 0), (3, 1), (4, 2), (6, 3))}
_ALWAYS = {"exp": "positive", "pi": "positive", "prime": "positive", "abs": "non-negative"}


class NotNormalError(ValueError):
    """An expression has no normal form here: it is too large, or its sums do not separate."""


class Form:
    """Σ c·∏ atomᵉ."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        if len(self.terms) > MOST_TERMS:
            raise NotNormalError(f"it has more than {MOST_TERMS} terms")
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __add__(self, other: Form) -> Form:
        total = dict(self.terms)
        for m, c in other.terms.items():
            total[m] = total.get(m, Fraction(0)) + c
        return Form(total)

    def __neg__(self) -> Form:
        return Form({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Form) -> Form:
        return self + -other

    def __mul__(self, other: Form) -> Form:
        if len(self.terms) * len(other.terms) > 20 * MOST_TERMS:
            raise NotNormalError(f"it has more than {MOST_TERMS} terms")
        total: dict[Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                _add_product(total, left, right, a * b)
        return Form(total)

    def times(self, c: Fraction) -> Form:
        return Form({m: c * x for m, x in self.terms.items()})

    @property
    def constant(self) -> Fraction | None:
        """The value, if the form is a rational number."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(UNIT) if len(self.terms) == 1 else None

    def atoms(self) -> set[Atom]:
        return {atom for m in self.terms for atom, _ in m}


def number(x: Fraction | int) -> Form:
    return Form({UNIT: Fraction(x)})


def atom(*parts: Any) -> Form:
    return Form({frozenset([(parts, _ONE)]): _ONE})


def _add_product(
    total: dict[Monomial, Fraction], left: Monomial, right: Monomial, c: Fraction
) -> None:
    powers = dict(left)
    special = False
    for a, e in right:
        powers[a] = powers.get(a, Fraction(0)) + e
        special |= a in powers and a[0] in ("prime", "abs", "sin", "power")
    if not special:
        key = frozenset((a, e) for a, e in powers.items() if e)
        total[key] = total.get(key, Fraction(0)) + c
        return
    for m, x in _reduced(powers).terms.items():
        total[m] = total.get(m, Fraction(0)) + c * x


def _reduced(powers: dict[Atom, Fraction]) -> Form:
    """∏ atomᵉ, with whole powers of roots, |x|², sin² and powers of sums multiplied out."""
    c, plain, further = _ONE, dict[Atom, Fraction](), list[Form]()
    for a, e in powers.items():
        if a[0] == "prime":
            whole = e.numerator // e.denominator
            c *= Fraction(a[1]) ** whole
            e -= whole
        elif a[0] == "abs":
            pairs = (e / 2).numerator // (e / 2).denominator
            if pairs > 0:
                further.append(power(a[1], Fraction(2 * pairs)))
            elif pairs < 0:
                further.append(_inverse_power(a[1], Fraction(-2 * pairs)))
            e -= 2 * pairs
        elif a[0] == "sin" and e >= 2:
            pairs = int(e) // 2
            cosine = atom("cos", *a[1:])
            further.append(power(number(1) - cosine * cosine, Fraction(pairs)))
            e -= 2 * pairs
        elif a[0] == "power" and e >= 1:
            whole = e.numerator // e.denominator
            further.append(power(a[1], Fraction(whole)))
            e -= whole
        if e:
            plain[a] = e
    result = Form({frozenset(plain.items()): c})
    for form in further:
        result = result * form
    return result


def _inverse_power(form: Form, e: Fraction) -> Form:
    return power(inverse(form), e)


def inverse(form: Form) -> Form:
    """1/form, where the form is not 0."""
    if not form:
        raise ZeroDivisionError
    if len(form.terms) == 1:
        ((m, c),) = form.terms.items()
        return _reduced({a: -e for a, e in m}).times(1 / c)
    content, primitive = _primitive(form, signed=True)
    return Form({frozenset([(("power", primitive), -_ONE)]): 1 / content})


def power(form: Form, e: Fraction, known: Known = lambda _: "any") -> Form:
    """formᵉ, where it is defined. Roots are taken of numbers ≥ 0."""
    if e.denominator == 1:
        if e < 0:
            return power(inverse(form), -e)
        result, factor, left = number(1), form, int(e)
        while left:
            if left & 1:
                result = result * factor
            left >>= 1
            if left:
                factor = factor * factor
        return result
    if not form:
        return number(0)
    whole = e.numerator // e.denominator
    if whole:
        return power(form, Fraction(whole)) * power(form, e - whole, known)
    if len(form.terms) == 1:
        return _monomial_root(form, e, known)
    content, primitive = _primitive(form, signed=False)
    return _number_power(content, e) * Form({frozenset([(("power", primitive), e)]): _ONE})


def _monomial_root(form: Form, e: Fraction, known: Known) -> Form:
    """(c·∏ atomᵖ)ᵉ. Positive factors leave the root, and all do if none can be negative."""
    ((m, c),) = form.terms.items()
    if c < 0:
        return Form({frozenset([(("power", form), e)]): _ONE})
    result, kept = _number_power(c, e), dict[Atom, Fraction]()
    loose = dict[Atom, Fraction]()
    for a, p in m:
        sign = sign_of(a, known)
        if sign == "positive":
            result = result * Form({frozenset([(a, p * e)]): _ONE})
        elif sign == "non-negative" or (p.denominator == 1 and p % 2 == 0):
            loose[a] = p
        else:
            kept[a] = p
    if kept:
        inner = _reduced({**kept, **loose})
        if inner.terms == {frozenset([(next(iter(kept)), _ONE)]): _ONE}:
            return result * Form({frozenset([(next(iter(kept)), e)]): _ONE})
        return result * Form({frozenset([(("power", inner), e)]): _ONE})
    for a, p in loose.items():
        if sign_of(a, known) == "non-negative":
            result = result * _reduced({a: p * e})
        else:
            result = result * _reduced({("abs", Form({frozenset([(a, _ONE)]): _ONE})): p * e})
    return result


def _number_power(c: Fraction, e: Fraction) -> Form:
    if not c:
        return Form({})
    if max(c.numerator, c.denominator) > LARGEST_FACTORED:
        raise NotNormalError("its numbers are too large for roots")
    powers: dict[Atom, Fraction] = {}
    for part, sign in ((c.numerator, 1), (c.denominator, -1)):
        for p, n in sympy.factorint(part).items():
            powers["prime", int(p)] = powers.get(("prime", int(p)), Fraction(0)) + sign * n * e
    return _reduced(powers)


def _primitive(form: Form, *, signed: bool) -> tuple[Fraction, Form]:
    """c and form/c, with c > 0, or with the sign of the first term if `signed`."""
    first = min(form.terms, key=_text)
    c = abs(form.terms[first])
    if signed and form.terms[first] < 0:
        c = -c
    return c, form.times(1 / c)


def absolute(form: Form, known: Known) -> Form:
    sign = form_sign(form, known)
    if sign in ("positive", "non-negative"):
        return form
    if sign in ("negative", "non-positive"):
        return -form
    if len(form.terms) == 1:
        ((m, c),) = form.terms.items()
        result = number(abs(c))
        for a, e in m:
            inner = Form({frozenset([(a, _ONE)]): _ONE})
            kept = sign_of(a, known) in ("positive", "non-negative") or e.denominator != 1
            result = result * _reduced({a if kept else ("abs", inner): e})
        return result
    content, primitive = _primitive(form, signed=True)
    return atom("abs", primitive).times(abs(content))


def exponential(form: Form) -> Form:
    result = number(1)
    for m, c in form.terms.items():
        if len(m) == 1:
            ((a, e),) = m
            if a[0] == "log" and e == 1 and (c.denominator == 1 or len(a[1].terms) == 1):
                result = result * power(a[1], c)
                continue
        result = result * Form({frozenset([(("exp", m), c)]): _ONE})
    return result


def logarithm(form: Form, known: Known) -> Form:
    if len(form.terms) == 1:
        ((m, c),) = form.terms.items()
        if c > 0 and all(sign_of(a, known) == "positive" for a, _ in m):
            total = Form({})
            if c != 1:
                if max(c.numerator, c.denominator) > LARGEST_FACTORED:
                    raise NotNormalError("its numbers are too large for logarithms")
                for part, sign in ((c.numerator, 1), (c.denominator, -1)):
                    for p, n in sympy.factorint(part).items():
                        total += atom("log", number(int(p))).times(Fraction(sign * n))
            for a, e in m:
                inner = Form({a[1]: _ONE}) if a[0] == "exp" else None
                if a[0] == "prime":
                    inner = atom("log", number(a[1]))
                total += (inner or atom("log", Form({frozenset([(a, _ONE)]): _ONE}))).times(e)
            return total
    return atom("log", form)


def circular(form: Form) -> tuple[Form, Form]:
    """cos and sin of a form, by the addition theorems."""
    cosine, sine = number(1), Form({})
    for m, c in form.terms.items():
        turn = _TURNS.get(c.denominator) if m == _PI else None
        if turn is not None:
            c %= 2
        if abs(c.numerator) > LARGEST_ANGLE:
            raise NotNormalError("an angle has too large a factor")
        base = (atom("cos", m, c.denominator), atom("sin", m, c.denominator))
        if turn is not None:
            base = (_number_power(turn, _HALF), _number_power(1 - turn, _HALF))
            base = (-base[0] if c.denominator == 1 else base[0], base[1])
        if c < 0:
            base = base[0], -base[1]
        for _ in range(abs(c.numerator)):
            cosine, sine = (
                cosine * base[0] - sine * base[1],
                sine * base[0] + cosine * base[1],
            )
    return cosine, sine


def cleared(form: Form) -> Form:
    """The form times its denominators. Where the form is defined, one is 0 if the other is."""
    for _ in range(20):
        lowest: dict[Atom, Fraction] = {}
        for m in form.terms:
            for a, e in m:
                if e < 0 and a[0] != "exp":
                    lowest[a] = min(lowest.get(a, Fraction(0)), e)
        if not lowest:
            return form
        a, e = min(lowest.items(), key=lambda item: (_depth(item[0]), _text(item[0])))
        form = form * Form({frozenset([(a, Fraction(-(e.numerator // e.denominator)))]): _ONE})
    raise NotNormalError("its fractions are nested too deeply")


def _depth(a: Atom) -> int:
    """The order in which nested fractions are cleared: from the outside."""
    return -len(_text(a)) if a[0] == "power" else 1


def sign_of(a: Atom, known: Known) -> str:
    return _ALWAYS.get(a[0]) or known(a)


def form_sign(form: Form, known: Known) -> str:
    """The sign of a form, if all its terms have that sign or a condition says so."""
    signs = [_term_sign(m, c, known) for m, c in form.terms.items()]
    if not signs:
        return "non-negative"
    found = functools.reduce(sum_sign, signs)
    found = _by_absolute_values(form, known) if found == "any" else found
    return known(("form", form)) if found == "any" else found


def _by_absolute_values(form: Form, known: Known) -> str:
    """The sign of c·|A| + r·A + …: with |r| ≤ |c| the first two have that of c, as |A| ≥ ±A."""
    signs = []
    for m in form.terms:
        sizes = [a for a, e in m if a[0] == "abs" and e == 1]
        c = form.terms.get(m)
        if not sizes or c is None or _term_sign(m, c, known) == "any":
            continue
        inner = Form({m - {(a, _ONE) for a in sizes}: _ONE})
        for a in sizes:
            inner = inner * a[1]
        first, weight = next(iter(inner.terms.items()), (m, c))
        r = form.terms.get(first, Fraction(0)) / weight
        if r and first != m and abs(r) <= abs(c):
            form = form - Form({m: c}) - inner.times(r)
            signs.append("non-negative" if c > 0 else "non-positive")
    if not signs:
        return "any"
    signs += [_term_sign(m, c, known) for m, c in form.terms.items()]
    return functools.reduce(sum_sign, signs)


def sum_sign(a: str, b: str) -> str:
    """The sign of a sum of numbers with these signs."""
    for strict, weak in (("positive", "non-negative"), ("negative", "non-positive")):
        if {a, b} <= {strict, weak}:
            return strict if strict in (a, b) else weak
    return "any"


def product_sign(a: str, b: str) -> str:
    """The sign of a product of numbers with these signs."""
    if "any" in (a, b):
        return "any"
    weak = not {a, b} <= {"positive", "negative"}
    below = (a in ("negative", "non-positive")) != (b in ("negative", "non-positive"))
    if weak:
        return "non-positive" if below else "non-negative"
    return "negative" if below else "positive"


FLIPPED_SIGN = {
    "positive": "negative",
    "negative": "positive",
    "non-negative": "non-positive",
    "non-positive": "non-negative",
    "any": "any",
}


def _term_sign(m: Monomial, c: Fraction, known: Known) -> str:
    sign = "positive"
    for a, e in m:
        one = sign_of(a, known)
        even = e.denominator == 1 and e % 2 == 0
        if even or (e.denominator % 2 == 0 and e > 0):
            one = "positive" if even and one in ("positive", "negative") else "non-negative"
        if e < 0:  # it cannot be 0 where the quotient is defined
            one = {"non-negative": "positive", "non-positive": "negative"}.get(one, one)
        sign = product_sign(sign, one)
    return sign if c > 0 else FLIPPED_SIGN[sign]


def rebuilt(form: Form, leaf: Callable[[Atom], Form | None], known: Known) -> Form:
    """The form with some atoms replaced by other forms, also inside functions."""
    total = Form({})
    for m, c in form.terms.items():
        term = number(c)
        for a, e in m:
            term = term * power(_rebuilt_atom(a, leaf, known), e, known)
        total += term
    return total


def _rebuilt_atom(a: Atom, leaf: Callable[[Atom], Form | None], known: Known) -> Form:
    found = leaf(a)
    if found is not None:
        return found
    kind = a[0]
    if kind in ("abs", "power", "log", "factorial"):
        inner = rebuilt(a[1], leaf, known)
        if inner == a[1]:
            return atom(*a)
        if kind == "abs":
            return absolute(inner, known)
        if kind == "power":
            return inner
        return logarithm(inner, known) if kind == "log" else atom("factorial", inner)
    if kind in ("exp", "cos", "sin"):
        inner = rebuilt(Form({a[1]: _ONE}), leaf, known)
        if inner.terms == {a[1]: _ONE}:
            return atom(*a)
        if kind == "exp":
            return exponential(inner)
        cosine, sine = circular(inner.times(Fraction(1, a[2])))
        return cosine if kind == "cos" else sine
    if kind == "C":
        return atom("C", *(rebuilt(x, leaf, known) for x in a[1:]))
    return atom(*a)


def labels(a: Atom) -> frozenset[str]:
    """The indices inside an atom that no sum has bound yet."""
    kind = a[0]
    if kind == "any":
        return frozenset([a[2]])
    if kind in ("abs", "power", "log", "factorial", "C"):
        return _union(labels(x) for form in a[1:] for x in form.atoms())
    if kind in ("exp", "cos", "sin"):
        return _union(labels(x) for x, _ in a[1])
    return frozenset()


def _union(parts: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*parts)


_TEXTS: dict[Any, str] = {}


def _text(x: Any) -> str:
    """A text that orders atoms, monomials and forms in the same way in every run."""
    if isinstance(x, Form):
        return "+".join(sorted(f"{c}*{_text(m)}" for m, c in x.terms.items()))
    if isinstance(x, frozenset):
        return "·".join(sorted(f"{_text(a)}^{e}" for a, e in x))
    if isinstance(x, tuple):
        if x not in _TEXTS:
            if len(_TEXTS) > 100_000:
                _TEXTS.clear()
            _TEXTS[x] = "(" + " ".join(map(_text, x)) + ")"
        return _TEXTS[x]
    return str(x)


order = _text
