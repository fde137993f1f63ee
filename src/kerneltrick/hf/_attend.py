"""Attention by name: any dial as the attention function of any model that looks it up."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from kerneltrick import maps
from kerneltrick.attention import Dial, State, linear_attention
from kerneltrick.hf._formula import TERMS, own_formula, place, refused
from kerneltrick.hf._mask import AttentionError, Tokens, make_mask, read_mask
from kerneltrick.maps._registry import is_ours

PREFIX = "kerneltrick:"
TOLERANCE = 1e-3  # of a layer's own formula against softmax(s·QKᵀ)V, of the largest output
LAYER = "_kerneltrick_layer"  # by which a cache's layer comes along with the keys it was given


class Rule(NamedTuple):
    """How a layer attends: by a dial, with its scale; None: 1/√d."""

    dial: Dial
    scale: float | None


def register(setting: str | maps.FeatureMap | Dial) -> str:
    """Make a map, with the window beside it, known to transformers; the name it has there.

    setting: a text such as "taylor:order=2@window=64,sinks=4", a `FeatureMap` or a `Dial`.
    "softmax" is the attention that the model was trained with, by the compiled core.

    `attn_implementation=name` then takes it, in any model that uses transformers' attention
    interface: encoders and decoders, with padding on either side, packed sequences and grouped
    queries. Nothing is trained. Layers that are not softmax(s·QKᵀ)V (position biases, windows of
    their own, capped scores), and cross-attention, raise `AttentionError` when they run.

    transformers cannot tell a model that never asks for an attention function (DeBERTa, XLNet) that
    it should: such a model stays as it is.

    >>> import torch, transformers, kerneltrick.hf
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2,
    ... )
    >>> name = kerneltrick.hf.register("taylor:order=2@window=64,sinks=4")
    >>> name
    'kerneltrick:taylor:order=2@window=64,sinks=4'
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name)
    >>> model(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 50])
    """
    dial = Dial.get(setting)
    if not is_ours(dial.feature_map):
        raise TypeError(
            f"register needs a map that its text describes, such as 'elu', not {dial.feature_map}"
        )
    name = f"{PREFIX}{dial}"
    register_choice(name, lambda where, module: dial)
    return name


def register_choice(name: str, choose: Callable[[str, Any], Dial]) -> None:
    """Make a name known to transformers whose dial depends on the layer."""
    AttentionInterface.register(name, functools.partial(_attend, choose))
    AttentionMaskInterface.register(name, make_mask)


def _attend(
    choose: Callable[[str, Any], Dial],
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **keywords: Any,
) -> tuple[Any, None]:
    """The attention function: (batch, heads, n, d) → (batch, n, heads, M), and no weights."""
    where = place(module, getattr(module, "layer_idx", None))
    n_q, n_k, d = query.shape[2], key.shape[2], query.shape[3]
    scale = float(d**-0.5 if scaling is None else scaling)
    _check(where, module, (query, key, value), scale, dropout, keywords)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    tokens = read_mask(where, attention_mask, n_q, n_k, is_causal)
    # None: 1/√d, for exact weights and for maps that stand for them, as every function here has it.
    rule = Rule(choose(where, module), None if math.isclose(scale, d**-0.5) else scale)
    layer = key.__dict__.pop(LAYER, None)
    if layer is not None:
        out = layer.attend(where, rule, query, key, value, tokens)
    elif tokens.causal:
        before = None
        if n_k > n_q:  # keys of earlier calls, from a cache that keeps all of them
            earlier, own = slice(None, n_k - n_q), slice(n_k - n_q, None)
            k, v, past = key[:, :, earlier], value[:, :, earlier], tokens.stretch(earlier)
            before = absorb(rule, query.shape[1], k, v, past, None)
            key, value, tokens = key[:, :, own], value[:, :, own], tokens.stretch(own)
        out, _ = attend_causal(rule, query, key, value, tokens, before)
    else:
        # Of queries that are padding nothing is asked: they may have no key that they see.
        asked = tokens.keep if n_q == n_k else None
        out = linear_attention(
            query, key, value, rule.dial, scale=rule.scale, mask=tokens.keep, query_mask=asked
        )
    return out.transpose(1, 2).contiguous(), None


def attend_causal(
    rule: Rule, query: Any, key: Any, value: Any, tokens: Tokens, state: State | None
) -> tuple[Any, State]:
    """The outputs of tokens that come after `state`, and the state after them."""
    return linear_attention(
        query, key, value, rule.dial, scale=rule.scale, causal=True, mask=tokens.keep,
        segment_ids=tokens.segment_ids, state=state, return_state=True,
    )  # fmt: skip


def absorb(
    rule: Rule, heads: int, key: Any, value: Any, tokens: Tokens, state: State | None
) -> State:
    """The state after tokens whose outputs nobody needs, for so many query heads."""
    query = key.new_zeros((key.shape[0], heads, *key.shape[2:]))
    _, after = linear_attention(
        query, key, value, rule.dial, scale=rule.scale, causal=True, mask=tokens.keep,
        segment_ids=tokens.segment_ids, state=state, return_state=True, on_zero="zero",
    )  # fmt: skip
    return after


def _check(
    where: str,
    module: Any,
    arrays: tuple[Any, Any, Any],
    scale: float,
    dropout: float,
    keywords: dict[str, Any],
) -> None:
    """Refuse what is not self-attention by softmax(s·QKᵀ)V."""
    reason = refused(where, keywords, tuple(TERMS))
    if reason is not None:
        raise AttentionError(f"{reason}; a feature map would leave it out")
    if dropout:
        raise AttentionError(
            f"{where} drops attention weights (p = {dropout}), but here none are formed; set its "
            "attention dropout to 0, or call model.eval()"
        )
    config = getattr(module, "config", None)
    crossing = getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__
    if crossing or getattr(config, "is_encoder_decoder", False):
        raise AttentionError(
            f"{where} may attend from one sequence to another, of which a window means nothing; "
            "encoder–decoder models are not taken"
        )
    if module not in _CHECKED:
        _check_formula(where, module, arrays, scale, keywords)
        _CHECKED.add(module)


_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()


def _check_formula(
    where: str, module: Any, arrays: tuple[Any, Any, Any], scale: float, keywords: dict[str, Any]
) -> None:
    """Compare the formula of the model's own file with softmax(s·QKᵀ)V, on made-up tokens."""
    own = own_formula(module)
    if own is None:
        return
    n = 8
    made = []
    for number, x in enumerate(arrays):
        size = x.shape[1] * n * x.shape[3]
        values = torch.arange(size, dtype=torch.float32, device=x.device) * (number + 1.3)
        made.append(3 * values.sin().reshape(1, x.shape[1], n, x.shape[3]).to(x.dtype))
    query, key, value = made
    with torch.no_grad():
        open_mask = query.new_zeros((1, 1, n, n))
        theirs = own(module, *made, open_mask, scaling=scale, dropout=0.0, **keywords)[0]
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1).float() for x in (key, value))
        weights = (query.float() @ key.mT * scale).softmax(-1)
        ours = (weights @ value).transpose(1, 2)
    rounding = 8 * torch.finfo(theirs.dtype).eps
    error = float((ours - theirs.reshape(ours.shape)).abs().max() / ours.abs().max())
    if not error <= max(TOLERANCE, rounding):
        raise AttentionError(
            f"{where} does not compute softmax(s·QKᵀ)V: its own formula differs by {error:.1e} of "
            "the largest output"
        )
