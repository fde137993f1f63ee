"""Which lab a file is of, and which files of a folder are submissions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
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
    wide = source.startswith((b"\xff\xfe", b"\xfe\xff"))  # cannot be graded, but should be named
    text = source.decode("utf-16" if wide else "utf-8", errors="replace")
    defined = set(re.findall(r"^def\s+(\w+)", text, re.M))
    counts = [(len(defined & {e.name for e in lab.exercises}), lab) for lab in labs.values()]
    most = max((count for count, _ in counts), default=0)
    best = [lab for count, lab in counts if count == most]
    return best[0] if most and len(best) == 1 else None


def submissions(
    where: Path, labs: dict[str, Lab], lab: Lab | None = None
) -> tuple[list[Submission], list[Path]]:
    """The files to grade below `where`, and the Python files that are of no lab.

    `where` is a file, the folder of a lab, or a folder of any of these. What cannot be read is
    among the second.
    """
    search = _Search(where if where.is_dir() else where.parent, labs, lab)
    search.look(where, 0)
    return search.found, search.unknown


@dataclass
class _Search:
    root: Path
    labs: dict[str, Lab]
    lab: Lab | None
    found: list[Submission] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)  # folders: links may lead in a circle

    def look(self, path: Path, depth: int) -> None:
        if path.is_file():
            own = self.lab or recognise(path, self.labs)
            if own is None:
                self.unknown.append(path)
            else:
                self._add(path, own)
        elif not path.is_dir():  # a link that leads nowhere, a pipe
            self.unknown.append(path)
        elif path.resolve() not in self.seen:
            self.seen.add(path.resolve())
            self._look_inside(path, depth)

    def _look_inside(self, path: Path, depth: int) -> None:
        wanted = [self.lab] if self.lab else list(self.labs.values())
        inside = [(own, path / own.file) for own in wanted if (path / own.file).is_file()]
        for own, file in inside:  # the folder of a lab, or of several that share it
            self._add(file, own)
        if inside or depth > DEEPEST:
            return
        try:
            children = sorted(path.iterdir())
        except OSError:
            self.unknown.append(path)
            return
        for child in children:
            name = child.name
            if name.startswith(".") or name in NOT_SEARCHED or (child / "pyvenv.cfg").exists():
                continue
            wanted_file = child.suffix == ".py" and name not in NOT_SUBMISSIONS
            if child.is_dir() or (wanted_file and not name.startswith("test_")):
                self.look(child, depth + 1)

    def _add(self, path: Path, lab: Lab) -> None:
        self.found.append(Submission(path.relative_to(self.root).as_posix(), path, lab))
