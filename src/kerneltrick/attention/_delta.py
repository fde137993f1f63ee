"""The delta rule: a state that is corrected instead of only added to."""

from __future__ import annotations

from typing import Any, Literal, overload

from kerneltrick import engines
from kerneltrick._arrays import Array, astype, untranslated
from kerneltrick.attention._delta_call import DeltaOptions, check_delta_call
from kerneltrick.attention._delta_state import DeltaState


@overload
def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Any = ...,
    *,
    log_decay: Any = ...,
    erase: Array | None = ...,
    read: Array | None = ...,
    scale: float | None = ...,
    normalize_qk: bool = ...,
    mask: Array | None = ...,
    segment_ids: Array | None = ...,
    state: DeltaState | None = ...,
    return_state: Literal[False] = ...,
    engine: str = ...,
) -> Array: ...


@overload
def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Any = ...,
    *,
    log_decay: Any = ...,
    erase: Array | None = ...,
    read: Array | None = ...,
    scale: float | None = ...,
    normalize_qk: bool = ...,
    mask: Array | None = ...,
    segment_ids: Array | None = ...,
    state: DeltaState | None = ...,
    return_state: Literal[True],
    engine: str = ...,
) -> tuple[Array, DeltaState]: ...


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Any = 1.0,
    *,
    log_decay: Any = None,
    erase: Array | None = None,
    read: Array | None = None,
    scale: float | None = None,
    normalize_qk: bool = False,
    mask: Array | None = None,
    segment_ids: Array | None = None,
    state: DeltaState | None = None,
    return_state: bool = False,
    engine: str = "auto",
) -> Array | tuple[Array, DeltaState]:
    """S_t = D_t S_{t−1} − x_t (β_t e_tᵀ D_t S_{t−1}) + k_t (β_t v_t)ᵀ, o_t = scale · S_tᵀ q_t.

    Before a token writes its value under its key, it erases a share β of what the key gives back:
    the state is corrected, not only added to. D_t = diag(exp(log_decay_t)); x is `erase` and e is
    `read`, both k unless given. One recurrence covers most linear-attention models in use:

    - DeltaNet: `beta`. Gated DeltaNet (Qwen3-Next): also `log_decay` per token. KDA (Kimi Linear):
      `log_decay` per token and feature.
    - Comba: `read=p`.
    - GDN-2: `read=b * k`, values `c * v`, beta 1.
    - RWKV-7 reads before the decay: `read=kappa / exp(log_decay)`, `erase=a * kappa`, beta 1. Its
      log-decay is bounded below (−0.61 a token), so the quotient is safe.

    Parameters
    ----------
    q, k, v
        (..., heads, n, d) or (n, d), of any array library; v may have another width M. q and k may
        have fewer heads than v: value head h uses key head h // (H_v / H_k).
    beta
        A number, also as an array without axes, or one per token (..., H_v, n): usually between 0
        and 1; up to 2 gives negative eigenvalues.
    log_decay
        ≤ 0 and finite where tokens are not masked; the state is multiplied by exp(log_decay) before
        each token. A number, (H_v,), one per token (..., H_v, n), or one per token and feature
        (..., H_v, n, d).
    erase, read
        Where a token erases, and what it reads for that; the shape of k, and k unless given.
    scale
        > 0; q is multiplied by it. None: 1/√d.
    normalize_qk
        Divide q and k by √(Σx² + 1e-6) first, as the published models do. `erase` and `read` are
        taken as they are, but by default they are the normalised k.
    mask
        True = keep; (..., H_v, n), (..., n) or (n,). A masked token neither corrects nor decays the
        state, and its output and gradients are 0.
    segment_ids
        Whole numbers (..., n): the state restarts where the id changes. The first segment
        continues `state`.
    state, return_state
        Continue after `state`; also return the state after the last token.
    engine
        "native" (compiled, for arrays on the CPU), "chunked", "recurrent", or "auto": native where
        it can be, else chunked.

    Returns
    -------
    The output (..., H_v, n, M), in kind and in the dtype of v; with `return_state` also the state.

    float16 and bfloat16 are computed in float32. A NaN or inf makes NaN exactly the outputs that
    depend on it: in v its column, from that token on; in k, erase, read, beta or log_decay all
    columns, from that token on; in q its row. Earlier outputs keep every bit. Values may be as
    large as sums of them fit into the arithmetic (3.4 · 10³⁸ in float32), also beside decays; but
    beside decays of features the native engine's gradients of q, k and log_decay need |v|, times
    those of the outputs, below 10²⁴ in float32. Derivations: docs/08_modern_kin.md.

    >>> import numpy as np, kerneltrick as kt
    >>> k = np.eye(4)[[0, 1, 0]]  # the first key again: its value is replaced
    >>> v = np.array([[1.0], [2.0], [5.0]])
    >>> o, state = kt.delta_rule(k, k, v, scale=1, return_state=True)
    >>> o.ravel().tolist(), state.S.ravel().tolist()
    ([1.0, 2.0, 5.0], [5.0, 2.0, 0.0, 0.0])
    """
    options = DeltaOptions(
        log_decay=log_decay,
        erase=erase,
        read=read,
        scale=scale,
        normalize_qk=normalize_qk,
        mask=mask,
        segment_ids=segment_ids,
        state=state,
        return_state=return_state,
    )
    return _run("delta_rule", q, k, v, beta, options, engine)


@untranslated
def _run(
    who: str, q: Array, k: Array, v: Array, beta: Any, options: DeltaOptions, engine: str
) -> Array | tuple[Array, DeltaState]:
    """The output, and the state if `options` ask for it."""
    call = check_delta_call(who, q, k, v, beta, options)
    output, S = engines.run(engine, call.rule, call.data)
    output = call.inputs.restore(output[..., :0, :] if call.padded else output)
    output = astype(output, v.dtype)
    if not options.return_state:
        return output
    start = 0 if options.state is None else options.state.start
    stop = call.data.start + call.inputs.v.shape[-2]
    return output, DeltaState(call.inputs.restore(S), start, stop)
