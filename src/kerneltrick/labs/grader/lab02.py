"""How lab 02 is graded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs import kernel_trick
from kerneltrick.labs.grader._lab import Case, Exercise, Given, Growth, Lab, Mistake
from kerneltrick.labs.grader._pieces import EPSILONS, Array, FeatureMap, elu, softmax

_rng = np.random.default_rng(202)


def _tensors(n: int, d: int, width: int, dtype: Any = np.float64) -> tuple[Array, Array, Array]:
    q, k = _rng.standard_normal((2, n, d)).astype(dtype)
    return q, k, _rng.standard_normal((n, width)).astype(dtype)


_ROWS = _rng.uniform(-3, 3, (6, 4))
_BATCH = _rng.uniform(-3, 3, (2, 3, 4))


def _two_loops(x: Array) -> Array:
    n, d = x.shape  # ValueError for a batch
    return np.array([[x[i, j] + 1 if x[i, j] > 0 else np.exp(x[i, j]) for j in range(d)]
                     for i in range(n)])  # fmt: skip


ELU_CASES = (
    Case((_ROWS,)),
    Case((_BATCH,), about="for an array (2, 3, 4)"),
    Case((np.zeros((1, 3)),), about="at 0"),
    Case((np.full((1, 2), -20, np.float32),), about="far below 0, in float32"),
    Case((np.full((1, 2), -40.0),), about="far below 0"),
    Case((np.array([[100.0, 1000.0]], np.float32),), about="for large x"),
)

ELU_MISTAKES = (
    Mistake(
        "you compute ELU as (eˣ − 1) + 1, which is 0 below −17.3 in float32: write the branch as "
        "eˣ",
        lambda x: elu(x) + x.dtype.type(1),
    ),
    Mistake("your output matches ELU without the + 1: it is negative below 0", elu),
    Mistake(
        "the + 1 is missing above 0: the branch there is x + 1, so that both branches meet at 1",
        lambda x: np.where(x > 0, x, np.exp(x)),
    ),
    Mistake(
        "your output matches softplus, log(1 + eˣ): ELU + 1 is x + 1 above 0, and eˣ below",
        lambda x: np.logaddexp(0, x),
    ),
    Mistake(
        "your output matches softplus, log(1 + eˣ), which overflows for large x: ELU + 1 is x + 1 "
        "above 0, and eˣ below",
        lambda x: np.log(1 + np.exp(x)),
    ),
    Mistake(
        "the branch below 0 is e⁻ˣ, which grows: it must be eˣ",
        lambda x: np.where(x > 0, x + 1, np.exp(-x)),
    ),
    Mistake(
        "your output matches e⁻ˣ everywhere: it must be x + 1 above 0, and eˣ below",
        lambda x: np.exp(-x),
    ),
    Mistake("your output matches ReLU + 1: below 0 it must be eˣ", lambda x: np.maximum(x, 0) + 1),
    Mistake("your output matches eˣ everywhere: above 0 it must be x + 1", np.exp),
    Mistake("your output matches ReLU(x)", lambda x: np.maximum(x, 0)),
    Mistake(
        "your output is x itself: below 0 it must be eˣ, and above 0 it must be x + 1", lambda x: x
    ),
    Mistake("your output matches x + 1 everywhere: below 0 it must be eˣ", lambda x: x + 1),
    Mistake(
        "the branches are swapped: x + 1 belongs above 0, and eˣ below",
        lambda x: np.where(x > 0, np.exp(x), x + 1),
    ),
    Mistake(
        "NaN for large x: multiplying the overflowing eˣ by a mask gives inf·0; use np.where",
        lambda x: (x > 0) * (x + 1) + (x <= 0) * np.exp(x),
    ),
    Mistake(
        "your loops run over two axes: x may have batch dimensions in front, (..., n, d); "
        "np.where takes any shape",
        _two_loops,
    ),
)


def _standard(score: Callable[[Array, Array], Array]) -> Callable[..., tuple[Array, Array]]:
    def answer(Q: Array, K: Array, V: Array) -> tuple[Array, Array]:
        weights = score(Q, K)
        return weights @ V, weights

    return answer


def _root(Q: Array) -> float:
    return float(np.sqrt(Q.shape[-1]))


_STANDARD = Exercise(
    "standard_attention_order",
    cases=(
        Case(
            (
                np.array([[1.0, 0.0], [2.0, 1.0]]),
                np.array([[1.0, 2.0], [3.0, 4.0]]),
                np.array([[1.0], [10.0]]),
            )
        ),
        Case(_tensors(7, 3, 3)),
        Case(_tensors(5, 4, 6), about="for values of another width"),
        Case(_tensors(6, 6, 6), about="for n = d"),
        Case(_tensors(40, 16, 16, np.float32), about="in float32"),
    ),
    mistakes=(
        Mistake(
            "you apply a softmax: there is none here",
            _standard(lambda Q, K: softmax(Q @ K.T)),
        ),
        Mistake(
            "you apply a softmax with the scale 1/√d: there is neither here",
            _standard(lambda Q, K: softmax(Q @ K.T / _root(Q))),
        ),
        Mistake(
            "the scores are divided by √d: there is no scale here",
            _standard(lambda Q, K: Q @ K.T / _root(Q)),
        ),
        Mistake(
            "the weights are KQᵀ: rows belong to queries, so they must be QKᵀ",
            _standard(lambda Q, K: K @ Q.T),
        ),
        Mistake(
            "the weights are divided by their row sums: there is no normaliser here",
            _standard(lambda Q, K: Q @ K.T / (Q @ K.T).sum(axis=1, keepdims=True)),
        ),
        Mistake(
            "the weights are right, but the output is not: it must be weights @ V",
            lambda Q, K, V: ((Q @ K.T).T @ V, Q @ K.T),
        ),
        Mistake(
            "you return only the output: return the weights as well", lambda Q, K, V: Q @ K.T @ V
        ),
        Mistake("the output and the weights are swapped", lambda Q, K, V: (Q @ K.T, Q @ K.T @ V)),
        Mistake(
            "K is not transposed if n = d: QK is not QKᵀ",
            _standard(lambda Q, K: Q @ K if len(K) == K.shape[1] else Q @ K.T),
        ),
    ),
)


def _linear(
    Q: Array,
    K: Array,
    V: Array,
    feature_map: FeatureMap,
    normalize: bool = False,
    total: Callable[[Array, Array], Array] = lambda q, k: k.sum(axis=0) @ q.T,
) -> Array:
    q, k = feature_map(Q), feature_map(K)
    return np.asarray(q @ (k.T @ V) / (total(q, k)[:, None] if normalize else 1))


def _mapped_values(
    Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False
) -> Array:
    return _linear(Q, K, feature_map(V), feature_map, normalize)


def _one_side(
    Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False
) -> Array:
    """φ on the queries alone."""
    q = feature_map(Q)
    return np.asarray(q @ (K.T @ V) / ((q @ K.sum(axis=0))[:, None] if normalize else 1))


def _other_side(
    Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False
) -> Array:
    """φ on the keys alone."""
    k = feature_map(K)
    return np.asarray(Q @ (k.T @ V) / ((Q @ k.sum(axis=0))[:, None] if normalize else 1))


def _after(Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False) -> Array:
    """φ on the scores q·k, not on q and k."""
    weights = feature_map(Q @ K.T)
    if weights.shape[1] != len(K):
        raise ValueError("shapes do not fit")
    return np.asarray(weights @ V / (weights.sum(axis=1, keepdims=True) if normalize else 1))


def _of_softmax(
    Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False
) -> Array:
    return softmax(feature_map(Q) @ feature_map(K).T) @ V


def _with(**fixed: Any) -> Callable[..., Array]:
    """The linear order with something changed."""

    def answer(
        Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False
    ) -> Array:
        return _linear(Q, K, V, **{"feature_map": feature_map, "normalize": normalize, **fixed})

    return answer


def _separately(
    of_q: Callable[[Array], Array], of_k: Callable[[Array], Array]
) -> Callable[..., Array]:
    """φ(Q) and φ(K) each divided by something of its own."""

    def answer(
        Q: Array, K: Array, V: Array, feature_map: FeatureMap, normalize: bool = False
    ) -> Array:
        q, k = feature_map(Q), feature_map(K)
        if normalize:
            q, k = q / of_q(q), k / of_k(k)
        return np.asarray(q @ (k.T @ V))

    return answer


def _row_sums(x: Array) -> Array:
    return np.asarray(x.sum(axis=1, keepdims=True))


def _column_sums(x: Array) -> Array:
    return np.asarray(x.sum(axis=0, keepdims=True))


def _row_norms(x: Array) -> Array:
    return np.asarray(np.linalg.norm(x, axis=1, keepdims=True))


def _plus(epsilon: float) -> Callable[[Array, Array], Array]:
    return lambda q, k: np.asarray(q @ k.sum(axis=0) + epsilon)


def _negative_sums() -> tuple[Array, Array, Array]:
    """Under φ(x) = x, the normaliser of the first two queries is negative: −6, −9, 6."""
    Q = np.array([[-1.0, 0.0], [-2.0, 1.0], [1.0, 1.0]])
    K = np.array([[1.0, 2.0], [3.0, -1.0], [2.0, -1.0]])
    return Q, K + np.array([[0.0, 1.0]]), np.array([[1.0, -4.0], [5.0, 2.0], [-3.0, 6.0]])


def _large(n: int) -> Case:
    q, k, v = np.random.default_rng(n).standard_normal((3, n, 4)).astype(np.float32)
    return Case((q, k, v, Given("exp"), True))


_LINEAR = Exercise(
    "linear_attention_order",
    cases=(
        Case((*_tensors(9, 4, 4), Given("identity"))),
        Case((*_tensors(9, 4, 4), Given("exp")), about="for the map eˣ"),
        Case((*_tensors(7, 5, 3), Given("with_square")), about="for a map with more features"),
        Case((*_tensors(9, 4, 4), Given("elu"), True), about="with normalize=True"),
        Case(
            (*_tensors(8, 3, 6), Given("with_square")),
            {"normalize": True},
            about="with normalize=True and values of another width",
        ),
        Case((*_tensors(40, 16, 16, np.float32), Given("identity")), about="in float32"),
        Case(
            (
                *(1e-8 * np.abs(x) for x in _tensors(6, 3, 3)[:2]),
                _tensors(6, 3, 3)[2],
                Given("relu"),
                True,
            ),
            about="with normalize=True, for tiny weights",
        ),
        Case(
            (*_negative_sums(), Given("identity"), True),
            about="with normalize=True, where φ(q)·Z is negative",
            edge=True,
        ),
    ),
    mistakes=(
        Mistake("your output matches attention without the normaliser", _with(normalize=False)),
        Mistake(
            "your output is always normalised: normalise only with normalize=True",
            _with(normalize=True),
        ),
        Mistake("φ is applied to V too: apply it only to Q and K", _mapped_values),
        Mistake("φ is applied to Q only: K needs it as well", _one_side),
        Mistake("φ is applied to K only: Q needs it as well", _other_side),
        Mistake("φ is not applied at all", _with(feature_map=lambda x: x)),
        Mistake("φ is applied to the scores QKᵀ: apply it to Q and K before the product", _after),
        Mistake("you apply a softmax: there is none here", _of_softmax),
        Mistake(
            "the normaliser is summed over the queries: Z is the sum of φ(k) over the keys",
            _with(total=lambda q, k: k @ q.sum(axis=0)),
        ),
        Mistake(
            "the output is divided by the sum of all weights: each row has its own φ(q)·Z",
            _with(total=lambda q, k: np.full(len(q), np.sum(q @ k.T))),
        ),
        Mistake(
            "the output is divided by n: the normaliser of row i is φ(qᵢ)·Z",
            _with(total=lambda q, k: np.full(len(q), float(len(k)))),
        ),
        Mistake(
            "the output is divided by √d: the normaliser of row i is φ(qᵢ)·Z",
            _with(total=lambda q, k: np.full(len(q), np.sqrt(q.shape[1]))),
        ),
        Mistake(
            "the output is divided by the norm of φ(qᵢ): the normaliser is φ(qᵢ)·Z",
            _with(total=lambda q, k: np.linalg.norm(q, axis=1)),
        ),
        Mistake(
            "you divide by |φ(qᵢ)·Z|: if the normaliser is negative, the output has the wrong "
            "sign. Divide by φ(qᵢ)·Z as it is",
            _with(total=lambda q, k: np.abs(q @ k.sum(axis=0))),
        ),
        *(
            Mistake(
                f"the normaliser is kept above {name}: where it is smaller, or negative, the "
                "output is wrong. Divide by φ(qᵢ)·Z as it is",
                _with(total=lambda q, k, e=float(name): np.maximum(q @ k.sum(axis=0), e)),
            )
            for name in EPSILONS
        ),
        Mistake(
            "you add 1 to the normaliser φ(qᵢ)·Z: divide by φ(qᵢ)·Z alone",
            _with(total=_plus(1.0)),
        ),
        *(
            Mistake(
                f"a small number ({name}) in the normaliser changes the output where weights are "
                "small: divide by φ(qᵢ)·Z alone",
                _with(total=_plus(float(name))),
            )
            for name in EPSILONS
        ),
        Mistake(
            "the output is divided by the sum of all entries of φ(K), one number: the normaliser "
            "of row i is φ(qᵢ)·Z, and Z = Σⱼφ(kⱼ) is a sum over the tokens only",
            _with(total=lambda q, k: np.full(len(q), np.sum(k))),
        ),
        *(
            Mistake(
                "φ(Q) and φ(K) are normalised separately: the weights of a row then do not add up "
                "to 1. Divide the output of row i by φ(qᵢ)·Z",
                _separately(of_q, of_k),
            )
            for of_q, of_k in (
                (_row_sums, _row_sums),
                (_row_norms, _row_norms),
                (_row_sums, _column_sums),
                (_column_sums, _column_sums),
            )
        ),
        Mistake(
            "you always use ELU + 1 as φ: call feature_map(Q) and feature_map(K)",
            _with(feature_map=lambda x: elu(x) + 1),
        ),
    ),
    memory=Growth(_large),
)


def _near_zero() -> tuple[Array, Array, Array]:
    """float32 tensors of which plain np.allclose says that the two orders differ."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 200, 64)).astype(np.float32)
    return q, k, v


