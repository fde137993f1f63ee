"""Text: the form `name:key=value,key=value`, printable text, and JSON."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any


def split(what: str, text: str) -> tuple[str, dict[str, str]]:
    """Return the name, and the values by key, as texts.

    >>> split("feature map", "favor: features=8, kind=trig")
    ('favor', {'features': '8', 'kind': 'trig'})
    """
    name, _, tail = (part.strip() for part in text.partition(":"))
    return name, pairs(f"{what} {text!r}", ":", tail)


def pairs(where: str, mark: str, tail: str) -> dict[str, str]:
    """Return the values by key of `key=value,key=value`, the text after `mark`.

    >>> pairs("'elu@window=8'", "@", "window=8, sinks=1")
    {'window': '8', 'sinks': '1'}
    """
    values: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"{where}: expected key=value after {mark!r}, got {part!r}")
        if key in values:
            raise ValueError(f"{where} gives {key} twice")
        values[key] = value
    return values


def nearest(word: str, known: Collection[str], others: Mapping[str, str] | None = None) -> str:
    """Suggest a known word for an unknown one. `others` maps names used elsewhere to known words.

    >>> nearest("ell", ["elu", "relu"])
    "did you mean 'elu'? (known are elu, relu)"
    >>> nearest("Mamba-2", ["deltanet", "ssd"], {"mamba2": "ssd"})
    "did you mean 'ssd'? (known are deltanet, ssd)"
    """
    elsewhere = (others or {}).get(re.sub(r"[^a-z0-9]", "", word.lower()))
    close = [elsewhere] if elsewhere else difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    listing = "known are " + ", ".join(known)
    return f"did you mean {close[0]!r}? ({listing})" if close else listing


def printable(text: str) -> str:
    """Replace characters that control a terminal, because the text may come from a file.

    >>> printable("a \\x1b[31mred\\ntoken")
    'a �[31mred�token'
    """
    return "".join(c if c.isprintable() else "�" for c in text)


def shown(x: float, digits: int = 3) -> str:
    """Write a number as people do, with this many significant digits.

    >>> shown(1342.5), shown(0.01234), shown(2.5), shown(120000.4), shown(3e-7)
    ('1,340', '0.0123', '2.5', '120,000', '3e-07')
    """
    if not math.isfinite(x):
        return "–" if math.isnan(x) else "∞" if x > 0 else "−∞"
    found = float(f"{x:.{digits}g}")
    if found and not 1e-4 <= abs(found) < 1e9:
        return f"{found:.{digits}g}"
    return f"{found:,.0f}" if abs(found) >= 10 ** (digits - 1) else f"{found:.{digits}g}"


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that can be encoded as UTF-8: half a surrogate pair is escaped.

    >>> to_json({"≥": "\\ud800"})
    '{"≥": "\\\\ud800"}'
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)
