"""Where the model and the text come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import torch

from kerneltrick._folders import Kind, kind_of
from kerneltrick.inspection._inspect import InspectionError
from kerneltrick.torch import TrainedModel, Vocabulary

EMBEDDED = "a small hybrid that kerneltrick carries (gated_deltanet*3+softmax)"


class Source(NamedTuple):
    """A model, and how it reads a text."""

    name: str
    model: Any
    read: Callable[[str, int], tuple[Any, list[str]]]  # at most so many tokens, and as texts


def default_text() -> str:
    """The text that the embedded model is shown by default."""
    return (resources.files("kerneltrick.inspection") / "model" / "text.txt").read_text("utf-8")


def load(where: str | os.PathLike[str] | None = None) -> Source:
    """Load a model to inspect: the folder of `kerneltrick train`, one of transformers, or a name.

    None loads the model that the package carries: eight layers of width 40, three of gated
    DeltaNet before each of softmax, trained on bytes of text.

    >>> source = load()
    >>> tokens, words = source.read("a whale", 5)
    >>> tokens.tolist(), words
    ([97, 32, 119, 104, 97], ['a', ' ', 'w', 'h', 'a'])
    """
    if where is None:
        with resources.as_file(resources.files("kerneltrick.inspection") / "model") as folder:
            found = TrainedModel.load(folder)
        return Source(EMBEDDED, found.model.eval(), _by_vocabulary(found.vocabulary))
    place = os.fspath(where)
    if kind_of(place) is Kind.TRAINED:
        found = TrainedModel.load(place)
        return Source(place, found.model.eval(), _by_vocabulary(found.vocabulary))
    try:
        from kerneltrick import hf
    except ImportError as error:
        raise InspectionError(
            f"{place} is not a model of `kerneltrick train`, and models of transformers need the "
            f"extra hf: {error}"
        ) from None
    model, tokenizer = hf.load_with_tokenizer(place)

    def read(text: str, most: int) -> tuple[Any, list[str]]:
        ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
        words = [tokenizer.decode([i]) for i in ids]
        return torch.tensor(ids), words

    return Source(place, model, read)


def _by_vocabulary(vocabulary: Vocabulary) -> Callable[[str, int], tuple[Any, list[str]]]:
    def read(text: str, most: int) -> tuple[Any, list[str]]:
        tokens = vocabulary.encode(text)[:most] if text else torch.zeros(0, dtype=torch.int64)
        piece = vocabulary.reader()
        return tokens, [piece(token[None]) for token in tokens]

    return read
