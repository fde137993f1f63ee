"""Decide whether an einsum computes what it should, and find indices that are wrong."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kerneltrick.proofs._syntax import ClaimError
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

Shape = Sequence[int | str]
MOST_OPERANDS = 5


class Equation(NamedTuple):
    inputs: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return f"{','.join(self.inputs)}->{self.output}"


def check_einsum(
    equation: str,
    shapes: Sequence[Shape] | None = None,
    *,
    meant: str | None = None,
    any_order: bool = False,
) -> Verdict:
    """Decide whether an einsum is well formed, fits the shapes, and contracts its operands.

    Every index of the output must come from an input. Operands that share an index must contract
    one, with one exception: if all shared indices come first in every operand and in the output,
    they are batch indices, and an outer product of the rest is right. `shapes` are the shapes of
    the operands. `meant` is an equation that the einsum must equal for the same operands, up to the
    names of indices. With `any_order` the operands may be passed in another order.

    >>> print(check_einsum("bd,dq->bhq"))
    FALSE: einsum bd,dq->bhq
      the index h of the output comes from nowhere: no input has it
      - meant may be bd,hdq->bhq (the second operand has one slice per h)
      - or bd,dq->bq (no h at all)
    """
    found = _read(equation)
    claim = f"einsum {found}"
    target = None if meant is None else _read(meant)
    if target is not None:
        claim += f" computes {target}" + " in any order" * any_order
    if shapes is not None:
        claim += " for " + " and ".join("(" + ", ".join(map(str, s)) + ")" for s in shapes)
    nowhere = [i for i in dict.fromkeys(found.output) if not any(i in x for x in found.inputs)]
    if nowhere:
        return _wrong(claim, _nowhere(nowhere), _without(found, nowhere, target))
    repeated = [i for i in dict.fromkeys(found.output) if found.output.count(i) > 1]
    if repeated:
        return _wrong(claim, f"the output has the index {repeated[0]} twice")
    if shapes is not None and (misfit := _misfit(found, shapes)) is not None:
        return Verdict.false(claim, misfit)
    summed = [i for i in dict.fromkeys("".join(found.inputs)) if i not in found.output]
    shared = [i for i in summed if sum(i in x for x in found.inputs) > 1]
    if target is not None:
        _check_comparable(target)
        reason = _describe(found, shared, summed)
        return _compared(claim, found, target, reason, any_order)
    if not shared and not _outer(found, summed):
        reason = _uncontracted(found, summed)
        return Verdict.false(claim, Derivation(reason, (READ_AS,)), _contracting(found, summed))
    return Verdict.true(claim, Derivation(_describe(found, shared, summed)))


READ_AS = "operands that share an index are meant to contract one"


def _wrong(claim: str, reason: str, details: tuple[str, ...] = ()) -> Verdict:
    """The verdict on an einsum that every library rejects because of its text alone."""
    return Verdict.false(claim, Derivation(reason), details)


def _outer(found: Equation, summed: list[str]) -> bool:
    """Whether nothing needs to be contracted: one operand, or an outer product, maybe batched."""
    if len(found.inputs) == 1:
        return True
    common = [i for i in dict.fromkeys(found.inputs[0]) if any(i in x for x in found.inputs[1:])]
    common += [i for a, b in itertools.combinations(found.inputs[1:], 2) for i in a if i in b]
    batch = len(dict.fromkeys(common))
    heads = {x[:batch] for x in (*found.inputs, found.output)}
    return not common or (len(heads) == 1 and set(heads.pop()) == set(common) and not summed)


def _check_comparable(meant: Equation) -> None:
    problem = "the equation after computes has an "
    if not all(i in "".join(meant.inputs) for i in meant.output):
        raise ClaimError(str(meant), 0, problem + "output index that no input has")
    if len(set(meant.output)) < len(meant.output):
        raise ClaimError(str(meant), 0, problem + "index twice in its output")


def _compared(
    claim: str, found: Equation, meant: Equation, reason: str, any_order: bool
) -> Verdict:
    """Decide whether two equations compute the same from the same operands."""
    if len(found.inputs) > MOST_OPERANDS or len(meant.inputs) > MOST_OPERANDS:
        missing = f"einsums of more than {MOST_OPERANDS} operands are not compared"
        return Verdict.undecided(claim, missing)
    if _equal(found, meant):
        return Verdict.true(claim, Derivation(reason))
    orders = (Equation(x, meant.output) for x in itertools.permutations(meant.inputs))
    turned = next((x for x in orders if _equal(found, x)), None)
    if turned is None:
        return Verdict.false(claim, _differing(found, meant, any_order))
    if any_order:
        taken = (f"the operands are passed in the order of {turned}",)
        return Verdict.true(claim, Derivation(reason, taken))
    hint = f"it computes {turned}, the same with other operands first: add 'in any order' if meant"
    return Verdict.false(claim, _differing(found, meant, any_order), (hint,))


def _differing(found: Equation, meant: Equation, any_order: bool) -> Counterexample:
    """The results of two equations on arrays of whole numbers."""
    reason = _different(found, meant)
    if len(found.inputs) != len(meant.inputs):
        counts = {"operands": len(found.inputs), "meant": len(meant.inputs)}
        return Counterexample(reason, counts, lambda: len(found.inputs) != len(meant.inputs))

    def differ() -> bool:
        arrays = _arrays(meant)
        wanted = _value(meant, arrays)
        orders = itertools.permutations(arrays) if any_order else [arrays]
        return all(_value(found, x) != wanted for x in orders)

    shown = {"sizes": 2, "computed": _shown(found), "meant": _shown(meant)}
    return Counterexample(reason, shown, differ)


def _value(equation: Equation, arrays: Sequence[Any]) -> Any:
    """The result as nested lists; None if the arrays do not fit."""
    if [x.ndim for x in arrays] != [len(x) for x in equation.inputs]:
        return None
    return np.asarray(np.einsum(str(equation), *arrays)).tolist()


def _shown(equation: Equation) -> str:
    """The output of an equation on its own arrays, shortened."""
    text = str(_value(equation, _arrays(equation)))
    return text if len(text) <= 60 else text[:57] + "…"


def _arrays(equation: Equation) -> list[Any]:
    """Arrays of size 2 along every axis; their exact whole numbers make different sums differ."""
    return [
        np.array([p ** (j + 1) for j in range(2 ** len(letters))], dtype=object).reshape(
            (2,) * len(letters)
        )
        for p, letters in zip((2, 3, 5, 7, 11), equation.inputs, strict=False)
    ]


def _read(text: str) -> Equation:
    plain = text.replace("→", "->")
    for match in re.finditer(r"[^A-Za-z,\s>-]", plain):
        raise ClaimError(
            text, match.start(), f"an einsum consists of letters, ',' and '->', not {match[0]!r}"
        )
    squeezed = re.sub(r"\s+", "", plain)
    if squeezed.count("->") != 1 or re.search(r"(?<!-)>|-(?!>)", squeezed):
        raise ClaimError(
            text, len(text), "an einsum has the form inputs->output, such as bd,dk->bk"
        )
    left, _, output = squeezed.partition("->")
    inputs = tuple(left.split(","))
    if "," in output or not all(inputs):
        at = plain.find(",", plain.find("->")) if "," in output else 0
        raise ClaimError(text, at, "an einsum has one output, and every input has an index")
    if len(set(squeezed)) > 16 or len(text) > 200:
        raise ClaimError(text, 0, "an einsum has at most 200 characters and 13 indices")
    return Equation(inputs, output)


def _misfit(found: Equation, shapes: Sequence[Shape]) -> Counterexample | Derivation | None:
    """Why the equation cannot take arrays of these shapes. A size of 1 fits every other size."""
    if len(shapes) != len(found.inputs):
        return Derivation(f"it has {len(found.inputs)} inputs, but {len(shapes)} shapes are given")
    sizes: dict[str, tuple[int | str, str]] = {}
    for letters, shape in zip(found.inputs, shapes, strict=True):
        if len(letters) != len(shape):
            return Derivation(
                f"{letters} has {len(letters)} indices, but its array ({_list(shape)}) has "
                f"{len(shape)} axes"
            )
        own: dict[str, int | str] = {}
        for letter, size in zip(letters, shape, strict=True):
            if (
                own.setdefault(letter, size) != size
            ):  # a diagonal needs a square: 1 does not fit other sizes here
                reason = f"the index {letter} is both {own[letter]} and {size} in {letters}"
                return _unequal(reason, own[letter], size)
            before = sizes.setdefault(letter, (size, letters))
            if before[0] == 1:
                sizes[letter] = (size, letters)
            elif size not in (
                before[0],
                1,
            ):  # neither is 1, and letters stand for sizes other than 1
                reason = f"the index {letter} is {before[0]} in {before[1]} and {size} in {letters}"
                return _unequal(reason, before[0], size)
    return None


def _unequal(reason: str, left: int | str, right: int | str) -> Counterexample:
    """Two sizes that differ, either as numbers or for some values of their letters."""
    values: dict[str, Any] = {}
    for size in (left, right):
        if isinstance(size, str):
            values[size] = next(n for n in (2, 3, 5) if n not in (left, right, *values.values()))
    both = [values.get(str(x), x) for x in (left, right)]
    shown = values or {"sizes": both}
    return Counterexample(reason, shown, lambda: both[0] != both[1])


def _list(shape: Shape) -> str:
    return ", ".join(map(str, shape))


def _nowhere(letters: list[str]) -> str:
    many = len(letters) > 1
    what = f"the indices {', '.join(letters)}" if many else f"the index {letters[0]}"
    return f"{what} of the output {'come' if many else 'comes'} from nowhere: no input has it"


def _without(found: Equation, nowhere: list[str], meant: Equation | None) -> tuple[str, ...]:
    if meant is not None:
        return (f"meant is {meant}",)
    extra = "".join(nowhere)
    *first, last = found.inputs
    given = Equation((*first, extra + last), found.output)
    dropped = Equation(found.inputs, "".join(i for i in found.output if i not in nowhere))
    which = "second" if len(found.inputs) == 2 else "last"
    return (
        f"meant may be {given} (the {which} operand has one slice per {extra})",
        f"or {dropped} (no {extra} at all)",
    )


def _uncontracted(found: Equation, summed: list[str]) -> str:
    common = [i for i in dict.fromkeys(found.inputs[0]) if any(i in x for x in found.inputs[1:])]
    if not common:
        return "the operands share no index: nothing is contracted, so this is an outer product"
    kept = [i for i in common if i in found.output]
    many = len(kept) > 1
    text = f"nothing is contracted: {', '.join(kept)} {'stay' if many else 'stays'} in the output"
    return text + (f" ({', '.join(summed)} is summed within one operand)" if summed else "")


def _contracting(found: Equation, summed: list[str]) -> tuple[str, ...]:
    """The equation with its last shared index contracted and a summed index kept instead."""
    shared = [i for i in found.output if sum(i in x for x in found.inputs) > 1]
    if not shared or len(found.output) < 2:
        return ()
    kept = summed[0] if summed else ""
    return (f"meant may be {Equation(found.inputs, found.output.replace(shared[-1], kept))}",)


def _equal(a: Equation, b: Equation) -> bool:
    """Whether they are equal up to the names of indices."""
    return _canonical((*a.inputs, a.output)) == _canonical((*b.inputs, b.output))


def _canonical(words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    numbers: dict[str, int] = {}
    return tuple(tuple(numbers.setdefault(i, len(numbers)) for i in word) for word in words)


def _different(found: Equation, meant: Equation) -> str:
    extra = [i for i in meant.output if i not in found.output]
    missing = f"; its output lacks {', '.join(extra)}" if extra else ""
    return f"it computes {found}, not {meant}{missing}"


def _describe(found: Equation, shared: list[str], summed: list[str]) -> str:
    parts = []
    if shared:
        parts.append(f"it contracts {', '.join(shared)}")
    alone = [i for i in summed if i not in shared]
    if alone:
        parts.append(f"it sums over {', '.join(alone)}")
    if len(found.inputs) > 1 and not summed:
        batch = [i for i in found.output if all(i in x for x in found.inputs)]
        kind = "an outer product" + (f" for every {', '.join(batch)}" if batch else "")
        if batch and len(batch) == len(found.output):
            kind = "an elementwise product (entry by entry)"
        parts.append(f"nothing is summed: it is {kind}")
    letters = "·".join(dict.fromkeys("".join(found.inputs)))
    parts.append(f"{letters} multiply-adds" if len(found.inputs) > 1 else "one operand")
    return "every output index comes from an input; " + "; ".join(parts)
