"""Steps of a decoder by the compiled core, on a state that they change in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.engines._core_call import CoreCall, NumpyArray, address, check_isa, core
from kerneltrick.engines._native import arguments, assemble, plain, type_number
from kerneltrick.engines._near import near_ranks
from kerneltrick.engines._problem import Data, Near, Rule

LEAST = 64  # slots of a ring that is to grow


def decoder(
    rule: Rule,
    data: Data,
    dtype: str,
    sums: NumpyArray,
    log_scale: NumpyArray | None,
    total: NumpyArray,
    bad: NumpyArray,
) -> Steps | None:
    """The core's decoder for tokens shaped like `data`, on a state it changes in place, or None."""
    fused = rule.fused
    if core() is None or fused is None or (sums.size == 0 and rule.all_far):
        return None
    check_isa()
    near = data.carry.near
    data = data._replace(carry=data.carry._replace(near=None))
    given = arguments(rule, data, plain(fused))
    call = assemble(given, type_number(dtype), wide_weights=log_scale is not None)
    call["decay_width"] = total.shape[-1]
    call.alive.append(sums)
    call["sums"], call["sums_stride"] = address(sums), sums.strides[-2] // 8
    call.array("log_scale", log_scale)
    call.array("decay_total", total)
    call.array("bad", bad)
    return Steps(call, None if near is None else Ring(rule, near))


class Steps:
    """A decoder of the core, and the arrays whose addresses it holds."""

    def __init__(self, call: CoreCall, ring: Ring | None) -> None:
        self.call, self.ring = call, ring
        self._begin()

    def _begin(self) -> None:
        if self.ring is not None:
            self.ring.give(self.call)
        self.core = core().Decoder(self.call.packed())

    def step(self, position: int, *arrays: Any) -> bool:
        """The token at `position`; False if a normaliser is exactly 0."""
        if self.ring is not None and self.ring.advance():
            self._begin()
        return bool(self.core.step(position, *arrays))

    @property
    def near_bytes(self) -> int:
        return 0 if self.ring is None else int(self.ring.k.nbytes + self.ring.v.nbytes)

    def near(self) -> Near | None:
        """The tokens that are near after the last step."""
        return None if self.ring is None else self.ring.near()


class Ring:
    """The near tokens of a decoder as native/ring.h has them.

    t slots for sinks that have left the window, then a ring in which the token of rank a is in slot
    a mod its length: that of the window, or so much of it as the tokens so far need.
    """

    def __init__(self, rule: Rule, near: Near) -> None:
        self.rule, self.before = rule, near
        self.steps = 0
        self.seen = np.array(near.count[..., 0, 0], dtype=np.int64, order="C")
        self.longest = int(self.seen.max(initial=0))
        self.size = self._size()
        self.k, self.v, self.positions, self.keep = (
            self._room(x.shape[-1], dtype)
            for x, dtype in zip(
                near[:4], (_compute(near.k), _compute(near.v), np.float64, np.uint8), strict=True
            )
        )
        used = np.nonzero(near.keep[..., 0])
        places = (*used[:-1], self._slots(near_ranks(rule, near)[..., 0])[used])
        good = np.isfinite(near.k).all(axis=-1) & np.isfinite(near.v).all(axis=-1)
        self.k[places], self.v[places] = near.k[used], near.v[used]
        self.positions[places] = near.positions[used]
        self.keep[places] = np.where(good, 1, 2)[used][:, None]

    def _size(self) -> int:
        return min(self.rule.window, max(LEAST, 2 * (self.longest + 1)))

    def _room(self, width: int, dtype: Any) -> NumpyArray:
        return np.zeros((*self.seen.shape, self.rule.sinks + self.size, width), dtype)

    def _slots(self, rank: NumpyArray) -> NumpyArray:
        """Where tokens of ranks (..., t + r) are: sinks, then those of the window."""
        t, slot = self.rule.sinks, np.arange(rank.shape[-1])
        found: NumpyArray = np.where(slot < t, slot, t + rank % max(self.size, 1))
        return found

    def advance(self) -> bool:
        """Makes room for one more token; whether that took other arrays."""
        self.steps += 1
        self.longest += 1
        if self.longest <= self.size or self.size == self.rule.window:
            return False
        used, self.size = self.rule.sinks + self.size, self._size()
        for name in ("k", "v", "positions", "keep"):
            old = getattr(self, name)
            made = self._room(old.shape[-1], old.dtype)
            made[..., :used, :] = old
            setattr(self, name, made)
        return True

    def give(self, call: CoreCall) -> None:
        """Write the addresses of the ring into a call."""
        lead = self.seen.shape
        call["near_slots"] = self.k.shape[-2]
        for name in ("k", "v", "keep", "positions"):
            call.view(f"near_{name}", getattr(self, name), lead)
        call.array("seen", self.seen)
        call["seen_after"] = call["seen"]

    def near(self) -> Near:
        """The state's form of it: right-aligned, of the length that a batch would have."""
        t, room = self.rule.sinks, max(self.rule.window - 1, 0)
        slots = min(room, self.before.k.shape[-2] - t + self.steps)
        seen = self.seen[..., None]
        ring = np.arange(slots) - slots + seen
        rank = np.concatenate([np.broadcast_to(np.arange(t), (*seen.shape[:-1], t)), ring], axis=-1)
        keep = np.concatenate([rank[..., :t] < seen - room, ring >= 0], axis=-1)[..., None]
        index = np.where(keep, self._slots(rank)[..., None], 0)

        def pick(x: NumpyArray, like: NumpyArray) -> NumpyArray:
            found = np.take_along_axis(x, index, axis=-2) if x.shape[-2] else like[..., :0, :]
            return np.where(keep, found, 0).astype(like.dtype)

        return Near(
            pick(self.k, self.before.k),
            pick(self.v, self.before.v),
            pick(self.positions, self.before.positions),
            keep,
            seen[..., None].astype(self.before.count.dtype),
        )


def _compute(x: NumpyArray) -> Any:
    return np.float64 if x.dtype == np.float64 else np.float32
