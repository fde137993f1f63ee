"""`kerneltrick lab`: list, read, start and grade the labs."""

from __future__ import annotations

import csv
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markdown import Markdown

from kerneltrick._executor import cores
from kerneltrick._text import printable, to_json
from kerneltrick.cli._arguments import DataError, NothingError, Stopped, UsageError
from kerneltrick.cli._command import Command, Group
from kerneltrick.cli._output import console

if TYPE_CHECKING:
    from kerneltrick.labs import grader

lab_app = typer.Typer(
    cls=Group,
    help="List the labs, read the theory, start a lab, and have it graded.",
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
    """Show the course, about how long it takes, and the functions to write in each lab."""
    from kerneltrick.cli._grades import print_table
    from kerneltrick.labs import COURSE, grader, how_long  # the labs only when asked for

    labs = grader.labs()
    steps = {step.page: step for step in COURSE}
    functions = {lab.number: [each.name for each in lab.exercises] for lab in labs.values()}
    if as_json:
        found = [
            {
                "lab": lab.number,
                "title": lab.title,
                "folder": lab.folder,
                "file": lab.file,
                "functions": functions[lab.number],
                "page": grader.page(lab).name,
                "chapters": list(steps[lab.number].chapters),
                "minutes": steps[lab.number].minutes(len(functions[lab.number])),
            }
            for lab in labs.values()
        ]
        typer.echo(to_json(found, indent=1))
        return
    path = [
        (
            f"{step.page} {step.title}",
            ", ".join(step.chapters) or "–",
            f"{step.page} {labs[step.page].title}" if step.page in labs else "–",
            how_long(step.minutes(len(functions.get(step.page, ())))),
        )
        for step in COURSE
    ]
    typer.echo("The course: read a page, explore its chapter, do its lab")
    print_table(("page", "explore", "lab", "about"), path)
    typer.echo(
        "Alone: `kerneltrick lab read 01` prints a page, `kerneltrick explore` writes the page to "
        "explore, `kerneltrick lab start 01` copies a lab, and `kerneltrick lab check` grades it."
    )
    typer.echo(
        "With a class: take a row a week, let everybody hand in a folder, and grade all of them "
        "with `kerneltrick lab check class --csv`."
    )
    rows = [
        (lab.number, lab.title, lab.file, "\n".join(functions[lab.number])) for lab in labs.values()
    ]
    typer.echo(f"\n{len(labs)} labs")
    print_table(("lab", "title", "file", "functions to write"), rows, end_section=True)
    typer.echo(
        "`kerneltrick lab start 02` copies a lab into a folder of your own; add --notebook to "
        "work in a Jupyter notebook."
    )


@lab_app.command("read")
def _read(
    number: Annotated[str, typer.Argument(metavar="LAB", help="The number of the lab, e.g. 02.")],
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
    number: Annotated[str, typer.Argument(metavar="LAB", help="The number of the lab, e.g. 02.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            show_default=False,
            help="The folder to write to. Default: a new folder with the name of the lab.",
        ),
    ] = None,
    notebook: Annotated[
        bool, typer.Option("--notebook", help="Get a Jupyter notebook instead of the Python file.")
    ] = False,
) -> None:
    """Copy a lab and its theory into a folder of your own. Existing files are never overwritten."""
    from kerneltrick.labs import grader  # the labs only when asked for

    lab = _named(number)
    target = Path(lab.folder) if folder is None else folder
    try:
        grader.start(lab, target, notebook)
    except FileExistsError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
    file = target / (f"{lab.folder}.ipynb" if notebook else lab.file)
    theory = target / "docs" / grader.page(lab).name
    typer.echo(f"Lab {lab.number}, {lab.title}, is now in {target}/")
    typer.echo("Next:")
    typer.echo(f"  1. Read {target / 'README.md'} and the theory in {theory}.")
    typer.echo(f"  2. Write the functions marked YOUR CODE HERE in {file}.")
    typer.echo(f"  3. Run: kerneltrick lab check {shlex.quote(str(target))}")


@lab_app.command("check", cls=Command)
def _check(
    where: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A lab folder, a Python file, a notebook or a zip file, or a folder with many of "
            "these. Default: the current folder.",
        ),
    ] = Path("."),
    number: Annotated[
        str | None,
        typer.Option(
            "--lab",
            metavar="LAB",
            show_default=False,
            help="The number of the lab, e.g. 02. Default: recognised by the name of the file or "
            "the functions in it.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", help="CPU time limit for one call of a function.")
    ] = 10.0,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            show_default=False,
            help="Number of files to grade at once. Default: the number of CPUs.",
        ),
    ] = None,
    json_wanted: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    csv_wanted: Annotated[
        bool, typer.Option("--csv", help="Print CSV instead, one row per student.")
    ] = False,
    excel: Annotated[
        bool,
        typer.Option("--excel", help="With --csv: start with a byte order mark, as Excel expects."),
    ] = False,
    feedback: Annotated[
        Path | None,
        typer.Option(
            "--feedback",
            metavar="DIR",
            show_default=False,
            help="Write a readable file for each student into this folder.",
        ),
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(
            "--roster",
            metavar="FILE",
            show_default=False,
            help="A list of names, one per line or as a CSV file. Students who handed in nothing "
            "then appear too.",
        ),
    ] = None,
    as_root: Annotated[
        bool,
        typer.Option("--as-root", help="Grade as root even if Linux cannot protect your files."),
    ] = False,
) -> None:
    """Grade a lab: a score for every function, and a hint that names the mistake.

    Student code runs in its own process, with limits on time and memory and without a network.
    Exit code: 0 if everything is right, 1 if something is wrong, 2 if there is nothing to grade,
    3 after an error.
    """
    from kerneltrick.cli import _grades, _roster
    from kerneltrick.labs import grader  # the labs only when asked for

    if not 0 < seconds <= 3600:
        raise UsageError(f"--seconds must be between 0 and 3600, not {seconds:g}")
    if json_wanted and csv_wanted:
        raise UsageError("--json and --csv both print to standard output: choose one")
    if excel and not csv_wanted:
        raise UsageError("--excel needs --csv")
    lab = _named(number) if number is not None else None
    if not where.exists():
        raise UsageError(f"there is no file or folder {where}")
    if feedback is not None and where.is_dir() and _is_inside(feedback, where):
        raise UsageError("--feedback must name a folder outside the one that is graded")
    names = _read_roster(roster) if roster is not None else None
    limits = grader.Limits(call=seconds, total=6 * seconds, root=as_root)
    with tempfile.TemporaryDirectory(prefix="kerneltrick-") as scratch:
        found = grader.find_submissions(where, grader.labs(), lab, Path(scratch))
        for name, reason in found.left_out.items():
            typer.echo(printable(f"not graded: {name}: {reason}"), err=True)
        if names is not None:
            found, strangers = _roster.with_roster(found, names)
            for student in strangers:
                typer.echo(printable(f"not on the roster: {student}"), err=True)
        if not found.submissions:
            raise NothingError(_nothing(where, found, lab))
        try:
            graded = _grades.grade_all(found.submissions, limits, jobs or cores())
        except grader.Refused as error:
            raise UsageError(f"{error}, or add --as-root") from None
        for text in graded.missing_walls:
            typer.echo(f"note: on this system {text}", err=True)
        result = _grades.sort_out(found, graded.reports)
    if graded.stopped:
        if graded.reports and not (json_wanted or csv_wanted):
            whole = {
                student: own
                for student, own in result.students.items()
                if own and set(found.students[student]) <= graded.reports.keys()
            }
            _grades.show_students(_grades.Class(whole))
        raise Stopped(
            f"stopped; {len(graded.reports)} of {len(found.submissions)} files were graded. "
            "Nothing is kept: the same command starts again"
        )
    for text in _grades.about_versions(result):
        typer.echo(f"note: {text}", err=True)
    single = names is None and len(result.students) == len(result.reports) == 1
    if feedback is not None:
        try:
            count = _grades.write_feedback(result, feedback)
        except FileExistsError as error:
            raise UsageError(str(error)) from None
        except OSError as error:
            raise DataError(f"cannot write to {feedback}: {error.strerror or error}") from None
        typer.echo(f"wrote feedback for {count} students to {feedback}/", err=True)
    if json_wanted:
        typer.echo(_grades.as_json(result, single))
    elif csv_wanted:
        typer.echo(("\ufeff" if excel else "") + _grades.as_csv(result), nl=False)
    elif single:
        _grades.show_one(result.reports[0])
    else:
        _grades.show_students(result)
    if not result.right:
        raise typer.Exit(1)


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _read_roster(path: Path) -> list[str]:
    from kerneltrick.cli import _roster

    try:
        return _roster.read_roster(path)
    except OSError as error:
        raise UsageError(f"cannot read the roster {path}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        text = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise UsageError(f"cannot read the roster {path}: {text}") from None


def _nothing(where: Path, found: grader.Found, lab: grader.Lab | None) -> str:
    """Why there is nothing to grade."""
    from kerneltrick.labs import grader  # the labs only when asked for

    if where.is_file() and len(found.left_out) == 1:
        (reason,) = found.left_out.values()
        return printable(f"{where} was not graded: {reason}")
    if lab is not None:
        return f"no Python file and no notebook found in {where}"
    known = ", ".join(Path(lab.file).name for lab in grader.labs().values())
    return f"no lab found in {where}; looked for {known}. Use --lab for a file of another kind"


def _named(text: str) -> grader.Lab:
    from kerneltrick.labs import grader  # the labs only when asked for

    try:
        return grader.find_lab(text, grader.labs())
    except ValueError as error:
        raise UsageError(str(error)) from None
