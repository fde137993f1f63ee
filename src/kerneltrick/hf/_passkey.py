"""Recall of a distant fact: a number is planted in a text, and the end of the text asks for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from kerneltrick.hf._capture import load_tokenizer, place_of, quiet
from kerneltrick.maps import seeded

DEPTHS = (
    0.1,
    0.3,
    0.5,
    0.7,
    0.9,
)  # positions of the fact, as shares of the text before the question


class Phrasing(NamedTuple):
    """A way to state a fact and to ask for it."""

    fact: str
    question: str
    names: tuple[str, ...] = ()  # whose facts they are: the one that is asked for, and rivals


PHRASINGS = (  # what models are evaluated on
    Phrasing(
        " The pass key is {key}. Remember it: {key} is the pass key.",
        " What is the pass key? The pass key is",
    ),
    Phrasing(
        " The number of the locker is {key}. Please keep it in mind.",
        " Which locker was it? The number of the locker is",
    ),
    Phrasing(
        " The secret code of {name} is {key}.",
        " Now tell me the code. The secret code of {name} is",
        ("Alice", "Robert", "the captain"),
    ),
)
FITTED_PHRASINGS = (  # what heads are ranked and models are trained on
    Phrasing(
        " The combination of the safe is {key}. Write it down: {key} opens the safe.",
        " What opens the safe? The combination of the safe is",
    ),
    Phrasing(
        " The invoice of {name} has the number {key}.",
        " Now find the invoice. The invoice of {name} has the number",
        ("Martha", "Oliver", "the baker"),
    ),
    Phrasing(
        " Please call me back at extension {key}.",
        " How do I call back? Please call me back at extension",
    ),
    Phrasing(
        " {name} lives at house number {key}.",
        " Send the letter there. {name} lives at house number",
        ("Susan", "Peter", "the doctor"),
    ),
    Phrasing(
        " Ticket {key} wins the lottery. Keep ticket {key}.",
        " Which ticket wins the lottery? The winner is ticket",
    ),
    Phrasing(
        " The telephone number of {name} is {key}.",
        " Whom do we call first? The telephone number of {name} is",
        ("Anna", "Mr. Brown", "the plumber"),
    ),
)


class Passkey(NamedTuple):
    """A text that ends with the answer, and where in the text the answer was planted."""

    depth: float
    ids: list[int]
    answer: int  # the number of tokens at the end that are the answer
    question: int = 0  # the number of tokens before it that ask for it


def passkeys(
    model: str | os.PathLike[str],
    windows: Sequence[Sequence[int]],
    *,
    depths: Sequence[float] = DEPTHS,
    trials: int | None = None,
    phrasings: Sequence[Phrasing] = PHRASINGS,
    seed: int = 0,
) -> list[Passkey]:
    """Plant a number in each window at each depth, without changing the length of the window.

    The phrasings take turns. Some plant the numbers of several people and ask for one of them. The
    result is empty if the windows are so short that more than half of each would be replaced.

    model: the folder of the model, or its name on the hub.
    windows: the token numbers of the texts.
    depths: where to plant the number, as shares of the text.
    trials: the number of texts for each depth. Windows are used again if there are fewer. None
        uses each window once.
    phrasings: how the fact is stated and asked for. `linearize` ranks heads and trains models on
        other phrasings than the default, so that what evaluates them is new to them.
    seed: the seed of the numbers.
    """
    with quiet():
        tokenizer = load_tokenizer(place_of(model))
    draw = seeded("passkeys", seed)

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    found = []
    for trial in range(len(windows) if trials is None else trials):
        window = windows[trial % len(windows)]
        for depth in depths:
            phrasing = phrasings[trial % len(phrasings)]
            names = [*phrasing.names] or [""]
            draw.shuffle(names)
            keys = [str(draw.integers(10_000, 100_000)) for _ in names]
            facts = [
                tokens(phrasing.fact.format(key=key, name=name))
                for key, name in zip(keys, names, strict=True)
            ]
            asked = phrasing.question.format(name=names[0])
            question = tokens(asked)
            answer = tokens(f"{asked} {keys[0]}")[len(question) :]
            room = len(window) - sum(map(len, facts)) - len(question) - len(answer)
            if 2 * room < len(window):
                return []
            # Rivals stand elsewhere, evenly spread after the fact, and before it after the end.
            places = [(depth + at / len(facts)) % 1 for at in range(len(facts))]
            places[0] = depth
            text = _planted(window[:room], [round(at * room) for at in places], facts)
            ids = [*text, *question, *answer]
            found.append(Passkey(depth, ids, len(answer), len(question)))
    return found


def _planted(text: Sequence[int], places: Sequence[int], facts: Sequence[list[int]]) -> list[int]:
    """Return the text with each fact at its place, counted in the text without facts."""
    found: list[int] = []
    start = 0
    for place, fact in sorted(zip(places, facts, strict=True)):
        found += [*text[start:place], *fact]
        start = place
    return [*found, *text[start:]]
