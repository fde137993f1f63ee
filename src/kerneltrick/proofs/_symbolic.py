"""Feature maps and kernels, as expressions in symbols or as functions of numbers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick.proofs._evaluate import EXACT, Scope, feature_list, float_scope, scalar_value
from kerneltrick.proofs._number import EXACTLY, Number
from kerneltrick.proofs._sympy import Expr, exact, real, sympy, vector
from kerneltrick.proofs._syntax import (
    ClaimError,
    Node,
    largest_index,
    names,
    place,
    read_expression,
    read_features,
)

Floats = np.ndarray[Any, np.dtype[np.float64]]
PhiLike = str | maps.FeatureMap | Callable[..., Any]
KernelLike = str | maps.FeatureMap | Callable[..., Any]


class NotSymbolicError(ValueError):
    """A function cannot be run on symbols: it compares values or needs floats."""


class Traced:
    """A symbol that NumPy's functions on object arrays can work with."""

    __slots__ = ("value",)

    def __init__(self, value: Expr) -> None:
        self.value = value

    def __add__(self, other: Any) -> Traced:
        return Traced(self.value + _untraced(other))

    def __sub__(self, other: Any) -> Traced:
        return Traced(self.value - _untraced(other))

    def __rsub__(self, other: Any) -> Traced:
        return Traced(_untraced(other) - self.value)

    def __mul__(self, other: Any) -> Traced:
        return Traced(self.value * _untraced(other))

    def __truediv__(self, other: Any) -> Traced:
        return Traced(self.value / _untraced(other))

    def __rtruediv__(self, other: Any) -> Traced:
        return Traced(_untraced(other) / self.value)

    def __pow__(self, power: Any) -> Traced:
        return Traced(self.value ** _untraced(power))

    def __rpow__(self, base: Any) -> Traced:
        return Traced(_untraced(base) ** self.value)

    def __neg__(self) -> Traced:
        return Traced(-self.value)

    def __pos__(self) -> Traced:
        return self

    def __abs__(self) -> Traced:
        return Traced(sympy.Abs(self.value))

    __radd__ = __add__
    __rmul__ = __mul__

    def __getattr__(self, name: str) -> Any:
        """np.exp and similar functions call the method of that name on each element."""
        if name in EXACT and name not in ("C", "max", "min", "relu", "elu", "abs"):
            return lambda: Traced(EXACT[name](self.value))
        if name == "conjugate":
            return lambda: self
        raise AttributeError(name)

    def _compare(self, other: object) -> bool:
        raise NotSymbolicError("the function compares its inputs")

    __lt__ = __le__ = __gt__ = __ge__ = _compare


def _untraced(x: Any) -> Expr:
    if isinstance(x, Traced):
        return x.value
    if isinstance(x, np.ndarray):  # 0-d: NumPy handles the others
        x = x.item()
    if isinstance(x, bool | np.bool_ | int | np.integer):
        return sympy.Integer(int(x))
    if isinstance(x, float | np.floating):
        return exact(float(x))
    return sympy.sympify(x, strict=True)


class Phi:
    """φ as expressions in x₁ … x_d, or as numbers."""

    def __init__(self, phi: PhiLike) -> None:
        self.node: Node | None = None
        self.map: maps.FeatureMap | None = None
        self.function: Callable[..., Any] | None = None
        self.text = _label(phi, "φ")
        if isinstance(phi, str) and phi.lstrip().startswith("["):
            self.node = read_features(phi)
            _check_features(phi, self.node)
        elif isinstance(phi, str | maps.FeatureMap):
            self.map = maps.get(phi)
            self.function = self.map.phi
        elif callable(phi):
            self.function = phi
        else:
            raise TypeError(
                "a feature map is a text such as '[1, √2*x]' or 'elu', a FeatureMap or a function, "
                f"not {type(phi).__name__}"
            )

    @property
    def parameters(self) -> set[str]:
        return set[str]() if self.node is None else names(self.node) - {"x", "d", "pi", "π"}

    @property
    def random(self) -> bool:
        """Whether φ is drawn at random from a seed."""
        if self.map is not None:
            return isinstance(self.map, maps.Favor)
        return self.function is not None and _takes(self.function, "seed")

    def symbolic(self, xs: list[Expr]) -> list[Expr]:
        """The features at x. Raises NotSymbolicError if φ works only on numbers."""
        if self.node is not None:
            return feature_list(self.node, Scope(self.text, {"x": xs}, letters_as_symbols(len(xs))))
        assert self.function is not None
        traced = np.array([Traced(x) for x in xs], dtype=object)
        try:
            values = _rows(self.function, traced[None, :])
        except NotSymbolicError:
            raise
        except Exception as error:
            raise NotSymbolicError(f"φ does not run on symbols ({error})") from None
        return [_untraced(x) for x in values[0].tolist()]

    def numeric(self, x: Floats) -> Floats:
        """The features of rows x (n, d), as (n, m)."""
        if self.node is not None:
            scope = float_scope(self.text, {"x": list(x.T)}, _numbers(x.shape[1]))
            with np.errstate(all="ignore"):
                columns = [np.broadcast_to(f, len(x)) for f in feature_list(self.node, scope)]
            return np.stack(columns, axis=1).astype(np.float64)
        assert self.function is not None
        return np.asarray(_rows(self.function, x), dtype=np.float64)


