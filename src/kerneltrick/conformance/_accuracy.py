"""Checks against the truth: a loop over tokens in float64."""

from __future__ import annotations

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._kinds import kind_named
from kerneltrick.conformance._operator import HALVES
from kerneltrick.conformance._reference import by_head, derivative
from kerneltrick.conformance._trial import ROUNDING, Trial, Violation


def definition(trial: Trial) -> Violation | None:
    """The outputs are those of a loop over tokens in float64."""
    kind = kind_named(trial.operator.kind)
    o, wanted = trial.output(), kind.definition(trial.arrays)
    wrong = trial.differ(o, wanted.astype(o.dtype))
    if not wrong:
        return None
    return Violation(
        f"the output is not {kind.formula}: {wrong}",
        (
            f"o, _ = operator({trial.given})",
            f"wanted = conformance.KINDS[{kind.name!r}].definition([{trial.given}])",
            "print(np.abs(o - wanted).max())",
            "assert conformance.close(o, wanted)",
        ),
    )


def gradients(trial: Trial) -> Violation | None:
    """Gradients are those of the loop in float64, along random directions of every input."""
    rng = np.random.default_rng(1)
    arrays = [x.astype(np.float64) for x in trial.arrays]
    cotangent = rng.uniform(-1, 1, trial.arrays[2].shape).astype(trial.arrays[2].dtype)
    gradients = trial.operator.gradients(trial.arrays, cotangent)
    loop = kind_named(trial.operator.kind).loop
    epsilon = float(np.finfo(trial.arrays[2].dtype).eps)
    # Where a gradient is 0, as that of a query that sees one key, what cancels is of this size.
    whole = float(np.abs(by_head(loop, arrays) * cotangent).sum())
    for number, name in enumerate(trial.names):
        way = rng.uniform(-1, 1, arrays[number].shape)
        ways = [way if i == number else None for i in range(len(arrays))]
        terms = derivative(loop, arrays, ways) * cotangent
        mine = gradients[number].astype(np.float64) * way
        size = max(np.abs(terms).sum(), np.abs(mine).sum(), whole)
        gap = abs(float(mine.sum() - terms.sum()))
        if not gap <= ROUNDING * epsilon * size:
            return Violation(
                f"the gradient of {name} along a direction is {mine.sum():.6g}, not "
                f"{terms.sum():.6g}",
                (
                    "rng = np.random.default_rng(1)",
                    f"cotangent = rng.uniform(-1, 1, v.shape).astype('{trial.arrays[2].dtype}')",
                    f"found = operator.gradients([{trial.given}], cotangent)[{number}]",
                    f"wanted = conformance.gradient({trial.operator.kind!r}, [{trial.given}], "
                    f"cotangent)[{number}]",
                    "print(found, wanted)",
                    "assert conformance.close(found, wanted)",
                ),
            )
    return None


def half_precision(trial: Trial) -> Violation | None:
    """In half precision outputs differ from the float64 loop by about one rounding of the type."""
    kind = kind_named(trial.operator.kind)
    for dtype in trial.operator.halves:
        arrays = [representable(x, dtype) for x in trial.arrays]
        wanted = kind.definition(arrays)
        o = trial.output(arrays, dtype=dtype).astype(np.float64)
        error = np.sqrt(np.square(o - wanted).mean() / np.square(wanted).mean())
        # Inputs and outputs are rounded once; twice the spacing leaves room for inner roundings.
        if not error <= 2 * HALVES[dtype]:
            return Violation(
                f"in {dtype} the relative error is {error:.2g}, over twice the spacing "
                f"{HALVES[dtype]:.2g}",
                (
                    f"x = [conformance.representable(a, {dtype!r}) for a in ({trial.given})]",
                    f"wanted = conformance.KINDS[{kind.name!r}].definition(x)",
                    f"o, _ = operator(*x, dtype={dtype!r})",
                    "error = np.sqrt(np.square(o - wanted).mean() / np.square(wanted).mean())",
                    "print(error)",
                    f"assert error <= 2 * {HALVES[dtype]}",
                ),
            )
    return None


def representable(x: Array, dtype: str) -> Array:
    """The nearest numbers that a type of 16 bits has, as float32.

    >>> representable(np.float32([1.001]), "bfloat16").tolist()
    [1.0]
    """
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).reshape(x.shape)


def gradient(kind: str, arrays: list[Array], cotangent: Array) -> list[Array]:
    """The gradients of (output · cotangent).sum() in float64, one number at a time.

    >>> q, k, v = (np.ones((1, 1, 2, 1)) for _ in range(3))
    >>> gradient("linear_attention", [q, k, v], np.ones((1, 1, 2, 1)))[2].ravel().tolist()
    [1.5, 0.5]
    """
    loop, wide = kind_named(kind).loop, [x.astype(np.float64) for x in arrays]
    found = []
    for number, x in enumerate(wide):
        slopes = np.zeros(x.shape)
        for place in np.ndindex(x.shape):
            one = np.zeros(x.shape)
            one[place] = 1
            ways = [one if i == number else None for i in range(len(wide))]
            slopes[place] = (derivative(loop, wide, ways) * cotangent).sum()
        found.append(slopes)
    return found
