"""How commands run and how their help is listed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from kerneltrick._files import protecting
from kerneltrick.analysis import names_file
from kerneltrick.cli._arguments import UsageError, split_maps

# Every other path is an input.
OUTPUTS = {"--out", "--html", "--json", "--plot", "--feedback", "--onnx"}
MODELS = {"model", "teacher"}  # parameters that name a folder, or a model on the hub
LARGEST = 2**63 - 1  # no library below takes a larger whole number


class Command(TyperCommand):
    """A command whose outputs cannot overwrite its inputs, and whose numbers are usable.

    Every path among its parameters is an input, unless it is one of `OUTPUTS`; so are models, and
    files of fitted maps in lists of maps. A new command is protected without further code.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "-h" not in ctx.help_option_names:  # it stands for help only as a word of its own
            args = ["--help" if word == "-h" else word for word in args]
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            if isinstance(value, int) and abs(value) > LARGEST:
                raise UsageError(f"{parameter.opts[0]} is {value:,}; the limit is {LARGEST:,}")
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{parameter.opts[0]} must be a finite number, not {value}")
        return rest

    def invoke(self, ctx: Any) -> Any:
        options = {parameter.name: set(parameter.opts) for parameter in self.params}
        given = {name: value for name, value in ctx.params.items() if not options[name] & OUTPUTS}
        found = [path for name, value in given.items() for path in _paths(value, name in MODELS)]
        with protecting(found):
            return super().invoke(ctx)


class Group(TyperGroup):
    """A group whose help shows the whole first sentence of each command, under headings.

    The heading of a command is its `rich_help_panel`.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        headings: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                rows = headings.setdefault(heading if isinstance(heading, str) else "Commands", [])
                rows.append((name, first_sentence(command.help or "")))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph, on one line.

    >>> first_sentence("Count 1.5 things\\nor more. And others.\\n\\nThe end.")
    'Count 1.5 things or more.'
    """
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s", paragraph)[0]


def _paths(value: Any, is_model: bool) -> Iterator[str]:
    """The files and folders that the value of a parameter names."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _paths(each, is_model)
    elif isinstance(value, Path) or (isinstance(value, str) and is_model):
        yield str(value)
    elif isinstance(value, str):
        for text in filter(names_file, split_maps([value])):
            yield text.partition("@")[0].strip()