def _check_features(text: str, node: Node) -> None:
    """Refuse features that cannot be read, or that are not functions of x."""
    for name in sorted(names(node) & {"q", "k", "y", "w"}):
        raise ClaimError(text, place(node, name), f"features are functions of x, not of {name}")
    least = largest_index(node)
    with contextlib.suppress(ArithmeticError):
        feature_list(node, with_ones(text, {"x": [Number(1)] * least}, least))


def with_ones(text: str, vectors: dict[str, list[Number]], d: int) -> Scope:
    """A scope in which every letter is 1, to check that an expression can be read."""
    return Scope(text, vectors, lambda _: Number(1), EXACTLY, Number, lambda x, p: x**p, d)


class Kernel:
    """k(q, k) as an expression, or as numbers."""

    def __init__(self, kernel: KernelLike) -> None:
        self.node: Node | None = None
        self.map: maps.FeatureMap | None = None
        self.function: Callable[..., Any] | None = None
        self.text = _label(kernel, "k(q, k)")
        if isinstance(kernel, maps.FeatureMap):
            self.map, self.function = kernel, kernel.kernel
        elif isinstance(kernel, str):
            if kernel.partition(":")[0].strip() in maps.names():
                self.map = maps.get(kernel)
                self.function = self.map.kernel
            else:
                self.node = read_expression(kernel)
        elif callable(kernel):
            self.function = kernel
        else:
            raise TypeError(
                "a kernel is a text such as '(q·k + 1)**2', a feature map or a function (q, k), "
                f"not {type(kernel).__name__}"
            )

    @property
    def parameters(self) -> set[str]:
        return set[str]() if self.node is None else names(self.node) - {"q", "k", "d", "pi", "π"}

    def symbolic(self, qs: list[Expr], ks: list[Expr]) -> Expr:
        if self.node is not None:
            scope = Scope(self.text, {"q": qs, "k": ks}, letters_as_symbols(len(qs)))
            return scalar_value(self.node, scope)
        assert self.function is not None
        q, k = (np.array([Traced(x) for x in xs], dtype=object) for xs in (qs, ks))
        try:
            value = _pair(self.function, q, k)
        except NotSymbolicError:
            raise
        except Exception as error:
            raise NotSymbolicError(f"the kernel does not run on symbols ({error})") from None
        return _untraced(value)

    def numeric(self, q: Floats, k: Floats) -> Floats:
        """The values at pairs of rows q (n, d) and k (n, d), as (n,)."""
        if self.node is not None:
            vectors = {"q": list(q.T), "k": list(k.T)}
            scope = float_scope(self.text, vectors, _numbers(q.shape[1]))
            with np.errstate(all="ignore"):
                found = np.broadcast_to(scalar_value(self.node, scope), len(q))
            return found.astype(np.float64)
        function = self.function
        assert function is not None
        pairs = zip(q, k, strict=True)
        return np.array([float(_pair(function, a, b)) for a, b in pairs])

    def gram(self, points: Floats) -> Floats:
        """The Gram matrix of points (n, d), as (n, n)."""
        n = len(points)
        q, k = np.repeat(points, n, axis=0), np.tile(points, (n, 1))
        return self.numeric(q, k).reshape(n, n)


def symbols(d: int) -> tuple[list[Expr], list[Expr], list[Expr]]:
    """x, q and k of width d."""
    return vector("x", d), vector("q", d), vector("k", d)


