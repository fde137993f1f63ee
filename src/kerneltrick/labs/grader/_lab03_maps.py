"""Lab 03: cases and common mistakes of the feature maps."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._pieces import Array, relu, softmax
from kerneltrick.labs.grader.lab02 import ELU_CASES, ELU_MISTAKES

_rng = np.random.default_rng(303)
_ROWS = _rng.uniform(-3, 3, (6, 4))
_BATCH = _rng.uniform(-3, 3, (2, 3, 4))
_MAP_CASES = (
    Case((_ROWS,)),
    Case((_BATCH,), about="for an array (2, 3, 4)"),
    Case((np.array([[-2.0, -0.1, 0.0, 0.5, 3.0]], np.float32),), about="in float32"),
)


_TINY = np.array([[-3e-12, -1e-12, 0.0, 2e-12, 5e-12]])
_RELU_CASES = (
    *_MAP_CASES,
    Case((-np.abs(_ROWS),), about="where every x is below 0", edge=True),
    Case((_TINY,), about="for tiny x", edge=True),
)


def _floors(power: int) -> tuple[Mistake, ...]:
    """ReLU, or its square, with a small number in place of 0, or added to it."""
    hint = (
        "your answer below 0 is a small number (1e-{digits}): it must be exactly 0, which is why a "
        "query can have no weight"
    )
    found = []
    for digits in (3, 4, 5, 6, 7, 8, 9, 10, 12):
        e = 10.0**-digits
        text = hint.format(digits=digits)
        found += [
            Mistake(text, lambda x, e=e: np.maximum(relu(x) ** power, e)),
            Mistake(text, lambda x, e=e: relu(x) ** power + e),
        ]
        if power > 1:
            text = hint.format(digits=power * digits)
            found.append(Mistake(text, lambda x, e=e: np.maximum(x, e) ** power))
    return tuple(found)


ELU = Exercise("elu_plus_one", cases=ELU_CASES, mistakes=ELU_MISTAKES, entrywise=True)

RELU = Exercise(
    "relu_feature_map",
    entrywise=True,
    cases=_RELU_CASES,
    mistakes=(
        *_floors(1),
        Mistake("your output matches |x|: below 0 it must be 0", np.abs),
        Mistake("your output matches min(0, x)", lambda x: np.minimum(x, 0)),
        Mistake(
            "your output matches 0 and 1, where x > 0: multiply by x",
            lambda x: (x > 0).astype(x.dtype),
        ),
        Mistake("your output matches leaky ReLU", lambda x: np.where(x > 0, x, 0.01 * x)),
        Mistake("your output matches ReLU + 1", lambda x: relu(x) + 1),
    ),
)

SQUARED_RELU = Exercise(
    "squared_relu_feature_map",
    entrywise=True,
    cases=_RELU_CASES,
    mistakes=(
        *_floors(2),
        Mistake("your output matches x²: below 0 it must be 0", np.square),
        Mistake("your output matches ReLU: it is not squared", relu),
        Mistake("your output matches 2·max(0, x): use ** 2 to square", lambda x: 2 * relu(x)),
    ),
)

EXP = Exercise(
    "exp_feature_map",
    entrywise=True,
    cases=(
        *_MAP_CASES,
        Case((np.array([[0.0, -np.inf]]),), about="at −∞"),
        Case((np.array([[-30.0, -31.0]]),), about="far below 0"),
        Case((np.array([[50.0, 80.0]]),), about="for large x", edge=True),
    ),
    mistakes=(
        *(
            Mistake(
                f"x is clipped to [−{bound}, {bound}]: eˣ alone is asked for",
                lambda x, b=bound: np.exp(np.clip(x, -b, b)),
            )
            for bound in (5, 10, 20, 30, 50)
        ),
        Mistake("the rows add up to 1: this is a softmax; the answer is just eˣ", softmax),
        Mistake("your output matches eˣ − 1", np.expm1),
        Mistake("your output matches e⁻ˣ", lambda x: np.exp(-x)),
        Mistake(
            "the largest entry of each row is subtracted: the answer is just eˣ",
            lambda x: np.exp(x - x.max(axis=-1, keepdims=True)),
        ),
        *(
            Mistake(
                "the largest entry of the whole sequence is subtracted: the features of a token "
                "then depend on the tokens after it; the answer is just eˣ",
                lambda x, axis=axis: np.exp(x - x.max(axis=axis, keepdims=True)),
            )
            for axis in (None, -2, (-1, -2))
        ),
    ),
)


def _random(
    scale: Callable[[Array], Array] = lambda x: x * x.shape[-1] ** -0.25,
    half: Callable[[Array, Array], Array] = lambda x, y: np.sum(y**2, -1, keepdims=True) / 2,
    of: Callable[[Array], Array] = np.exp,
    root: Callable[[int], float] = np.sqrt,
) -> Callable[[Array, Array], Array]:
    """The features with one thing changed."""

    def answer(x: Array, projection_matrix: Array) -> Array:
        y = scale(x)
        exponent = y @ projection_matrix.T - half(x, y)
        return np.asarray(of(exponent) / root(len(projection_matrix)))

    return answer


def _cos_sin(power: float, length: bool, factor: float, sin_first: bool) -> Callable[..., Array]:
    """[cos, sin] of the projections, as the hint that goes around has it."""

    def answer(x: Array, projection_matrix: Array) -> Array:
        y = x * x.shape[-1] ** power
        angle = y @ projection_matrix.T
        parts = [np.cos(angle), np.sin(angle)]
        both = np.concatenate(parts[::-1] if sin_first else parts, axis=-1)
        size = np.exp(np.sum(y**2, axis=-1, keepdims=True) / 2) if length else 1.0
        m = len(projection_matrix)
        return np.asarray(size * both * (factor / np.sqrt(m) if factor else 1.0))

    return answer


def _exponents(x: Array, projection_matrix: Array) -> Array:
    y = x * x.shape[-1] ** -0.25
    return np.asarray(y @ projection_matrix.T - np.sum(y**2, axis=-1, keepdims=True) / 2)


def _without_maximum(
    axis: tuple[int, ...] | None, of_products: bool = False
) -> Callable[[Array, Array], Array]:
    """The maximum of the exponents, or of the products ω·x′ alone, subtracted."""

    def answer(x: Array, projection_matrix: Array) -> Array:
        e = _exponents(x, projection_matrix)
        products = x * x.shape[-1] ** -0.25 @ projection_matrix.T
        e = e - (products if of_products else e).max(axis=axis, keepdims=True)
        return np.asarray(np.exp(e) / np.sqrt(len(projection_matrix)))

    return answer


LEAKS = (
    "the largest exponent of the whole sequence is subtracted: the features of a token then depend "
    "on the tokens after it"
)
SHRINKS = (
    "the largest exponent of each row is subtracted: the features are no longer those of "
    "exp(q·k/√d)"
)


def _plain_cos(x: Array, projection_matrix: Array) -> Array:
    y = x * x.shape[-1] ** -0.25
    return np.asarray(np.cos(y @ projection_matrix.T) / np.sqrt(len(projection_matrix)))


RANDOM = Exercise(
    "softmax_kernel_feature_map",
    entrywise=True,
    cases=(
        Case((_rng.standard_normal((5, 16)), _rng.standard_normal((9, 16)))),
        Case((np.zeros((2, 4)), _rng.standard_normal((16, 4))), about="for x = 0"),
        Case(
            (_rng.standard_normal((2, 5, 3)), _rng.standard_normal((4, 3))),
            about="for an array (2, 5, 3)",
        ),
        Case((_rng.standard_normal((6, 6)), _rng.standard_normal((6, 6))), about="for m = d = n"),
    ),
    mistakes=(
        Mistake(
            "x is scaled by d^(−1/2): use d^(−1/4), because q and k both carry it",
            _random(scale=lambda x: x / np.sqrt(x.shape[-1])),
        ),
        Mistake("x is not scaled by d^(−1/4)", _random(scale=lambda x: x)),
        Mistake(
            "exp(−‖x′‖²/2) is missing: φ(q)·φ(k) is biased without it",
            _random(half=lambda x, y: np.zeros((*x.shape[:-1], 1))),
        ),
        Mistake(
            "‖x‖² is computed before scaling: use x′ in both terms",
            _random(half=lambda x, y: np.sum(x**2, -1, keepdims=True) / 2),
        ),
        Mistake(
            "‖x′‖² is not halved: the exponent is ω·x′ − ‖x′‖²/2",
            _random(half=lambda x, y: np.sum(y**2, -1, keepdims=True)),
        ),
        Mistake(
            "the norm ‖x′‖ is not squared: the exponent is ω·x′ − ‖x′‖²/2",
            _random(half=lambda x, y: np.sqrt(np.sum(y**2, -1, keepdims=True)) / 2),
        ),
        Mistake(
            "‖x′‖²/2 is added: the exponent is ω·x′ − ‖x′‖²/2",
            _random(half=lambda x, y: -np.sum(y**2, -1, keepdims=True) / 2),
        ),
        Mistake("the factor 1/√m is missing", _random(root=lambda m: 1)),
        Mistake(
            "you divide by m: the factor is 1/√m, because q and k both carry it",
            _random(root=float),
        ),
        Mistake("you use cos instead of exp: the features must be positive", _plain_cos),
        *(
            Mistake("your features are cos and sin, which can be negative: use exp", _cos_sin(*how))
            for how in itertools.product(
                (-0.25, 0.0, -0.5),
                (True, False),
                (1.0, 0.0, np.sqrt(2), np.sqrt(0.5)),
                (True, False),
            )
        ),
        *(
            Mistake(SHRINKS if axis == (-1,) else LEAKS, _without_maximum(axis, of_products))
            for of_products in (False, True)
            for axis in ((-1, -2), (-2,), None, (-1,))
        ),
        Mistake(
            "the exponent is returned: exp is missing", _random(of=lambda x: x, root=lambda m: 1)
        ),
    ),
)
