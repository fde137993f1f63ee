"""The gated delta rule and KDA, as transformers calls them: tokens before heads."""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import torch

from kerneltrick._arrays import untranslated
from kerneltrick.attention import DeltaState, delta_rule
from kerneltrick.hf._packed import boundaries, segments

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
        ends = boundaries(more, query.shape[0])
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
    options: dict[str, Any] = {"segment_ids": texts, "return_state": wants_state}
    if before is not None:
        options["state"] = DeltaState(before.to(torch.promote_types(v.dtype, torch.float32)))
    made = delta_rule(
        q, k, v, beta, log_decay=log_decay, scale=scale, normalize_qk=normalize, **options
    )
    output, state = made if wants_state else (made, None)
    return output.transpose(1, 2), None if state is None else state.S
