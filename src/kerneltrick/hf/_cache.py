"""The cache of a model that attends through a feature map: a state for each layer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import cache_utils

from kerneltrick.attention import State
from kerneltrick.hf._attend import LAYER, Rule, absorb, attend_causal
from kerneltrick.hf._mask import AttentionError, Tokens


class Cache(cache_utils.Cache):  # type: ignore[misc] # transformers is not followed by mypy
    """What a model remembers: for each layer the sums of far tokens, the window and the sinks.

    For `model.generate(..., past_key_values=kerneltrick.hf.Cache())` and for calls in chunks, with
    a model whose `attn_implementation` is a name from `register`. Its size does not grow with the
    context (but for the map `softmax` without a window, which needs every key). Greedy, sampling,
    beam search and assisted generation work as they do with other caches.

    `fork()` is a second cache from here on, at no cost: states are never changed.

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

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=self._layer)
        self._recording = False

    def _layer(self) -> Layer:
        layer = Layer()
        layer.record_past = self._recording
        return layer

    @property
    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(layer.state.nbytes for layer in self.layers if layer.state is not None)

    def fork(self) -> Cache:
        """A cache with the same past and a future of its own."""
        made = Cache()
        made.layers = [copy.copy(layer) for layer in self.layers]
        made._recording = self._recording
        return made

    def activate_past_recording(self) -> None:
        """Keep the tokens that are read from now on until `crop`, which can take them back."""
        self._recording = True
        super().activate_past_recording()


class Layer(cache_utils.CacheLayerMixin):  # type: ignore[misc] # as above
    """One layer of a `Cache`.

    transformers gives keys to the cache first and then what the cache returned to the attention
    function, which does not see the cache: so the layer goes along with the keys.
    """

    is_croppable = True
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self.seen = 0  # tokens, padding too
        self.record_past = False
        self._owed = False  # whether keys went out that no attention function has used
        self._base: State | None = None  # the state before …
        self._tail: list[tuple[Any, Any, Tokens]] = []  # … these tokens, while recording
        self._rule: Rule | None = None
        self._heads = 0

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """The same keys and values: the past is in the state, not among them."""
        if self._owed:
            raise AttentionError(
                "the keys given to kerneltrick.hf.Cache did not come to its attention: load the "
                "model with attn_implementation=kerneltrick.hf.register(...)"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        key_states.__dict__[LAYER] = self
        self._owed = True
        return key_states, value_states

    def attend(
        self, where: str, rule: Rule, query: Any, key: Any, value: Any, tokens: Tokens
    ) -> Any:
        """The outputs of new tokens, which the state has afterwards."""
        self._owed = False
        if not tokens.causal:
            raise AttentionError(f"{where} attends to all tokens, so it cannot have a cache")
        if query.shape[2] != key.shape[2]:
            raise AttentionError(f"{where} has {query.shape[2]} queries for {key.shape[2]} keys")
        out, state = attend_causal(rule, query, key, value, tokens, self.state)
        if self.record_past:
            if not self._tail:
                self._base = self.state
            self._tail = [*self._tail, (key, value, tokens)]  # a fork has the list before
        self._rule, self._heads = rule, query.shape[1]
        self.state, self.seen = state, self.seen + key.shape[2]
        return out

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last |tokens_to_remove| tokens back: the state before, and those that remain."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop takes minus the number of tokens to take back, not {tokens_to_remove}"
            )
        recorded = sum(key.shape[2] for key, _, _ in self._tail)
        left = recorded + tokens_to_remove
        if left < 0:
            raise RuntimeError(
                f"crop can take back the {recorded} tokens read since activate_past_recording() or "
                f"the last crop, not {-tokens_to_remove}; fork() the cache before, or record"
            )
        if tokens_to_remove:
            assert self._rule is not None
            self.state = self._base
            for key, value, tokens in self._tail:
                k, v = key[:, :, :left], value[:, :, :left]
                part = tokens.stretch(slice(None, left))
                if k.shape[2]:
                    self.state = absorb(self._rule, self._heads, k, v, part, self.state)
                left -= k.shape[2]
            self.seen += tokens_to_remove
        self._tail = []

    def activate_past_recording(self) -> None:
        self.record_past = True

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys and where they begin: only those of the call, since the past is in the state."""
        return query_length, self.seen

    def get_max_length(self) -> int:
        return -1  # there is none

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc] # as new

    def reorder_cache(self, beam_idx: Any) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            count = self.state.sums.hi.shape[0]
            self.batch_select_indices(torch.arange(count).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Any) -> None:
        """Keep these streams of the batch, in this order."""

        def pick(x: Any) -> Any:
            return None if x is None else x.index_select(0, indices.to(x.device))

        def chosen(state: State | None) -> State | None:
            return None if state is None else state.select(indices.to(state.sums.hi.device))

        self.state, self._base = chosen(self.state), chosen(self._base)
        self._tail = [
            (pick(k), pick(v), Tokens(True, pick(tokens.keep), pick(tokens.segment_ids)))
            for k, v, tokens in self._tail
        ]
