"""Lab 05: cases and common mistakes of hard attention and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._lab05 import normal, softmax_heads
from kerneltrick.labs.grader._pieces import Array, softmax


def _best(Q: Array, K: Array) -> Array:
    return np.asarray(np.argmax(Q @ K.T, axis=-1))


def _with_unit_keys(Q: Array, K: Array, V: Array) -> Array:
    return np.asarray(V[_best(Q, K / np.linalg.norm(K, axis=-1, keepdims=True))])


def _nearest(Q: Array, K: Array, V: Array) -> Array:
    return np.asarray(V[np.argmin(((Q[:, None] - K) ** 2).sum(-1), axis=-1)])


def _last_of_ties(Q: Array, K: Array, V: Array) -> Array:
    return np.asarray(V[len(K) - 1 - np.argmax((Q @ K.T)[:, ::-1], axis=-1)])


def _from_zero(Q: Array, K: Array, V: Array) -> Array:
    """The first key where no score is above 0."""
    scores = Q @ K.T
    return np.asarray(V[np.where(scores.max(axis=-1) > 0, np.argmax(scores, axis=-1), 0)])


EXAMPLE = (
    np.array([[1.0, 1, 2]]),
    np.array([[1.0, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]]),
    np.array([[7.0, 0, 0], [1, 4, 3], [0, 7, 0], [0, 0, 7]]),
)
TIED = (np.array([[1.0, 0], [0, 1]]), np.array([[1.0, 2], [3, 2], [3, 0]]), np.eye(3))
HARD = Exercise(
    "hard_attention",
    cases=(
        Case(EXAMPLE, about="for the example of the docstring"),
        Case((normal(9, 4), normal(9, 4, seed=1), normal(9, 3)), about="for 9 queries"),
        Case((normal(5, 4), normal(12, 4), normal(12, 6)), about="for more keys than queries"),
        Case(TIED, about="where two keys have the same score (the first is taken)"),
        Case(
            (np.abs(normal(3, 4)), -np.abs(normal(6, 4, seed=1)), normal(6, 3)),
            about="where every score is below 0",
            edge=True,
        ),
    ),
    mistakes=(
        Mistake(
            "your output matches softmax attention: hard attention returns a single value",
            lambda Q, K, V: softmax_heads(Q, K, V),
        ),
        Mistake(
            "your output matches softmax attention without a scale: hard attention returns a "
            "single value",
            lambda Q, K, V: softmax_heads(Q, K, V, scale=1),
        ),
        Mistake("on ties you take the last key: take the first", _last_of_ties),
        Mistake(
            "your search begins with a best score of 0: if every score is below 0, it finds no "
            "key. Begin with −inf, or with the first key",
            _from_zero,
        ),
        Mistake(
            "you take the largest |q·k|: the sign of a score counts",
            lambda Q, K, V: V[np.argmax(np.abs(Q @ K.T), axis=-1)],
        ),
        Mistake(
            "your keys are normalised to length 1: hard attention uses the largest q·k, not the "
            "largest cosine",
            _with_unit_keys,
        ),
        Mistake(
            "your output uses the key nearest to the query: use the key with the largest q·k",
            _nearest,
        ),
        Mistake(
            "your output uses the smallest q·k: use the largest",
            lambda Q, K, V: V[np.argmin(Q @ K.T, axis=-1)],
        ),
        Mistake(
            "your argmax runs over the queries: for each query, the best key is the argmax along "
            "the last axis of QKᵀ",
            lambda Q, K, V: V[np.argmax(Q @ K.T, axis=0)],
        ),
        Mistake(
            "your output is the value times its score: the output is just the value",
            lambda Q, K, V: V[_best(Q, K)] * (Q @ K.T).max(axis=-1)[:, None],
        ),
    ),
)


def _overwritten(Q: Array, K: Array, V: Array, grad: Array) -> tuple[Array, Array, Array]:
    dV = np.zeros_like(V)
    dV[_best(Q, K)] = grad
    return np.zeros_like(Q), np.zeros_like(K), dV


def _by_softmax(scale: bool, scores: bool) -> Callable[..., tuple[Array, Array, Array]]:
    """The gradients of softmax attention: all of them, or only that of Q and K."""

    def answer(Q: Array, K: Array, V: Array, grad: Array) -> tuple[Array, Array, Array]:
        s = 1 / math.sqrt(Q.shape[-1]) if scale else 1.0
        weights = softmax(s * (Q @ K.T))
        dW = grad @ V.T
        dS = s * weights * (dW - (weights * dW).sum(axis=-1, keepdims=True))
        dV = _one_hot(Q, K).T @ grad if scores else weights.T @ grad
        return dS @ K, dS.T @ Q, dV

    return answer


def _one_hot(Q: Array, K: Array) -> Array:
    return np.eye(len(K))[_best(Q, K)]


def _through_score(key: bool, query: bool) -> Callable[..., tuple[Array, Array, Array]]:
    """As if the output were the value times its score."""

    def answer(Q: Array, K: Array, V: Array, grad: Array) -> tuple[Array, Array, Array]:
        hot = _one_hot(Q, K)
        strength = (grad * (hot @ V)).sum(axis=-1, keepdims=True)
        dQ = strength * (hot @ K) if query else np.zeros_like(Q)
        dK = hot.T @ (strength * Q) if key else np.zeros_like(K)
        return dQ, dK, hot.T @ grad

    return answer


CROWDED = np.array([[3.0, 1], [2, 1], [-1, 2], [4, 0], [-2, -1], [0.5, 3]])
GRADIENTS = Exercise(
    "hard_attention_gradients",
    cases=(
        Case(
            (normal(5, 4), normal(7, 4), normal(7, 3), normal(5, 3)), about="for 5 queries, 7 keys"
        ),
        Case(
            (CROWDED, np.array([[1.0, 0], [0, 1], [-1, -1]]), normal(3, 4), normal(6, 4)),
            about="where several queries select the same value",
        ),
        Case((*EXAMPLE, np.array([[1.0, -2, 0.5]])), about="for a single query"),
    ),
    mistakes=(
        Mistake(
            "where several queries select the same value only the last one counts: dV[best] = grad "
            "and dV[best] += grad write each row once; np.add.at adds up",
            _overwritten,
        ),
        Mistake(
            "your gradients are those of softmax attention: hard attention is piecewise constant "
            "in Q and K, so their gradients are 0, and only the selected values receive a gradient",
            _by_softmax(scale=True, scores=False),
        ),
        Mistake(
            "your gradients are those of softmax attention without a scale: hard attention is "
            "piecewise constant in Q and K, so their gradients are 0, and only the selected values "
            "receive a gradient",
            _by_softmax(scale=False, scores=False),
        ),
        Mistake(
            "your gradients of Q and K are those of softmax attention (the straight-through "
            "estimator): the gradients of hard attention itself are 0",
            _by_softmax(scale=True, scores=True),
        ),
        Mistake(
            "you let a gradient through to the selected key: a small change of it selects the same "
            "value, so its gradient is 0 too",
            _through_score(key=True, query=False),
        ),
        Mistake(
            "you let a gradient through to the query: a small change of it selects the same value, "
            "so its gradient is 0",
            _through_score(key=False, query=True),
        ),
        Mistake(
            "you let gradients through to the query and the selected key: a small change of them "
            "selects the same value, so both are 0",
            _through_score(key=True, query=True),
        ),
        Mistake(
            "your dV marks the selected values with 1: they receive the gradient with respect to "
            "the output",
            lambda Q, K, V, grad: (
                np.zeros_like(Q),
                np.zeros_like(K),
                _one_hot(Q, K).T @ np.ones_like(grad),
            ),
        ),
    ),
)
