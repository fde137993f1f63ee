"""Which lab a file belongs to, and which files of a folder are submissions, and whose."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kerneltrick._text import nearest
from kerneltrick.labs.grader._archive import Budget, NotUnpacked, is_archive, unpack
from kerneltrick.labs.grader._grade import LARGEST_FILE
from kerneltrick.labs.grader._lab import Lab
from kerneltrick.labs.grader._notebook import LARGEST_NOTEBOOK, read_notebook

DEEPEST = 4  # folders in folders
NOT_SUBMISSIONS = {"conftest.py", "setup.py", "__init__.py", "__main__.py"}
NOT_SEARCHED = {"tests", "docs", "__pycache__", "__MACOSX", "site-packages", "node_modules"}
NO_LAB = "it has no function of a lab, or cannot be read"
_COPY = re.compile(
    r"(?: ?\(\d+\)|(?: - |[ _-])(?:copy|kopie)(?: ?\(?\d+\)?)?)$", re.I
)  # "kernel_trick (1)", "kernel_trick - Copy", "kernel_trick-Copy1"
_COURSE = re.compile(
    r"(?P<name>.+?)_(?:late_)?(?P<id>\d+)_(?:assignsubmission_.*|(?P<upload>\d{3,})_.+)", re.I
)  # Moodle's "Ada Lovelace_123_assignsubmission_file_", Canvas's "lovelaceada_late_123_456_lab-1"


@dataclass(frozen=True)
class Submission:
    """A file to grade and the lab it belongs to. `name` is unique among the submissions."""

    name: str
    path: Path
    lab: Lab

    @property
    def changed(self) -> float:
        """When the file was last changed, in seconds."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0


@dataclass(frozen=True)
class Found:
    """The files to grade below a folder, and what else is there.

    `students` holds the names of each student's files. Several files of one lab are versions, of
    which one counts. A student without files has nothing to grade; `reasons` may say why.
    `left_out` are files that are not graded, by name, each with the reason.
    """

    submissions: tuple[Submission, ...]
    students: dict[str, tuple[str, ...]]
    reasons: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


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


def find_submissions(
    where: Path, labs: dict[str, Lab], lab: Lab | None = None, scratch: Path | None = None
) -> Found:
    """The files to grade. `where` is a file, a lab's folder, or a folder with any of these.

    Zip files are unpacked into `scratch`, an empty folder that must last until the files are
    graded. Without it they are left out.
    """
    search = _Search(where if where.is_dir() else where.parent, labs, lab, scratch)
    if where.is_file() and is_archive(where):
        search.look_into_archive(where, alone=True)
    else:
        search.look(where, 0)
    students = _by_student(search.root, search.found, labs)
    if search.root.is_dir() and not where.is_file():
        students |= dict.fromkeys(_empty(search.root, search.found, students), ())
    reasons: dict[str, str] = {}
    for name, reason in search.refused.items():
        owner = _owner_of(name, students, labs)
        if not students.setdefault(owner, ()):
            reasons[owner] = reason
    left_out = dict(sorted({**search.left_out, **search.refused}.items()))
    names = _without_ids([*students])
    renamed: dict[str, tuple[str, ...]] = {}
    for owner in sorted(students, key=lambda x: names[x]):
        renamed[names[owner]] = (*renamed.get(names[owner], ()), *students[owner])
    reasons = {names[x]: why for x, why in reasons.items() if not renamed[names[x]]}
    return Found(tuple(search.found), renamed, reasons, left_out)


def _without_ids(students: list[str]) -> dict[str, str]:
    """The students' names without what a course system adds to them.

    A number stays where two students have the same name. Where two files have the same number of
    an upload, it is none.

    >>> mark = "_assignsubmission_file_"
    >>> [*_without_ids([f"Ada L_1{mark}", "bob_late_12_345_lab-1", "eve"]).values()]
    ['Ada L', 'bob', 'eve']
    >>> [*_without_ids([f"Ada L_1{mark}", f"Ada L_2{mark}"]).values()]
    ['Ada L_1', 'Ada L_2']
    """
    parts = {part for student in students for part in student.split("/")}
    marked = {part: found for part in parts if (found := _COURSE.fullmatch(part))}
    uploads = Counter(found["upload"] for found in marked.values() if found["upload"])
    plain = {
        part: (found["name"], f"{found['name']}_{found['id']}")
        for part, found in marked.items()
        if uploads[found["upload"]] < 2
    }
    shared = Counter(name for name, _ in set(plain.values()))
    short = {part: name if shared[name] == 1 else own for part, (name, own) in plain.items()}
    return {x: "/".join(short.get(part, part) for part in x.split("/")) for x in students}


def _owners(name: str, labs: dict[str, Lab]) -> list[str]:
    """The parts of a file's name that may tell whose it is: neither labs nor marks of a copy."""
    labels = {"src", "notebooks"}
    for lab in labs.values():  # a folder that is a mere number is one of a student
        labels |= {label for label in _names(lab) if not label.isdigit()}
    return [part for part in _plain(name) if part.lower() not in labels]


def _plain(name: str) -> list[str]:
    """The parts of a file's name without endings and marks of a copy.

    >>> _plain("ada (1).zip/src/kernel_trick - Copy.py")
    ['ada', 'src', 'kernel_trick']
    """
    *folders, file = PurePosixPath(name).parts
    plain = [re.sub(r"\.zip$", "", part, flags=re.I) for part in folders]
    return [_COPY.sub("", part) or part for part in (*plain, PurePosixPath(file).stem)]


