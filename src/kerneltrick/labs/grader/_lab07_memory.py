"""Lab 07: cases and common mistakes of a memory that is written and read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs import based
from kerneltrick.labs.grader._lab import Case, Exercise, Given, Growth, Mistake
from kerneltrick.labs.grader._lab07 import Array, normal, scaled_scores
from kerneltrick.labs.grader._pieces import EPSILONS


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


def _plus(epsilon: float) -> Callable[[Array, Array, Array, Array, int], Array]:
    return lambda q, k, U, Z, i: np.asarray(q @ U / (q @ Z + epsilon))


def _at_least(epsilon: float) -> Callable[[Array, Array, Array, Array, int], Array]:
    return lambda q, k, U, Z, i: np.asarray(q @ U / np.maximum(q @ Z, epsilon))


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
PHI = tuple(np.abs(normal(n, m, seed=s)) + 0.05 for n, m, s in ((7, 4, 21), (7, 4, 22)))
MORE_PHI = tuple(np.abs(normal(n, m, seed=s)) + 0.05 for n, m, s in ((10, 6, 23), (10, 6, 24)))
PAST = (normal(4, 3, seed=25), np.abs(normal(4, seed=26)) + 1.0)


def _long_case(n: int) -> Case:
    phi = np.abs(normal(n, 4, seed=27)) + 0.05
    return Case((phi, phi[::-1].copy(), normal(n, 3, seed=28)))


RECURRENT = Exercise(
    "recurrent_attention",
    cases=(
        Case((*PHI, normal(7, 3, seed=29)), about="for 7 tokens, m = 4, M = 3"),
        Case((*PHI, normal(7, 3, seed=29), PAST), about="with a state from earlier tokens"),
        Case((*MORE_PHI, normal(10, 2, seed=30)), about="for 10 tokens, m = 6, M = 2"),
        Case(
            (1e-8 * PHI[0], 1e-8 * PHI[1], normal(7, 3, seed=29)),
            about="for tiny features",
            edge=True,
        ),
        Case((-PHI[0], PHI[1], normal(7, 3, seed=29)), about="where φ(q)·Z is negative", edge=True),
    ),
    mistakes=(
        Mistake(BEFORE_WRITING, _recurrent(_ratio, first_read=0.0)),
        Mistake(BEFORE_WRITING, _recurrent(_ratio, first_read=np.nan)),
        Mistake(
            "your Z is φ(k) of the current token only: Z is a sum over the tokens, like U",
            _not_accumulated,
        ),
        Mistake(
            "your U is φ(k)vᵀ of the current token only: U is a sum over the tokens, like Z",
            _forgets_U,
        ),
        Mistake(
            "your output matches linear attention without the normaliser: divide by φ(qᵢ)·Z",
            _recurrent(lambda q, k, U, Z, i: q @ U),
        ),
        Mistake(
            "you divide by |φ(qᵢ)·Z|: if the normaliser is negative, the output has the wrong "
            "sign. Divide by φ(qᵢ)·Z as it is",
            _recurrent(lambda q, k, U, Z, i: q @ U / np.abs(q @ Z)),
        ),
        *(
            Mistake(
                f"a small number ({name}) in the normaliser changes the output where weights are "
                "small: divide by φ(qᵢ)·Z alone",
                _recurrent(_plus(float(name))),
            )
            for name in EPSILONS
        ),
        *(
            Mistake(
                f"the normaliser is kept above {name}: where it is smaller, or negative, the "
                "output is wrong. Divide by φ(qᵢ)·Z as it is",
                _recurrent(_at_least(float(name))),
            )
            for name in EPSILONS
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
            "every output has seen the whole sequence: read inside the loop, when U and Z contain "
            "only the tokens up to i",
            _at_once,
        ),
        Mistake(
            "your function ignores the given state: start from its U and Z",
            lambda phi_q, phi_k, V, state=None: _right_recurrence(phi_q, phi_k, V),
        ),
        Mistake(
            "you return the state before the last token: return U and Z after all tokens",
            lambda phi_q, phi_k, V, state=None: (
                _right_recurrence(phi_q, phi_k, V, state)[0],
                _right_recurrence(phi_q[:-1], phi_k[:-1], V[:-1], state)[1],
            ),
        ),
        Mistake(
            "the state you return does not contain the given state: return the total",
            lambda phi_q, phi_k, V, state=None: (
                _right_recurrence(phi_q, phi_k, V, state)[0],
                _right_recurrence(phi_q, phi_k, V)[1],
            ),
        ),
    ),
    memory=Growth(_long_case),
)


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
        scores = scaled_scores(queries, keys, power)
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
            "you search for the key nearest to the query, which needs all the keys. Read φ(q)ᵀU "
            "and find the value nearest to it",
            _recall(_nearest_key),
        ),
        Mistake(
            "your answer is the largest coordinate of the vector you read: the answer is the "
            "number of the stored value that has the largest inner product with that vector",
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
            "there is no feature map in your memory: it is Σkvᵀ, but it must be Σφ(k)vᵀ",
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
        Mistake("your answer uses only the first seed: average over all seeds", _first_seed),
        Mistake("your seeds start at 1: they are 0, 1, … seeds − 1", _recall(_nearest, first=1)),
        Mistake(
            "your answer is the number of right answers: divide by the number of pairs",
            _recall(_nearest, lambda found, order: np.sum(found == order)),
        ),
        Mistake(
            "your answer is the share of wrong answers: return the share of right ones",
            _recall(_nearest, lambda found, order: np.mean(found != order)),
        ),
    ),
)
