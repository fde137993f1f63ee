"""`kerneltrick linearize` and `kerneltrick evaluate`: pretrained models with maps for softmax."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from kerneltrick._files import write
from kerneltrick._text import to_json
from kerneltrick._version import __version__
from kerneltrick.attention import Dial
from kerneltrick.attention._dial import combined
from kerneltrick.cli._arguments import DataError, Stopped, UsageError, read_numbers, read_text
from kerneltrick.cli._options import Features, KeyWeight, Quiet
from kerneltrick.cli._output import (
    console,
    outputs_of,
    plain,
    progress_bar,
    say_written,
    words_stream,
)
from kerneltrick.report import render_evaluation

TOKENS = "Such as 200k: so much of the text is read."
PLANTED, PROMPTS = 4, 2  # windows in which a number is planted, and that are written on from
LENGTH = "Tokens of a window; windows do not see each other."
FIGURES = {  # what they mean, by the beginnings of their names
    "perplexity": "perplexity: among how many tokens it guesses the next one, as it were; less is "
    "better.",
    "0–": "0–63, …: perplexity of the tokens at these places.",
    "agreement": "agreement: how often its likeliest next token is the teacher's.",
    "recall": "recall: how often a number planted at that depth of the text is said at its end.",
    "cosine": "cosine: of its embeddings with the teacher's, 1 is the same.",
    "pairs": "pairs: rank correlation of similarities, of all pairs of texts, with the teacher's.",
    "nearest": "nearest: how often the nearest other text is the teacher's.",
}


def linearize_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a name on the hub.")],
    text: Annotated[
        Path, typer.Option("--text", metavar="FILE", help="What it reads while maps are fitted.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to write.")],
    feature_map: Annotated[
        str, typer.Option("--map", metavar="MAP", help="hedgehog or t2r, or any map with a window.")
    ] = "hedgehog:activation=exp",
    window: Annotated[
        str,
        typer.Option(
            "--window",
            metavar="COUNT",
            help="Tokens that are exact, or auto: as many as give half of the output.",
        ),
    ] = "64",
    sinks: Annotated[int, typer.Option("--sinks", min=0, help="First tokens, exact too.")] = 4,
    features: Features = None,
    key_weight: KeyWeight = False,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="LAYERS",
            help="Layers that keep softmax: none, numbers such as 0,3, or auto: the worst ones.",
        ),
    ] = "none",
    share: Annotated[
        float, typer.Option("--share", min=0, max=1, help="Of layers that --keep auto may keep.")
    ] = 0.25,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BYTES",
            help="That a stream may hold after --length tokens, such as 2M, for what is auto.",
        ),
    ] = None,
    finetune: Annotated[
        str,
        typer.Option(
            "--finetune",
            metavar="WHAT",
            help="Train end to end too: maps, lora (weights of attention by peft), all or none.",
        ),
    ] = "none",
    held_out: Annotated[
        Path | None,
        typer.Option(
            "--held-out", metavar="FILE", help="What it is judged on. Default: the text's end."
        ),
    ] = None,
    tokens: Annotated[str, typer.Option("--tokens", metavar="COUNT", help=TOKENS)] = "200k",
    length: Annotated[int, typer.Option("--length", min=8, help=LENGTH)] = 512,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all that is random.")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a linearised model there.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Put fitted maps in place of the softmax of a pretrained model (extra: hf).

    One pass over the text: every window is one step of all layers; --finetune makes a second. A run
    that was stopped goes on where it was.
    """
    exact = 0 if window == "auto" else _count("--window", window, 0, "auto, or ")
    try:
        setting = Dial(*combined("linearize", feature_map, exact, sinks))
    except ValueError as error:
        raise UsageError(str(error)) from None
    kept: Any = () if keep == "none" else keep if keep == "auto" else read_numbers("--keep", keep)
    if finetune not in ("none", "maps", "lora", "all"):
        raise UsageError(f"--finetune must be none, maps, lora or all, not {finetune!r}")
    most = None if budget is None else _count("--budget", budget)
    words, count = read_text(text), _count("--tokens", tokens)
    hf = _models()
    try:
        hf.check_folder(out, force)
    except OSError as error:
        raise UsageError(str(error)) from None
    fitted = hf.windows(model, words, tokens=count, length=length, least=4)
    if held_out is None:
        judging = max(2, min(16, len(fitted) // 8))
        fitted, judged = fitted[:-judging], fitted[-judging:]
    else:
        judged = hf.windows(model, read_text(held_out), tokens=16 * length, length=length, least=2)
        if {tuple(ids) for ids in fitted} & {tuple(ids) for ids in judged}:
            raise UsageError(f"{held_out} is of the text that is fitted to: judge on other text")
    resume = out.with_name(f".{out.name}.unfinished")
    try:
        with progress_bar(quiet) as progress:
            found = hf.linearize(
                model, fitted, setting, features=features, key_weight=key_weight, keep=kept,
                share=share, budget=most, finetune=finetune, seed=seed, progress=progress,
                window="auto" if window == "auto" else None, resume=resume,
            )  # fmt: skip
            teacher = model if found.changed else None
            planted = hf.passkeys(model, judged[:PLANTED]) if found.model.config.language else []
            result = hf.evaluate(
                found.model, judged, teacher=teacher, passkeys=planted, progress=progress
            )
    except KeyboardInterrupt:
        raise Stopped("stopped; the same command goes on where this one was") from None
    except ImportError as error:
        raise DataError(str(error)) from None
    except RuntimeError as error:  # torch has no type of its own for this on every device
        if "memory" not in str(error):
            raise
        raise DataError(
            f"not enough memory for windows of {length} tokens; give a shorter --length"
        ) from None
    found.save(out, result, force=force)
    for kept_run in (resume, resume.with_name(f"{resume.name}.tuning")):
        kept_run.unlink(missing_ok=True)
    if not quiet:
        _show(result, {})
        if found.window is not None:
            console().print(plain(f"Window: {found.window}."))
        for layer, why in found.kept.items():
            console().print(plain(f"Layer {layer} keeps softmax: {why}."))
        console().print(plain(f"wrote {out}"))


def evaluate_command(
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of `linearize`.")],
    text: Annotated[
        Path, typer.Option("--text", metavar="FILE", help="Text that it was not fitted to.")
    ],
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            metavar="MODEL",
            help="The original. Default: the model itself with softmax in every layer.",
        ),
    ] = None,
    tokens: Annotated[str, typer.Option("--tokens", metavar="COUNT", help=TOKENS)] = "8k",
    length: Annotated[int, typer.Option("--length", min=8, help=LENGTH)] = 512,
    contexts: Annotated[
        str | None,
        typer.Option(
            "--contexts",
            metavar="COUNTS",
            help="Time it after so many tokens, such as 1k,8k, and count its memory.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="PATH", help="Write the report; - is stdout.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write the figures; - is stdout.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Judge a linearised model beside its teacher, its windows and its maps alone (extra: hf)."""
    outputs = outputs_of(html, json)
    words, count = read_text(text), _count("--tokens", tokens)
    timed = [_count("--contexts", piece) for piece in contexts.split(",")] if contexts else []
    hf = _models()
    ids = hf.windows(model, words, tokens=count, length=length, least=2)
    with progress_bar(quiet) as progress:
        result = hf.evaluate(
            model, ids, teacher=teacher, passkeys=hf.passkeys(model, ids[:PLANTED]),
            contexts=timed, prompts=[x[: length // 4] for x in ids[:PROMPTS]] if html else (),
            progress=progress,
        )  # fmt: skip
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
    if not quiet:
        _show(result, outputs)
        say_written(outputs, words_stream(outputs))


def _models() -> Any:
    try:
        from kerneltrick import hf  # transformers and torch only when asked for
    except ImportError as error:
        raise DataError(str(error)) from None
    return hf


def _count(option: str, text: str, least: int = 1, other: str = "") -> int:
    match = re.fullmatch(r"(\d{1,12})([kM]?)", text.strip())
    if match is None or int(match[1]) < least:
        raise UsageError(f"{option} must be {other}a number such as 5000, 200k or 1M, not {text!r}")
    return int(match[1]) * {"": 1, "k": 1000, "M": 10**6}[match[2]]


def _values(result: Any) -> dict[str, Any]:
    """The figures as JSON has them."""
    found = dataclasses.asdict(result)
    found["speeds"] = [speed._asdict() for speed in result.speeds]
    found["continuations"] = [x._asdict() for x in result.continuations]
    return {"format": "kerneltrick.evaluate/1", "version": __version__, **found}


def _show(result: Any, outputs: dict[str, Path]) -> None:
    words = console(words_stream(outputs))
    names = list(result.rows[0].figures)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in result.rows:
        table.add_row(row.name, *(f"{row.figures[name]:.4g}" for name in names))
    words.print(plain(f"{result.windows} windows of {result.length} tokens"))
    words.print(table)
    known = [text for start, text in FIGURES.items() if any(x.startswith(start) for x in names)]
    words.print(plain(" ".join(known), "dim"))
    softmax, own = (row.state_bytes for row in result.rows[:2])
    if own is not None:
        told = f"A stream holds {own:,} bytes after {result.length} tokens, keys and values of the "
        words.print(plain(f"{told}teacher {softmax:,}.", "dim"))
    if result.speeds:
        words.print(_speed_table(result.speeds))
    words.print(plain(result.verdict))


def _speed_table(speeds: Any) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("")
    for name in ("context", "prefill tokens/s", "decoding tokens/s", "bytes held"):
        table.add_column(name, justify="right")
    for x in speeds:
        last = ("", "") if x.decoding is None else (_rate(x.decoding), f"{x.state_bytes:,}")
        table.add_row(x.name, f"{x.context:,}", _rate(x.prefill), *last)
    return table


def _rate(found: float) -> str:
    return f"{found:,.0f}" if found >= 100 else f"{found:.3g}"
