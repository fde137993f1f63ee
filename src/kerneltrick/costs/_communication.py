"""A sequence over several ranks: bytes that each sends, time that it waits, what is left of R.

Context-parallel linear attention sends each other rank a state, whatever n is. Ring attention
passes all keys and values on from rank to rank, R − 1 times, and computes meanwhile.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kerneltrick import maps
from kerneltrick._pictures import BLUE, GREEN, LINE, new_figure, picture_style
from kerneltrick.attention import Dial
from kerneltrick.costs._attention import chunked

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = 7 * 8  # what ranks tell each other before: a checksum, lengths, where the state is
FORMULAS = (
    "linear: each rank sends (R−1)·(S + 56) bytes, S = b·H·(8m(M+1)) the bytes of a state, plus a "
    "log-scale where the map has one and near tokens beside a window; waits for all of them, "
    "(R−1)·(latency + (S + 56)/bandwidth); and sums its keys twice",
    "ring: each rank sends (R−1)·b·H·(n/R)·(D+M)·w bytes, and waits for what the product of a "
    "block, b·H·(n/R)²(D+M)/2 multiply-adds, does not cover",
    "efficiency: time on one rank / (R · time of a rank); a multiply-add is two operations",
)


@dataclasses.dataclass(frozen=True)
class Machine:
    """A rank and its link: bytes and operations per second, seconds per message."""

    bandwidth: float = 25e9
    latency: float = 10e-6
    flops: float = 100e12

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not (0 <= value < math.inf) or (name != "latency" and value == 0):
                raise ValueError(f"{name} must be > 0 and finite, not {value}")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What one forward pass of a layer costs each of `ranks` ranks."""

    ranks: int
    sent: int  # bytes
    compute: float  # seconds
    exposed: float  # seconds of waiting
    efficiency: float

    @property
    def seconds(self) -> float:
        """Of the whole pass."""
        return self.compute + self.exposed


def state_bytes(
    setting: maps.MapLike | Dial, *, d: int, values: int, heads: int, batch: int = 1,
    number_bytes: int = 4,
) -> int:  # fmt: skip
    """The bytes of a state as ranks exchange it: sums in float64, near tokens as they are.

    >>> state_bytes("elu", d=64, values=64, heads=1)
    33280
    """
    dial = Dial.get(setting)
    m, scaled = maps.feature_shape(dial.feature_map, np.zeros((1, d)))
    size = 8 * m * (values + 1) + (8 if scaled else 0)
    if dial.window or dial.sinks:
        slots = max(dial.window - 1, 0) + dial.sinks
        size += slots * (number_bytes * (d + values) + 8 + 1) + 8  # positions, flags; the count
    return batch * heads * size


def context_parallel(
    setting: maps.MapLike | Dial, ranks: int, machine: Machine | None = None, *, n: int, d: int,
    values: int | None = None, heads: int = 1, batch: int = 1, number_bytes: int = 4,
    chunk: int = 64,
) -> Exchange:  # fmt: skip
    """Causal linear attention of n tokens over the ranks, by `kerneltrick.torch.distributed`.

    >>> context_parallel("elu", 4, n=65536, d=64).sent == 3 * (33280 + 56)
    True
    """
    dial, machine = Dial.get(setting), machine or Machine()
    values = d if values is None else values
    m = dial.feature_map.dim(d)
    sizes = {"D": d, "M": values, "C": chunk}

    def work(tokens: int) -> float:
        cost = chunked(dial.feature_map, d=d).at(n=tokens, **sizes).multiply_adds
        near = tokens * (dial.window + dial.sinks) * (d + values)
        return batch * heads * (float(cost) + near)

    own = -(-n // ranks)
    state = state_bytes(
        dial, d=d, values=values, heads=heads, batch=batch, number_bytes=number_bytes
    )
    alone, total = work(n), work(own)
    if ranks > 1:  # its own keys once more, and the states before it
        total += batch * heads * m * (values + 1) * (own + ranks - 1)
    sent = (ranks - 1) * (state + HEADER)
    exposed = (ranks - 1) * machine.latency + sent / machine.bandwidth
    return _exchange(ranks, sent, alone, total, exposed, machine)


def ring(
    ranks: int, machine: Machine | None = None, *, n: int, d: int, values: int | None = None,
    heads: int = 1, batch: int = 1, number_bytes: int = 4,
) -> Exchange:  # fmt: skip
    """Causal softmax attention by a ring (Liu et al. 2023), its pairs spread evenly."""
    machine = machine or Machine()
    values = d if values is None else values
    own = -(-n // ranks)
    block = batch * heads * own * (d + values) * number_bytes
    step = batch * heads * own * own * (d + values) / 2
    covered = 2 * step / machine.flops
    late = max(0.0, machine.latency + block / machine.bandwidth - covered)
    alone = batch * heads * n * n * (d + values) / 2
    return _exchange(ranks, (ranks - 1) * block, alone, step * ranks, (ranks - 1) * late, machine)


def _exchange(
    ranks: int, sent: int, alone: float, own: float, exposed: float, machine: Machine
) -> Exchange:
    compute = 2 * own / machine.flops
    efficiency = 2 * alone / machine.flops / (ranks * (compute + exposed))
    return Exchange(ranks, sent, compute, exposed, efficiency)


def powers(most: int) -> list[int]:
    """1, 2, 4, … up to `most`, and that."""
    found = [2**i for i in range(most.bit_length()) if 2**i < most]
    return [*found, most]


def communication_figure(
    setting: maps.MapLike | Dial,
    machine: Machine | None = None,
    *,
    most: int = 1024,
    **sizes: Any,
) -> Figure:
    """Bytes sent by each rank, time and parallel efficiency, against the number of ranks."""
    ranks: Sequence[int] = powers(most)
    linear = [context_parallel(setting, r, machine, **sizes) for r in ranks]
    passed = [ring(r, machine, **sizes) for r in ranks]
    with picture_style():
        drawn = new_figure(11.0, 3.6)
        sent, time, share = drawn.subplots(1, 3)
        for found, colour, label in (
            (linear, BLUE, f"linear, {Dial.get(setting)}"), (passed, GREEN, "ring, softmax"),
        ):  # fmt: skip
            sent.plot(ranks[1:], [x.sent for x in found[1:]], "o-", color=colour, label=label)
            time.plot(ranks, [x.seconds for x in found], "o-", color=colour, label=label)
            share.plot(ranks, [x.efficiency for x in found], "o-", color=colour, label=label)
        sent.set_title("bytes that a rank sends")
        time.set_title(f"seconds of a layer, n = {sizes['n']:,}")
        share.set(ylim=(0, 1.05))
        share.set_title("parallel efficiency")
        for ax in (sent, time, share):
            ax.set(xscale="log", xlabel="ranks", yscale="linear" if ax is share else "log")
            ax.grid(color=LINE)
        sent.legend()
    return drawn
