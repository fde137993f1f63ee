"""Checks against the truth: a loop over tokens in float64."""

from __future__ import annotations

import functools

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._kinds import kind_named
from kerneltrick.conformance._operator import HALVES, Operator, narrowed
from kerneltrick.conformance._reference import derivative
from kerneltrick.conformance._trial import ROUNDING, Trial, Violation


def definition(trial: Trial) -> Violation | None:
    """The outputs are those of a loop over tokens in float64."""
    kind = trial.kind
    o, wanted = trial.output(), kind.definition(trial.arrays)
    wrong = trial.differ(o, wanted.astype(o.dtype), size=kind.size(trial.arrays))
    if not wrong:
        return None
    return Violation(
        f"the output is not {kind.formula}: {wrong}",
        (
            f"kind = conformance.KINDS[{kind.name!r}]",
            f"o, _ = operator({trial.given})",
            f"wanted = kind.definition([{trial.given}])",
            "print(np.abs(o - wanted).max())",
            f"assert conformance.close(o, wanted.astype(o.dtype), kind.size([{trial.given}]))",
        ),
    )


def gradients(trial: Trial) -> Violation | None:
    """Gradients are those of the loop in float64, along random directions of every input."""
    rng = np.random.default_rng(1)
    kind, arrays = trial.kind, [x.astype(np.float64) for x in trial.arrays]
    shape, dtype = kind.output_shape(trial.arrays), trial.arrays[kind.value].dtype
    cotangent = rng.uniform(-1, 1, shape).astype(dtype)
    gradients = trial.operator.gradients(trial.arrays, cotangent)
    epsilon = float(np.finfo(dtype).eps)
    # Where a gradient is 0, as that of a query that sees one key, what cancels is of this size.
    whole = float(np.abs(kind.definition(arrays) * cotangent).sum())
    for number, name in enumerate(trial.names):
        way = rng.uniform(-1, 1, arrays[number].shape)
        ways = [way if i == number else None for i in range(len(arrays))]
        terms = derivative(kind.loop, arrays, ways) * cotangent
        mine = gradients[number].astype(np.float64) * way
        size = max(np.abs(terms).sum(), np.abs(mine).sum(), whole)
        gap = abs(float(mine.sum() - terms.sum()))
        if not gap <= ROUNDING * epsilon * size:
            return Violation(
                f"the gradient of {name} along a direction is {mine.sum():.6g}, not "
                f"{terms.sum():.6g}",
                (
                    "rng = np.random.default_rng(1)",
                    f"cotangent = rng.uniform(-1, 1, {shape}).astype('{dtype}')",
                    f"found = operator.gradients([{trial.given}], cotangent)[{number}]",
                    f"wanted = conformance.gradient({kind.name!r}, [{trial.given}], "
                    f"cotangent)[{number}]",
                    "print(found, wanted)",
                    "assert conformance.close(found, wanted)",
                ),
            )
    return None


def half_precision(trial: Trial) -> Violation | None:
    """In half precision outputs differ from the float64 loop by about one rounding of the type.

    With a state too: read in eight parts, since a state that is rounded each time adds up.
    """
    for dtype in trial.operator.halves:
        arrays = narrowed(
            trial.kind.name, trial.arrays, functools.partial(representable, dtype=dtype)
        )
        parts = [[0, trial.n]]
        if "state" in trial.operator.abilities:
            parts.append([*range(0, trial.n, -(-trial.n // 8)), trial.n])
        for edges in parts:
            error = half_error(trial.operator, arrays, dtype, edges)
            # Inputs and outputs are rounded once; twice the spacing leaves room for the rest.
            if error <= 2 * HALVES[dtype]:
                continue
            return Violation(
                f"in {dtype}, read in {len(edges) - 1} parts, the relative error is {error:.2g}, "
                f"over twice the spacing {HALVES[dtype]:.2g}",
                (
                    f"x = conformance.narrowed({trial.kind.name!r}, [{trial.given}], "
                    f"lambda a: conformance.representable(a, {dtype!r}))",
                    f"error = conformance.half_error(operator, x, {dtype!r}, {edges})",
                    "print(error)",
                    f"assert error <= 2 * {HALVES[dtype]}",
                ),
            )
    return None


def half_error(operator: Operator, arrays: list[Array], dtype: str, edges: list[int]) -> float:
    """The root mean square error in a type of 16 bits, of texts read in parts with these edges."""
    trial = Trial(operator, arrays, ())
    parts = len(edges) > 2
    o = trial.in_parts(edges, dtype=dtype) if parts else trial.output(dtype=dtype)
    wanted = trial.kind.definition(arrays)
    gap = o.astype(np.float64) - wanted
    return float(np.sqrt(np.square(gap).mean() / np.square(wanted).mean()))


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
