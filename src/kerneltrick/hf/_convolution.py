"""The causal short convolution, as transformers calls it: channels before tokens."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from kerneltrick import engines
from kerneltrick.attention import short_convolution
from kerneltrick.hf._packed import segments

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

SILU = ("silu", "swish")  # the activation that the operator applies itself


def convolution(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **more: Any,
) -> Tensor:
    """`causal_conv1d_fn`: hidden_states (batch, channels, n), weight (channels, taps)."""
    batch, _, n = hidden_states.shape
    made = short_convolution(
        hidden_states.transpose(1, 2),
        weight,
        bias,
        activation="silu" if activation in SILU else None,
        segment_ids=segments(more, batch, n),
    )
    return _activated(made.transpose(1, 2), activation)


def convolution_update(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """`causal_conv1d_update`: the next tokens; conv_state (batch, channels, l) changes in place.

    The state holds the last l ≥ taps − 1 tokens, the latest at the end.
    """
    silu = activation in SILU
    length, new = conv_state.shape[-1], hidden_states.shape[-1]
    older = length - weight.shape[-1] + 1  # tokens of the state that no tap reaches any more
    if 0 < older <= new <= length - older:
        conv_state.narrow(2, 0, older).copy_(conv_state.narrow(2, new, older))
    elif older:
        line = torch.cat([conv_state, hidden_states.to(conv_state.dtype)], dim=-1)
        conv_state[:, :, :older].copy_(line[:, :, new : new + older])
    state = conv_state.narrow(2, older, length - older) if older else conv_state
    again = engines.convolution_step(hidden_states, state, weight, bias, silu)
    if again is not None:
        return again if silu else _activated(again, activation)
    made = short_convolution(
        hidden_states.transpose(1, 2),
        weight,
        bias,
        activation="silu" if silu else None,
        state=state.transpose(1, 2),
        inplace=True,
    )
    return _activated(made.transpose(1, 2), activation)


def dynamic_convolution(
    self: Any,
    hidden_states: Tensor,
    dynamic_input: Tensor,
    past_key_values: Any = None,
    conv_mask: Tensor | None = None,
    **more: Any,
) -> Tensor:
    """`Inkling2DynamicShortConvolution.forward`: taps of each channel, and taps of each token.

    hidden_states is (batch, n, channels). The taps of a token, one set for each head, come from
    dynamic_input (batch, n, width); tap i weights the token i places before it.
    """
    batch, n, _ = hidden_states.shape
    taps, split = self.conv_kernel_size, (self.num_heads, -1)
    x = hidden_states.float()
    context = x if conv_mask is None else x * conv_mask[:, :, None]
    if past_key_values is not None:
        context = past_key_values.update_conv_state(
            context.mT, self.layer_idx, state_idx=self.conv_idx, conv_kernel_size=taps
        ).mT
    texts = segments(more, batch, context.shape[1])
    context = functional.pad(context, (0, 0, taps - 1, 0))[:, -(n + taps - 1) :]
    context = context.unflatten(-1, split)
    static = self.static_weight.float().unflatten(-1, split)
    dynamic = self.weight_proj(dynamic_input).float().view(batch, n, self.num_heads, taps)
    made = x.unflatten(-1, split)
    for i in range(taps):
        weight, start = static[i] + dynamic[..., i, None], taps - 1 - i
        if texts is not None:
            same = texts == functional.pad(texts, (i, 0), value=-1)[:, :n]
            weight = weight * same[:, :, None, None]
        made = torch.addcmul(made, weight, context[:, start : start + n])
    return (made.flatten(2) / math.sqrt(2 * taps + 1)).to(hidden_states.dtype)


def _activated(made: Tensor, activation: str | None) -> Tensor:
    return made if activation in (None, *SILU) else ACT2FN[activation](made)
