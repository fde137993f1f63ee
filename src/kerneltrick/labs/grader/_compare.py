"""Compare a student's answer with the right one, and say how they differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Case
from kerneltrick.labs.walls import Other

Array = np.ndarray[Any, Any]
ZERO = 1e-6  # what counts as 0 beside a right answer that is exactly 0
NEARLY_1 = 1e-2  # a factor this close to 1 is a rounding or an off-by-one error, not a factor


def is_number(x: Any) -> bool:
    """Whether x is a number of Python or NumPy, or an array without axes, but not a truth value."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.ndim == 0 and x.dtype.kind in "iufc"
    return isinstance(x, (int, float, complex)) and not isinstance(x, bool)


def is_truth(x: Any) -> bool:
    if isinstance(x, (np.ndarray, np.generic)):
        return x.ndim == 0 and x.dtype.kind == "b"
    return isinstance(x, bool)


def is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim > 0


def equal(found: Any, right: Any, tolerance: float, entrywise: bool = False) -> bool:
    """Whether an answer is the right one, up to `tolerance` of the largest entry of each array.

    With `entrywise` each entry is compared up to `tolerance` of itself, so that a large entry does
    not hide an error in a small one.

    >>> equal((1.0, [2]), (1.00001, [2]), 1e-4), equal(np.eye(2), [[1, 0], [0, 1]], 1e-4)
    (True, False)
    >>> found, right = np.array([3.0, 1e-4]), np.array([3.0, 0.0])
    >>> equal(found, right, 1e-4), equal(found, right, 1e-4, entrywise=True)
    (True, False)
    """
    if is_array(right):
        return is_array(found) and _close(found, right, tolerance, entrywise)
    if is_truth(right):
        return is_truth(found) and bool(found) == bool(right)
    if isinstance(right, (int, np.integer)):
        return is_number(found) and bool(abs(_exact(found) - int(right)) <= 1e-9 * abs(int(right)))
    if is_number(right):
        return is_number(found) and _close(np.asarray(found), np.asarray(right), tolerance)
    if isinstance(right, (list, tuple)):
        same = isinstance(found, (list, tuple)) and len(found) == len(right)
        pairs = zip(found, right, strict=True) if same else ()
        return same and all(equal(f, r, tolerance, entrywise) for f, r in pairs)
    if isinstance(right, dict):
        same = isinstance(found, dict) and right.keys() <= found.keys()
        return same and all(equal(found[key], right[key], tolerance, entrywise) for key in right)
    return type(found) is type(right) and bool(found == right)


def unpacked(found: Any, right: Any) -> Any:
    """The answer. If several numbers are expected and an array came, it becomes a tuple."""
    numbers = isinstance(right, (list, tuple)) and all(map(is_number, right))
    return tuple(found) if numbers and is_array(found) and found.ndim == 1 else found


def _exact(x: Any) -> Any:
    """The number as a Python number, which does not overflow like NumPy's integers."""
    return x.item() if isinstance(x, (np.ndarray, np.generic)) else x


def _close(found: Array, right: Array, tolerance: float, entrywise: bool = False) -> bool:
    kinds = found.dtype.kind, right.dtype.kind
    if found.shape != right.shape or (("b" in kinds or "c" in kinds) and kinds[0] != kinds[1]):
        return False
    if right.dtype.kind == "b":
        return bool(np.array_equal(found, right))
    f, r = _wide(found), _wide(right)
    finite = np.isfinite(r)
    largest = float(np.max(np.abs(r[finite]), initial=0.0))
    with np.errstate(all="ignore"):
        atol: Any = tolerance * largest if largest > 0 else min(tolerance, ZERO)
        if entrywise and largest > 0:
            atol = np.where(r == 0, ZERO * largest, tolerance * np.abs(r))
        near = np.abs(f - r) <= atol
        same = (f == r) | (np.isnan(f) & np.isnan(r))
    return bool(np.all(np.where(finite, near, same)))


def _wide(x: Array) -> Array:
    return np.asarray(x).astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def kind(x: Any) -> str:
    """Describe an answer in words.

    >>> kind(np.zeros((2, 3))), kind((1.0, None)), kind(True)
    ('an array of shape (2, 3)', '2 values (a tuple)', 'True')
    """
    if is_array(x):
        return f"an array of shape {x.shape}"
    if isinstance(x, Other):
        return f"an {x.name}" if x.name.startswith("array") else f"an object of type {x.name}"
    if isinstance(x, (list, tuple)):
        return f"{len(x)} values (a {type(x).__name__})"
    if isinstance(x, dict):
        return f"a dict with {', '.join(map(repr, x)) or 'no keys'}"
    if is_truth(x) or x is None:
        return str(x)
    return f"the number {short(x)}" if is_number(x) else f"a {type(x).__name__}"


