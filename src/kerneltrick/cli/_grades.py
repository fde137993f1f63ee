"""What `kerneltrick lab check` does: grade many files; print tables, JSON and CSV; feedback."""

from __future__ import annotations

import csv
import io
import queue
import re
import unicodedata
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import typer
from rich import box
from rich.table import Table

from kerneltrick import _files
from kerneltrick._text import printable, to_json
from kerneltrick.cli._output import console, plain, show_progress
from kerneltrick.cli._roster import NOTHING
from kerneltrick.labs import grader

WALLS = {
    "network": "student code can reach the network and other programs",
    "processes": "student code can start other processes, each with its own memory, or end yours",
    "files": "student code can change the files that you can change",
}
MARK = "<!-- written by kerneltrick lab check -->"  # a file without it is not overwritten


@dataclass(frozen=True)
class Graded:
    """The reports by the name of their file, and the walls that were missing."""

    reports: dict[str, grader.Report]
    stopped: bool = False
    missing_walls: tuple[str, ...] = ()


def grade_all(found: Sequence[grader.Submission], limits: grader.Limits, jobs: int) -> Graded:
    """Grade the files, `jobs` at a time. Ctrl-C stops and returns what was graded so far."""
    reports: dict[str, grader.Report] = {}
    servers = [grader.Server(limits) for _ in range(min(jobs, len(found)))]
    free: queue.SimpleQueue[grader.Server] = queue.SimpleQueue()
    for server in servers:
        free.put(server)
    pool = ThreadPoolExecutor(len(servers))
    with show_progress(False) as progress:

        def grade(submission: grader.Submission) -> tuple[grader.Report, set[str]]:
            server = free.get()
            try:
                report = grader.grade_file(
                    submission.lab,
                    submission.path,
                    submission.name,
                    server,
                    progress if len(found) == 1 else None,
                )
                return report, set(server.walls)
            finally:
                free.put(server)

        standing = set(WALLS)
        try:
            waiting = {pool.submit(grade, submission): submission.name for submission in found}
            for future in as_completed(waiting):
                reports[waiting[future]], walls = future.result()
                standing &= walls
                if progress is not None and len(found) > 1:
                    progress(f"{len(reports)} of {len(found)} files", len(reports), len(found))
        except KeyboardInterrupt:
            return Graded(reports, stopped=True)
        finally:
            for server in servers:
                server.cancel()
            pool.shutdown(cancel_futures=True)
            for server in servers:
                server.close()
    missing = tuple(text for wall, text in WALLS.items() if wall not in standing)
    return Graded({s.name: reports[s.name] for s in found}, missing_walls=missing)


@dataclass
class Class:
    """What was graded, by student: {student: {lab: report}}, and what does not count.

    A student without reports has a reason in `reasons`. `versions` are reports of files that do not
    count since the same student has a better one, each with its student.
    """

    students: dict[str, dict[str, grader.Report]]
    reasons: dict[str, str] = field(default_factory=dict)
    versions: list[tuple[str, grader.Report]] = field(default_factory=list)

    @property
    def labs(self) -> list[str]:
        return sorted({lab for own in self.students.values() for lab in own})

    @property
    def reports(self) -> list[grader.Report]:
        return [report for own in self.students.values() for report in own.values()]

    @property
    def right(self) -> bool:
        return all(_done(own) for own in self.students.values())


def sort_out(found: grader.Found, reports: Mapping[str, grader.Report]) -> Class:
    """The reports by student. Of several files of one lab the best counts, then the newest."""
    changed = {s.name: s.changed for s in found.submissions}
    result = Class({})
    for student, names in found.students.items():
        own = sorted(
            (reports[name] for name in names if name in reports),
            key=lambda report: (report.score, changed[report.file]),
        )
        best = {report.lab: report for report in own}  # the last one of a lab stays
        result.students[student] = dict(sorted(best.items()))
        result.versions += [(student, r) for r in own if best[r.lab] is not r]
        if not best:
            result.reasons[student] = found.reasons.get(student, NOTHING)
    return result


def about_versions(graded: Class) -> list[str]:
    """A warning for each student who handed in several files of one lab."""
    texts: dict[tuple[str, str], list[str]] = {}
    for student, report in graded.versions:
        texts.setdefault((student, report.lab), []).append(f"{report.file} ({report.score:.0%})")
    found = []
    for (student, lab), others in texts.items():
        best = graded.students[student][lab]
        found.append(
            f"{student} has {len(others) + 1} files of lab {lab}; the best one counts: "
            f"{best.file} ({best.score:.0%}), not {', '.join(others)}"
        )
    return [printable(text) for text in found]


def show_one(report: grader.Report) -> None:
    """A table of the functions of a file."""
    lab = grader.labs()[report.lab]
    typer.echo(f"Lab {lab.number}, {lab.title}: {printable(report.file)}")
    rows = [
        (f.name, f"{f.passed}/{f.cases}", "right" if f.right else f.hint or "")
        for f in report.functions
    ]
    print_table(("function", "cases", ""), rows)
    for problem in report.problems:
        typer.echo(f"outside the functions: {problem.hint}")
    typer.echo(_summary(report))


