"""Reports as one HTML file that needs nothing else: of a comparison, and of a linearised model."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from kerneltrick._files import write
from kerneltrick.analysis import AttentionData, Comparison, picture
from kerneltrick.report._check import check_comparison, check_picture

_SCRIPTS = (
    "base.js", "maps.js", "weights.js", "colour.js", "state.js", "attention.js", "chart.js",
    "pareto.js", "lines.js", "tables.js", "main.js",
)  # fmt: skip
EVALUATION = "kerneltrick.evaluate/1"
_OF_EVALUATION = ("base.js", "colour.js", "chart.js", "evaluation.js")
RECALL = "kerneltrick.recall/1"
_OF_RECALL = ("base.js", "colour.js", "chart.js", "recall.js")
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
    return _page("report.html", _SCRIPTS, comparison)


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
    return _page("evaluation.html", _OF_EVALUATION, evaluation)


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
    return _page("recall.html", _OF_RECALL, found)


def _page(template: str, scripts: Sequence[str], values: Mapping[str, Any]) -> str:
    """A template with style, script and data in it."""
    style = _asset("report.css")
    script = '(() => {\n"use strict";\n' + "\n".join(map(_asset, scripts)) + "})();\n"
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "ICON": base64.b64encode(_read("icon.png")).decode(),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embedded_json(values),
    }
    # One pass: what is put in is not searched again, so data cannot name a place of the template.
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], _asset(template))


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
