"""The cache of a model that attends through feature maps: one state per layer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import cache_utils

from kerneltrick.attention import Decoder, History, State, check_count
from kerneltrick.hf._attend import LayerSetting, attend_causal, hand_over
from kerneltrick.hf._mask import AttentionError, TokenMask
from kerneltrick.torch import exported

PATIENCE = 2  # tokens that arrive one by one before a decoder is made
STEPPED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # what it takes
NEVER = 1 << 62  # the same, where there is no compiled step


class Cache(cache_utils.Cache):  # type: ignore[misc] # transformers is not followed by mypy
    """A cache of constant size: each layer keeps the sums of far tokens, its window and its sinks.

    Use it with a model whose `attn_implementation` is a name from `register`, in
    `model.generate(..., past_key_values=kerneltrick.hf.Cache())` or in calls that read a text in
    chunks. Its size does not grow with the context, except for the map `softmax` without a window
    and for `whole` heads, which need every key. Greedy decoding, sampling, beam search and assisted
    generation work as they do with other caches.

    Tokens can be taken back: `Cache(reach=16)` keeps what is needed to `crop` to any of the 16
    tokens before the furthest one read, and a checkpoint of the states every `every` tokens
    (`History`). Assisted generation needs no `reach`: it asks for what it needs.

    `fork()` copies the cache, at the cost of its states. On the CPU and without gradients, tokens
    that arrive one by one update the states in place with the compiled step (`Decoder`).

    >>> import torch, transformers, kerneltrick.hf
    >>> config = transformers.LlamaConfig(
    ...     vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2,
    ... )
    >>> name = kerneltrick.hf.register("elu@window=8,sinks=1")
    >>> model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=name)
    >>> cache = kerneltrick.hf.Cache()
    >>> for length in (20, 200):
    ...     _ = model(torch.ones((1, length), dtype=torch.long), past_key_values=cache)
    ...     print(cache.get_seq_length(), cache.nbytes)
    20 4352
    220 4352
    """

    def __init__(self, *, reach: int = 0, every: int = 64) -> None:
        super().__init__(layer_class_to_replicate=self._layer)
        self.reach = check_count("Cache", "reach", reach)
        self.every = check_count("Cache", "every", every, least=1)
        self._recording = False

    def _layer(self) -> Layer:
        layer = Layer(self.reach, self.every)
        layer.record_past = self._recording
        return layer

    @property
    def nbytes(self) -> int:
        """The bytes of all states."""
        return sum(layer.state.nbytes for layer in self.layers if layer.state is not None)

    def fork(self) -> Cache:
        """Return a cache with the same past, which goes on independently."""
        made = Cache(reach=self.reach, every=self.every)
        made.layers = [layer.fork() for layer in self.layers]
        made._recording = self._recording
        return made

    def activate_past_recording(self) -> None:
        """Record the tokens that are read from now on, so that `crop` can remove them again."""
        self._recording = True
        super().activate_past_recording()


class Layer(cache_utils.CacheLayerMixin):  # type: ignore[misc] # as above
    """One layer of a `Cache`.

    transformers passes keys to the cache first, and then passes what the cache returned to the
    attention function, which does not see the cache. So the layer is handed over beside the keys.
    """

    is_croppable = True
    is_sliding = False

    def __init__(self, reach: int = 0, every: int = 64) -> None:
        super().__init__()
        self.reach, self.every = reach, every  # of `History`; 0: only while recording
        self._past: LayerHistory | None = None  # what can be taken back
        self.state = None
        self.record_past = False
        self._owed = False  # whether keys were returned that no attention function has used yet

    @property
    def state(self) -> State | None:
        """The state of the layer, as a value."""
        if isinstance(self._memory, Decoder):
            return self._memory.snapshot().to(torch.empty(0))
        return self._memory

    @state.setter
    def state(self, state: State | None) -> None:
        self._memory: State | Decoder | None = state
        self._used: list[Any] = []  # what the decoder was made from
        self._single = 0  # tokens that arrived one by one since then

    @property
    def seen(self) -> int:
        """How many tokens the state has, including padding."""
        return 0 if self._memory is None else int(self._memory.stop)

    def fork(self) -> Layer:
        """Return a layer with the same past, which goes on independently."""
        self.state = self.state  # a decoder, which changes in place, must not be shared
        made = copy.copy(self)
        made._past = copy.copy(self._past)
        return made

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    # torch.compile leaves a cache alone: it changes in place, with steps of the compiled core.
    @torch.compiler.disable  # type: ignore[untyped-decorator] # torch is not followed by mypy
    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Return the same keys and values: the past is in the state, not among them."""
        if self._owed:
            raise AttentionError(
                "the keys were cached, but kerneltrick's attention never ran: load the model with "
                "attn_implementation=kerneltrick.hf.register(...)"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        hand_over(self, key_states)
        self._owed = True
        return key_states, value_states

    @torch.compiler.disable  # type: ignore[untyped-decorator] # as above
    def attend_cached(
        self, where: str, rule: LayerSetting, query: Any, key: Any, value: Any, tokens: TokenMask
    ) -> Any:
        """Return the outputs of new tokens, and add the tokens to the state."""
        self._owed = False
        if not tokens.causal:
            raise AttentionError(f"{where} attends to all tokens, so it cannot use a cache")
        if query.shape[2] != key.shape[2]:
            raise AttentionError(f"{where} has {query.shape[2]} queries for {key.shape[2]} keys")
        if self._can_step(query, tokens):
            decoder = self._decoder(rule, query, key, value)
            if decoder is not None:
                new = (x[:, :, 0] for x in (query, key, value))
                return decoder.step(*new)[:, :, None]
            single = self._single + 1
        else:
            single = 0
        if self.reach or self.record_past:
            if self._past is None:
                self._past = LayerHistory(_read, self.state, every=self.every)
            self._past.reach = None if self.record_past else self.reach
            out = self._past.read(rule, query, key, value, tokens)
            self.state = self._past.state
        else:
            self._past = None
            out, self.state = attend_causal(rule, query, key, value, tokens, self.state)
        self._single = single
        return out

    def _can_step(self, query: Any, tokens: TokenMask) -> bool:
        """Return whether a `Decoder` can take the call: one token per stream, without gradients."""
        return (
            query.shape[2] == 1
            and query.is_cpu
            and query.dtype in STEPPED
            and not (torch.is_grad_enabled() or self.record_past or self.reach)
            and self._memory is not None
            and tokens.segment_ids is tokens.positions is None
            and (tokens.keep is None or bool(tokens.keep.all()))
        )

    def _decoder(self, rule: LayerSetting, query: Any, key: Any, value: Any) -> Decoder | None:
        """Return the decoder that continues from here, from the third single token on.

        Earlier it would not pay off: beam search reorders the streams after every token.
        """
        used = _parts(rule)
        if isinstance(self._memory, Decoder):
            if _same(used, self._used):
                return self._memory
            self.state = self.state
        if self._single < PATIENCE:
            return None
        made = Decoder(
            exported(rule.dial),
            shape=tuple(key.shape[:2]),
            d=key.shape[3],
            value_width=value.shape[3],
            groups=query.shape[1] // key.shape[1],
            dtype=query.dtype,
            scale=rule.scale,
            state=self.state,
        )
        if not made.compiled:
            self._single = -NEVER
            return None
        self._memory, self._used = made, used
        return made

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last |tokens_to_remove| tokens, as if they had never been read."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop needs minus the number of tokens to remove, not {tokens_to_remove}"
            )
        held = 0 if self._past is None else self._past.held
        if -tokens_to_remove > held:
            raise RuntimeError(
                f"crop can remove the last {held} tokens that this cache kept, not "
                f"{-tokens_to_remove}; make it with Cache(reach={-tokens_to_remove}), call "
                "activate_past_recording() earlier, or fork() the cache before"
            )
        if self._past is None:
            return
        if tokens_to_remove:
            self._past.back(-tokens_to_remove)
            self.state = self._past.state
        if self.reach:
            self._past.trim(self.reach)
        else:  # what transformers records, it records from here on
            self._past = None

    def activate_past_recording(self) -> None:
        self.record_past = True  # nothing is forgotten until the next crop

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys and where they begin: the past is in the state, not in keys."""
        return query_length, self.seen

    def get_max_length(self) -> int:
        return -1  # there is no limit

    def reset(self) -> None:
        self.__init__(self.reach, self.every)  # type: ignore[misc] # start again

    def reorder_cache(self, beam_idx: Any) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            count = self.state.parts[0].sums.hi.shape[0]
            self.batch_select_indices(torch.arange(count).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Any) -> None:
        """Keep the streams of the batch with these indices, in this order."""

        def pick(x: Any) -> Any:
            return None if x is None else x.index_select(0, indices.to(x.device))

        def chosen(state: State | None) -> State | None:
            if state is None:
                return None
            return state.select(indices.to(state.parts[0].sums.hi.device))

        self.state = chosen(self.state)
        if self._past is not None:
            self._past = self._past.selected(chosen, pick)


class LayerHistory(History):
    """The history of a layer: how it attended, its queries, keys and values, and its mask."""

    def selected(self, state: Callable[[Any], Any], tensor: Callable[[Any], Any]) -> LayerHistory:
        """The history of other streams of the batch."""
        made = copy.copy(self)
        made.state = state(self.state)
        made._readings = [
            reading._replace(
                before=state(reading.before),
                inputs=(
                    reading.inputs[0],
                    *map(tensor, reading.inputs[1:4]),
                    reading.inputs[4].each(tensor),
                ),
            )
            for reading in self._readings
        ]
        return made

    def _length(self, inputs: tuple[Any, ...]) -> int:
        return int(inputs[2].shape[2])

    def _cut(self, inputs: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
        rule, *arrays, tokens = inputs
        here = slice(start, stop)
        return (rule, *(x[:, :, here] for x in arrays), tokens.stretch(here))

    def _join(self, outputs: list[Any]) -> Any:
        return torch.cat(outputs, dim=2)


def _read(
    state: State | None, rule: LayerSetting, query: Any, key: Any, value: Any, tokens: TokenMask
) -> tuple[Any, State]:
    return attend_causal(rule, query, key, value, tokens, state)


def _parts(rule: LayerSetting) -> list[Any]:
    """Return the parts of a rule, and how often the tensors among them have been changed."""
    dial, far = rule.dial, rule.dial.far
    learned = dial.feature_map
    values = [getattr(learned, field.name) for field in dataclasses.fields(learned)]
    gains = [] if far is None else [far.gain, far.relative]
    near = [dial.window, dial.sinks, dial.whole, dial.bare]
    parts = [rule.scale, *near, type(learned), *values, *gains]
    # Tensors made under inference_mode do not count their changes.
    changes = [
        object() if x.is_inference() else x._version for x in parts if isinstance(x, torch.Tensor)
    ]
    return [*parts, *changes]


def _same(ours: list[Any], theirs: list[Any]) -> bool:
    """Return whether two rules have equal parts; tensors and arrays must be the same objects."""

    def equal(a: Any, b: Any) -> bool:
        return a is b or (
            not isinstance(a, (torch.Tensor, np.ndarray)) and type(a) is type(b) and bool(a == b)
        )

    return len(ours) == len(theirs) and all(map(equal, ours, theirs))
