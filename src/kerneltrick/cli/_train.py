"""`kerneltrick train` and `kerneltrick generate`: a small language model with any mixer."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from kerneltrick._text import printable
from kerneltrick.cli._arguments import DataError, Stopped, UsageError
from kerneltrick.cli._options import Quiet
from kerneltrick.cli._output import progress_bar


def _torch_room() -> ModuleType:
    """PyTorch only when asked for."""
    try:
        import kerneltrick.torch
    except ImportError as error:
        raise DataError(str(error)) from None
    return kerneltrick.torch


def _shown(text: str) -> str:
    """A text as a terminal may see it, its lines as they are."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)


@contextlib.contextmanager
def _processes(wanted: bool) -> Iterator[tuple[Any, bool]]:
    """The group of the processes that torchrun has started, and whether this is the first."""
    if not wanted:
        yield None, True
        return
    if "RANK" not in os.environ:
        raise UsageError(
            "--context-parallel is for the processes that torchrun starts: torchrun "
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
            "--out", metavar="DIR", help="The folder of the model; a training in it goes on."
        ),
    ],
    mixer: Annotated[
        str,
        typer.Option(
            "--mixer",
            metavar="MIXER",
            help="The map of its attention: elu, favor:features=64, with a window beside it "
            "elu@window=64, or softmax. Or based, retention, ssd, gla, rwkv, deltanet, "
            "gated_deltanet, hyena; a+b take turns, layer by layer.",
        ),
    ] = "elu",
    as_bytes: Annotated[
        bool, typer.Option("--bytes", help="Tokens are bytes. Default: characters, UTF-8.")
    ] = False,
    steps: Annotated[int, typer.Option("--steps", help="Steps of training.")] = 1000,
    length: Annotated[int, typer.Option("--length", help="Tokens in a row.")] = 256,
    batch: Annotated[int, typer.Option("--batch", help="Rows in a step.")] = 8,
    width: Annotated[int, typer.Option("--width", help="Width of the model.")] = 128,
    layers: Annotated[int, typer.Option("--layers", help="Its layers.")] = 4,
    heads: Annotated[int, typer.Option("--heads", help="Heads of each.")] = 4,
    rate: Annotated[float, typer.Option("--rate", help="The largest learning rate.")] = 2e-3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all that is random.")] = 0,
    context_parallel: Annotated[
        bool,
        typer.Option(
            "--context-parallel",
            help="Spread each row over the processes that torchrun starts: torchrun "
            "--nproc-per-node 2 -m kerneltrick train …",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a small language model on a text, in minutes (extra: torch).

    The last tenth of the text is held out to judge it. The same command goes on with a training
    that was stopped or killed, with the losses that it would have had.
    """
    try:
        raw = text.read_bytes()
        words = raw.decode("utf-8", "surrogateescape" if as_bytes else "strict")
    except UnicodeDecodeError as error:
        raise UsageError(f"{text} is not UTF-8: {error}; --bytes takes any file") from None
    except OSError as error:
        raise UsageError(f"cannot read {text}: {error.strerror}") from None
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out must name a folder, not the file {out}")
    room = _torch_room()
    try:
        settings = room.TrainingSettings(
            mixer=mixer, tokens="bytes" if as_bytes else "characters", hidden_size=width,
            num_layers=layers, num_heads=heads, length=length, batch=batch, steps=steps,
            learning_rate=rate, seed=seed,
        )  # fmt: skip
        settings.model(1)
    except ValueError as error:
        raise UsageError(str(error)) from None
    tell = None if quiet else lambda line: typer.echo(_shown(line))
    try:
        with (
            _processes(context_parallel) as (group, leads),
            progress_bar(quiet or not leads) as progress,
        ):
            quiet = quiet or not leads
            room.train(words, out, settings, progress=progress, tell=tell, group=group)
    except KeyboardInterrupt:
        raise Stopped("stopped; the same command goes on from the last checkpoint") from None
    if not quiet:
        typer.echo(f"wrote {out}; `kerneltrick generate {out}` writes more")


def generate_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `kerneltrick train` made.")],
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="The text to go on from. Default: a new line.")
    ] = None,
    length: Annotated[int, typer.Option("--length", min=0, help="Tokens to write.")] = 500,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="0 takes the likeliest token.")
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Draw among so many. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of what is drawn.")] = 0,
) -> None:
    """Write a text with a model that `kerneltrick train` has made (extra: torch)."""
    room = _torch_room()
    try:
        found = room.TrainedModel.load(folder)
        tokens = found.vocabulary.encode(prompt or found.vocabulary.start)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    read = found.vocabulary.reader()

    def show(token: Any) -> None:
        sys.stdout.write(_shown(read(token[0])))
        sys.stdout.flush()

    sys.stdout.write(_shown(prompt or ""))
    found.model.generate(
        tokens[None], length, temperature=temperature, top_k=top_k, seed=seed, each=show
    )
    sys.stdout.write("\n")
