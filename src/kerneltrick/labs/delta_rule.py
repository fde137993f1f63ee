"""Lab 08, a state that corrects itself: recurrences, the delta rule, its chunks and its weights.

Rows are tokens: Q and K have shape (n, d) and V has (n, M). The state S has shape (d, M), and a
query reads qᵀS. There is no softmax, no scale and no normaliser. beta and decay have one number per
token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.labs._inputs import in_float64

Array = np.ndarray[Any, Any]


def random_tokens(n: int, d: int, width: int, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Random Q (n, d), K (n, d) with rows of length 1, V (n, width), and beta (n,) in [0, 2].

    >>> Q, K, V, beta = random_tokens(n=50, d=4, width=3)
    >>> Q.shape, V.shape, beta.shape, bool(np.allclose(np.linalg.norm(K, axis=1), 1))
    ((50, 4), (50, 3), (50,), True)
    """
    rng = np.random.default_rng([8, seed])
    Q, K = rng.standard_normal((2, n, d))
    K /= np.linalg.norm(K, axis=1, keepdims=True)
    return Q, K, rng.standard_normal((n, width)), rng.uniform(0, 2, n)


def recurrent_attention(Q: Array, K: Array, V: Array) -> tuple[Array, Array]:
    """Linear attention as a recurrence: S ← S + k vᵀ, o = qᵀS. Returns outputs (n, M) and S.

    The state starts at 0. Each token first writes, then reads, so it sees itself.

    >>> K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
    >>> output, S = recurrent_attention(K, K, V)
    >>> output.ravel(), S.ravel()
    (array([1., 6.]), array([6., 0.]))
    """
    q, k, v = in_float64(Q=Q, K=K, V=V)
    S = np.zeros((k.shape[1], v.shape[1]))
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        S = S + np.outer(k[t], v[t])
        output[t] = q[t] @ S
    return output, S


def decayed_attention(Q: Array, K: Array, V: Array, decay: Array) -> tuple[Array, Array]:
    """The same with a state that fades: S ← a S + k vᵀ, o = qᵀS. Returns outputs and S.

    a is decay[t], the share of the old state that token t keeps. The token itself is written in
    full.

    >>> K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
    >>> decayed_attention(K, K, V, decay=np.array([0.5, 0.5]))[0].ravel()
    array([1. , 5.5])
    """
    q, k, v, a = in_float64(Q=Q, K=K, V=V, decay=decay)
    S = np.zeros((k.shape[1], v.shape[1]))
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        S = a[t] * S + np.outer(k[t], v[t])
        output[t] = q[t] @ S
    return output, S


def delta_rule(
    Q: Array, K: Array, V: Array, beta: Array, state: Array | None = None
) -> tuple[Array, Array]:
    """A state that corrects itself: S ← S + β k (v − Sᵀk)ᵀ, o = qᵀS. Returns outputs and S.

    Before it writes, a token reads what its key already gives, Sᵀk, and writes only what is
    missing. β is beta[t], and keys are used as they are. `state` (d, M) is the S of earlier tokens,
    or None for 0. Do not change it.

    >>> K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
    >>> delta_rule(K, K, V, beta=np.array([1.0, 1.0]))[0].ravel()
    array([1., 5.])
    """
    q, k, v, b = in_float64(Q=Q, K=K, V=V, beta=beta)
    S = np.zeros((k.shape[1], v.shape[1])) if state is None else state.astype(np.float64)
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        missing = v[t] - k[t] @ S
        S = S + b[t] * np.outer(k[t], missing)
        output[t] = q[t] @ S
    return output, S


