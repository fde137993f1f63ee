"""Running a model with some of its heads limited to a window, to see what each head needs.

A gate per key–value head says what the head sees: 1 is the whole text, 0 the window and the sinks.
Variants of one run go through the model as one batch. They start at the first layer in which they
differ from that run, because the layers below give the same for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from kerneltrick import maps
from kerneltrick.attention import Dial, linear_attention
from kerneltrick.hf._call import TERMS, check_terms, layer_name, read_call
from kerneltrick.hf._linearized import attention_modules, head_sizes
from kerneltrick.hf._mask import make_mask

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
    """

    def __init__(self, network: Any, window: int, sinks: int) -> None:
        self.network, self.window, self.sinks = network, window, sinks
        self.near = Dial(maps.Softmax(), window, sinks)
        self.modules = attention_modules(network)
        self.blocks = [_block(network, module) for module in self.modules]
        self.shape = (len(self.modules), head_sizes(network.config)[0]["num_kv_heads"])
        self.language = network.can_generate() and network.get_output_embeddings() is not None
        self._gates: Any = None  # (rows, layers, heads) of the run under way
        self.last: Run | None = None  # the last run, which is being recorded or varied

    def __enter__(self) -> Probe:
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, make_mask)
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
        with self._recorded(self.last):
            return self._call(gates[None], places)

    def vary(self, gates: Any, places: Any = None) -> Any:
        """Return the outcomes of variants of the last run, one row for each.

        gates: the gates of each variant (rows, layers, heads).
        places: the positions whose predictions are asked for, as in the last run.
        """
        assert self.last is not None
        changed = (gates != self.last.gates).any(-1).any(0).nonzero()
        start = int(changed[0]) if len(changed) else len(self.blocks)
        with self._skipped(self.last, start, len(gates)):
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

    @contextmanager
    def _recorded(self, run: Run) -> Iterator[None]:
        """Keep what the layers return, unless gradients are asked for."""
        hooks = []
        if not torch.is_grad_enabled():
            for number, block in enumerate(self.blocks):

                def keep(_: Any, __: Any, out: Any, number: int = number) -> None:
                    run.outputs[number] = out

                hooks.append(block.register_forward_hook(keep))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def _skipped(self, run: Run, start: int, rows: int) -> Iterator[None]:
        """Let the layers below `start` return what they returned in the run, without computing."""
        skipped = self.blocks[:start]
        for number, block in enumerate(skipped):
            known = _rows(run.outputs[number], rows)
            block.forward = lambda *_, _known=known, **__: _known
        try:
            yield
        finally:
            for block in skipped:
                del block.forward

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
        gates, groups, found = self._gates[:, layer], q.shape[1] // k.shape[1], []
        for head in range(k.shape[1]):
            mine = q[:, head * groups : (head + 1) * groups], k[:, head, None], v[:, head, None]
            gate = gates[:, head, None, None, None].to(q.dtype)
            seen: list[Any] = []
            if gate.requires_grad or bool((gate > 0).any()):
                seen.append(_whole(*mine, scale, causal, before))
            if gate.requires_grad or bool((gate < 1).any()):
                seen.append(self._limited(*mine, scale, causal, before))
            found.append(seen[0] if len(seen) == 1 else torch.lerp(seen[1], seen[0], gate))
        return torch.cat(found, 1)

    def _limited(self, q: Any, k: Any, v: Any, scale: float, causal: bool, before: int) -> Any:
        """Attend to the window and the sinks."""
        if not before:
            return linear_attention(q, k, v, self.near, scale=scale, causal=causal)
        at = torch.arange(before, before + q.shape[2])[:, None] - torch.arange(k.shape[2])
        mask = (at >= 0) & ((at < self.window) | (torch.arange(k.shape[2]) < self.sinks))
        return _softmax(q, k, v, scale, mask=mask)


def _whole(q: Any, k: Any, v: Any, scale: float, causal: bool, before: int) -> Any:
    """Attend to the whole text, of which `before` tokens come before the queries."""
    if not before:
        return _softmax(q, k, v, scale, causal=causal)
    at = torch.arange(before, before + q.shape[2])[:, None]
    return _softmax(q, k, v, scale, mask=at >= torch.arange(k.shape[2]))


def _softmax(q: Any, k: Any, v: Any, scale: float, mask: Any = None, causal: bool = False) -> Any:
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
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


def _block(network: Any, attention: Any) -> Any:
    """Return the layer that an attention module belongs to: the smallest element of a list."""
    lists = [x for x in network.modules() if isinstance(x, torch.nn.ModuleList)]
    known = [x for each in lists for x in each if any(y is attention for y in x.modules())]
    return min(known, key=lambda x: sum(1 for _ in x.modules()))


def _rows(out: Any, rows: int) -> Any:
    """Return what a layer returned, repeated for each row of a batch."""
    if isinstance(out, torch.Tensor):
        return out.expand(rows, *out.shape[1:])
    if isinstance(out, (tuple, list)):
        return type(out)(_rows(x, rows) for x in out)
    return out
