"""Options that several commands have, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_NUMBERS = "Such as 0,2 or 0-3. Default: all."

Layers = Annotated[str | None, typer.Option("--layers", metavar="NUMBERS", help=_NUMBERS)]
Heads = Annotated[str | None, typer.Option("--heads", metavar="NUMBERS", help=_NUMBERS)]
Axes = Annotated[
    str,
    typer.Option(
        "--axes", metavar="AXES", help="How arrays of a file lie: heads,n,d or n,heads,d."
    ),
]
Causal = Annotated[
    bool | None,
    typer.Option(
        "--causal/--full",
        show_default=False,
        help="Token i sees j ≤ i, or every token. Default: as the data says, else full.",
    ),
]
Scale = Annotated[
    float | None,
    typer.Option("--scale", help="Of softmax. Default: as the data says, else 1/√d."),
]
Features = Annotated[
    int | None, typer.Option("--features", min=1, help="m. Default: 2·d for hedgehog.")
]
KeyWeight = Annotated[
    bool, typer.Option("--key-weight", help="Hedgehog's keys get a matrix of their own.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        show_default=False,
        help="Worker processes to share the work, one thread each. Default: none, this process.",
    ),
]
DaskAddress = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Share the work among the workers of a Dask cluster, such as tcp://host:8786.",
    ),
]
HtmlPath = Annotated[
    Path | None,
    typer.Option("--html", metavar="PATH", help="Write the report, one file to open; - is stdout."),
]
JsonPath = Annotated[
    Path | None, typer.Option("--json", metavar="PATH", help="Write the numbers; - is stdout.")
]
