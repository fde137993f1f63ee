"""What all mixers share: checking tokens, splitting into heads, and keeping a state."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree

from kerneltrick.attention import State, check_count, check_rows, linear_attention
from kerneltrick.engines import written_without_state
from kerneltrick.torch import distributed
from kerneltrick.torch._implied import MOST_ROWS, SUM, HeadOperator, Implied, LinearOperator
from kerneltrick.torch._mixer_state import Memory, MixerState
from kerneltrick.torch._short_convolution import ShortConvolution
from kerneltrick.torch._tokens import (
    check_mask,
    check_segments,
    count_tokens,
    frequencies,
    rotary_angles,
    rotate,
)
from kerneltrick.torch.distributed._tokens import Before

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a call."""

    x: Tensor  # masked tokens are 0; in the dtype used for computing
    mask: Tensor | None  # (batch, n), True where a token takes part
    runs: Tensor | None  # (batch or 1, n): the number of the text of each token
    dtype: Any  # the dtype of y
    segment_ids: Tensor | None  # (batch, n), as `linear_attention` takes them
    start: int  # the number of the first token
    count: Tensor | None  # (batch,): earlier tokens of the text that took part; None: all
    before: Before | None = None  # what other ranks hold

    def counted(self) -> tuple[Tensor, Tensor | None]:
        """The positions of the tokens in their texts, and the count for the new state."""
        return count_tokens(self.x, self.mask, self.runs, self.start, self.count)

    def tail(self, x: Tensor, tail: Tensor | None, count: int) -> Tensor | None:
        """The last `count` tokens of x before the first: from the state, or from other ranks."""
        if self.before is None or not count:
            return tail
        return self.before.tail(x, tail, count, self.mask, self.runs)

    def convolved(
        self, layer: ShortConvolution, x: Tensor, state: MixerState | None
    ) -> tuple[Tensor, Tensor]:
        """x (batch, n, channels) after a short convolution, and the tail for the new state."""
        tail = self.tail(x, None if state is None else state.tail, layer.taps - 1)
        made: tuple[Tensor, Tensor] = layer(x, tail, mask=self.mask, runs=self.runs)
        return made


class Heads(NamedTuple):
    """Queries, keys, values (batch, heads, n, width) and all else that is mixed."""

    q: Tensor
    k: Tensor
    v: Tensor
    tail: Tensor | None = None  # the tail for the new state
    positions: Tensor | None = None
    counted: Tensor | None = None  # the count for the new state
    gate: Tensor | None = None  # (batch, n, heads · width): multiplies the output, activated
    log_decay: Tensor | None = None
    beta: Tensor | None = None  # (batch, heads, n): the step size of the delta rule
    erase: Tensor | None = None  # what the delta rule erases; None: k
    read: Tensor | None = None  # what it reads to know how much; None: k
    own: Tensor | None = None  # a weight that each token's value gets in its own output beside
    own_v: Tensor | None = None  # these values; None: v

    def with_own(self, o: Tensor) -> Tensor:
        """The output of the heads with what each token adds to its own."""
        if self.own is None:
            return o
        return o + self.own * (self.v if self.own_v is None else self.own_v)


