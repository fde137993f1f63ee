"""Reports as one HTML file that needs nothing else: one frame, and what each page puts into it."""

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

from kerneltrick._files import write
from kerneltrick.analysis import AttentionData, Comparison, picture
from kerneltrick.report._check import check_comparison, check_picture


@dataclass(frozen=True)
class _Page:
    """A page: a folder of `page/` with a body and own parts, and the words of its frame."""

    folder: str
    command: str
    title: str
    question: str
    told: str  # what the text at the head is …
    facts: str  # … and what the numbers beside it are of
    parts: tuple[str, ...]  # styles and scripts, in this order


_FRAME = ("style.css", "base.js", "colour.js", "page.js", "mosaic.js", "table.js", "chart.js")
_COMPARE = _Page(
    "compare", "kerneltrick compare", "Feature maps against softmax attention",
    "Which feature map can replace softmax here?", "Verdict", "Data",
    ("style.css", "maps.js", "weights.js", "state.js", "attention.js", "pareto.js", "lines.js",
     "tables.js", "main.js"),
)  # fmt: skip
_RECALL = _Page(
    "recall", "kerneltrick recall", "Recall against the size of the state",
    "How much does a mixer remember for each byte of its state?", "Task", "Training", ("main.js",),
)  # fmt: skip
_EVALUATION = _Page(
    "evaluation", "kerneltrick evaluate", "A linearised model beside its teacher",
    "What is left of the model without its softmax?", "Verdict", "Measured on",
    ("style.css", "main.js"),
)  # fmt: skip
EVALUATION = "kerneltrick.evaluate/1"
RECALL = "kerneltrick.recall/1"
# Inside <script type="application/json"> these could end the element or start another; JSON
# reads the escapes back as the same characters. Beyond ASCII (U+2028 and U+2029 are ends of lines
# to some readers, half of a surrogate pair cannot be written as UTF-8) json.dumps escapes all.
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def save_html(result: Comparison, data: AttentionData, path: str | os.PathLike[str]) -> None:
    """Write the report of `analysis.compare(data, ...)`; the file appears whole or not at all."""
    values = {**result.to_dict(), "picture": picture(data, [row.map for row in result.maps])}
    write(path, render_html(values))


def render_html(comparison: Mapping[str, Any]) -> str:
    """The report of a comparison (format "kerneltrick.compare/3" with its `picture`) as HTML.

    The file asks for nothing: style, script and data are inside, and its content security policy
    allows only these, by their hashes. Texts of the data (tokens, names, the source) are put into
    the page as text, never as markup. NaN becomes null and infinity "inf".
    """
    check_comparison(comparison)
    check_picture(comparison)
    return _framed(_COMPARE, comparison)


def render_evaluation(evaluation: Mapping[str, Any]) -> str:
    """The report of a linearised model as HTML: what `kerneltrick evaluate --html` writes.

    evaluation: format "kerneltrick.evaluate/1", with `source`, `record` (how the model was made, or
    None) and `continuations` as texts. The page is as closed as that of `render_html`.
    """
    if evaluation.get("format") != EVALUATION:
        raise ValueError(
            f"the evaluation has format {evaluation.get('format')!r}; this report draws "
            f"{EVALUATION!r}"
        )
    for name in ("source", "rows", "verdict", "speeds", "continuations", "record"):
        if name not in evaluation:
            raise ValueError(f"the evaluation has no {name!r}, which the report draws")
    return _framed(_EVALUATION, evaluation)


def render_recall(found: Mapping[str, Any]) -> str:
    """Recall against the bytes of states as HTML: what `kerneltrick recall --html` writes.

    found: format "kerneltrick.recall/1", as `--json` writes it. The page is as closed as that of
    `render_html`.
    """
    if found.get("format") != RECALL:
        raise ValueError(
            f"the recall has format {found.get('format')!r}; this report draws {RECALL!r}"
        )
    for name in ("settings", "points", "trainings", "published"):
        if not found.get(name):
            raise ValueError(f"the recall has no {name!r}, which the report draws")
    return _framed(_RECALL, found)


def _framed(page: _Page, values: Mapping[str, Any]) -> str:
    """The frame with a page and its data in it."""
    parts = (*_FRAME, *(f"{page.folder}/{name}" for name in page.parts))
    style = "\n".join(_asset(name) for name in parts if name.endswith(".css"))
    scripts = "\n".join(_asset(name) for name in parts if name.endswith(".js"))
    script = f'(() => {{\n"use strict";\n{scripts}}})();\n'
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
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
        "SCRIPT": script,
    }
    # One pass: what is put in is not searched again, so data cannot name a place of the frame.
    return re.sub(r"@([A-Z]+)@", lambda match: filled[match[1]], _asset("frame.html"))


def embedded_json(value: Any) -> str:
    """JSON that is inert inside a script element."""
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
