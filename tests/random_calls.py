"""Random calls of every operator with every option, and what they must give.

`check(seed)` draws a call, computes it pair by pair in extended precision, and compares an engine
that can run it; `python tests/random_calls.py --cases 20000` tries many seeds. A failure names its
seed. Nothing of the engines is used for the truth: decays are summed anew for each pair of tokens,
and a state is the tokens that made it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any

import numpy as np
from oracle import MAPS, SIGNED_FEATURES, convolved, scanned

import kerneltrick as kt
from kerneltrick import maps

WIDE = np.longdouble
SIZES = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33)
LENGTHS = (0, 1, 1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 100, 129, 150)
TYPES = ("float64", "float32", "float32", "float16")
ENGINES = {
    "linear": ("auto", "auto", "chunked", "recurrent", "dense"),
    "delta": ("native", "native", "chunked", "recurrent"),
    "scan": ("native", "native", "chunked", "recurrent"),
    "convolution": ("native", "native", "direct"),
}
GROWING = ("exp", "favor", "hedgehog", "focused", "taylor", "poly", "cosformer")
EXACT_NEAR = 60  # how many roundings an output may be made of, beside those that the bound counts


@dataclasses.dataclass
class Call:
    """A call by its keywords, and what it must give.

    truth
        The outputs.
    allowed
        How wrong each may be, infinite where nothing is promised.
    size
        The sum of the absolute values of what it adds up, which may overflow where it does not.
    """

    operator: str
    arrays: dict[str, Any]
    options: dict[str, Any]
    truth: np.ndarray
    allowed: np.ndarray
    size: np.ndarray

    def __str__(self) -> str:
        shapes = {name: (x.shape, str(x.dtype)) for name, x in self.arrays.items()}
        told = {
            name: f"array{x.shape}" if isinstance(x, np.ndarray) else x
            for name, x in self.options.items()
        }
        return f"{self.operator} {shapes} {told}"


class Draw:
    """Random choices of one call."""

    def __init__(
        self, seed: int, *, mild: bool = False, steady: bool = False, stream: bool = False
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.mild = mild  # float64 and ordinary values, so that derivatives do not overflow
        self.steady = mild or steady  # nothing that other orders of adding change much
        self.stream = stream  # without masks, segments and long texts, which decoders do not take
        self.dtype = np.dtype("float64" if mild else self.one(TYPES))
        self.compute = np.dtype("float64" if self.dtype == "float64" else "float32")
        self.info, self.wide = np.finfo(self.dtype), np.finfo(self.compute)

    def one(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def normal(self, *shape: int, size: float = 1.0) -> np.ndarray:
        """Numbers as the type has them, now and then not contiguous in memory."""
        x = (size * self.rng.standard_normal(shape)).astype(self.dtype)
        if self.chance(0.15) and x.ndim > 2:
            x = np.ascontiguousarray(np.swapaxes(x, -2, -3)).swapaxes(-2, -3)
        if self.chance(0.1):
            x = np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        return x

    def values(self, *shape: int) -> np.ndarray:
        """Values of an ordinary size, or near the limits of the type."""
        if self.mild or self.dtype == np.float16 or self.chance(0.7):
            return self.normal(*shape)
        power = self.one((-0.8, -0.4, 0.4, 0.8))
        return self.normal(*shape, size=float(self.info.max) ** power)

    def decays(self, *shape: int) -> np.ndarray:
        """From none to the largest number of the type, weak ones after strong ones."""
        mild = self.rng.random(shape) ** self.one((1, 3, 8)) * self.one((0.01, 1, 4, 30))
        if self.chance(0.5):
            powers = self.rng.uniform(np.log10(self.wide.tiny), np.log10(self.wide.max), shape)
            strong = self.rng.random(shape)
            mild = np.select([strong < 0.85, strong < 0.9, strong < 0.98],
                             [mild, 0 * mild, 10**powers], float(self.wide.max))  # fmt: skip
        return -mild.astype(self.compute)

    def tokens(self, batch: int, heads: int, n: int, causal: bool = True) -> dict[str, Any]:
        """A mask and segments, of each shape that is taken."""
        made: dict[str, Any] = {}
        if self.stream:
            return made
        shape = self.one(((n,), (batch, n), (batch, heads, n)))
        if self.chance(0.3):
            made["mask"] = self.rng.random(shape) < self.one((0.05, 0.7, 0.95))
        if causal and self.chance(0.3):
            made["segment_ids"] = np.cumsum(self.rng.random(shape) < self.one((0.02, 0.3)), axis=-1)
        return made


def spread(x: Any, batch: int, heads: int) -> Any:
    """A mask or ids of any of the shapes, for every row and head."""
    if x is None:
        return None
    x = np.asarray(x)
    x = x[None, None] if x.ndim == 1 else x[:, None] if x.ndim == 2 else x
    return np.broadcast_to(x, (batch, heads, x.shape[-1]))


def spread_decay(x: Any, batch: int, heads: int, n: int) -> Any:
    """A log-decay of any of the shapes as (batch, heads, n, 1 or m)."""
    if x is None:
        return None
    x = np.asarray(x, WIDE)
    more = {0: (), 1: (slice(None), None, None), 3: (..., None), 4: ()}[x.ndim]
    x = x[more]
    return np.broadcast_to(x, (batch, heads, n, x.shape[-1] if x.ndim else 1))


def draw_linear(draw: Draw) -> Call:
    one, rng = draw.one, draw.rng
    batch, heads, groups = one((1, 1, 2, 3)), one((1, 2, 3)), one((1, 2, 3))
    n, d, width = one(LENGTHS[:12] if draw.stream else LENGTHS), one(SIZES), one((0, *SIZES))
    text = one(MAPS)
    growing = text.startswith(GROWING)
    causal = draw.stream or draw.chance(0.7)
    n_q = n if causal else one(LENGTHS[1:])
    size = one((1e-3, 1, 1, 1 if draw.steady else 2 if growing else 30))
    q = draw.normal(batch, heads * groups, n_q, d, size=size)
    k = draw.normal(batch, heads, n, d, size=size)
    v = draw.values(batch, heads, n, width)
    options: dict[str, Any] = {"causal": causal, "normalize": draw.chance(0.7), "on_zero": "nan"}
    if draw.steady and text in SIGNED_FEATURES:
        options["normalize"] = False  # a sum that nearly cancels has derivatives without bound
    options |= draw.tokens(batch, heads, n, causal)
    if not causal and draw.chance(0.3):
        options["query_mask"] = rng.random((batch, n_q)) < 0.7
    if draw.chance(0.3):
        options["scale"] = one((0.1, 0.5, 1.0))
    feature_map = maps.get(text)
    m = feature_map.dim(d)
    if causal and draw.chance(0.4):
        shape = one(((), (heads,), (batch, heads, n), (batch, heads, n), (batch, heads, n, m)))
        options["log_decay"] = draw.decays(*shape) if shape else -float(rng.random())
    elif draw.chance(0.5) and n == n_q:
        windows: Any = one((1, 2, 5, 16, 70))
        options["window"], options["sinks"] = windows, one((0, 0, 1, 3))
        if heads > 1 and draw.chance(0.3):
            options["window"] = tuple(one((0, 1, 4, 20, None)) for _ in range(heads))
        if draw.chance(0.5):
            gains = rng.standard_normal(heads * groups)
            options["far"] = one((-2.0, 1.0, kt.Far(-1.0, relative=True), kt.Far(gains)))
    before = None
    if causal and draw.chance(0.3):
        p = one((1, 3, 20, 70))
        before = (draw.normal(batch, heads, p, d, size=size), draw.values(batch, heads, p, width))
        v = v if before[1].size == 0 or draw.chance(0.5) else v.astype(draw.dtype)
    told = linear_truth(draw, q, k, v, text, options, before)
    if before is not None:
        early = dict(options)
        for name in ("mask", "segment_ids", "query_mask"):
            early.pop(name, None)
        if np.ndim(early.get("log_decay", 0)) > 1:
            decay = draw.decays(batch, heads, before[0].shape[-2], *early["log_decay"].shape[3:])
            early["log_decay"] = 0 * decay  # the truth leaves the first tokens as they are
        engine = one(ENGINES["linear"])
        earlier_q = np.repeat(before[0], groups, axis=1)
        with np.errstate(all="ignore"):
            _, options["state"] = kt.linear_attention(
                earlier_q, *before, text, return_state=True, engine=engine, **early
            )
    return Call("linear", {"q": q, "k": k, "v": v}, {"feature_map": text, **options}, *told)


def linear_truth(
    draw: Draw, q: Any, k: Any, v: Any, text: str, options: dict[str, Any], before: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outputs, how wrong they may be, and their size, head by head."""
    batch, heads, n, d = k.shape
    groups, first = q.shape[1] // heads, 0 if before is None else before[0].shape[-2]
    mask, ids = (spread(options.get(name), batch, heads) for name in ("mask", "segment_ids"))
    hidden = options.get("query_mask")
    decay = spread_decay(options.get("log_decay"), batch, heads, n)
    windows = options.get("window", 0)
    windows = windows if isinstance(windows, tuple) else (windows,) * heads
    feature_map = maps.get(text)
    truth = np.zeros((*q.shape[:-1], v.shape[-1]), WIDE)
    allowed, size = np.zeros_like(truth), np.zeros_like(truth)
    for b, h in np.ndindex(batch, q.shape[1]):
        g = h // groups
        keys, values = k[b, g], v[b, g]
        keep = np.ones(n, bool) if mask is None else mask[b, g]
        own = np.zeros(n, int) if ids is None else ids[b, g]
        rates = None if decay is None else decay[b, g]
        if before is not None:
            keys, values = (
                np.concatenate([before[0][b, g], keys]),
                np.concatenate([before[1][b, g], values]),
            )
            keep = np.concatenate([np.ones(first, bool), keep])
            own = np.concatenate([np.full(first, own[0] if n else 0), own])
            if rates is not None:
                early = np.zeros((first, rates.shape[1]), WIDE)
                if np.ndim(options["log_decay"]) < 2:
                    early[:] = (
                        rates[:1]
                        if n
                        else np.broadcast_to(np.asarray(options["log_decay"], WIDE), (heads,))[g]
                    )
                rates = np.concatenate([early, rates])
        truth[b, h], allowed[b, h], size[b, h] = one_head(
            draw, feature_map, q[b, h], keys, values, keep, own, rates, first,
            window=windows[g], sinks=options.get("sinks", 0),
            far=far_of(options, feature_map, d, h, bool(windows[g] != 0 or options.get("sinks"))),
            causal=options["causal"], normalize=options["normalize"], scale=options.get("scale"),
            shown=None if hidden is None else hidden[b],
        )  # fmt: skip
    return truth, allowed, size


