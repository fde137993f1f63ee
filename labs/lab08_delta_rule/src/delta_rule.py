"""Lab 08, a state that corrects itself: recurrences, the delta rule, its chunks and its weights.

Rows are tokens: Q and K have shape (n, d) and V has (n, M). The state S has shape (d, M), and a
query reads qᵀS. There is no softmax, no scale and no normaliser. beta and decay have one number per
token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
    # YOUR CODE HERE
    raise NotImplementedError("recurrent_attention")


def decayed_attention(Q: Array, K: Array, V: Array, decay: Array) -> tuple[Array, Array]:
    """The same with a state that fades: S ← a S + k vᵀ, o = qᵀS. Returns outputs and S.

    a is decay[t], the share of the old state that token t keeps. The token itself is written in
    full.

    >>> K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
    >>> decayed_attention(K, K, V, decay=np.array([0.5, 0.5]))[0].ravel()
    array([1. , 5.5])
    """
    # YOUR CODE HERE
    raise NotImplementedError("decayed_attention")


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
    # YOUR CODE HERE
    raise NotImplementedError("delta_rule")


def gated_delta_rule(
    Q: Array, K: Array, V: Array, beta: Array, decay: Array
) -> tuple[Array, Array]:
    """Decay, then correct: S ← a S, S ← S + β k (v − Sᵀk)ᵀ, o = qᵀS. Returns outputs and S.

    The correction sees the state after its decay.

    >>> K, V, one = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]]), np.ones(2)
    >>> gated_delta_rule(K, K, V, beta=one / 2, decay=one / 2)[0].ravel()
    array([0.5  , 2.625])
    """
    # YOUR CODE HERE
    raise NotImplementedError("gated_delta_rule")


def written_values(K: Array, V: Array, beta: Array) -> Array:
    """The W (n, M) whose rows the delta rule writes, all at once: S = Σₜ kₜwₜᵀ, from S = 0.

    wₜ = βₜ(vₜ − Σ_{j<t} (kₜ·kⱼ) wⱼ) depends on the rows above it. These n equations are a
    triangular system for W: solve it, for example with `np.linalg.solve`.

    >>> K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
    >>> written_values(K, V, beta=np.array([1.0, 1.0])).ravel()
    array([1., 4.])
    """
    # YOUR CODE HERE
    raise NotImplementedError("written_values")


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
    # YOUR CODE HERE
    raise NotImplementedError("chunked_delta_rule")


def delta_attention(Q: Array, K: Array, beta: Array) -> Array:
    """The weights A (n, n) that the delta rule implies: its outputs from S = 0 are exactly AV.

    AV = tril(QKᵀ)W, and W depends on V by a matrix that `written_values` finds for V = I. A is 0
    above the diagonal. Its entries can be negative, and its rows need not add up to 1.

    >>> K, beta = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1.0, 1.0])
    >>> delta_attention(K, K, beta) + 0.0  # the second token has replaced the first one
    array([[1., 0.],
           [0., 1.]])
    """
    # YOUR CODE HERE
    raise NotImplementedError("delta_attention")


def parity(bits: Array) -> Array:
    """Whether the number of ones so far is odd, 0 or 1 for every prefix, by a state of one number.

    bits (n,) holds 0 and 1. Let `delta_rule` flip the sign of a state that starts at 1: with the
    key 1 and the value 0, a token turns S into (1 − β)S, which is S for β = 0 and −S for β = 2. No
    decay between 0 and 1 can do that.

    >>> parity(np.array([1, 0, 1, 1]))
    array([1., 1., 0., 1.])
    """
    # YOUR CODE HERE
    raise NotImplementedError("parity")
