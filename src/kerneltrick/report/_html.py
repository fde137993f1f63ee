"""Reports as self-contained HTML files: one frame, and the pages that fill it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from kerneltrick import maps
from kerneltrick._files import write
from kerneltrick.analysis import METRICS, AttentionData, Comparison, picture
from kerneltrick.report._check import check_comparison, check_picture
from kerneltrick.report._explore import explorable


@dataclass(frozen=True)
class _Page:
    """A page: a folder in `page/` with a body and scripts, and the texts of its frame."""

    folder: str
    command: str
    title: str
    question: str
    told: str  # heading of the text at the top
    facts: str  # heading of the numbers beside it
    parts: tuple[str, ...]  # styles and scripts in `page/`, in this order


def _inside(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_FRAME = ("style.css", "base.js", "colour.js", "page.js", "mosaic.js", "table.js", "chart.js")
_ATTENTION = ("binary.js", "canvas.js", "features.js", "weights.js")
_COMPARE_PARTS = (
    "style.css",
    "maps.js",
    "heads.js",
    "state.js",
    "attention.js",
    "pareto.js",
    "lines.js",
    "tables.js",
    "main.js",
)
_EXPLORE_PARTS = (
    "style.css",
    "arithmetic.js",
    "kit.js",
    "questions.js",
    "orders.js",
    "plane.js",
    "dial.js",
    "stream.js",
    "recall.js",
    "main.js",
)
_COMPARE = _Page(
    folder="compare",
    command="kerneltrick compare",
    title="Feature maps against softmax attention",
    question="Which feature map can replace softmax here?",
    told="Verdict",
    facts="Data",
    parts=(*_ATTENTION, *_inside("compare", *_COMPARE_PARTS)),
)
_RECALL = _Page(
    folder="recall",
    command="kerneltrick recall",
    title="Memory against state size",
    question="How much can a mixer remember or track per byte of its state?",
    told="Task",
    facts="Training",
    parts=_inside("recall", "main.js"),
)
_EVALUATION = _Page(
    folder="evaluation",
    command="kerneltrick evaluate",
    title="A linearised model and its teacher",
    question="How good is the model without softmax?",
    told="Verdict",
    facts="Measured on",
    parts=_inside("evaluation", "style.css", "main.js"),
)
_EXPLORE = _Page(
    folder="explore",
    command="kerneltrick explore",
    title="The kernel trick, to explore",
    question="What changes when the brackets move?",
    told="How to read this page",
    facts="Chapters",
    parts=(*_ATTENTION, *_inside("explore", *_EXPLORE_PARTS)),
)
_INSPECTION = _Page(
    folder="inspect",
    command="kerneltrick inspect",
    title="What a model attends to",
    question="What does each layer of this model remember?",
    told="Memory",
    facts="Model and text",
    parts=(
        "binary.js",
        "canvas.js",
        *_inside("inspect", "style.css", "state.js", "picture.js", "main.js"),
    ),
)
INSPECTION = "kerneltrick.inspect/1"
EVALUATION = "kerneltrick.evaluate/1"
RECALL = "kerneltrick.recall/1"
# Inside <script type="application/json"> these characters could end the element or start another.
# JSON reads the escapes back as the same characters. json.dumps escapes everything beyond ASCII:
# some readers take U+2028 and U+2029 for line ends, and half a surrogate pair is not valid UTF-8.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def save_html(result: Comparison, data: AttentionData, path: str | os.PathLike[str]) -> None:
    """Write the report of `analysis.compare(data, ...)` to a file, whole or not at all."""
    values = {**result.to_dict(), "picture": picture(data, [row.map for row in result.maps])}
    write(path, render_html(values))


def render_html(comparison: Mapping[str, Any]) -> str:
    """Render the report of a comparison (format "kerneltrick.compare/3" with `picture`) as HTML.

    The file loads nothing: it contains the style, script and data, and its content security policy
    allows only these, by their hashes. Text from the data (tokens, names, the source) is inserted
    as text, never as markup. NaN becomes null, and infinity becomes "inf".
    """
    check_comparison(comparison)
    check_picture(comparison)
    metrics = embedded_json([each._asdict() for each in METRICS.values()])
    return _framed(_COMPARE, comparison, f"const METRICS = {metrics};\n{_declared_maps()}")


def render_evaluation(evaluation: Mapping[str, Any]) -> str:
    """Render the report of a linearised model as HTML, as `kerneltrick evaluate --html` does.

    `evaluation` has the format "kerneltrick.evaluate/1", with `source`, `record` (how the model was
    made, or None) and `continuations` as texts. The page is as self-contained as that of
    `render_html`.
    """
    if evaluation.get("format") != EVALUATION:
        raise ValueError(
            f"the evaluation has format {evaluation.get('format')!r}; this report needs "
            f"{EVALUATION!r}"
        )
    for name in ("source", "rows", "verdict", "speeds", "continuations", "record"):
        if name not in evaluation:
            raise ValueError(f"the evaluation has no {name!r}, which the report needs")
    return _framed(_EVALUATION, evaluation)


def render_recall(found: Mapping[str, Any]) -> str:
    """Render recall against state size as HTML, as `kerneltrick recall --html` does.

    `found` has the format "kerneltrick.recall/1", as `--json` writes it. The page is as
    self-contained as that of `render_html`.
    """
    if found.get("format") != RECALL:
        raise ValueError(
            f"the recall has format {found.get('format')!r}; this report needs {RECALL!r}"
        )
    for name in ("settings", "points", "trainings"):
        if not found.get(name):
            raise ValueError(f"the recall has no {name!r}, which the report needs")
    return _framed(_RECALL, found)


def render_inspection(found: Mapping[str, Any]) -> str:
    """Render what the layers of a model attend to as HTML, as `kerneltrick inspect --html` does.

    `found` has the format "kerneltrick.inspect/1", as `--json` writes it, with `pictures`. The page
    is as self-contained as that of `render_html`.
    """
    if found.get("format") != INSPECTION:
        raise ValueError(
            f"the inspection has format {found.get('format')!r}; this report needs {INSPECTION!r}"
        )
    for name in ("tokens", "rows", "layers", "measures", "pictures"):
        if not found.get(name):
            raise ValueError(f"the inspection has no {name!r}, which the report needs")
    return _framed(_INSPECTION, found)


def render_explore() -> str:
    """Render the explorable page of the kernel trick, as `kerneltrick explore` writes it.

    Its five chapters are pictures that answer to controls, with questions that the page checks. It
    is as self-contained as the page of `render_html`; the formulas are those of the feature maps.

    >>> page = render_explore()
    >>> page.count("<h2 id="), "https://" in page
    (7, False)
    """
    return _framed(_EXPLORE, explorable(), _declared_maps())


def _declared_maps() -> str:
    """Return the formulas that the maps declare, as the constant MAPS of the script."""
    entries = ",\n".join(
        f"  {each.name}: {{ phi: {each.script or 'null'}, kernel: {each.kernel_script or 'null'} }}"
        for each in maps.classes()
    )
    return f"const MAPS = {{\n{entries},\n}};"


def _framed(page: _Page, values: Mapping[str, Any], first: str = "") -> str:
    """Insert a page and its data into the frame; `first` is the beginning of its script."""
    parts = (*_FRAME, *page.parts)
    style = "\n".join(_asset(name) for name in parts if name.endswith(".css"))
    scripts = "\n".join([first, *(_asset(name) for name in parts if name.endswith(".js"))])
    started = 'document.documentElement.dataset.started = "yes";'
    script = f'(() => {{\n"use strict";\n{scripts}\n{started}\n}})();\n'
    support = _asset("support.js")
    policy = (
        f"default-src 'none'; script-src {_digest(support)} {_digest(script)}; "
        f"style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    filled = {
        "POLICY": policy,
        "ICON": base64.b64encode(_read("icon.png")).decode(),
        "TITLE": page.title,
        "STYLE": style,
        "COMMAND": page.command,
        "QUESTION": page.question,
        "TOLD": page.told,
        "FACTS": page.facts,
        "BODY": _asset(f"{page.folder}/body.html"),
        "DATA": embedded_json(values),
        "SUPPORT": support,
        "SCRIPT": script,
    }
    # One pass: inserted text is not searched again, so data cannot contain a placeholder.
    return re.sub(r"@([A-Z]+)@", lambda match: filled[match[1]], _asset("frame.html"))


def embedded_json(value: Any) -> str:
    """Return JSON that is inert inside a script element."""
    text = json.dumps(_plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def _asset(name: str) -> str:
    return _read(name).decode("utf-8").replace("\r\n", "\n")


def _read(name: str) -> bytes:
    return (resources.files("kerneltrick.report") / "page" / name).read_bytes()


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
