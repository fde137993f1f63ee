"""Evaluate expressions: exactly, with sympy, or with NumPy arrays."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from kerneltrick import _text, maps
from kerneltrick.proofs._sympy import sympy
from kerneltrick.proofs._syntax import ClaimError, Node

Vector = list[Any]
LARGEST_FACTORIAL = 1000
VECTORS = ("q", "k", "x", "y", "w")  # names that are vectors by default


def _elu_sympy(x: Any) -> Any:
    return sympy.Piecewise((x, x > 0), (sympy.exp(x) - 1, True))


def _small(x: Any) -> Any:
    if x.is_number and abs(x) > LARGEST_FACTORIAL:
        raise ValueError(f"factorials and binomials need numbers up to {LARGEST_FACTORIAL}")
    return x


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


EXACT: Mapping[str, Callable[..., Any]] = {
    "sqrt": sympy.sqrt,
    "exp": sympy.exp,
    "log": sympy.log,
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tanh": sympy.tanh,
    "cosh": sympy.cosh,
    "sinh": sympy.sinh,
    "abs": sympy.Abs,
    "relu": lambda x: sympy.Max(0, x),
    "elu": _elu_sympy,
    "sigmoid": lambda x: 1 / (1 + sympy.exp(-x)),
    "max": sympy.Max,
    "min": sympy.Min,
    "C": lambda n, k: sympy.binomial(_small(n), _small(k)),
    "factorial": lambda n: sympy.factorial(_small(n)),
    "pi": lambda: sympy.pi,
}
FLOATS: Mapping[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "cosh": np.cosh,
    "sinh": np.sinh,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(np.asarray(x) > 0, x, np.expm1(np.minimum(x, 0))),
    "sigmoid": _sigmoid,
    "max": np.maximum,
    "min": np.minimum,
    "pi": lambda: np.pi,
}
_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "·": operator.mul,
    "/": operator.truediv,
}
_ON_VECTORS = ("dot", "norm", "norm2", "sum", "cosine")
_ARGUMENTS = {"max": 2, "min": 2, "C": 2, "dot": 2, "cosine": 2}


class Scope:
    """The values of names, and the arithmetic in which an expression is evaluated."""

    def __init__(
        self,
        text: str,
        vectors: Mapping[str, Vector],
        scalar: Callable[[str], Any],
        functions: Mapping[str, Callable[..., Any]] = EXACT,
        number: Callable[[Fraction], Any] | None = None,
        power: Callable[[Any, Fraction], Any] | None = None,
        d: int = 0,
    ) -> None:
        self.text, self.vectors, self.scalar, self.functions = text, vectors, scalar, functions
        self.number = number or _rational
        self.power = power or (lambda x, p: x ** self.number(p))
        self.d = d  # the range of indices if there is no vector

    @property
    def length(self) -> int:
        return max((len(x) for x in self.vectors.values()), default=self.d)

    def error(self, node: Node, problem: str) -> ClaimError:
        return ClaimError(self.text, node.at, problem)


def float_scope(text: str, vectors: Mapping[str, Vector], letter: Callable[[str], Any]) -> Scope:
    """A scope that computes with NumPy's floats.

    They become infinite or NaN where Python's own floats raise: 1/0, 10.0**400.
    """
    return Scope(text, vectors, lambda name: _as_float(letter(name)), FLOATS, _as_float)


def _as_float(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x
    try:
        return np.float64(x)
    except OverflowError:  # a whole number or a fraction beyond the largest float
        return np.float64(np.inf if x > 0 else -np.inf)


def evaluate(node: Node, scope: Scope, index: Mapping[str, int] | None = None) -> Any:
    """The value of an expression: a scalar, or a list for a vector."""
    index = index or {}
    if node.kind == "number":
        assert isinstance(node.value, Fraction)
        return scope.number(node.value)
    if node.kind == "name":
        return _name(node, scope, index)
    if node.kind == "index":
        return _coordinate(node, scope, index)
    if node.kind == "neg":
        return _each(lambda x: -x, evaluate(node.parts[0], scope, index))
    if node.kind == "sum":
        return _sum(node, scope, index)
    if node.kind == "call":
        return _call(node, scope, [evaluate(part, scope, index) for part in node.parts])
    if node.value == "**":
        power = node.parts[1].value
        assert isinstance(power, Fraction)
        return _each(lambda x: scope.power(x, power), evaluate(node.parts[0], scope, index))
    left, right = (evaluate(part, scope, index) for part in node.parts)
    return _operate(node, scope, left, right)


def scalar_value(node: Node, scope: Scope, index: Mapping[str, int] | None = None) -> Any:
    """The value of an expression that must not be a vector."""
    value = evaluate(node, scope, index)
    if isinstance(value, list):
        raise scope.error(node, "expected a number here, but this is a vector; write q·k or x[i]")
    return value


def feature_list(node: Node, scope: Scope) -> list[Any]:
    """The features of [ … ]. Vectors are flattened, and `for` is expanded."""
    found = []
    for item in node.parts:
        if item.kind == "for":
            _read_body(item, scope, {})
            values = [
                scalar_value(item.parts[1], scope, at)
                for at in index_tuples(item.parts[0], scope.length, {})
            ]
        else:
            value = evaluate(item, scope)
            values = value if isinstance(value, list) else [value]
        found += values
    return found


def _read_body(node: Node, scope: Scope, index: Mapping[str, int]) -> None:
    """Refuse a body of a sum or `for` that cannot be read, even if its indices have no values."""
    if scope.functions is EXACT or scope.functions is FLOATS or not scope.length:
        return  # used only to show what was read before
    indices, body = node.parts
    if next(index_tuples(indices, scope.length, index), None) is None:
        at = {**index, **{str(part.value): 0 for part in indices.parts}}
        with contextlib.suppress(ArithmeticError):
            scalar_value(body, scope, at)


def index_tuples(node: Node, d: int, outer: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The values of the indices of a sum over i<j, i<=j or i, j."""
    words = [str(part.value) for part in node.parts]
    between = str(node.value).split("|") if node.value else []
    for values in itertools.product(range(d), repeat=len(words)):
        pairs = zip(values, values[1:], between, strict=False)
        if all(satisfies(a, s, b) for a, b, s in pairs):
            yield {**outer, **dict(zip(words, values, strict=True))}


