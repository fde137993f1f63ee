"""The gated delta rule and KDA, as transformers calls them: tokens before heads."""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import torch

from kerneltrick import engines
from kerneltrick._arrays import untranslated
from kerneltrick.attention import DeltaState, delta_rule
from kerneltrick.hf._packed import boundaries, is_packed, segments
from kerneltrick.hf._state_space import finite_decay
from kerneltrick.hf._watch import is_watched, show
from kerneltrick.torch import DeltaOperator

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def chunk_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """`chunk_gated_delta_rule` and `chunk_kda`, whose log-decay `g` is per token and feature.

    query and key are (batch, n, H_k, d), value (batch, n, H_v, M), g and beta (batch, n, H_v),
    states (batch, H_v, d, M). With `cu_seqlens` there is one state for each text.
    """
    inputs = (query, key, value, g, beta)
    scale = more.get("scale")
    options = (use_qk_l2norm_in_kernel, query.shape[-1] ** -0.5 if scale is None else float(scale))
    ends = None
    if initial_state is not None or output_final_state:
        ends = boundaries(more, *query.shape[:2])
    if ends is None:
        texts = segments(more, *query.shape[:2])
        output, state = _rule(inputs, texts, initial_state, *options, output_final_state)
        return output, state
    outputs, states = [], []
    for i, (start, stop) in enumerate(itertools.pairwise(ends)):
        text = tuple(x[:, start:stop] for x in inputs)
        before = None if initial_state is None else initial_state[i : i + 1]
        output, state = _rule(text, None, before, *options, True)
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs, dim=1), torch.cat(states) if output_final_state else None


def recurrent_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """`fused_recurrent_gated_delta_rule` and `fused_recurrent_kda`: the same, for a few tokens."""
    if query.shape[1] == 1 and initial_state is not None and not is_packed(more):
        inputs = (query, key, value, g, beta)
        output, state = _step(inputs, initial_state, use_qk_l2norm_in_kernel, more.get("scale"))
        return output, state if output_final_state else None
    return chunk_delta_rule(
        query,
        key,
        value,
        g,
        beta,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        **more,
    )


def _step(
    inputs: tuple[Tensor, ...], before: Tensor, normalize: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """One token of a decoder: by the core, or, where it is traced or recorded, as a formula."""
    q, k, v, log_decay, beta = inputs
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    made = engines.delta_step((q, k, v, beta, log_decay), before, normalize, factor)
    if made is not None:
        return made
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v, log_decay, beta = (x[:, 0].to(wide) for x in inputs)
    if normalize:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    if q.shape[1] != v.shape[1]:
        q, k = (x.repeat_interleave(v.shape[1] // q.shape[1], dim=1) for x in (q, k))
    decay = torch.exp(log_decay if log_decay.ndim == 3 else log_decay[..., None])
    state = before.to(wide) * decay[..., None]
    known = (k[..., None, :] @ state)[..., 0, :]  # what the key gives back
    state = torch.addcmul(state, k[..., None], (beta[..., None] * (v - known))[..., None, :])
    output = q[..., None, :] @ state * factor
    return output.transpose(1, 2).to(inputs[2].dtype), state


@untranslated
def _rule(
    inputs: tuple[Tensor, ...],
    texts: Tensor | None,
    before: Tensor | None,
    normalize: bool,
    scale: float,
    wants_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """The outputs, tokens before heads, and the state after the last token if it is asked for."""
    q, k, v, log_decay, beta = (x.transpose(1, 2) for x in inputs)
    log_decay, v = finite_decay(log_decay, v)
    options: dict[str, Any] = {"segment_ids": texts, "return_state": wants_state}
    if is_watched():
        given = {"log_decay": log_decay, "scale": scale, "normalize_qk": normalize}
        show(DeltaOperator(q, k, v, beta, {**given, "segment_ids": texts}))
    if before is not None:
        options["state"] = DeltaState(before.to(torch.promote_types(v.dtype, torch.float32)))
    made = delta_rule(
        q, k, v, beta, log_decay=log_decay, scale=scale, normalize_qk=normalize, **options
    )
    output, state = made if wants_state else (made, None)
    return output.transpose(1, 2), None if state is None else state.S
