"""`kerneltrick generate`: text from a language model."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from kerneltrick._folders import Kind
from kerneltrick.cli._arguments import DataError, UsageError
from kerneltrick.cli._linearize import load_hf
from kerneltrick.cli._models import check_model
from kerneltrick.cli._options import Seed
from kerneltrick.cli._train import printed, torch_room


def generate_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder written by `kerneltrick train` or `linearize`, folder of a language model "
            "of transformers, or its name on the hub.",
        ),
    ],
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="Text to continue. Default: the beginning of a text."),
    ] = None,
    length: Annotated[
        int,
        typer.Option(
            "--length",
            min=0,
            help="Number of tokens to generate. A model that marks the end of texts may stop "
            "earlier.",
        ),
    ] = 500,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="0 takes the likeliest token.")
    ] = 0.8,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Sample from the k likeliest tokens. Default: all."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Generate text with a trained, linearised or pretrained model (extra: torch or hf)."""
    options = {"temperature": temperature, "top_k": top_k, "seed": seed}
    if check_model("generate", model) is Kind.TRAINED:
        _from_trained(model, prompt, length, options)
        return
    hf = load_hf()
    try:
        hf.write_text(model, prompt, length, write=_write, **options)
    except OSError as error:
        raise DataError(str(error)) from None
    _write("\n")


def _from_trained(model: str, prompt: str | None, length: int, options: dict[str, Any]) -> None:
    room = torch_room()
    try:
        found = room.TrainedModel.load(model)
        tokens = found.vocabulary.encode(prompt or found.vocabulary.start)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    read = found.vocabulary.reader()
    _write(prompt or "")
    found.model.generate(tokens[None], length, each=lambda x: _write(read(x[0])), **options)
    _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(printed(text))
    sys.stdout.flush()
