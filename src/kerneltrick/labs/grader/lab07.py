"""Lab 07, graded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs import based
from kerneltrick.labs.grader._lab import Case, Exercise, Given, Growth, Lab, Mistake

Array = np.ndarray[Any, Any]


def _normal(*shape: int, seed: int, size: float = 1.0) -> Array:
    return size * np.random.default_rng([7, seed]).standard_normal(shape)


def _taylor(t: Array) -> Array:
    return 1 + t + t * t / 2


def _normalised(weights: Array, axis: int = 1) -> Array:
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


# ---- taylor_feature_map ----------------------------------------------------------------------
# Judged by inner products. A wrong map is known by the kernel it belongs to, as a function of
# t = q·k/√d, of u = q·k, of the squares s = Σqᵢ²kᵢ²/d, and of d.

WRONG_KERNELS: tuple[tuple[str, Callable[[Array, Array, Array, int], Array]], ...] = (
    (
        "your map gives 1 + t + t²: the second-order term of the series is t²/2, so its features "
        "need the factor 1/√2",
        lambda t, u, s, d: 1 + t + t * t,
    ),
    (
        "your map gives 1 + t + t²/4: the ½ is in φ(q) and again in φ(k), so each of them must "
        "have 1/√2",
        lambda t, u, s, d: 1 + t + t * t / 4,
    ),
    (
        "your map gives 1 + t + ¼[t² + Σq²k²/d]: each product xᵢxⱼ (i < j) stands for two equal "
        "terms, so the cross terms lack √2",
        lambda t, u, s, d: 1 + t + (t * t + s) / 4,
    ),
    (
        "your map gives 1 + t + ½[t² + Σq²k²/d]: squares and cross terms have the same factor; "
        "with each product once, the squares need 1/√2 and the cross terms 1",
        lambda t, u, s, d: 1 + t + (t * t + s) / 2,
    ),
    (
        "your map gives 1 + t + Σq²k²/2d: it has the squares xᵢ² only; t² also needs the products "
        "xᵢxⱼ of different coordinates",
        lambda t, u, s, d: 1 + t + s / 2,
    ),
    (
        "your map gives 1 + t + Σq²k²/d: it has the squares xᵢ² only, and those without 1/√2; t² "
        "also needs the products xᵢxⱼ of different coordinates",
        lambda t, u, s, d: 1 + t + s,
    ),
    (
        "your map gives t + t²/2: the constant feature 1 is missing",
        lambda t, u, s, d: t + t * t / 2,
    ),
    (
        "your map gives t²/2: the constant and the linear features are missing",
        lambda t, u, s, d: t * t / 2,
    ),
    ("your map gives 1 + t: the features of second order are missing", lambda t, u, s, d: 1 + t),
    (
        "your map gives (1 + t)² = 1 + 2t + t²: that is the quadratic kernel of lab 04, not the "
        "series of e^t",
        lambda t, u, s, d: (1 + t) ** 2,
    ),
    (
        "your map is that of t = q·k, without the scale: x must be divided by d^(1/4) first",
        lambda t, u, s, d: _taylor(u),
    ),
    (
        "your map is that of t = q·k/d: you divide x by √d, and φ(q) and φ(k) both do; each needs "
        "the root of √d, d^(1/4)",
        lambda t, u, s, d: _taylor(u / d),
    ),
    (
        "your map gives 1 + t + (q·k)²/2: the linear features are scaled, those of second order "
        "are not; scale x before taking products",
        lambda t, u, s, d: 1 + t + u * u / 2,
    ),
    (
        "your map gives 1 + t + (q·k)²/(2√d): a product xᵢxⱼ needs the scale of both its factors, "
        "1/√d; it has d^(−1/4)",
        lambda t, u, s, d: 1 + t + u * u / (2 * np.sqrt(d)),
    ),
)


def _judge_features(case: Case, answer: Any) -> str | None:
    """What is wrong with features, by their inner products."""
    x = np.asarray(case.arguments[0], dtype=np.float64)
    phi = np.asarray(answer)
    if phi.dtype.kind not in "fiu" or phi.shape[:-1] != x.shape[:-1]:
        n = " × ".join(map(str, x.shape[:-1]))
        return (
            f"φ(x) must be an array (..., n, m) of numbers: {n} rows of features for x of shape "
            f"{x.shape}, not {phi.dtype} of shape {phi.shape}"
        )
    phi, d = phi.astype(np.float64), x.shape[-1]
    found, u = phi @ phi.swapaxes(-1, -2), x @ x.swapaxes(-1, -2)
    t, s = u / np.sqrt(d), (x * x) @ (x * x).swapaxes(-1, -2) / d

    def is_gram(expected: Array) -> bool:
        tolerance = 1e-4 * np.max(np.abs(expected))
        return bool(np.allclose(found, expected, rtol=0, atol=tolerance))

    if is_gram(_taylor(t)):
        return None
    for hint, kernel in WRONG_KERNELS:
        if is_gram(kernel(t, u, s, d)):
            return hint
    i, j = np.unravel_index(np.argmax(np.abs(found - _taylor(t))), found.shape)[-2:]
    at = (0,) * (found.ndim - 2) + (i, j)
    return (
        f"φ(xᵢ)·φ(xⱼ) is {found[at]:.6g} for the rows i = {i}, j = {j} of x; with "
        f"t = xᵢ·xⱼ/√d = {t[at]:.6g} it must be 1 + t + t²/2 = {_taylor(t)[at]:.6g}"
    )


TAYLOR = Exercise(
    "taylor_feature_map",
    cases=(
        Case((_normal(9, 3, seed=1),), about="for x (9, 3)"),
        Case((_normal(6, 5, seed=2).astype(np.float32),), about="for x (6, 5) in float32"),
        Case((_normal(2, 4, 6, seed=3),), about="for x (2, 4, 6), with a batch dimension"),
        Case((_normal(4, 1, seed=4),), about="for d = 1"),
    ),
    judge=_judge_features,
)


# ---- based_weights ---------------------------------------------------------------------------


def _based(
    kernel: Callable[[Array], Array] = _taylor,
    power: float = 0.5,
    input_width: bool = False,
    causal: bool = True,
    axis: int = 1,
) -> Callable[[Array, Array, Array], Array]:
    def answer(x: Array, W_q: Array, W_k: Array) -> Array:
        width = x.shape[1] if input_width else W_q.shape[1]
        weights = kernel((x @ W_q) @ (x @ W_k).T / width**power)
        return _normalised(np.tril(weights) if causal else weights, axis)

    return answer


def _raw_based(x: Array, W_q: Array, W_k: Array) -> Array:
    return np.tril(_taylor((x @ W_q) @ (x @ W_k).T / np.sqrt(W_q.shape[1])))


def _strictly_before(first_row: float) -> Callable[[Array, Array, Array], Array]:
    """Weights of j < i, and this in the first row, which has none."""

    def answer(x: Array, W_q: Array, W_k: Array) -> Array:
        weights = np.full((len(x), len(x)), first_row)
        weights[1:] = _normalised(np.tril(_raw_based(x, W_q, W_k), -1)[1:])
        return weights

    return answer


NOT_ITSELF = "a token does not see itself in your weights: j ≤ i, not j < i"


WEIGHTS = Exercise(
    "based_weights",
    cases=(
        Case(
            (
                _normal(8, 10, seed=11, size=0.5),
                _normal(10, 3, seed=12),
                _normal(10, 3, seed=13),
            ),
            about="for 8 tokens, F = 10, d = 3",
        ),
        Case(
            (
                _normal(12, 6, seed=14, size=0.7),
                _normal(6, 4, seed=15),
                _normal(6, 4, seed=16),
            ),
            about="for 12 tokens, F = 6, d = 4",
        ),
    ),
    mistakes=(
        Mistake(
            "your weights are divided by √F, the width before the projection: the scale is 1/√d "
            "with the width d of q and k",
            _based(input_width=True),
        ),
        Mistake("your t is q·k/d: the scale is 1/√d", _based(power=1.0)),
        Mistake("your t is q·k, without the scale 1/√d", _based(power=0.0)),
        Mistake(
            "your rows spread over the future, too: the weights for j > i must be 0",
            _based(causal=False),
        ),
        Mistake(
            "you normalised first and masked the future then, so rows add up to less than 1: mask "
            "first",
            lambda x, W_q, W_k: np.tril(_based(causal=False)(x, W_q, W_k)),
        ),
        Mistake("your weights are not normalised: each row must add up to 1", _raw_based),
        Mistake(
            "your columns add up to 1: a query is a row, so divide by the sum of its row",
            _based(axis=0),
        ),
        Mistake(NOT_ITSELF, _strictly_before(0.0)),
        Mistake(NOT_ITSELF, _strictly_before(np.nan)),
        Mistake(
            "your weights are those of softmax, e^t: the Taylor layer has 1 + t + t²/2",
            _based(np.exp),
        ),
        Mistake(
            "your weights belong to 1 + t + t²: the ½ of the second order is missing",
            _based(lambda t: 1 + t + t * t),
        ),
        Mistake(
            "your weights belong to (1 + t)²: that is the quadratic kernel, not 1 + t + t²/2",
            _based(lambda t: (1 + t) ** 2),
        ),
        Mistake(
            "your weights are e^(1+t+t²/2), normalised: the softmax on top is one too many, "
            "1 + t + t²/2 takes the place of the exponential",
            _based(lambda t: np.exp(_taylor(t))),
        ),
        Mistake(
            "your keys are projected with W_q: keys have their own projection, W_k",
            lambda x, W_q, W_k: _based()(x, W_q, W_q),
        ),
        Mistake(
            "your queries and keys are exchanged: row i must hold qᵢ·kⱼ, and q = xW_q",
            lambda x, W_q, W_k: _based()(x, W_k, W_q),
        ),
    ),
)


# ---- state_size ------------------------------------------------------------------------------


def _compact(d: int) -> int:
    return (d + 1) * (d + 2) // 2


SIZE = Exercise(
    "state_size",
    cases=(
        Case((16, 64), about="for d = 16, 64 values"),
        Case((8, 5), about="for d = 8, 5 values"),
        Case((16, 64), {"compact": False}, about="for the full map, d = 16, 64 values"),
        Case((3, 7, False), about="for the full map, d = 3, 7 values"),
    ),
    mistakes=(
        Mistake(
            "your count is that of U alone: the state holds Z too, m numbers more",
            lambda d, value_width, compact=True: (
                (_compact(d) if compact else 1 + d + d * d) * value_width
            ),
        ),
        Mistake(
            "you gave Z as many numbers as values have: Z = Σφ(k) has m",
            lambda d, value_width, compact=True: (
                ((_compact(d) if compact else 1 + d + d * d) + 1) * value_width
            ),
        ),
        Mistake(
            "your count has d² features: a constant and d linear ones belong to them, and the "
            "compact map has each product once, (d+1)(d+2)/2 in all",
            lambda d, value_width, compact=True: d * d * (value_width + 1),
        ),
        Mistake(
            "your count of the compact map has d(d−1)/2 products: the d squares xᵢ² are features, "
            "too, m = (d+1)(d+2)/2",
            lambda d, value_width, compact=True: (
                (1 + d + (d * (d - 1) // 2 if compact else d * d)) * (value_width + 1)
            ),
        ),
        Mistake(
            "your count has the products only: a constant and d linear features belong to φ",
            lambda d, value_width, compact=True: (
                (d * (d + 1) // 2 if compact else d * d) * (value_width + 1)
            ),
        ),
        Mistake(
            "your count does not depend on compact: it is that of the full map, 1 + d + d²",
            lambda d, value_width, compact=True: (1 + d + d * d) * (value_width + 1),
        ),
        Mistake(
            "your count does not depend on compact: it is that of the compact map, (d+1)(d+2)/2",
            lambda d, value_width, compact=True: _compact(d) * (value_width + 1),
        ),
        Mistake(
            "your count is that of a state without feature map, d·M + d: the state has a row for "
            "each of the m features",
            lambda d, value_width, compact=True: d * (value_width + 1),
        ),
        Mistake(
            "your count is m, the features alone: U has m rows of value_width numbers",
            lambda d, value_width, compact=True: _compact(d) if compact else 1 + d + d * d,
        ),
    ),
    tolerance=1e-9,
)


# ---- recurrent_attention ---------------------------------------------------------------------


def _start(phi_k: Array, V: Array, state: Any) -> tuple[Array, Array]:
    if state is None:
        return np.zeros((phi_k.shape[1], V.shape[1])), np.zeros(phi_k.shape[1])
    return np.array(state[0], dtype=np.float64), np.array(state[1], dtype=np.float64)


def _recurrent(
    read: Callable[[Array, Array, Array, Array, int], Array], first_read: float | None = None
) -> Callable[..., Any]:
    """The recurrence with another way to read: read(φ(q), φ(k), U, Z, i).

    With `first_read` reading comes before writing, and this is read from an empty memory.
    """

    def answer(phi_q: Array, phi_k: Array, V: Array, state: Any = None) -> Any:
        (U, Z), rows = _start(phi_k, V, state), []
        for i, (q, k, v) in enumerate(zip(phi_q, phi_k, V, strict=True)):
            if first_read is not None:
                empty = np.full(V.shape[1], first_read)
                rows.append(read(q, k, U, Z, i) if Z.any() else empty)
            U, Z = U + np.outer(k, v), Z + k
            if first_read is None:
                rows.append(read(q, k, U, Z, i))
        return np.array(rows), (U, Z)

    return answer


def _ratio(q: Array, k: Array, U: Array, Z: Array, i: int) -> Array:
    return np.asarray(q @ U / (q @ Z))


def _not_accumulated(phi_q: Array, phi_k: Array, V: Array, state: Any = None) -> Any:
    output, (U, _) = _recurrent(lambda q, k, U, Z, i: q @ U / (q @ k))(phi_q, phi_k, V, state)
    return output, (U, phi_k[-1])


def _forgets_U(phi_q: Array, phi_k: Array, V: Array, state: Any = None) -> Any:
    _, Z = _start(phi_k, V, state)
    rows = []
    for q, k, v in zip(phi_q, phi_k, V, strict=True):
        U, Z = np.outer(k, v), Z + k
        rows.append(q @ U / (q @ Z))
    return np.array(rows), (U, Z)


def _at_once(phi_q: Array, phi_k: Array, V: Array, state: Any = None) -> Any:
    U, Z = _start(phi_k, V, state)
    U, Z = U + phi_k.T @ V, Z + phi_k.sum(axis=0)
    return phi_q @ U / (phi_q @ Z)[:, None], (U, Z)


def _right_recurrence(phi_q: Array, phi_k: Array, V: Array, state: Any = None) -> Any:
    return based.recurrent_attention(phi_q, phi_k, V, state)


BEFORE_WRITING = (
    "you read before you write: token i must see itself, so U += φ(kᵢ)vᵢᵀ and Z += φ(kᵢ) come first"
)
PHI = tuple(np.abs(_normal(n, m, seed=s)) + 0.05 for n, m, s in ((7, 4, 21), (7, 4, 22)))
MORE_PHI = tuple(np.abs(_normal(n, m, seed=s)) + 0.05 for n, m, s in ((10, 6, 23), (10, 6, 24)))
PAST = (_normal(4, 3, seed=25), np.abs(_normal(4, seed=26)) + 1.0)


def _long_case(n: int) -> Case:
    phi = np.abs(_normal(n, 4, seed=27)) + 0.05
    return Case((phi, phi[::-1].copy(), _normal(n, 3, seed=28)))


RECURRENT = Exercise(
    "recurrent_attention",
    cases=(
        Case((*PHI, _normal(7, 3, seed=29)), about="for 7 tokens, m = 4, M = 3"),
        Case((*PHI, _normal(7, 3, seed=29), PAST), about="with a state from earlier tokens"),
        Case((*MORE_PHI, _normal(10, 2, seed=30)), about="for 10 tokens, m = 6, M = 2"),
    ),
    mistakes=(
        Mistake(BEFORE_WRITING, _recurrent(_ratio, first_read=0.0)),
        Mistake(BEFORE_WRITING, _recurrent(_ratio, first_read=np.nan)),
        Mistake(
            "your Z is φ(k) of the present token alone: Z adds up over the tokens, as U does",
            _not_accumulated,
        ),
        Mistake(
            "your U is φ(k)vᵀ of the present token alone: U adds up over the tokens, as Z does",
            _forgets_U,
        ),
        Mistake(
            "your output matches linear attention without the normaliser: divide by φ(qᵢ)·Z",
            _recurrent(lambda q, k, U, Z, i: q @ U),
        ),
        Mistake(
            "you divide by the number of tokens: the normaliser is φ(qᵢ)·Z, the sum of the weights",
            _recurrent(lambda q, k, U, Z, i: q @ U / (i + 1)),
        ),
        Mistake(
            "you divide by ΣZ: the normaliser of query i is φ(qᵢ)·Z",
            _recurrent(lambda q, k, U, Z, i: q @ U / Z.sum()),
        ),
        Mistake(
            "you read with φ(kᵢ): the key writes, the query φ(qᵢ) reads",
            _recurrent(lambda q, k, U, Z, i: k @ U / (k @ Z)),
        ),
        Mistake(
            "every output has seen the whole sequence: read inside the loop, when only the tokens "
            "up to i are in U and Z",
            _at_once,
        ),
        Mistake(
            "the given state makes no difference in your function: start from its U and Z",
            lambda phi_q, phi_k, V, state=None: _right_recurrence(phi_q, phi_k, V),
        ),
        Mistake(
            "you return the state from before the last token: return U and Z after all of them",
            lambda phi_q, phi_k, V, state=None: (
                _right_recurrence(phi_q, phi_k, V, state)[0],
                _right_recurrence(phi_q[:-1], phi_k[:-1], V[:-1], state)[1],
            ),
        ),
        Mistake(
            "the state you return leaves out the one that was given: it is the total",
            lambda phi_q, phi_k, V, state=None: (
                _right_recurrence(phi_q, phi_k, V, state)[0],
                _right_recurrence(phi_q, phi_k, V)[1],
            ),
        ),
    ),
    memory=Growth(_long_case),
)


# ---- sliding_window_attention ----------------------------------------------------------------


def _age(n: int) -> Array:
    return np.arange(n)[:, None] - np.arange(n)


def _scores(Q: Array, K: Array, power: float = 0.5) -> Array:
    return np.asarray(Q @ K.T / Q.shape[1] ** power)


def _softmax(scores: Array, kept: Array, masked: float = -np.inf, axis: int = 1) -> Array:
    scores = np.where(kept, scores, masked)
    return _normalised(np.exp(scores - scores.max(axis=axis, keepdims=True)), axis)


def _window(
    kept: Callable[[Array, int], Array] = lambda age, window: (age >= 0) & (age < window),
    power: float = 0.5,
    masked: float = -np.inf,
    axis: int = 1,
) -> Callable[..., Array]:
    def answer(Q: Array, K: Array, V: Array, window: int) -> Array:
        inside = kept(_age(len(V)), window)
        return np.asarray(_softmax(_scores(Q, K, power), inside, masked, axis) @ V)

    return answer


def _masked_late(Q: Array, K: Array, V: Array, window: int) -> Array:
    age = _age(len(V))
    weights = _softmax(_scores(Q, K), np.isfinite(age))
    return np.asarray(np.where((age >= 0) & (age < window), weights, 0) @ V)


def _overflows(Q: Array, K: Array, V: Array, window: int) -> Array:
    age = _age(len(V))
    weights = np.where((age >= 0) & (age < window), np.exp(_scores(Q, K)), 0)
    return np.asarray(_normalised(weights) @ V)


def _not_itself(Q: Array, K: Array, V: Array, window: int) -> Array:
    output = np.zeros((len(Q), V.shape[1]))
    for i in range(1, len(Q)):
        first = max(0, i - window)
        output[i] = _softmax(_scores(Q[i : i + 1], K[first:i]), np.array(True))[0] @ V[first:i]
    return output


def _blocks(n: int, window: int) -> Array:
    i = np.arange(n)
    return np.asarray((i[:, None] // window == i // window) & (_age(n) >= 0))


QKV = (_normal(11, 3, seed=31), _normal(11, 3, seed=32), _normal(11, 4, seed=33))
SMALL_QKV = (_normal(6, 5, seed=34), _normal(6, 5, seed=35), _normal(6, 2, seed=36))

WINDOW = Exercise(
    "sliding_window_attention",
    cases=(
        Case((*QKV, 4), about="for 11 tokens and window 4"),
        Case((*SMALL_QKV, 3), about="for 6 tokens and window 3"),
        Case((*SMALL_QKV, 1), about="for window 1, where every token sees itself only"),
        Case((*QKV, 20), about="for a window longer than the sequence"),
        Case((600 * QKV[0], QKV[1], QKV[2], 4), about="for large scores"),
    ),
    mistakes=(
        Mistake(
            "your window is one token too long: the last `window` tokens, the present one "
            "included, are i − window < j ≤ i",
            _window(lambda age, window: (age >= 0) & (age <= window)),
        ),
        Mistake(
            "your window is one token too short: it has `window` tokens, the present one included",
            _window(lambda age, window: (age >= 0) & (age < max(window - 1, 1))),
        ),
        Mistake(
            "your window reaches into the future: |i − j| < window is not causal, j ≤ i is missing",
            _window(lambda age, window: np.abs(age) < window),
        ),
        Mistake(
            "your window lies in the future: you keep i ≤ j < i + window; mind which index is the "
            "query",
            _window(lambda age, window: (age <= 0) & (-age < window)),
        ),
        Mistake(
            "every token sees the whole past: your output is causal softmax attention without the "
            "window",
            _window(lambda age, window: age >= 0),
        ),
        Mistake(
            "your mask has no effect: the output is softmax attention to all tokens",
            _window(lambda age, window: np.isfinite(age)),
        ),
        Mistake(
            "the masked scores are 0 in your softmax, and e⁰ = 1 is a weight: they must be −inf, "
            "or their weights 0",
            _window(masked=0.0),
        ),
        Mistake(
            "you took the softmax over all tokens and masked then, so the weights of a row add up "
            "to less than 1: mask the scores, before the softmax",
            _masked_late,
        ),
        Mistake(
            "your softmax runs over the queries (axis 0): each row of weights must add up to 1",
            _window(axis=0),
        ),
        Mistake("your scores are q·k, without the scale 1/√d", _window(power=0.0)),
        Mistake("your scores are q·k/d: the scale is 1/√d", _window(power=1.0)),
        Mistake(
            "a token does not see itself: your window ends at i − 1, it must end at i", _not_itself
        ),
        Mistake(
            "exp overflows for large scores: subtract the largest score of each row before exp, "
            "which changes nothing else",
            _overflows,
        ),
        Mistake(
            "your windows are blocks that do not overlap: every token has its own window, which "
            "ends at it",
            lambda Q, K, V, window: _softmax(_scores(Q, K), _blocks(len(V), window)) @ V,
        ),
    ),
)


# ---- windowed_taylor_attention ---------------------------------------------------------------


def _windowed(
    split: Callable[[Array, int], tuple[Array, Array]] = lambda age, window: (
        age >= window,
        (age >= 0) & (age < window),
    ),
    far: Callable[[Array], Array] = _taylor,
    powers: tuple[float, float] = (0.5, 0.5),
) -> Callable[..., Array]:
    """`split` says which keys are in the state and which in the window."""

    def answer(Q: Array, K: Array, V: Array, window: int) -> Array:
        in_state, in_window = split(_age(len(V)), window)
        exact = np.where(in_window, np.exp(_scores(Q, K, powers[1])), 0)
        return np.asarray(
            _normalised(exact + np.where(in_state, far(_scores(Q, K, powers[0])), 0)) @ V
        )

    return answer


def _two_outputs(all_past: bool, factor: float) -> Callable[..., Array]:
    """Each part normalised alone; the state holds all of the past or what is before the window."""

    def answer(Q: Array, K: Array, V: Array, window: int) -> Array:
        age = _age(len(V))
        near = _window()(Q, K, V, window)
        weights = np.where(age >= (0 if all_past else window), _taylor(_scores(Q, K)), 0)
        total = weights.sum(axis=1, keepdims=True)
        both = near + np.divide(weights @ V, total, out=np.zeros_like(near), where=total != 0)
        return np.where(total != 0, factor * both, near)

    return answer


def _shifted_window(Q: Array, K: Array, V: Array, window: int) -> Array:
    age, t = _age(len(V)), _scores(Q, K)
    inside = np.where((age >= 0) & (age < window), t, -np.inf)
    exact = np.exp(inside - inside.max(axis=1, keepdims=True))
    return np.asarray(_normalised(exact + np.where(age >= window, _taylor(t), 0)) @ V)


WINDOWED = Exercise(
    "windowed_taylor_attention",
    cases=(
        Case((*QKV, 4), about="for 11 tokens and window 4"),
        Case((*SMALL_QKV, 2), about="for 6 tokens and window 2"),
        Case((*QKV, 20), about="for a window longer than the sequence"),
    ),
    mistakes=(
        Mistake(
            "the tokens in the window count twice, with e^t and with 1 + t + t²/2: the state must "
            "end where the window begins, at j ≤ i − window",
            _windowed(lambda age, window: (age >= 0, (age >= 0) & (age < window))),
        ),
        Mistake(
            "you average two outputs, each with a normaliser of its own: there is one sum of all "
            "weights, over window and state together",
            _two_outputs(False, 0.5),
        ),
        Mistake(
            "you average the output of the window and that of all the past: there is one sum of "
            "all weights, and each token counts once",
            _two_outputs(True, 0.5),
        ),
        Mistake(
            "you add two outputs, each with a normaliser of its own: there is one sum of all "
            "weights, over window and state together",
            _two_outputs(False, 1.0),
        ),
        Mistake(
            "you add the output of the window and that of all the past: there is one sum of all "
            "weights, and each token counts once",
            _two_outputs(True, 1.0),
        ),
        Mistake(
            "you subtract the largest score inside the window only: e^(t − c) has then another "
            "unit than 1 + t + t²/2; multiply that by e^(−c), too",
            _shifted_window,
        ),
        Mistake(
            "the token j = i − window is in neither part: the window ends before it, so the state "
            "must begin with it",
            _windowed(lambda age, window: (age > window, (age >= 0) & (age < window))),
        ),
        Mistake(
            "the token j = i − window is in both parts: the window is one too long",
            _windowed(lambda age, window: (age >= window, (age >= 0) & (age <= window))),
        ),
        Mistake(
            "your window is one token too long: it has `window` tokens, the present one included",
            _windowed(lambda age, window: (age > window, (age >= 0) & (age <= window))),
        ),
        Mistake(
            "your output is that of the window alone: what came before it is lost",
            _windowed(lambda age, window: (age > len(age), (age >= 0) & (age < window))),
        ),
        Mistake(
            "all weights of your output are 1 + t + t²/2: inside the window they are e^t",
            _windowed(lambda age, window: (age >= 0, age > len(age))),
        ),
        Mistake(
            "all weights of your output are e^t: before the window they are 1 + t + t²/2",
            _windowed(lambda age, window: (age > len(age), age >= 0)),
        ),
        Mistake(
            "the two kinds of weights are exchanged: e^t belongs inside the window",
            _windowed(lambda age, window: ((age >= 0) & (age < window), age >= window)),
        ),
        Mistake(
            "the future has weights, too: j ≤ i is missing",
            _windowed(lambda age, window: (np.abs(age) >= window, np.abs(age) < window)),
        ),
        Mistake(
            "before the window your weights are 1 + t + t²: the ½ is missing",
            _windowed(far=lambda t: 1 + t + t * t),
        ),
        Mistake(
            "before the window your t is q·k, without the scale: both kinds of weights have "
            "t = q·k/√d",
            _windowed(powers=(0.0, 0.5)),
        ),
        Mistake("your t is q·k everywhere, without the scale 1/√d", _windowed(powers=(0.0, 0.0))),
    ),
)


# ---- recall_accuracy -------------------------------------------------------------------------


def _recall(
    answer_of: Callable[..., Array],
    right: Callable[[Array, Array], Any] = lambda found, order: np.mean(found == order),
    first: int = 0,
) -> Callable[..., float]:
    """Recall with another way to answer: answer_of(φ or None, queries, keys, values)."""

    def answer(
        feature_map: Any,
        d: int,
        pairs: int = 64,
        value_width: int = 16,
        sharpness: float = 8.0,
        seeds: int = 20,
    ) -> float:
        shares = []
        for seed in range(first, first + seeds):
            keys, values, order = based.recall_task(pairs, d, value_width, sharpness, seed)
            found = answer_of(feature_map, keys[order], keys, values)
            shares.append(right(found, order))
        return float(np.mean(shares))

    return answer


def _similarities(
    feature_map: Any, queries: Array, keys: Array, power: float = 0.5, mapped: str = "qk"
) -> Array:
    if feature_map is None:
        scores = _scores(queries, keys, power)
        return np.asarray(np.exp(scores - scores.max(axis=1, keepdims=True)))
    q = feature_map(queries) if "q" in mapped else queries
    k = feature_map(keys) if "k" in mapped else keys
    return np.asarray(q @ k.T)


def _nearest(feature_map: Any, queries: Array, keys: Array, values: Array, **how: Any) -> Array:
    read = _similarities(feature_map, queries, keys, **how) @ values
    return np.asarray(np.argmax(read @ values.T, axis=1))


def _nearest_key(feature_map: Any, queries: Array, keys: Array, values: Array) -> Array:
    return np.asarray(np.argmax(_similarities(feature_map, queries, keys), axis=1))


def _largest_coordinate(feature_map: Any, queries: Array, keys: Array, values: Array) -> Array:
    return np.asarray(np.argmax(_similarities(feature_map, queries, keys) @ values, axis=1))


def _first_seed(feature_map: Any, d: int, *rest: Any, **options: Any) -> float:
    arguments = dict(zip(("pairs", "value_width", "sharpness", "seeds"), rest, strict=False))
    return _recall(_nearest)(feature_map, d, **{**arguments, **options, "seeds": 1})


RECALL = Exercise(
    "recall_accuracy",
    cases=(
        Case((Given("identity"), 12, 20, 6, 4.0, 5), about="for φ(x) = x, d = 12"),
        Case((None, 4, 24, 5, 3.0, 6), about="for softmax attention, d = 4"),
        Case(
            (Given("exp"), 6),
            {"pairs": 12, "value_width": 5, "sharpness": 6.0, "seeds": 7},
            about="for φ(x) = eˣ, d = 6",
        ),
        Case((Given("relu"), 5, 10, 8, 9.0, 7), about="for φ(x) = max(0, x), d = 5"),
        Case((None, 3, 40, 6, 5.0, 4), about="for softmax attention, d = 3"),
    ),
    mistakes=(
        Mistake(
            "you look for the key that is nearest to the query: that needs all the keys. Read "
            "φ(q)ᵀU, and look for the value that is nearest to what was read",
            _recall(_nearest_key),
        ),
        Mistake(
            "your answer is the largest coordinate of what was read: it is the number of the "
            "stored value with the largest inner product with it",
            _recall(_largest_coordinate),
        ),
        Mistake(
            "you compare the answers with 0, 1, 2, …: query i asks for the pair order[i]",
            _recall(_nearest, lambda found, order: np.mean(found == np.arange(len(order)))),
        ),
        Mistake(
            "your queries go into the memory without φ: both φ(q) and φ(k) are needed",
            _recall(lambda *data: _nearest(*data, mapped="k")),
        ),
        Mistake(
            "your keys go into the memory without φ: both φ(q) and φ(k) are needed",
            _recall(lambda *data: _nearest(*data, mapped="q")),
        ),
        Mistake(
            "there is no feature map in your memory: it is Σkvᵀ, it must be Σφ(k)vᵀ",
            _recall(lambda *data: _nearest(*data, mapped="")),
        ),
        Mistake(
            "with feature_map=None your softmax lacks the scale 1/√d",
            _recall(lambda *data: _nearest(*data, power=0.0)),
        ),
        Mistake(
            "with feature_map=None your memory is Σkvᵀ: it must be softmax attention to all keys",
            _recall(lambda phi, *data: _nearest(phi or based.identity, *data)),
        ),
        Mistake("your answer is that of the first seed alone: average over all", _first_seed),
        Mistake("your seeds begin with 1: they are 0, 1, … seeds − 1", _recall(_nearest, first=1)),
        Mistake(
            "your answer is the number of right answers: divide by the number of pairs",
            _recall(_nearest, lambda found, order: np.sum(found == order)),
        ),
        Mistake(
            "your answer is the share of wrong answers",
            _recall(_nearest, lambda found, order: np.mean(found != order)),
        ),
    ),
)

LAB = Lab(
    number="07",
    folder="lab07_based",
    title="Based and recurrent memory",
    reference=based,
    exercises=(TAYLOR, WEIGHTS, SIZE, RECURRENT, WINDOW, WINDOWED, RECALL),
)