class Mixer(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """The base class of mixers: y, state = mixer(x, state) for tokens x (batch, n, hidden_size).

    A subclass computes queries, keys, values and decays in `_heads`. By default they are mixed
    without a normaliser, U_t = e^{log_decay} ⊙ U_{t−1} + k_t v_tᵀ and o_t = U_tᵀ q_t. Then the
    heads are normalised, gated and concatenated. The last projection is called `o_proj`.
    """

    spreads = True  # whether the tokens of a sequence may be split over several ranks
    activation = staticmethod(functional.silu)  # of the gate

    def __init__(self, hidden_size: int, num_heads: int, layer_idx: int | None, group: Any) -> None:
        super().__init__()
        self.hidden_size = check_count(self._who, "hidden_size", hidden_size, least=1)
        self.num_heads = check_count(self._who, "num_heads", num_heads, least=1)
        self.layer_idx = layer_idx
        self.norm: Any = None
        self.spread(group)

    @property
    def _who(self) -> str:
        return type(self).__name__

    @property
    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch is not followed
    def _owner(self) -> str:
        """The description of the layer that its states carry."""
        return f"{self._who}({self.extra_repr()})"

    def spread(self, group: Any) -> None:
        """Split sequences over the ranks of `group`: x then holds the tokens of this rank only.

        None switches back to whole sequences. Every rank calls the mixer with its own tokens, as
        many as it has. A state is given to the first rank; the last rank returns the state of the
        whole sequence. See `kerneltrick.torch.distributed`.
        """
        if group is not None and not self.spreads:
            raise ValueError(
                f"{self._who} keeps no state, and states are what ranks exchange: give it "
                "whole texts, or split another mixer"
            )
        self.group = group

    def forward(
        self,
        x: Tensor,
        state: MixerState | None = None,
        *,
        mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, MixerState | None]:
        """Return y (batch, n, hidden_size) and the state after x; x continues from `state`.

        `mask` (batch, n) is True where a token takes part. A token that does not take part has no
        effect, and its y is 0. `segment_ids` (batch, n) or (n,) packs several texts into a row: a
        new text begins where the number changes. `cu_seqlens` (texts + 1,) says the same for a
        single packed row, by the boundaries of the texts.
        """
        return self._run(self._check(x, state, mask, None, segment_ids, cu_seqlens), state)

    def weights(
        self,
        x: Tensor,
        state: MixerState | None = None,
        *,
        rows: Any = None,
        mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Implied:
        """The weights with which `forward` mixes values, and these values, both exact.

        weights (batch, heads, n, n) @ values (batch, heads, n, width) are the outputs of the heads,
        before their norm, gate and projection. Every mixer has them, because its output is linear
        in its values, but only softmax and normalised maps have weights that are positive and sum
        to 1. Channels are heads where each channel has weights of its own (Mamba, Hyena);
        `weights.mean(1)` is their mean. DeltaProduct has a column for each step of a token.

        `rows` (a number or a list) selects queries, at a cost of O(n) each; above 4096 tokens it is
        required. With a `state` the rest of the weight is on the past.
        """
        tokens = self._check(x, state, mask, None, segment_ids, cu_seqlens)
        return self._implied(tokens, state, rows)

    def operator(self, x: Tensor) -> HeadOperator:
        """What the heads compute for tokens x, with its inputs."""
        return self._traced(self._check(x, None, None, None, None, None), None)

    def _implied(self, tokens: Tokens, state: MixerState | None, rows: Any) -> Implied:
        x = tokens.x
        if rows is None and x.shape[1] > MOST_ROWS:
            raise ValueError(
                f"the weights of {x.shape[1]} tokens are {x.shape[1]}² numbers for each head: "
                f"select queries with rows=[…]; without it at most {MOST_ROWS} tokens are allowed"
            )
        return self._traced(tokens, state).implied(check_rows(rows, x.shape[1]))

    def _traced(self, tokens: Tokens, state: MixerState | None) -> HeadOperator:
        if self.group is not None:
            raise ValueError("no rank has all the tokens, so their weights cannot be computed")
        heads = self._heads(tokens, state)
        return self._operator(tokens, heads, None if state is None else state.value())

    def _check(
        self,
        x: Tensor,
        state: MixerState | None,
        mask: Tensor | None,
        key_padding_mask: Tensor | None,
        segment_ids: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> Tokens:
        """Refuse arguments that do not fit, and set masked tokens to 0."""
        refuse_trace(self)
        who, weight = self._who, self.o_proj.weight
        if not isinstance(x, torch.Tensor) or x.ndim != 3 or x.shape[-1] != self.hidden_size:
            shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"{who} needs x (batch, n, {self.hidden_size}), not {shape}")
        if x.device != weight.device:
            raise ValueError(
                f"{who} is on {weight.device}, but x is on {x.device}: move one of them"
            )
        if x.dtype != weight.dtype and not _autocast(x):
            raise TypeError(f"{who} has weights of {weight.dtype}, but x is {x.dtype}: cast one")
        if state is not None:
            self._check_state(state)
            rows, device = state.place
            if device != x.device or rows != x.shape[0]:
                raise ValueError(
                    f"the state has {rows} rows on {device}, but x has {x.shape[0]} on {x.device}"
                )
        runs = check_segments(x, segment_ids, cu_seqlens)
        mask = check_mask(x, mask, key_padding_mask)
        dtype = torch.get_autocast_dtype(x.device.type) if _autocast(x) else x.dtype
        if x.dtype == torch.float16:
            x = x.float()
        if mask is not None:  # so that NaN in padding has no effect, forward or backward
            x = torch.where(mask[..., None], x, torch.zeros_like(x))
        ids = None if runs is None else runs.expand(x.shape[:2])
        bounds = None if state is None else (state.stop, state.count)
        if self.group is None:
            return Tokens(x, mask, runs, dtype, ids, *(bounds or (0, None)))
        if cu_seqlens is not None:
            raise ValueError("texts that are split over ranks need segment_ids, not cu_seqlens")
        # As given, not renumbered: these numbers tell whether a text continues from another rank.
        ids = None if segment_ids is None else segment_ids.expand(x.shape[:2])
        learned = (x, *self.parameters(), *_pytree.tree_leaves(state))
        before = Before.look(self.group, self._owner, x, mask, ids, runs, bounds, learned)
        return Tokens(x, mask, runs, dtype, ids, before.stop, before.count, before)

    def _check_state(self, state: Any) -> None:
        if not isinstance(state, MixerState):
            raise TypeError(f"state must be a MixerState, not {type(state).__name__}")
        if state.owner != self._owner:
            raise ValueError(f"the state is of {state.owner}, but this is {self._owner}")

    def _run(self, tokens: Tokens, state: MixerState | None) -> tuple[Tensor, MixerState | None]:
        heads = self._heads(tokens, state)
        o, memory = self._mix(tokens, heads, None if state is None else state.memory)
        y = self._combine(heads, heads.with_own(o)).to(tokens.dtype)
        if tokens.mask is not None:
            y = torch.where(tokens.mask[..., None], y, torch.zeros_like(y))
        if memory is None or (state is None and written_without_state()):
            return y, None
        owner = self._owner if state is None else state.owner
        return y, MixerState(owner, memory, heads.tail, heads.counted)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        raise NotImplementedError

    def _mix(
        self, tokens: Tokens, heads: Heads, past: Memory | None
    ) -> tuple[Tensor, Memory | None]:
        """The output (batch, heads, n, width) of all heads, and the new memory."""
        assert past is None or isinstance(past, State)
        feature_map, options = self._attention(tokens, heads)
        q, k, v = heads.q, heads.k, heads.v
        if tokens.before is None:
            return linear_attention(q, k, v, feature_map, state=past, return_state=True, **options)
        q = tokens.before.leading(q)
        made: tuple[Tensor, State] = distributed.linear_attention(
            q, k, v, feature_map, state=past, return_state=True, group=self.group, **options
        )
        return made

    def _attention(self, tokens: Tokens, heads: Heads) -> tuple[Any, dict[str, Any]]:
        """The map and the keyword arguments of `linear_attention`."""
        options = {"log_decay": heads.log_decay, "mask": tokens.mask}
        return "identity", {**SUM, **options, "segment_ids": tokens.segment_ids}

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> HeadOperator:
        """What `_mix` computes, as an operator that knows its weights."""
        feature_map, options = self._attention(tokens, heads)
        options["state"] = past
        return LinearOperator(heads.q, heads.k, heads.v, feature_map, options, heads.own)

    def _combine(self, heads: Heads, o: Tensor) -> Tensor:
        if self.norm is not None:
            weight = self.norm.weight.to(o.dtype)
            o = functional.rms_norm(o, o.shape[-1:], weight, self.norm.eps)
        o = joined(o)
        if heads.gate is not None:
            o = o * self.activation(heads.gate)
        return linear(self.o_proj, o)

    def extra_repr(self) -> str:
        text = f"{self.hidden_size}, num_heads={self.num_heads}"
        return text if self.layer_idx is None else f"{text}, layer_idx={self.layer_idx}"


class ProjectedMixer(Mixer):
    """A mixer whose queries, keys and values are projections of x, split into heads.

    A short convolution and rotary positions are optional.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        num_key_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        rotary: bool | float = False,
        bias: bool = False,
        short_convolution: int = 0,
        output_norm: bool = False,
        output_gate: bool = False,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(hidden_size, num_heads, layer_idx, group)
        who = self._who
        given = num_heads if num_kv_heads is None else num_kv_heads
        self.num_kv_heads = check_count(who, "num_kv_heads", given, least=1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{num_heads} query heads cannot share {num_kv_heads} key/value heads evenly"
            )
        # Queries, keys and values; with num_key_heads, values have more heads than both others.
        self._counts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        if num_key_heads is not None:
            if num_heads % check_count(who, "num_key_heads", num_key_heads, least=1):
                raise ValueError(
                    f"{num_heads} value heads cannot share {num_key_heads} query/key heads evenly"
                )
            self._counts = (num_key_heads, num_key_heads, self.num_heads)
        width = head_width(hidden_size, num_heads) if head_dim is None else head_dim
        self.head_dim = check_count(who, "head_dim", width, least=1)
        width = self.head_dim if value_dim is None else value_dim
        self.value_dim = check_count(who, "value_dim", width, least=1)
        self.rotary = (10_000.0 if rotary else 0.0) if isinstance(rotary, bool) else float(rotary)
        if self.rotary and (self.rotary <= 1 or self.head_dim % 2):
            raise ValueError(
                f"rotary positions need a base > 1 and an even head_dim, not {rotary!r} and "
                f"{self.head_dim}"
            )
        # Not a buffer, because layers in float16 need the angles in float64 too.
        self._frequencies = frequencies(self.head_dim, self.rotary) if self.rotary else None
        wide = self.num_heads * self.value_dim
        queries, keys, values = self._counts
        self.q_proj = nn.Linear(hidden_size, queries * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden_size, keys * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden_size, values * self.value_dim, bias=bias)
        self.o_proj = nn.Linear(wide, hidden_size, bias=bias)
        self.convolution = self.gate = None
        taps = check_count(who, "short_convolution", short_convolution)
        if taps:
            channels = sum(x.out_features for x in (self.q_proj, self.k_proj, self.v_proj))
            self.convolution = ShortConvolution(channels, taps)
        if output_norm:
            self.norm = nn.RMSNorm(self.value_dim, eps=1e-6)
        if output_gate:
            self.gate = nn.Linear(hidden_size, wide, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        x = tokens.x
        parts = [linear(layer, x) for layer in (self.q_proj, self.k_proj, self.v_proj)]
        tail = None
        if self.convolution is not None:
            whole, tail = tokens.convolved(self.convolution, torch.cat(parts, -1), state)
            parts = list(whole.split([part.shape[-1] for part in parts], dim=-1))
        q, k, v = (split(part, count) for part, count in zip(parts, self._counts, strict=True))
        positions, after = tokens.counted()
        if self.rotary:
            cos, sin = rotary_angles(x, positions, self._frequencies)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        gate = None if self.gate is None else linear(self.gate, x)
        return Heads(q, k, v, tail, positions, after, gate)

    def extra_repr(self) -> str:
        text = f"{self.hidden_size}, num_heads={self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            text += f", num_kv_heads={self.num_kv_heads}"
        if self._counts[0] != self.num_heads:
            text += f", num_key_heads={self._counts[0]}"
        text += f", head_dim={self.head_dim}, value_dim={self.value_dim}" + self._kind()
        if self.rotary:
            text += f", rotary={self.rotary:g}"
        if self.layer_idx is not None:
            text += f", layer_idx={self.layer_idx}"
        return text

    def _kind(self) -> str:
        """What else distinguishes the states of this layer from others."""
        return ""


def refuse_trace(module: nn.Module) -> None:
    """TypeError if torch.jit.trace was given this module itself."""
    if torch.compiler.is_dynamo_compiling() or not torch.jit.is_tracing():
        return
    modules = getattr(torch.jit._trace, "_trace_module_map", None) or {}
    if modules.get("__module") is module:
        raise TypeError(
            f"torch.jit.trace takes outputs that are tensors, but {type(module).__name__} returns "
            "its state too: trace a module that returns the first output only, or use "
            "torch.export.export or kerneltrick.onnx.export"
        )


def head_width(size: int, num_heads: int) -> int:
    """size / num_heads, which must be an integer."""
    if size % num_heads:
        raise ValueError(
            f"hidden_size {size} is not a multiple of num_heads {num_heads}; set head_dim"
        )
    return size // num_heads


def split(x: Tensor, heads: int) -> Tensor:
    """Reshape (batch, n, heads · width) to (batch, heads, n, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(o: Tensor) -> Tensor:
    """Reshape (batch, heads, n, width) to (batch, n, heads · width)."""
    return o.transpose(1, 2).flatten(-2)


def unit(x: Tensor) -> Tensor:
    """x/‖x‖, and 0 for x = 0, which has no direction."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length == 0, torch.ones_like(length), length)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply the layer in the dtype of x, which is wider than its weights for float16."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return functional.linear(x, layer.weight.to(x.dtype), bias)


def _autocast(x: Tensor) -> bool:
    kind = x.device.type
    return bool(torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind))