def short(x: Any) -> str:
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool):
        return str(x) if abs(int(x)) < 10**12 else f"{float(x):.4g}"
    return f"{x:.4g}"


def parts(found: Any, right: Any, label: str = "") -> list[tuple[str, Any, Any]]:
    """The numbers and arrays of two answers of the same form, each with a name."""
    if isinstance(right, (list, tuple)) and isinstance(found, (list, tuple)):
        ordinals = ("first", "second", "third", "fourth", "fifth", "sixth")
        pairs = list(zip(found, right, strict=False))
        names = [
            f"the {ordinals[at]} returned value"
            if at < len(ordinals) and not label
            else f"part {at + 1} of {label or 'the answer'}"
            for at in range(len(pairs))
        ]
        return [p for name, (f, r) in zip(names, pairs, strict=True) for p in parts(f, r, name)]
    if isinstance(right, dict) and isinstance(found, dict):
        both = [key for key in right if key in found]
        return [p for key in both for p in parts(found[key], right[key], repr(key))]
    return [(label, found, right)]


def form(found: Any, right: Any) -> str | None:
    """What is wrong with the type or the shape of an answer, or None."""
    if found is None and right is not None:
        return "returns None: is a `return` missing?"
    if isinstance(right, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(found) != len(right):
            return f"returns {kind(found)}; {len(right)} values are expected"
    elif isinstance(right, dict):
        if not isinstance(found, dict):
            return f"returns {kind(found)}; {kind(right)} is expected"
        if missing := [repr(key) for key in right if key not in found]:
            return f"the key {missing[0]} is missing: {', '.join(map(repr, right))} are expected"
    for label, f, r in parts(found, right):
        what = f"{label} is" if label else "returns"
        if is_array(r):
            if not is_array(f):
                more = ": use np.array" if isinstance(f, (list, tuple)) else ""
                return f"{what} {kind(f)}; an array of shape {r.shape} is expected{more}"
            if f.dtype.kind == "c" and r.dtype.kind != "c":
                return f"{what} an array of complex numbers; real ones are expected"
            if f.shape != r.shape:
                turned = f.shape == r.shape[::-1] or f.shape == (*r.shape[:-2], *r.shape[:-3:-1])
                more = ", its transpose" if turned and r.ndim > 1 else ""
                return f"{what} an array of shape {f.shape}; {r.shape} is expected{more}"
            if (f.dtype.kind == "b") != (r.dtype.kind == "b"):
                return f"{what} an array of {f.dtype}; {r.dtype} is expected"
        elif is_truth(r):
            if not is_truth(f):
                return f"{what} {kind(f)}; True or False is expected"
        elif is_number(r):
            if not is_number(f) or (isinstance(f, complex) and not isinstance(r, complex)):
                return f"{what} {kind(f)}; a real number is expected"
        elif type(f) is not type(r):
            return f"{what} {kind(f)}; {kind(r)} is expected"
    return None


def values(found: Any, right: Any, tolerance: float, entrywise: bool = False) -> str:
    """What is wrong with an answer of the right form."""
    wrong = [p for p in parts(found, right) if not equal(p[1], p[2], tolerance, entrywise)]
    label, f, r = wrong[0]
    of = f" in {label}" if label else ""
    if not is_array(r):
        if is_number(r) and not math.isfinite(abs(f)) and math.isfinite(abs(r)):
            return f"{short(f)}{of} where {short(r)} is right"
        if isinstance(r, (int, np.integer)) and is_number(f) and not is_truth(r) and f % 1:
            return f"{short(f)}{of}, which is not a whole number, where {short(r)} is right"
        plain = str if is_truth(r) or not is_number(r) else short
        return f"{plain(f)}{of} where {plain(r)} is right"
    if r.dtype.kind == "b":
        at = tuple(int(i) for i in np.argwhere(f != r)[0])
        return f"{f[at]} at {list(at)}{of} where {r[at]} is right"
    f, r = _wide(f), _wide(r)
    bad = ~np.isfinite(f) & np.isfinite(r)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        name = "NaN" if np.isnan(f[at]) else "infinity"
        return (
            f"{name} in {int(bad.sum())} of {f.size} entries{of}, first at {list(at)}, where the "
            "right answer is finite"
        )
    if r.ndim > 1 and equal(np.swapaxes(f, -1, -2), r, tolerance):
        return f"{label or 'the answer'} is the transpose of the right one"
    with np.errstate(all="ignore"):
        gap = np.nan_to_num(np.abs(f - r), nan=math.inf, posinf=math.inf)
        if entrywise:  # the largest error is the largest share of an entry
            gap = gap / np.where(r == 0, np.max(np.abs(r), initial=0.0) or 1.0, np.abs(r))
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(gap)), gap.shape))
    return f"{short(f[at])} at {list(at)}{of} where {short(r[at])} is right"


