"""What an operator computes: its inputs, its definition, and what depends on what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick._text import nearest
from kerneltrick.conformance._reference import (
    by_head,
    delta_loop,
    elu_features,
    linear_loop,
    softmax_loop,
)


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator.

    inputs: their names in order, and whether each has one number per token or one per feature.
    loop: the definition for one head, with arrays (n, …) in this order → (n, d).
    formula: the definition in words of mathematics.
    """

    name: str
    inputs: Mapping[str, str]
    loop: Callable[..., Array]
    formula: str

    def definition(self, arrays: list[Array]) -> Array:
        """The outputs in float64, for arrays (batch, heads, n, …)."""
        return by_head(self.loop, [x.astype(np.float64) for x in arrays])


def _linear(q: Array, k: Array, v: Array) -> Array:
    return linear_loop(elu_features(q), elu_features(k), v, causal=True)[0]


def _gated(q: Array, k: Array, v: Array, log_decay: Array) -> Array:
    scaled, decay = q / math.sqrt(q.shape[-1]), _columns(log_decay)
    return linear_loop(scaled, k, v, causal=True, normalize=False, log_decay=decay)[0]


def _delta(q: Array, k: Array, v: Array, beta: Array, log_decay: Array) -> Array:
    return delta_loop(q, k, v, beta, log_decay=_columns(log_decay))[0]


def _state_space(q: Array, k: Array, v: Array, dt: Array) -> Array:
    step = dt[:, None]
    return linear_loop(q, step * k, v, causal=True, normalize=False, log_decay=-step)[0]


def _columns(log_decay: Array) -> Array:
    return log_decay if log_decay.ndim == 2 else log_decay[:, None]


_QKV = {"q": "feature", "k": "feature", "v": "feature"}
KINDS = {
    kind.name: kind
    for kind in (
        OperatorKind(
            "linear_attention",
            _QKV,
            _linear,
            "o_i = Σ_{j≤i} φ(q_i)·φ(k_j) v_j / Σ_{j≤i} φ(q_i)·φ(k_j), φ(x) = ELU(x) + 1",
        ),
        OperatorKind(
            "gated_linear_attention",
            {**_QKV, "log_decay": "token"},
            _gated,
            "S_t = exp(log_decay_t) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t / √d",
        ),
        OperatorKind(
            "gated_linear_attention_per_feature",
            {**_QKV, "log_decay": "feature"},
            _gated,
            "S_t = diag(exp(log_decay_t)) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t / √d",
        ),
        OperatorKind(
            "softmax_attention",
            _QKV,
            softmax_loop,
            "o_i = Σ_{j≤i} softmax_j(q_i·k_j / √d) v_j",
        ),
        OperatorKind(
            "delta_rule",
            {**_QKV, "beta": "token", "log_decay": "token"},
            _delta,
            "S_t = exp(log_decay_t) S_{t−1}, S_t += β_t k_t (v_t − S_tᵀ k_t)ᵀ, o_t = S_tᵀ q_t / √d",
        ),
        OperatorKind(
            "delta_rule_per_feature",
            {**_QKV, "beta": "token", "log_decay": "feature"},
            _delta,
            "the delta rule with S_t = diag(exp(log_decay_t)) S_{t−1} first",
        ),
        OperatorKind(
            "state_space",
            {**_QKV, "dt": "token"},
            _state_space,
            "S_t = exp(−dt_t) S_{t−1} + dt_t k_t v_tᵀ, o_t = S_tᵀ q_t",
        ),
    )
}


def kind_named(name: str) -> OperatorKind:
    if name not in KINDS:
        raise ValueError(f"unknown kind of operator {name!r}; {nearest(name, [*KINDS])}")
    return KINDS[name]


def tokens(
    kind: str,
    *,
    batch: int = 1,
    heads: int = 1,
    n: int = 3,
    d: int = 1,
    dtype: str = "float32",
    seed: int = 0,
) -> list[Array]:
    """Random inputs of a kind: q, k and v (batch, heads, n, d), and what else it takes.

    Keys are shorter than 1, beta lies between 0 and 1, and decays are of all strengths.

    >>> [x.shape for x in tokens("delta_rule", n=5, d=2)]
    [(1, 1, 5, 2), (1, 1, 5, 2), (1, 1, 5, 2), (1, 1, 5), (1, 1, 5)]
    """
    rng = np.random.default_rng(seed)
    made = []
    for name, per in kind_named(kind).inputs.items():
        shape = (batch, heads, n, d) if per == "feature" else (batch, heads, n)
        if name == "beta":
            x = rng.random(shape)
        elif per == "token" or name == "log_decay":
            x = rng.random(shape) ** 3 * (4 if name == "dt" else -4)
        else:
            x = rng.uniform(-1, 1, shape) / math.sqrt(d)
        made.append(x.astype(dtype))
    return made
