"""Which lab a file is of, and which files of a folder are submissions, of which student."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kerneltrick._text import nearest
from kerneltrick.labs.grader._grade import LARGEST_FILE
from kerneltrick.labs.grader._lab import Lab
from kerneltrick.labs.grader._notebook import LARGEST_NOTEBOOK, read_notebook

DEEPEST = 4  # folders in folders
NOT_SUBMISSIONS = {"conftest.py", "setup.py", "__init__.py", "__main__.py"}
NOT_SEARCHED = {"tests", "docs", "__pycache__", "site-packages", "node_modules"}


@dataclass(frozen=True)
class Submission:
    """A file to grade, as the lab it is of; `name` tells it apart from the others."""

    name: str
    path: Path
    lab: Lab


@dataclass(frozen=True)
class Found:
    """The files to grade below a folder, and what else is there.

    `students` holds the names of the files of each student, one of a lab at most; none where there
    is nothing to grade. `unknown` are Python files and notebooks of no lab, and what cannot be
    read.
    """

    submissions: tuple[Submission, ...]
    students: dict[str, tuple[str, ...]]
    unknown: tuple[Path, ...]


def find_lab(text: str, labs: dict[str, Lab]) -> Lab:
    """A lab by its number, folder or module; ValueError that says what exists.

    >>> from kerneltrick.labs import grader
    >>> find_lab("2", grader.labs()).folder, find_lab("feature_maps", grader.labs()).number
    ('lab02_kernel_trick', '03')
    """
    word = text.strip().lower().rstrip("/")
    for lab in labs.values():
        if word in _names(lab):
            return lab
    known = [*labs, *(lab.module for lab in labs.values())]
    raise ValueError(f"there is no lab {text!r}; {nearest(word, known)}")


def _names(lab: Lab) -> set[str]:
    """What a lab is called, by people and by folders."""
    number = lab.number.lstrip("0")
    short = lab.folder.partition("_")[2]
    return {
        number, lab.number, f"lab{number}", f"lab{lab.number}", lab.folder, lab.module, short
    }  # fmt: skip


def recognise(path: Path, labs: dict[str, Lab]) -> Lab | None:
    """The lab a file is of: by its name, else by the functions it defines."""
    for lab in labs.values():
        if path.stem.lower() in (lab.module, lab.folder):
            return lab
    defined = set(re.findall(r"^def\s+(\w+)", _code(path), re.M))
    counts = [(len(defined & {e.name for e in lab.exercises}), lab) for lab in labs.values()]
    most = max((count for count, _ in counts), default=0)
    best = [lab for count, lab in counts if count == most]
    return best[0] if most and len(best) == 1 else None


def _code(path: Path) -> str:
    """The Python of a file, as far as it can be read."""
    notebook = path.suffix == ".ipynb"
    try:
        with path.open("rb") as file:
            source = file.read((LARGEST_NOTEBOOK if notebook else LARGEST_FILE) + 1)
        if notebook:
            source = read_notebook(source).source
    except (OSError, ValueError):
        return ""
    wide = source.startswith((b"\xff\xfe", b"\xfe\xff"))  # cannot be graded, but should be named
    return source.decode("utf-16" if wide else "utf-8", errors="replace")


def find_submissions(where: Path, labs: dict[str, Lab], lab: Lab | None = None) -> Found:
    """The files to grade: `where` is a file, the folder of a lab, or a folder of any of these."""
    root = where if where.is_dir() else where.parent
    search = _Search(root, labs, lab)
    search.look(where, 0)
    students = _by_student(root, search.found, labs)
    if where.is_dir():
        students |= dict.fromkeys(_empty(root, search.found, students), ())
    return Found(tuple(search.found), dict(sorted(students.items())), tuple(search.unknown))


def _by_student(
    root: Path, found: list[Submission], labs: dict[str, Lab]
) -> dict[str, tuple[str, ...]]:
    """The names of the files by student, who is the first folder that is not that of a lab.

    Where this gives a student two files of one lab it was a folder of several students, or of
    several versions: then the folder or file below counts too.
    """
    labels = {"src", "notebooks"}
    for lab in labs.values():  # a folder that is a mere number is one of a student
        labels |= {name for name in _names(lab) if not name.isdigit()}
    owners: dict[str, list[str]] = {}
    for submission in found:
        parts = PurePosixPath(submission.name).with_suffix("").parts
        owners[submission.name] = [part for part in parts if part.lower() not in labels]

    def split(some: list[Submission], depth: int) -> dict[str, tuple[str, ...]]:
        groups: dict[str, list[Submission]] = {}
        for submission in some:
            name = "/".join(owners[submission.name][:depth])
            groups.setdefault(name or root.resolve().name, []).append(submission)
        result: dict[str, tuple[str, ...]] = {}
        for name, group in groups.items():
            if len({s.lab.number for s in group}) == len(group):
                result[name] = tuple(s.name for s in group)
            elif any(len(owners[s.name]) > depth for s in group):
                result |= split(group, depth + 1)
            else:
                result |= {s.name: (s.name,) for s in group}
        return result

    return split(found, 1)


def _empty(root: Path, found: list[Submission], students: dict[str, tuple[str, ...]]) -> list[str]:
    """The folders beside those of students, in which there is nothing to grade."""
    full = {parent for s in found for parent in s.path.parents}
    own = full | {s.path.with_suffix("") for s in found}
    beside = {s.path.parent for s in found if s.path.stem in students}
    for name in students:
        if root / name in own:
            beside |= {root / parent for parent in PurePosixPath(name).parents}
    return [
        child.relative_to(root).as_posix()
        for parent in beside
        for child in sorted(parent.iterdir())
        if child.is_dir() and child not in full and _searched(child)
    ]


def _searched(path: Path) -> bool:
    hidden = path.name.startswith(".") or path.name in NOT_SEARCHED
    return not hidden and not (path / "pyvenv.cfg").exists()


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
        if depth > DEEPEST:
            return
        try:
            children = sorted(path.iterdir())
        except OSError:
            self.unknown.append(path)
            return
        for child in filter(_searched, children):
            name = child.name
            python = child.suffix == ".py" and not name.startswith("test_")
            wanted_file = (python and name not in NOT_SUBMISSIONS) or child.suffix == ".ipynb"
            if inside and (child.is_dir() or python):  # beside its file a lab may have a notebook
                continue
            if child.is_dir() or wanted_file:
                self.look(child, depth + 1)

    def _add(self, path: Path, lab: Lab) -> None:
        self.found.append(Submission(path.relative_to(self.root).as_posix(), path, lab))
