"""Does an einsum compute what it is meant to? Which index comes from nowhere, which one stays."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from kerneltrick.proofs._syntax import ClaimError
from kerneltrick.proofs._verdict import Verdict

Shape = Sequence[int | str]


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
    product: bool = True,
) -> Verdict:
    """Whether an einsum is well formed, fits the shapes and contracts an index.

    Every index of the output must come from an input; with `product`, the operands must be
    multiplied and summed over at least one shared index. `meant` is an equation that it must equal
    up to the names of indices.

    >>> print(check_einsum("bd,dq->bhq"))
    FALSE: einsum bd,dq->bhq
      the index h of the output comes from nowhere: no input has it
      - meant may be bd,hdq->bhq (the second operand has one slice per h)
      - or bd,dq->bq (no h at all)
    """
    found = _read(equation)
    claim = f"einsum {found}"
    if meant is not None:
        claim += f" computes {_read(meant)}"
    if shapes is not None:
        claim += " for " + " and ".join("(" + ", ".join(map(str, s)) + ")" for s in shapes)
        problem = _misfit(found, shapes)
        if problem is not None:
            return Verdict("false", claim, problem[0], problem[1])
    nowhere = [i for i in dict.fromkeys(found.output) if not any(i in x for x in found.inputs)]
    if nowhere:
        return Verdict("false", claim, _nowhere(nowhere), _without(found, nowhere, meant))
    repeated = [i for i in dict.fromkeys(found.output) if found.output.count(i) > 1]
    if repeated:
        return Verdict("false", claim, f"the output has the index {repeated[0]} twice")
    summed = [i for i in dict.fromkeys("".join(found.inputs)) if i not in found.output]
    shared = [i for i in summed if sum(i in x for x in found.inputs) > 1]
    if product and len(found.inputs) > 1 and not shared:
        return Verdict("false", claim, _uncontracted(found, summed), _contracting(found, summed))
    if meant is not None and not _same(found, _read(meant)):
        return Verdict("false", claim, _different(found, _read(meant)))
    return Verdict("true", claim, _describe(found, shared, summed))


def _read(text: str) -> Equation:
    plain = text.replace("→", "->")
    for match in re.finditer(r"[^A-Za-z,\s>-]", plain):
        raise ClaimError(
            text, match.start(), f"an einsum has letters, ',' and '->', not {match[0]!r}"
        )
    squeezed = re.sub(r"\s+", "", plain)
    if squeezed.count("->") != 1 or re.search(r"(?<!-)>|-(?!>)", squeezed):
        raise ClaimError(text, len(text), "an einsum reads inputs->output, such as bd,dk->bk")
    left, _, output = squeezed.partition("->")
    inputs = tuple(left.split(","))
    if "," in output or not all(inputs):
        at = plain.find(",", plain.find("->")) if "," in output else 0
        raise ClaimError(text, at, "an einsum has one output, and no input without an index")
    if len(text) > 200:
        raise ClaimError(text, 200, "an einsum has at most 200 characters")
    return Equation(inputs, output)


def _misfit(found: Equation, shapes: Sequence[Shape]) -> tuple[str, tuple[str, ...]] | None:
    if len(shapes) != len(found.inputs):
        return f"it has {len(found.inputs)} inputs, but {len(shapes)} shapes are given", ()
    sizes: dict[str, tuple[int | str, str]] = {}
    for letters, shape in zip(found.inputs, shapes, strict=True):
        if len(letters) != len(shape):
            return (
                f"{letters} has {len(letters)} indices, but its array ({_list(shape)}) has "
                f"{len(shape)} axes",
                (),
            )
        for letter, size in zip(letters, shape, strict=True):
            before = sizes.setdefault(letter, (size, letters))
            if before[0] != size:
                return (
                    f"the index {letter} is {before[0]} in {before[1]} and {size} in {letters}",
                    (),
                )
    return None


def _list(shape: Shape) -> str:
    return ", ".join(map(str, shape))


def _nowhere(letters: list[str]) -> str:
    many = len(letters) > 1
    what = f"the indices {', '.join(letters)}" if many else f"the index {letters[0]}"
    return f"{what} of the output {'come' if many else 'comes'} from nowhere: no input has it"


def _without(found: Equation, nowhere: list[str], meant: str | None) -> tuple[str, ...]:
    if meant is not None:
        return (f"meant is {_read(meant)}",)
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
        return "the operands share no index: nothing is contracted, this is an outer product"
    kept = [i for i in common if i in found.output]
    many = len(kept) > 1
    text = f"nothing is contracted: {', '.join(kept)} {'stay' if many else 'stays'} in the output"
    return text + (f" ({', '.join(summed)} is summed within one operand)" if summed else "")


def _contracting(found: Equation, summed: list[str]) -> tuple[str, ...]:
    """The equation with its last shared index contracted, in favour of one that was summed away."""
    shared = [i for i in found.output if sum(i in x for x in found.inputs) > 1]
    if not shared or len(found.output) < 2:
        return ()
    kept = summed[0] if summed else ""
    return (f"meant may be {Equation(found.inputs, found.output.replace(shared[-1], kept))}",)


def _same(a: Equation, b: Equation) -> bool:
    """Equal up to the names of indices, and up to the order of the operands."""
    if len(a.inputs) != len(b.inputs) or len(a.inputs) > 4:
        return a == b
    orders = itertools.permutations(b.inputs)
    return any(_canonical((*a.inputs, a.output)) == _canonical((*x, b.output)) for x in orders)


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
    letters = "·".join(dict.fromkeys("".join(found.inputs)))
    parts.append(f"{letters} multiply-adds" if len(found.inputs) > 1 else "one operand")
    return "every output index comes from an input; " + "; ".join(parts)
