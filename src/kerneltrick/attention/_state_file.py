"""A state as a safetensors file; what is read is checked before it is used."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from kerneltrick._arrays import Wide, as_numpy
from kerneltrick._text import printable
from kerneltrick.attention._dial import dial_text
from kerneltrick.attention._heads import numbers_text
from kerneltrick.engines import UNBOUNDED, Carry, Near

FORMAT = "kerneltrick.State/1"
MIXED = "kerneltrick.MixedState/1"  # several states, for heads that differ
LONGEST = 2**53  # tokens: float64, in which maps and the core use positions, tells them apart


def tensors_of(state: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors and the metadata of the file of a State.

    Of heads that differ, the entries of part i begin with `i.`.
    """
    if len(state.parts) > 1:
        tensors: dict[str, Any] = {}
        metadata = {"format": MIXED, "heads": " ".join(map(numbers_text, state.heads))}
        for i, part in enumerate(state.parts):
            arrays, words = tensors_of(part)
            tensors |= {f"{i}.{name}": x for name, x in arrays.items()}
            metadata |= {f"{i}.{name}": word for name, word in words.items()}
        return tensors, metadata
    carry = state.carry
    tensors = {"": carry.sums.numpy()}
    if carry.log_scale is not None:
        tensors["log_scale"] = as_numpy(carry.log_scale)
    if carry.log_decay is not None:
        tensors["log_decay"] = carry.log_decay.numpy()
    if carry.near is not None:
        tensors |= {f"near_{name}": as_numpy(x) for name, x in carry.near._asdict().items()}
    tensors = {name: state.shown(x) for name, x in tensors.items()}
    sums = tensors.pop("")
    tensors = {"U": sums[..., :-1], "Z": sums[..., -1], **tensors}
    metadata = {
        "format": FORMAT,
        "fingerprint": state.fingerprint,
        "start": str(int(state.start)),
        "stop": str(int(state.stop)),
        "window": str(state.window),
        "sinks": str(state.sinks),
    }
    return tensors, metadata


def encoded(tensors: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """A safetensors file."""
    import safetensors.numpy  # it would slow every import

    tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    made: bytes = safetensors.numpy.save(tensors, metadata)
    return made


def fields(path: str, metadata: dict[str, str], tensors: dict[str, Any]) -> tuple[Any, ...]:
    """The fields of the State that a file holds; `path` is for errors."""

    def fail(reason: str) -> ValueError:
        return ValueError(f"{path} is not a state of this package: {reason}")

    if metadata.get("format") != FORMAT:
        raise fail(f"expected format {FORMAT!r}, found {metadata.get('format')!r}")
    try:
        start, stop = whole_number(metadata["start"]), whole_number(metadata["stop"])
        print_ = metadata["fingerprint"]
        U, Z = tensors["U"], tensors["Z"]
    except (KeyError, ValueError) as error:
        raise fail(f"missing or malformed entry {error}") from None
    try:
        window, sinks = (whole_number(metadata.get(name, "0")) for name in ("window", "sinks"))
    except ValueError as error:
        raise fail(f"malformed window or sinks: {error}") from None
    if not print_.isprintable():
        raise fail(f"its fingerprint is {printable(print_)!r}")
    said = re.search(r"@(window|sinks)=[\w,=]*$", print_.partition(" (scale ")[0])
    if (said[0] if said else "") != dial_text("", window % UNBOUNDED, sinks):
        raise fail(f"it has window={window} and sinks={sinks}, but is of {print_}")
    names = [f"near_{name}" for name in Near._fields] if window or sinks else []
    unknown = set(tensors) - {"U", "Z", "log_scale", "log_decay", *names}
    if unknown:
        raise fail(f"unexpected tensors {sorted(unknown)}")
    if U.dtype != np.float64 or Z.dtype != np.float64 or U.ndim < 2 or Z.shape != U.shape[:-1]:
        raise fail(f"U {U.dtype} {U.shape} and Z {Z.dtype} {Z.shape} do not belong together")
    if not 0 <= start <= stop < LONGEST:
        raise fail(f"it covers tokens {start}:{stop}; expected 0 ≤ start ≤ stop < 2**53")
    scale, decay = tensors.get("log_scale"), tensors.get("log_decay")
    if scale is not None and (scale.shape != (*U.shape[:-2], 1, 1) or scale.dtype.kind != "f"):
        raise fail(f"log_scale is {scale.dtype} {scale.shape}")
    if scale is not None and not (scale < math.inf).all():
        raise fail("log_scale is NaN or infinite")
    if decay is not None and decay.shape not in ((*U.shape[:-2], 1, e) for e in (1, U.shape[-2])):
        raise fail(f"log_decay is {decay.dtype} {decay.shape}")
    # A key that is not finite makes NaN of all it enters, a value only of its column of U.
    lost = np.isnan(Z).any(axis=-1, keepdims=True) & ~np.isnan(U).any(axis=-2)
    if lost.any():
        raise fail("Z is NaN where U is a number")
    if np.isinf(Z).any():
        raise fail("Z is infinite, but it is a sum of finite features")
    near = None
    if names:
        near = Near._make([tensors.get(name) for name in names])
        problem = _wrong_near(near, U, window, sinks)
        if problem:
            raise fail(problem)
    headless = U.ndim == 2

    def lifted(x: Any) -> Any:
        return x[None] if headless and x is not None else x

    sums = Wide(lifted(np.concatenate([U, Z[..., None]], axis=-1)), None)
    log_decay = None if decay is None else Wide(lifted(decay.astype(np.float64)), None)
    near = None if near is None else Near._make(map(lifted, near))
    carry = Carry(sums, lifted(scale), log_decay, None, near)
    return carry, start, stop, print_, window, sinks, headless


def whole_number(text: str) -> int:
    """A whole number as this package writes it: int() takes spaces and other scripts too."""
    if not re.fullmatch(r"-?[0-9]{1,30}", text):
        raise ValueError(repr(text[:40]))
    return int(text)


def _wrong_near(near: Near, U: Any, window: int, sinks: int) -> str:
    """What is wrong with the near tokens of a file; nothing if they can be used."""
    if any(x is None for x in near):
        return "it has a window or sinks, but not all of their tokens"
    k, v, positions, keep, count = near
    lead, slots = U.shape[:-2], k.shape[-2] if k.ndim >= 2 else 0
    shapes = {
        "k": (k, (*lead, slots, k.shape[-1] if k.ndim else 0), "f"),
        "v": (v, (*lead, slots, U.shape[-1]), "f"),
        "positions": (positions, (*lead, slots, 1), "if"),
        "keep": (keep, (*lead, slots, 1), "b"),
        "count": (count, (*lead, 1, 1), "i"),
    }
    for name, (x, shape, kinds) in shapes.items():
        if x.shape != shape or x.dtype.kind not in kinds:
            return f"near_{name} is {x.dtype} {x.shape}"
    if not 0 <= sinks <= slots <= sinks + max(window - 1, 0):
        return f"it has {slots} near tokens with window={window} and sinks={sinks}"
    if (count < 0).any() or (count >= LONGEST).any():
        return f"it counts {count.min()} tokens"
    return ""
