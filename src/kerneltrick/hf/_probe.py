"""Running a model with some of its heads limited to a window, to see what each head needs.

A gate per key–value head says what the head sees: 1 is the whole text, 0 the window and the sinks,
with a map beside them if there is one.
Variants of one run go through the model as one batch. They start at the first layer in which they
differ from that run, because the layers below give the same for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from kerneltrick import maps
from kerneltrick.attention import Dial, linear_attention
from kerneltrick.hf._attend import LayerSetting, absorb, attend_causal
from kerneltrick.hf._call import TERMS, check_terms, layer_name, read_call
from kerneltrick.hf._linearized import attention_modules, head_sizes, with_whole
from kerneltrick.hf._mask import TokenMask, make_mask
from kerneltrick.hf._names import add_function
from kerneltrick.hf._prefix import layers_of, recorded, reused
from kerneltrick.torch import as_tensors

NAME = "kerneltrick_probe"  # names that begin with "kerneltrick" are checked by `_names`
_PROBE = "_kerneltrick_probe"  # the attribute of attention modules with their probe and number


@dataclasses.dataclass
class Run:
    """One run of the model on a text: what it was, and what the variants of it share."""

    ids: Sequence[int]
    gates: Any  # (layers, heads)
    tail: int  # the number of tokens that were read; 0 is all
    outputs: dict[int, Any]  # what each layer returned
    keys: dict[int, tuple[Any, Any]]  # keys and values of each layer, for the whole text


class Probe:
    """A model whose heads can be limited one by one.

    Use it as a context manager: the model gets its own attention back at the end.

    network: the model, with its head if it predicts tokens.
    window, sinks: what a limited head sees.
    dials: the window, the sinks and the map of limited heads in each layer; by default no map.
    """

    def __init__(
        self, network: Any, window: int, sinks: int, dials: Mapping[int, Dial] | None = None
    ) -> None:
        self.network, self.window, self.sinks = network, window, sinks
        self.dials = {
            layer: as_tensors(dial, network.dtype) for layer, dial in (dials or {}).items()
        }
        self.modules = attention_modules(network)
        self.layers = layers_of(network, self.modules)
        self.shape = (len(self.modules), head_sizes(network.config)[0]["num_kv_heads"])
        self.language = network.can_generate() and network.get_output_embeddings() is not None
        self._gates: Any = None  # (rows, layers, heads) of the run under way
        self.last: Run | None = None  # the last run, which is being recorded or varied

    def __enter__(self) -> Probe:
        add_function(NAME, _attention, make_mask)
        self._before = self.network.config._attn_implementation
        self._trained = [x for x in self.network.parameters() if x.requires_grad]
        self.network.requires_grad_(False)  # gradients are those of gates
        self.network.set_attn_implementation(NAME)
        for number, module in enumerate(self.modules):
            module.__dict__[_PROBE] = (self, number)
        return self

    def __exit__(self, *_: object) -> None:
        self.network.set_attn_implementation(self._before)
        for x in self._trained:
            x.requires_grad_(True)
        for module in self.modules:
            del module.__dict__[_PROBE]

    def gates(self, value: float) -> Any:
        """Return one gate for each head, all of one value."""
        return torch.full(self.shape, float(value))

    def run(self, ids: Sequence[int], gates: Any, places: Any = None, tail: int = 0) -> Any:
        """Return the outcome of the model with these gates (layers, heads), and remember the run.

        places: the positions whose predictions are asked for, counted in the tail if there is one;
            None asks for all.
        tail: read only so many tokens at the end of the text again. The gates act on them alone;
            the tokens before keep the keys and values of the last run on the same text.
        """
        before = {} if self.last is None or not tail else self.last.keys
        self.last = Run(ids, gates, tail, {}, before)
        if torch.is_grad_enabled():  # outputs with gradients cannot be reused
            return self._call(gates[None], places)
        with recorded(self.layers, self.last.outputs):
            return self._call(gates[None], places)

    def vary(self, gates: Any, places: Any = None) -> Any:
        """Return the outcomes of variants of the last run, one row for each.

        gates: the gates of each variant (rows, layers, heads).
        places: the positions whose predictions are asked for, as in the last run.
        """
        assert self.last is not None
        changed = (gates != self.last.gates).any(-1).any(0).nonzero()
        start = int(changed[0]) if len(changed) else len(self.layers)
        with reused(self.layers[:start], self.last.outputs, len(gates)):
            return self._call(gates, places)

    def _call(self, gates: Any, places: Any) -> Any:
        """Return logits (rows, places, vocabulary), or embeddings (rows, features)."""
        assert self.last is not None
        self._gates = gates
        ids = list(self.last.ids)[-self.last.tail :]
        batch = torch.tensor([ids]).expand(len(gates), -1)
        if not self.language:
            return self.network(input_ids=batch).last_hidden_state.float().mean(1)
        how: dict[str, Any] = {} if places is None else {"logits_to_keep": places}
        if self.last.tail:
            how["position_ids"] = torch.arange(len(self.last.ids))[None, -self.last.tail :]
        return self.network(input_ids=batch, use_cache=False, **how).logits.float()

    def attention(self, layer: int, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
        """Attend with the gates of a layer, head by head."""
        run, before = self.last, 0
        assert run is not None
        if run.tail:
            past = [x[:, :, : -run.tail].expand(len(q), -1, -1, -1) for x in run.keys[layer]]
            before = past[0].shape[2]
            k, v = (torch.cat([x, y], 2) for x, y in zip(past, (k, v), strict=True))
        elif len(q) == 1 and causal and not torch.is_grad_enabled():
            run.keys[layer] = (k, v)
        gates, heads = self._gates[:, layer], k.shape[1]
        some = torch.ones(heads, dtype=torch.bool) & gates.requires_grad
        free, near = (some | x.any(0) for x in (gates > 0, gates < 1))
        groups, found = q.shape[1] // heads, []

        def of(which: Any) -> tuple[Any, Any, Any]:
            if bool(which.all()):
                return q, k, v
            return q[:, which.repeat_interleave(groups)], k[:, which], v[:, which]

        def by_head(which: Any, out: Any) -> dict[int, Any]:
            return dict(zip(which.nonzero()[:, 0].tolist(), out.split(groups, 1), strict=True))

        whole, limited = {}, {}
        if bool(free.any()):
            whole = by_head(free, _whole(*of(free), scale, causal, before))
        if bool(near.any()):
            dial = self._limited(layer, near, q.shape[1])
            limited = by_head(near, _near(dial, *of(near), scale, causal, before))
        for head in range(heads):
            if head in whole and head in limited:
                gate = gates[:, head, None, None, None].to(q.dtype)
                found.append(torch.lerp(limited[head], whole[head], gate))
            else:
                found.append(whole[head] if head in whole else limited[head])
        return torch.cat(found, 1)

    def _limited(self, layer: int, near: Any, queries: int) -> Dial:
        """Return what these heads of a layer see if they are limited."""
        dial = self.dials.get(layer)
        if dial is None:
            return Dial(maps.Softmax(), self.window, self.sinks)
        others = (~near).nonzero()[:, 0].tolist()
        groups = with_whole(dial, others, len(near)).groups(len(near), queries)
        return next(group.dial for group in groups if group.dial.near)


def _whole(q: Any, k: Any, v: Any, scale: float, causal: bool, before: int) -> Any:
    """Attend to the whole text, of which `before` tokens come before the queries."""
    if not before:
        return _softmax(q, k, v, scale, causal=causal)
    at = torch.arange(before, before + q.shape[2])[:, None]
    return _softmax(q, k, v, scale, mask=at >= torch.arange(k.shape[2]))


def _near(dial: Dial, q: Any, k: Any, v: Any, scale: float, causal: bool, before: int) -> Any:
    """Attend as a limited head does, after `before` tokens that are the same in all rows."""
    rule, tokens = LayerSetting.of(dial, scale, q.shape[-1]), TokenMask(True)
    if not before:
        return linear_attention(q, k, v, dial, scale=rule.scale, causal=causal)
    past = absorb(rule, q.shape[1], k[:1, :, :before], v[:1, :, :before], tokens, None)
    past = past.select(torch.zeros(len(q), dtype=torch.long))
    return attend_causal(rule, q, k[:, :, before:], v[:, :, before:], tokens, past)[0]


def _softmax(q: Any, k: Any, v: Any, scale: float, mask: Any = None, causal: bool = False) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    how = {"attn_mask": mask, "is_causal": causal, "scale": scale}
    return scaled_dot_product_attention(q, k, v, **how)


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **keywords: Any,
) -> tuple[Any, None]:
    """Attend as transformers' attention functions do, with the gates of the module's probe."""
    probe, number = module.__dict__[_PROBE]
    where = layer_name(module, number)
    check_terms(where, keywords, TERMS)
    call = read_call(
        where, module, (query, key, value), attention_mask, scaling, is_causal, keywords
    )
    out = probe.attention(number, query, key, value, call.scale, call.tokens.causal)
    return out.transpose(1, 2).contiguous(), None
