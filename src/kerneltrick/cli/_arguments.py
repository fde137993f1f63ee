"""Parsing of command-line arguments into maps and data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kerneltrick import maps
from kerneltrick.analysis import (
    AXES,
    AttentionData,
    FittedMaps,
    Setting,
    load_attention,
    of_heads,
    read_setting,
    sample,
    synthetic_attention,
)

MOST_FEATURES = 50_000  # a map with more takes minutes and gigabytes


# Some commands answer a question with their exit code (0 yes, 1 no, 2 neither). Their errors exit
# with 3, so that an error cannot be mistaken for an answer.
ANSWERING = (("prove",), ("lab", "check"))
ERROR = 3


class UsageError(Exception):
    """The command line is wrong: one line on stderr, exit code 2 (3 for `ANSWERING` commands)."""


class NothingError(UsageError):
    """There is nothing to answer: exit code 2, which means neither yes nor no."""


class DataError(Exception):
    """The data or the run failed: one line on stderr, exit code 1 (3 for `ANSWERING` commands)."""


class Stopped(Exception):
    """Ctrl-C: one line on stderr that says what was saved, exit code 130."""


def default_maps(n: int) -> list[str]:
    """Return maps of every kind: elementwise, positional, random, polynomial, and with windows."""
    return [
        "elu",
        "relu",
        "relu2",
        "exp",
        "square",
        f"cosformer:horizon={n}",
        "favor:features=64",
        "favor:features=256",
        "favor:features=256,kind=hyperbolic",
        "hedgehog",
        "poly:degree=2",
        "taylor:order=2",
        "hedgehog@window=16,sinks=1",
        "softmax@window=16,sinks=1",
    ]


def split_maps(texts: Iterable[str]) -> list[str]:
    """Split lists of maps separated by commas, semicolons or spaces.

    A piece `key=value` belongs to the map before it, because map names contain no "="; so do the
    words `relative` and `absolute`.

    >>> split_maps(["elu,favor:features=64,kind=trig relu@window=8,sinks=1,relative", "poly"])
    ['elu', 'favor:features=64,kind=trig', 'relu@window=8,sinks=1,relative', 'poly']
    """
    found: list[str] = []
    for text in texts:
        for piece in filter(None, re.split(r"[,;\s]+", text)):
            key, equals, _ = piece.partition("=")
            goes_on = bool(equals) and not set(":@") & set(key)
            if found and (goes_on or piece in ("relative", "absolute")):
                found[-1] += ("," if "=" in found[-1] else ":") + piece
            else:
                found.append(piece)
    return found


def read_maps(texts: list[str] | None, data: AttentionData) -> list[Setting]:
    """Return the maps to compare, after checking that each of them fits the data."""
    n = max(data.q.shape[-2], data.k.shape[-2])
    chosen: list[Setting] = []
    for text in split_maps(texts) if texts else default_maps(n):
        try:
            setting = read_setting(text)
            if isinstance(setting, FittedMaps):
                setting.check_serves(data)
            feature_map = of_heads(
                setting, [(data.layers[0], data.heads[0])], data.groups
            ).feature_map
            feature_map.check_positions(0, n - 1)
            m, d = feature_map.dim(data.q.shape[-1]), data.q.shape[-1]
            if m > MOST_FEATURES:
                raise ValueError(
                    f"{feature_map} has {m:,} features for d = {d}; the limit is {MOST_FEATURES:,}"
                )
        except (FileNotFoundError, ValueError) as error:
            raise UsageError(str(error)) from None
        if str(setting) in map(str, chosen):
            raise UsageError(f"--maps names {setting} twice")
        chosen.append(setting)
    if not chosen:
        raise UsageError("--maps names no map; known are " + ", ".join(maps.names()))
    return chosen


def read_numbers(option: str, text: str | None) -> list[int] | None:
    """Parse numbers such as `0,2,5` or `0-3,7`; None means all.

    >>> read_numbers("--heads", "0-3,7")
    [0, 1, 2, 3, 7]
    """
    if text is None:
        return None
    found: list[int] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", piece)
        if match is None:
            raise UsageError(f"{option} takes numbers such as 0,2,5 or 0-3, not {piece!r}")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise UsageError(
                f"{option} takes ranges that rise, such as {last}-{first}, not {piece}"
            )
        found += range(first, last + 1)
    if not found:
        raise UsageError(f"{option} names no number; give numbers such as 0,2,5 or 0-3")
    return found


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def read_data(
    file: Path | None,
    text: str | None,
    seed: int,
    layers: list[int] | None,
    heads: list[int] | None,
    axes: str,
) -> AttentionData:
    """Load queries, keys and values from a file, synthetic data, or the built-in sample."""
    if axes not in AXES:
        raise UsageError(f"--axes must be {' or '.join(AXES)}, not {axes!r}")
    if axes != AXES[0] and file is None:
        raise UsageError(f"--axes {axes} needs a file, and none is given")
    if file is not None and text is not None:
        raise UsageError(f"give a file or --synthetic, not both ({file} and {text})")
    try:
        if text is not None:
            data = synthetic_attention(text, seed)
        else:
            data = sample() if file is None else _load(file, axes)
        return data.select(layers, heads)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _load(file: Path, axes: Any) -> AttentionData:
    if not file.exists():
        raise UsageError(f"there is no file {file}")
    try:
        return load_attention(file, axes=axes)
    except (OSError, TypeError, ValueError) as error:
        raise DataError(str(error)) from None
