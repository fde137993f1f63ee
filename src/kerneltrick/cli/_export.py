"""`kerneltrick export`: a trained model in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kerneltrick.cli._arguments import DataError, UsageError
from kerneltrick.cli._models import check_model
from kerneltrick.cli._output import check_writable

OPERATORS = ("plain", "microsoft", "opset27")


def export_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder written by `kerneltrick train`.")
    ],
    onnx: Annotated[
        Path,
        typer.Option("--onnx", metavar="FILE", help="ONNX file to write, such as model.onnx."),
    ],
    operators: Annotated[
        str,
        typer.Option(
            help="plain, microsoft (faster, for ONNX Runtime only) or opset27: see the "
            "documentation."
        ),
    ] = "plain",
) -> None:
    """Write a model trained by `kerneltrick train` as an ONNX file (extra: onnx).

    Batch and length are free, and the state is among the inputs and outputs, so one file serves
    prefill and decoding. See the documentation, "Run a model in ONNX Runtime".
    """
    check_model("export", folder)
    if operators not in OPERATORS:
        raise UsageError(f"--operators must be one of {', '.join(OPERATORS)}, not {operators!r}")
    check_writable(onnx)
    typer.echo(f"writing {onnx}: the exporter of PyTorch takes half a minute or more", err=True)
    try:
        import kerneltrick.onnx as room
        from kerneltrick.torch import TrainedModel
    except ImportError as error:
        raise DataError(str(error)) from None
    try:
        found = TrainedModel.load(folder)
        room.export(found.model, onnx, operators=operators)  # type: ignore[arg-type] # checked there
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    inputs = len(room.state_inputs(onnx))
    typer.echo(f"wrote {onnx}: tokens and {inputs} inputs for the state")
