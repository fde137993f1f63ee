"""Lab 03: cases and common mistakes of the implied weights and their comparison with softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Given, Mistake
from kerneltrick.labs.grader._pieces import EPSILONS, Array, FeatureMap, softmax

_rng = np.random.default_rng([3, 3])


def _pairs(n: int, d: int, dtype: Any = np.float64) -> tuple[Array, Array]:
    q, k = _rng.standard_normal((2, n, d)).astype(dtype)
    return q, k


def _weights(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    return np.asarray(feature_map(Q) @ feature_map(K).T)


def _implied(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    weights = _weights(Q, K, feature_map)
    total = weights.sum(axis=1, keepdims=True)
    if np.any(total == 0):
        raise ZeroDivisionError
    return np.asarray(weights / total)


def _refusing(zero: Callable[[Array], Array]) -> Callable[..., Array]:
    """The weights, with more sums than that of exactly 0 taken for it."""

    def answer(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
        weights = _weights(Q, K, feature_map)
        total = weights.sum(axis=1, keepdims=True)
        if np.any(zero(total)):
            raise ZeroDivisionError
        return np.asarray(weights / total)

    return answer


def _with_epsilon(epsilon: float) -> Callable[..., Array]:
    def answer(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
        weights = _weights(Q, K, feature_map)
        return np.asarray(weights / (weights.sum(axis=1, keepdims=True) + epsilon))

    return answer


def _columns(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    weights = _weights(Q, K, feature_map)
    total = weights.sum(axis=0, keepdims=True)
    if np.any(weights.sum(axis=1) == 0):
        raise ZeroDivisionError
    return np.asarray(weights / total)


def _whole(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    weights = _weights(Q, K, feature_map)
    if np.any(weights.sum(axis=1) == 0):
        raise ZeroDivisionError
    return np.asarray(weights / weights.sum())


def _absolute(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    weights = _weights(Q, K, feature_map)
    total = np.abs(weights.sum(axis=1, keepdims=True))
    if np.any(total == 0):
        raise ZeroDivisionError
    return np.asarray(weights / total)


def _of_absolutes(Q: Array, K: Array, feature_map: FeatureMap) -> Array:
    weights = _weights(Q, K, feature_map)
    total = np.abs(weights).sum(axis=1, keepdims=True)
    if np.any(total == 0):
        raise ZeroDivisionError
    return np.asarray(weights / total)


def _no_weight() -> tuple[Array, Array]:
    """The second query has the weight 0 with every key under ReLU."""
    return np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[-1.0, 1.0], [-2.0, 3.0]])


OVERFLOWS = (
    "your softmax overflows: subtract the largest score of each row before np.exp, which changes "
    "no weight"
)
_WEIGHT_CASES = (
    Case((*_pairs(7, 4), Given("exp"))),
    Case((*_pairs(6, 3), Given("with_square")), about="for a map with more features"),
    Case((*_pairs(5, 5), Given("elu")), about="for n = d"),
    Case((_rng.standard_normal((4, 3)), _rng.standard_normal((9, 3)), Given("elu")),
         about="for more keys than queries"),
    Case((*(1e-9 * np.abs(x) for x in _pairs(5, 3)), Given("relu")), about="for tiny weights"),
)  # fmt: skip
_BOTH_SIGNS = (np.array([[1.0, 2], [-1, 3], [2, -1]]), np.array([[1.0, 0], [0, 1], [3, -1]]))


IMPLIED = Exercise(
    "compute_implicit_attention",
    cases=(
        *_WEIGHT_CASES,
        Case((np.eye(3), np.eye(3), Given("relu")), about="where some weights are 0"),
        Case((*_BOTH_SIGNS, Given("identity")), about="where some weights are negative"),
        Case(
            (*_no_weight(), Given("relu")),
            raises=ZeroDivisionError,
            about="for a query without weight",
        ),
    ),
    mistakes=(
        Mistake("the rows are not normalised: each must add up to 1", _weights),
        Mistake("the columns add up to 1: the rows must", _columns),
        Mistake("all entries together add up to 1: every row must", _whole),
        Mistake(
            "a softmax is applied to φ(Q)φ(K)ᵀ: divide by the row sums instead",
            lambda Q, K, feature_map: softmax(_weights(Q, K, feature_map)),
        ),
        Mistake(
            "a row whose sum is 0 gives NaN: raise ZeroDivisionError",
            _with_epsilon(0.0),
        ),
        *(
            Mistake(
                f"a small number ({name}) in the denominator hides the row whose sum is 0, and "
                "changes small weights: raise ZeroDivisionError",
                _with_epsilon(float(name)),
            )
            for name in EPSILONS
        ),
        Mistake(
            "you divide by the absolute value of the row sum: where the sum is negative the "
            "weights have the wrong sign, and add up to −1",
            _absolute,
        ),
        Mistake(
            "you divide by the sum of the absolute weights: where signs differ the rows do not add "
            "up to 1. Divide by the sum of the weights as they are",
            _of_absolutes,
        ),
        Mistake(
            "a row whose sum is negative is treated as if its sum were 0: its weights exist, and "
            "only a sum of exactly 0 has none",
            _refusing(lambda total: total <= 0),
        ),
        Mistake(
            "a row whose sum is small is treated as if its sum were 0: only a sum of exactly 0 has "
            "no weights",
            _refusing(lambda total: np.abs(total) < 1e-12),
        ),
        Mistake(
            "a row whose sum is negative or small is treated as if its sum were 0: only a sum of "
            "exactly 0 has no weights",
            _refusing(lambda total: total < 1e-12),
        ),
        Mistake(
            "φ is not applied",
            lambda Q, K, feature_map: _implied(Q, K, lambda x: x),
        ),
        Mistake(
            "φ is applied to Q only: K needs it as well",
            lambda Q, K, feature_map: _implied(feature_map(Q), K, lambda x: x),
        ),
        Mistake(
            "φ is applied to the scores QKᵀ: apply it to Q and K before the product",
            lambda Q, K, feature_map: _implied(feature_map(Q @ K.T), np.eye(len(K)), lambda x: x),
        ),
    ),
)


SHOW = Exercise(
    "show_attention",
    cases=(
        Case((_implied(*_pairs(6, 4), np.exp),)),
        Case((np.eye(3),), about="where weights are 0"),
        Case((_implied(*_BOTH_SIGNS, lambda x: x),), about="where weights are negative"),
        Case((_implied(*_pairs(9, 4), np.exp)[:4],), about="for more keys than queries"),
        Case((np.ones((1, 1)),), about="for one token"),
    ),
    returns=False,
)


def _compared(
    of: Callable[[Array, Array], dict[str, Any]] | None = None,
    scale: Callable[[Array, float | None], float] | None = None,
    softmax: Callable[[Array], Array] = softmax,
    weights: Callable[..., Array] = _implied,
) -> Callable[..., dict[str, float]]:
    """The comparison with one thing changed."""

    def answer(
        Q: Array, K: Array, feature_map: FeatureMap, scale_: float | None = None, **more: Any
    ) -> dict[str, float]:
        given = more.get("scale", scale_)
        default = Q.shape[1] ** -0.5 if given is None else given
        s = default if scale is None else scale(Q, given)
        A, S = weights(Q, K, feature_map), softmax(s * (Q @ K.T))
        found = {
            "mse": np.mean((A - S) ** 2),
            "max_diff": np.max(np.abs(A - S)),
            "correlation": np.corrcoef(A.ravel(), S.ravel())[0, 1],
        }
        return {key: float(x) for key, x in {**found, **(of(A, S) if of else {})}.items()}

    return answer


def _by_row(A: Array, S: Array) -> Any:
    return np.mean([np.corrcoef(a, s)[0, 1] for a, s in zip(A, S, strict=True)])


_COMPARE_MISTAKES = (
    Mistake(
        "the softmax has no scale: s is 1/√d unless `scale` is given",
        _compared(scale=lambda Q, s: 1.0 if s is None else s),
    ),
    Mistake("`scale` is ignored", _compared(scale=lambda Q, s: Q.shape[1] ** -0.5)),
    Mistake(
        "the scores are multiplied by √d: s is 1/√d",
        _compared(scale=lambda Q, s: Q.shape[1] ** 0.5 if s is None else s),
    ),
    Mistake(
        "the scores are divided by d: s is 1/√d",
        _compared(scale=lambda Q, s: 1 / Q.shape[1] if s is None else s),
    ),
    Mistake(
        "the scores are divided by √n, the number of tokens: s is 1/√d, with the width of q and k",
        _compared(scale=lambda Q, s: len(Q) ** -0.5 if s is None else s),
    ),
    Mistake(
        "the softmax runs over the columns: its rows must add up to 1",
        _compared(softmax=lambda scores: softmax(scores.T).T),
    ),
    Mistake(
        "exp(scores) is compared: the softmax is not normalised", _compared(softmax=np.exp)
    ),
    Mistake("the weights of the map are not normalised", _compared(weights=_weights)),
    Mistake(
        "'mse' is the sum of the squares, not their mean",
        _compared(lambda A, S: {"mse": np.sum((A - S) ** 2)}),
    ),
    Mistake(
        "'mse' is the square root of the mean: leave the root out",
        _compared(lambda A, S: {"mse": np.sqrt(np.mean((A - S) ** 2))}),
    ),
    Mistake(
        "'mse' is the mean of |A − S|: square the differences",
        _compared(lambda A, S: {"mse": np.mean(np.abs(A - S))}),
    ),
    Mistake(
        "'max_diff' is the largest A − S: take the absolute value first",
        _compared(lambda A, S: {"max_diff": np.max(A - S)}),
    ),
    Mistake(
        "'max_diff' is the largest S − A: take the absolute value first",
        _compared(lambda A, S: {"max_diff": np.max(S - A)}),
    ),
    Mistake(
        "'correlation' uses only the first two rows: flatten both matrices with .ravel()",
        _compared(lambda A, S: {"correlation": np.corrcoef(A, S)[0, 1]}),
    ),
    Mistake(
        "'correlation' is the mean of the correlations of the rows: flatten both matrices with "
        ".ravel() and take one",
        _compared(lambda A, S: {"correlation": _by_row(A, S)}),
    ),
    Mistake(
        "'correlation' is the cosine: subtract the means first",
        _compared(lambda A, S: {
            "correlation": np.sum(A * S) / np.linalg.norm(A) / np.linalg.norm(S)
        }),
    ),
    Mistake(
        "'correlation' is the covariance: divide by both deviations",
        _compared(lambda A, S: {"correlation": np.mean((A - A.mean()) * (S - S.mean()))}),
    ),
)  # fmt: skip

COMPARE = Exercise(
    "compare_to_softmax",
    cases=(
        Case((*_pairs(8, 5), Given("exp"))),
        Case((*_pairs(7, 4), Given("with_square")), about="for a map with more features"),
        Case((*_pairs(6, 3), Given("elu"), 1.0), about="with scale=1"),
        Case((*_pairs(6, 3), Given("exp")), {"scale": 0.01}, about="with scale=0.01"),
        Case((*_pairs(9, 16), Given("elu")), about="for d = 16"),
        Case(
            (*_pairs(6, 3), Given("elu"), 2000.0),
            about="for large scores",
            not_finite=OVERFLOWS,
            edge=True,
        ),
        Case(
            (*_no_weight(), Given("relu")),
            raises=ZeroDivisionError,
            about="for a query without weight",
        ),
    ),
    mistakes=_COMPARE_MISTAKES,
    tolerance=1e-3,
)


def _quality(
    of: Callable[..., dict[str, Any]] | None = None,
    s: Callable[[Array], float] = lambda Q: Q.shape[1] ** -0.5,
) -> Callable[..., dict[str, float]]:
    """The quality with one thing changed."""

    def answer(feature_map: FeatureMap, Q: Array, K: Array, V: Array) -> dict[str, float]:
        A, B = _implied(Q, K, feature_map), _weights(Q, K, feature_map)
        S = softmax(s(Q) * (Q @ K.T))
        ours, theirs = A @ V, S @ V
        norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        found: dict[str, Any] = {
            **_compared(scale=lambda Q, _: s(Q))(Q, K, feature_map),
            "output_relative_error": np.linalg.norm(ours - theirs) / np.linalg.norm(theirs),
            "output_cosine": np.mean(np.sum(ours * theirs, axis=1) / norms),
            "smallest_normalizer": np.min(np.abs(B.sum(axis=1))),
            "condition_number": np.max(np.abs(B).sum(axis=1) / np.abs(B.sum(axis=1))),
            "negative_fraction": np.mean(A < 0),
        }
        found |= of(A, B, S, ours, theirs) if of else {}
        return {key: float(x) for key, x in found.items()}

    return answer


_SIGNED = _rng.standard_normal((3, 9, 4))

QUALITY = Exercise(
    "analyze_feature_map_quality",
    cases=(
        Case((Given("exp"), *_rng.standard_normal((3, 8, 5)))),
        Case(
            (Given("with_square"), *_pairs(7, 4), _rng.standard_normal((7, 3))),
            about="for values of another width",
        ),
        Case(
            (Given("identity"), *_SIGNED),
            about="for a map whose weights can be negative",
        ),
        Case(
            (Given("identity"), -_SIGNED[0], *_SIGNED[1:]),
            about="where the row that cancels most has a negative sum",
            edge=True,
        ),
        Case(
            (Given("elu"), *(30 * x for x in _pairs(6, 3)), _rng.standard_normal((6, 3))),
            about="for large scores",
            not_finite=OVERFLOWS,
            edge=True,
        ),
        Case(
            (Given("relu"), *_no_weight(), np.eye(2)),
            raises=ZeroDivisionError,
            about="for a query without weight",
        ),
    ),
    mistakes=(
        Mistake("the softmax has no scale: s is 1/√d here", _quality(s=lambda Q: 1.0)),
        Mistake(
            "the scores are divided by √n, the number of tokens: s is 1/√d, with the width of q "
            "and k",
            _quality(s=lambda Q: len(Q) ** -0.5),
        ),
        Mistake(
            "'correlation' is the mean of the correlations of the rows: flatten both matrices with "
            ".ravel() and take one",
            _quality(lambda A, B, S, o, t: {"correlation": _by_row(A, S)}),
        ),
        Mistake(
            "'output_relative_error' is not relative: divide by ‖SV‖",
            _quality(lambda A, B, S, o, t: {"output_relative_error": np.linalg.norm(o - t)}),
        ),
        Mistake(
            "'output_relative_error' is divided by ‖AV‖: divide by ‖SV‖, the output of softmax",
            _quality(
                lambda A, B, S, o, t: {
                    "output_relative_error": np.linalg.norm(o - t) / np.linalg.norm(o)
                }
            ),
        ),
        Mistake(
            "'output_cosine' is the cosine of the two whole matrices: average the cosines of the "
            "rows",
            _quality(
                lambda A, B, S, o, t: {
                    "output_cosine": np.sum(o * t) / np.linalg.norm(o) / np.linalg.norm(t)
                }
            ),
        ),
        Mistake(
            "'condition_number' is np.linalg.cond of the matrix: here it is the largest Σ|B| / "
            "|ΣB| of a row",
            _quality(lambda A, B, S, o, t: {"condition_number": np.linalg.cond(A)}),
        ),
        Mistake(
            "'condition_number' is np.linalg.cond of the matrix: here it is the largest Σ|B| / "
            "|ΣB| of a row",
            _quality(lambda A, B, S, o, t: {"condition_number": np.linalg.cond(B)}),
        ),
        Mistake(
            "'condition_number' lacks the absolute value in its denominator: it is Σ|B| / |ΣB|",
            _quality(
                lambda A, B, S, o, t: {
                    "condition_number": np.max(np.abs(B).sum(axis=1) / B.sum(axis=1))
                }
            ),
        ),
        Mistake(
            "'smallest_normalizer' lacks the absolute value",
            _quality(lambda A, B, S, o, t: {"smallest_normalizer": np.min(B.sum(axis=1))}),
        ),
        Mistake(
            "'smallest_normalizer' is computed from A, whose rows add up to 1: compute it from "
            "φ(Q)φ(K)ᵀ",
            _quality(lambda A, B, S, o, t: {"smallest_normalizer": np.min(np.abs(A.sum(axis=1)))}),
        ),
        Mistake(
            "'negative_fraction' is computed before normalising: compute it from A",
            _quality(lambda A, B, S, o, t: {"negative_fraction": np.mean(B < 0)}),
        ),
        Mistake(
            "'negative_fraction' is a count: divide it by the number of entries",
            _quality(lambda A, B, S, o, t: {"negative_fraction": np.sum(A < 0)}),
        ),
    ),
    tolerance=1e-3,
)