FLOATS_READ = "floats in functions stand for the nearest simple numbers (√2 for 1.414…)"
_CALLS = {
    sympy.exp: "exp",
    sympy.log: "log",
    sympy.sin: "sin",
    sympy.cos: "cos",
    sympy.tanh: "tanh",
    sympy.cosh: "cosh",
    sympy.sinh: "sinh",
    sympy.Abs: "abs",
}
_TO_PLAIN = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_COORDINATE = re.compile(r"([A-Za-z]+)([₀-₉]+)")


def as_node(expression: Expr) -> Node:
    """A sympy expression in the language of claims."""
    if expression.is_Rational:
        return Node("number", 0, Fraction(int(expression.p), int(expression.q)))
    if expression.is_Float:
        raise NotSymbolicError(f"the function contains {expression}, which is not a simple number")
    if expression == sympy.pi:
        return Node("name", 0, "pi")
    if expression == sympy.E:
        return Node("call", 0, "exp", (Node("number", 0, Fraction(1)),))
    if expression.is_Symbol:
        match = _COORDINATE.fullmatch(str(expression))
        if match is None:
            return Node("name", 0, str(expression))
        place = Fraction(int(match[2].translate(_TO_PLAIN)))
        return Node("index", 0, match[1], (Node("number", 0, place),))
    if expression.is_Add or expression.is_Mul:
        sign = "+" if expression.is_Add else "*"
        return functools.reduce(
            lambda a, b: Node("op", 0, sign, (a, b)), map(as_node, expression.args)
        )
    if expression.is_Pow and expression.exp.is_Rational:
        power = Fraction(int(expression.exp.p), int(expression.exp.q))
        return Node("op", 0, "**", (as_node(expression.base), Node("number", 0, power)))
    name = _CALLS.get(type(expression))
    if name is None:
        raise NotSymbolicError(
            f"the function contains {type(expression).__name__}, which is not supported"
        )
    return Node("call", 0, name, (as_node(expression.args[0]),))


def _rows(function: Callable[..., Any], x: Any) -> Any:
    """φ of rows, (n, d) → (n, m), also for functions that take one vector (d,) at a time."""
    try:
        found = _array(function(x))
        if found.ndim == 2 and len(found) == len(x):
            return found
    except NotSymbolicError:
        raise
    except Exception:
        pass  # it may be a function of one vector, tried next
    found = _array([_array(function(row)) for row in x])
    if found.ndim != 2:
        raise ValueError(
            f"φ must map rows (n, d) to (n, m), or a vector (d,) to (m,); it mapped "
            f"{tuple(x.shape)} to {tuple(found.shape)}"
        )
    return found


def _pair(function: Callable[..., Any], q: Any, k: Any) -> Any:
    """The kernel of one pair of vectors. The function takes vectors or rows."""
    try:
        found = _array(function(q, k))
        if found.size == 1:
            return found.reshape(-1)[0]
    except NotSymbolicError:
        raise
    except Exception:
        pass  # it may be a function of rows, tried next
    found = _array(function(q[None, :], k[None, :]))
    if found.size != 1:
        raise ValueError(
            f"the kernel must map q (n, d) and k (n, d) to (n, n), or two vectors to a number; "
            f"it mapped two rows to {tuple(found.shape)}"
        )
    return found.reshape(-1)[0]


def _array(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x
    symbolic = any(
        isinstance(y, Traced) or (isinstance(y, np.ndarray) and y.dtype.hasobject) for y in _flat(x)
    )
    return np.asarray(x, dtype=object) if symbolic else np.asarray(x)


def _flat(x: Any) -> list[Any]:
    return [z for y in x for z in _flat(y)] if isinstance(x, list | tuple) else [x]


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _label(x: Any, anonymous: str) -> str:
    if isinstance(x, str):
        return x
    if isinstance(x, maps.FeatureMap):
        return str(x)
    return str(getattr(x, "__name__", type(x).__name__)).replace("<lambda>", anonymous)


def letters_as_symbols(d: int) -> Callable[[str], Expr]:
    """Letters for `Scope`: d is the width, all others are symbols."""
    return lambda name: sympy.Integer(d) if name == "d" else real(name)


def _numbers(d: int) -> Callable[[str], float]:
    """Letters for `Scope`: d is the width, no other letter has a value."""

    def value(name: str) -> float:
        if name != "d":
            raise NotSymbolicError(f"{name} has no value: write a number in its place")
        return float(d)

    return value
