"""Lab 07, Based: Taylor features, the recurrent state, a sliding window, and what a state recalls.

Rows are tokens: Q and K have shape (n, d) and V has (n, M). d is the width after the projection,
the d′ of the paper (Arora et al. 2024, "Simple linear attention language models balance the
recall-throughput tradeoff"). In all functions t = q·k/√d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerneltrick.labs._inputs import in_float64

Array = np.ndarray[Any, Any]
FeatureMap = Callable[[Array], Array]


def identity(x: Array) -> Array:
    """φ(x) = x: the memory is Σkvᵀ, the simplest one. Its weights can be negative.

    >>> identity(np.array([[-1.0, 2.0]]))
    array([[-1.,  2.]])
    """
    return x


def elu_plus_one(x: Array) -> Array:
    """φ(x) = x + 1 where x > 0, else eˣ, as in lab 03.

    >>> elu_plus_one(np.array([[2.0, 0.0]]))
    array([[3., 1.]])
    """
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def exp_feature_map(x: Array) -> Array:
    """φ(x) = eˣ of each coordinate, as in lab 03.

    >>> exp_feature_map(np.array([[0.0, -np.inf]]))
    array([[1., 0.]])
    """
    return np.exp(x)


def positive_random_features(x: Array) -> Array:
    """φ(x) = exp(ω·x′ − ‖x′‖²/2)/√m with x′ = x·d^(−1/4): Performer's features, as in lab 03.

    There are as many as in the compact Taylor map: m = (d+1)(d+2)/2 fixed draws ω ~ N(0, I).

    >>> positive_random_features(np.zeros((1, 4))).shape
    (1, 15)
    """
    d = x.shape[-1]
    m = (d + 1) * (d + 2) // 2
    projection = np.random.default_rng([7, d]).standard_normal((m, d))
    y = x * d**-0.25
    return np.asarray(
        np.exp(y @ projection.T - np.sum(y * y, axis=-1, keepdims=True) / 2) / np.sqrt(m)
    )


def recall_task(
    pairs: int, d: int, value_width: int, sharpness: float, seed: int
) -> tuple[Array, Array, Array]:
    """Make pairs to remember and the order in which they are asked for: keys, values, order.

    keys (pairs, d) point in random directions and are scaled so that q·k/√d = sharpness·cos(q, k).
    values (pairs, value_width) are random unit vectors, one for each key. order (pairs,) is a
    permutation: query i is keys[order[i]], and the right answer to it is order[i].

    >>> keys, values, order = recall_task(pairs=5, d=4, value_width=3, sharpness=8.0, seed=0)
    >>> (keys @ keys.T / 2).diagonal().round(9), sorted(order.tolist())
    (array([8., 8., 8., 8., 8.]), [0, 1, 2, 3, 4])
    """
    rng = np.random.default_rng([seed, pairs, d, value_width])
    keys, values = rng.standard_normal((pairs, d)), rng.standard_normal((pairs, value_width))
    keys *= np.sqrt(sharpness) * d**0.25 / np.linalg.norm(keys, axis=1, keepdims=True)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return keys, values, rng.permutation(pairs)


def taylor_feature_map(x: Array) -> Array:
    """The φ with φ(q)·φ(k) = 1 + t + t²/2, t = q·k/√d: the series of e^t up to second order.

    x (..., n, d) → (..., n, m). There are two such maps, and both are right, with the features in
    any order. The full map has all d² products xᵢxⱼ, m = 1 + d + d². The compact map has each
    product once, m = (d+1)(d+2)/2. Every factor in t is shared by φ(q) and φ(k), so each feature
    carries its square root.

    >>> q, k = np.array([[1.0, 2.0, 0.0, 1.0]]), np.array([[1.0, 1.0, 5.0, 1.0]])
    >>> (taylor_feature_map(q) @ taylor_feature_map(k).T).round(9)  # t = 4/√4 = 2
    array([[5.]])
    """
    (y,) = in_float64(x=x)
    y = y * y.shape[-1] ** -0.25
    i, j = np.triu_indices(y.shape[-1], 1)
    constant, squares = np.ones((*y.shape[:-1], 1)), y**2 / np.sqrt(2)
    features = np.concatenate([constant, y, squares, y[..., i] * y[..., j]], axis=-1)
    return np.asarray(features.astype(x.dtype))


def based_weights(x: Array, W_q: Array, W_k: Array) -> Array:
    """Compute the weights (n, n) of a causal Taylor layer, as a reference for the other functions.

    x (n, F) is projected to q = xW_q and k = xW_k, both (n, d), with W_q and W_k (F, d). Then
    Aᵢⱼ = (1 + t + t²/2) / Σ_{l≤i} (1 + t + t²/2) with t = qᵢ·kⱼ/√d for j ≤ i, and 0 for j > i.
    Every row adds up to 1.

    >>> x = np.array([[0.0, 0.0, 1.0], [2.0, 1.0, 0.0]])
    >>> W = np.array([[1.0], [0.0], [0.0]])
    >>> based_weights(x, W, W)  # second row: t = 0 and t = 4, so 1 and 13
    array([[1.        , 0.        ],
           [0.07142857, 0.92857143]])
    """
    tokens, query_weights, key_weights = in_float64(x=x, W_q=W_q, W_k=W_k)
    q, k = tokens @ query_weights, tokens @ key_weights
    t = q @ k.T / np.sqrt(q.shape[1])
    weights = np.tril(1 + t + t**2 / 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def state_size(d: int, value_width: int, compact: bool = True) -> int:
    """Count the numbers in the state of a Taylor layer: U is (m, value_width) and Z is (m,).

    With `compact`, m is the number of features of the compact map, which has each product xᵢxⱼ
    once; otherwise it is that of the full map. The number of tokens does not matter.

    >>> state_size(16, 64), state_size(16, 64, compact=False)
    (9945, 17745)
    """
    m = (d + 1) * (d + 2) // 2 if compact else 1 + d + d * d
    return m * value_width + m


def recurrent_attention(
    phi_q: Array, phi_k: Array, V: Array, state: tuple[Array, Array] | None = None
) -> tuple[Array, tuple[Array, Array]]:
    """Compute causal linear attention token by token: the outputs (n, M) and the final (U, Z).

    phi_q and phi_k (n, m) are the features. At token i, first write, U += φ(kᵢ)vᵢᵀ and Z += φ(kᵢ),
    then read, oᵢ = φ(qᵢ)ᵀU / φ(qᵢ)ᵀZ, so a token sees itself. φ(qᵢ)ᵀZ can be tiny or negative;
    divide by it as it is. `state` is the (U, Z) of earlier tokens, (m, M) and (m,), or None for an
    empty memory. Do not change the given arrays.

    >>> phi = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> output, (U, Z) = recurrent_attention(phi, phi, np.array([[3.0], [6.0]]))
    >>> output, Z  # the second output is (1·3 + 2·6)/(1 + 2)
    (array([[3.],
           [5.]]), array([2., 1.]))
    """
    q, k, v = in_float64(phi_q=phi_q, phi_k=phi_k, V=V)
    if state is None:
        U, Z = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1])
    else:
        U, Z = (part.astype(np.float64) for part in state)  # copies
    output = np.zeros_like(v)
    for i in range(len(v)):
        U += np.outer(k[i], v[i])
        Z += k[i]
        output[i] = q[i] @ U / (q[i] @ Z)
    return output, (U, Z)


def sliding_window_attention(Q: Array, K: Array, V: Array, window: int) -> Array:
    """Softmax attention to the last `window` tokens, including the current one: (n, M).

    Token i sees the tokens j with i − window < j ≤ i; at the start of the sequence there are fewer.
    The weights are the softmax of t = qᵢ·kⱼ/√d over these tokens. window = 1 returns V, and
    window ≥ n is causal softmax attention. Scores can be large: subtract the largest score in the
    window before exp.

    >>> zero, V = np.zeros((4, 2)), np.array([[1.0], [2.0], [3.0], [4.0]])
    >>> sliding_window_attention(zero, zero, V, window=2).ravel()  # averages of two
    array([1. , 1.5, 2.5, 3.5])
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    age = _ages(len(v), window)
    inside = (age >= 0) & (age < window)
    t = q @ k.T / np.sqrt(q.shape[1])
    t = np.where(inside, t, -np.inf)
    weights = np.exp(t - t.max(axis=1, keepdims=True))
    return np.asarray(weights @ v / weights.sum(axis=1, keepdims=True))