def satisfies(a: int, sign: str, b: int) -> bool:
    """Whether two indices satisfy the sign between them. A comma allows all pairs."""
    return a < b if sign == "<" else a <= b if sign == "<=" else True


def vector_names(node: Node) -> set[str]:
    """The names of vectors: the usual letters, and all names with an index."""
    found = {str(node.value)} if node.kind == "index" else set[str]()
    if node.kind == "name" and node.value in VECTORS:
        found = {str(node.value)}
    if node.kind == "call" and node.value == "dot":
        found |= {str(part.value) for part in node.parts if part.kind == "name"}
    parts = () if node.kind == "indices" else node.parts
    return found.union(*(vector_names(part) for part in parts))


def _rational(x: Fraction) -> Any:
    return sympy.Rational(x.numerator, x.denominator)


def _name(node: Node, scope: Scope, index: Mapping[str, int]) -> Any:
    name = str(node.value)
    if name in index:
        raise scope.error(node, f"the index {name} can be used only inside [ ]")
    if name in scope.vectors:
        return scope.vectors[name]
    if name in ("pi", "π") and "pi" in scope.functions:
        return scope.functions["pi"]()
    if len(name) > 1 and (name in scope.functions or name in _ON_VECTORS):
        raise scope.error(node, f"{name} is a function: write {name}(…)")
    if name in maps.names():
        raise scope.error(node, f"{name} is a feature map and cannot be part of an expression")
    return scope.scalar(name)


def _coordinate(node: Node, scope: Scope, index: Mapping[str, int]) -> Any:
    name, at = str(node.value), node.parts[0]
    if name not in scope.vectors:
        raise scope.error(node, f"{name} is not a vector here")
    vector = scope.vectors[name]
    if isinstance(at.value, Fraction):
        if not 1 <= at.value <= len(vector):
            raise scope.error(
                at, f"{name} has {len(vector)} coordinates, {name}[1] to {name}[{len(vector)}]"
            )
        return vector[int(at.value) - 1]
    if at.value not in index:
        raise scope.error(at, f"the index {at.value} has no sum")
    return vector[index[at.value]]


def _sum(node: Node, scope: Scope, index: Mapping[str, int]) -> Any:
    total = scope.number(Fraction(0))
    _read_body(node, scope, index)
    for at in index_tuples(node.parts[0], scope.length, index):
        total = total + scalar_value(node.parts[1], scope, at)
    return total


def _call(node: Node, scope: Scope, values: list[Any]) -> Any:
    name = str(node.value)
    known = [x for x in scope.functions if x != "pi"]
    known += _ON_VECTORS if scope.vectors else ()
    if name not in known:
        raise scope.error(node, f"unknown function {name!r}; {_text.nearest(name, known)}")
    count = _ARGUMENTS.get(name, 1)
    if len(values) != count:
        raise scope.error(node, f"{name} takes {count} argument{'s' * (count > 1)}")
    if name not in _ON_VECTORS:
        function = scope.functions[name]
        if len(values) > 1 and any(isinstance(x, list) for x in values):
            raise scope.error(node, f"{name} takes numbers, not vectors")
        return function(*values) if len(values) > 1 else _each(function, values[0])
    if not all(isinstance(x, list) for x in values):
        raise scope.error(node, f"{name} takes vectors such as q, k or x")
    if name == "sum":
        return sum(values[0], scope.number(Fraction(0)))
    if name == "cosine":
        q, k = values
        return _dot(q, k) / (scope.functions["sqrt"](_dot(q, q) * _dot(k, k)))
    product = _dot(values[0], values[-1])
    return scope.functions["sqrt"](product) if name == "norm" else product


def _operate(node: Node, scope: Scope, left: Any, right: Any) -> Any:
    sign, vectors = node.value, (isinstance(left, list), isinstance(right, list))
    if sign == "·" and all(vectors):
        return _dot(left, right)
    if sign == "/" and vectors[1]:
        raise scope.error(node, "cannot divide by a vector")
    if sign == "*" and all(vectors):
        raise scope.error(
            node, "vectors cannot be multiplied by *: write q·k, or q[i]*k[i] in a sum"
        )
    function = _OPERATIONS[str(sign)]
    if sign == "/" and scope.functions is EXACT and right == 0:
        raise scope.error(node, "division by zero")
    if all(vectors):
        return [function(a, b) for a, b in zip(left, right, strict=True)]
    if vectors[0]:
        return [function(a, right) for a in left]
    return [function(left, b) for b in right] if vectors[1] else function(left, right)


def _dot(left: Vector, right: Vector) -> Any:
    return sum((a * b for a, b in zip(left[1:], right[1:], strict=True)), left[0] * right[0])


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    return [function(x) for x in value] if isinstance(value, list) else function(value)
