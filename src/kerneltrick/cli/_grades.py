"""What `kerneltrick lab check` found: graded at once, shown as tables, JSON and CSV."""

from __future__ import annotations

import csv
import io
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import typer
from rich import box
from rich.table import Table

from kerneltrick._text import printable, to_json
from kerneltrick.cli._output import console, plain, progress_bar
from kerneltrick.labs import grader

WALLS = {
    "network": "student code may reach the network and other programs",
    "processes": "student code may start other processes, each with its own memory, or end yours",
    "files": "student code can change the files that you can change",
}
NOTHING = "nothing to grade"


@dataclass(frozen=True)
class Graded:
    """The reports by the name of their file, and the walls that were missing."""

    reports: dict[str, grader.Report]
    stopped: bool = False
    missing_walls: tuple[str, ...] = ()


def grade_all(found: Sequence[grader.Submission], limits: grader.Limits, jobs: int) -> Graded:
    """Grade the files, `jobs` at a time. Ctrl-C ends it with what has been graded."""
    reports: dict[str, grader.Report] = {}
    servers = [grader.Server(limits) for _ in range(min(jobs, len(found)))]
    free: queue.SimpleQueue[grader.Server] = queue.SimpleQueue()
    for server in servers:
        free.put(server)
    pool = ThreadPoolExecutor(len(servers))
    with progress_bar(False) as progress:

        def grade(submission: grader.Submission) -> tuple[grader.Report, set[str]]:
            server = free.get()
            try:
                report = grader.grade_file(
                    submission.lab, submission.path, submission.name, server,
                    progress if len(found) == 1 else None,
                )  # fmt: skip
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
    typer.echo(f"{_right(report)} of {len(report.functions)} functions are right; "
               f"score {report.score:.0%}")  # fmt: skip


Students = Mapping[str, Sequence[str]]


def show_students(students: Students, reports: Mapping[str, grader.Report]) -> None:
    """A table with one row for each student."""
    labs = _labs(reports)
    rows = []
    for student, own in _of_students(students, reports).items():
        hint = _hint(own) if own else NOTHING
        scores = [f"{own[lab].score:.0%}" if lab in own else "–" for lab in labs]
        if len(labs) == 1:
            only = own.get(labs[0])
            scores.append(f"{_right(only)}/{len(only.functions)}" if only else "–")
        rows.append((student, *scores, hint))
    names = ("score", "right") if len(labs) == 1 else labs
    typer.echo(f"{len(rows)} students, {', '.join(f'lab {lab}' for lab in labs)}")
    print_table(("student", *names, "first hint"), rows)
    done = sum(bool(own) and all(r.right for r in own.values())
               for own in _of_students(students, reports).values())  # fmt: skip
    typer.echo(f"{done} of {len(rows)} are right")


def as_csv(students: Students, reports: Mapping[str, grader.Report]) -> str:
    """A row for each student: of every lab the file, score, functions, and the first hint."""
    labs = _labs(reports)
    columns = ("file", "score", "right", "functions", "hint")
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["student", *(f"lab{lab}_{column}" for lab in labs for column in columns)])
    for student, own in _of_students(students, reports).items():
        row: list[object] = [_cell(student)]
        for lab in labs:
            if lab in own:
                report = own[lab]
                row += [_cell(report.file), round(report.score, 4), _right(report),
                        len(report.functions), _cell(_hint({lab: report}))]  # fmt: skip
            else:
                row += ["", "", "", "", NOTHING]
        rows.writerow(row)
    return text.getvalue()


def as_json(students: Students, reports: Mapping[str, grader.Report], single: bool) -> str:
    many = [report.to_json() for report in reports.values()]
    owner = {name: student for student, names in students.items() for name in names}
    found = many[0] if single else {
        "submissions": [{"student": owner[report["file"]], **report} for report in many],
        "nothing_to_grade": [student for student, names in students.items() if not names],
    }  # fmt: skip
    return to_json({"format": "kerneltrick.lab/1", **found}, indent=1)


def _labs(reports: Mapping[str, grader.Report]) -> list[str]:
    return sorted({report.lab for report in reports.values()})


def _of_students(
    students: Students, reports: Mapping[str, grader.Report]
) -> dict[str, dict[str, grader.Report]]:
    """{student: {lab: report}}."""
    return {
        student: {reports[name].lab: reports[name] for name in names if name in reports}
        for student, names in students.items()
    }


def _right(report: grader.Report) -> int:
    return sum(f.right for f in report.functions)


def _hint(own: Mapping[str, grader.Report]) -> str:
    """The first thing to look at, a mistake rather than a gap; nothing if all is right."""
    hints = []
    for lab, report in own.items():
        wrong = [f for f in report.functions if not f.right]
        wrong.sort(key=lambda f: f.hint in grader.NOT_THERE)
        texts = [*(f"{f.name}: {f.hint}" for f in wrong), *(p.hint for p in report.problems)]
        hints += [f"{lab} {text}" if len(own) > 1 else text for text in texts[:1]]
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