def windowed_taylor_attention(Q: Array, K: Array, V: Array, window: int) -> Array:
    """Exact weights e^t inside the window, Taylor weights 1 + t + t²/2 before it: (n, M).

    oᵢ = Σⱼ wᵢⱼvⱼ / Σⱼ wᵢⱼ over all j ≤ i, with wᵢⱼ = e^t for i − window < j ≤ i, wᵢⱼ = 1 + t + t²/2
    for j ≤ i − window, and t = qᵢ·kⱼ/√d. Each token counts once, and the one normaliser is the sum
    of both kinds of weights. Scores can be large, and e^1000 is inf: multiply all weights of a row
    by the same e^(−c). A decoder needs the last `window` keys and values and the state of earlier
    tokens; here you may use an n×n array.

    >>> zero, V = np.zeros((3, 2)), np.array([[1.0], [2.0], [6.0]])
    >>> windowed_taylor_attention(zero, zero, V, window=1).ravel()  # t = 0: both weights are 1
    array([1. , 1.5, 3. ])
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    age = _ages(len(v), window)
    before, inside = age >= window, (age >= 0) & (age < window)
    t = q @ k.T / np.sqrt(q.shape[1])
    # A softmax of the logarithms of all weights; 1 + t + t²/2 is never below ½.
    state = np.where(before, np.log(1 + t + t**2 / 2), -np.inf)
    logs = np.logaddexp(state, np.where(inside, t, -np.inf))
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights @ v / weights.sum(axis=1, keepdims=True))


def _ages(n: int, window: int) -> Array:
    """How many tokens before query i key j came, i − j (n, n), if the window is not empty."""
    if window < 1:
        raise ValueError(f"window must be at least 1, the token itself, not {window}")
    return np.arange(n)[:, None] - np.arange(n)


def recall_accuracy(
    feature_map: FeatureMap | None,
    d: int,
    pairs: int = 64,
    value_width: int = 16,
    sharpness: float = 8.0,
    seeds: int = 20,
) -> float:
    """The share of stored pairs that a memory of width d recalls, averaged over seeds.

    For each seed 0, 1, … seeds − 1, take recall_task(pairs, d, value_width, sharpness, seed). Write
    every pair into U = Σφ(kⱼ)vⱼᵀ and read φ(q)ᵀU for every query. The answer is the number of the
    value that has the largest inner product with the vector you read. (A normaliser would divide
    all these products by the same number, so it is left out.) The answer is right if it is the
    number of the key that was asked for.

    feature_map=None means softmax attention with s = 1/√d, which stores all keys and values: read
    softmax(s·QKᵀ)V.

    >>> recall_accuracy(None, 16), recall_accuracy(elu_plus_one, 16) < 0.1
    (1.0, True)
    """
    right = []
    for seed in range(seeds):
        keys, values, order = recall_task(pairs, d, value_width, sharpness, seed)
        queries = keys[order]
        if feature_map is None:
            scores = queries @ keys.T / np.sqrt(d)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            read = weights @ values / weights.sum(axis=1, keepdims=True)
        else:
            read = feature_map(queries) @ (feature_map(keys).T @ values)
        answers = np.argmax(read @ values.T, axis=1)
        right.append(np.mean(answers == order))
    return float(np.mean(right))


def recall_curves(
    widths: Sequence[int] = (2, 4, 8, 16, 32, 64),
    pairs: int = 64,
    value_width: int = 16,
    sharpness: float = 8.0,
    seeds: int = 20,
) -> dict[str, list[tuple[int, int, float]]]:
    """`recall_accuracy` of every map: for each name, a list of (d, numbers held, accuracy).

    A map holds U and Z, which are m·(value_width + 1) numbers. Softmax attention holds all keys and
    values, which are pairs·(d + value_width) numbers.

    >>> recall_curves(widths=(8,), seeds=1)["softmax"]
    [(8, 1536, 1.0)]
    """
    memories: dict[str, FeatureMap | None] = {
        "ELU+1": elu_plus_one,
        "exp": exp_feature_map,
        "identity": identity,
        "random features": positive_random_features,
        "Taylor": taylor_feature_map,
        "softmax": None,
    }
    curves: dict[str, list[tuple[int, int, float]]] = {name: [] for name in memories}
    for name, feature_map in memories.items():
        for d in widths:
            if feature_map is None:
                held = pairs * (d + value_width)
            else:
                held = feature_map(np.zeros((1, d))).shape[-1] * (value_width + 1)
            accuracy = recall_accuracy(feature_map, d, pairs, value_width, sharpness, seeds)
            curves[name].append((d, held, accuracy))
    return curves


def draw_recall(
    curves: dict[str, list[tuple[int, int, float]]], path: str = "recall.png"
) -> str | None:
    """Draw recall against the numbers held, and return the path of the picture.

    Without matplotlib, print the numbers instead and return None.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: matplotlib is not installed (pip install matplotlib). The numbers:")
        for name, points in curves.items():
            for d, size, share in points:
                print(f"{name:16} d = {d:3}  {size:6} numbers held  recall {share:.2f}")
        return None
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        held, accuracy = [point[1] for point in points], [point[2] for point in points]
        axes.plot(held, accuracy, "ko--" if name == "softmax" else "o-", label=name)
    axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="numbers held", ylabel="recall")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path