def gated_delta_rule(
    Q: Array, K: Array, V: Array, beta: Array, decay: Array
) -> tuple[Array, Array]:
    """Decay, then correct: S ← a S, S ← S + β k (v − Sᵀk)ᵀ, o = qᵀS. Returns outputs and S.

    The correction sees the state after its decay.

    >>> K, V, one = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]]), np.ones(2)
    >>> gated_delta_rule(K, K, V, beta=one / 2, decay=one / 2)[0].ravel()
    array([0.5  , 2.625])
    """
    q, k, v, b, a = in_float64(Q=Q, K=K, V=V, beta=beta, decay=decay)
    S = np.zeros((k.shape[1], v.shape[1]))
    output = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        S = a[t] * S
        missing = v[t] - k[t] @ S
        S = S + b[t] * np.outer(k[t], missing)
        output[t] = q[t] @ S
    return output, S


def written_values(K: Array, V: Array, beta: Array) -> Array:
    """The W (n, M) whose rows the delta rule writes, all at once: S = Σₜ kₜwₜᵀ, from S = 0.

    wₜ = βₜ(vₜ − Σ_{j<t} (kₜ·kⱼ) wⱼ) depends on the rows above it. These n equations are a
    triangular system for W: solve it, for example with `np.linalg.solve`.

    >>> K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
    >>> written_values(K, V, beta=np.array([1.0, 1.0])).ravel()
    array([1., 4.])
    """
    k, v, b = in_float64(K=K, V=V, beta=beta)
    before = np.tril(k @ k.T, -1)
    system = np.eye(len(k)) + b[:, None] * before
    return np.linalg.solve(system, b[:, None] * v)


def chunked_delta_rule(
    Q: Array, K: Array, V: Array, beta: Array, chunk: int = 64
) -> tuple[Array, Array]:
    """The outputs and the state of `delta_rule`, `chunk` tokens at a time, without an n×n array.

    For each chunk, the state S before it plays the part of earlier tokens. W is `written_values`
    of what S does not give yet, V − KS. The outputs are QS plus the causal product (QKᵀ)W inside
    the chunk. Then S ← S + KᵀW. The last chunk may be shorter.

    >>> Q, K, V, beta = random_tokens(n=50, d=4, width=3)
    >>> found, S = chunked_delta_rule(Q, K, V, beta, chunk=16)
    >>> bool(np.allclose(found, delta_rule(Q, K, V, beta)[0]))
    True
    """
    q, k, v, b = in_float64(Q=Q, K=K, V=V, beta=beta)
    S = np.zeros((k.shape[1], v.shape[1]))
    output = np.zeros((len(q), v.shape[1]))
    for start in range(0, len(q), chunk):
        part = slice(start, start + chunk)
        W = written_values(k[part], v[part] - k[part] @ S, b[part])
        output[part] = q[part] @ S + np.tril(q[part] @ k[part].T) @ W
        S = S + k[part].T @ W
    return output, S


def delta_attention(Q: Array, K: Array, beta: Array) -> Array:
    """The weights A (n, n) that the delta rule implies: its outputs from S = 0 are exactly AV.

    AV = tril(QKᵀ)W, and W depends on V by a matrix that `written_values` finds for V = I. A is 0
    above the diagonal. Its entries can be negative, and its rows need not add up to 1.

    >>> K, beta = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1.0, 1.0])
    >>> delta_attention(K, K, beta) + 0.0  # the second token has replaced the first one
    array([[1., 0.],
           [0., 1.]])
    """
    q, k, b = in_float64(Q=Q, K=K, beta=beta)
    scores = np.tril(q @ k.T)
    return np.asarray(scores @ written_values(k, np.eye(len(k)), b))


def parity(bits: Array) -> Array:
    """Whether the number of ones so far is odd, 0 or 1 for every prefix, by a state of one number.

    bits (n,) holds 0 and 1. Let `delta_rule` flip the sign of a state that starts at 1: with the
    key 1 and the value 0, a token turns S into (1 − β)S, which is S for β = 0 and −S for β = 2. No
    decay between 0 and 1 can do that.

    >>> parity(np.array([1, 0, 1, 1]))
    array([1., 1., 0., 1.])
    """
    beta, one = 2.0 * bits, np.ones((len(bits), 1))
    signs, _ = delta_rule(one, one, 0 * one, beta, state=np.ones((1, 1)))
    return np.asarray((1 - signs[:, 0]) / 2)
