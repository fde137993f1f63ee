"""`kerneltrick linearize` and `kerneltrick evaluate`: feature maps in pretrained models."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from kerneltrick._files import write
from kerneltrick._folders import Kind
from kerneltrick._text import shown, to_json
from kerneltrick._version import __version__
from kerneltrick.attention import Dial, combined
from kerneltrick.cli._arguments import DataError, Stopped, UsageError, read_numbers, read_text
from kerneltrick.cli._models import check_model
from kerneltrick.cli._options import Features, KeyWeight, Overlap, Quiet, Seed
from kerneltrick.cli._output import (
    console,
    drop_finished,
    outputs_of,
    plain,
    resumable,
    say_written,
    show_progress,
    unfinished,
    words_stream,
)
from kerneltrick.cli._train import torch_room
from kerneltrick.report import render_evaluation

PROMPTS = 2  # windows that are continued
FINETUNE = ("none", "maps", "lora", "all")
MODEL = "Folder of the model, or its name on the hub."
TOKENS = "Number of tokens to read, e.g. 200k."
LENGTH = "Tokens per window. Windows do not see each other."
FIGURES = {  # what the figures mean, by the beginnings of their names
    "perplexity": "perplexity: how many tokens the model chooses between, in effect; lower is "
    "better.",
    "0–": "0–63, …: perplexity of the tokens at these positions.",
    "agreement": "agreement: how often the most likely next token is the teacher's.",
    "recall": "recall: how often a number planted at that depth is repeated at the end.",
    "cosine": "cosine: mean cosine of the embeddings with the teacher's; 1 is identical.",
    "pairs": "pairs: rank correlation of the similarities of all pairs with the teacher's.",
    "nearest": "nearest: how often the nearest other text is the teacher's.",
}


def linearize_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    text: Annotated[
        Path, typer.Option("--text", metavar="FILE", help="Text to fit the maps to, in UTF-8.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    feature_map: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MAP",
            help="hedgehog, t2r, any map with a window, or softmax for the window alone. Default: "
            "softmax if heads are kept and nothing is trained, else hedgehog:activation=exp.",
        ),
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            "--window",
            metavar="COUNT",
            help="Number of nearby tokens with exact weights. auto takes the shortest window that "
            "gives half of the output.",
        ),
    ] = "64",
    sinks: Annotated[
        int, typer.Option("--sinks", min=0, help="Number of first tokens with exact weights.")
    ] = 4,
    features: Features = None,
    key_weight: KeyWeight = False,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="LAYERS",
            help="Layers that keep softmax: none, numbers such as 0,3, or auto for the heads that "
            "need the whole text most (see --unit).",
        ),
    ] = "none",
    unit: Annotated[
        str, typer.Option("--unit", metavar="UNIT", help="What --keep auto keeps: head or layer.")
    ] = "head",
    share: Annotated[
        float,
        typer.Option("--share", min=0, max=1, help="Share of heads or layers for --keep auto."),
    ] = 0.25,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BYTES",
            help="Memory budget per stream after --length tokens for `auto` settings, e.g. 2M.",
        ),
    ] = None,
    ranking: Annotated[
        str,
        typer.Option(
            "--ranking",
            metavar="HOW",
            help="How heads are ranked: fast (gradients of gates) or slow (heads one by one).",
        ),
    ] = "fast",
    finetune: Annotated[
        str,
        typer.Option(
            "--finetune",
            metavar="WHAT",
            help="What to train end to end afterwards: maps; lora (maps and low-rank updates of "
            "the attention projections, needs peft); all (maps and the projections); or none.",
        ),
    ] = "none",
    held_out: Annotated[
        Path | None,
        typer.Option(
            "--held-out",
            metavar="FILE",
            help="Text to evaluate on. Default: the end of --text, which is then not used for "
            "fitting.",
        ),
    ] = None,
    overlap: Overlap = None,
    tokens: Annotated[str, typer.Option("--tokens", metavar="COUNT", help=TOKENS)] = "200k",
    length: Annotated[int, typer.Option("--length", min=8, help=LENGTH)] = 512,
    seed: Seed = 0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace a linearised model in --out. Files that you added to its folder stay.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Replace the softmax of a pretrained model by fitted feature maps (extra: hf).

    The command reads the text once: each window is one step for all layers. --finetune reads it a
    second time. If it is stopped, the same command continues where it stopped.
    """
    exact = 0 if window == "auto" else read_count("--window", window, 0, "auto, or ")
    for option, value, known in (
        ("--unit", unit, ("head", "layer")),
        ("--ranking", ranking, ("fast", "slow")),
    ):
        if value not in known:
            raise UsageError(f"{option} must be {' or '.join(known)}, not {value!r}")
    if feature_map is None:
        untrained = keep == "auto" and unit == "head" and finetune == "none"
        feature_map = "softmax" if untrained else "hedgehog:activation=exp"
    try:
        setting = Dial(*combined("linearize", feature_map, exact, sinks))
    except ValueError as error:
        raise UsageError(str(error)) from None
    kept: Any = () if keep == "none" else keep if keep == "auto" else read_numbers("--keep", keep)
    if finetune not in FINETUNE:
        raise UsageError(f"--finetune must be none, maps, lora or all, not {finetune!r}")
    most = None if budget is None else read_count("--budget", budget)
    words, count = read_text(text), read_count("--tokens", tokens)
    check_model("linearize", model)
    hf = load_hf()
    try:
        hf.check_folder(out, force)
    except OSError as error:
        raise UsageError(str(error)) from None
    windows = hf.windows(model, words, tokens=count, length=length, least=4)
    judged: Any = "end"
    if held_out is not None:
        judged = hf.windows(model, read_text(held_out), tokens=16 * length, length=length, least=2)
    try:
        with show_progress(quiet) as progress:
            found = hf.linearize(
                model,
                windows,
                setting,
                window="auto" if window == "auto" else None,
                features=features,
                key_weight=key_weight,
                keep=kept,
                unit=unit,
                share=share,
                budget=most,
                ranking=ranking,
                finetune=finetune,
                held_out=judged,
                overlap=overlap,
                out=out,
                force=force,
                seed=seed,
                progress=progress,
                say=None if quiet else lambda text: console().print(plain(text)),
            )
    except KeyboardInterrupt:
        raise Stopped("stopped; the same command continues where this one stopped") from None
    except hf.OverlapError:
        raise UsageError(f"{held_out} overlaps the fitting text; evaluate on other text") from None
    except OSError as error:
        raise DataError(f"{error}; the same command continues where this one stopped") from None
    except (ImportError, MemoryError) as error:
        raise DataError(str(error)) from None
    if not quiet:
        _show(found.judged, {})
        for line in (
            *found.remarks,
            *(f"Layer {layer} keeps softmax: {why}." for layer, why in found.kept.items()),
            f"wrote {out}",
        ):
            console().print(plain(line))


