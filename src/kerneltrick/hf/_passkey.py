"""Recall of a fact far back: a number planted in a text, and asked for at its end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from kerneltrick.hf._capture import load_tokenizer, place_of, quiet
from kerneltrick.maps._base import seeded

DEPTHS = (0.1, 0.5, 0.9)  # where the fact stands, as a share of the text before the question
FACT = " The pass key is {key}. Remember it: {key} is the pass key."
QUESTION = " What is the pass key? The pass key is"


class Passkey(NamedTuple):
    """Tokens that end with an answer, and where in the text the answer stands."""

    depth: float
    ids: list[int]
    answer: int  # so many tokens at the end are the answer


def passkeys(
    model: str | os.PathLike[str],
    windows: Sequence[Sequence[int]],
    *,
    depths: Sequence[float] = DEPTHS,
    seed: int = 0,
) -> list[Passkey]:
    """Each of the windows with a number planted at each of the depths, as long as it was.

    None, if windows are so short that half of them would not be text.
    """
    with quiet():
        tokenizer = load_tokenizer(place_of(model))
    draw = seeded("passkeys", seed)

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    found = []
    for window in windows:
        for depth in depths:
            key = str(draw.integers(10_000, 100_000))
            fact, question = tokens(FACT.format(key=key)), tokens(QUESTION)
            answer = tokens(f"{QUESTION} {key}")[len(question) :]
            room = len(window) - len(fact) - len(question) - len(answer)
            if 2 * room < len(window):
                return []
            at = round(depth * room)
            text = [*window[:at], *fact, *window[at:room], *question, *answer]
            found.append(Passkey(depth, text, len(answer)))
    return found
