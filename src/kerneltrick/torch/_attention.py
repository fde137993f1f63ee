"""Attention as a layer: projections, heads, rotary positions, and a state that streams."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import torch
from torch import nn

from kerneltrick import maps
from kerneltrick.attention import Decoder, Dial, State, attention_weights
from kerneltrick.attention._arguments import check_count, check_on_zero
from kerneltrick.attention._call import OnZero
from kerneltrick.attention._dial import combined, dial_text
from kerneltrick.torch._learned_map import LearnedMap
from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tokens
from kerneltrick.torch._mixer_state import Memory, MixerState
from kerneltrick.torch._tokens import unpack

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

MOST_ROWS = 4096  # of weights that are formed without asking for rows: 64 MB for each head


class Attention(ProjectedMixer):
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
    group
        A process group of torch.distributed, or a DeviceMesh of one dimension, over whose ranks the
        tokens are spread: see `spread`.

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
        group: Any = None,
    ) -> None:
        super().__init__(
            hidden_size, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            value_dim=value_dim, rotary=rotary, bias=bias, short_convolution=short_convolution,
            output_norm=output_norm, output_gate=output_gate, layer_idx=layer_idx, group=group,
        )  # fmt: skip
        self.causal, self.on_zero = bool(causal), on_zero
        check_on_zero(on_zero)
        self._set_map(feature_map, window, sinks, far)

    def _set_map(
        self, feature_map: maps.MapLike | Dial | LearnedMap, window: int, sinks: int, far: Any
    ) -> None:
        who = self._who
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
        return self._dial if self.learned is None else self.learned.copied()

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
        state: MixerState | None = None,
        *,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, MixerState | None]:
        """y (batch, n, hidden_size) after the tokens of `state`, and the state after x.

        `mask` (batch, n): True where a token takes part. `key_padding_mask`, as in
        nn.MultiheadAttention: True where it does not. A token that does not is as though it were
        not there, and its y is 0. `segment_ids` (batch, n) or (n,): another text begins where the
        number changes; `cu_seqlens` (texts + 1,) says the same of one packed row, by where texts
        begin and end. Full attention of several texts has no state: None.
        """
        tokens = self._check(x, state, mask, key_padding_mask, segment_ids, cu_seqlens)
        if tokens.runs is None or self.causal:
            return self._run(tokens, state)
        if state is not None:
            raise ValueError("packed texts in full attention cannot go on from a state")
        if self.group is not None:
            raise ValueError("packed texts that are spread over ranks need causal attention")
        texts, mask, where = unpack(x, tokens.mask, tokens.runs)
        y, _ = self(texts, mask=mask)
        return y.flatten(0, 1)[where].unflatten(0, x.shape[:2]), None

    def attention_weights(
        self,
        x: Tensor,
        state: MixerState | None = None,
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
        tokens = self._check(x, state, mask, key_padding_mask, segment_ids, cu_seqlens)
        if tokens.runs is not None and not self.causal:
            raise ValueError("the weights of full attention are those of one text: unpack them")
        if self.group is not None:
            raise ValueError("the weights of tokens that are spread over ranks are on none of them")
        heads = self._heads(tokens, state)
        return self._weights(tokens, heads, None if state is None else state.value(), rows)

    def empty_state(self, batch: int, start: int = 0) -> MixerState:
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
        return MixerState(self._owner, memory, tail)

    def live(self, state: MixerState) -> MixerState:
        """The same state to decode with, a token at a time: calls change it in place.

        Much faster, without gradients, and not to be forked; `frozen()` gives a value back. Where
        there is no compiled step (other devices, bfloat16, a map that looks at positions where rows
        have different ones after a mask), it is `state` itself.
        """
        self._check_state(state)
        memory, dtype = state.memory, self.q_proj.weight.dtype
        dial = self._dial if self.learned is None else self.learned.export()
        kinds = {torch.float16: "float32", torch.float32: "float32", torch.float64: "float64"}
        if not isinstance(memory, State) or not memory.sums.hi.is_cpu or dtype not in kinds:
            return state
        if not self.causal or self.group is not None:
            return state
        if state.count is not None and isinstance(dial.feature_map, maps.Cosformer):
            return state
        decoder = Decoder(
            dial, shape=tuple(memory.sums.hi.shape[:2]), d=self.head_dim,
            value_width=self.value_dim, groups=self.num_heads // self.num_kv_heads,
            dtype=kinds[dtype], on_zero=self.on_zero or "raise", state=memory,
        )  # fmt: skip
        if not decoder.compiled:
            return state
        return dataclasses.replace(state, memory=decoder)

    def merge(self, left: MixerState, right: MixerState) -> MixerState:
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
        return MixerState(self._owner, memory, None, count)

    def _options(self, tokens: Tokens, heads: Heads) -> dict[str, Any]:
        """The keywords of attention."""
        mask = tokens.mask
        return {
            "causal": self.causal,
            "mask": mask,
            "query_mask": None if self.causal else mask,
            "segment_ids": tokens.segment_ids,
            # As they are counted by default, unless some tokens took no part.
            "positions": None if heads.counted is None else heads.positions,
            "on_zero": self.on_zero,
        }

    def _mix(
        self, tokens: Tokens, heads: Heads, past: Memory | None
    ) -> tuple[Tensor, Memory | None]:
        if isinstance(past, Decoder):
            if heads.q.shape[2] != 1 or tokens.mask is not None or tokens.runs is not None:
                raise ValueError("a live state takes one token at a time, without mask or segments")
            if any(x.requires_grad for x in (heads.q, heads.k, heads.v)):
                raise ValueError("a live state has no gradients: decode under torch.no_grad()")
            # As NumPy arrays, whose views cost a fraction of PyTorch's: a step is short.
            q, k, v = (x.numpy()[:, :, 0] for x in (heads.q, heads.k, heads.v))
            return torch.from_numpy(past.step(q, k, v)[:, :, None]), past
        return self._attend(heads, past, self.dial, **self._options(tokens, heads))

    def _weights(self, tokens: Tokens, heads: Heads, past: State | None, rows: Any) -> Tensor:
        return attention_weights(
            heads.q, heads.k, self.dial, rows=rows, state=past, **self._options(tokens, heads)
        )

    def _kind(self) -> str:
        dial = self._dial  # without weights, which change; the memory of a state knows them
        text = f", feature_map={dial_text(dial.feature_map.name, dial.window, dial.sinks)!r}"
        return text if self.causal else text + ", causal=False"
