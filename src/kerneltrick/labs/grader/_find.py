"""Which lab a file is of, and which files of a folder are submissions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kerneltrick._text import nearest
from kerneltrick.labs.grader._grade import LARGEST_FILE
from kerneltrick.labs.grader._lab import Lab

DEEPEST = 4  # folders in folders
NOT_SUBMISSIONS = {"conftest.py", "setup.py", "__init__.py", "__main__.py"}
NOT_SEARCHED = {"tests", "__pycache__", "site-packages", "node_modules"}


@dataclass(frozen=True)
class Submission:
    """A file to grade, as the lab it is of; `name` tells it apart from the others."""

    name: str
    path: Path
    lab: Lab


def find_lab(text: str, labs: dict[str, Lab]) -> Lab:
    """A lab by its number, folder or module; ValueError that says what exists.

    >>> from kerneltrick.labs import grader
    >>> find_lab("2", grader.labs()).folder, find_lab("feature_maps", grader.labs()).number
    ('lab02_kernel_trick', '03')
    """
    word = text.strip().lower().rstrip("/")
    for lab in labs.values():
        number = lab.number.lstrip("0")
        names = {number, lab.number, f"lab{number}", f"lab{lab.number}", lab.folder, lab.module}
        if word in names or word == lab.folder.partition("_")[2]:
            return lab
    known = [*labs, *(lab.module for lab in labs.values())]
    raise ValueError(f"there is no lab {text!r}; {nearest(word, known)}")


def recognise(path: Path, labs: dict[str, Lab]) -> Lab | None:
    """The lab a file is of: by its name, else by the functions it defines."""
    for lab in labs.values():
        if path.stem.lower() == lab.module:
            return lab
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST_FILE + 1)
    except OSError:
        return None
    defined = set(re.findall(r"^def\s+(\w+)", source.decode(errors="replace"), re.M))
    counts = [(len(defined & {e.name for e in lab.exercises}), lab) for lab in labs.values()]
    most = max((count for count, _ in counts), default=0)
    best = [lab for count, lab in counts if count == most]
    return best[0] if most and len(best) == 1 else None


def submissions(
    where: Path, labs: dict[str, Lab], lab: Lab | None = None
) -> tuple[list[Submission], list[Path]]:
    """The files to grade below `where`, and the Python files that are of no lab.

    `where` is a file, the folder of a lab, or a folder of any of these.
    """
    found: list[Submission] = []
    unknown: list[Path] = []
    _search(where, where if where.is_dir() else where.parent, labs, lab, 0, found, unknown)
    return found, unknown


def _search(
    path: Path,
    root: Path,
    labs: dict[str, Lab],
    lab: Lab | None,
    depth: int,
    found: list[Submission],
    unknown: list[Path],
) -> None:
    if path.is_file():
        own = lab or recognise(path, labs)
        if own is None:
            unknown.append(path)
        else:
            found.append(Submission(path.relative_to(root).as_posix(), path, own))
        return
    wanted = [lab] if lab else list(labs.values())
    inside = [(x, path / x.file) for x in wanted if (path / x.file).is_file()]
    if inside:  # the folder of a lab, or of several that share it
        for own, file in inside:
            found.append(Submission(file.relative_to(root).as_posix(), file, own))
        return
    for child in sorted(path.iterdir()) if depth <= DEEPEST else ():
        name = child.name
        if name.startswith(".") or name in NOT_SEARCHED or (child / "pyvenv.cfg").exists():
            continue
        wanted_file = child.suffix == ".py" and name not in NOT_SUBMISSIONS
        if child.is_dir() or (wanted_file and not name.startswith("test_")):
            _search(child, root, labs, lab, depth + 1, found, unknown)
