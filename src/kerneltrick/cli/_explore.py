"""`kerneltrick explore`: write the explorable page of the kernel trick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kerneltrick import report
from kerneltrick._files import is_standard_output, write
from kerneltrick.cli._options import Quiet
from kerneltrick.cli._output import check_writable


def explore_command(
    html_path: Annotated[
        Path,
        typer.Option("--html", metavar="PATH", help="The page to write; - means stdout."),
    ] = Path("explore.html"),
    quiet: Quiet = False,
) -> None:
    """Write a page to learn from by moving things: the kernel trick in five chapters.

    The chapters are two orders, the map, the dial, a stream, and recall. Each is a picture that
    answers to sliders and to dragging, with questions whose answers the page checks. The page is
    one file that needs no network; open it in a browser.
    """
    check_writable(html_path)
    write(html_path, report.render_explore())
    if not quiet and not is_standard_output(html_path):
        typer.echo(f"wrote {html_path}: open it in a browser")
