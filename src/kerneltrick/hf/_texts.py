"""Models with their heads, and texts cut into windows of tokens for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kerneltrick.hf._capture import check_length, load, load_tokenizer, place_of, quiet
from kerneltrick.hf._recorder import CaptureError

LETTERS = 16  # of a token, more than texts have: so much of a text is read for so many tokens


def model_kind(where: str) -> tuple[Any, Any]:
    """The configuration of a model, and the class that loads it with the head that it has."""
    config = load(where, transformers.AutoConfig.from_pretrained)
    if getattr(config, "is_encoder_decoder", False):
        raise CaptureError(f"{where} is an encoder–decoder model, which is not linearised")
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    language = getattr(config, "language", name in (config.architectures or ()))
    kind = transformers.AutoModelForCausalLM if language else transformers.AutoModel
    return config, kind


def windows(
    model: str | os.PathLike[str], text: str, *, tokens: int, length: int, least: int
) -> list[list[int]]:
    """The token numbers of a text in windows of `length`, with the marks that the model expects.

    ValueError if there are fewer than `least`; what is left at the end is not used.
    """
    where = place_of(model)
    with quiet():
        config, _ = model_kind(where)
        check_length(where, config, length, "give a shorter length (--length)")
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
            f"the text makes {len(whole)} windows of {length} tokens, but {least} are needed; give "
            "a longer text, more tokens or a shorter length"
        )
    return whole


def decode(model: str | os.PathLike[str], ids: Sequence[int]) -> str:
    """The text of token numbers."""
    with quiet():
        return str(load_tokenizer(place_of(model)).decode(list(ids), skip_special_tokens=True))
