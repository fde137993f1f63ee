"""The commands."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from kerneltrick import report
from kerneltrick._files import is_standard_output, regular_file, write
from kerneltrick._text import printable
from kerneltrick._version import __version__
from kerneltrick.analysis import compare, save_attention
from kerneltrick.cli._accelerate import accelerate_command
from kerneltrick.cli._arguments import (
    ANSWERING,
    ERROR,
    DataError,
    NothingError,
    Stopped,
    UsageError,
    read_data,
    read_maps,
    read_numbers,
    read_text,
)
from kerneltrick.cli._command import Command, Group
from kerneltrick.cli._conform import conform_command
from kerneltrick.cli._costs import costs_command
from kerneltrick.cli._explore import explore_command
from kerneltrick.cli._export import export_command
from kerneltrick.cli._fit import fit_command
from kerneltrick.cli._generate import generate_command
from kerneltrick.cli._inspect import inspect_command
from kerneltrick.cli._lab import lab_app
from kerneltrick.cli._linearize import evaluate_command, linearize_command
from kerneltrick.cli._models import check_model
from kerneltrick.cli._options import (
    OUT_HELP,
    Axes,
    Causal,
    DaskAddress,
    Heads,
    HtmlPath,
    Jobs,
    JsonPath,
    Layers,
    Quiet,
    Scale,
    Seed,
)
from kerneltrick.cli._output import (
    check_writable,
    drop_finished,
    outputs_of,
    resumable,
    say_written,
    show_progress,
    unfinished,
    words_stream,
)
from kerneltrick.cli._prove import prove_command
from kerneltrick.cli._recall import recall_command
from kerneltrick.cli._simulate import simulate_app
from kerneltrick.cli._table import show
from kerneltrick.cli._train import train_command
from kerneltrick.cli._workers import workers

# click's UsageError, wherever this version of typer has its copy of click.
_ClickUsageError = cast(type[Exception], typer.BadParameter.__bases__[0])

app = typer.Typer(
    name="kerneltrick",
    cls=Group,
    help="Linear attention: use it, choose a feature map by its measured error and speed, and "
    "understand why it works.",
    epilog="Run `kerneltrick COMMAND --help` for the options of a command. Exit codes: 0 success, "
    "1 the data or the run failed, 2 wrong arguments. `prove` exits with 0 (true), 1 (false), 2 "
    "(undecided) or 3 (error). `lab check` exits with 0 (all correct), 1 (something is wrong), 2 "
    "(nothing to grade) or 3 (error).",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit code: 0 done, 1 the data or the run failed, 2 wrong
    arguments. Commands that answer a question return 0, 1 or 2 as the answer, and 3 for errors."""
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals that cannot show "≥"
    words = [x for x in arguments if not x.startswith("-")]
    answers = any(tuple(words[: len(command)]) == command for command in ANSWERING)
    wrong, failed = (ERROR, ERROR) if answers else (2, 1)
    try:
        code = int(app(arguments, prog_name="kerneltrick", standalone_mode=False) or 0)
        sys.stdout.flush()
        return _fail("stopped", code) if code == 130 else code  # typer's answer to Ctrl-C
    except NothingError as error:
        return _fail(str(error), 2)
    except UsageError as error:
        return _fail(str(error), wrong)
    except _ClickUsageError as error:
        message: str = getattr(error, "format_message", error.__str__)()
        where = getattr(getattr(error, "ctx", None), "command_path", "kerneltrick")
        return _fail(f"{message.rstrip('.')}; see {where} --help", wrong)
    except (DataError, ValueError, ArithmeticError) as error:
        return _fail(str(error), failed)
    except (BrokenPipeError, SystemExit):
        # The reader, such as `head`, has closed the pipe. click exits with 1, which could be taken
        # for an answer.
        _abandon_output()
        return failed
    except OSError as error:
        _abandon_output()
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(where + (error.strerror or str(error)), failed)
    except MemoryError:
        return _fail("not enough memory for data of this size", failed)
    except RuntimeError as error:  # PyTorch has no exception of its own for this
        if not re.search("allocate memory|Storage size calculation overflowed", str(error)):
            raise
        return _fail("not enough memory for data of this size", failed)
    except Stopped as error:
        return _fail(str(error), 130)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", 130)


def _fail(message: str, code: int) -> int:
    print("kerneltrick: " + printable(" ".join(message.split())), file=sys.stderr)
    return code


def _open_closed() -> None:
    """Replace streams that were closed before the start (`>&-`), which Python sets to None.

    Writing to standard output then fails as it does in other programs; errors are discarded.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open to the end


def _abandon_output() -> None:
    """Discard what standard output has not accepted; Python would try again when it exits."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kerneltrick {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _kerneltrick(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("version", hidden=True)  # the same as --version
def _version() -> None:
    """Print the version."""
    _print_version(True)


