"""The delta rule token by token: the recurrence as it is written."""

from __future__ import annotations

from typing import Any

from kerneltrick._arrays import Array, scan, space
from kerneltrick.engines._delta_problem import (
    DeltaCarry,
    DeltaData,
    DeltaResult,
    DeltaRule,
    DeltaTokens,
    finish_delta,
    first_carry,
    last_state,
    prepare_tokens,
)
from kerneltrick.engines._problem import either


def delta_recurrent(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    """S ← D S − x (β eᵀ D S) + k (β v)ᵀ, o = scale · Sᵀ q, one token at a time."""
    heads = data.k.shape[-3]

    def body(carry: DeltaCarry, streams: Any, first: Any, valid: Array | None) -> Any:
        token = prepare_tokens(rule, streams, heads)
        carry = _step(carry, token)
        return carry, (finish_delta(token.q @ carry.state, token, carry.bad, data.v.dtype),)

    carry = first_carry(data)
    carry, (output,) = scan(body, carry, data.streams, length=data.v.shape[-2], block=1)
    return DeltaResult(output, last_state(rule, carry))


def _step(carry: DeltaCarry, token: DeltaTokens) -> DeltaCarry:
    """The state after one more token. `token.read` and `token.write` are βe and βv, as rows."""
    S, bad = carry
    xp = space(S)
    if token.restart is not None:
        S = xp.where(token.restart, xp.zeros_like(S), S)
        bad = None if bad is None else bad & ~token.restart
    if token.log_decay is not None:
        S = xp.exp(token.log_decay).mT * S
    erase = token.k if token.erase is None else token.erase
    S = S - erase.mT @ (token.read @ S) + token.k.mT @ token.write
    return DeltaCarry(S, either(bad, token.bad))
