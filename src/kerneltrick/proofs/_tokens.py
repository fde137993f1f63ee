"""Split a claim into words and signs, and point at errors in it."""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 1000  # characters
MOST_TOKENS = 400
DIGITS = 15  # of a number

_TOKEN = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?)"
    r"|(?P<name>[A-Za-z_\u0370-\u03ff][A-Za-z0-9_\u0370-\u03ff]*)"
    r"|(?P<op>\.\.\.|\*\*|<=|>=|==|!=|<<|->|[-+*/^·⋅@()\[\],=<>;:√²³≤≥≠~…])"
)
_SPELLED = {"...": "…", "^": "**", "⋅": "·", "@": "·", "==": "=", "≤": "<=", "≥": ">=", "≠": "!="}


class ClaimError(ValueError):
    """A claim cannot be read. The message has a caret under the character at fault."""

    def __init__(self, text: str, at: int, problem: str) -> None:
        line = "".join(" " if c.isspace() else c for c in text)
        window = max(0, at - 60)
        shown = ("…" if window else "") + line[window : window + 100]
        self.text, self.at, self.problem = text, at, problem
        super().__init__(
            f"{problem} (character {at + 1})\n  {shown}\n  {' ' * (at - window + bool(window))}^"
        )


class Token(NamedTuple):
    kind: str  # "number", "name", "op" or "end"
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """The words and signs of a claim. The last token marks the end."""
    if len(text) > LONGEST:
        raise ClaimError(text, LONGEST, f"a claim has at most {LONGEST} characters")
    found, at = list[Token](), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _TOKEN.match(text, at)
        if match is None:
            problem = f"unexpected {text[at]!r}"
            if text[at] == ".":
                problem = "a claim has no attributes; write q·k, q@k or dot(q, k)"
            elif text[at] in "\"'`":
                problem = f"unexpected {text[at]!r}: a claim contains no quotation marks"
            raise ClaimError(text, at, problem)
        kind, word = match.lastgroup or "", match[0]
        if kind == "number" and len(word) > DIGITS:
            raise ClaimError(text, at, f"numbers have at most {DIGITS} digits")
        if len(found) == MOST_TOKENS:
            raise ClaimError(text, at, f"a claim has at most {MOST_TOKENS} words and signs")
        found.append(Token(kind, _SPELLED.get(word, word), at))
        at = match.end()
    return [*found, Token("end", "", len(text))]
