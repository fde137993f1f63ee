"""Files and parts of pages that tools write, and check to be up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from kerneltrick._files import write

ROOT = Path(__file__).resolve().parent.parent


def update(wanted: dict[Path, str], check: bool, target: str) -> int:
    """Write the files that are not as wanted; with `check` only name them, and return 1."""
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if check and stale:
        names = ", ".join(map(str, stale))
        print(f"not up to date, run make {target}: {names}", file=sys.stderr)
        return 1
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, wanted[path])
        print(f"wrote {path}")
    return 0


def page_with(page: str, block: str, begin: str, end: str) -> str:
    """The page with `block` between its lines `begin` and `end`."""
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise ValueError(f"the page needs a line {begin} and, after it, a line {end}")
    return f"{before}{begin}\n{block}\n{end}{after}"
