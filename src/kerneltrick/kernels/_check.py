"""Check points, targets, labels and penalties, with errors that say what to do."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal, TypeAlias

import numpy as np

from kerneltrick._arrays import as_numpy, is_array

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Solver = Literal["auto", "dual", "primal"]


def points(who: str, name: str, x: Any, least: int = 0) -> Floats:
    """x as (n, d) in float64. Raises ValueError unless x is finite, n ≥ least and d ≥ 1."""
    array = _real(who, name, x)
    if array.ndim != 2:
        hint = f"; a single column is {name}[:, None]" if array.ndim == 1 else ""
        raise ValueError(f"{who} needs {name} to be points (n, d), not {array.shape}{hint}")
    if array.shape[1] == 0 or len(array) < least:
        raise ValueError(
            f"{who} needs {name} to have at least {max(least, 1)} row and 1 column, "
            f"not {array.shape}"
        )
    return _finite(who, name, array)


def same_width(who: str, x: Floats, y: Floats) -> None:
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"{who} needs points of the same width, but x has {x.shape[1]} coordinates and y has "
            f"{y.shape[1]} (x: {x.shape}, y: {y.shape})"
        )


def targets(who: str, y: Any, n: int, *, columns: bool = True) -> Floats:
    """y as (n,), or (n, t) if several columns are allowed, in float64 and finite."""
    array = _real(who, "y", y)
    if array.ndim not in ((1, 2) if columns else (1,)) or len(array) != n or array.size == 0:
        several = f" or ({n}, targets)" if columns else ""
        raise ValueError(f"{who} needs one target per point: y ({n},){several}, not {array.shape}")
    return _finite(who, "y", array)


def signs(who: str, y: Any, n: int) -> Floats:
    """Labels −1 and 1 as float64."""
    array = targets(who, y, n, columns=False)
    if not np.isin(array, (-1.0, 1.0)).all():
        found = ", ".join(f"{v:g}" for v in np.unique(array)[:4])
        hint = "; write 2 * y - 1" if np.isin(array, (0.0, 1.0)).all() else ""
        raise ValueError(f"{who} needs labels −1 and 1, but y contains {found}{hint}")
    return array


def coefficients(who: str, values: Any, n: int) -> Floats:
    array = _real(who, "coefficients", values)
    if array.shape != (n,):
        raise ValueError(f"{who} needs one coefficient per point, ({n},), not {array.shape}")
    return _finite(who, "coefficients", array)


def square(who: str, matrix: Any) -> Floats:
    array = _real(who, "the matrix", matrix)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ValueError(f"{who} needs a square matrix with at least one row, not {array.shape}")
    return _finite(who, "the matrix", array)


def positive(who: str, name: str, value: Any, why: str = "") -> float:
    """A finite number > 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{who} needs {name} to be a number > 0, not {value!r}")
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{who} needs {name} > 0 and finite, not {number!r}{why}")
    return number


def whole(who: str, name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{who} needs {name} to be a whole number ≥ {least}, not {value!r}")
    return int(value)


def one_of(who: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{who} needs {name} to be one of {', '.join(allowed)}, not {value!r}")


def _real(who: str, name: str, x: Any) -> np.ndarray[Any, Any]:
    array = as_numpy(x) if is_array(x) else np.asarray(x)
    if array.dtype.kind not in "fiu":
        kind = "text" if array.dtype.kind in "US" else str(array.dtype)
        raise TypeError(f"{who} needs {name} to contain real numbers, not {kind}")
    return array.astype(np.float64, copy=False)


def _finite(who: str, name: str, array: Floats) -> Floats:
    bad = ~np.isfinite(array)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(f"{who} needs finite numbers, but {name} contains NaN or inf in row {row}")
    return array
