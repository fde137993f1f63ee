"""The cost of spreading a sequence over ranks: bytes sent, waiting time and parallel efficiency.

In context-parallel linear attention, each rank sends a state to every other rank; its size does not
depend on n. In ring attention, keys and values travel from rank to rank R − 1 times while the ranks
compute.
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

HEADER = 7 * 8  # exchanged first: a checksum, lengths, the position of the state
FORMULAS = (
    "linear: each rank sends (R−1)·(S + 56) bytes, where a state has S = b·H·(8m(M+1)) bytes, plus "
    "a log-scale if the map has one and the near tokens of a window. It waits "
    "(R−1)·(latency + (S + 56)/bandwidth) seconds and sums its keys twice",
    "ring: each rank sends (R−1)·b·H·(n/R)·(D+M)·w bytes. It waits if sending a block takes longer "
    "than computing one, which takes b·H·(n/R)²(D+M)/2 multiply-adds",
    "efficiency: time on one rank / (R · time on each rank); a multiply-add is two operations",
)


@dataclasses.dataclass(frozen=True)
class Machine:
    """A rank and its link: bytes per second, seconds per message, operations per second."""

    bandwidth: float = 25e9
    latency: float = 10e-6
    flops: float = 100e12

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not (0 <= value < math.inf) or (name != "latency" and value == 0):
                raise ValueError(f"{name} must be > 0 and finite, not {value}")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The cost of one forward pass of a layer for each of `ranks` ranks."""

    ranks: int
    sent: int  # bytes
    compute: float  # seconds
    exposed: float  # seconds of waiting
    efficiency: float

    @property
    def seconds(self) -> float:
        """The time of the whole pass."""
        return self.compute + self.exposed


def state_bytes(
    setting: maps.MapLike | Dial,
    *,
    d: int,
    values: int,
    heads: int,
    batch: int = 1,
    number_bytes: int = 4,
) -> int:
    """The bytes of a state that ranks exchange, with sums in float64 and near tokens unchanged.

    >>> state_bytes("elu", d=64, values=64, heads=1)
    33280
    >>> state_bytes("elu@window=8+16", d=64, values=64, heads=2)  # a window for each head
    78038
    """
    total = 0
    for group in Dial.get(setting).groups(heads):
        own = group.dial
        if not (own.feature_map.has_features or own.near):
            raise ValueError(
                f"heads of {setting} that see the whole text with softmax keep every token, so "
                "ranks have no state to exchange: count these heads with costs.ring"
            )
        m, scaled = maps.feature_shape(own.feature_map, np.zeros((1, d)))
        size = 8 * m * (values + 1) + (8 if scaled else 0)
        window, sinks = own.alike("costs.state_bytes")
        if window or sinks:
            slots = max(window - 1, 0) + sinks
            size += slots * (number_bytes * (d + values) + 8 + 1) + 8  # positions, flags, the count
        total += len(group.heads) * size
    return batch * total


def context_parallel(
    setting: maps.MapLike | Dial,
    ranks: int,
    machine: Machine | None = None,
    *,
    n: int,
    d: int,
    values: int | None = None,
    heads: int = 1,
    batch: int = 1,
    number_bytes: int = 4,
    chunk: int = 64,
) -> Exchange:
    """The cost of causal linear attention over ranks, as `kerneltrick.torch.distributed` does it.

    Heads that attend alike are exchanged together, so each group of them sends its own message.

    >>> context_parallel("elu", 4, n=65536, d=64).sent == 3 * (33280 + 56)
    True
    """
    dial, machine = Dial.get(setting), machine or Machine()
    values = d if values is None else values
    sizes = {"D": d, "M": values, "C": chunk}

    def work(alike: Dial, tokens: int) -> float:
        cost = chunked(alike.feature_map, d=d).at(n=tokens, **sizes).multiply_adds
        return float(cost) + tokens * sum(alike.alike("costs")) * (d + values)

    own = -(-n // ranks)
    state = state_bytes(
        dial, d=d, values=values, heads=heads, batch=batch, number_bytes=number_bytes
    )
    alone, total, groups = 0.0, 0.0, dial.groups(heads)
    for group in groups:
        streams = batch * len(group.heads)
        alone += streams * work(group.dial, n)
        total += streams * work(group.dial, own)
        if ranks > 1:  # its own keys again, and the states before it
            m = group.dial.feature_map.dim(d)
            total += streams * m * (values + 1) * (own + ranks - 1)
    sent = (ranks - 1) * (state + len(groups) * HEADER)
    exposed = len(groups) * (ranks - 1) * machine.latency + sent / machine.bandwidth
    return _exchange(ranks, sent, alone, total, exposed, machine)


def ring(
    ranks: int,
    machine: Machine | None = None,
    *,
    n: int,
    d: int,
    values: int | None = None,
    heads: int = 1,
    batch: int = 1,
    number_bytes: int = 4,
) -> Exchange:
    """The cost of causal ring attention (Liu et al. 2023) with evenly spread pairs."""
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
    """1, 2, 4, … and `most` itself."""
    found = [2**i for i in range(most.bit_length()) if 2**i < most]
    return [*found, most]


def communication_figure(
    setting: maps.MapLike | Dial,
    machine: Machine | None = None,
    *,
    most: int = 1024,
    **sizes: Any,
) -> Figure:
    """Draw the bytes that a rank sends, the time and the efficiency against the number of ranks."""
    ranks: Sequence[int] = powers(most)
    linear = [context_parallel(setting, r, machine, **sizes) for r in ranks]
    passed = [ring(r, machine, **sizes) for r in ranks]
    with picture_style():
        drawn = new_figure(11.0, 3.6)
        sent, time, share = drawn.subplots(1, 3)
        for found, colour, label in (
            (linear, BLUE, f"linear, {Dial.get(setting)}"),
            (passed, GREEN, "ring, softmax"),
        ):
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
