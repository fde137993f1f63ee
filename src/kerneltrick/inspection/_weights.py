"""Measures of the weights of heads: how far, where, of which sign."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


def shares(weights: Array) -> Array:
    """|weights| with rows of sum 1; rows without weight are 0."""
    sizes = np.abs(weights)
    total = sizes.sum(-1, keepdims=True)
    return np.asarray(np.divide(sizes, total, out=np.zeros_like(sizes), where=total > 0))


def reach(share: Array, rows: Array, level: float) -> Array:
    """The median over rows of the tokens, counted back from the query, that hold `level`.

    share is (heads, rows, n); tokens after the query count by their distance too.

    >>> a = np.array([[[0.1, 0.2, 0.3, 0.4]]])
    >>> reach(a, np.array([3]), 0.5), reach(a, np.array([3]), 0.95)
    (array([2.]), array([4.]))
    """
    n = share.shape[-1]
    found = np.zeros(share.shape[:2])
    for at, row in enumerate(rows):
        away = np.abs(row - np.arange(n))
        order = np.argsort(away, kind="stable")
        held = np.cumsum(share[:, at, order], axis=-1)
        first = (held >= level * held[:, -1:] * (1 - 1e-9)).argmax(-1)
        found[:, at] = away[order][first] + 1
    return np.median(found, axis=1)


def content(share: Array, rows: Array) -> Array:
    """The share of the weight that the distance between tokens does not explain.

    >>> content(np.eye(3)[None], np.arange(3))
    array([0.])
    """
    heads, _, n = share.shape
    distance = rows[:, None] - np.arange(n) + n - 1  # from 0: keys far ahead, to 2n − 2: far behind
    total = np.zeros((heads, 2 * n - 1))
    seen = np.zeros(2 * n - 1)
    for at, line in enumerate(distance):
        total[:, line] += share[:, at]
        seen[line] += 1
    profile = np.divide(total, seen, out=np.zeros_like(total), where=seen > 0)
    expected = profile[:, distance]
    if not share[:, np.arange(n) > rows[:, None]].any():  # causal
        expected = np.where(np.arange(n) <= rows[:, None], expected, 0)
    expected = shares(expected)
    return np.asarray(0.5 * np.abs(share - expected).sum(-1).mean(-1))


def overlap(share: Array, others: Array) -> Array:
    """The largest Σ_j min(share, other) over the other heads, in the mean over rows."""
    each = [np.minimum(share, other).sum(-1).mean(-1) for other in others]
    return np.asarray(np.max(each, axis=0))