def not_finite(found: Any, right: Any) -> bool:
    """Whether an answer holds NaN or infinity where the right one is finite."""
    for _, f, r in parts(found, right):
        numbers = all(is_array(x) or is_number(x) for x in (f, r))
        if not numbers or np.shape(f) != np.shape(r):
            continue
        bad = ~np.isfinite(_wide(np.asarray(f))) & np.isfinite(_wide(np.asarray(r)))
        if bad.any():
            return True
    return False


def swapped(found: Any, right: Any, tolerance: float) -> bool:
    """Whether the two returned values are in the wrong order."""
    two = isinstance(right, tuple) and isinstance(found, (list, tuple)) and len(right) == 2
    return two and len(found) == 2 and equal(list(found)[::-1], list(right), tolerance)


def half(found: Any, right: Any) -> bool:
    """Whether all numbers of an answer are of float16, though the right ones are not.

    >>> right = np.array([0.1, 2.3])
    >>> half(right.astype(np.float16).astype(float), right), half(np.zeros(2), np.ones(2))
    (True, False)
    """
    if form(found, right) is not None:
        return False
    pairs = [(f, r) for _, f, r in parts(found, right) if _is_half(r) is not None]
    with np.errstate(all="ignore"):
        return all(_is_half(f) for f, _ in pairs) and not all(_is_half(r) for _, r in pairs)


def _is_half(x: Any) -> bool | None:
    """Whether float16 holds the numbers; None if they are no floats."""
    if np.asarray(x).dtype.kind != "f":
        return None
    wide = _wide(np.asarray(x))
    return bool(np.array_equal(wide.astype(np.float16), wide, equal_nan=True))


def factor(wrong: list[tuple[Case, Any, Any]], tolerance: float) -> str | None:
    """The common factor of all wrong answers, if there is one, in words."""
    found: list[tuple[str, float, int, Case]] = []
    for case, answer, right in wrong:
        if form(answer, right) is not None:
            return None
        for label, f, r in parts(answer, right):
            if equal(f, r, tolerance):
                continue
            ratio = _ratio(f, r, tolerance)
            if ratio is None:
                return None
            found.append((label, ratio, int(np.size(r)), case))
    if not found or len({label for label, *_ in found}) > 1:
        return None
    label, ratio, entries, case = found[0]
    yours = f"{label} is" if label else "your answer is"
    names = set.intersection(*(_named(c, case) for _, c, _, case in found))
    for name in sorted(names, key=len):
        return f"{yours} {name} times the right one (here {short(ratio)})"
    constant = all(math.isclose(c, ratio, rel_tol=1e-3) for _, c, _, _ in found)
    says_something = abs(ratio - 1) > NEARLY_1  # "1 times the right one" does not help
    if constant and says_something and (entries > 1 or len(found) > 1):
        return f"{yours} {_simple(ratio)} times the right one"
    return None


def _ratio(found: Any, right: Any, tolerance: float) -> float | None:
    if not (is_array(right) or is_number(right)) or is_truth(found):
        return None
    f, r = _wide(np.asarray(found)), _wide(np.asarray(right))
    if f.dtype.kind == "c" or r.dtype.kind == "c" or not (np.all(np.isfinite(f * r))):
        return None
    square = float(np.sum(r * r))
    c = float(np.sum(f * r)) / square if square > 0 else 0.0
    nonzero = abs(c) > 1e-9 and abs(c - 1) > tolerance
    return c if nonzero and _close(f / c, r, 10 * tolerance) else None


def _named(c: float, case: Case) -> set[str]:
    """Names for a factor in terms of the first array's shape: n, d and their roots."""
    arrays = [x for x in (*case.arguments, *case.options.values()) if is_array(x) and x.ndim > 1]
    if not arrays:
        return set()
    n, d = arrays[0].shape[-2:]
    known = {
        "d": d,
        "1/d": 1 / d,
        "√d": math.sqrt(d),
        "1/√d": 1 / math.sqrt(d),
        "n": n,
        "1/n": 1 / n,
        "√n": math.sqrt(n),
        "1/√n": 1 / math.sqrt(n),
    }
    return {name for name, x in known.items() if x != 1 and math.isclose(c, x, rel_tol=1e-3)}


def _simple(c: float) -> str:
    """
    >>> _simple(-1.0), _simple(0.5), _simple(0.70710678), _simple(0.37)
    ('−1', '1/2', '1/√2', '0.37')
    """
    sign, size = ("−" if c < 0 else ""), abs(c)
    known = {"1": 1.0}
    for k in range(2, 65):
        known |= {f"{k}": k, f"1/{k}": 1 / k, f"√{k}": math.sqrt(k), f"1/√{k}": 1 / math.sqrt(k)}
    for name, x in sorted(known.items(), key=lambda item: ("√" in item[0], len(item[0]))):
        if math.isclose(size, x, rel_tol=1e-5):
            return sign + name
    return sign + short(size)
