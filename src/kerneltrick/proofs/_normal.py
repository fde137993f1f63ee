"""Normal forms of expressions, in one dimension or in all dimensions at once.

In all dimensions, a vector has some named coordinates, x[1] to x[L], and d − L others. The sum of a
product over the other coordinates becomes an atom, the power sum of that product: Σqᵢkᵢ, Σqᵢ², … If
the dimension exceeds the degree of an expression, power sums are independent of each other, and a
polynomial in d that is not 0 vanishes only at finitely many d. Therefore two expressions in sums
over coordinates are equal in all dimensions exactly if their forms are the same, where d is an atom
too. The sum over i < j of a product that is not symmetric becomes an atom of its own, Σ_{i<j} aᵢbⱼ
with a before b. The other order follows from it. These atoms are independent as well (Hoffman 2000,
Theorem 2.6: Lyndon words).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from kerneltrick.proofs._evaluate import satisfies
from kerneltrick.proofs._form import (
    UNIT,
    Atom,
    Form,
    Monomial,
    NotNormalError,
    absolute,
    atom,
    circular,
    exponential,
    inverse,
    labels,
    logarithm,
    number,
    order,
    power,
    rebuilt,
)
from kerneltrick.proofs._syntax import Node

BOUND = "*"  # the index of coordinates inside a power sum
REST: Atom = ("rest",)  # the number of coordinates without a name
LARGEST_BINOMIAL = 20
_HALF = Fraction(1, 2)
Index = Mapping[str, int | str]  # the place or the label that each index stands for


class Vector:
    """The coordinates at the named places, and at any other place."""

    def __init__(self, places: list[Form], rest: Form | None) -> None:
        self.places, self.rest = places, rest

    def each(self, function: Callable[[Form], Form]) -> Vector:
        rest = None if self.rest is None else function(self.rest)
        return Vector([function(x) for x in self.places], rest)

    def with_(self, other: Vector, function: Callable[[Form, Form], Form]) -> Vector:
        rest = None
        if self.rest is not None and other.rest is not None:
            rest = function(self.rest, other.rest)
        return Vector(
            [function(a, b) for a, b in zip(self.places, other.places, strict=True)], rest
        )


class Space:
    """The meaning of names: vectors of width d, and letters with known signs.

    If d is None, vectors have every width from `places` on."""

    def __init__(
        self,
        vectors: set[str],
        d: int | None,
        places: int,
        signs: Mapping[str, str] | None = None,
    ) -> None:
        self.d, self.places = d, places if d is None else d
        self.vectors = {name: self._vector(name) for name in sorted(vectors)}
        self.letters: dict[str, Form] = {}
        self.sums: dict[Atom, Form] = {}  # power sums that conditions give a value
        self.signs = dict(signs or {})
        self.positive: list[tuple[Form, bool]] = []  # forms that are ≥ 0, and whether they are > 0

    def known(self, a: Atom) -> str:
        if a[0] == "name":
            return self.signs.get(a[1], "any")
        if a == REST:
            return "non-negative" if self.places else "positive"
        if a[0] == "form":
            return self._by_conditions(a[1])
        if a[0] == "sum" and all(e.denominator == 1 and e % 2 == 0 for _, e in a[1]):
            return "non-negative"
        return "any"

    def _by_conditions(self, form: Form) -> str:
        """The sign of ±c·f + r, if a condition says that f ≥ 0, for numbers c, r ≥ 0."""
        found = "any"
        for fact, strict in self.positive:
            m = next((m for m in fact.terms if m), UNIT)
            if m not in form.terms or not fact.terms.get(m):
                continue
            c = form.terms[m] / fact.terms[m]
            left = (form - fact.times(c)).constant
            if (left is not None and (left >= 0) == (c > 0)) or left == 0:
                words = ("positive", "non-negative") if c > 0 else ("negative", "non-positive")
                if strict or left != 0:
                    return words[0]
                found = words[1]
        return found

    def power_sum(self, m: Monomial) -> Form:
        """The sum of a monomial over the unnamed places."""
        a = ("sum", m) if m != UNIT else REST
        return self.sums.get(a) or (Form({}) if a in self.sums else atom(*a))

    @property
    def width(self) -> Form:
        return number(self.places) if self.d is not None else number(self.places) + atom(*REST)

    def _vector(self, name: str) -> Vector:
        places = [atom("at", name, i) for i in range(self.places)]
        return Vector(places, None if self.d is not None else atom("any", name, BOUND))

    def letter(self, name: str) -> Form:
        if name == "d":
            return self.width
        if name in ("pi", "π"):
            return atom("pi")
        return self.letters.get(name) or (
            Form({}) if name in self.letters else atom("name", name)
        )  # the form of a letter that is 0 is empty


def normal(node: Node, space: Space, index: Index | None = None) -> Any:
    """The form of a number, or the Vector of a vector expression."""
    index = index or {}
    if node.kind == "number":
        assert isinstance(node.value, Fraction)
        return number(node.value)
    if node.kind == "name":
        name = str(node.value)
        return space.vectors[name] if name in space.vectors else space.letter(name)
    if node.kind == "index":
        return _coordinate(node, space, index)
    if node.kind == "neg":
        return _each(lambda x: -x, normal(node.parts[0], space, index))
    if node.kind == "sum":
        return _summed(node, space, index)
    if node.kind == "call":
        return _call(node, space, index)
    if node.value == "**":
        e = node.parts[1].value
        assert isinstance(e, Fraction)
        return _power(node.parts[0], e, space, index)
    left, right = (normal(part, space, index) for part in node.parts)
    return _operate(str(node.value), left, right, space)


def scalar(node: Node, space: Space, index: Index | None = None) -> Form:
    value = normal(node, space, index)
    if isinstance(value, Vector):
        raise NotNormalError("there is a vector in place of a number")
    assert isinstance(value, Form)
    return value


def total(indices: Node, space: Space, body: Callable[[Index], Form], outer: Index) -> Form:
    """The sum of `body` over the indices, over named places and all others."""
    words = [str(part.value) for part in indices.parts]
    between = str(indices.value).split("|") if indices.value else []
    choices: list[int | str] = list(range(space.places))
    if space.d is None:
        choices.append("rest")
    result = Form({})
    for chosen in itertools.product(choices, repeat=len(words)):
        pairs = list(zip(chosen, chosen[1:], between, strict=False))
        if not all(_allowed(a, b, sign) for a, b, sign in pairs):
            continue
        at: dict[str, int | str] = {
            w: f"{w}{len(outer)}" if c == "rest" else c for w, c in zip(words, chosen, strict=True)
        }
        free = [str(at[w]) for w, c in zip(words, chosen, strict=True) if c == "rest"]
        signs = [s if a == b == "rest" else "," for a, b, s in pairs]
        runs = _runs(chosen, signs)
        result += _over_rest(body({**outer, **at}), free, runs, space)
    return result


def dot(left: Vector, right: Vector, space: Space) -> Form:
    return _sum_vector(left.with_(right, lambda a, b: a * b), space)


def _allowed(a: int | str, b: int | str, sign: str) -> bool:
    """Whether two indices may take these values. Named places come before all others."""
    if sign not in ("<", "<=") or a == b == "rest":
        return True
    if a == "rest":
        return False
    return b == "rest" or satisfies(int(a), sign, int(b))


def _runs(chosen: tuple[int | str, ...], signs: list[str]) -> list[str]:
    """The signs between neighbouring indices that run over the unnamed places."""
    kept = list[str]()
    last = None
    for i, c in enumerate(chosen):
        if c != "rest":
            continue
        if last is not None:
            kept.append(signs[i - 1] if last == i - 1 else ",")
        last = i
    return kept


def _over_rest(form: Form, free: list[str], signs: list[str], space: Space) -> Form:
    """The sum over unnamed places of a form with these labels and the signs between them."""
    if not free:
        return form
    groups, start = list[tuple[list[str], str]](), 0
    for i in range(1, len(free) + 1):
        if i == len(free) or signs[i - 1] == ",":
            inside = set(signs[start : i - 1])
            if len(inside) > 1:
                raise NotNormalError("a sum has both < and <= between its indices")
            groups.append((free[start:i], inside.pop() if inside else ","))
            start = i
    for group, sign in reversed(groups):
        form = _over_group(form, group, sign, space)
    return form


def _over_group(form: Form, group: list[str], sign: str, space: Space) -> Form:
    if len(group) == 1:
        return _over(form, group[0], space)
    symmetric = all(
        relabelled(form, {a: b, b: a}, space) == form for a, b in itertools.pairwise(group)
    )
    if symmetric:
        return _over_symmetric(form, group, sign, space)
    if len(group) == 2:
        first, second = group
        strict = _over_ordered(form, first, second, space)
        if sign == "<":
            return strict
        return strict + _over(relabelled(form, {second: first}, space), first, space)
    raise NotNormalError("a sum over three ordered indices is not symmetric in them")


def _over_symmetric(form: Form, group: list[str], sign: str, space: Space) -> Form:
    """The sum of a symmetric form over i ≤ j ≤ …, by Burnside's lemma.

    It is the mean over all permutations of the sum over the tuples that the permutation fixes. For
    i < j < … odd permutations count −1."""
    result = Form({})
    for order_ in itertools.permutations(range(len(group))):
        cycles = _cycles(order_)
        merged = {group[i]: group[cycle[0]] for cycle in cycles for i in cycle}
        part = relabelled(form, merged, space)
        for cycle in cycles:
            part = _over(part, group[cycle[0]], space)
        odd = (len(group) - len(cycles)) % 2
        result += -part if sign == "<" and odd else part
    return result.times(Fraction(1, math.factorial(len(group))))


def _cycles(permutation: tuple[int, ...]) -> list[list[int]]:
    left, found = set(range(len(permutation))), list[list[int]]()
    while left:
        start = min(left)
        cycle = [start]
        while (after := permutation[cycle[-1]]) != start:
            cycle.append(after)
        left -= set(cycle)
        found.append(cycle)
    return found


def _over(form: Form, label: str, space: Space) -> Form:
    """The sum over the unnamed places of one index."""
    result = Form({})
    for m, c in form.terms.items():
        inside = frozenset((a, e) for a, e in m if label in labels(a))
        if any(labels(a) != {label} for a, _ in inside):
            raise NotNormalError("a function mixes two indices of a sum")
        outside = Form({m - inside: c})
        bound = relabelled(Form({inside: Fraction(1)}), {label: BOUND}, space)
        ((key, one),) = bound.terms.items()
        result += (outside * space.power_sum(key)).times(one)
    return result


def _over_ordered(form: Form, first: str, second: str, space: Space) -> Form:
    """The sum over unnamed i < j. Products aᵢbⱼ with a before b give atoms; others follow."""
    result = Form({})
    for m, c in form.terms.items():
        sides = []
        for label in (first, second):
            inside = frozenset((a, e) for a, e in m if label in labels(a))
            if any(labels(a) != {label} for a, _ in inside):
                raise NotNormalError("a function mixes two indices of a sum")
            m -= inside
            bound = relabelled(Form({inside: Fraction(1)}), {label: BOUND}, space)
            ((key, one),) = bound.terms.items()
            c *= one
            sides.append(key)
        a, b = sides
        outside = Form({m: c})
        if order(a) < order(b):
            result += outside * atom("ordered", a, b)
            continue
        both = space.power_sum(a) * space.power_sum(b) - _over_bound(a, b, space)
        part = both.times(_HALF) if a == b else both - atom("ordered", b, a)
        result += outside * part
    return result


def _over_bound(a: Any, b: Any, space: Space) -> Form:
    """The power sum of the product of two monomials."""
    product = Form({a: Fraction(1)}) * Form({b: Fraction(1)})
    found = Form({})
    for m, c in product.terms.items():
        found += space.power_sum(m).times(c)
    return found


def relabelled(form: Form, names: Mapping[str, str], space: Space) -> Form:
    def leaf(a: Atom) -> Form | None:
        return atom("any", a[1], names.get(a[2], a[2])) if a[0] == "any" else None

    return rebuilt(form, leaf, space.known)


def _coordinate(node: Node, space: Space, index: Index) -> Form:
    vector, at = space.vectors[str(node.value)], node.parts[0].value
    place = int(at) - 1 if isinstance(at, Fraction) else index.get(str(at))
    if place is None:
        raise NotNormalError(f"the index {at} is not summed over")
    if isinstance(place, int):
        if not 0 <= place < len(vector.places):
            raise NotNormalError(f"there is no coordinate {place + 1}")
        return vector.places[place]
    assert vector.rest is not None
    return relabelled(vector.rest, {BOUND: place}, space)


def _summed(node: Node, space: Space, index: Index) -> Form:
    indices, body = node.parts
    return total(indices, space, lambda at: scalar(body, space, at), index)


def _sum_vector(vector: Vector, space: Space) -> Form:
    result = Form({})
    for x in vector.places:
        result += x
    if vector.rest is not None:
        result += _over(relabelled(vector.rest, {BOUND: "0"}, space), "0", space)
    return result


def _call(node: Node, space: Space, index: Index) -> Any:
    name = str(node.value)
    if name == "sqrt":
        return _power(node.parts[0], _HALF, space, index)
    values = [normal(part, space, index) for part in node.parts]
    if name in ("dot", "norm", "norm2", "cosine", "sum"):
        return _of_vectors(name, values, space)
    if any(isinstance(x, Vector) for x in values):
        return _each(lambda x: _function(name, [x], space), values[0])
    return _function(name, values, space)


def _of_vectors(name: str, values: list[Any], space: Space) -> Form:
    if not all(isinstance(x, Vector) for x in values):
        raise NotNormalError(f"{name} needs vectors")
    if name == "sum":
        return _sum_vector(values[0], space)
    product = dot(values[0], values[-1], space)
    if name == "norm":
        return power(product, _HALF, space.known)
    if name == "cosine":
        norms = dot(values[0], values[0], space) * dot(values[1], values[1], space)
        return product * inverse(power(norms, _HALF, space.known))
    return product


def _function(name: str, values: list[Form], space: Space) -> Form:
    x, known = values[0], space.known
    if name == "exp":
        return exponential(x)
    if name == "log":
        return logarithm(x, known)
    if name in ("cos", "sin"):
        return circular(x)[name == "sin"]
    if name in ("cosh", "sinh", "tanh"):
        up, down = exponential(x), exponential(-x)
        sides = {"cosh": (up + down).times(_HALF), "sinh": (up - down).times(_HALF)}
        return sides[name] if name in sides else (up - down) * inverse(up + down)
    if name == "sigmoid":
        return inverse(number(1) + exponential(-x))
    if name == "abs":
        return absolute(x, known)
    if name == "relu":
        return (x + absolute(x, known)).times(_HALF)
    if name == "elu":  # x⁺ + e^{−(−x)⁺} − 1
        below = (absolute(x, known) - x).times(_HALF)
        return (x + absolute(x, known)).times(_HALF) + exponential(-below) - number(1)
    if name in ("max", "min"):
        gap = absolute(x - values[1], known)
        return (x + values[1] + (gap if name == "max" else -gap)).times(_HALF)
    return _counting(name, values)


def _counting(name: str, values: list[Form]) -> Form:
    constant = values[-1].constant
    whole = constant is not None and constant.denominator == 1
    if name == "factorial":
        if whole and constant is not None and 0 <= constant <= 1000:
            return number(math.factorial(int(constant)))
        return atom("factorial", values[0])
    if name != "C":
        raise NotNormalError(f"{name} has no normal form")
    if not whole or constant is None or constant > LARGEST_BINOMIAL:
        return atom("C", *values)
    if constant < 0:
        return Form({})
    result = number(1)
    for i in range(int(constant)):
        result = (result * (values[0] - number(i))).times(Fraction(1, i + 1))
    return result


def _power(base: Node, e: Fraction, space: Space, index: Index) -> Any:
    whole = base.parts[1].value if base.kind == "op" and base.value == "**" else None
    even = isinstance(whole, Fraction) and whole.denominator == 1 and whole % 2 == 0
    if e.denominator != 1 and isinstance(whole, Fraction) and even:  # √(x²) = |x|, also for a sum
        inner = normal(base.parts[0], space, index)
        return _each(lambda x: power(absolute(x, space.known), whole * e, space.known), inner)
    return _each(lambda x: power(x, e, space.known), normal(base, space, index))


def _operate(sign: str, left: Any, right: Any, space: Space) -> Any:
    functions: dict[str, Callable[[Form, Form], Form]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "·": lambda a, b: a * b,
        "/": lambda a, b: a * inverse(b),
    }
    function = functions[sign]
    if isinstance(left, Vector) and isinstance(right, Vector):
        return dot(left, right, space) if sign == "·" else left.with_(right, function)
    if isinstance(left, Vector):
        return left.each(lambda a: function(a, right))
    return (
        right.each(lambda b: function(left, b))
        if isinstance(right, Vector)
        else function(left, right)
    )


def _each(function: Callable[[Form], Form], value: Any) -> Any:
    return value.each(function) if isinstance(value, Vector) else function(value)