def _owner_of(name: str, students: dict[str, tuple[str, ...]], labs: dict[str, Lab]) -> str:
    """Whose file it is, in a folder whose students are known."""
    parts = _owners(name, labs) or [PurePosixPath(name).stem]
    for depth in range(1, len(parts)):
        owner = "/".join(parts[:depth])
        if not any(student.startswith(f"{owner}/") for student in students):
            return owner
    return "/".join(parts)


def _by_student(
    root: Path, found: list[Submission], labs: dict[str, Lab]
) -> dict[str, tuple[str, ...]]:
    """The names of the files by student: the first folder that is not named after a lab.

    Where this gives a student two files of one lab with different names, the folder is taken for
    one of several students, and the folder or file below counts too. Files whose names differ only
    in their ending or in the mark of a copy are versions of one student.
    """
    owners = {submission.name: _owners(submission.name, labs) for submission in found}

    def split(some: list[Submission], depth: int) -> dict[str, tuple[str, ...]]:
        groups: dict[str, list[Submission]] = {}
        for submission in some:
            name = "/".join(owners[submission.name][:depth])
            groups.setdefault(name or root.resolve().name, []).append(submission)
        result: dict[str, tuple[str, ...]] = {}
        for name, group in groups.items():
            once = len({s.lab.number for s in group}) == len(group)
            if once or all(len(owners[s.name]) <= depth for s in group):
                result[name] = (*result.get(name, ()), *(s.name for s in group))
            else:
                for owner, names in split(group, depth + 1).items():
                    result[owner] = (*result.get(owner, ()), *names)
        return result

    return split(found, 1)


def _empty(root: Path, found: list[Submission], students: dict[str, tuple[str, ...]]) -> list[str]:
    """The folders beside those of students, in which there is nothing to grade."""
    files = [root.joinpath(*_plain(s.name)) for s in found]
    full = {parent for file in files for parent in file.parents}
    full |= {parent for s in found for parent in (root / s.name).parents}
    own = full | set(files)
    beside = {file.parent for file in files if file.name in students}
    for name in students:
        if root / name in own:
            beside |= {root / parent for parent in PurePosixPath(name).parents}
    return [
        child.relative_to(root).as_posix()
        for parent in beside
        if parent.is_dir()
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
    scratch: Path | None
    found: list[Submission] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # archives: something was handed in
    unpacked: dict[Path, str] = field(default_factory=dict)  # folders in scratch: their archives
    budgets: dict[Path, Budget] = field(default_factory=dict)  # one for an archive and those in it
    seen: set[Path] = field(default_factory=set)  # folders: links may lead in a circle

    def look(self, path: Path, depth: int) -> None:
        if path.is_file() and is_archive(path):
            self.look_into_archive(path)
        elif path.is_file():
            own = self.lab or recognise(path, self.labs)
            if own is None:
                self.left_out[self._name(path)] = NO_LAB
            else:
                self._add(path, own)
        elif not path.is_dir():  # a link that leads nowhere, a pipe
            self.left_out[self._name(path)] = NO_LAB
        elif path.resolve() not in self.seen:
            self.seen.add(path.resolve())
            self._look_inside(path, depth)

    def look_into_archive(self, path: Path, alone: bool = False) -> None:
        """Search a zip file as if it were a folder; `alone`, it is the folder that is searched."""
        name = self._name(path)
        if self.scratch is None:
            self.refused[name] = "an archive: unpack it first"
            return
        outer = next((x for x in self.unpacked if path.is_relative_to(x)), None)
        budget = Budget() if outer is None else self.budgets[outer]
        target = self.scratch / str(len(self.budgets)) / (path.stem or "archive")
        self.budgets[target] = budget
        target.mkdir(parents=True)
        try:
            left_out = unpack(path, target, budget, inside=outer is not None)
        except NotUnpacked as error:
            self.refused[name] = str(error)
            return
        if alone:
            self.root = target
        self.unpacked[target] = name
        before = len(self.found), len(self.left_out), len(self.refused)
        self.refused |= {f"{name}/{other}": reason for other, reason in left_out.items()}
        self.look(target, 1)
        if before == (len(self.found), len(self.left_out), len(self.refused)):
            self.refused[name] = "no Python file and no notebook is in it"

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
            self.left_out[self._name(path)] = "the folder cannot be read"
            return
        for child in filter(_searched, children):
            name = child.name
            python = child.suffix == ".py" and not name.startswith("test_")
            wanted_file = (python and name not in NOT_SUBMISSIONS) or child.suffix == ".ipynb"
            if inside and (child.is_dir() or python):  # beside its file a lab may have a notebook
                continue
            if child.is_dir() or wanted_file or (is_archive(child) and child.is_file()):
                self.look(child, depth + 1)

    def _name(self, path: Path) -> str:
        """A file's name below the root; one in an archive has the archive for a folder."""
        for folder, archive in self.unpacked.items():
            if folder != self.root and path.is_relative_to(folder):
                return f"{archive}/{path.relative_to(folder).as_posix()}"
        return path.relative_to(self.root).as_posix()

    def _add(self, path: Path, lab: Lab) -> None:
        self.found.append(Submission(self._name(path), path, lab))
