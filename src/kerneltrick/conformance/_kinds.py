"""What an operator computes: its inputs, its definition, and how large what it adds up is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick._text import nearest
from kerneltrick.conformance._reference import (
    convolution_loop,
    delta_loop,
    elu_features,
    linear_loop,
    scan_loop,
    side_by_side,
    softmax_loop,
)

RATES = ("log_decay", "dt")  # which must be finite
TAPS = 4
WINDOW, SINKS = 16, 2


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator.

    inputs
        Their names in order, and the axes of each by letter: h heads, g = groups · h heads, n
        tokens, d and m the widths of keys and values, t taps. With n, a batch axis comes first;
        without, it is a parameter, the same for all tokens.
    loop
        The definition: arrays (batch, heads, n, …) in this order → (batch, heads, n, m).
    bound
        How large what each output adds up is, before anything cancels: a multiple of its spacing is
        what the output may be wrong by.
    formula
        The definition in words of mathematics.
    """

    name: str
    inputs: Mapping[str, str]
    loop: Callable[..., Array]
    bound: Callable[..., Array]
    formula: str

    def definition(self, arrays: list[Array]) -> Array:
        """The outputs in float64."""
        return self.loop(*side_by_side([x.astype(np.float64) for x in arrays]))

    def size(self, arrays: list[Array]) -> Array:
        """The bound in float64."""
        return self.bound(*side_by_side([x.astype(np.float64) for x in arrays]))

    @property
    def features(self) -> tuple[str, ...]:
        """The inputs that hold queries, keys or values: any vector for each token."""
        return tuple(n for n, axes in self.inputs.items() if len(axes) == 3 and n not in RATES)

    @property
    def narrow(self) -> list[bool]:
        """Which inputs an operator in half precision has in it; steps are as wide as values."""
        return [n in self.features or axes == "hnm" for n, axes in self.inputs.items()]

    @property
    def value(self) -> int:
        """Which input has the values: the outputs are as wide."""
        return [*self.inputs].index(self.features[-1])

    def output_shape(self, arrays: list[Array]) -> tuple[int, ...]:
        batch, _, n, width = arrays[self.value].shape
        return (batch, max(x.shape[1] for x in arrays if x.ndim > 2), n, width)


def _linear(q: Array, k: Array, v: Array) -> Array:
    return linear_loop(elu_features(q), elu_features(k), v, causal=True)[0]


def _linear_bound(q: Array, k: Array, v: Array) -> Array:
    return _linear(q, k, np.abs(v))


def _gated(q: Array, k: Array, v: Array, log_decay: Array) -> Array:
    scaled, decay = q / math.sqrt(q.shape[-1]), _columns(log_decay, k)
    return linear_loop(scaled, k, v, causal=True, normalize=False, log_decay=decay)[0]


def _delta(q: Array, k: Array, v: Array, beta: Array, log_decay: Array) -> Array:
    return delta_loop(q, k, v, beta, log_decay=_columns(log_decay, k))[0]


def _delta_bound(q: Array, k: Array, v: Array, beta: Array, log_decay: Array) -> Array:
    """Erasing shortens what is remembered where keys are no longer than 1."""
    slowest = _columns(log_decay, k).max(-1)
    lengths = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k)]
    q, k = lengths[0] / math.sqrt(q.shape[-1]), beta[..., None] * lengths[1]
    return _gated(q, k, np.abs(v), slowest)


def _state_space(q: Array, k: Array, v: Array, dt: Array) -> Array:
    step = dt[..., None]
    return linear_loop(q, step * k, v, causal=True, normalize=False, log_decay=-step)[0]


def _state_space_bound(q: Array, k: Array, v: Array, dt: Array) -> Array:
    """A decay e^{−s} is as wrong as s is large, and (1 + s) e^{−s} is below 1.3 e^{−s/2}."""
    step, parts = dt[..., None], (np.abs(q), np.abs(dt[..., None] * k), np.abs(v))
    return 1.3 * linear_loop(*parts, causal=True, normalize=False, log_decay=-step / 2)[0]


def _window(q: Array, k: Array, v: Array) -> Array:
    return softmax_loop(q, k, v, window=WINDOW, sinks=SINKS)


def _near_far(q: Array, k: Array, v: Array) -> Array:
    return softmax_loop(q, k, v, window=WINDOW, sinks=SINKS, features=elu_features)