def _compare(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="File with queries, keys and values: the output of `kerneltrick capture`, a "
            ".safetensors or .npz file with q, k and v, or a folder with q.npy, k.npy and v.npy. "
            "Arrays are (n, d), (heads, n, d) or (layers, heads, n, d). Default: the built-in "
            "sample, three layers of a small sentence encoder.",
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--maps",
            "--map",
            metavar="MAPS",
            show_default=False,
            help="Feature maps to compare, separated by commas, semicolons or spaces; can be "
            "repeated. key=value belongs to the map before it: "
            "elu,favor:features=64,kind=trig,poly:degree=2 is three maps. "
            "elu@window=16,sinks=1 uses exact softmax weights for the 16 nearest tokens and the "
            "first one; softmax@window=16 is the window without a map. A .safetensors file "
            "written by `kerneltrick fit` also counts as a map. Default: fourteen common maps.",
        ),
    ] = None,
    layers: Layers = None,
    heads: Heads = None,
    axes: Axes = "heads,n,d",
    synthetic: Annotated[
        str | None,
        typer.Option(
            "--synthetic",
            metavar="TEXT",
            show_default=False,
            help="Use synthetic data instead of a file: gaussian, clustered or needle, with "
            "optional parameters, e.g. gaussian:n=1024,d=64,scale=1.",
        ),
    ] = None,
    causal: Causal = None,
    scale: Scale = None,
    seed: Seed = 0,
    html_path: HtmlPath = None,
    json_path: JsonPath = None,
    jobs: Jobs = None,
    dask: DaskAddress = None,
    quiet: Quiet = False,
) -> None:
    """Compare feature maps with softmax on your data: error, speed and memory.

    With --html or --json, finished work is saved next to that file until the end, so an interrupted
    run continues where it stopped.
    """
    if scale is not None and not (0 < scale < math.inf):
        raise UsageError(f"--scale must be > 0 and finite, not {scale}")
    outputs = outputs_of(html_path, json_path)
    chosen_layers, chosen_heads = read_numbers("--layers", layers), read_numbers("--heads", heads)
    if file is not None:
        check_model("compare", file)
    data = read_data(file, synthetic, seed, chosen_layers, chosen_heads, axes)
    chosen = read_maps(maps, data)
    resume = unfinished(outputs)
    with resumable(resume), workers(jobs, dask) as executor, show_progress(quiet) as progress:
        result = compare(
            data,
            chosen,
            causal=causal,
            scale=scale,
            seed=seed,
            progress=progress,
            resume=resume,
            executor=executor,
        )
    if html_path is not None:
        report.save_html(result, data, html_path)
    if json_path is not None:
        write(json_path, result.to_json())
    drop_finished(resume, quiet)
    if not quiet:
        words = words_stream(outputs)
        show(result, words)
        say_written(outputs, words)


def _capture(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder of the model, or its name on the hub.")
    ],
    text: Annotated[Path, typer.Option("--text", metavar="FILE", help="Text to run the model on.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help=OUT_HELP),
    ],
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Maximum number of tokens to use. Default: all."),
    ] = None,
    layers: Layers = None,
) -> None:
    """Record the queries, keys and values of a Hugging Face model on a text (extra: hf)."""
    if out.suffix != ".safetensors" and regular_file(out) is not None:
        raise UsageError(f"--out must name a .safetensors file, not {out}")
    check_writable(out)
    check_model("capture", model)
    chosen = read_numbers("--layers", layers)
    words = read_text(text)
    try:
        from kerneltrick import hf  # transformers and PyTorch are loaded only when needed

        data = hf.capture(model, words, max_tokens=max_tokens, layers=chosen)
    except (ImportError, OSError) as error:
        raise DataError(str(error)) from None
    save_attention(data, out)
    if not is_standard_output(out):
        typer.echo(f"wrote {out}: {data}")


# The order of the help.
USE, CHOOSE, UNDERSTAND = "Use linear attention", "Choose a feature map", "Understand it"
app.command("accelerate", cls=Command, rich_help_panel=USE)(accelerate_command)
app.command("fit", cls=Command, rich_help_panel=USE)(fit_command)
app.command("linearize", cls=Command, rich_help_panel=USE)(linearize_command)
app.command("evaluate", cls=Command, rich_help_panel=USE)(evaluate_command)
app.command("inspect", cls=Command, rich_help_panel=USE)(inspect_command)
app.command("train", cls=Command, rich_help_panel=USE)(train_command)
app.command("generate", cls=Command, rich_help_panel=USE)(generate_command)
app.command("export", cls=Command, rich_help_panel=USE)(export_command)
app.command("compare", cls=Command, rich_help_panel=CHOOSE)(_compare)
app.command("capture", cls=Command, rich_help_panel=CHOOSE)(_capture)
app.command("costs", cls=Command, rich_help_panel=CHOOSE)(costs_command)
app.command("recall", cls=Command, rich_help_panel=CHOOSE)(recall_command)
app.command("conform", cls=Command, rich_help_panel=CHOOSE)(conform_command)
app.command("explore", cls=Command, rich_help_panel=UNDERSTAND)(explore_command)
app.command(
    "prove",
    cls=Command,
    # A claim may begin with a minus sign and have an h in it.
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    rich_help_panel=UNDERSTAND,
)(prove_command)
app.add_typer(simulate_app, name="simulate", cls=Group, rich_help_panel=UNDERSTAND)
app.add_typer(lab_app, name="lab", cls=Group, rich_help_panel=UNDERSTAND)
