"""Texts cut into windows of tokens, and the class that loads a model with its head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kerneltrick.hf._capture import check_length, load, load_tokenizer, place_of, quiet
from kerneltrick.hf._recorder import CaptureError

LETTERS = 16  # letters to read per token, more than any text needs


def model_kind(where: str) -> tuple[Any, Any]:
    """Return the configuration of a model, and the class that loads it with its head."""
    config = load(where, transformers.AutoConfig.from_pretrained)
    if getattr(config, "is_encoder_decoder", False):
        raise CaptureError(f"{where} is an encoder–decoder model, which cannot be linearised")
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    language = getattr(config, "language", name in (config.architectures or ()))
    kind = transformers.AutoModelForCausalLM if language else transformers.AutoModel
    return config, kind


def windows(
    model: str | os.PathLike[str], text: str, *, tokens: int, length: int, least: int
) -> list[list[int]]:
    """Return the token numbers of a text in windows of one length.

    Each window has the special tokens that the model expects. The rest at the end is not used.

    model: the folder of the model, or its name on the hub.
    text: the text to cut.
    tokens: the number of tokens to read.
    length: the number of tokens per window.
    least: raise ValueError if there are fewer windows than this.
    """
    where = place_of(model)
    with quiet():
        config, _ = model_kind(where)
        check_length(where, config, length, "use a shorter length (--length)")
        tokenizer = load_tokenizer(where)
        found = tokenizer(
            text[: tokens * LETTERS],
            truncation=True,
            max_length=length,
            return_overflowing_tokens=True,
        )["input_ids"]
    whole = [list(ids) for ids in found if len(ids) == length][: max(tokens // length, 1)]
    if len(whole) < least:
        raise ValueError(
            f"the text makes {len(whole)} windows of {length} tokens, but at least {least} are "
            "needed; use a longer text, more tokens (--tokens) or a shorter length (--length)"
        )
    return whole


def decode(model: str | os.PathLike[str], ids: Sequence[int]) -> str:
    """Return the text of token numbers, without special tokens."""
    with quiet():
        return str(load_tokenizer(place_of(model)).decode(list(ids), skip_special_tokens=True))
