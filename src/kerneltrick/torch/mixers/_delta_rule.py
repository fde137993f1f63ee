"""The delta rule in a layer: it continues from a state, or from the tokens of other ranks."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.attention import DeltaState, delta_rule
from kerneltrick.torch._implied import DeltaOperator
from kerneltrick.torch._mixer import Heads, Mixer, Tensor, Tokens
from kerneltrick.torch._mixer_state import Held, Memory

STEPS = (1e-3, 1e-1)  # the range of the step Δ at the start of training
RATES = (1.0, 16.0)  # the range of the decay rate A


def correct(
    tokens: Tokens, heads: Heads, past: Memory | None, **options: Any
) -> tuple[Tensor, Memory]:
    """`kerneltrick.delta_rule` of the heads, and the memory after it.

    The states are not sums over tokens, so they cannot be merged. Over ranks, the state after the
    tokens of one rank is A S + B and the output is o₀ + P S, for each column of the values
    separately. B and o₀ are the results for S = 0; A and P are the results for the identity with
    values 0. All four are columns of one pass, and only A and B are sent.
    """
    assert past is None or isinstance(past, Held)
    beta, given = _given(tokens, heads, options)
    given |= {"beta": beta, "return_state": True}
    state, stop = None if past is None else past.tensor, tokens.start + tokens.x.shape[1]
    q, k, v = heads.q, heads.k, heads.v
    if tokens.before is None:
        held = None if state is None else DeltaState(state)
        o, after = delta_rule(q, k, v, state=held, **given)
        return o, Held(after.S, stop)
    d, width, dtype = k.shape[-1], v.shape[-1], v.dtype
    wide = torch.promote_types(dtype, torch.float32)  # nothing is rounded before S is known
    q, k, v = (x.to(wide) for x in (q, k, v))
    given |= {x: None if given[x] is None else given[x].to(wide) for x in ("erase", "read")}
    identity = torch.eye(d, dtype=wide, device=v.device).expand(*v.shape[:2], d, d)
    start = DeltaState(functional.pad(identity, (width, 0)))
    o, after = delta_rule(q, k, functional.pad(v, (0, d)), state=start, **given)
    (o, P), (B, A) = (x.split([width, d], dim=-1) for x in (o, after.S))
    S = tokens.before.carried(A, B, state)
    return (o + P @ S).to(dtype), Held(A @ S + B, stop)


class DeltaMixer(Mixer):
    """A mixer whose heads are mixed by the delta rule."""

    options: ClassVar[dict[str, Any]] = {}  # keyword arguments of `delta_rule`
    steps = 1  # corrections for each token

    def _mix(self, tokens: Tokens, heads: Heads, past: Memory | None) -> tuple[Tensor, Memory]:
        return correct(tokens, heads, past, **self.options)

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> DeltaOperator:
        beta, options = _given(tokens, heads, self.options)
        return DeltaOperator(heads.q, heads.k, heads.v, beta, options, self.steps)


def _given(
    tokens: Tokens, heads: Heads, options: dict[str, Any]
) -> tuple[Tensor | float, dict[str, Any]]:
    """β, and the keyword arguments of `delta_rule` and of `delta_weights`."""
    given = {"erase": heads.erase, "read": heads.read, "log_decay": heads.log_decay}
    given |= {"mask": tokens.mask, "segment_ids": tokens.segment_ids}
    return 1.0 if heads.beta is None else heads.beta, given | options


def decay_rates(count: int) -> nn.Parameter:
    """log A for each head, with A spread over `RATES`."""
    low, high = RATES
    return nn.Parameter(torch.log(low + (high - low) * torch.rand(count)))


def step_biases(count: int) -> nn.Parameter:
    """softplus⁻¹ of steps Δ, which are spread over `STEPS` evenly in their logarithm."""
    low, high = (math.log(step) for step in STEPS)
    steps = torch.exp(low + (high - low) * torch.rand(count))
    return nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
