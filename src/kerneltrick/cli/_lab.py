"""`kerneltrick lab`: start a lab, and have it graded."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown

from kerneltrick._executor import cores
from kerneltrick._text import to_json
from kerneltrick.cli._arguments import DataError, NothingError, Stopped, UsageError
from kerneltrick.cli._output import console

if TYPE_CHECKING:
    from kerneltrick.labs import grader

lab_app = typer.Typer(
    help="The labs: list them, read about one, start it, have it graded.",
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
    from kerneltrick.cli._grades import print_table
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
    print_table(("lab", "title", "file", "functions to write"), rows, end_section=True)
    typer.echo("kerneltrick lab start NUMBER copies a lab into a folder of your own.")


@lab_app.command("read")
def _read(
    number: Annotated[str, typer.Argument(metavar="LAB", help="Such as 02.")],
) -> None:
    """Print the theory page of a lab."""
    from kerneltrick.labs import grader  # the labs only when asked for

    text = grader.page(_named(number)).read_text(encoding="utf-8")
    if sys.stdout.isatty():
        console().print(Markdown(text))
    else:
        typer.echo(text, nl=False)


@lab_app.command("start")
def _start(
    number: Annotated[str, typer.Argument(metavar="LAB", help="Such as 02.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", show_default=False, help="Where to. Default: a new folder, here."
        ),
    ] = None,
    notebook: Annotated[
        bool, typer.Option("--notebook", help="A Jupyter notebook in place of the Python file.")
    ] = False,
) -> None:
    """Copy a lab into a folder of your own, with its theory. Nothing is ever overwritten."""
    from kerneltrick.labs import grader  # the labs only when asked for

    lab = _named(number)
    if notebook and not grader.has_notebook(lab):
        having = [x.number for x in grader.labs().values() if grader.has_notebook(x)]
        raise UsageError(f"lab {lab.number} has no notebook; labs {' and '.join(having)} have")
    target = Path(lab.folder) if folder is None else folder
    try:
        written = grader.start(lab, target, notebook)
    except FileExistsError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
    file = target / (f"{lab.folder}.ipynb" if notebook else lab.file)
    theory = target / "docs" / grader.page(lab).name
    typer.echo(f"Lab {lab.number}, {lab.title}: {len(written)} files in {target}/")
    typer.echo("Next:")
    typer.echo(f"  1. read {target / 'README.md'}, and the theory in {theory}")
    typer.echo(f"  2. write the functions marked YOUR CODE HERE in {file}")
    typer.echo(f"  3. kerneltrick lab check {shlex.quote(str(target))}")


@lab_app.command("check")
def _check(
    where: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The folder of a lab, a file or notebook, or a folder with many of these. "
            "Default: here.",
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
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=1, show_default=False,
            help="How many files to grade at once. Default: one for each processor.",
        ),
    ] = None,
    json_wanted: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    csv_wanted: Annotated[
        bool, typer.Option("--csv", help="Print CSV instead, a row for each student.")
    ] = False,
    as_root: Annotated[
        bool,
        typer.Option(
            "--as-root", help="Grade as root even where Linux cannot protect your files."
        ),
    ] = False,
) -> None:  # fmt: skip
    """Grade a lab: a score for every function, and a hint that names the mistake.

    The code runs in a process of its own, with limits of time and memory and without a network.
    Exit code 0: all right; 1: something is wrong; 2: nothing to grade; 3: an error.
    """
    from kerneltrick.cli._grades import (
        as_csv,
        as_json,
        grade_all,
        show_one,
        show_students,
    )
    from kerneltrick.labs import grader  # the labs only when asked for

    if not 0 < seconds <= 3600:
        raise UsageError(f"--seconds must be between 0 and 3600, not {seconds:g}")
    if json_wanted and csv_wanted:
        raise UsageError("--json and --csv both go to standard output: give one of them")
    lab = _named(number) if number is not None else None
    if not where.exists():
        raise UsageError(f"there is no file or folder {where}")
    found = grader.find_submissions(where, grader.labs(), lab)
    if not found.submissions:
        if lab is not None:
            raise NothingError(f"no Python file and no notebook found in {where}")
        known = ", ".join(Path(lab.file).name for lab in grader.labs().values())
        raise NothingError(f"no lab found in {where}; looked for {known}, or give --lab")
    for path in found.unknown:
        typer.echo(f"left out, no function of a lab can be read in it: {path}", err=True)
    limits = grader.Limits(call=seconds, total=6 * seconds, root=as_root)
    try:
        graded = grade_all(found.submissions, limits, jobs or cores())
    except grader.Refused as error:
        raise UsageError(f"{error}, or add --as-root") from None
    for text in graded.missing_walls:
        typer.echo(f"note: on this system {text}", err=True)
    single = len(found.students) == 1 and len(found.submissions) == 1
    if graded.stopped:
        if graded.reports and not (json_wanted or csv_wanted):
            done = {s: names for s, names in found.students.items() if names and
                    set(names) <= graded.reports.keys()}  # fmt: skip
            show_students(done, graded.reports)
        raise Stopped(
            f"stopped; {len(graded.reports)} of {len(found.submissions)} files were graded, and "
            "nothing is kept: the same command begins again"
        )
    reports = graded.reports
    if json_wanted:
        typer.echo(as_json(found.students, reports, single))
    elif csv_wanted:
        typer.echo(as_csv(found.students, reports), nl=False)
    elif single:
        show_one(*reports.values())
    else:
        show_students(found.students, reports)
    if not all(found.students.values()) or not all(r.right for r in reports.values()):
        raise typer.Exit(1)


def _named(text: str) -> grader.Lab:
    from kerneltrick.labs import grader  # the labs only when asked for

    try:
        return grader.find_lab(text, grader.labs())
    except ValueError as error:
        raise UsageError(str(error)) from None
