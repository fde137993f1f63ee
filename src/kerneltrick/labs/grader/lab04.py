"""How lab 04 is graded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kerneltrick.labs import quadratic_kernel
from kerneltrick.labs.grader._lab import Case, Exercise, Growth, Lab, Mistake
from kerneltrick.labs.grader._lab04_maps import features, judge_quadratic, judge_square
from kerneltrick.labs.grader._lab04_similarity import CONDITIONS, FACTORISES
from kerneltrick.labs.grader._pieces import EPSILONS, Array, softmax

_RNG = np.random.default_rng([4, 1])


def _normal(*shape: int) -> Array:
    return _RNG.standard_normal(shape)


# --- the kernel and its maps ------------------------------------------------------------------

KERNEL = Exercise(
    "quadratic_kernel",
    cases=(
        Case((_normal(5, 3), _normal(7, 3))),
        Case((_normal(4, 2), _normal(4, 2)), {"constant": 0.5}, about="for constant=0.5"),
        Case((_normal(3, 4), _normal(6, 4)), {"constant": 0.0}, about="for constant=0, (q·k)²"),
        Case((_normal(5, 1), _normal(2, 1)), {"constant": 3.0}, about="for constant=3, d = 1"),
    ),
    mistakes=(
        Mistake(
            "your matrix is (q·k + 1)² whatever `constant` is",
            lambda Q, K, constant=1.0: (Q @ K.T + 1) ** 2,
        ),
        Mistake(
            "your matrix is (q·k)²: the constant is missing",
            lambda Q, K, constant=1.0: (Q @ K.T) ** 2,
        ),
        Mistake(
            "your matrix is q·k + c: it is not squared",
            lambda Q, K, constant=1.0: Q @ K.T + constant,
        ),
        Mistake(
            "your matrix is (q·k)² + c: add the constant before squaring",
            lambda Q, K, constant=1.0: (Q @ K.T) ** 2 + constant,
        ),
        Mistake(
            "your matrix is (q·k)² + c²: the middle term 2c·q·k of the square is missing",
            lambda Q, K, constant=1.0: (Q @ K.T) ** 2 + constant**2,
        ),
        Mistake(
            "your matrix is (q·k)² + c·q·k + c²: the middle term of the square is 2c·q·k",
            lambda Q, K, constant=1.0: (Q @ K.T) ** 2 + constant * (Q @ K.T) + constant**2,
        ),
        Mistake(
            "your matrix is Σqᵢ²kᵢ² + c: the square belongs around the whole sum, (Σqᵢkᵢ + c)²",
            lambda Q, K, constant=1.0: Q**2 @ (K**2).T + constant,
        ),
        Mistake(
            "your matrix is (q·k/√d + c)²: there is no 1/√d in this kernel",
            lambda Q, K, constant=1.0: (Q @ K.T / np.sqrt(Q.shape[1]) + constant) ** 2,
        ),
    ),
)

MAP_CASES = (
    Case((_normal(12, 3),)),
    Case((_normal(20, 5),), about="for d = 5"),
    Case((_normal(6, 2),), about="for d = 2"),
    Case((_normal(4, 1),), about="for d = 1, without cross terms"),
)


# --- attention --------------------------------------------------------------------------------


def _by(Q: Array, K: Array, V: Array, similarity: Callable[[Array, Array], Array]) -> Array:
    S = similarity(Q, K)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(S @ V / S.sum(axis=1, keepdims=True))


def _sim(Q: Array, K: Array) -> Array:
    return np.asarray((Q @ K.T + 1) ** 2)


def _by_columns(Q: Array, K: Array, V: Array) -> Array:
    S = _sim(Q, K)
    with np.errstate(invalid="ignore"):
        return np.asarray(S / S.sum(axis=0) @ V)


def _tokens(n: int, d: int, width: int, keys: int | None = None) -> tuple[Array, Array, Array]:
    keys = n if keys is None else keys
    return _normal(n, d), _normal(keys, d), _normal(keys, width)


def _tiny_similarities() -> tuple[Array, Array, Array]:
    """q·k + 1 is 2⁻²² times 1, 2, 3, 4: exact, also in float32."""
    K = 1 - 2.0**-22 * np.arange(1.0, 5.0)[:, None]
    return np.array([[-1.0]]), K, np.array([[4.0, 1.0], [-2.0, 3.0], [5.0, 0.0], [1.0, -6.0]])


def _with_epsilon(epsilon: float) -> Callable[[Array, Array, Array], Array]:
    def answer(Q: Array, K: Array, V: Array) -> Array:
        S = _sim(Q, K)
        return np.asarray(S @ V / (S.sum(axis=1, keepdims=True) + epsilon))

    return answer


def _refusing_small(bound: float) -> Callable[[Array, Array, Array], Array]:
    def answer(Q: Array, K: Array, V: Array) -> Array:
        total = _sim(Q, K).sum(axis=1, keepdims=True)
        if np.any(total < bound):
            raise ZeroDivisionError
        return np.asarray(_sim(Q, K) @ V / total)

    return answer


BY_KERNEL = Exercise(
    "attention_by_kernel",
    cases=(
        Case(_tokens(8, 3, 3)),
        Case(_tokens(6, 2, 5), about="for values of another width"),
        Case(_tokens(5, 4, 2, keys=9), about="for more keys than queries"),
        Case(_tiny_similarities(), about="for similarities of about 1e-12", edge=True),
        Case(
            (np.array([[2.0], [1.0]]), np.array([[-1.0], [-1.0]]), np.array([[3.0], [4.0]])),
            about="for a query with q·k = −1 for every key",
            raises=ZeroDivisionError,
        ),
    ),
    mistakes=(
        Mistake(
            "your output matches attention without the normaliser: divide row i by Σⱼ (qᵢ·kⱼ + 1)²",
            lambda Q, K, V: _sim(Q, K) @ V,
        ),
        Mistake(
            "your output matches similarities divided by the sums of their columns: the weights of "
            "one query form a row, and the row must add up to 1",
            _by_columns,
        ),
        Mistake(
            "your output matches a softmax on top of the similarities: they already are the "
            "weights; divide them by their sum, without exp",
            lambda Q, K, V: softmax(_sim(Q, K)) @ V,
        ),
        Mistake(
            "your output matches softmax((q·k + 1)²/√d)V: there is no softmax and no 1/√d here",
            lambda Q, K, V: softmax(_sim(Q, K) / np.sqrt(Q.shape[1])) @ V,
        ),
        Mistake(
            "your output matches similarities multiplied by 1/√d instead of being divided by their "
            "sum",
            lambda Q, K, V: _sim(Q, K) @ V / np.sqrt(Q.shape[1]),
        ),
        Mistake(
            "your output matches softmax attention: the similarity here is (q·k + 1)²",
            lambda Q, K, V: softmax(Q @ K.T / np.sqrt(Q.shape[1])) @ V,
        ),
        Mistake(
            "your output matches attention with (q·k/√d + 1)²: there is no 1/√d here",
            lambda Q, K, V: _by(Q, K, V, lambda q, k: (q @ k.T / np.sqrt(q.shape[1]) + 1) ** 2),
        ),
        Mistake(
            "your output matches attention with (q·k)²: the constant 1 is missing",
            lambda Q, K, V: _by(Q, K, V, lambda q, k: (q @ k.T) ** 2),
        ),
        Mistake(
            "your output matches attention with q·k + 1: the square is missing",
            lambda Q, K, V: _by(Q, K, V, lambda q, k: q @ k.T + 1),
        ),
        *(
            Mistake(
                f"a small number ({name}) in the denominator hides 0/0 and changes the output "
                "where similarities are small: divide by their sum alone, and raise "
                "ZeroDivisionError where it is 0",
                _with_epsilon(float(name)),
            )
            for name in EPSILONS[:-1]
        ),
        *(
            Mistake(
                f"a sum below {name} is taken for 0: only a sum of exactly 0 has no output",
                _refusing_small(float(name)),
            )
            for name in EPSILONS[:-2]
        ),
        Mistake(
            "0/0 is returned as NaN: test the sums for 0 and raise ZeroDivisionError",
            lambda Q, K, V: _by(Q, K, V, _sim),
        ),
    ),
)


def _map_mistakes(attend: Callable[[Array, Array, Array], Array]) -> tuple[Mistake, ...]:
    """Attention with a wrong map; attend(phi_Q, phi_K, V) is the rest of the exercise."""

    def answer(**factors: float) -> Callable[..., Array]:
        return lambda Q, K, V: attend(features(Q, **factors), features(K, **factors), V)

    output = "your output matches attention with"
    return (
        Mistake(f"{output} a map whose cross terms lack √2: mend quadratic_map", answer(cross=1.0)),
        Mistake(
            f"{output} a map whose linear terms lack √2: mend quadratic_map", answer(linear=1.0)
        ),
        Mistake(
            f"{output} a map without any √2: mend quadratic_map", answer(linear=1.0, cross=1.0)
        ),
        Mistake(f"{output} a map without the constant 1: mend quadratic_map", answer(constant=0.0)),
        Mistake(
            f"{output} (q·k)², the kernel of square_map: use quadratic_map",
            answer(constant=0.0, linear=0.0),
        ),
    )


def _linear_heads(phi_Q: Array, phi_K: Array, V: Array) -> Array:
    return np.asarray(phi_Q @ (phi_K.T @ V) / (phi_Q @ phi_K.sum(axis=0))[:, None])


def _featured(
    attend: Callable[[Array, Array, Array], Array],
) -> Callable[[Array, Array, Array], Array]:
    return lambda Q, K, V: attend(features(Q), features(K), V)


def _same_token(phi_Q: Array, phi_K: Array, V: Array) -> Array:
    n = min(len(phi_Q), len(phi_K))
    own = np.resize(np.sum(phi_Q[:n] * phi_K[:n], axis=1), len(phi_Q))
    return np.asarray(phi_Q @ (phi_K.T @ V) / own[:, None])


def _growing(n: int) -> Case:
    Q, K, V = quadratic_kernel.random_inputs(n, d=3, width=4)
    return Case((Q, K, V))


BY_FEATURES = Exercise(
    "attention_by_features",
    cases=(
        Case(_tokens(10, 3, 3)),
        Case(_tokens(7, 2, 5), about="for values of another width"),
        Case(_tokens(5, 4, 2, keys=12), about="for more keys than queries"),
        Case(_tokens(6, 1, 3), about="for d = 1"),
    ),
    mistakes=(
        Mistake(
            "your output matches attention without the normaliser: divide row i by φ(qᵢ)ᵀZ",
            _featured(lambda q, k, V: q @ (k.T @ V)),
        ),
        Mistake(
            "your output matches a normaliser with Z = Σφ(q): Z is the sum over the keys, Z = Σⱼ "
            "φ(kⱼ)",
            _featured(lambda q, k, V: q @ (k.T @ V) / (q @ q.sum(axis=0))[:, None]),
        ),
        Mistake(
            "your output matches a normaliser φ(qᵢ)·φ(kᵢ) of the token's own key: divide by "
            "φ(qᵢ)ᵀZ, where Z is the sum over all keys",
            _featured(_same_token),
        ),
        Mistake(
            "your output matches U divided by Z feature by feature: multiply both by φ(q) first, "
            "then divide the results",
            _featured(lambda q, k, V: q @ (k.T @ V / k.sum(axis=0)[:, None])),
        ),
        Mistake(
            "your output matches attention with φ(x) = x: use quadratic_map on Q and on K",
            lambda Q, K, V: _linear_heads(Q, K, V),
        ),
        Mistake(
            "your output matches softmax attention: the similarity here is (q·k + 1)²",
            lambda Q, K, V: softmax(Q @ K.T / np.sqrt(Q.shape[1])) @ V,
        ),
        *_map_mistakes(_linear_heads),
    ),
    memory=Growth(
        _growing,
        hint="this forms an n×n array: peak memory grows as n². Take φ(K)ᵀV first, (m, M)",
    ),
)


def _causal(
    phi_Q: Array,
    phi_K: Array,
    V: Array,
    U_seen: Callable[[Array], Array] = np.tril,
    Z_seen: Callable[[Array], Array] = np.tril,
) -> Array:
    """Attention with the similarities that count for U, and those that count for Z."""
    S = phi_Q @ phi_K.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(U_seen(S) @ V / Z_seen(S).sum(axis=1, keepdims=True))


def _seen(
    U_seen: Callable[[Array], Array], Z_seen: Callable[[Array], Array]
) -> Callable[[Array, Array, Array], Array]:
    return _featured(lambda q, k, V: _causal(q, k, V, U_seen, Z_seen))


def _all(S: Array) -> Array:
    return S


def _before(S: Array) -> Array:
    return np.tril(S, -1)


def _nothing_at_first(
    attend: Callable[[Array, Array, Array], Array],
) -> Callable[[Array, Array, Array], Array]:
    return lambda Q, K, V: np.concatenate([np.zeros((1, V.shape[1])), attend(Q, K, V)[1:]])


CAUSAL = Exercise(
    "causal_attention_by_features",
    cases=(
        Case(_tokens(9, 3, 3)),
        Case(_tokens(7, 2, 5), about="for values of another width"),
        Case(_tokens(8, 1, 2), about="for d = 1"),
        Case(_tokens(1, 3, 2), about="for one token"),
    ),
    mistakes=(
        Mistake(
            "your output matches attention that is not causal: U and Z must grow token by token, "
            "and row i must read them after token i",
            _seen(_all, _all),
        ),
        Mistake(
            "your output matches sums over j < i: the state is read before the token is added to "
            "it. Token i sees itself: add first, then read",
            _seen(_before, _before),
        ),
        Mistake(
            "your output matches sums over j < i, with 0 for the first token: the state is read "
            "before the token is added to it. Token i sees itself: add first, then read",
            _nothing_at_first(_seen(_before, _before)),
        ),
        Mistake(
            "your output matches a U that is read before the token is added to it, and a Z that is "
            "read after: token i sees itself in both, so add first, then read",
            _seen(_before, np.tril),
        ),
        Mistake(
            "your output matches a Z that is read before the token is added to it, and a U that is "
            "read after: token i sees itself in both, so add first, then read",
            _seen(np.tril, _before),
        ),
        Mistake(
            "your output matches a causal U with the Z of all keys: the normaliser grows token by "
            "token too",
            _seen(np.tril, _all),
        ),
        Mistake(
            "your output matches a causal Z with the U of all keys: U grows token by token too",
            _seen(_all, np.tril),
        ),
        Mistake(
            "your output matches sums over j ≥ i: token i sees the past, j ≤ i",
            _seen(np.triu, np.triu),
        ),
        Mistake(
            "your output matches attention without the normaliser: divide row i by φ(qᵢ)ᵀZᵢ",
            _featured(lambda q, k, V: np.tril(q @ k.T) @ V),
        ),
        Mistake(
            "your output matches only the newest token (U is replaced, not added to): every row is "
            "its own value",
            lambda Q, K, V: V,
        ),
        *_map_mistakes(_causal),
    ),
    memory=Growth(
        _growing,
        hint="this forms an n×n array: peak memory grows as n². Carry U and Z from token to token",
    ),
)


# --- costs ------------------------------------------------------------------------------------


def _count(m: Callable[[int], float]) -> Callable[[int, int, int], float]:
    return lambda n, D, M: 2 * n * m(D) * M


def _m(D: int) -> int:
    return (D + 1) * (D + 2) // 2


COUNT = Exercise(
    "quadratic_multiply_adds",
    cases=tuple(Case(sizes) for sizes in ((1000, 32, 80), (7, 3, 3), (4096, 64, 64), (50, 1, 5))),
    mistakes=(
        Mistake(
            "your count has m = D², all pairs without the linear terms: (q·k + 1)² needs "
            "m = (D+1)(D+2)/2",
            _count(lambda D: D * D),
        ),
        Mistake(
            "your count has m = D² + D + 1, with every cross term twice: m = (D+1)(D+2)/2",
            _count(lambda D: D * D + D + 1),
        ),
        *(
            Mistake(
                "your count has m = D²/2, only the leading term: exactly, m = (D+1)(D+2)/2",
                _count(m),
            )
            for m in (lambda D: D * D / 2, lambda D: D * D // 2)
        ),
        Mistake(
            "your count has m = D(D+1)/2 + D, without the constant feature 1: m = (D+1)(D+2)/2",
            _count(lambda D: D * (D + 1) // 2 + D),
        ),
        Mistake(
            "your count has m = D(D+1)/2, the features of (q·k)²: (q·k + 1)² has (D+1)(D+2)/2",
            _count(lambda D: D * (D + 1) // 2),
        ),
        Mistake(
            "your count has m = D + 1: that is the map of q·k + 1, without the square",
            _count(lambda D: D + 1),
        ),
        Mistake(
            "your count has m = D: φ turns D coordinates into (D+1)(D+2)/2 features",
            _count(lambda D: D),
        ),
        Mistake(
            "you counted only one of the two products: U = φ(K)ᵀV and φ(Q)U take n·m·M each",
            lambda n, D, M: n * _m(D) * M,
        ),
        Mistake(
            "you used D, but the values have M coordinates: U is (m, M)",
            lambda n, D, M: 2 * n * _m(D) * D,
        ),
        Mistake(
            "you counted nested loops, n²·m·M: U is computed once, not for every query",
            lambda n, D, M: n * n * _m(D) * M,
        ),
        Mistake(
            "your count includes Z, 2·n·m·(M + 1): count only the two products U and φ(Q)U",
            lambda n, D, M: 2 * n * _m(D) * (M + 1),
        ),
        Mistake("you counted softmax attention, n²(D + M)", lambda n, D, M: n * n * (D + M)),
    ),
    tolerance=1e-9,
)

CROSSOVER = Exercise(
    "crossover",
    cases=tuple(Case(sizes) for sizes in ((32, 80), (16, 16), (64, 8), (3, 100), (1, 1))),
    mistakes=(
        Mistake(
            "your length is the point of equal counts, rounded down: return the smallest n at "
            "which the quadratic count is smaller",
            lambda D, M: 2 * _m(D) * M // (D + M),
        ),
        Mistake(
            "your length is rounded up, which is one too few if the counts are equal at a whole n "
            "(D = M): equal is not fewer",
            lambda D, M: -(-2 * _m(D) * M // (D + M)),
        ),
        Mistake(
            "your length is not rounded: n is a whole number of tokens",
            lambda D, M: 2 * _m(D) * M / (D + M),
        ),
        Mistake(
            "your length is m = (D+1)(D+2)/2 whatever M is: that is the point of equal counts only "
            "for M = D",
            lambda D, M: _m(D),
        ),
        Mistake(
            "your length is m + 1 whatever M is: that is right only for M = D",
            lambda D, M: _m(D) + 1,
        ),
        Mistake(
            "your length is D²/2: that is a rule of thumb for M = D, not the exact count",
            lambda D, M: D * D // 2,
        ),
        Mistake(
            "your length has m = D²: (q·k + 1)² needs m = (D+1)(D+2)/2",
            lambda D, M: 2 * D * D * M // (D + M) + 1,
        ),
        Mistake(
            "your length has m = D²/2, only the leading term: exactly, m = (D+1)(D+2)/2",
            lambda D, M: D * D * M // (D + M) + 1,
        ),
        Mistake(
            "your length uses only one of the two products, n·m·M",
            lambda D, M: _m(D) * M // (D + M) + 1,
        ),
    ),
    tolerance=1e-9,
)

LAB = Lab(
    number="04",
    folder="lab04_quadratic_kernel",
    title="The quadratic kernel",
    reference=quadratic_kernel,
    exercises=(
        CONDITIONS,
        FACTORISES,
        KERNEL,
        Exercise("square_map", cases=MAP_CASES, judge=judge_square),
        Exercise("quadratic_map", cases=MAP_CASES, judge=judge_quadratic),
        BY_KERNEL,
        BY_FEATURES,
        CAUSAL,
        COUNT,
        CROSSOVER,
    ),
)
