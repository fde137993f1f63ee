"""`kerneltrick fit`: learn feature maps that imitate softmax on captured heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.table import Table

from kerneltrick._files import is_standard_output, regular_file
from kerneltrick.attention import Dial, combined
from kerneltrick.cli._arguments import DataError, Stopped, UsageError, read_data, read_numbers
from kerneltrick.cli._models import check_model
from kerneltrick.cli._options import (
    OUT_HELP,
    Axes,
    Causal,
    DaskAddress,
    Features,
    Heads,
    Jobs,
    KeyWeight,
    Layers,
    Overlap,
    Quiet,
    Scale,
    Seed,
)
from kerneltrick.cli._output import (
    check_writable,
    console,
    plain,
    show_progress,
    unfinished,
    words_stream,
)
from kerneltrick.cli._workers import workers


def fit_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Files with queries, keys and values as for `compare`, one for each text. Every "
            "eighth file is held out for early stopping; with a single file, the last quarter of "
            "its tokens.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help=OUT_HELP),
    ],
    feature_map: Annotated[
        str,
        typer.Option(
            "--map",
            metavar="MAP",
            help="Map to fit: hedgehog, t2r, or any map with a window such as elu@window=16, whose "
            "gain is learned.",
        ),
    ] = "hedgehog",
    window: Annotated[
        int,
        typer.Option(
            "--window", min=0, help="Number of nearest tokens with exact softmax weights."
        ),
    ] = 0,
    sinks: Annotated[
        int,
        typer.Option("--sinks", min=0, help="Number of first tokens with exact softmax weights."),
    ] = 0,
    features: Features = None,
    key_weight: KeyWeight = False,
    loss: Annotated[
        str,
        typer.Option("--loss", metavar="LOSS", help="What to match: outputs, weights or both."),
    ] = "both",
    layers: Layers = None,
    heads: Heads = None,
    axes: Axes = "heads,n,d",
    causal: Causal = None,
    scale: Scale = None,
    overlap: Overlap = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Maximum number of steps.")] = 600,
    seed: Seed = 0,
    jobs: Jobs = None,
    dask: DaskAddress = None,
    quiet: Quiet = False,
) -> None:
    """Learn a feature map for each head that imitates its softmax attention (extra: torch).

    Judge the result on other text with `kerneltrick compare OTHER --map maps.safetensors`. An
    interrupted run continues where it stopped. With --jobs or --dask, layers are fitted separately.
    """
    if out.suffix != ".safetensors" and regular_file(out) is not None:
        raise UsageError(f"--out must name a .safetensors file, not {out}")
    check_writable(out)
    if loss not in ("outputs", "weights", "both"):
        raise UsageError(f"--loss must be outputs, weights or both, not {loss!r}")
    try:
        chosen = Dial(*combined("fit", feature_map, window, sinks))
    except ValueError as error:
        raise UsageError(str(error)) from None
    chosen_layers, chosen_heads = read_numbers("--layers", layers), read_numbers("--heads", heads)
    places = [file.resolve() for file in files]
    if len(set(places)) < len(places):
        raise UsageError("the same input file is given twice")
    for file in files:
        check_model("fit", file)
    data = [read_data(file, None, seed, chosen_layers, chosen_heads, axes) for file in files]
    try:
        from kerneltrick.torch import (
            fit,  # PyTorch is loaded only when needed
            layer_file,
        )
    except ImportError as error:
        raise DataError(str(error)) from None
    resume = unfinished({"--out": out})
    try:
        with workers(jobs, dask) as executor, show_progress(quiet) as progress:
            found = fit(
                data if len(data) > 1 else data[0],
                chosen,
                features=features,
                key_weight=key_weight,
                loss=cast(Any, loss),
                causal=causal,
                scale=scale,
                overlap=overlap,
                steps=steps,
                seed=seed,
                progress=progress,
                resume=resume,
                executor=executor,
            )
    except KeyboardInterrupt:
        raise Stopped("stopped; run the same command again to continue") from None
    found.maps.save(out)
    if resume is not None:
        for path in (resume, *(layer_file(resume, layer) for layer in found.maps.dials)):
            path.unlink(missing_ok=True)
    if not quiet:
        _show(found, out)


def _show(found: Any, out: Path) -> None:
    words = console(words_stream({"--out": out}))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("layer", "untrained", "fitted", "best head", "worst head"):
        table.add_column(name, justify="right")
    for layer, after in found.after.items():
        before = found.before[layer]
        means = (sum(before) / len(before), sum(after) / len(after), min(after), max(after))
        table.add_row(str(layer), *(f"{x:.3f}" for x in means))
    words.print(plain(f"Output error on held-out tokens, {found.maps.source}"))
    words.print(table)
    why = {
        "steps": "the maximum",
        "no better": "the held-out error stopped improving",
        "data": "the data was used up",
    }[found.stopped]
    words.print(
        plain(
            f"error: ‖O − O_softmax‖ / ‖O_softmax‖, mean over heads. Stopped after "
            f"{found.steps} steps: {why}. The held-out tokens decided when to stop, so "
            f"judge the maps on other text.",
            "dim",
        )
    )
    if not is_standard_output(out):
        words.print(plain(f"wrote {out}; judge it with: kerneltrick compare OTHER --map {out}"))
