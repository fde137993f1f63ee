"""The roster of a class: a list of names, and which submissions belong to them."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from kerneltrick.labs import grader

NOTHING = "nothing to grade"
ABSENT = "not handed in"
NAME_COLUMNS = ("student", "name", "full name", "username", "user", "id")


def read_roster(path: Path) -> list[str]:
    """The names of a roster: one per line, or a column of a CSV file.

    The column is the one whose title is in NAME_COLUMNS, else the first. ValueError if there are no
    names.
    """
    text = path.read_bytes().decode("utf-8-sig")
    first = text.partition("\n")[0]
    mark = max(",;\t", key=first.count)
    lines = csv.reader(io.StringIO(text), delimiter=mark)
    rows = [row for row in lines if any(map(str.strip, row))]
    if not rows:
        raise ValueError("it has no names")
    titles = [cell.strip().lower() for cell in rows[0]]
    column = next((titles.index(title) for title in NAME_COLUMNS if title in titles), None)
    at, rest = (0, rows) if column is None else (column, rows[1:])
    found = list(dict.fromkeys(filter(None, (row[at].strip() for row in rest if len(row) > at))))
    if not found:
        raise ValueError("it has no names")
    return found


def on_roster(students: Mapping[str, tuple[str, ...]], roster: Sequence[str]) -> dict[str, str]:
    """{student: name on the roster} of those who are on it.

    Case, accents' encoding, spaces and underscores do not matter. What follows the name does not
    matter either, as in "Ada Lovelace_12345_assignsubmission_file"; the longest name wins.
    """
    known = {_key(name): name for name in roster}
    found = {}
    for student in students:
        key = _key(student.rpartition("/")[2])
        fitting = [name for name in known if key == name or key.startswith(f"{name} ")]
        fitting = fitting or [name for name in known if _key(student) == name]
        if fitting:
            found[student] = known[max(fitting, key=len)]
    return found


def _key(name: str) -> str:
    return re.sub(r"[\W_]+", " ", unicodedata.normalize("NFC", name).casefold()).strip()


def with_roster(found: grader.Found, roster: Sequence[str]) -> tuple[grader.Found, list[str]]:
    """The submissions under the names of the roster, absentees too; and who is not on it."""
    names = on_roster(found.students, roster)
    students: dict[str, tuple[str, ...]] = dict.fromkeys(roster, ())
    reasons = {}
    strangers = [student for student in found.students if student not in names]
    for student, files in found.students.items():
        name = names.get(student, student)
        students[name] = (*students.get(name, ()), *files)
        if student in found.reasons:
            reasons[name] = found.reasons[student]
        elif student in names and not files:
            reasons[name] = NOTHING
    for name in roster:
        if not students[name]:
            reasons.setdefault(name, ABSENT)
    return grader.Found(found.submissions, students, reasons, found.left_out), strangers
