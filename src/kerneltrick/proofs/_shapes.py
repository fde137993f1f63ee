"""Do the shapes of a product fit? Sizes are expressions: n, m, h*k."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kerneltrick import costs
from kerneltrick.costs import Polynomial
from kerneltrick.proofs._evaluate import Scope, scalar_value
from kerneltrick.proofs._syntax import ClaimError, read_expression
from kerneltrick.proofs._verdict import Verdict

Size = Polynomial
Shape = tuple[Size, ...]
_STEP = re.compile(r"\s*(?P<name>[A-Za-z_φ][\w()]*?)?(?P<turned>\.T|ᵀ|\.transpose\(\))?\s*$")


class Operand(NamedTuple):
    text: str
    shape: Shape


def check_shapes(
    expression: str, shapes: Mapping[str, Sequence[int | str]], result: Sequence[int | str]
) -> Verdict:
    """Whether a product such as "Q @ S", "phi.T @ V" or "split(V, h, k)" has the claimed shape.

    `@` is the matrix product, `.T` or ᵀ turns a matrix over, `split(X, h, k)` cuts n × h·k into h
    heads n × k, `combine(X)` puts them together again.

    >>> shapes = {"phi": ("n", "m"), "S": ("m", "M")}
    >>> print(check_shapes("phi.T @ S", shapes, ("n", "M")))
    FALSE: phi.T @ S is n×M for phi: n×m, S: m×M
      phi.T is m×n and S is m×M: n and m do not contract
      - phi @ S fits: n×M
    """
    known = {name: tuple(map(_size, shape)) for name, shape in shapes.items()}
    wanted = tuple(map(_size, result))
    given = ", ".join(f"{name}: {_show(shape)}" for name, shape in known.items())
    claim = f"{expression.strip()} is {_show(wanted)} for {given}"
    found = _evaluate(expression, known)
    if isinstance(found, str):
        return Verdict("false", claim, found, _mended(expression, known, wanted))
    if found.shape != wanted:
        reason = f"it is {_show(found.shape)}, not {_show(wanted)}"
        return Verdict("false", claim, reason, _mended(expression, known, wanted))
    return Verdict("true", claim, f"it is {_show(wanted)}")


def _size(x: int | str) -> Size:
    if isinstance(x, int):
        return Polynomial({(): x})
    text = x.strip()
    scope = Scope(
        text,
        {},
        costs.symbol,
        {},
        lambda value: Polynomial({(): value}),
        lambda size, power: size ** int(power),
    )
    found = scalar_value(read_expression(text), scope)
    assert isinstance(found, Polynomial)
    return found


def _show(shape: Shape) -> str:
    return "×".join(str(s) if len(s.terms) < 2 else f"({s})" for s in shape) or "a number"


def _evaluate(text: str, known: Mapping[str, Shape]) -> Operand | str:
    """The shape of a product, or why it has none."""
    factors = text.split("@")
    total: Operand | str = ""
    at = 0
    for i, factor in enumerate(factors):
        operand = _factor(text, at, factor, known)
        at += len(factor) + 1
        if isinstance(operand, str):
            return operand
        total = operand if i == 0 or isinstance(total, str) else _product(total, operand)
        if isinstance(total, str):
            return total
    return total


def _product(a: Operand, b: Operand) -> Operand | str:
    inner, outer = a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[-1]
    if inner != outer:
        return (
            f"{a.text} is {_show(a.shape)} and {b.text} is {_show(b.shape)}: {inner} and {outer} "
            "do not contract"
        )
    lead = a.shape[:-2] or b.shape[:-2]
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return Operand(f"{a.text} @ {b.text}", (*lead, *rows, *columns))


def _factor(text: str, at: int, factor: str, known: Mapping[str, Shape]) -> Operand | str:
    call = re.fullmatch(r"\s*(split|combine)\((.*)\)\s*", factor)
    if call is not None:
        return _heads(text, at, call[1], [x.strip() for x in call[2].split(",")], known)
    match = _STEP.match(factor)
    if match is None or not match["name"]:
        raise ClaimError(text, at, "expected a product of names such as Q @ K.T")
    name = match["name"]
    if name not in known:
        where = text.find(name, at)
        raise ClaimError(text, where, f"{name} has no shape; known are {', '.join(known)}")
    shape = known[name]
    if match["turned"]:
        shape = (*shape[:-2], *reversed(shape[-2:]))
    return Operand(factor.strip(), shape)


def _heads(
    text: str, at: int, what: str, arguments: list[str], known: Mapping[str, Shape]
) -> Operand | str:
    count = 3 if what == "split" else 1
    if len(arguments) != count or arguments[0] not in known:
        example = "split(V, h, k)" if what == "split" else "combine(X)"
        raise ClaimError(text, at, f"expected {example} of a known array")
    shape = known[arguments[0]]
    if what == "combine":
        if len(shape) < 3:
            return f"{arguments[0]} is {_show(shape)}: combine needs heads × n × width"
        h, n, width = shape[-3:]
        return Operand(f"combine({arguments[0]})", (*shape[:-3], n, h * width))
    h, width = map(_size, arguments[1:])
    if shape[-1] != h * width:
        return (
            f"{arguments[0]} has {shape[-1]} columns, which cannot be cut into {h} heads of width "
            f"{width}: that takes {h * width}"
        )
    return Operand(f"split({', '.join(arguments)})", (*shape[:-2], h, shape[-2], width))


def _mended(text: str, known: Mapping[str, Shape], wanted: Shape) -> tuple[str, ...]:
    """Products of the same names, turned over or not, and the width that splits, which fit."""
    names = [re.sub(r"(\.T|ᵀ|\.transpose\(\))\s*$", "", x.strip()) for x in text.split("@")]
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
    return (f"split({name}, {h}, {width}) fits: the width is what the columns give",)
