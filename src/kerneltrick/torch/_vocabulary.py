"""Turn texts into token numbers: one token for each character or each byte."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Numbers characters by their place in `characters`; None means the 256 bytes instead.

    >>> letters = Vocabulary.of("abracadabra")
    >>> letters.size, letters.encode("cab").tolist(), letters.decode(torch.tensor([3, 0, 1]))
    (5, [2, 0, 1], 'dab')
    >>> Vocabulary(None).encode("é").tolist()
    [195, 169]
    """

    characters: str | None

    @staticmethod
    def of(text: str) -> Vocabulary:
        """The vocabulary of all characters in a text."""
        return Vocabulary("".join(sorted(set(text))))

    @property
    def size(self) -> int:
        return 256 if self.characters is None else len(self.characters)

    @property
    def start(self) -> str:
        """The default prompt: a line break if the vocabulary has one."""
        known = self.characters
        return "\n" if known is None or "\n" in known else known[0]

    def encode(self, text: str) -> Tensor:
        """The token numbers (n,) of a text."""
        if self.characters is None:
            raw = text.encode("utf-8", "surrogateescape")
            return torch.from_numpy(np.frombuffer(raw, np.uint8).astype(np.int64))
        points = np.array([ord(c) for c in text], dtype=np.int64)
        known = np.array([ord(c) for c in self.characters], dtype=np.int64)  # they are sorted
        found = np.searchsorted(known, points).clip(max=len(known) - 1)
        wrong = np.flatnonzero(known[found] != points)
        if wrong.size:
            raise ValueError(
                f"the model does not know the character {text[wrong[0]]!r}: the training text does "
                "not contain it"
            )
        return torch.from_numpy(found)

    def decode(self, tokens: Tensor) -> str:
        """The text of token numbers (n,)."""
        return self.reader()(tokens)

    def reader(self) -> Callable[[Tensor], str]:
        """A function like `decode` for tokens in pieces; it holds back incomplete characters."""
        if self.characters is None:
            whole = codecs.getincrementaldecoder("utf-8")("replace")
            return lambda tokens: whole.decode(bytes(tokens.tolist()))
        known = self.characters
        return lambda tokens: "".join(known[i] for i in tokens.tolist())
