"""Tokens per second and memory of a linearised model, and of the same model with softmax."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.hf._cache import Cache
from kerneltrick.hf._capture import check_length
from kerneltrick.hf._linearized import NAME, Linearized

STEPS = 32  # tokens that are decoded and timed after each context; the median counts
WARM_UP = 4  # tokens that are decoded before, and do not count
MORE = WARM_UP + STEPS
CHUNK = 1024  # tokens of the prompt that are read in one call


class Speed(NamedTuple):
    """The speed and memory of one way to attend after a context, for one stream."""

    name: str  # teacher or hybrid
    context: int  # tokens
    prefill: float  # tokens per second; for encoders, of the whole text at once
    decoding: float | None  # tokens per second; None for encoders
    state_bytes: int | None


def speeds(
    model: Linearized, contexts: Sequence[int], *, progress: ProgressReport | None = None
) -> tuple[Speed, ...]:
    """Time the model and its teacher: the same weights with transformers' own attention.

    Both read a prompt of noise in chunks and then decode tokens one by one, taking turns, so that
    other work on the machine slows down both. The median step counts.
    """
    check_contexts(model, contexts)
    meter = Progress("timing", len(contexts), progress)
    found: list[Speed] = []
    for place, context in enumerate(contexts):
        meter(place)
        with torch.inference_mode():
            found += _decoded(model, context) if model.config.causal else _encoded(model, context)
    meter.close(len(contexts))
    return tuple(found)


def check_contexts(model: Linearized, contexts: Sequence[int]) -> None:
    """Raise CaptureError if the model has too few positions for a context and what follows it."""
    limit, more = model.config.text_config, MORE if model.config.causal else 0
    for context in contexts:
        check_length(
            f"the model, with {more} tokens decoded after the context," if more else "the model",
            limit,
            context + more,
            "use shorter contexts (--contexts)",
        )


class _Way(NamedTuple):
    """A way to attend: its name, how the model gets it, its cache, and the bytes of a cache."""

    name: str
    network: Callable[[Linearized], AbstractContextManager[Any]]
    new_cache: Callable[[], Any]
    size: Callable[[Any], int]


@contextmanager
def _as_softmax(model: Linearized) -> Iterator[Any]:
    model.model.set_attn_implementation("sdpa")
    try:
        yield model.model
    finally:
        model.model.set_attn_implementation(NAME)


def _keys_bytes(cache: Any) -> int:
    return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cache.layers)


WAYS = (
    _Way("teacher", _as_softmax, DynamicCache, _keys_bytes),
    _Way("hybrid", nullcontext, Cache, lambda cache: int(cache.nbytes)),
)


def _decoded(model: Linearized, context: int) -> list[Speed]:
    """Time how a decoder reads a prompt and goes on from there."""
    ids = _noise(model, context)
    how: dict[str, Any] = {"use_cache": True}
    if model.config.language:
        how["logits_to_keep"] = 1

    def timed(way: _Way, cache: Any, tokens: Any) -> float:
        with way.network(model) as network:
            start = time.perf_counter()
            network(input_ids=tokens, past_key_values=cache, **how)
            return time.perf_counter() - start

    caches, prefills = {}, {}
    for way in WAYS:
        timed(way, way.new_cache(), ids[:, :2])  # preparations do not count
        cache = caches[way] = way.new_cache()
        read = sum(timed(way, cache, ids[:, at : at + CHUNK]) for at in range(0, context, CHUNK))
        prefills[way] = context / read
    turns = [{way: timed(way, caches[way], ids[:, :1]) for way in WAYS} for _ in range(MORE)]
    return [
        Speed(
            way.name,
            context,
            prefills[way],
            1 / statistics.median(turn[way] for turn in turns[WARM_UP:]),
            way.size(caches[way]),
        )
        for way in WAYS
    ]


def _encoded(model: Linearized, context: int) -> list[Speed]:
    """Time how an encoder reads a text at once."""
    found, ids = [], _noise(model, context)
    for way in WAYS:
        with way.network(model) as network:
            network(input_ids=ids)  # preparations do not count
            start = time.perf_counter()
            network(input_ids=ids)
            read = time.perf_counter() - start
        found.append(Speed(way.name, context, context / read, None, None))
    return found


def _noise(model: Linearized, tokens: int) -> Any:
    vocabulary = model.config.text_config.get_text_config().vocab_size
    return torch.arange(tokens, device=model.device)[None] * 7 % vocabulary
