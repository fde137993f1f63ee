"""`kerneltrick train`: small language models with any mixer."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from kerneltrick._folders import Kind, kind_of
from kerneltrick._text import printable
from kerneltrick.cli._arguments import DataError, Stopped, UsageError
from kerneltrick.cli._options import Quiet, Seed
from kerneltrick.cli._output import show_progress

# The options that set what the library calls by these names.
OPTIONS = {
    "hidden_size": "--width",
    "num_layers": "--layers",
    "num_heads": "--heads",
    "learning_rate": "--rate",
}


def in_options(message: str, options: dict[str, str]) -> str:
    """An error message of the library in the words of the command line.

    >>> in_options("train needs num_heads to be a whole number ≥ 1, not 0", OPTIONS)
    'train needs --heads to be a whole number ≥ 1, not 0'
    """
    pattern = re.compile(r"(?<![\w-])(" + "|".join(options) + r")(?!\w)")
    return pattern.sub(lambda found: options[found[0]], message)


def torch_room() -> ModuleType:
    """Import `kerneltrick.torch`, and with it PyTorch, only when a command needs it."""
    try:
        import kerneltrick.torch
    except ImportError as error:
        raise DataError(str(error)) from None
    return kerneltrick.torch


def printed(text: str) -> str:
    """Replace control characters that a terminal must not see; keep line breaks and tabs."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


@contextlib.contextmanager
def _processes(wanted: bool) -> Iterator[tuple[Any, bool]]:
    """The group of processes that torchrun started, and whether this process is the first."""
    if not wanted:
        yield None, True
        return
    if "RANK" not in os.environ:
        raise UsageError(
            "--context-parallel needs torchrun, which starts the processes: torchrun "
            "--nproc-per-node 2 -m kerneltrick train …"
        )
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield dist.group.WORLD, dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


def train_command(
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="The text to learn from.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for the model. If it holds an unfinished training, that one is continued.",
        ),
    ],
    mixer: Annotated[
        str,
        typer.Option(
            "--mixer",
            metavar="MIXER",
            help="Feature map of the attention layers (elu, favor:features=64, elu@window=64 with "
            "an exact window, softmax) or another mixer: based, retention, mamba, ssd, gla, "
            "rwkv, power_retention, mesa, deltanet, gated_deltanet, kda, gated_deltanet2, comba, "
            "rwkv7, deltaproduct, hyena. With a+b the layers alternate between a and b; "
            "a*3+b repeats a three times before each b.",
        ),
    ] = "elu",
    as_bytes: Annotated[
        bool,
        typer.Option("--bytes", help="Use bytes as tokens. Default: characters of UTF-8 text."),
    ] = False,
    steps: Annotated[int, typer.Option("--steps", help="Number of training steps.")] = 1000,
    length: Annotated[
        int, typer.Option("--length", help="Tokens in each training sequence.")
    ] = 256,
    batch: Annotated[int, typer.Option("--batch", help="Sequences in each step.")] = 8,
    width: Annotated[int, typer.Option("--width", help="Width of the model.")] = 128,
    layers: Annotated[int, typer.Option("--layers", help="Number of layers.")] = 4,
    heads: Annotated[int, typer.Option("--heads", help="Attention heads in each layer.")] = 4,
    rate: Annotated[float, typer.Option("--rate", help="Peak learning rate.")] = 2e-3,
    seed: Seed = 0,
    context_parallel: Annotated[
        bool,
        typer.Option(
            "--context-parallel",
            help="Split every sequence across the processes started by torchrun: torchrun "
            "--nproc-per-node 2 -m kerneltrick train …",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a small language model on a text, in minutes (extra: torch).

    The last tenth of the text is held out for validation. If training was stopped or killed, run
    the same command again: it continues from the last checkpoint, with the same losses.
    """
    try:
        raw = text.read_bytes()
        words = raw.decode("utf-8", "surrogateescape" if as_bytes else "strict")
    except UnicodeDecodeError as error:
        raise UsageError(f"{text} is not UTF-8: {error}; --bytes accepts any file") from None
    except OSError as error:
        raise UsageError(f"cannot read {text}: {error.strerror}") from None
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out must name a folder, not the file {out}")
    if kind_of(out) in (Kind.LINEARIZED, Kind.TRANSFORMERS):
        raise UsageError(f"{out} holds {kind_of(out).value}; choose another folder for --out")
    room = torch_room()
    try:
        settings = room.TrainingSettings(
            mixer=mixer,
            tokens="bytes" if as_bytes else "characters",
            hidden_size=width,
            num_layers=layers,
            num_heads=heads,
            length=length,
            batch=batch,
            steps=steps,
            learning_rate=rate,
            seed=seed,
        )
        settings.model(1)
    except ValueError as error:
        raise UsageError(in_options(str(error), OPTIONS)) from None
    tell = None if quiet else lambda line: typer.echo(printed(line))
    try:
        with (
            _processes(context_parallel) as (group, leads),
            show_progress(quiet or not leads) as progress,
        ):
            quiet = quiet or not leads
            room.train(words, out, settings, progress=progress, tell=tell, group=group)
    except KeyboardInterrupt:
        raise Stopped(
            "stopped; run the same command to continue from the last checkpoint"
        ) from None
    except (ValueError, FloatingPointError) as error:
        raise DataError(in_options(str(error), OPTIONS)) from None
    if not quiet:
        typer.echo(f"wrote {out}; to generate text: kerneltrick generate {out}")
