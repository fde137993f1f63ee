"""The attention function that takes the place of softmax in a model of transformers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kerneltrick.attention import Dial, State, linear_attention
from kerneltrick.hf._call import TERMS, check_terms, layer_name, read_call
from kerneltrick.hf._mask import AttentionError, TokenMask, kept_positions
from kerneltrick.hf._watch import is_watched, show
from kerneltrick.torch import LinearOperator


class _Handover(threading.local):
    """The layer of a cache that this thread's keys just went through, and those keys."""

    def __init__(self) -> None:
        self.layer: Any = None
        self.keys: Any = None


_HANDOVER = _Handover()


def hand_over(layer: Any, keys: Any) -> None:
    """Let the attention function that gets these very keys next know the layer of their cache.

    transformers shows the cache to the layers of a model, not to their attention function.
    """
    _HANDOVER.layer, _HANDOVER.keys = layer, keys


def _layer_of(keys: Any) -> Any:
    """Return the layer of a cache that these keys went through, if any, and forget it."""
    if _HANDOVER.keys is not keys:
        return None
    layer = _HANDOVER.layer
    _HANDOVER.layer = _HANDOVER.keys = None
    return layer


class LayerSetting(NamedTuple):
    """How a layer attends: its dial and its scale.

    None stands for 1/√d, for exact weights and for maps that approximate them.
    """

    dial: Dial
    scale: float | None

    @staticmethod
    def of(dial: Dial, scale: float, d: int) -> LayerSetting:
        """Return the setting of a call that scales its scores so, with heads of width d."""
        return LayerSetting(dial, None if math.isclose(scale, d**-0.5) else scale)


def replacement_attention(
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
    """Attend as transformers' attention functions do.

    Queries are (batch, heads, n, d) and outputs (batch, n, heads, M). No weights are returned.
    `choose` gives the dial for a layer.
    """
    where = layer_name(module, getattr(module, "layer_idx", None))
    check_terms(where, keywords, TERMS)
    _check_self_attention(where, module, dropout)
    call = read_call(
        where, module, (query, key, value), attention_mask, scaling, is_causal, keywords
    )
    n_q, n_k, d = query.shape[2], key.shape[2], query.shape[3]
    rule, tokens = LayerSetting.of(choose(where, module), call.scale, d), call.tokens
    layer = _layer_of(key)
    if n_q == n_k and (layer is None or not layer.seen):
        _check_places(where, rule, tokens, keywords.get("position_ids"))
    if rule.dial.feature_map.uses_positions:
        cached = layer is not None
        places = _places(where, tokens, keywords.get("position_ids"), key, cached=cached)
        tokens = tokens._replace(positions=places)
    if is_watched():
        causal = {"segment_ids": tokens.segment_ids} if tokens.causal else {}
        given = {"causal": tokens.causal, "mask": tokens.keep, "scale": rule.scale, **causal}
        show(LinearOperator(query, key, value, rule.dial, {**given, "on_zero": "zero"}))
    if layer is not None:
        out = layer.attend_cached(where, rule, query, key, value, tokens)
    elif tokens.causal:
        before = None
        if n_k > n_q:  # a cache that keeps all keys brings those of earlier calls
            earlier, own = slice(None, n_k - n_q), slice(n_k - n_q, None)
            k, v, past = key[:, :, earlier], value[:, :, earlier], tokens.stretch(earlier)
            before = absorb(rule, query.shape[1], k, v, past, None)
            key, value, tokens = key[:, :, own], value[:, :, own], tokens.stretch(own)
        out, _ = attend_causal(rule, query, key, value, tokens, before)
    else:
        # Queries that are padding may see no key at all, so their outputs are not asked for.
        asked = tokens.keep if n_q == n_k else None
        out = linear_attention(
            query,
            key,
            value,
            rule.dial,
            scale=rule.scale,
            mask=tokens.keep,
            query_mask=asked,
            positions=tokens.positions,
        )
    return out.transpose(1, 2).contiguous(), None


def _check_places(where: str, rule: LayerSetting, tokens: TokenMask, places: Any) -> None:
    """Raise AttentionError if the model's positions count padding, and the map notices that."""
    phi, keep = rule.dial.feature_map, tokens.keep
    turns = phi.has_features and not phi.kernel_script  # no function of q·k, as rotary is
    if not (turns and tokens.causal) or keep is None or not _is_plain(places, keep.shape[1]):
        return
    first = keep.long().argmax(dim=1)
    at = places.expand(len(keep), -1).gather(1, first[:, None])[:, 0]
    if not torch.compiler.is_compiling() and bool(((first > 0) & (at == first)).any()):
        raise AttentionError(
            f"{where} has padding on the left, which the positions of its tokens count; the map "
            f"{phi} needs those of the text alone: pass position_ids=(mask.cumsum(-1) - 1)"
            ".clamp(min=0), or pad on the right"
        )


def _places(where: str, tokens: TokenMask, places: Any, key: Any, *, cached: bool) -> Any:
    """Return the positions of keys (batch, n_k) for a map that uses them; None counts tokens.

    A cache sees the mask of new tokens alone, so it needs the positions that the model has.
    """
    if not cached:
        return None if tokens.keep is None else kept_positions(tokens.keep)
    if _is_plain(places, key.shape[2]):
        return places.expand(key.shape[0], -1)
    if tokens.keep is None:
        return None
    raise AttentionError(
        f"{where} does not tell its attention the positions of its tokens, which this map needs "
        "with padding and a cache; read one text at a time, or without a cache"
    )


def _is_plain(places: Any, n: int) -> bool:
    """Return whether these are positions of n tokens in each text, not those of pictures."""
    return bool(torch.is_tensor(places)) and places.ndim == 2 and places.shape[1] == n


def attend_causal(
    rule: LayerSetting, query: Any, key: Any, value: Any, tokens: TokenMask, state: State | None
) -> tuple[Any, State]:
    """Return the outputs of tokens that follow `state`, and the state after them."""
    return _continue(rule, query, key, value, tokens, state)


def absorb(
    rule: LayerSetting, heads: int, key: Any, value: Any, tokens: TokenMask, state: State | None
) -> State:
    """Return the state after tokens whose outputs nobody needs, for so many query heads."""
    query = key.new_zeros((key.shape[0], heads, *key.shape[2:]))
    return _continue(rule, query, key, value, tokens, state, on_zero="zero")[1]


def _continue(
    rule: LayerSetting,
    query: Any,
    key: Any,
    value: Any,
    tokens: TokenMask,
    state: State | None,
    **more: Any,
) -> tuple[Any, State]:
    how = {"causal": True, "mask": tokens.keep, "segment_ids": tokens.segment_ids, "state": state}
    how["positions"] = tokens.positions
    return linear_attention(
        query, key, value, rule.dial, scale=rule.scale, return_state=True, **how, **more
    )


def _check_self_attention(where: str, module: Any, dropout: float) -> None:
    """Raise AttentionError for what a feature map cannot do."""
    if dropout:
        raise AttentionError(
            f"{where} applies dropout to its attention weights (p = {dropout}), but a feature map "
            "forms no weights; set the attention dropout to 0, or call model.eval()"
        )
    config = getattr(module, "config", None)
    crossing = getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__
    if crossing or getattr(config, "is_encoder_decoder", False):
        raise AttentionError(
            f"{where} may attend from one sequence to another, where a window has no meaning; "
            "encoder–decoder models are not supported"
        )
