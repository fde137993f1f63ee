"""Attention as a layer: projections, heads, rotary positions, and a state that streams."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from kerneltrick import maps
from kerneltrick.attention import Decoder, Dial, State, attention_weights, linear_attention
from kerneltrick.attention._arguments import check_count, check_on_zero
from kerneltrick.attention._call import OnZero
from kerneltrick.attention._dial import combined, dial_text
from kerneltrick.torch._attention_state import AttentionState, Memory
from kerneltrick.torch._learned_map import LearnedMap
from kerneltrick.torch._short_convolution import ShortConvolution
from kerneltrick.torch._tokens import (
    check_mask,
    check_segments,
    count_tokens,
    frequencies,
    rotate,
    turns,
    unpack,
)

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

MOST_ROWS = 4096  # of weights that are formed without asking for rows: 64 MB for each head


class Attention(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """Self-attention of x (batch, n, hidden_size) in linear time, or exact, with the same weights.

    y = W_o·concat_h o_h, o = attention(W_q·x, W_k·x, W_v·x): what
    `nn.MultiheadAttention(batch_first=True)` computes, with softmax replaced by `feature_map`.
    "softmax" is exact attention; its state is then a key–value cache, otherwise it does not grow.

    Parameters
    ----------
    hidden_size
        Width of x and y.
    num_heads, num_kv_heads
        Query heads, and key/value heads that groups of them share: as many (the default) is
        multi-head, 1 multi-query.
    head_dim, value_dim
        Widths of a head's queries and keys, and of its values. Default: hidden_size / num_heads;
        head_dim.
    feature_map, window, sinks, far
        As in `linear_attention`: "elu", "hedgehog@window=64,sinks=4", a `FeatureMap`, "softmax".
        The weights of a `LearnedMap` are learned with the layer.
    causal
        Token i sees tokens j ≤ i; otherwise all see all.
    rotary
        Rotate queries and keys by their positions (Su et al. 2021): True, or a base instead of
        10000. Positions count the tokens of a text that take part.
    bias
        Whether the four projections have one.
    short_convolution
        Taps of a causal convolution of queries, keys and values before the heads; 0 is none.
    output_norm, output_gate
        RMS-normalise each head's output; multiply what enters W_o by silu(W_g·x), as RetNet does.
    layer_idx
        The number of the layer: a state of another one is refused.
    on_zero
        As in `linear_attention`: what to do where all weights of a token are 0, as those of "relu"
        can be.

    In float16 all between x and y is float32, because products pass its largest number, 65504.
    There is no dropout of weights: they are never formed.

    >>> _ = torch.manual_seed(0)
    >>> layer = Attention(64, num_heads=4, feature_map="elu", window=16, rotary=True)
    >>> x = torch.randn(2, 100, 64)
    >>> whole, state = layer(x)
    >>> prompt, state = layer(x[:, :99])
    >>> token, state = layer(x[:, 99:], state)
    >>> torch.allclose(token, whole[:, 99:], atol=1e-5), state.stop
    (True, 100)
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        feature_map: maps.MapLike | Dial | LearnedMap = "elu",
        window: int = 0,
        sinks: int = 0,
        far: Any = None,
        causal: bool = True,
        rotary: bool | float = False,
        bias: bool = False,
        short_convolution: int = 0,
        output_norm: bool = False,
        output_gate: bool = False,
        layer_idx: int | None = None,
        on_zero: OnZero | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        self.hidden_size = check_count(who, "hidden_size", hidden_size, least=1)
        self.num_heads = check_count(who, "num_heads", num_heads, least=1)
        given = num_heads if num_kv_heads is None else num_kv_heads
        self.num_kv_heads = check_count(who, "num_kv_heads", given, least=1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{num_heads} query heads cannot share {num_kv_heads} key/value heads evenly"
            )
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(
                f"hidden_size {hidden_size} is not a multiple of {num_heads} heads; give head_dim"
            )
        width = hidden_size // num_heads if head_dim is None else head_dim
        self.head_dim = check_count(who, "head_dim", width, least=1)
        width = self.head_dim if value_dim is None else value_dim
        self.value_dim = check_count(who, "value_dim", width, least=1)
        self.causal, self.layer_idx, self.on_zero = bool(causal), layer_idx, on_zero
        check_on_zero(on_zero)
        self.rotary = (10_000.0 if rotary else 0.0) if isinstance(rotary, bool) else float(rotary)
        if self.rotary and (self.rotary <= 1 or self.head_dim % 2):
            raise ValueError(
                f"rotary positions need a base > 1 and an even head_dim, not {rotary!r} and "
                f"{self.head_dim}"
            )
        self._frequencies = frequencies(self.head_dim, self.rotary) if self.rotary else []
        self._set_map(feature_map, window, sinks, far)
        wide = self.num_heads * self.value_dim
        keys = self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(hidden_size, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden_size, keys, bias=bias)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * self.value_dim, bias=bias)
        self.o_proj = nn.Linear(wide, hidden_size, bias=bias)
        self.convolution = self.norm = self.gate = None
        taps = check_count(who, "short_convolution", short_convolution)
        if taps:
            channels = sum(x.out_features for x in (self.q_proj, self.k_proj, self.v_proj))
            self.convolution = ShortConvolution(channels, taps)
        if output_norm:
            self.norm = nn.RMSNorm(self.value_dim, eps=1e-6)
        if output_gate:
            self.gate = nn.Linear(hidden_size, wide, bias=False)
        self._owner = f"{who}({self.extra_repr()})"  # of states

    def _set_map(
        self, feature_map: maps.MapLike | Dial | LearnedMap, window: int, sinks: int, far: Any
    ) -> None:
        who = type(self).__name__
        self.learned = None
        if isinstance(feature_map, LearnedMap):
            self.learned = feature_map
            own = (self.num_heads, self.num_kv_heads, self.head_dim)
            theirs = (feature_map.num_heads, feature_map.num_kv_heads, feature_map.head_dim)
            if theirs != own:
                raise ValueError(
                    f"the LearnedMap is of {theirs[0]} query and {theirs[1]} key heads of "
                    f"{theirs[2]}, but this layer has {own[0]} and {own[1]} of {own[2]}"
                )
            feature_map = feature_map.dial
        chosen, window, sinks, far = combined(who, feature_map, window, sinks, far)
        window, sinks = (check_count(who, *x) for x in (("window", window), ("sinks", sinks)))
        self._dial = Dial(chosen, window, sinks, far)
        held = [*vars(chosen).values(), None if self._dial.far is None else self._dial.far.gain]
        if self.learned is None and any(isinstance(x, nn.Parameter) for x in held):
            raise TypeError("a map with parameters is a kerneltrick.torch.LearnedMap: give one")

    @property
    def dial(self) -> Dial:
        """The map, window, sinks and units of far weights, learned ones as they are now."""
        return self._dial if self.learned is None else self.learned.dial

    @staticmethod
    def from_multihead_attention(source: nn.MultiheadAttention, **options: Any) -> Attention:
        """A layer with copies of the weights of nn.MultiheadAttention(batch_first=True).

        `options` are those of the constructor; by default the map is "softmax" and causal False,
        which computes what `source` does.

        >>> _ = torch.manual_seed(0)
        >>> source = nn.MultiheadAttention(32, 4, batch_first=True)
        >>> layer, x = Attention.from_multihead_attention(source), torch.randn(2, 10, 32)
        >>> torch.allclose(layer(x)[0], source(x, x, x)[0], atol=1e-6)
        True
        """
        if not isinstance(source, nn.MultiheadAttention):
            raise TypeError(f"expected nn.MultiheadAttention, not {type(source).__name__}")
        own = options.keys() & {"num_kv_heads", "head_dim", "value_dim", "bias"}
        if own:
            raise TypeError(
                f"{', '.join(sorted(own))}: taken from nn.MultiheadAttention, not given"
            )
        size = source.embed_dim
        problem = None
        if not source.batch_first:
            problem = "its x is (n, batch, embed_dim), and here (batch, n, hidden_size): set its "
            problem += "batch_first to True if that is what you will give"
        elif source.dropout:
            problem = f"it drops weights with probability {source.dropout}, and those of linear "
            problem += "attention are never formed: set its dropout to 0"
        elif source.bias_k is not None or source.add_zero_attn:
            problem = "it adds keys of its own (add_bias_kv or add_zero_attn)"
        elif (source.kdim, source.vdim) != (size, size):
            problem = f"its keys and values are made of {source.kdim} and {source.vdim} columns, "
            problem += f"its queries of {size}, so it is no self-attention"
        if problem is not None:
            raise ValueError(f"cannot take over this nn.MultiheadAttention: {problem}")
        bias = source.in_proj_bias is not None
        defaults: dict[str, Any] = {"causal": False, "feature_map": "softmax", "bias": bias}
        made = Attention(size, source.num_heads, **defaults | options)
        made.to(source.in_proj_weight.device, source.in_proj_weight.dtype)
        with torch.no_grad():
            for part, layer in enumerate((made.q_proj, made.k_proj, made.v_proj)):
                layer.weight.copy_(source.in_proj_weight.chunk(3)[part])
                if layer.bias is not None:
                    layer.bias.copy_(source.in_proj_bias.chunk(3)[part])
            made.o_proj.weight.copy_(source.out_proj.weight)
            if made.o_proj.bias is not None:
                made.o_proj.bias.copy_(source.out_proj.bias)
        made.train(source.training)
        return made

    def forward(
        self,
        x: Tensor,
        state: AttentionState | None = None,
        *,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, AttentionState | None]:
        """y (batch, n, hidden_size) after the tokens of `state`, and the state after x.

        `mask` (batch, n): True where a token takes part. `key_padding_mask`, as in
        nn.MultiheadAttention: True where it does not. A token that does not is as though it were
        not there, and its y is 0. `segment_ids` (batch, n) or (n,): another text begins where the
        number changes; `cu_seqlens` (texts + 1,) says the same of one packed row, by where texts
        begin and end. Full attention of several texts has no state: None.
        """
        mask, runs = self._check(x, state, mask, key_padding_mask, segment_ids, cu_seqlens)
        if runs is not None and not self.causal:
            texts, mask, where = unpack(x, mask, runs)
            y, _ = self(texts, mask=mask)
            return y.flatten(0, 1)[where].unflatten(0, x.shape[:2]), None
        heads = self._heads(x, state, mask, runs)
        past = None if state is None else state.memory
        o, memory = self._mix(heads, past, mask, runs)
        y = self._combine(heads.x, o).to(heads.dtype)
        if mask is not None:
            y = torch.where(mask[..., None], y, torch.zeros_like(y))
        if memory is None:
            return y, None
        return y, AttentionState(self._owner, memory, heads.tail, heads.counted)

    def attention_weights(
        self,
        x: Tensor,
        state: AttentionState | None = None,
        *,
        rows: Any = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """The exact weights (batch, num_heads, n, n) with which `forward` mixes values.

        `rows` (a number or a list) gives only those queries, in O(n) each; above 4096 tokens they
        must be given. With a `state`, rows add up to what is left of 1 for x itself.
        """
        if rows is None and x.shape[1] > MOST_ROWS:
            raise ValueError(
                f"the weights of {x.shape[1]} tokens are {x.shape[1]}² numbers for each head: ask "
                f"for rows=[…]; all are formed up to {MOST_ROWS} tokens"
            )
        mask, runs = self._check(x, state, mask, key_padding_mask, segment_ids, cu_seqlens)
        if runs is not None and not self.causal:
            raise ValueError("the weights of full attention are those of one text: unpack them")
        heads = self._heads(x, state, mask, runs)
        past = None if state is None else state.value()
        return self._weights(heads, past, mask, runs, rows)

    def empty_state(self, batch: int, start: int = 0) -> AttentionState:
        """The state before token `start`: for the second half of a text, to `merge` after."""
        weight = self.k_proj.weight
        dtype = torch.float32 if weight.dtype == torch.float16 else weight.dtype
        lead = (batch, self.num_kv_heads, 0)
        k = torch.empty((*lead, self.head_dim), dtype=dtype, device=weight.device)
        v = torch.empty((*lead, self.value_dim), dtype=dtype, device=weight.device)
        memory = State.empty(self.dial, k, v, start=start)
        tail = None
        if self.convolution is not None:
            shape = (batch, self.convolution.taps - 1, self.convolution.channels)
            tail = torch.zeros(shape, dtype=dtype, device=weight.device)
        return AttentionState(self._owner, memory, tail)

    def live(self, state: AttentionState) -> AttentionState:
        """The same state to decode with, a token at a time: calls change it in place.

        Much faster, without gradients, and not to be forked; `frozen()` gives a value back. Where
        there is no compiled step (other devices, bfloat16, beside a window), it is `state` itself.
        """
        self._check_state(state)
        memory, dtype = state.memory, self.q_proj.weight.dtype
        dial = self._dial if self.learned is None else self.learned.export()
        kinds = {torch.float16: "float32", torch.float32: "float32", torch.float64: "float64"}
        if not isinstance(memory, State) or not memory.sums.hi.is_cpu or dtype not in kinds:
            return state
        if not self.causal or memory.near is not None:
            return state
        decoder = Decoder(
            dial, shape=tuple(memory.sums.hi.shape[:2]), d=self.head_dim,
            value_width=self.value_dim, groups=self.num_heads // self.num_kv_heads,
            dtype=kinds[dtype], on_zero=self.on_zero or "raise", state=memory,
        )  # fmt: skip
        if not decoder.compiled:
            return state
        return dataclasses.replace(state, memory=decoder)

    def merge(self, left: AttentionState, right: AttentionState) -> AttentionState:
        """The state after both stretches; `right` began with `empty_state(batch, left.stop)`.

        Halves of a text can so be read apart, as far as their states go: what `right` gave as y
        did not see the left half.
        """
        for state in (left, right):
            self._check_state(state)
        if self.convolution is not None:
            raise ValueError(
                "states of a layer with short_convolution cannot be merged: the first tokens of "
                "the right half were convolved without the last ones of the left"
            )
        if self.rotary and left.count is not None:
            raise ValueError(
                "states of a rotary layer cannot be merged after a mask: the right half counted "
                "its positions from the tokens, not from those that take part"
            )
        memory = left.value().merge(right.value(), self.dial)
        count = None
        if left.count is not None or right.count is not None:
            before = left.stop if left.count is None else left.count
            after = right.stop if right.count is None else right.count
            count = before + after - int(right.value().start)
        return AttentionState(self._owner, memory, None, count)

    def _check(
        self,
        x: Tensor,
        state: AttentionState | None,
        mask: Tensor | None,
        key_padding_mask: Tensor | None,
        segment_ids: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Refuse what does not fit; the mask, True = takes part, and the segments' numbers."""
        who, weight = type(self).__name__, self.q_proj.weight
        if not isinstance(x, torch.Tensor) or x.ndim != 3 or x.shape[-1] != self.hidden_size:
            shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"{who} needs x (batch, n, {self.hidden_size}), not {shape}")
        if x.device != weight.device:
            raise ValueError(f"{who} is on {weight.device}, but x on {x.device}: move one of them")
        if x.dtype != weight.dtype and not _autocast(x):
            raise TypeError(f"{who} has weights of {weight.dtype}, but x is {x.dtype}: cast one")
        if state is not None:
            self._check_state(state)
            rows, device = state.place
            if device != x.device or rows != x.shape[0]:
                raise ValueError(
                    f"the state is of {rows} rows on {device}, but x has {x.shape[0]} on {x.device}"
                )
        runs = check_segments(x, segment_ids, cu_seqlens)
        if runs is not None and state is not None and not self.causal:
            raise ValueError("packed texts in full attention cannot go on from a state")
        return check_mask(x, mask, key_padding_mask), runs

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, AttentionState):
            raise TypeError(f"state must be an AttentionState, not {type(state).__name__}")
        if state.owner != self._owner:
            raise ValueError(f"the state is of {state.owner}, but this is {self._owner}")

    def _heads(
        self, x: Tensor, state: AttentionState | None, mask: Tensor | None, runs: Tensor | None
    ) -> Heads:
        dtype = torch.get_autocast_dtype(x.device.type) if _autocast(x) else x.dtype
        if x.dtype == torch.float16:
            x = x.float()
        if mask is not None:  # so that NaN in padding reaches nothing, backward neither
            x = torch.where(mask[..., None], x, torch.zeros_like(x))
        parts = [_linear(layer, x) for layer in (self.q_proj, self.k_proj, self.v_proj)]
        tail = None
        if self.convolution is not None:
            before = None if state is None else state.tail
            whole, tail = self.convolution(torch.cat(parts, -1), before, mask=mask, runs=runs)
            parts = list(whole.split([part.shape[-1] for part in parts], dim=-1))
        counts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        q, k, v = (
            part.unflatten(-1, (count, -1)).transpose(1, 2)
            for part, count in zip(parts, counts, strict=True)
        )
        stop, count = (0, None) if state is None else (state.stop, state.count)
        positions, after = count_tokens(x, mask, runs, stop, count)
        if self.rotary:
            cos, sin = turns(x, positions, self._frequencies)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return Heads(x, q, k, v, tail, positions, after, dtype)

    def _options(self, heads: Heads, mask: Tensor | None, runs: Tensor | None) -> dict[str, Any]:
        """The keywords of attention."""
        if runs is not None:
            runs = runs.expand(heads.x.shape[:2])
        return {
            "causal": self.causal,
            "mask": mask,
            "query_mask": None if self.causal else mask,
            "segment_ids": runs,
            # As they are counted by default, unless some tokens took no part.
            "positions": None if heads.counted is None else heads.positions,
            "on_zero": self.on_zero,
        }

    def _mix(
        self, heads: Heads, past: Memory | None, mask: Tensor | None, runs: Tensor | None
    ) -> tuple[Tensor, Memory | None]:
        """The output (batch, num_heads, n, value_dim) of all heads, and the state after."""
        if isinstance(past, Decoder):
            if heads.q.shape[2] != 1 or mask is not None or runs is not None:
                raise ValueError("a live state takes one token at a time, without mask or segments")
            if heads.q.requires_grad:
                raise ValueError("a live state has no gradients: decode under torch.no_grad()")
            return past.step(heads.q[:, :, 0], heads.k[:, :, 0], heads.v[:, :, 0])[:, :, None], past
        return linear_attention(
            heads.q, heads.k, heads.v, self.dial, state=past, return_state=True,
            **self._options(heads, mask, runs),
        )  # fmt: skip

    def _weights(
        self,
        heads: Heads,
        past: State | None,
        mask: Tensor | None,
        runs: Tensor | None,
        rows: Any,
    ) -> Tensor:
        options = self._options(heads, mask, runs)
        return attention_weights(heads.q, heads.k, self.dial, rows=rows, state=past, **options)

    def _combine(self, x: Tensor, o: Tensor) -> Tensor:
        if self.norm is not None:
            weight = self.norm.weight.to(o.dtype)
            o = functional.rms_norm(o, (self.value_dim,), weight, self.norm.eps)
        o = o.transpose(1, 2).flatten(-2)
        if self.gate is not None:
            o = o * functional.silu(_linear(self.gate, x))
        return _linear(self.o_proj, o)

    def extra_repr(self) -> str:
        text = f"{self.hidden_size}, num_heads={self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            text += f", num_kv_heads={self.num_kv_heads}"
        text += f", head_dim={self.head_dim}, value_dim={self.value_dim}"
        dial = self._dial  # without weights, which change; the memory of a state knows them
        text += f", feature_map={dial_text(dial.feature_map.name, dial.window, dial.sinks)!r}"
        if not self.causal:
            text += ", causal=False"
        if self.rotary:
            text += f", rotary={self.rotary:g}"
        if self.layer_idx is not None:
            text += f", layer_idx={self.layer_idx}"
        return text


class Heads(NamedTuple):
    """What the tokens of a call are before they are mixed."""

    x: Tensor  # with masked tokens 0, in the dtype that is computed in
    q: Tensor
    k: Tensor
    v: Tensor
    tail: Tensor | None
    positions: Tensor
    counted: Tensor | None  # `count` of the state after
    dtype: Any  # of y


def _autocast(x: Tensor) -> bool:
    kind = x.device.type
    return bool(torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind))


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer in the dtype of x, which is wider than its own for float16."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return functional.linear(x, layer.weight.to(x.dtype), bias)
