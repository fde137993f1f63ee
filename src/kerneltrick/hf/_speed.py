"""Tokens per second and memory of a linearised model, and of the same model with softmax."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.hf._cache import Cache
from kerneltrick.hf._capture import check_length
from kerneltrick.hf._linearized import NAME, Linearized

STEPS = 32  # tokens that are decoded and timed after each context; the median counts
WARM_UP = 4  # tokens that are decoded before, without timing
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

    A prompt of noise is read in chunks, and then tokens are decoded one by one. The median step
    counts, as other work on the machine slows single steps down.
    """
    limit, more = model.config.text_config, WARM_UP + STEPS if model.config.causal else 0
    for context in contexts:
        check_length("the model", limit, context + more, "use shorter contexts (--contexts)")
    meter = Progress("timing", 2 * len(contexts), progress)
    found = []
    for place, context in enumerate(contexts):
        meter(2 * place)
        with _as_softmax(model) as teacher:
            found.append(_time("teacher", model, teacher, context, DynamicCache, _keys_bytes))
        meter(2 * place + 1)
        found.append(_time("hybrid", model, model, context, Cache, lambda cache: cache.nbytes))
    meter.close(2 * len(contexts))
    return tuple(found)


@contextmanager
def _as_softmax(model: Linearized) -> Iterator[Any]:
    model.model.set_attn_implementation("sdpa")
    try:
        yield model.model
    finally:
        model.model.set_attn_implementation(NAME)


def _time(
    name: str,
    model: Linearized,
    network: Any,
    context: int,
    new_cache: Callable[[], Any],
    size: Callable[[Any], int],
) -> Speed:
    vocabulary = model.config.text_config.get_text_config().vocab_size
    ids = torch.arange(context, device=model.device)[None] * 7 % vocabulary
    with torch.inference_mode():
        if not model.config.causal:
            network(input_ids=ids)  # preparations are not timed
            start = time.perf_counter()
            network(input_ids=ids)
            return Speed(name, context, context / (time.perf_counter() - start), None, None)
        cache = new_cache()
        how: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
        if model.config.language:
            how["logits_to_keep"] = 1
        network(input_ids=ids[:, :2], past_key_values=new_cache(), use_cache=True)
        start = time.perf_counter()
        for at in range(0, context, CHUNK):
            network(input_ids=ids[:, at : at + CHUNK], **how)
        read = time.perf_counter() - start
        for _ in range(WARM_UP):
            network(input_ids=ids[:, :1], **how)
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            network(input_ids=ids[:, :1], **how)
            times.append(time.perf_counter() - start)
    return Speed(name, context, context / read, 1 / statistics.median(times), size(cache))


def _keys_bytes(cache: Any) -> int:
    return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in cache.layers)
