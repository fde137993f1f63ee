"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LARGEST_SEED = 2**63 - 1  # PyTorch accepts no larger one


def _check_seed(seed: int) -> int:
    if not 0 <= seed <= LARGEST_SEED:
        raise typer.BadParameter(f"{seed} is not between 0 and {LARGEST_SEED}")
    return seed


OUT_HELP = "The .safetensors file to write; - means stdout."

Layers = Annotated[
    str | None,
    typer.Option(
        "--layers", metavar="NUMBERS", help="Layers to use, e.g. 0,2 or 0-3. Default: all."
    ),
]
Heads = Annotated[
    str | None,
    typer.Option(
        "--heads", metavar="NUMBERS", help="Query heads to use, e.g. 0,2 or 0-3. Default: all."
    ),
]
Axes = Annotated[
    str,
    typer.Option(
        "--axes", metavar="AXES", help="Order of the axes in the file: heads,n,d or n,heads,d."
    ),
]
Causal = Annotated[
    bool | None,
    typer.Option(
        "--causal/--full",
        show_default=False,
        help="Causal attention (token i sees tokens j ≤ i) or full attention. Default: taken from "
        "the data, else full.",
    ),
]
Scale = Annotated[
    float | None,
    typer.Option("--scale", help="Softmax scale. Default: taken from the data, else 1/√d."),
]
Features = Annotated[
    int | None,
    typer.Option("--features", min=1, help="Number of features m. Default: 2·d for hedgehog."),
]
KeyWeight = Annotated[
    bool,
    typer.Option("--key-weight", help="Learn a separate matrix for the keys (hedgehog only)."),
]
Overlap = Annotated[
    int | None,
    typer.Option(
        "--overlap",
        min=1,
        metavar="COUNT",
        help="So many tokens in a row that the fitting and the validation text share are a copy. "
        "Default: 8, or more if the text repeats itself by chance.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", callback=_check_seed, help="Seed of all random numbers.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        max=1024,
        show_default=False,
        help="Number of worker processes, one thread each. Default: work in this process.",
    ),
]
DaskAddress = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Distribute the work to the Dask cluster at this address, e.g. tcp://host:8786.",
    ),
]
HtmlPath = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="PATH", help="Write an HTML report to this file; - means stdout."
    ),
]
JsonPath = Annotated[
    Path | None,
    typer.Option("--json", metavar="PATH", help="Write the results as JSON; - means stdout."),
]