def show_students(graded: Class) -> None:
    """A table with one row for each student."""
    labs = graded.labs
    rows = []
    for student, own in graded.students.items():
        hint = _hint(own) if own else graded.reasons.get(student, NOTHING)
        scores = [f"{own[lab].score:.0%}" if lab in own else "–" for lab in labs]
        if len(labs) == 1:
            only = own.get(labs[0])
            scores.append(f"{_right(only)}/{len(only.functions)}" if only else "–")
        rows.append((student, *scores, hint))
    names = ("score", "right") if len(labs) == 1 else labs
    typer.echo(f"{len(rows)} students, {', '.join(f'lab {lab}' for lab in labs)}")
    print_table(("student", *names, "first hint"), rows)
    done = sum(map(_done, graded.students.values()))
    typer.echo(f"{done} of {len(rows)} students have everything right")


def as_csv(graded: Class) -> str:
    """A row for each student, and for each lab its file, score, functions and hints."""
    labs = graded.labs
    functions = {lab: [e.name for e in grader.labs()[lab].exercises] for lab in labs}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    titles = ["student"]
    for lab in labs:
        columns = ("file", "score", "right", "functions", "hint", *functions[lab], "hints")
        titles += [f"lab{lab}_{column}" for column in columns]
    rows.writerow(titles)
    for student, own in graded.students.items():
        row: list[object] = [_cell(student)]
        for lab in labs:
            if lab not in own:
                reason = _cell(graded.reasons.get(student, NOTHING))
                row += ["", "", "", "", reason, *("" for _ in functions[lab]), reason]
                continue
            report = own[lab]
            shares = {f.name: round(f.passed / max(1, f.cases), 4) for f in report.functions}
            row += [
                _cell(report.file),
                round(report.score, 4),
                _right(report),
                len(report.functions),
                _cell(_hint({lab: report})),
                *(shares.get(name, "") for name in functions[lab]),
                _cell(" | ".join(_hints(report))),
            ]
        rows.writerow(row)
    return text.getvalue()


def as_json(graded: Class, single: bool) -> str:
    if single:
        (report,) = graded.reports
        return to_json({"format": "kerneltrick.lab/1", **report.to_json()}, indent=1)
    found = {
        "submissions": [
            {"student": student, **report.to_json()}
            for student, own in graded.students.items()
            for report in own.values()
        ],
        "nothing_to_grade": [student for student, own in graded.students.items() if not own],
        "reasons": graded.reasons,
        "not_counted": [
            {"student": student, "lab": r.lab, "file": r.file, "score": round(r.score, 4)}
            for student, r in graded.versions
        ],
    }
    return to_json({"format": "kerneltrick.lab/1", **found}, indent=1)


def write_feedback(graded: Class, folder: Path) -> int:
    """Write a Markdown file for each student into the folder, and return how many.

    A file there that this function did not write raises FileExistsError, and nothing is written.
    """
    texts: dict[str, str] = {}
    for student, own in graded.students.items():
        stem = name = _file_name(student)
        taken = {other.casefold() for other in texts}  # some systems ignore case
        while name.casefold() in taken:
            name = f"{stem}-{len(taken) + 1}"
        reason = graded.reasons.get(student, NOTHING)
        found = "\n".join(_feedback(report) for report in own.values())
        texts[name] = f"{MARK}\n# {printable(student)}\n\n{found or f'{reason}.' + chr(10)}"
    for name in texts:
        path = folder / f"{name}.md"
        if path.exists() and not path.read_bytes().startswith(MARK.encode()):
            raise FileExistsError(f"{path} is not a feedback file; nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        _files.write(folder / f"{name}.md", text)
    return len(texts)


def _file_name(student: str) -> str:
    """A name that every system takes for a file in this folder."""
    name = re.sub(r"[^\w .()-]", "_", unicodedata.normalize("NFC", student)).strip(" .")
    return name[:100] or "student"


def _feedback(report: grader.Report) -> str:
    lab = grader.labs()[report.lab]
    lines = [f"## Lab {lab.number}, {lab.title}", "", f"{_summary(report)}", ""]
    lines += [f"File: {printable(report.file)}", ""]
    for f in report.functions:
        lines.append(f"- `{f.name}`: {f.passed} of {f.cases} cases are right.")
        if not f.right:
            lines.append(f"  Hint: {f.hint or ''}")
    for problem in report.problems:
        lines.append(f"- Outside the functions: {problem.hint}")
    return "\n".join(lines) + "\n"


def _summary(report: grader.Report) -> str:
    return (
        f"{_right(report)} of {len(report.functions)} functions are right; score {report.score:.0%}"
    )


def _done(own: Mapping[str, grader.Report]) -> bool:
    return bool(own) and all(report.right for report in own.values())


def _right(report: grader.Report) -> int:
    return sum(f.right for f in report.functions)


def _hints(report: grader.Report) -> list[str]:
    """All hints, mistakes before gaps."""
    wrong = [f for f in report.functions if not f.right]
    wrong.sort(key=lambda f: f.hint in grader.NOT_THERE)
    return [*(f"{f.name}: {f.hint}" for f in wrong), *(p.hint for p in report.problems)]


def _hint(own: Mapping[str, grader.Report]) -> str:
    """The first thing to look at, a mistake rather than a gap; empty if all is right."""
    hints = []
    for lab, report in own.items():
        hints += [f"{lab} {text}" if len(own) > 1 else text for text in _hints(report)[:1]]
    return hints[0] if hints else ""


def _cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def print_table(
    names: Sequence[str], rows: Sequence[Sequence[str]], end_section: bool = False
) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in names:
        right = name in ("cases", "score", "right") or name.isdigit()
        table.add_column(plain(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row), end_section=end_section)
    console().print(table)