def _exponentials(loop: Callable[..., Array]) -> Callable[..., Array]:
    """The bound of a loop with weights e^{q·k/√d}, which are as wrong as q·k/√d is large."""

    def bound(q: Array, k: Array, v: Array) -> Array:
        longest = np.linalg.norm(k, axis=-1).max(-1, initial=0)[..., None, None]
        score = np.linalg.norm(q, axis=-1, keepdims=True) * longest / math.sqrt(q.shape[-1])
        return (1 + score) * loop(q, k, np.abs(v))

    return bound


def _absolute(loop: Callable[..., Array]) -> Callable[..., Array]:
    """The bound of a loop that multiplies and adds, with decays as they are."""

    def bound(*arrays: Array) -> Array:
        return loop(*(np.abs(x) for x in arrays[:3]), *arrays[3:])

    return bound


def _columns(log_decay: Array, k: Array) -> Array:
    return log_decay if log_decay.ndim == k.ndim else log_decay[..., None]


_QKV = {"q": "gnd", "k": "hnd", "v": "hnm"}
_DELTA = {"q": "hnd", "k": "hnd", "v": "gnm", "beta": "gn"}
KINDS = {
    kind.name: kind
    for kind in (
        OperatorKind(
            "linear_attention",
            _QKV,
            _linear,
            _linear_bound,
            "o_i = Σ_{j≤i} φ(q_i)·φ(k_j) v_j / Σ_{j≤i} φ(q_i)·φ(k_j), φ(x) = ELU(x) + 1",
        ),
        OperatorKind(
            "gated_linear_attention",
            {**_QKV, "log_decay": "hn"},
            _gated,
            _absolute(_gated),
            "S_t = exp(log_decay_t) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t / √d",
        ),
        OperatorKind(
            "gated_linear_attention_per_feature",
            {**_QKV, "log_decay": "hnd"},
            _gated,
            _absolute(_gated),
            "S_t = diag(exp(log_decay_t)) S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t / √d",
        ),
        OperatorKind(
            "softmax_attention",
            _QKV,
            softmax_loop,
            _exponentials(softmax_loop),
            "o_i = Σ_{j≤i} softmax_j(q_i·k_j / √d) v_j",
        ),
        OperatorKind(
            "window_attention",
            _QKV,
            _window,
            _exponentials(_window),
            f"softmax attention to the last {WINDOW} tokens and the first {SINKS}",
        ),
        OperatorKind(
            "near_far_attention",
            _QKV,
            _near_far,
            _exponentials(_near_far),
            f"weights exp(q_i·k_j / √d) for the last {WINDOW} tokens and the first {SINKS}, "
            "φ(q_i)·φ(k_j) for the others, φ(x) = ELU(x) + 1, divided by their sum",
        ),
        OperatorKind(
            "delta_rule",
            {**_DELTA, "log_decay": "gn"},
            _delta,
            _delta_bound,
            "S_t = exp(log_decay_t) S_{t−1}, S_t += β_t k_t (v_t − S_tᵀ k_t)ᵀ, o_t = S_tᵀ q_t / √d",
        ),
        OperatorKind(
            "delta_rule_per_feature",
            {**_DELTA, "log_decay": "gnd"},
            _delta,
            _delta_bound,
            "the delta rule with S_t = diag(exp(log_decay_t)) S_{t−1} first",
        ),
        OperatorKind(
            "state_space",
            {**_QKV, "dt": "hn"},
            _state_space,
            _state_space_bound,
            "S_t = exp(−dt_t) S_{t−1} + dt_t k_t v_tᵀ, o_t = S_tᵀ q_t",
        ),
        OperatorKind(
            "selective_scan",
            {"C": "hnd", "B": "hnd", "x": "hnm", "dt": "hnm", "A": "md"},
            scan_loop,
            _absolute(scan_loop),
            "h_t = exp(dt_t A) ⊙ h_{t−1} + (dt_t ⊙ x_t) B_tᵀ, o_t = h_t C_t",
        ),
        OperatorKind(
            "short_convolution",
            {"x": "hnm", "weight": "mt", "bias": "m"},
            convolution_loop,
            _absolute(convolution_loop),
            f"o_t = bias + Σ_j weight_j ⊙ x_{{t−{TAPS - 1}+j}}",
        ),
    )
}


def kind_named(name: str) -> OperatorKind:
    if name not in KINDS:
        raise ValueError(f"unknown kind of operator {name!r}; {nearest(name, [*KINDS])}")
    return KINDS[name]