def _asserting(answer: bool | None, wide: bool, tolerance: Any) -> Callable[..., bool | None]:
    """np.testing.assert_allclose with the sums in float64, or in the dtype that came."""

    def verify(Q: Array, K: Array, V: Array) -> bool | None:
        Q, K, V = (x.astype(np.float64) if wide else x for x in (Q, K, V))
        np.testing.assert_allclose((Q @ K.T) @ V, Q @ (K.T @ V), **tolerance)
        return answer

    return verify


_TOLERANCES: tuple[dict[str, float], ...] = (
    {},
    {"rtol": 1e-5},
    {"atol": 1e-5},
    {"rtol": 1e-5, "atol": 1e-5},
    {"rtol": 1e-4},
)
_ASSERTING = tuple(
    itertools.starmap(_asserting, itertools.product((True, None), (True, False), _TOLERANCES))
)
_OVERFLOW = (np.full((3, 3), 1e200), np.full((3, 3), 1e200), np.full((3, 3), 1e-300))

_VERIFY = Exercise(
    "verify_associativity",
    cases=(
        Case(_tensors(7, 3, 3)),
        Case(_tensors(20, 8, 3), about="for values of another width"),
        Case(_tensors(30, 40, 40), about="for n < d"),
        Case(_near_zero(), about="in float32, where an entry near 0 has lost digits"),
        Case((np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2))), about="for zeros"),
        Case(_OVERFLOW, about="where QKᵀ overflows and KᵀV does not"),
        Case((np.full((2, 2), np.nan),) * 3, about="for NaN"),
    ),
    mistakes=(
        Mistake(
            "you use np.allclose on float32 sums, where an entry near 0 has lost its digits: "
            "compute in float64 and compare with the largest entry",
            lambda Q, K, V: bool(np.allclose((Q @ K.T) @ V, Q @ (K.T @ V))),
        ),
        Mistake(
            "you compare bit by bit: the two orders round differently, so allow a tolerance",
            lambda Q, K, V: bool(np.array_equal((Q @ K.T) @ V, Q @ (K.T @ V))),
        ),
        Mistake(
            "your answer is always True: if a product overflows, it must be False",
            lambda Q, K, V: True,
        ),
        Mistake("always False", lambda Q, K, V: False),
        Mistake(
            "you count NaN as equal to NaN: if neither order gives numbers, the answer is False",
            lambda Q, K, V: bool(
                np.allclose(
                    Q.astype(float) @ K.T.astype(float) @ V,
                    Q.astype(float) @ (K.T.astype(float) @ V),
                    equal_nan=True,
                )
            ),
        ),
        Mistake(
            "the second product has no brackets: Q @ K.T @ V is (QKᵀ)V again",
            lambda Q, K, V: bool(np.allclose((Q @ K.T) @ V, Q @ K.T @ V)),
        ),
        *(
            Mistake(
                "np.testing.assert_allclose raises AssertionError if the two differ: return True "
                "or False, as np.allclose does",
                verify,
            )
            for verify in _ASSERTING
        ),
    ),
)

LAB = Lab(
    number="02",
    folder="lab02_kernel_trick",
    title="The kernel trick",
    reference=kernel_trick,
    exercises=(
        Exercise(
            "simple_feature_map",
            entrywise=True,
            cases=(
                Case((_ROWS,)),
                Case((_BATCH,), about="for an array (2, 3, 4)"),
                Case((np.array([[-2.0, 0.0, 3.5]], np.float32),), about="in float32"),
            ),
            mistakes=(
                Mistake(
                    "your output matches ReLU(x); φ(x) is x itself", lambda x: np.maximum(x, 0)
                ),
                Mistake("your output matches |x|; φ(x) is x itself", np.abs),
                Mistake("your output matches eˣ; φ(x) is x itself", np.exp),
                Mistake(
                    "the rows are divided by their length; φ(x) is x itself",
                    lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
                ),
                Mistake(
                    "your output matches softmax(x); φ(x) is x itself",
                    softmax,
                ),
            ),
        ),
        Exercise("elu_feature_map", cases=ELU_CASES, mistakes=ELU_MISTAKES, entrywise=True),
        _STANDARD,
        _LINEAR,
        _VERIFY,
    ),
)
