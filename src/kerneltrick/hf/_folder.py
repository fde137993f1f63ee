"""The folder of a linearised model: its weights, its tokenizer, and a card with its figures."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerneltrick._files import write
from kerneltrick._text import to_json
from kerneltrick._version import __version__
from kerneltrick.hf._capture import load_tokenizer, quiet
from kerneltrick.hf._evaluate import Evaluation
from kerneltrick.hf._linearized import NAME, Linearized

RECORD = "linearization.json"  # how it was made, beside the weights


def save_folder(
    out: Path,
    model: Linearized,
    teacher: str,
    judged: Evaluation,
    errors: Mapping[int, float],
    kept: Mapping[int, str],
    told: Sequence[str],
    record: Mapping[str, Any],
    *,
    force: bool = False,
) -> None:
    """Write the folder, whole or not at all; one that exists stays, unless `force` replaces it."""
    with _whole(out, force) as folder, quiet():
        model.save_pretrained(folder)
        load_tokenizer(teacher).save_pretrained(folder)
        write(folder / "README.md", _card(model, Path(teacher).name, judged, errors, kept, told))
        write(folder / RECORD, to_json(dict(record), indent=2) + "\n")


def read_record(folder: Path) -> dict[str, Any] | None:
    """How the model in a folder was made (losses, errors of heads); None if nothing says it."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _card(
    model: Linearized,
    teacher: str,
    judged: Evaluation,
    errors: Mapping[int, float],
    kept: Mapping[int, str],
    told: Sequence[str],
) -> str:
    """The model card: what it is, its figures, and how to load it."""
    names = list(judged.rows[1].figures)
    lines = [
        f"# {teacher}, linearised",
        "",
        f"Made by kerneltrick {__version__} from {teacher}: {_weights(model)}, and its attention "
        "goes through fitted maps.",
        "",
        f"**{judged.verdict}** On {judged.windows} windows of {judged.length} tokens that were "
        "not fitted to:",
        "",
        "| | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
        *(
            f"| {row.name} | " + " | ".join(f"{row.figures[name]:.4g}" for name in names) + " |"
            for row in judged.rows
        ),
        "",
    ]
    softmax, own = judged.rows[0].state_bytes, judged.rows[1].state_bytes
    if softmax is not None and own is not None:
        lines += [
            f"After {judged.length} tokens a stream holds {own:,} bytes; keys and values of the "
            f"original take {softmax:,}.",
            "",
        ]
    for words in told:
        lines += [words, ""]
    lines += ["| layer | attends by | error |", "|---|---|---|"]
    for number, layer in enumerate(model.config.layers):
        why = f" ({kept[number]})" if number in kept else ""
        error = f"{errors[number]:.3f}" if number in errors else ""
        lines.append(f"| {number} | `{layer['dial']}`{why} | {error} |")
    kind = "AutoModelForCausalLM" if model.config.language else "AutoModel"
    lines += [
        "",
        "Error: ‖O − O_softmax‖ / ‖O_softmax‖ of fitted maps on held-out tokens, mean over heads.",
        "",
        "```python",
        "import kerneltrick.hf  # knows the model type",
        f"from transformers import {kind}",
        "",
        f'model = {kind}.from_pretrained("this folder")',
        "```",
        "",
    ]
    return "\n".join(lines)


def _weights(model: Linearized) -> str:
    """What became of the weights of the original."""
    return {
        "lora": "its weights of attention were trained by LoRA",
        "all": "its weights of attention were trained",
    }.get(model.config.finetune, "its weights are unchanged")


@contextlib.contextmanager
def _whole(out: Path, force: bool) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end, or vanishes."""
    check_folder(out, force)
    tag = f"{os.getpid()}.{os.urandom(4).hex()}"
    part, old = (out.with_name(f".{out.name[:32]}.{tag}.{what}") for what in ("part", "old"))
    part.mkdir()
    try:
        yield part
        if out.exists():
            out.rename(old)
        part.rename(out)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_folder(out: Path, force: bool) -> None:
    """OSError now, rather than after the work, if the folder cannot be written."""
    if out.exists() and not force:
        raise FileExistsError(f"{out} exists; give another folder, or --force to replace it")
    if out.exists() and not _is_linearized(out):
        raise FileExistsError(f"{out} exists and holds no linearised model, so it is not replaced")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise FileNotFoundError(f"there is no folder {out.parent} to write {out.name} into")


def _is_linearized(folder: Path) -> bool:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("model_type") == NAME
