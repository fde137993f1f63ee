"""The expensive metrics: rank correlation, float32 against float64, gradients.

Above n = 2048 they use 512 random rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerneltrick._arrays import Array
from kerneltrick.analysis._blocks import (
    WHOLE_UP_TO,
    Floats,
    MapComparison,
    blocks,
    near_keys,
    normalized,
    repeated,
    similarities,
)
from kerneltrick.attention import Far, linear_attention

SAMPLED_ROWS = 512
GRADIENT_ROWS = 16


def sampled_rows(n: int, seed: int, most: int = SAMPLED_ROWS) -> NDArray[np.int64]:
    """Return all rows up to n = 2048 (or `most`, if smaller), else `most` random ones, sorted."""
    if n <= (WHOLE_UP_TO if most == SAMPLED_ROWS else most):
        return np.arange(n)
    rng = np.random.default_rng([seed, *b"rows"])
    return np.sort(rng.choice(n, size=most, replace=False))


def rank_correlation(problem: MapComparison, seed: int) -> float:
    """Return the mean over rows of Spearman's ρ between the weights of the map and of softmax.

    Rows where either side is constant are excluded.
    """
    total, count = 0.0, 0
    problem = problem.in_float64()
    rows = sampled_rows(problem.q.shape[2], seed)
    for block in blocks(problem, only=rows):
        for head in range(block.weights.shape[0]):
            for r in np.flatnonzero(block.defined[head]):
                seen = slice(None) if block.allowed is None else block.allowed[r]
                a = _ranks(block.weights[head, r][seen])
                s = _ranks(block.softmax[head, r][seen])
                spread = math.sqrt(float(a @ a) * float(s @ s))
                if spread > 0:
                    total, count = total + float(a @ s) / spread, count + 1
    return total / count if count else math.nan


def _ranks(x: Floats) -> Floats:
    """Return centred ranks; equal values share the mean of their ranks."""
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    group = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    ends = np.concatenate([starts[1:], [len(x)]])
    ranks = np.empty(len(x))
    ranks[order] = ((starts + ends - 1) / 2)[group]
    return ranks - (len(x) - 1) / 2


def float32_error(problem: MapComparison) -> float:
    """Return ‖O₃₂ − O₆₄‖ / ‖O₆₄‖ for `linear_attention` in float32 and float64."""

    def run(dtype: Any) -> Array:
        q, k, v = (x.astype(dtype) for x in (problem.q, problem.k, problem.v))
        rule, width = problem.rule, problem.q.shape[-1]
        given = None if rule.scale == rule.feature_map.default_scale(width) else rule.scale
        options: dict[str, Any] = {"scale": given}
        if problem.gain is not None:
            far = Far(problem.gain[:, 0, 0].astype(dtype), rule.relative)
            options |= {"window": rule.window, "sinks": rule.sinks, "far": far}
        return linear_attention(
            q, k, v, rule.feature_map, causal=rule.causal, on_zero="nan", **options
        )

    with np.errstate(all="ignore"):
        exact, single = run(np.float64), run(np.float32)
        good = np.isfinite(exact)
        size = float(np.linalg.norm(exact[good]))
        error = float(np.linalg.norm((single - exact)[good]))
    return error / size if size > 0 else math.nan


def range_losses(problem: MapComparison, seed: int) -> tuple[int, int]:
    """Count the features of φ that overflow float32, and those that become 0 but are not."""
    overflows = underflows = 0
    for x, phi in (
        (problem.q, problem.rule.feature_map.phi),
        (problem.k, problem.rule.feature_map.for_keys.phi),
    ):
        rows = sampled_rows(x.shape[2], seed)
        points = x[:, :, rows].astype(np.float64) * math.sqrt(problem.rule.scale)
        with np.errstate(all="ignore"):
            exact = phi(points, rows)
            single = phi(points.astype(np.float32), rows)
        overflows += int((~np.isfinite(single)).sum())
        underflows += int(((single == 0) & (exact != 0)).sum())
    return overflows, underflows


def query_gradients(problem: MapComparison, seed: int) -> tuple[float, float]:
    """Measure the gradient that reaches the queries through the map, on 16 random rows.

    This is the gradient of ⟨G, O⟩ for a random Gaussian G, by central differences. Returns its norm
    relative to that of softmax, and the share of coordinates where it is exactly 0.
    """
    problem = problem.in_float64()
    rows = sampled_rows(problem.q.shape[2], seed, GRADIENT_ROWS)
    rng = np.random.default_rng([seed, *b"gradients"])
    ours = theirs = 0.0
    dead = count = 0
    for lead in range(problem.q.shape[0]):
        similar = similarities(problem, problem.k[lead])
        k = repeated(problem.k[lead], problem.groups)
        v = repeated(problem.v[lead], problem.groups)
        for i in rows:
            seen = int(i) + 1 if problem.rule.causal else k.shape[1]
            q, keys, values = problem.q[lead][:, i], k[:, :seen], v[:, :seen]
            target = np.einsum(
                "hcm,hm->hc", values, rng.standard_normal((len(q), values.shape[-1]))
            )
            d = q.shape[-1]
            step = 1e-5 * np.maximum(np.abs(q), 1.0)[:, None, :] * np.eye(d)  # (H, d, d)
            moved = np.concatenate([q[:, None] + step, q[:, None] - step], axis=1)
            scores = problem.rule.near_scale * moved @ keys.mT
            near = near_keys(problem, scores, np.full(2 * d, i))
            weights, defined, _ = normalized(*similar(moved, np.full(2 * d, i), seen), None, near)
            reached = np.einsum("hrc,hc->hr", weights, target)
            widths = 2e-5 * np.maximum(np.abs(q), 1.0)
            gradient = (reached[:, :d] - reached[:, d:]) / widths
            good = defined.all(axis=1)
            softmax = _softmax_gradient(q, keys, target, problem.rule.near_scale)
            ours += float(np.sum(gradient[good] ** 2))
            theirs += float(np.sum(softmax[good] ** 2))
            dead += int((gradient[good] == 0).sum())
            count += int(good.sum()) * d
    ratio = math.sqrt(ours / theirs) if theirs > 0 else math.nan
    return ratio, dead / count if count else math.nan


def _softmax_gradient(q: Floats, keys: Floats, target: Floats, scale: float) -> Floats:
    """∂/∂q of Σ_j A_j t_j for A = softmax(s·q·k): s Σ_j A_j (t_j − ⟨A, t⟩) k_j."""
    scores = scale * np.einsum("hcd,hd->hc", keys, q)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mean = np.sum(weights * target, axis=-1, keepdims=True)
    gradient: Floats = scale * np.einsum("hc,hcd->hd", weights * (target - mean), keys)
    return gradient
