"""The result of an inspection: the measures of every head, and what memory each layer is."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any, TypeAlias

import numpy as np

from kerneltrick._text import to_json
from kerneltrick._version import __version__
from kerneltrick.analysis import plain
from kerneltrick.inspection._measures import MEASURES, HeadMeasures

Array: TypeAlias = np.ndarray[Any, Any]
FORMAT = "kerneltrick.inspect/1"


@dataclasses.dataclass(frozen=True)
class InspectedLayer:
    """A layer: its measures, the kind of its memory, and its weights."""

    name: str  # in the model
    kind: str  # its class
    operator: str  # what its heads compute
    memory: str  # associative, recency, local or unused
    told: str  # the memory in words
    heads: list[HeadMeasures]
    weights: Array = dataclasses.field(repr=False)  # (heads, rows, n), divided by Σ_j |A_ij|

    def to_dict(self) -> dict[str, Any]:
        """The layer without its weights."""
        own = {x: getattr(self, x) for x in ("name", "kind", "operator", "memory", "told")}
        heads = [dataclasses.asdict(head) | {"memory": head.memory} for head in self.heads]
        return own | {"heads": heads}


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What the layers of a model attend to on a text."""

    source: str
    tokens: list[str]
    rows: list[int]  # the queries whose weights are known; all tokens if the text is short
    causal: bool
    layers: list[InspectedLayer]
    notes: list[str] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The result for JSON, without the weights: NaN becomes None, infinity becomes "inf"."""
        found = {
            "format": FORMAT,
            "version": __version__,
            "source": self.source,
            "tokens": self.tokens,
            "rows": self.rows,
            "causal": self.causal,
            "notes": self.notes,
            "measures": [each._asdict() for each in MEASURES.values()],
            "layers": [layer.to_dict() for layer in self.layers],
        }
        return {name: plain(value) for name, value in found.items()}

    def to_json(self) -> str:
        """The text that `kerneltrick inspect --json` writes."""
        return to_json(self.to_dict(), indent=1) + "\n"

    def pictures(self) -> list[list[str]]:
        """The weights of each layer and head for the page: float16 in base64, row by row.

        A row of a causal model ends at its query.
        """
        ends = [row + 1 if self.causal else len(self.tokens) for row in self.rows]
        return [
            [
                base64.b64encode(
                    np.concatenate([line[:end] for line, end in zip(head, ends, strict=True)])
                    .astype("<f2")
                    .tobytes()
                ).decode()
                for head in layer.weights
            ]
            for layer in self.layers
        ]
