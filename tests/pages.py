"""Run the pages of docs/ and compare what their code and commands print with the page."""

import contextlib
import io
import re
import shlex

import pytest

from kerneltrick.cli import main

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:^```text\n(?P<printed>.*?)^```\n)?"
    r"|^```console\n(?P<session>.*?)^```\n",
    re.M | re.S,
)


def run_blocks(path):
    """Run the blocks of a page in one namespace, in the folder we are in; how many there were.

    What a python block prints must follow it as a text block. In a console block, what follows a
    line `$ kerneltrick …` must be what the command prints.
    """
    names = {"__name__": path.stem}
    blocks = list(BLOCK.finditer(path.read_text(encoding="utf-8")))
    for block in blocks:
        if block["session"] is not None:
            run_session(block["session"])
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], str(path), "exec"), names)
        assert printed.getvalue() == (block["printed"] or ""), block["code"]
    return len(blocks)


def run_session(session):
    for step in re.split(r"^\$ ", session, flags=re.M)[1:]:
        command, expected = step.split("\n", 1)
        program, *arguments = shlex.split(command)
        assert program == "kerneltrick"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
            main(arguments)
        assert tidy(printed.getvalue()) == tidy(expected), command


def tidy(text):
    """Strip trailing spaces and surrounding empty lines."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).rstrip()
