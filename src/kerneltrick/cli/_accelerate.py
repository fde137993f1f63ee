"""`kerneltrick accelerate`: what the compiled core gains for a model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from kerneltrick._files import write
from kerneltrick._text import shown, to_json
from kerneltrick._version import __version__
from kerneltrick.cli._arguments import DataError, UsageError
from kerneltrick.cli._linearize import load_hf, read_count
from kerneltrick.cli._models import check_model
from kerneltrick.cli._options import Quiet
from kerneltrick.cli._output import (
    console,
    outputs_of,
    plain,
    say_written,
    show_progress,
    words_stream,
)

DTYPES = ("float32", "bfloat16", "float16")


def accelerate_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of the model, its name on the hub, or a type with a size for random "
            "weights in a published shape, e.g. qwen3_5:0.8b, mamba2:130m or falcon_h1:0.5b.",
        ),
    ],
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="COUNT", help="Number of tokens to read.")
    ] = "2048",
    new: Annotated[int, typer.Option("--new", min=0, help="Number of tokens to write.")] = 64,
    train: Annotated[
        bool, typer.Option("--train", help="Also time a training step (forward and backward).")
    ] = False,
    layers: Annotated[
        int | None,
        typer.Option(
            "--layers", min=1, help="Number of layers of a model with random weights. Default: all."
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Type of the weights: float32, bfloat16 or float16.")
    ] = "float32",
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the figures to this file; - is stdout."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure what the compiled core gains for a linear-attention model on this CPU (extra: hf).

    The command runs the model as it is and accelerated, and prints what is replaced, the speed of
    reading and writing, and the peak memory. In Python, `kerneltrick.hf.accelerate(model)` does it.
    """
    outputs = outputs_of(None, json)
    count = read_count("--tokens", tokens)
    if dtype not in DTYPES:
        raise UsageError(f"--dtype must be float32, bfloat16 or float16, not {dtype!r}")
    if ":" not in model:
        check_model("accelerate", model)
    hf = load_hf()
    if ":" in model and model not in hf.SHAPES:
        raise UsageError(f"{model!r} is not a published shape; these are: {', '.join(hf.SHAPES)}")
    if layers is not None and ":" not in model:
        raise UsageError("--layers needs a model with random weights, such as mamba2:130m")
    import torch

    try:
        network = hf.load_model(model, layers=layers, dtype=getattr(torch, dtype))
        with show_progress(quiet) as progress:
            found = hf.measure_gains(network, tokens=count, new=new, train=train, progress=progress)
    except (ImportError, OSError) as error:
        raise DataError(str(error)) from None
    note = hf.SHAPES[model][1] if model in hf.SHAPES else ""
    depth = network.config.get_text_config().num_hidden_layers
    if json is not None:
        values = {
            "version": __version__,
            "model": model,
            "note": note,
            "layers": depth,
            "dtype": dtype,
            "threads": torch.get_num_threads(),
            "tokens": count,
            "replaced": [row._asdict() for row in found.replaced],
            "figures": [{**row._asdict(), "ratio": row.ratio} for row in found.rows],
            "advice": found.advice,
        }
        write(json, to_json(values, indent=2) + "\n")
    if not quiet:
        words = words_stream(outputs)
        counts = (depth, "layer"), (count, "token"), (torch.get_num_threads(), "thread")
        layered, read, threads = (f"{x:,} {word}{'' if x == 1 else 's'}" for x, word in counts)
        title = f"{model}, {layered}, {dtype}, {read}, {threads}"
        _show(title + (f" ({note})" if note else ""), found, words)
        say_written(outputs, words)


def _show(title: str, found: Any, words: Any) -> None:
    out = console(words)
    out.print(plain(title, "bold"))
    replaced = _table("function", "in", "before", "now")
    for row in found.replaced:
        replaced.add_row(*map(plain, row))
    out.print(replaced)
    figures = _table("", "before", "after", "ratio")
    for row in found.rows:
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f} ×"
        figures.add_row(row.what, _figure(row.before, row), _figure(row.after, row), ratio)
    out.print(figures)
    for row in found.rows:
        if row.error:
            out.print(plain(f"{row.what} before: {row.error}", "dim"))
    out.print(plain(found.advice))


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in names:
        right = name in ("after", "ratio") or (name == "before" and "after" in names)
        table.add_column(name, justify="right" if right else "left")
    return table


def _figure(value: float | None, row: Any) -> str:
    if value is None:
        return "–"
    return f"{shown(value)} {row.unit}"
