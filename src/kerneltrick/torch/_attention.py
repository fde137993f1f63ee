"""Attention as a layer: projections, heads, rotary positions, and a state for streaming."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from kerneltrick import maps
from kerneltrick.attention import (
    Decoder,
    Dial,
    OnZero,
    State,
    Windows,
    check_on_zero,
    combined,
    dial_text,
)
from kerneltrick.torch._implied import Implied
from kerneltrick.torch._learned_map import LearnedMap, modules_of
from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tokens
from kerneltrick.torch._mixer_state import Memory, MixerState
from kerneltrick.torch._tokens import unpack

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


class Attention(ProjectedMixer):
    """Self-attention of x (batch, n, hidden_size), in linear time or exact, with the same weights.

    y = W_o·concat_h o_h with o = attention(W_q·x, W_k·x, W_v·x). This is what
    `nn.MultiheadAttention(batch_first=True)` computes, with softmax replaced by `feature_map`.
    With "softmax" the layer is exact attention and its state is a key–value cache; with any other
    map the state has a constant size.

    Parameters
    ----------
    hidden_size
        The width of x and y.
    num_heads, num_kv_heads
        The number of query heads and of key/value heads. Groups of query heads share a key/value
        head: the default is one for each (multi-head attention), and 1 is multi-query attention.
    head_dim, value_dim
        The width of the queries and keys of a head, by default hidden_size / num_heads, and the
        width of its values, by default head_dim.
    feature_map, window, sinks, far
        The attention, as in `linear_attention`: "elu", "hedgehog@window=64,sinks=4", a
        `FeatureMap` or "softmax". A map of one's own is a function, or a torch.nn.Module that turns
        x (..., heads, n, head_dim) into φ(x) (..., heads, n, m). Its parameters, like the weights
        of a `LearnedMap`, are learned with the layer, whose `learned` holds them. Heads may differ:
        "hedgehog@window=64,whole=0+2" keeps softmax in two key/value heads.
    causal
        Whether token i sees only tokens j ≤ i. If False, every token sees every other.
    rotary
        Whether to rotate queries and keys by their positions (Su et al. 2021). A number replaces
        the base of 10000. Positions count the tokens of a text that take part.
    bias
        Whether the four projections have a bias.
    short_convolution
        The number of taps of a causal convolution over queries, keys and values; 0 means none.
    output_norm, output_gate
        Whether to RMS-normalise the output of each head, and whether to multiply the input of W_o
        by silu(W_g·x), as RetNet does.
    layer_idx
        The number of the layer. A state of a layer with another number is refused.
    on_zero
        What to do where all weights of a token are 0, which can happen with maps such as "relu";
        see `linear_attention`.
    group
        A process group of torch.distributed, or a one-dimensional DeviceMesh, over whose ranks the
        tokens are split: see `spread`.

    In float16 everything between x and y is computed in float32, because products can exceed 65504.
    There is no dropout on the weights, because they are never formed.

    A state is a value: the same one can be continued twice, so every call copies it. To decode one
    token at a time, use `live` as in the example; with "softmax", whose state is the whole
    key–value cache, a step without it costs milliseconds after a few thousand tokens.

    >>> _ = torch.manual_seed(0)
    >>> layer = Attention(64, num_heads=4, feature_map="elu", window=16, rotary=True)
    >>> x = torch.randn(2, 100, 64)
    >>> whole, state = layer(x)
    >>> prompt, state = layer(x[:, :99])
    >>> token, state = layer(x[:, 99:], state)
    >>> torch.allclose(token, whole[:, 99:], atol=1e-5), state.stop
    (True, 100)
    >>> with torch.no_grad():
    ...     live = layer.live(layer(x[:, :98])[1])  # changed in place from here on
    ...     for i in (98, 99):
    ...         token, live = layer(x[:, i : i + 1], live)
    >>> torch.allclose(token, whole[:, 99:], atol=1e-5)
    True
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
        window: Windows = 0,
        sinks: int | Sequence[int] = 0,
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
            hidden_size,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            rotary=rotary,
            bias=bias,
            short_convolution=short_convolution,
            output_norm=output_norm,
            output_gate=output_gate,
            layer_idx=layer_idx,
            group=group,
        )
        self.causal, self.on_zero = bool(causal), on_zero
        check_on_zero(on_zero)
        self._set_map(feature_map, window, sinks, far)

    def _set_map(
        self,
        feature_map: maps.MapLike | Dial | LearnedMap,
        window: Windows,
        sinks: int | Sequence[int],
        far: Any,
    ) -> None:
        who = self._who
        sizes: dict[str, Any] = {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
        }
        self.learned = None
        if isinstance(feature_map, LearnedMap):
            if window or sinks or far is not None:
                raise ValueError(f"{who} got a LearnedMap: give window, sinks and far to that")
            own, theirs = [*sizes.values()], [getattr(feature_map, name) for name in sizes]
            if theirs != own:
                raise ValueError(
                    f"the LearnedMap has {theirs[0]} query and {theirs[1]} key heads of width "
                    f"{theirs[2]}, but this layer has {own[0]} and {own[1]} of width {own[2]}"
                )
            self.learned = feature_map
        else:
            dial = Dial(*combined(who, feature_map, window, sinks, far))
            gain = None if dial.far is None else dial.far.gain
            if any(isinstance(x, nn.Parameter) for x in (*vars(dial.feature_map).values(), gain)):
                raise TypeError(
                    "to learn the parameters of a map, use kerneltrick.torch.LearnedMap"
                )
            if modules_of(dial.feature_map):
                self.learned = LearnedMap(dial, **sizes, gain=False)
        self._dial = dial if self.learned is None else self.learned.frame
        self.dial.groups(self.num_kv_heads)  # which checks the heads

    @property
    def dial(self) -> Dial:
        """The map, window, sinks and gain of the layer; learned parts have their present values."""
        return self._dial if self.learned is None else self.learned.copied()

    @staticmethod
    def from_multihead_attention(source: nn.MultiheadAttention, **options: Any) -> Attention:
        """A layer with a copy of the weights of nn.MultiheadAttention(batch_first=True).

        `options` are those of the constructor. By default the map is "softmax" and causal is False,
        so the layer computes the same as `source`.

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
                f"{', '.join(sorted(own))}: taken from nn.MultiheadAttention, so leave it out"
            )
        size = source.embed_dim
        problem = None
        if not source.batch_first:
            problem = "it expects x (n, batch, embed_dim), but this layer (batch, n, hidden_size): "
            problem += "set its batch_first to True if your x has that shape"
        elif source.dropout:
            problem = f"it drops weights with probability {source.dropout}, but linear attention "
            problem += "never forms them: set its dropout to 0"
        elif source.bias_k is not None or source.add_zero_attn:
            problem = "it adds extra keys (add_bias_kv or add_zero_attn)"
        elif (source.kdim, source.vdim) != (size, size):
            problem = f"its keys and values come from {source.kdim} and {source.vdim} columns but "
            problem += f"its queries from {size}, so it is not self-attention"
        if problem is not None:
            raise ValueError(f"cannot convert this nn.MultiheadAttention: {problem}")
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
        """Return y (batch, n, hidden_size) and the state after x; x continues from `state`.

        `mask` (batch, n) is True where a token takes part. `key_padding_mask` is the opposite, as
        in nn.MultiheadAttention: True where it does not. A token that does not take part has no
        effect, and its y is 0. `segment_ids` (batch, n) or (n,) packs several texts into a row: a
        new text begins where the number changes. `cu_seqlens` (texts + 1,) says the same for a
        single packed row, by the boundaries of the texts. Full attention of packed texts has no
        state and returns None.
        """
        tokens = self._check(x, state, mask, key_padding_mask, segment_ids, cu_seqlens)
        if tokens.runs is None or self.causal:
            return self._run(tokens, state)
        if state is not None:
            raise ValueError("packed texts in full attention cannot continue from a state")
        if self.group is not None:
            raise ValueError("packed texts that are split over ranks need causal attention")
        texts, mask, where = unpack(x, tokens.mask, tokens.runs)
        y, _ = self(texts, mask=mask)
        return y.flatten(0, 1)[where].unflatten(0, x.shape[:2]), None

    def weights(
        self,
        x: Tensor,
        state: MixerState | None = None,
        *,
        rows: Any = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Implied:
        """The exact weights (batch, num_heads, n, n) with which `forward` mixes values, and these.

        `rows` (a number or a list) selects queries, at a cost of O(n) each; above 4096 tokens it is
        required. With a `state`, a row sums to less than 1: the rest of its weight is on the past.

        >>> layer, x = Attention(64, num_heads=4), torch.randn(1, 10, 64)
        >>> weights, values = layer.weights(x, rows=[3, 9])
        >>> weights.shape, values.shape
        (torch.Size([1, 4, 2, 10]), torch.Size([1, 4, 10, 16]))
        """
        tokens = self._check(x, state, mask, key_padding_mask, segment_ids, cu_seqlens)
        return self._implied(tokens, state, rows)

    def empty_state(self, batch: int, start: int = 0) -> MixerState:
        """An empty state before token `start`, to read the second half of a text and `merge`."""
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
        """A live copy of the state for decoding one token at a time; every call changes it.

        This is much faster, but has no gradients, and the state cannot be forked; `frozen()` turns
        it back into a value. Where there is no compiled step (on other devices, or for a map that
        uses positions when rows have different ones after a mask), this returns `state` itself.
        """
        self._check_state(state)
        memory, dtype = state.memory, self.q_proj.weight.dtype
        dial = self._dial if self.learned is None else self.learned.export()
        kinds = {
            torch.float16: "float32",
            torch.bfloat16: "bfloat16",
            torch.float32: "float32",
            torch.float64: "float64",
        }
        batch, place = state.place
        if not isinstance(memory, State) or place.type != "cpu" or dtype not in kinds:
            return state
        if not self.causal or self.group is not None or maps.fused(dial.feature_map) is None:
            return state
        if state.count is not None and dial.feature_map.uses_positions:
            return state
        decoder = Decoder(
            dial,
            shape=(batch, self.num_kv_heads),
            d=self.head_dim,
            value_width=self.value_dim,
            groups=self.num_heads // self.num_kv_heads,
            dtype=kinds[dtype],
            on_zero=self.on_zero or "raise",
            state=memory,
        )
        if not decoder.compiled:
            return state
        return dataclasses.replace(state, memory=decoder)

    def merge(self, left: MixerState, right: MixerState) -> MixerState:
        """The state after both parts; `right` must start from `empty_state(batch, left.stop)`.

        This reads two halves of a text in parallel as far as the state is concerned. The outputs y
        of the right half did not see the left half.
        """
        for state in (left, right):
            self._check_state(state)
        if self.convolution is not None:
            raise ValueError(
                "states of a layer with short_convolution cannot be merged: the first tokens of "
                "the right half were convolved without the last tokens of the left half"
            )
        if self.rotary and left.count is not None:
            raise ValueError(
                "states of a rotary layer cannot be merged after a mask: the right half counted "
                "all tokens of the left half, not only those that take part"
            )
        memory = left.value().merge(right.value(), self.dial)
        count = None
        if left.count is not None or right.count is not None:
            before = left.stop if left.count is None else left.count
            after = right.stop if right.count is None else right.count
            count = before + after - int(right.value().start)
        return MixerState(self._owner, memory, None, count)

    def _attention(self, tokens: Tokens, heads: Heads) -> tuple[Any, dict[str, Any]]:
        mask = tokens.mask
        return self.dial, {
            "causal": self.causal,
            "mask": mask,
            "query_mask": None if self.causal else mask,
            "segment_ids": tokens.segment_ids,
            # The default positions are right unless some tokens take no part.
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
            # NumPy's views cost a fraction of PyTorch's, and a step is short.
            narrow = heads.v.dtype == torch.bfloat16  # which NumPy does not have
            q, k, v = (
                (x.float() if narrow else x).numpy()[:, :, 0] for x in (heads.q, heads.k, heads.v)
            )
            o = torch.from_numpy(past.step(q, k, v)[:, :, None])
            return o.to(heads.v.dtype), past
        return super()._mix(tokens, heads, past)

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> Any:
        if tokens.runs is not None and not self.causal:
            raise ValueError("full attention has weights for one text at a time: unpack the texts")
        return super()._operator(tokens, heads, past)

    def _kind(self) -> str:
        dial = self._dial  # without weights, which change; the memory of a state checks those
        near = (dial.window, dial.sinks, dial.whole, dial.bare)
        text = dial_text(dial.feature_map.name, *near)
        text = f", feature_map={text!r}"
        return text if self.causal else text + ", causal=False"
