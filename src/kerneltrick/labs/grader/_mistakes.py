"""The mistakes that a lab recognises: small changes of its model answer, read from a table.

A table is a text. `[function]` begins the mistakes of an exercise. A mistake is its hint, and
indented below it what the student wrote instead: replacements `old → new` in the code of the model
answer, or the whole body of the function. Lines without an arrow are a body.

    [rbf_gram]
    the half is missing: the exponent is −‖x − y‖²/2ℓ²
        / (2 * length**2) → / length**2
    your output is 1 everywhere
        return np.ones((len(X), len(Y)))

A line `for NAME in a | b` makes a mistake of every value, which may hold the NAME of a line above.
Lines that begin with # are comments.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

ARROW = "→"
_FAMILY = re.compile(r"for ([A-Z_]{2,}) in (.*[^:])")


@dataclass(frozen=True)
class Mistake:
    """A common wrong answer: the hint that names it, and how it differs from the model answer."""

    hint: str  # "your output matches attention without the normaliser"
    model: Callable[..., Any]  # the function of the model answer
    written: tuple[str, ...]  # replacements in it, or the lines of another body

    @cached_property
    def source(self) -> str:
        """The source of the wrong function.

        Raises ValueError if a replacement does not occur exactly once in the model answer.
        """
        head, body = _parts(self.model)
        if not all(ARROW in line for line in self.written):
            return f"{head}\n" + textwrap.indent("\n".join(self.written), "    ") + "\n"
        source = f"{head}\n{body}\n"
        for line in self.written:
            old, _, new = (part.strip() for part in line.partition(ARROW))
            if (found := source.count(old)) != 1 or not old:
                raise ValueError(
                    f"the mistake {self.hint!r} of {self.model.__name__} replaces {old!r}, which "
                    f"must occur once in the model answer, but occurs {found} times"
                )
            source = source.replace(old, new)
        return source

    @cached_property
    def answer(self) -> Callable[..., Any]:
        """The wrong function, which calls the right ones. It is compiled when first asked for."""
        namespace = dict(self.model.__globals__)
        exec(compile(self.source, f"<mistake in {self.model.__name__}>", "exec"), namespace)
        found: Callable[..., Any] = namespace[self.model.__name__]
        return found


def _parts(model: Callable[..., Any]) -> tuple[str, str]:
    """The signature of a function, and its body without the docstring."""
    lines = inspect.getsource(model).splitlines()
    (function,) = ast.parse("\n".join(lines)).body
    assert isinstance(function, ast.FunctionDef)
    docstring = function.body[0]
    first = docstring.end_lineno if ast.get_docstring(function) else docstring.lineno - 1
    return "\n".join(lines[: docstring.lineno - 1]), "\n".join(lines[first:])


def read_mistakes(table: str, model: ModuleType) -> dict[str, tuple[Mistake, ...]]:
    """The mistakes of each exercise, by its name, from a table.

    >>> from kerneltrick.labs import kernel_trick
    >>> table = "[elu_feature_map]\\nthe branches are swapped\\n    x > 0 → x <= 0\\n"
    >>> mistakes = read_mistakes(table, kernel_trick)
    >>> mistakes["elu_feature_map"][0].hint
    'the branches are swapped'
    """
    found: dict[str, tuple[Mistake, ...]] = {}
    function, hint, written = "", "", list[str]()
    for line in [*table.splitlines(), "[]"]:
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(" "):
            written.append(line.removeprefix("    "))
            continue
        if written:
            made = _family(hint, written)
            right = getattr(model, function)
            found[function] += tuple(Mistake(text, right, code) for text, code in made)
            hint, written = "", []
        if line.startswith("["):
            function = line.strip("[]")
            found[function] = ()
        else:
            hint = f"{hint} {line}".strip()
    found.pop("")
    return found


def _family(hint: str, written: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """A mistake for all combinations of the values in its `for` lines: hint and code."""
    fors = [match for line in written if (match := _FAMILY.fullmatch(line))]
    code = [line for line in written if not _FAMILY.fullmatch(line)]
    for values in itertools.product(*(match[2].split(" | ") for match in fors)):
        text = "\n".join((hint, *code))
        for match, value in reversed(list(zip(fors, values, strict=True))):
            text = re.sub(rf"\b{match[1]}\b", value.replace("\\", r"\\").strip(), text)
        first, *rest = text.split("\n")
        yield first, tuple(rest)
