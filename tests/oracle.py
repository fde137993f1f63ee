"""Attention as loops over tokens in float64. Every engine must agree with them."""

import numpy as np

from kerneltrick import conformance, maps
from kerneltrick.conformance import delta_loop
from kerneltrick.conformance import linear_loop as brute_force

__all__ = ["brute_force", "delta_loop"]  # for the tests; the others are defined here

MAPS = [
    "identity",
    "elu",
    "relu",
    "relu2",
    "exp",
    "square",
    "focused:power=3",
    "cosformer:horizon=100000",
    "favor:features=16",
    "favor:features=16,kind=hyperbolic",
    "favor:features=16,kind=trig",
    "poly:degree=2",
    "poly:degree=3,constant=0.5",
    "taylor:order=2",
    "taylor:order=3",
    "hedgehog",
    "hedgehog:activation=exp",
    "t2r:features=12",
]

# Maps whose features change sign. Sums cancel, so numerator and normaliser are compared separately.
SIGNED_FEATURES = {
    "identity",
    "favor:features=16,kind=trig",
    "poly:degree=2",
    "poly:degree=3,constant=0.5",
    "taylor:order=2",
    "taylor:order=3",
}

DECAYS = ["none", "number", "head", "token", "feature"]


def turns(text, first, *others):
    """Each of `first` with one of each of the others, which take turns: few calls for many pairs.

    The turns of the next map (or the next of another list) begin one later.
    """
    start = text if isinstance(text, int) else MAPS.index(text)
    for place, x in enumerate(first, start):
        chosen = []
        for values in others:
            place, index = divmod(place, len(values))
            chosen.append(values[index])
        yield x, *chosen


def make_decay(kind, rng, k, m, strength=2.0):
    """Return a log_decay of one kind for keys (..., H, n, d), with both weak and strong decays."""
    if kind == "none":
        return None
    if kind == "number":
        return -0.3
    shape = {
        "head": k.shape[-3:-2],
        "token": k.shape[:-1],
        "feature": (*k.shape[:-1], m),
    }[kind]
    return decays_of_any_size(rng, shape, k.dtype, strength)


def decays_of_any_size(rng, shape, dtype=np.float64, strength=2.0):
    """Log-decays of which one in twelve lies anywhere down to the lowest number of the type."""
    usual, most = strength * rng.random(shape) ** 3, float(np.finfo(dtype).max)
    edges = np.minimum([-np.log10(most), 0, 3, 17, np.log10(most)], np.log10(most))
    part = rng.integers(0, 4, shape)
    exponent = edges[part] + (edges[part + 1] - edges[part]) * rng.random(shape)
    rare = np.minimum(10.0**exponent, most)
    return -np.where(rng.random(shape) < 1 / 12, rare, usual)


def one_head_decay(log_decay, kind, batch, head, n):
    if kind == "none":
        return None
    if kind == "number":
        return np.full((n, 1), log_decay)
    if kind == "head":
        return np.full((n, 1), log_decay[head])
    return log_decay[batch, head][:, None] if kind == "token" else log_decay[batch, head]


