"""Recall of a distant fact: a number is planted in a text, and the end of the text asks for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from kerneltrick.hf._capture import load_tokenizer, place_of, quiet
from kerneltrick.maps import seeded

DEPTHS = (0.1, 0.5, 0.9)  # positions of the fact, as shares of the text before the question
FACT = " The pass key is {key}. Remember it: {key} is the pass key."
QUESTION = " What is the pass key? The pass key is"


class Passkey(NamedTuple):
    """A text that ends with the answer, and where in the text the answer was planted."""

    depth: float
    ids: list[int]
    answer: int  # the number of tokens at the end that are the answer


def passkeys(
    model: str | os.PathLike[str],
    windows: Sequence[Sequence[int]],
    *,
    depths: Sequence[float] = DEPTHS,
    seed: int = 0,
) -> list[Passkey]:
    """Plant a number in each window at each depth, without changing the length of the window.

    The result is empty if the windows are so short that more than half of each would be replaced.

    model: the folder of the model, or its name on the hub.
    windows: the token numbers of the texts.
    depths: where to plant the number, as shares of the text.
    seed: the seed of the numbers.
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
