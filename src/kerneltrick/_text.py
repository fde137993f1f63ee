"""The text form `name:key=value,key=value`, and the nearest word to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def split(what: str, text: str) -> tuple[str, dict[str, str]]:
    """The name and the values by key, as texts.

    >>> split("feature map", "favor: features=8, kind=trig")
    ('favor', {'features': '8', 'kind': 'trig'})
    """
    name, _, tail = (part.strip() for part in text.partition(":"))
    values: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"{what} {text!r}: expected key=value after ':', got {part!r}")
        if key in values:
            raise ValueError(f"{what} {text!r} gives {key} twice")
        values[key] = value
    return name, values


def nearest(word: str, known: Collection[str]) -> str:
    """What to say after an unknown word.

    >>> nearest("ell", ["elu", "relu"])
    "did you mean 'elu'? (known are elu, relu)"
    """
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    listing = "known are " + ", ".join(known)
    return f"did you mean {close[0]!r}? ({listing})" if close else listing