def evaluate_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder that `kerneltrick linearize` or `kerneltrick train` wrote."
        ),
    ],
    text: Annotated[
        Path,
        typer.Option("--text", metavar="FILE", help="Text to evaluate on; not the fitting text."),
    ],
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            metavar="MODEL",
            help="The original model. Default: this model with softmax in every layer.",
        ),
    ] = None,
    tokens: Annotated[str, typer.Option("--tokens", metavar="COUNT", help=TOKENS)] = "8k",
    length: Annotated[int, typer.Option("--length", min=8, help=LENGTH)] = 512,
    trials: Annotated[
        int, typer.Option("--trials", min=0, help="Planted numbers to recall, for each depth.")
    ] = 20,
    shares: Annotated[
        str | None,
        typer.Option(
            "--shares",
            metavar="SHARES",
            help="Measure quality with these shares of heads that see the whole text, e.g. "
            "0,0.1,0.25,0.5; for models made with --keep auto.",
        ),
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(
            "--contexts",
            metavar="COUNTS",
            help="Measure speed and memory after these numbers of tokens, e.g. 1k,8k.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PATH", help="Write a report to this file; - is stdout."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the figures to this file; - is stdout."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare a linearised model with its teacher, its window and its map alone (extra: hf).

    Of a model that `kerneltrick train` wrote, it measures the perplexity (extra: torch). With
    --html or --json, finished work is saved next to that file until the end, so an interrupted run
    continues where it stopped.
    """
    outputs = outputs_of(html, json)
    words, count = read_text(text), read_count("--tokens", tokens)
    if check_model("evaluate", model) is Kind.TRAINED:
        given = {"--teacher": teacher, "--shares": shares, "--contexts": contexts, "--html": html}
        for option in (option for option, value in given.items() if value is not None):
            raise UsageError(f"{option} needs a linearised model, and {model} holds a trained one")
        _evaluate_trained(model, words, count, length, json, quiet)
        return
    if teacher is not None:
        check_model("evaluate --teacher", teacher)
    timed = [read_count("--contexts", piece) for piece in contexts.split(",")] if contexts else []
    wanted = [_read_share(piece) for piece in shares.split(",")] if shares else []
    hf = load_hf()
    ids = hf.windows(model, words, tokens=count, length=length, least=2)
    resume = unfinished(outputs)
    with resumable(resume), show_progress(quiet) as progress:
        result = hf.evaluate(
            model,
            ids,
            teacher=teacher,
            passkeys=hf.passkeys(model, ids, trials=trials),
            shares=wanted,
            contexts=timed,
            prompts=[x[: length // 4] for x in ids[:PROMPTS]] if html else (),
            progress=progress,
            resume=resume,
        )
    values = _values(result)
    if json is not None:
        write(json, to_json(values, indent=2) + "\n")
    if html is not None:
        said = [
            {
                "prompt": hf.decode(model, x.prompt),
                "written": {name: hf.decode(model, y) for name, y in x.written.items()},
            }
            for x in result.continuations
        ]
        record = hf.read_record(model)
        more = {"source": str(model), "record": record, "continuations": said}
        write(html, render_evaluation({**values, **more}))
    drop_finished(resume, quiet)
    if not quiet:
        _show(result, outputs)
        say_written(outputs, words_stream(outputs))


def _evaluate_trained(
    folder: Path, text: str, tokens: int, length: int, json: Path | None, quiet: bool
) -> None:
    """Measure the perplexity of a model that `kerneltrick train` wrote."""
    try:
        found = torch_room().TrainedModel.load(folder)
        perplexity, windows = found.perplexity(text, tokens=tokens, length=length)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    kind = found.settings.tokens
    if json is not None:
        row = {"name": "model", "figures": {"perplexity": perplexity}}
        values = {"format": "kerneltrick.evaluate/1", "version": __version__, "rows": [row]}
        write(json, to_json({**values, "windows": windows, "length": length}, indent=2) + "\n")
    if not quiet:
        outputs = {} if json is None else {"--json": json}
        words = words_stream(outputs)
        told = f"{windows:,} windows of {length} {kind}: perplexity {shown(perplexity, 4)} per "
        console(words).print(plain(told + f"{kind[:-1]}. {FIGURES['perplexity']}"))
        say_written(outputs, words)


def load_hf() -> Any:
    try:
        from kerneltrick import hf  # transformers and torch only when asked for
    except ImportError as error:
        raise DataError(str(error)) from None
    return hf


def read_count(option: str, text: str, least: int = 1, other: str = "") -> int:
    match = re.fullmatch(r"(\d{1,12})([kM]?)", text.strip())
    if match is None:
        raise UsageError(f"{option} must be {other}a number such as 5000, 200k or 1M, not {text!r}")
    if int(match[1]) < least:
        raise UsageError(f"{option} must be {other}at least {least}, not {text}")
    return int(match[1]) * {"": 1, "k": 1000, "M": 10**6}[match[2]]


def _read_share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise UsageError(f"--shares must be numbers between 0 and 1, such as 0,0.25, not {text!r}")
    return found


def _values(result: Any) -> dict[str, Any]:
    """Return the figures as they stand in the JSON file."""
    found = dataclasses.asdict(result)
    found["speeds"] = [speed._asdict() for speed in result.speeds]
    found["continuations"] = [x._asdict() for x in result.continuations]
    found["curve"] = [x._asdict() for x in result.curve]
    return {"format": "kerneltrick.evaluate/1", "version": __version__, **found}


def _show(result: Any, outputs: dict[str, Path]) -> None:
    words = console(words_stream(outputs))
    names = list(result.rows[0].figures)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in result.rows:
        table.add_row(row.name, *(_figure(row, name) for name in names))
    words.print(plain(f"{result.windows} windows of {result.length} tokens"))
    words.print(table)
    known = [text for start, text in FIGURES.items() if any(x.startswith(start) for x in names)]
    words.print(plain(" ".join(known), "dim"))
    softmax, own = (row.state_bytes for row in result.rows[:2])
    if own is not None:
        size = f"After {result.length} tokens, the state of one stream takes {own:,} bytes"
        words.print(plain(f"{size}; the teacher's keys and values take {softmax:,}.", "dim"))
    if result.curve:
        words.print(_curve_table(result))
    if result.speeds:
        words.print(_speed_table(result.speeds))
    words.print(plain(result.verdict))


def _figure(row: Any, name: str) -> str:
    error = f" ± {shown(row.errors[name], 2)}" if row.errors.get(name) else ""
    return f"{shown(row.figures[name], 4)}{error}"


def _curve_table(result: Any) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    what = "perplexity" if "perplexity" in result.rows[0].figures else "cosine"
    for name in ("whole heads", "share", what):
        table.add_column(name, justify="right")
    table.add_column("")
    for x in result.curve:
        row = (str(x.heads), f"{x.share:.0%}", shown(x.quality, 4), "knee" if x.knee else "")
        table.add_row(*row)
    return table


def _speed_table(speeds: Any) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("")
    decodes = any(x.decoding is not None for x in speeds)  # encoders do not
    names = ("prefill tokens/s", "decoding tokens/s", "bytes held") if decodes else ("tokens/s",)
    for name in ("context", *names):
        table.add_column(name, justify="right")
    for x in speeds:
        decoding = (shown(x.decoding), f"{x.state_bytes:,}") if decodes else ()
        table.add_row(x.name, f"{x.context:,}", shown(x.prefill), *decoding)
    return table
