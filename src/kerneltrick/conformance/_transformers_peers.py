"""The readable functions that models of transformers call where no kernel is installed."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    """Qwen3-Next: chunks, and the loop for one token after a state, as its layer chooses."""
    step = state is not None and q.shape[2] == 1
    rule = qwen3.torch_recurrent_gated_delta_rule if step else qwen3.torch_chunk_gated_delta_rule
    return _tokens_first(rule, q, k, v, log_decay, beta, state)


def recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    return _tokens_first(qwen3.torch_recurrent_gated_delta_rule, q, k, v, log_decay, beta, state)


def kimi_delta_attention(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    """Kimi Linear: chunks, and the loop for one token after a state."""
    step = state is not None and q.shape[2] == 1
    rule = kimi.recurrent_kimi_delta_attention if step else kimi.chunk_kimi_delta_attention
    return _tokens_first(rule, q, k, v, log_decay, beta, state)


def _tokens_first(
    rule: Any, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Any
) -> tuple[Tensor, Any]:
    given = [x.transpose(1, 2) for x in (q, k, v, log_decay, beta)]
    o, after = rule(*given, initial_state=state, output_final_state=True)
    return o.transpose(1, 2), after


def mamba2_scan(
    q: Tensor, k: Tensor, v: Tensor, dt: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    """Mamba-2: chunks, and its update for one token after a state, which it changes in place."""
    A = -torch.ones(v.shape[1])
    if state is not None and q.shape[2] == 1:
        heads, width, size = state.shape[1:]
        C, B, x, step = (y[:, :, 0] for y in (q, k, v, dt))
        A, step = A[:, None, None].expand(heads, width, size), step[..., None].expand_as(x)
        return mamba2.mamba2_selective_state_update(state, x, step, A, B, C)[:, :, None], state
    C, B, x, dt = (y.transpose(1, 2) for y in (q, k, v, dt))
    options = {"chunk_size": 64, "initial_states": state, "return_final_states": True}
    o, after = mamba2.mamba2_chunk_scan(x, dt, A, B, C, **options)
    return o.transpose(1, 2).to(v.dtype), after
