"""Texts of the command line turned into maps, data and output files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kerneltrick import maps
from kerneltrick.analysis import QKV, load, synthetic

DEFAULT_SYNTHETIC = "gaussian:n=512,d=64"


class UsageError(Exception):
    """The command line is wrong: one line on stderr, exit code 2."""


class DataError(Exception):
    """The data or the run failed: one line on stderr, exit code 1."""


def default_maps(n: int) -> list[str]:
    """A spread of maps: cheap ones, ones with position, random ones, exact polynomials."""
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
        "poly:degree=2",
        "taylor:order=2",
    ]


def split_maps(texts: Iterable[str]) -> list[str]:
    """Map texts from lists separated by commas, semicolons or spaces.

    A piece `key=value` belongs to the map before it: names of maps hold no "=".

    >>> split_maps(["elu,favor:features=64,kind=trig relu", "poly"])
    ['elu', 'favor:features=64,kind=trig', 'relu', 'poly']
    """
    found: list[str] = []
    for text in texts:
        for piece in filter(None, re.split(r"[,;\s]+", text)):
            if found and "=" in piece and ":" not in piece.partition("=")[0]:
                found[-1] += ("," if "=" in found[-1] else ":") + piece
            else:
                found.append(piece)
    return found


def read_maps(texts: list[str] | None, data: QKV) -> list[maps.FeatureMap]:
    """The maps to compare, each able to serve this data."""
    n = max(data.q.shape[-2], data.k.shape[-2])
    chosen = []
    for text in split_maps(texts) if texts else default_maps(n):
        try:
            feature_map = maps.get(text)
            feature_map.check_positions(0, n - 1)
        except ValueError as error:
            raise UsageError(str(error)) from None
        chosen.append(feature_map)
    if not chosen:
        raise UsageError("--maps names no map; known are " + ", ".join(maps.names()))
    return chosen


def read_data(file: Path | None, text: str | None, seed: int) -> tuple[QKV, str]:
    """q, k, v and a few words on where they come from."""
    if file is not None:
        if text is not None:
            raise UsageError(f"give a file or --synthetic, not both ({file} and {text})")
        if not file.is_file():
            raise UsageError(f"there is no file {file}")
        try:
            return load(file), file.name
        except (OSError, TypeError, ValueError) as error:
            raise DataError(str(error)) from None
    text = DEFAULT_SYNTHETIC if text is None else text
    try:
        return synthetic(text, seed), f"{text}, seed {seed}"
    except ValueError as error:
        raise UsageError(str(error)) from None