def far_of(
    options: dict[str, Any], feature_map: Any, d: int, head: int, near: bool
) -> tuple[float, bool]:
    """The gain of far weights of a query head, and whether it is relative to the near ones."""
    if not near:
        return 0.0, False
    far = options.get("far")
    if far is None:
        return -float(np.log(feature_map.unit(d))), False
    far = far if isinstance(far, kt.Far) else kt.Far(far)
    return float(far.gain[head] if np.ndim(far.gain) else far.gain), far.relative


def one_head(
    draw: Draw, feature_map: Any, q: Any, k: Any, v: Any, keep: Any, ids: Any, rates: Any,
    first: int, *, window: Any, sinks: int, far: Any, causal: bool, normalize: bool,
    scale: float | None, shown: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    n, n_q, d = len(k), len(q), k.shape[-1]
    root = np.sqrt(feature_map.default_scale(d) if scale is None else scale)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    start = first if causal else 0
    phi_q = np.asarray(feature_map.phi(root * q, start + np.arange(n_q)), WIDE)
    phi_k = np.asarray(feature_map.phi(root * k, np.arange(n)), WIDE)
    segment = np.concatenate([[0], np.cumsum(ids[1:] != ids[:-1])]) if n else ids
    rank = np.zeros(n, int)
    for s in np.unique(segment):
        inside = segment == s
        rank[inside] = np.cumsum(keep[inside]) - keep[inside]
    size = np.sqrt((q**2).sum(-1).max(initial=0) * (k**2).sum(-1).max(initial=0))
    growth = 1 + (root**2 * size + root * np.abs(np.concatenate([q, k])).max(initial=0)) * (
        4 if str(feature_map).startswith(GROWING) else 1
    )
    exact = 1 / np.sqrt(d) if scale is None else scale
    out, allowed, added = (np.zeros((n_q, v.shape[-1]), WIDE) for _ in range(3))
    eps, tiny = WIDE(draw.wide.eps), WIDE(draw.wide.tiny)
    for i in range(n_q):
        at = first + i
        if (causal and not keep[at]) or (shown is not None and not shown[i]):
            continue
        sees = keep & ((np.arange(n) <= at) & (segment == segment[at]) if causal else True)
        js = np.nonzero(sees)[0]
        position = rank[at] if causal else (rank[i] if i < n else keep.sum())
        reach = np.inf if window is None else window
        near = (np.abs(position - rank[js]) < reach) | (rank[js] < sinks)
        weight, loose = np.zeros(len(js), WIDE), np.zeros(len(js), WIDE)
        score = WIDE(exact) * (k[js].astype(WIDE) @ q[i].astype(WIDE))
        features = phi_k[js] * phi_q[i]
        if rates is not None:
            past = np.array(
                [rates[j + 1 : at + 1][keep[j + 1 : at + 1]].sum(0) for j in js]
            ).reshape(len(js), -1)
            features = features * np.exp(past)
            features_loose = (np.abs(features) * (1 + np.minimum(np.abs(past), 800))).sum(-1)
        else:
            features_loose = np.abs(features).sum(-1)
        top = score[near].max() if near.any() else WIDE(0)
        unit = np.exp(WIDE(far[0]) - (0 if far[1] else top))
        weight[~near] = unit * features.sum(-1)[~near]
        loose[~near] = unit * features_loose[~near] * growth
        weight[near] = np.exp(score[near] - top)
        loose[near] = weight[near] * (1 + np.abs(score[near]) + exact * size)
        with np.errstate(all="ignore"):
            scale_back = WIDE(1) if normalize else np.exp(top)
            total = weight.sum() if normalize else WIDE(1)
            out[i] = weight @ v[js] / total * scale_back
            parts = np.abs(features).sum(-1) * unit
            parts[near] = weight[near]
            added[i] = parts @ np.abs(v[js]) * np.maximum(scale_back / np.abs(total), 1)
            raw = np.abs(features).sum(-1)[~near] @ np.abs(v[js[~near]])  # before near ones count
            added[i] = np.maximum(added[i], raw)
            wrong = (
                loose @ np.abs(v[js]) * scale_back
                + np.abs(out[i]) * (loose.sum() if normalize else 0)
            ) / np.abs(total)
            # Weights and products that are smaller than any number.
            lost = 1 + len(js) * (1 + np.abs(phi_q[i]).sum())
            lost = (1 + lost / np.abs(total)) * scale_back + np.abs(v[js]).sum(0) / np.abs(total)
            allowed[i] = EXACT_NEAR * eps * wrong + 4 * tiny * lost
            if (parts * scale_back).max(initial=0) > 0.1 * WIDE(draw.wide.max):
                allowed[i] = np.inf  # a weight larger than any number
            none = 1e4 * tiny * (1 + len(js)) + EXACT_NEAR * eps * loose.sum()
            if normalize and not np.abs(weight.sum()) > none:
                allowed[i] = np.inf  # as good as no weights
    return out, allowed, added


def draw_delta(draw: Draw) -> Call:
    one, rng = draw.one, draw.rng
    batch, heads, groups = one((1, 1, 2, 3)), one((1, 2, 3)), one((1, 2, 3))
    n, d, width = one(LENGTHS[:12] if draw.stream else LENGTHS), one(SIZES), one((0, *SIZES))
    total = heads * groups

    def keys() -> np.ndarray:
        x = rng.standard_normal((batch, heads, n, d))
        return (x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-3)).astype(draw.dtype)

    arrays: dict[str, Any] = {"q": draw.normal(batch, heads, n, d), "k": keys(),
                              "v": draw.values(batch, total, n, width)}  # fmt: skip
    strongest = one((0.5, 1.0, 2.0))
    arrays["beta"] = (strongest * rng.random((batch, total, n))).astype(draw.dtype)
    options: dict[str, Any] = draw.tokens(batch, total, n)
    if draw.chance(0.7):
        shape = one(((), (total,), (batch, total, n), (batch, total, n), (batch, total, n, d)))
        options["log_decay"] = draw.decays(*shape) if shape else -float(rng.random())
    if draw.chance(0.3):
        options["scale"] = one((0.1, 1.0))
    if draw.chance(0.25):  # short enough that no state can grow beyond measure
        options["erase"], options["read"] = (x * draw.dtype.type(0.5) for x in (keys(), keys()))
    state = None
    if draw.chance(0.3):
        state = rng.standard_normal((batch, total, d, width)).astype(draw.compute)
        options["state"] = kt.DeltaState(state)
    mask, ids = (spread(options.get(x), batch, total) for x in ("mask", "segment_ids"))
    decay = spread_decay(options.get("log_decay"), batch, total, n)
    scale = options.get("scale", d**-0.5)
    erase, read = (options.get(x, arrays["k"]) for x in ("erase", "read"))
    truth, allowed = np.zeros(arrays["v"].shape, WIDE), np.zeros(arrays["v"].shape, WIDE)
    for b, h in np.ndindex(batch, total):
        own = [arrays["q"], arrays["k"], erase, read]
        row = [x[b, h // groups] for x in own] + [arrays["v"][b, h], arrays["beta"][b, h]]
        first = np.zeros((d, width)) if state is None else state[b, h]
        keep, place, rate = (None if x is None else x[b, h] for x in (mask, ids, decay))
        with np.errstate(all="ignore"):
            truth[b, h], allowed[b, h] = delta_row(*row, first, keep, place, rate)
    truth, allowed = scale * truth, scale * allowed
    size = allowed
    roundings = EXACT_NEAR * (4 if "erase" in options else 2) * np.sqrt(1 + n)
    allowed = roundings * draw.wide.eps * allowed + 4 * WIDE(draw.wide.tiny) * (1 + n)
    return Call("delta", arrays, options, truth, allowed, size)


def delta_row(
    q: Any, k: Any, erase: Any, read: Any, v: Any, beta: Any, S: Any, keep: Any, ids: Any, rate: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The delta rule of a row token by token, and the size of what its outputs add up."""
    q, k, erase, read, v, beta, S = (x.astype(WIDE) for x in (q, k, erase, read, v, beta, S))
    out, size, most = np.zeros_like(v), np.zeros_like(v), np.abs(S)
    for t in range(len(k)):
        if ids is not None and t and ids[t] != ids[t - 1]:
            S, most = np.zeros_like(S), np.zeros_like(S)
        if keep is not None and not keep[t]:
            continue
        if rate is not None:
            a = np.exp(np.broadcast_to(rate[t], k.shape[1:]))[:, None]
            rounded = np.where(a == 0, 0, 1 - np.log(np.maximum(a, 1e-4000)) / 8)
            S, most = a * S, a * most * np.minimum(rounded, 8)
        S = S - beta[t] * np.outer(erase[t], read[t] @ S) + beta[t] * np.outer(k[t], v[t])
        # A correction does not lengthen the columns, but mixes their entries.
        most = np.maximum(most, np.linalg.norm(most, axis=0) / np.sqrt(len(most)))
        most = most + beta[t] * np.outer(np.abs(k[t]), np.abs(v[t]))
        out[t], size[t] = q[t] @ S, np.linalg.norm(q[t]) * np.linalg.norm(most, axis=0)
    return out, size


def draw_scan(draw: Draw) -> Call:
    one, rng = draw.one, draw.rng
    lead = one(((), (1,), (3,), (2, 2)))
    n, channels, states = one(LENGTHS), one(SIZES), one(SIZES)
    arrays: dict[str, Any] = {
        "x": draw.normal(*lead, n, channels),
        "dt": rng.random((*lead, n, channels)).astype(draw.dtype),
        "A": -np.exp(2 * rng.standard_normal((channels, states))).astype(draw.compute),
        "B": draw.normal(*lead, n, states), "C": draw.normal(*lead, n, states),
    }  # fmt: skip
    if draw.chance(0.3):
        arrays["dt"] = (arrays["dt"] * 10 ** rng.uniform(-6, 2, arrays["dt"].shape)).astype(
            draw.dtype
        )
    if draw.chance(0.2):
        arrays["A"] *= draw.compute.type(10.0 ** one((-20, 3, 12)))
    options: dict[str, Any] = {}
    if draw.chance(0.5):
        arrays["D"] = rng.standard_normal(channels).astype(draw.compute)
    if draw.chance(0.3):
        arrays["z"] = draw.normal(*lead, n, channels)
    if draw.chance(0.3):
        arrays["dt_bias"] = rng.random(channels).astype(draw.compute)
        options["dt_softplus"] = draw.chance(0.5)
    rows = {}
    for name, x in draw.tokens(1, 1, n).items():
        rows[name] = np.broadcast_to(np.reshape(x, n), (*lead, n))
    if draw.chance(0.3):
        arrays["state"] = rng.standard_normal((*lead, channels, states)).astype(draw.compute)
    return sequence_call(draw, "scan", scanned, arrays, rows, options)


def draw_convolution(draw: Draw) -> Call:
    one = draw.one
    lead = one(((), (1,), (3,), (2, 2)))
    n, channels, taps = one(LENGTHS), one(SIZES), one((1, 2, 3, 4, 4, 7))
    arrays: dict[str, Any] = {
        "x": draw.values(*lead, n, channels),
        "weight": draw.normal(channels, taps),
    }
    if draw.chance(0.5):
        arrays["bias"] = draw.normal(channels)
    if draw.chance(0.4):
        arrays["state"] = draw.normal(*lead, taps - 1, channels)
    options = {"activation": one((None, "silu"))}
    rows = {}
    for name, x in draw.tokens(1, 1, n).items():
        rows[name] = np.broadcast_to(np.reshape(x, n), (*lead, n))
    return sequence_call(draw, "convolution", convolved, arrays, rows, options)


SHARED = ("weight", "bias", "A", "D", "dt_bias")


def sequence_call(
    draw: Draw, operator: str, loop: Any, arrays: dict[str, Any], rows: dict[str, Any], options: Any
) -> Call:
    """The truth of the scan or the convolution by the oracle, and its size by absolute values."""
    lead = arrays["x"].shape[:-2]
    truth = np.zeros(arrays["x"].shape)
    size = np.zeros(arrays["x"].shape)
    plain = {"silu": options["activation"] is not None} if operator == "convolution" else options
    with np.errstate(all="ignore"):
        for index in np.ndindex(*lead):
            own = {
                name: (x if name in SHARED else x[index]).astype(np.float64)
                for name, x in arrays.items()
            }
            place = {name: x[index] for name, x in rows.items()}
            truth[index] = loop(**own, **place, **plain)[0]
            for name in ("x", "B", "C", "D", "weight", "bias", "state"):
                if name in own:
                    own[name] = np.abs(own[name])
            own.pop("z", None)
            without = {} if operator == "convolution" else plain
            size[index] = loop(**own, **place, **without)[0]
        if "z" in arrays:
            size *= 1 + np.abs(arrays["z"].astype(np.float64))
        if operator == "convolution" and plain["silu"]:
            size *= 1 + np.minimum(size, 800)
    allowed = EXACT_NEAR * 8 * draw.wide.eps * size + 4 * float(draw.wide.tiny) * (
        1 + len(arrays["x"])
    )
    return Call(operator, arrays, {**rows, **options}, truth, allowed, size)


DRAWS = {
    "linear": draw_linear,
    "delta": draw_delta,
    "scan": draw_scan,
    "convolution": draw_convolution,
}
OPERATORS = {"linear": kt.linear_attention, "delta": kt.delta_rule,
             "scan": kt.selective_scan, "convolution": kt.short_convolution}  # fmt: skip


def drawn(seed: int, operator: str | None = None, *, steady: bool = False) -> tuple[Draw, Call]:
    """The call of a seed, of one operator if given."""
    draw = Draw(seed, steady=steady)
    often = ("linear", "linear", "linear", "delta", "delta", "scan", "convolution")
    return draw, DRAWS[operator or draw.one(often)](draw)


def is_steady(call: Call) -> bool:
    """Whether another order of adding changes no output by much of the largest one."""
    sure = np.isfinite(call.truth)
    largest = np.abs(call.truth[sure]).max(initial=0)
    narrow = all(x.dtype != np.float64 for x in call.arrays.values())
    return bool((call.allowed[sure] <= (1e-3 if narrow else 1e-10) * largest + 1e-30).all())


def compare(told: str, call: Call, found: np.ndarray) -> None:
    """AssertionError where an output is not what it must be."""
    assert found.dtype == call.arrays["v" if "v" in call.arrays else "x"].dtype, told
    info = np.finfo(found.dtype)
    rounding = np.abs(call.truth) * info.eps + info.tiny  # of the output's own type
    sure = np.isfinite(call.truth) & (call.size + call.allowed < 0.5 * info.max)
    gap = np.abs(found.astype(call.truth.dtype) - call.truth)
    good = gap <= call.allowed + rounding  # False for NaN
    bad = sure & ~good & np.isfinite(call.allowed)
    if bad.any():
        at = tuple(int(x) for x in np.argwhere(bad)[0])
        raise AssertionError(
            f"{told}\n{bad.sum()} of {bad.size} outputs are wrong; {at} is {found[at]!r}, not "
            f"{float(call.truth[at])!r}, and may be wrong by "
            f"{float(call.allowed[at] + rounding[at]):.2g}"
        )


def check(
    seed: int, engine: str | None = None, operator: str | None = None, *, steady: bool = False
) -> str:
    """Compare an engine, one of those that can run the call, with the truth; what call it was."""
    draw, call = drawn(seed, operator, steady=steady)
    if engine == "compiled":
        engine = ENGINES[call.operator][0]
    engine = engine or draw.one(ENGINES[call.operator])
    if call.operator == "linear" and engine == "recurrent" and call.truth.shape[-2] > 40:
        engine = "auto"
    told = f"seed {seed}, {engine}: {call}"
    before = {name: x.copy() for name, x in call.arrays.items()}
    with np.errstate(all="ignore"):
        try:
            found = OPERATORS[call.operator](**call.arrays, **call.options, engine=engine)
        except Exception as error:
            raise AssertionError(f"{told}\n{type(error).__name__}: {error}") from error
    for name, x in before.items():
        assert np.array_equal(x, call.arrays[name], equal_nan=True), f"{told}\n{name} was changed"
    compare(told, call, found)
    return told


def check_steps(seed: int) -> str:
    """Compare a decoder, token by token, with the truth."""
    draw = Draw(seed, steady=True, stream=True)
    call = DRAWS[draw.one(("linear", "delta"))](draw)
    told = f"seed {seed}, steps: {call}"
    k, v, options = call.arrays["k"], call.arrays["v"], dict(call.options)
    batch, heads = (v if call.operator == "delta" else k).shape[:2]
    decay = options.pop("log_decay", None)
    width = 0
    if decay is not None:
        decay = np.asarray(decay, draw.compute)
        decay = decay[:, None] if decay.ndim == 1 else decay
        decay = decay[..., 0] if decay.ndim == 4 and decay.shape[-1] == 1 else decay
        width = decay.shape[3] if decay.ndim == 4 else 1
        decay = np.broadcast_to(decay, (batch, heads, v.shape[2], *decay.shape[3:]))
    erase_read = {name: options.pop(name) for name in ("erase", "read") if name in options}
    options.pop("causal", None)
    common = {
        "d": k.shape[-1],
        "value_width": v.shape[-1],
        "dtype": str(draw.dtype),
        "decay": width,
    }
    groups = call.truth.shape[1] // k.shape[1]
    make = kt.DeltaDecoder if call.operator == "delta" else kt.Decoder
    decoder = make(shape=(batch, heads), groups=groups, **common, **options)
    outputs = np.empty(call.truth.shape, draw.dtype)
    with np.errstate(all="ignore"):
        for t in range(v.shape[2]):
            token = [np.ascontiguousarray(call.arrays[name][:, :, t]) for name in ("q", "k", "v")]
            more = {name: np.ascontiguousarray(x[:, :, t]) for name, x in erase_read.items()}
            if decay is not None:
                more["log_decay"] = np.ascontiguousarray(decay[:, :, t])
            if call.operator == "delta":
                token.append(call.arrays["beta"][:, :, t].astype(draw.compute))
            outputs[:, :, t] = decoder.step(*token, **more)
    compare(told, call, outputs)
    return told


def check_gradient(seed: int, operator: str | None = None) -> str:
    """Compare the gradients of the compiled core with those of another engine in float64."""
    import torch

    draw = Draw(seed, mild=True)
    call = DRAWS[operator or draw.one(("linear", "linear", "delta", "scan", "convolution"))](draw)
    other = {"linear": "dense", "convolution": "direct"}.get(call.operator, "chunked")
    leaves = [*call.arrays, *({"log_decay", "erase", "read"} & call.options.keys())]
    given = {name: call.arrays.get(name, call.options.get(name)) for name in leaves}
    given = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
    told = f"seed {seed}: {call}"
    slopes = []
    for engine in ("auto", other):
        dtype = draw.dtype
        tensors = {
            name: torch.tensor(x.astype(dtype)).requires_grad_() for name, x in given.items()
        }
        options = {
            name: tensor_of(x, dtype) for name, x in (call.options | {"on_zero": "zero"}).items()
        }
        if call.operator != "linear":
            options.pop("on_zero")
        arguments = call.arrays | options | tensors
        out = OPERATORS[call.operator](**arguments, engine=engine)
        weights = np.random.default_rng(seed).standard_normal(tuple(out.shape))
        loss = (torch.nan_to_num(out) * torch.tensor(weights.astype(dtype))).sum()
        slopes.append(torch.autograd.grad(loss, [*tensors.values()], allow_unused=True))
    for name, ours, truth in zip(given, *slopes, strict=True):
        if truth is None or truth.numel() == 0:
            continue
        assert ours is not None, f"{told}\nno gradient of {name}"
        # What an output times its share of the loss would be: a gradient may cancel to less.
        shown = np.nan_to_num(np.abs(out.detach().numpy().astype(np.float64)), posinf=0.0)
        whole = float(np.abs(weights).max(initial=0) * shown.max(initial=0))
        largest = max(
            float(truth.abs().nan_to_num(0.0, 0.0).max()),
            whole / float(np.abs(given[name]).max().clip(1e-30)),
        )
        gap = (ours.double() - truth).abs()
        good = (gap <= 1e-7 * largest + 1e-30) | ~truth.isfinite()
        assert good.all(), (
            f"{told}\nthe gradient of {name} is off by {float(gap.nan_to_num(9e99).max()):.2g} "
            f"of {largest:.2g}"
        )
    return told


def tensor_of(x: Any, dtype: np.dtype) -> Any:
    """An option as PyTorch takes it."""
    import torch

    if isinstance(x, kt.Far) and isinstance(x.gain, np.ndarray):
        return kt.Far(torch.tensor(x.gain.astype(dtype)), x.relative)
    if isinstance(x, kt.State | kt.DeltaState):
        return x.to(torch.zeros(1, dtype=getattr(torch, dtype.name)))
    if not isinstance(x, np.ndarray):
        return x
    return torch.tensor(x.astype(dtype) if x.dtype.kind == "f" else x)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--engine")
    parser.add_argument("--operator", choices=DRAWS)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    failed, counts = 0, {}
    for seed in range(options.first, options.first + options.cases):
        try:
            if options.steps:
                told = check_steps(seed)
            elif options.gradients:
                told = check_gradient(seed, options.operator).replace(": ", ", gradient: ", 1)
            else:
                told = check(seed, options.engine, options.operator)
        except AssertionError as error:
            failed += 1
            print(error, flush=True)
            if failed >= 20:
                break
            continue
        head, rest = told.split(": ", 1)
        kind = f"{head.split()[2]} {rest.split()[0]}"
        counts[kind] = counts.get(kind, 0) + 1
        if (seed + 1) % 1000 == 0:
            print(f"{seed + 1 - options.first} cases", flush=True)
    for kind, count in sorted(counts.items()):
        print(f"  {kind}: {count}")
    print(
        f"{sum(counts.values())} passed, {failed} failed "
        f"(KERNELTRICK_ISA={os.environ.get('KERNELTRICK_ISA', '')})"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