def delta_heads(q, k, v, beta, **options):
    """`delta_loop` for q, k (B, H_k, n, d), v (B, H, n, M), beta (B, H, n) → o, S."""
    batch, heads, _, width = v.shape
    groups = heads // k.shape[1]
    o, S = np.zeros(v.shape), np.zeros((batch, heads, k.shape[-1], width))
    first = options.pop("S", None)
    for b in range(batch):
        for h in range(heads):
            own = {name: options.get(name) for name in ("scale", "segment_ids")}
            for name in ("erase", "read"):
                x = options.get(name)
                own[name] = None if x is None else x[b, h // groups]
            for name in ("log_decay", "mask"):
                x = options.get(name)
                own[name] = None if x is None else x[b, h]
            own["S"] = None if first is None else first[b, h]
            o[b, h], S[b, h] = delta_loop(
                q[b, h // groups], k[b, h // groups], v[b, h], beta[b, h], **own
            )
    return o, S


def ulp(x):
    """Return the spacing of float32 at the largest magnitude in x."""
    return float(np.spacing(np.float32(np.max(np.abs(x)))))


def magnitude(feature_map, q, k, v, causal):
    """Σⱼ |φ(qᵢ)|·|φ(kⱼ)| |vⱼ|: what is rounded, in any order of adding, before anything cancels."""
    root = np.sqrt(feature_map.default_scale(q.shape[-1]))
    weights = np.abs(feature_map.phi(q * root)) @ np.abs(feature_map.phi(k * root)).mT
    return (np.tril(weights) if causal else weights) @ np.abs(v)


def keeps(checks, run, kind, arrays, cuts=()):
    """Assert that a function on arrays (batch, heads, n, …) passes checks of ours, to the bit."""
    trial = conformance.Trial(conformance.Operator(run, kind, exact=True), arrays, tuple(cuts))
    for check in checks:
        with np.errstate(all="ignore"):
            found = conformance.CHECKS[check].find(trial)
        assert found is None, f"{check}: {found.message}"


def same_bits(a, b):
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def near_far(
    q,
    k,
    v,
    phi_q,
    phi_k,
    *,
    window=0,
    sinks=0,
    gain=0.0,
    relative=False,
    scale=None,
    causal=False,
    normalize=True,
    mask=None,
    query_mask=None,
    segment_ids=None,
):
    """One head, pair by pair in extended precision: exact weights near, those of the map far."""
    n, n_q = len(k), len(q)
    scale = 1 / np.sqrt(q.shape[1]) if scale is None else scale
    keep = np.ones(n, bool) if mask is None else mask
    segment, rank = np.zeros(n, int), np.zeros(n, int)  # number of unmasked tokens before
    seen = 0
    for j in range(n):
        if segment_ids is not None and j and segment_ids[j] != segment_ids[j - 1]:
            segment[j:] += 1
            seen = 0
        rank[j] = seen
        seen += int(keep[j])
    out = np.zeros((n_q, v.shape[1]))
    for i in range(n_q):
        hidden = not keep[i] if causal else query_mask is not None and not query_mask[i]
        if hidden:
            continue
        near, far = [], []
        for j in range(n):
            if not keep[j] or (causal and (j > i or segment[j] != segment[i])):
                continue
            own = rank[i] if i < n else seen
            (near if abs(own - rank[j]) < window or rank[j] < sinks else far).append(j)
        score = {j: np.longdouble(scale) * (q[i].astype(np.longdouble) @ k[j]) for j in near}
        top = max(score.values(), default=np.longdouble(0))
        weight = {j: np.exp(s) for j, s in score.items()}
        unit = np.exp(np.longdouble(gain) + (top if relative else 0))
        for j in far:
            weight[j] = unit * (phi_q[i].astype(np.longdouble) @ phi_k[j])
        total = sum(weight.values())
        mixed = sum((w * v[j] for j, w in weight.items()), np.zeros(v.shape[1], np.longdouble))
        out[i] = mixed / total if normalize else mixed
    return out


def near_far_heads(q, k, v, text, *, window=0, sinks=0, gain=0.0, **options):
    """`near_far` for every head of q (H·g, n, d), with a gain for each query head.

    `window` and `sinks` are numbers, or one for each key head; a window of None sees everything.
    Masks and segments are (n,), or one row for each head.
    """
    feature_map = maps.get(text)
    root = np.sqrt(feature_map.default_scale(q.shape[-1]))
    heads, groups = len(k), len(q) // len(k)
    window = [window] * heads if np.ndim(window) == 0 else list(window)
    sinks, gain = np.broadcast_to(sinks, heads), np.broadcast_to(gain, len(q))
    rows = []
    for h in range(len(q)):
        own = h // groups
        each = {name: x for name, x in options.items() if np.ndim(x) < 2}
        for name in options.keys() - each.keys():
            each[name] = options[name][h if name == "query_mask" else own]
        reach = np.inf if window[own] is None else window[own]
        with np.errstate(all="ignore"):
            phi_q = feature_map.phi(root * q[h], np.arange(q.shape[-2]))
            phi_k = feature_map.phi(root * k[own], np.arange(k.shape[-2]))
            pair = (q[h], k[own], v[own], phi_q, phi_k)
            rows.append(near_far(*pair, window=reach, sinks=sinks[own], gain=gain[h], **each))
    return np.array(rows)


def convolved(x, weight, bias=None, *, silu=False, mask=None, segment_ids=None, state=None):
    """One row of the short convolution, tap by tap: x (n, channels) → output and state."""
    (n, channels), taps = x.shape, weight.shape[1]
    past = [np.zeros(channels)] * (taps - 1) if state is None else list(state)
    out = np.zeros((n, channels))
    for t in range(n):
        if segment_ids is not None and t and segment_ids[t] != segment_ids[t - 1]:
            past = [np.zeros(channels)] * (taps - 1)
        if mask is not None and not mask[t]:
            continue
        past = [*past, x[t]]
        for c in range(channels):
            total = 0.0 if bias is None else bias[c]
            for tap in range(taps):
                total += weight[c, tap] * past[tap][c]
            out[t, c] = total / (1 + np.exp(-total)) if silu else total
        past = past[1:]
    return out, np.array(past).reshape(taps - 1, channels)


def scanned(
    x,
    dt,
    A,
    B,
    C,
    D=None,
    *,
    z=None,
    dt_bias=None,
    dt_softplus=False,
    mask=None,
    segment_ids=None,
    state=None,
):
    """One row of the selective scan, channel by channel: x (n, channels) → output and state."""
    n, channels = x.shape
    h = np.zeros(A.shape) if state is None else state.copy()
    out = np.zeros((n, channels))
    for t in range(n):
        if segment_ids is not None and t and segment_ids[t] != segment_ids[t - 1]:
            h = np.zeros(A.shape)
        if mask is not None and not mask[t]:
            continue
        for c in range(channels):
            step = dt[t, c] + (0.0 if dt_bias is None else dt_bias[c])
            step = np.log1p(np.exp(step)) if dt_softplus else step
            h[c] = np.exp(step * A[c]) * h[c] + step * x[t, c] * B[t]
            y = h[c] @ C[t] + (0.0 if D is None else D[c] * x[t, c])
            out[t, c] = y if z is None else y * z[t, c] / (1 + np.exp(-z[t, c]))
    return out, h
