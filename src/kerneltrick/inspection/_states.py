"""Measures of states: decays, β, what corrections take out, and how many directions are used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

from kerneltrick.attention import Dial
from kerneltrick.torch import DeltaOperator, LinearOperator, ScanOperator
from kerneltrick.torch import shared as for_heads

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

PLACES = 8  # along the text, where the rank of a state is measured
LENGTH = 1e-6  # added under the root when keys are normalised, as the delta rule does


def half_life(operator: Any, heads: int) -> list[float]:
    """ln 2 / mean −log decay of each head; the median over features."""
    if isinstance(operator, ScanOperator):
        decay = operator.step.mean((0, 1))[:, None] * operator.A  # (channels, N)
        return [float(math.log(2) / -decay.median())]
    if not isinstance(operator, (LinearOperator, DeltaOperator)) or is_softmax(operator):
        return [math.nan] * heads
    decay = operator.options.get("log_decay")
    if decay is None:
        return [math.inf] * heads
    decay = torch.as_tensor(decay).double()
    if decay.ndim >= 3:  # (batch, heads, n) or (batch, heads, n, features); 1: one for each head
        n = operator.q.shape[-2] // getattr(operator, "steps", 1)
        decay = decay.sum(2) / n if decay.ndim == 3 else (decay.sum(2) / n).median(-1).values
        decay = decay[0]
    rates = (-decay).expand(heads) if decay.ndim == 0 else -decay
    return [math.log(2) / float(rate) if rate > 0 else math.inf for rate in rates]


def strength(operator: Any, heads: int) -> list[float]:
    """The mean β of each head."""
    beta = getattr(operator, "beta", None)
    if not isinstance(beta, torch.Tensor):
        return [math.nan] * heads
    return [float(x) for x in beta[0].double().mean(-1)]


def memory(operator: Any, heads: int) -> tuple[list[float], list[float]]:
    """What corrections take out of the state, and its effective rank, for each head."""
    nothing = [math.nan] * heads
    if isinstance(operator, DeltaOperator):
        found, ranks = [], []
        for taken, S in _corrected(operator):
            if taken is not None:
                found.append(taken)
            if S is not None:
                ranks.append(effective_rank(S))
        taken_out = torch.stack(found).nanmean(0).tolist() if found else nothing
        return taken_out, torch.stack(ranks).mean(0).tolist()
    if isinstance(operator, LinearOperator):
        keys = _features(operator)
        if keys is not None:
            ranks = [effective_rank(S) for S in _summed(operator, keys)]
            mean = torch.stack(ranks).mean(0)
            return nothing, mean.repeat_interleave(heads // len(mean)).tolist()
    return nothing, nothing


def effective_rank(S: Tensor) -> Tensor:
    """exp of the entropy of the singular values, for each of (heads, d, M).

    >>> effective_rank(torch.eye(3)[None]).item(), effective_rank(torch.ones(1, 4, 4)).item()
    (3.0, 1.0)
    """
    values = torch.linalg.svdvals(S)
    p = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(S.dtype).tiny)
    return torch.exp(torch.special.entr(p).sum(-1)).float().round(decimals=4)


def places(n: int) -> set[int]:
    """The tokens after which a state is looked at.

    >>> sorted(places(16))
    [1, 3, 5, 7, 9, 11, 13, 15]
    """
    return {(i + 1) * n // PLACES - 1 for i in range(PLACES)} - {-1}


def is_softmax(operator: Any) -> bool:
    """Whether the operator is attention without features, whose state is a cache."""
    if not isinstance(operator, LinearOperator) or operator.feature_map == "identity":
        return False
    return not Dial.get(operator.feature_map).feature_map.has_features


def _corrected(operator: DeltaOperator) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """For each correction, the share of the state that it takes out, and the state at places."""
    heads = operator.v.shape[1]
    k, v = (for_heads(x, heads)[0].double() for x in (operator.k, operator.v))
    if operator.options.get("normalize_qk"):
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + LENGTH)
    given = [operator.options.get(name) for name in ("erase", "read", "log_decay")]
    erase, read = (k if x is None else for_heads(x, heads)[0].double() for x in given[:2])
    decay, beta = given[2], operator.beta
    n = k.shape[1]
    S = k.new_zeros(heads, k.shape[-1], v.shape[-1])
    looked = places(n)
    for t in range(n):
        b = beta[0, :, t, None, None].double() if isinstance(beta, torch.Tensor) else beta
        if decay is not None:
            now = torch.exp(torch.as_tensor(decay)[0, :, t].double())
            S = S * (now[..., None, None] if now.ndim == 1 else now[..., None])
        taken = b * erase[:, t, :, None] * (read[:, t, None] @ S)
        size = torch.linalg.matrix_norm(S)
        share = torch.where(size > 0, torch.linalg.matrix_norm(taken) / size, math.nan)
        S = S - taken + b * k[:, t, :, None] * v[:, t, None]
        yield (share if t else None), (S if t in looked else None)


def _features(operator: LinearOperator) -> Tensor | None:
    """φ(k), (key heads, n, m), or None where there are no features."""
    if operator.feature_map == "identity":
        return operator.k[0].double()
    dial = Dial.get(operator.feature_map)
    if not dial.feature_map.has_features:
        return None
    scale = operator.options.get("scale")
    if scale is None:
        scale = operator.k.shape[-1] ** -0.5 if dial.feature_map.approximates_softmax else 1.0
    keys = operator.k[0].double() * scale**0.5
    made = dial.feature_map.phi(keys, torch.arange(keys.shape[-2]))
    return made if made.shape[-1] * operator.v.shape[-1] <= 1 << 22 else None


def _summed(operator: LinearOperator, keys: Tensor) -> Iterator[Tensor]:
    """Σ_j decay φ(k_j) v_jᵀ after the tokens that are looked at."""
    v, decay = operator.v[0].double(), operator.options.get("log_decay")
    n = keys.shape[-2]
    if decay is not None:
        decay = torch.as_tensor(decay).double()
        decay = decay[0] if decay.ndim > 1 else decay.reshape(-1, 1).expand(len(keys), n)
        decay = decay[..., None] if decay.ndim == 2 else decay
        since = decay.cumsum(-2)
    for t in sorted(places(n)):
        past = keys[:, : t + 1]
        if decay is not None:
            past = past * torch.exp(since[:, t : t + 1] - since[:, : t + 1])
        yield past.mT @ v[:, : t + 1]
