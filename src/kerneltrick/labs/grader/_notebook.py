"""The Python code of a Jupyter notebook."""

from __future__ import annotations

import bisect
import json
import re
from dataclasses import dataclass
from typing import Any

LARGEST_NOTEBOOK = 2**26  # bytes; pictures among the outputs are large
_PYTHON_TOO = {"%%time", "%%timeit", "%%capture", "%%prun"}  # the rest of the cell is Python
_MAGIC = re.compile(r"^(\s*)[%!?].*$", re.M)


@dataclass(frozen=True)
class Code:
    """The code of all code cells, and the line on which each cell begins."""

    source: bytes
    first_lines: tuple[int, ...]

    def place(self, line: int) -> tuple[int, int]:
        """The number of the code cell, from 1, and the line in it."""
        cell = bisect.bisect_right(self.first_lines, line)
        return cell, line - self.first_lines[cell - 1] + 1


def read_notebook(content: bytes) -> Code:
    r"""Read the code of a notebook, without magics and shell commands. ValueError if it is none.

    >>> cells = [{"cell_type": "code", "source": ["%matplotlib inline\n", "x = 1"]},
    ...          {"cell_type": "markdown", "source": "# Text"},
    ...          {"cell_type": "code", "source": "def f():\n    return 2"}]
    >>> code = read_notebook(json.dumps({"cells": cells}).encode())
    >>> code.source.decode().splitlines()
    ['pass', 'x = 1', 'def f():', '    return 2']
    >>> code.place(4)
    (2, 2)
    """
    try:
        cells = json.loads(content)["cells"]
        texts = [_text(cell) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"the file cannot be read as a notebook ({type(error).__name__}); save it with Jupyter"
        ) from None
    if not texts:
        raise ValueError("the notebook has no code cell")
    lines, first_lines = 1, []
    for text in texts:
        first_lines.append(lines)
        lines += text.count("\n")
    return Code("".join(texts).encode("utf-8", errors="replace"), tuple(first_lines))


def _text(cell: dict[str, Any]) -> str:
    """The Python code of a cell, with the same number of lines."""
    source = cell["source"]
    text = source if isinstance(source, str) else "".join(map(str, source))
    text = text.replace("\r\n", "\n").replace("\r", "\n") + "\n"
    if text.startswith("%%") and text.split()[0] not in _PYTHON_TOO:
        return "\n" * text.count("\n")
    return _MAGIC.sub(r"\1pass", text)
