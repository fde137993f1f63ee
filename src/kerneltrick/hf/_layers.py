"""What the layers of a model of transformers compute for a text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kerneltrick.hf._accelerate import _find, accelerate
from kerneltrick.hf._capture import load, load_tokenizer, place_of, quiet
from kerneltrick.hf._linearized import Linearized
from kerneltrick.hf._mask import AttentionError
from kerneltrick.hf._names import FAMILY, register
from kerneltrick.hf._texts import model_kind
from kerneltrick.hf._watch import Seen, watching


def watch_layers(model: Any, tokens: Any) -> tuple[list[Seen], list[str]]:
    """Return what each layer computes for tokens (1, n), in their order, and what was left out.

    While the model runs, its linear layers run as after `accelerate`, and its softmax layers by
    the name "kerneltrick:softmax"; both are put back.
    """
    linear = any(True for _ in _find(model))
    with accelerate(model) if linear else contextlib.nullcontext():
        try:
            with _exact_attention(model), watching(model) as seen:
                model(tokens, use_cache=False)
            return seen, []
        except (AttentionError, IndexError, RuntimeError, TypeError) as error:
            if not linear:
                raise
            # Some models read the mask of their softmax layers themselves, in a form of their own.
            note = f"The softmax layers of this model cannot be inspected: {error}."
        with watching(model) as seen:
            model(tokens, use_cache=False)
        return seen, [note]


def load_with_tokenizer(where: str) -> tuple[Any, Any]:
    """Return a model, ready to run, and its tokenizer."""
    with quiet():
        where = place_of(where)
        _, kind = model_kind(where)
        return load(where, kind.from_pretrained).eval(), load_tokenizer(where)


@contextlib.contextmanager
def _exact_attention(model: Any) -> Iterator[None]:
    """Let the softmax layers of a model run by our function, unless they already run by ours."""
    before = getattr(model.config, "_attn_implementation", None)
    routed = type(model)._can_set_attn_implementation() and not isinstance(model, Linearized)
    if not routed or (isinstance(before, str) and before.startswith(FAMILY)):
        yield
        return
    model.set_attn_implementation(register("softmax"))
    try:
        yield
    finally:
        model.set_attn_implementation(before)
