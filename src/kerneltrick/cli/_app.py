"""The commands."""

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer

from kerneltrick import report
from kerneltrick._files import is_standard_output, regular_file, write
from kerneltrick._text import printable
from kerneltrick._version import __version__
from kerneltrick.analysis import compare, save_attention
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
from kerneltrick.cli._costs import costs_command
from kerneltrick.cli._fit import fit_command
from kerneltrick.cli._lab import lab_app
from kerneltrick.cli._linearize import evaluate_command, linearize_command
from kerneltrick.cli._options import (
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
)
from kerneltrick.cli._output import (
    check_writable,
    outputs_of,
    progress_bar,
    resumable,
    say_written,
    unfinished,
    words_stream,
)
from kerneltrick.cli._prove import prove_command
from kerneltrick.cli._recall import recall_command
from kerneltrick.cli._simulate import simulate_app
from kerneltrick.cli._table import show
from kerneltrick.cli._train import generate_command, train_command
from kerneltrick.cli._workers import workers

# click's UsageError, wherever this version of typer keeps click.
_ClickUsageError = cast(type[Exception], typer.BadParameter.__bases__[0])

app = typer.Typer(
    name="kerneltrick",
    help="Attention in linear time: which feature map can replace softmax here?",
    epilog="Exit codes: 0 done, 1 the data or the run failed, 2 wrong arguments. Of the commands "
    "that answer, prove: 0 true, 1 false, 2 undecided, 3 an error; lab check: 0 all right, "
    "1 something is wrong, 2 nothing to grade, 3 an error.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 the data or the run failed, 2 wrong arguments; the
    commands that answer say 0, 1 or 2 by it, and 3 for every error."""
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "≥" still gets its table
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
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
    except (BrokenPipeError, SystemExit):  # whoever reads, such as `head`, has read enough: click
        _abandon_output()  # makes an exit code of 1 of it, which would be an answer
        return failed
    except OSError as error:
        _abandon_output()
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(where + (error.strerror or str(error)), failed)
    except MemoryError:
        return _fail("not enough memory for data of this size", failed)
    except Stopped as error:
        return _fail(str(error), 130)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", 130)


def _fail(message: str, code: int) -> int:
    print("kerneltrick: " + printable(" ".join(message.split())), file=sys.stderr)
    return code


def _open_closed() -> None:
    """Streams that were closed before the start (`>&-`), which Python has as None: writing to
    standard output then fails as it would with other programs, and errors go nowhere."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open to the end


def _abandon_output() -> None:
    """What standard output has not taken by now is dropped: Python would try again at its end."""
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
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("version")
def _version() -> None:
    """Print the version."""
    _print_version(True)


@app.command("compare")
def _compare(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="Queries, keys and values: what `kerneltrick capture` writes, a .safetensors or "
            ".npz file with q, k and v, or a folder with q.npy, k.npy and v.npy; arrays (n, d), "
            "(heads, n, d) or (layers, heads, n, d). Default: the embedded sample, three layers of "
            "a small sentence encoder.",
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--maps",
            "--map",
            metavar="MAPS",
            show_default=False,
            help="Maps separated by commas, semicolons or spaces; may be given again. key=value "
            "belongs to the map before it: elu,favor:features=64,kind=trig,poly:degree=2 "
            "are three maps. With @window=16,sinks=1 behind it, near tokens weigh exactly; "
            "softmax@window=16 is a window alone. The .safetensors file of `kerneltrick fit` is a "
            "map too. Default: a spread of fourteen.",
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
            help="Made-up data instead: gaussian, clustered or needle, with parameters, such as "
            "gaussian:n=1024,d=64,scale=1.",
        ),
    ] = None,
    causal: Causal = None,
    scale: Scale = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all that is random.")] = 0,
    html_path: HtmlPath = None,
    json_path: JsonPath = None,
    jobs: Jobs = None,
    dask: DaskAddress = None,
    quiet: Quiet = False,
) -> None:
    """Which feature map can replace softmax here, what is lost, what is gained on this machine?

    With --html or --json, finished work is kept beside that file until the end: a run that was
    stopped goes on where it was.
    """
    if seed < 0:
        raise UsageError(f"--seed must be a whole number ≥ 0, not {seed}")
    if scale is not None and not (0 < scale < math.inf):
        raise UsageError(f"--scale must be > 0 and finite, not {scale}")
    outputs = outputs_of(html_path, json_path)
    chosen_layers, chosen_heads = read_numbers("--layers", layers), read_numbers("--heads", heads)
    data = read_data(file, synthetic, seed, chosen_layers, chosen_heads, axes)
    chosen = read_maps(maps, data)
    resume = unfinished(outputs)
    with resumable(resume), workers(jobs, dask) as executor, progress_bar(quiet) as progress:
        result = compare(data, chosen, causal=causal, scale=scale, seed=seed,
                         progress=progress, resume=resume, executor=executor)  # fmt: skip
    if html_path is not None:
        report.save_html(result, data, html_path)
    if json_path is not None:
        write(json_path, result.to_json())
    if resume is not None:
        resume.unlink(missing_ok=True)
    if not quiet:
        words = words_stream(outputs)
        show(result, words)
        say_written(outputs, words)


@app.command("capture")
def _capture(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder with a model, or its name on the hub.")
    ],
    text: Annotated[Path, typer.Option("--text", metavar="FILE", help="The text to run it on.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help="The .safetensors file to write; - is stdout."),
    ],
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Cut the text to so many tokens.")
    ] = None,
    layers: Layers = None,
) -> None:
    """Record q, k and v of every layer and head of a Hugging Face model (extra: hf)."""
    if out.suffix != ".safetensors" and regular_file(out) is not None:
        raise UsageError(f"--out must name a .safetensors file, not {out}")
    check_writable(out)
    chosen = read_numbers("--layers", layers)
    words = read_text(text)
    try:
        from kerneltrick import hf  # transformers and torch only when asked for

        data = hf.capture(model, words, max_tokens=max_tokens, layers=chosen)
    except (ImportError, OSError) as error:
        raise DataError(str(error)) from None
    save_attention(data, out)
    if not is_standard_output(out):
        typer.echo(f"wrote {out}: {data}")


app.command("fit")(fit_command)
app.command("linearize")(linearize_command)
app.command("evaluate")(evaluate_command)
app.command("costs")(costs_command)
app.command("train")(train_command)
app.command("generate")(generate_command)
app.command("recall")(recall_command)
# A claim may begin with a minus sign.
app.command("prove", context_settings={"ignore_unknown_options": True})(prove_command)
app.add_typer(simulate_app, name="simulate")
app.add_typer(lab_app, name="lab")
