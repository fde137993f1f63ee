"""Compare the costs of several algorithms for the same sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from kerneltrick import maps
from kerneltrick.attention import Dial
from kerneltrick.costs._attention import (
    chunked,
    linear,
    near_tokens,
    projections,
    softmax,
    windowed,
)
from kerneltrick.costs._cost import Cost, Numbers
from kerneltrick.costs._crossover import crossover
from kerneltrick.costs._decoding import decoding, linear_decoding
from kerneltrick.costs._delta import delta_chunked, delta_decoding, delta_recurrent
from kerneltrick.costs._polynomial import symbol


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes for which costs are computed.

    There are `n` tokens. Each head has queries and keys of width `d` and values of width `values`
    (default: d). The projections have inputs of width `width` (default: d). Decoding uses `heads`
    query heads, `kv_heads` key/value heads (default: heads) and `batch` sequences. `chunk` and
    `tile` are numbers of tokens, and `bytes` is the number of bytes per number.
    """

    n: int
    d: int
    values: int | None = None
    width: int | None = None
    heads: int = 8
    kv_heads: int | None = None
    batch: int = 1
    chunk: int = 64
    tile: int = 64
    bytes: int = 4

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and (isinstance(value, bool) or value < 1):
                raise ValueError(f"{field.name} must be a whole number ≥ 1, not {value!r}")
        if self.heads % self.groups:
            raise ValueError(
                f"{self.groups} key/value heads cannot be shared evenly by {self.heads} query heads"
            )

    @property
    def value_width(self) -> int:
        return self.d if self.values is None else self.values

    @property
    def groups(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    def symbols(self) -> dict[str, int]:
        """The value of every symbol."""
        M, D = self.value_width, self.d
        F = D if self.width is None else self.width
        return {
            "n": self.n,
            "D": D,
            "M": M,
            "F": F,
            "C": self.chunk,
            "B": self.tile,
            "b": self.batch,
            "h": self.heads,
            "g": self.groups,
            "d": self.heads * D,
            "k": D,
            "v": M,
        }


@dataclasses.dataclass(frozen=True)
class Row:
    """One algorithm: its expressions, its numbers, and how much cheaper than softmax it is."""

    cost: Cost
    numbers: Numbers
    ratio: float

    def to_json(self) -> dict[str, Any]:
        return {
            **self.cost.to_json(),
            "numbers": self.numbers.to_json(),
            "times_cheaper_than_softmax": self.ratio,
        }


def summary(
    sizes: Sizes,
    feature_maps: Sequence[maps.MapLike | Dial] = ("elu",),
    *,
    train: bool = False,
    decode: bool = False,
    delta: bool = False,
) -> list[Row]:
    """The costs of softmax and linear attention over n tokens, and with `delta` of the delta rule.

    With `train`, the backward pass is included. With `decode`, the rows are one decoding step and
    all n steps. A map can have a window and sinks, `elu@window=64,sinks=4`, in a forward pass over
    n tokens. Counts are for one head; where heads differ, they are means over key–value heads.

    >>> for row in summary(Sizes(n=4096, d=64)):
    ...     print(f"{row.cost.name}: {row.numbers.multiply_adds:,}")
    projections: 50,331,648
    softmax, weights formed: 2,147,483,648
    softmax, streamed: 2,147,483,648
    linear, elu: 34,078,720
    linear, causal by chunks, elu: 67,895,296
    """
    dials = [Dial.get(setting) for setting in feature_maps]
    for dial in dials:
        _check_counted(dial, sizes, forward=not (train or decode))
    if decode:
        chosen = [dial.feature_map for dial in dials]
        return [
            row for steps in (False, True) for row in _decoding_rows(sizes, chosen, steps, delta)
        ]
    found = [projections(), softmax(train=train), softmax(streamed=True, train=train)]
    for dial in dials:
        if dial.near:
            how = {"d": sizes.d, "heads": sizes.groups}
            found += [windowed(dial, causal=causal, **how) for causal in (False, True)]
        else:
            found.append(linear(dial.feature_map, train=train, d=sizes.d))
            found.append(chunked(dial.feature_map, train=train, d=sizes.d))
    if delta:
        if train:
            raise ValueError("the delta rule is counted forward and in decoding, not in training")
        found += [delta_recurrent(), delta_chunked()]
    return _rows(sizes, found, found[1])


def _check_counted(dial: Dial, sizes: Sizes, forward: bool) -> None:
    near = near_tokens(dial, sizes.groups)
    if not (dial.near or dial.feature_map.has_features):
        raise ValueError(
            "softmax is always counted; as a map it needs a window, such as softmax@window=64"
        )
    if dial.near and not forward:
        raise ValueError(
            f"{dial}: with a window or sinks, only the forward pass over n tokens is counted, not "
            "training or decoding; give a map without them"
        )
    if near > sizes.n:
        raise ValueError(
            f"{dial} is counted for n ≥ window + sinks = {near} tokens, not n = {sizes.n}"
        )


def _decoding_rows(
    sizes: Sizes, feature_maps: Sequence[maps.MapLike], steps: bool, delta: bool
) -> list[Row]:
    kinds = [decoding(symbol("h"), steps=steps)]
    if 1 < sizes.groups < sizes.heads:
        kinds.append(decoding(symbol("g"), steps=steps))
    kinds.append(decoding(1, steps=steps))
    for feature_map in feature_maps:
        kinds.append(linear_decoding(feature_map, symbol("g"), steps=steps, width=sizes.d))
    if delta:
        kinds.append(delta_decoding(steps=steps))
    return _rows(sizes, kinds, kinds[0])


def _rows(sizes: Sizes, found: Sequence[Cost], base: Cost) -> list[Row]:
    values = sizes.symbols()
    reference = base.at(w=sizes.bytes, **values).multiply_adds
    rows = []
    for cost in found:
        numbers = cost.at(w=sizes.bytes, **values)
        rows.append(Row(cost, numbers, float(Fraction(reference) / numbers.multiply_adds)))
    return rows


def lab_ratio(n: int, d: int) -> float:
    """The ratio n/d of lab 02: n²d operations against n·d², for one of the two products.

    >>> lab_ratio(4096, 64)
    64.0
    """
    return n / d


def paper_crossover(sizes: Sizes, feature_map: maps.MapLike | Dial) -> int | None:
    """The length n from which full attention with a map takes fewer multiply-adds than softmax.

    With a window it is at least window + sinks, because costs are counted only from there.

    >>> paper_crossover(Sizes(n=4096, d=64), "softmax@window=64")
    65
    """
    dial = Dial.get(feature_map)
    found = crossover(softmax(), full_cost(dial, sizes), D=sizes.d, M=sizes.value_width)
    return None if found is None else max(found, near_tokens(dial, sizes.groups))


def full_cost(dial: Dial, sizes: Sizes) -> Cost:
    """The cost of full attention with a map, with or without a window."""
    if dial.near:
        return windowed(dial, d=sizes.d, heads=sizes.groups)
    return linear(dial.feature_map, d=sizes.d)
