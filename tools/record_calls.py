"""Record what the compiled core is given and gives back, for native/replay to run again.

native/replay/replay.cpp says how a file looks.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kerneltrick.engines import _core_call, _native_decoder
from kerneltrick.engines._core_call import CoreCall, core, layout

ISAS = ("baseline", "avx2", "avx512")
# What is kept for the gradient has units that depend on the length of blocks, so only the same
# instruction set can read it.
KEPT = ("normalizer", "near_reference", "near_normalizer", "near_top")
# How far numbers of another compiler or processor may be, as a share of the largest of an array.
SHARES = {"f64": 1e-9, "f32": 2e-3, "f16": 4e-3, "bf16": 2e-2}
MAGIC = 0x4B54524550303031
KINDS = ("forward", "backward", "step")


class Piece:
    """A piece of memory that arrays of a call share."""

    def __init__(self, low: int, high: int, type: str, share: float) -> None:
        self.low, self.high, self.type, self.share = low, high, type, share
        self.before = b""

    def read(self) -> bytes:
        return ctypes.string_at(self.low, self.high - self.low)


def pieces_of(call: CoreCall) -> list[Piece]:
    """The memory of a call; arrays that overlap are one piece."""
    kind = next(name for name, at in layout("attention").types.items() if at == call["type"])
    found: list[Piece] = []
    kept = {call[name] for name in KEPT if name in call._layout.slots}
    for x in sorted([*call.alive, *call.offsets], key=lambda x: np.lib.array_utils.byte_bounds(x)):
        low, high = np.lib.array_utils.byte_bounds(x)
        if high == low:
            continue
        if found and low < found[-1].high:
            found[-1].high = max(high, found[-1].high)
            continue
        type = "E" if kind == "bf16" and x.dtype.itemsize == 2 else x.dtype.char
        share = 0.0 if x.dtype.kind in "iub" and type != "E" else SHARES[kind]
        found.append(Piece(low, high, type, math.inf if low in kept else share))
    return found


def addresses_in(call: CoreCall, record: bytes, pieces: list[Piece]) -> list[tuple[int, int, int]]:
    """Where the call holds an address, and of which byte of which piece."""
    numbers = struct.unpack(f"={len(record) // 8}q", record)
    found = []
    for place in sorted({*call._layout.addresses, *call._layout.offsets}):
        if place >= len(numbers) or numbers[place] == 0:
            continue
        for at, piece in enumerate(pieces):
            if piece.low <= numbers[place] < piece.high:
                found.append((place, at, numbers[place] - piece.low))
                break
        else:  # the memory of an array without entries
            found.append((place, 0, 0))
    return found


class Recorder:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.count = 0

    def call(self, call: CoreCall, kind: str, run: Callable[[], Any]) -> Any:
        """Run a call and record it, but for steps that say that a normaliser is 0."""
        pieces = pieces_of(call)
        record = call.packed(gradient=kind == "backward")
        for piece in pieces:
            piece.before = piece.read()
        addresses = addresses_in(call, record, pieces)
        found = run()
        if found is not False:
            kept = kind == "backward" and call.operator == "attention" and call["normalizer"] != 0
            self._write(call.operator, kind, kept, record, pieces, addresses)
        return found

    def _write(
        self,
        operator: str,
        kind: str,
        kept: bool,
        record: bytes,
        pieces: list[Piece],
        addresses: list[tuple[int, int, int]],
    ) -> None:
        words: list[Any] = [
            MAGIC,
            _core_call.OPERATORS.index(operator),
            KINDS.index(kind),
            ISAS.index(core().isa()) if kept else -1,
            len(record),
        ]
        text = [struct.pack("=5q", *words), record, struct.pack("=q", len(pieces))]
        for piece in pieces:
            after = piece.read()
            changes = after != piece.before
            size = piece.high - piece.low
            head = (ord(piece.type), piece.share, piece.low % 64, size, int(changes))
            text += [struct.pack("=qd3q", *head), piece.before, after if changes else b""]
        text.append(struct.pack("=q", len(addresses)))
        text += [struct.pack("=3q", *address) for address in addresses]
        self.file.write(b"".join(text))
        self.count += 1


def one_token(call: CoreCall, position: int, *arrays: Any) -> CoreCall:
    """The call of a decoder's step, as the Decoder of native/bind.cpp makes it."""
    made = CoreCall(like=call)
    made["start"] = position
    names = ("q", "k", "v", "output", "log_decay")
    for name, x in zip(names, arrays, strict=True):
        if x is not None:
            rows = call["rows"] * (call["groups"] if name in ("q", "output") else 1)
            made.view(name, x.reshape(rows, 1, -1), (rows,))
    made.array("zero", np.zeros(call["rows"] * call["groups"], np.uint8))
    return made


@contextlib.contextmanager
def recorded(path: Path) -> Iterator[Recorder]:
    """Write all calls of the core that NumPy arrays make into a file."""
    forward, backward, decoder = CoreCall.forward, CoreCall.backward, _native_decoder.Steps.step

    with path.open("wb") as file:
        recorder = Recorder(file)

        def run_forward(call: CoreCall) -> None:
            recorder.call(call, "forward", lambda: forward(call))

        def run_backward(call: CoreCall) -> None:
            recorder.call(call, "backward", lambda: backward(call))

        def run_step(steps: Any, position: int, *arrays: Any) -> Any:
            def step() -> bool:
                return decoder(steps, position, *arrays)

            if steps.ring is not None and steps.ring.size < steps.ring.rule.window:
                return step()  # the ring may grow, and move
            return recorder.call(one_token(steps.call, position, *arrays), "step", step)

        CoreCall.forward, CoreCall.backward = run_forward, run_backward  # type: ignore[method-assign]
        _native_decoder.Steps.step = run_step  # type: ignore[method-assign]
        try:
            yield recorder
        finally:
            CoreCall.forward, CoreCall.backward = forward, backward  # type: ignore[method-assign]
            _native_decoder.Steps.step = decoder  # type: ignore[method-assign]
