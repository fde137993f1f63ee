"""`kerneltrick lab`: start a lab, and have it graded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from kerneltrick._text import to_json
from kerneltrick.cli._arguments import DataError, UsageError
from kerneltrick.cli._output import console, plain, progress_bar

if TYPE_CHECKING:
    from kerneltrick.labs import grader

WALLS = {
    "network": "the network is closed by Python only",
    "processes": "clever code can end other processes, or outlive the grading",
    "files": "student code can change the files that you can change",
}

lab_app = typer.Typer(
    help="The labs: list them, start one, have it graded.",
    rich_markup_mode=None,
)


@lab_app.callback(invoke_without_command=True)
def _lab(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@lab_app.command("list")
def _list(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """The labs and the functions that each asks for."""
    from kerneltrick.labs import grader  # the labs only when asked for

    labs = grader.labs()
    if as_json:
        found = [
            {"lab": lab.number, "title": lab.title, "folder": lab.folder, "file": lab.file,
             "functions": [exercise.name for exercise in lab.exercises]}
            for lab in labs.values()
        ]  # fmt: skip
        typer.echo(to_json(found, indent=1))
        return
    rows = [
        (lab.number, lab.title, lab.file, "\n".join(exercise.name for exercise in lab.exercises))
        for lab in labs.values()
    ]
    typer.echo(f"{len(labs)} labs")
    _print_table(("lab", "title", "file", "functions to write"), rows, end_section=True)
    typer.echo("kerneltrick lab start NUMBER copies a lab into a folder of your own.")


@lab_app.command("start")
def _start(
    number: Annotated[str, typer.Argument(metavar="LAB", help="Such as 02.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", show_default=False, help="Where to. Default: a new folder, here."
        ),
    ] = None,
) -> None:
    """Copy a lab into a folder of your own. Files that exist are never overwritten."""
    from kerneltrick.labs import grader  # the labs only when asked for

    lab = _named(number)
    target = Path(lab.folder) if folder is None else folder
    try:
        written = grader.start(lab, target)
    except FileExistsError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
    typer.echo(f"Lab {lab.number}, {lab.title}: {len(written)} files in {target}/")
    typer.echo("Next:")
    typer.echo(f"  1. read {target / 'README.md'}")
    typer.echo(f"  2. write the functions marked YOUR CODE HERE in {target / lab.file}")
    typer.echo(f"  3. kerneltrick lab check {shlex.quote(str(target))}")


@lab_app.command("check")
def _check(
    where: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The folder of a lab, a file, or a folder with many of either. Default: here.",
        ),
    ] = Path("."),
    number: Annotated[
        str | None,
        typer.Option(
            "--lab", metavar="LAB", show_default=False,
            help="Such as 02. Default: by the name of the file, or the functions in it.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="CPU time that one call of a function may take.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:  # fmt: skip
    """Grade a lab: a score for every function, and a hint that names the mistake.

    The code runs in a process of its own, with limits of time and memory and without a network.
    Exit code 0: all right; 1: something is wrong; 2: nothing to grade.
    """
    from kerneltrick.labs import grader  # the labs only when asked for

    if not 0 < seconds <= 3600:
        raise UsageError(f"--seconds must be between 0 and 3600, not {seconds:g}")
    lab = _named(number) if number is not None else None
    if not where.exists():
        raise UsageError(f"there is no file or folder {where}")
    found, unknown = grader.submissions(where, grader.labs(), lab)
    if not found:
        known = ", ".join(Path(lab.file).name for lab in grader.labs().values())
        if lab is not None:
            raise UsageError(f"no Python file found in {where}")
        raise UsageError(f"no lab found in {where}; looked for {known}, or give --lab")
    for path in unknown:
        typer.echo(f"left out, no function of a lab can be read in it: {path}", err=True)
    reports = _grade(found, grader.Limits(call=seconds, total=6 * seconds))
    if as_json:
        typer.echo(_json(reports, single=where.is_file() or len(found) == 1))
    elif len(reports) == 1:
        _show(reports[0])
    else:
        _show_many(reports)
    if not all(report.right for report in reports):
        raise typer.Exit(1)


def _named(text: str) -> grader.Lab:
    from kerneltrick.labs import grader  # the labs only when asked for

    try:
        return grader.find_lab(text, grader.labs())
    except ValueError as error:
        raise UsageError(str(error)) from None


def _grade(found: list[grader.Submission], limits: grader.Limits) -> list[grader.Report]:
    from kerneltrick.labs import grader  # the labs only when asked for

    reports = []
    try:
        with progress_bar(False) as progress, grader.Server(limits) as server:
            for at, submission in enumerate(found):
                if progress is not None:
                    progress(submission.name, at, len(found))
                try:
                    with submission.path.open("rb") as file:
                        source = file.read(2 * grader.LARGEST_FILE)
                except OSError as error:
                    raise DataError(f"cannot read {submission.path}: {error.strerror}") from None
                own = progress if len(found) == 1 else None
                reports.append(
                    grader.grade(submission.lab, source, submission.name, server, progress=own)
                )
            missing = [text for wall, text in WALLS.items() if wall not in server.walls]
    except OSError as error:
        raise DataError(str(error)) from None
    for text in missing:
        typer.echo(f"note: no Linux namespaces here, so {text}", err=True)
    return reports


def _json(reports: list[grader.Report], single: bool) -> str:
    many = [report.to_json() for report in reports]
    found = many[0] if single else {"submissions": many}
    return to_json({"format": "kerneltrick.lab/1", **found}, indent=1)


def _show(report: grader.Report) -> None:
    from kerneltrick.labs import grader  # the labs only when asked for

    lab = grader.labs()[report.lab]
    typer.echo(f"Lab {lab.number}, {lab.title}: {report.file}")
    rows = [
        (f.name, f"{f.passed}/{f.cases}", "right" if f.right else f.hint or "")
        for f in report.functions
    ]
    _print_table(("function", "cases", ""), rows)
    for problem in report.problems:
        typer.echo(f"outside the functions: {problem.hint}")
    right = sum(f.right for f in report.functions)
    typer.echo(f"{right} of {len(report.functions)} functions are right; score {report.score:.0%}")


def _show_many(reports: list[grader.Report]) -> None:
    from kerneltrick.labs import grader  # the labs only when asked for

    rows = []
    for report in reports:
        wrong = [f for f in report.functions if not f.right]
        wrong.sort(key=lambda f: f.hint in grader.NOT_THERE)  # a mistake says more than a gap
        hints = [*(f"{f.name}: {f.hint}" for f in wrong), *(p.hint for p in report.problems), ""]
        right = sum(f.right for f in report.functions)
        rows.append(
            (report.file, report.lab, f"{report.score:.0%}", f"{right}/{len(report.functions)}",
             hints[0])
        )  # fmt: skip
    typer.echo(f"{len(reports)} submissions")
    _print_table(("submission", "lab", "score", "right", "first hint"), rows)
    done = sum(report.right for report in reports)
    typer.echo(f"{done} of {len(reports)} are right")


def _print_table(
    names: Sequence[str], rows: Sequence[Sequence[str]], end_section: bool = False
) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in names:
        right = name in ("cases", "score", "right")
        table.add_column(plain(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row), end_section=end_section)
    console().print(table)
