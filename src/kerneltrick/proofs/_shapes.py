"""Decide whether the shapes of a product fit. Sizes are expressions such as n, m or h*k."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from kerneltrick import costs
from kerneltrick.costs import Polynomial
from kerneltrick.proofs._evaluate import Scope, scalar_value
from kerneltrick.proofs._syntax import ClaimError, read_expression
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

Size = Polynomial
Shape = tuple[Size, ...]
SIZES = "sizes are whole numbers ≥ 1"
_ONE = Polynomial({(): 1})
_STEP = re.compile(r"\s*(?P<name>[A-Za-z_φ][\w()]*?)?(?P<turned>\.mT|\.T|ᵀ|\.transpose\(\))?\s*$")


class Operand(NamedTuple):
    text: str
    shape: Shape


def check_shapes(
    expression: str, shapes: Mapping[str, Sequence[int | str]], result: Sequence[int | str]
) -> Verdict:
    """Decide whether a product such as "Q @ S" or "split(V, h, k)" has the claimed shape.

    `shapes` gives the shape of every array in the expression, and `result` the claimed shape. `@`
    is the matrix product with NumPy's broadcasting of leading axes. `.T` or ᵀ transposes a matrix,
    `.mT` the last two axes of an array. `split(X, h, k)` splits n × h·k into h heads of n × k;
    `combine(X)` joins them again.

    >>> shapes = {"phi": ("n", "m"), "S": ("m", "M")}
    >>> print(check_shapes("phi.T @ S", shapes, ("n", "M")))
    FALSE: phi.T @ S is n×M for phi: n×m, S: m×M
      phi.T is m×n and S is m×M: n and m do not contract
      - phi @ S fits: n×M
      counterexample: M = 2, m = 3, n = 4
      assumed: sizes are whole numbers ≥ 1
    """
    known = {name: tuple(map(_size, shape)) for name, shape in shapes.items()}
    wanted = tuple(map(_size, result))
    given = ", ".join(f"{name}: {_show(shape)}" for name, shape in known.items())
    claim = f"{expression.strip()} is {_show(wanted)} for {given}"
    found = _evaluate(expression, known)
    word = r"[A-Za-z0-9_φ]"  # ᵀ is a letter of its own
    unused = [
        x for x in known if not re.search(rf"(?<!{word}){re.escape(x)}(?!{word})", expression)
    ]
    if unused:
        raise ClaimError(
            expression, 0, f"{unused[0]} has a shape but does not occur in the product"
        )
    if isinstance(found, Operand) and found.shape == wanted:
        return Verdict.true(claim, Derivation(f"it is {_show(wanted)}", (SIZES,)))
    reason = found if isinstance(found, str) else f"it is {_show(found.shape)}, not {_show(wanted)}"
    example = _example(reason, expression, known, wanted)
    if example is None:
        return Verdict.undecided(claim, f"{reason}; but it did not fail for any sizes tried")
    return Verdict.false(claim, example, _mended(expression, known, wanted))


def _example(
    reason: str, expression: str, known: Mapping[str, Shape], wanted: Shape
) -> Counterexample | None:
    """Sizes for which the arrays do not fit, or give another shape."""
    letters = {s for shape in (*known.values(), wanted) for x in shape for s in x.symbols}
    words = set(re.findall(r"[A-Za-z_φ]\w*", expression)) - {*known, "split", "combine", "T", "mT"}
    letters |= words - {"transpose"}  # sizes of heads

    def fails(values: Mapping[str, int]) -> bool:
        at = {name: _numbers(shape, values) for name, shape in known.items()}
        meant = _numbers(wanted, values)
        if meant is None or any(shape is None for shape in at.values()):
            return False
        found = _evaluate(expression, {k: v for k, v in at.items() if v is not None}, values)
        return isinstance(found, str) or found.shape != meant

    for step in range(1, 6):
        values = {s: 1 + step * (i + 1) for i, s in enumerate(sorted(letters))}
        if fails(values):
            shown: dict[str, Any] = dict(values) or {"sizes": "as given"}
            again = functools.partial(fails, values)
            return Counterexample(reason, shown, again, (SIZES,))
    return None


def _numbers(shape: Shape, values: Mapping[str, int]) -> Shape | None:
    """The shape with numbers for its letters; None if they are not sizes."""
    found = [x.at(**{s: values[s] for s in x.symbols}) for x in shape]
    if any(x != int(x) or x < 1 for x in found):
        return None
    return tuple(Polynomial({(): int(x)}) for x in found)


def _size(x: int | str) -> Size:
    text = str(x).strip()
    scope = Scope(
        text,
        {},
        costs.symbol,
        {},
        lambda value: Polynomial({(): value}),
        _whole_power,
    )
    found = scalar_value(read_expression(text), scope)
    assert isinstance(found, Polynomial)
    if not found.symbols and ((value := found.at()) != int(value) or value < 1):
        raise ClaimError(text, 0, SIZES)
    return found


def _whole_power(size: Size, power: Fraction) -> Size:
    if power.denominator != 1:
        raise ValueError(f"sizes have whole exponents, not {power}")
    return size ** int(power)


def _show(shape: Shape) -> str:
    return "×".join(str(s) if len(s.terms) < 2 else f"({s})" for s in shape) or "a number"


def _evaluate(
    text: str, known: Mapping[str, Shape], values: Mapping[str, int] | None = None
) -> Operand | str:
    """The shape of a product, or why it has none. `values` gives numbers for letters."""
    factors = text.split("@")
    total: Operand | str = ""
    at = 0
    for i, factor in enumerate(factors):
        operand = _factor(text, at, factor, known, values or {})
        at += len(factor) + 1
        if isinstance(operand, str):
            return operand
        total = operand if i == 0 or isinstance(total, str) else _product(total, operand)
        if isinstance(total, str):
            return total
    return total


def _product(a: Operand, b: Operand) -> Operand | str:
    """The matrix product. Leading axes are broadcast. A vector on the left is a row, on the right a
    column."""
    pair = f"{a.text} is {_show(a.shape)} and {b.text} is {_show(b.shape)}"
    inner, outer = a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[-1]
    if inner != outer:
        return f"{pair}: {inner} and {outer} do not contract"
    lead = list[Size]()
    heads = a.shape[:-2], b.shape[:-2]
    width = max(map(len, heads))
    for x, y in zip(*(((_ONE,) * (width - len(h)) + h) for h in heads), strict=True):
        if x != y and _ONE not in (x, y):
            return f"{pair}: the leading axes {x} and {y} differ"
        lead.append(y if x == _ONE else x)
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return Operand(f"{a.text} @ {b.text}", (*lead, *rows, *columns))


def _factor(
    text: str, at: int, factor: str, known: Mapping[str, Shape], values: Mapping[str, int]
) -> Operand | str:
    call = re.fullmatch(r"\s*(split|combine)\((.*)\)\s*", factor)
    if call is not None:
        arguments = [x.strip() for x in call[2].split(",")]
        return _heads(text, at, call[1], arguments, known, values)
    match = _STEP.match(factor)
    if match is None or not match["name"]:
        raise ClaimError(text, at, "expected a product of names such as Q @ K.T")
    name = match["name"]
    if name not in known:
        where = text.find(name, at)
        raise ClaimError(text, where, f"{name} has no shape; known are {', '.join(known)}")
    shape = known[name]
    if match["turned"]:
        if len(shape) > 2 and match["turned"] != ".mT":
            raise ClaimError(
                text,
                text.find(name, at),
                f"{name} has {len(shape)} axes: write {name}.mT to "
                f"transpose the last two ({match['turned']} reverses all axes in NumPy)",
            )
        if len(shape) < 2 and match["turned"] == ".mT":
            problem = f"{name} has one axis, and .mT needs two"
            raise ClaimError(text, text.find(name, at), problem)
        shape = (*shape[:-2], *reversed(shape[-2:]))
    return Operand(factor.strip(), shape)


def _heads(
    text: str,
    at: int,
    what: str,
    arguments: list[str],
    known: Mapping[str, Shape],
    values: Mapping[str, int],
) -> Operand | str:
    count = 3 if what == "split" else 1
    if len(arguments) != count or arguments[0] not in known:
        example = "split(V, h, k)" if what == "split" else "combine(X)"
        raise ClaimError(text, at, f"expected {example}, with an array whose shape is given")
    shape = known[arguments[0]]
    if what == "combine":
        if len(shape) < 3:
            return f"{arguments[0]} is {_show(shape)}: combine needs heads × n × width"
        h, n, width = shape[-3:]
        return Operand(f"combine({arguments[0]})", (*shape[:-3], n, h * width))
    if len(shape) < 2:
        return f"{arguments[0]} is {_show(shape)}: split needs n × columns"
    sizes = [_size(x) for x in arguments[1:]]
    h, width = (x.subs(**{s: values[s] for s in x.symbols if s in values}) for x in sizes)
    if shape[-1] != h * width:
        return (
            f"{arguments[0]} has {shape[-1]} columns, which cannot be split into {h} heads of "
            f"width {width}: that needs {h * width} columns"
        )
    return Operand(f"split({', '.join(arguments)})", (*shape[:-2], h, shape[-2], width))


def _mended(text: str, known: Mapping[str, Shape], wanted: Shape) -> tuple[str, ...]:
    """Products of the same names, transposed or not, that fit; or a width that splits."""
    if any(len(shape) > 2 for shape in known.values()):
        return ()
    names = [re.sub(r"(\.mT|\.T|ᵀ|\.transpose\(\))\s*$", "", x.strip()) for x in text.split("@")]
    if any(x not in known for x in names):
        return _mended_split(text, known)
    found = []
    for choice in range(2 ** len(names)):
        trial = " @ ".join(x + (".T" if choice >> i & 1 else "") for i, x in enumerate(names))
        result = _evaluate(trial, known)
        if isinstance(result, Operand) and result.shape == wanted:
            found.append(f"{trial} fits: {_show(wanted)}")
    return tuple(found[:2])


def _mended_split(text: str, known: Mapping[str, Shape]) -> tuple[str, ...]:
    call = re.fullmatch(r"\s*split\((.*)\)\s*", text)
    if call is None:
        return ()
    name, h, *_ = (x.strip() for x in call[1].split(","))
    try:
        width = known[name][-1] / _size(h)
    except (KeyError, ValueError):
        return ()
    return (f"split({name}, {h}, {width}) fits the number of columns",)
