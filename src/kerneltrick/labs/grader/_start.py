"""The student folders: where they are, and how to copy one to work in."""

from __future__ import annotations

import contextlib
import json
import os.path
import posixpath
import re
from pathlib import Path

from kerneltrick.labs.grader._lab import Lab

_LEFT_OUT = {"__pycache__", ".pytest_cache", ".ruff_cache", ".venv", "uv.lock"}
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((?!\w+:|#)([^)#]*)(#[^)]*)?\)")
_REPOSITORY_TESTS = re.compile(r" *`pytest tests/[^`]*`[^.]*\.")  # a sentence for developers
_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")


def folder(lab: Lab) -> Path:
    """The student folder of a lab, in the installed package or in a checkout."""
    return _home(lab) / "labs" / lab.folder


def page(lab: Lab) -> Path:
    """The theory page of a lab."""
    return _home(lab) / _pages(lab)[0]


def has_notebook(lab: Lab) -> bool:
    """Whether there is a notebook of the lab."""
    return (_home(lab) / _notebook(lab)).is_file()


def start(lab: Lab, target: Path, notebook: bool = False) -> list[Path]:
    """Copy the student folder and the theory to `target`, and return the files that were written.

    With `notebook`, the notebook replaces the student's file. If one of the files exists already,
    FileExistsError is raised and nothing is written.
    """
    home = _home(lab)
    copies = _copies(lab, home, notebook)
    for name in copies.values():
        if (target / name).exists() or (target / name).is_symlink():
            raise FileExistsError(f"{target / name} exists already; nothing was written")
    written: list[Path] = []
    made: list[Path] = []
    try:
        for origin, name in copies.items():
            path = target / name
            for parent in [p for p in (*reversed(path.parents),) if not p.exists()]:
                parent.mkdir()
                made.append(parent)
            content = _content(home, origin, copies)
            with path.open("xb") as file:
                written.append(path)
                file.write(content)
    except BaseException:
        for path in reversed(written):
            path.unlink(missing_ok=True)
        for parent in reversed(made):
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    return written


def _home(lab: Lab) -> Path:
    """The folder that holds labs/ and docs/."""
    package = Path(__file__).resolve().parents[2]
    for home in (package, package.parents[1]):
        if (home / "labs" / lab.folder / lab.file).is_file():
            return home
    raise FileNotFoundError(f"the folder of lab {lab.number} was not installed with kerneltrick")


def _notebook(lab: Lab) -> str:
    return f"labs/notebooks/{lab.folder}.ipynb"


def _pages(lab: Lab) -> list[str]:
    """The theory pages that the README links to, relative to the home; its own comes first."""
    text = (folder(lab) / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"\]\(\.\./\.\./(docs/[^)#]+\.md)", text)
    return list(dict.fromkeys(found))


def _copies(lab: Lab, home: Path, notebook: bool) -> dict[str, str]:
    """{file relative to the home: file of the student}."""
    own = f"labs/{lab.folder}"
    found = {
        path.relative_to(home).as_posix(): path.relative_to(home / own).as_posix()
        for path in sorted((home / own).rglob("*"))
        if path.is_file() and not _LEFT_OUT & set(path.relative_to(home).parts)
    }
    if notebook:
        if not has_notebook(lab):
            raise FileNotFoundError(f"lab {lab.number} has no notebook")
        del found[f"{own}/{lab.file}"]
        found[_notebook(lab)] = f"{lab.folder}.ipynb"
    for name in _pages(lab):
        found[name] = name
        for picture in _PICTURE.findall((home / name).read_text(encoding="utf-8")):
            found[f"docs/{picture}"] = f"docs/{picture}"
    return found


def _content(home: Path, origin: str, copies: dict[str, str]) -> bytes:
    """A file as the student gets it: links lead to copied files, other links become plain text."""
    if not origin.endswith((".md", ".ipynb")):
        return (home / origin).read_bytes()
    here = posixpath.dirname(origin)
    there = posixpath.dirname(copies[origin])

    def relink(found: re.Match[str]) -> str:
        leads_to = posixpath.normpath(posixpath.join(here, found[2]))
        if leads_to not in copies:
            return found[1]
        link = os.path.relpath(copies[leads_to], there or ".").replace(os.sep, "/")
        return f"[{found[1]}]({link}{found[3] or ''})"

    text = (home / origin).read_text(encoding="utf-8")
    if origin.startswith("docs/"):
        text = _REPOSITORY_TESTS.sub("", text)
    if not origin.endswith(".ipynb"):
        return _LINK.sub(relink, text).encode("utf-8")
    book = json.loads(text)
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = _LINK.sub(relink, source)
        else:  # the cell that runs the tests looks for the lab's folder
            source = re.sub(r'Path\("\.\./lab\w+"\)', 'Path(".")', source)
        cell["source"] = source.splitlines(keepends=True)
    return (json.dumps(book, ensure_ascii=False, indent=1) + "\n").encode("utf-8")
