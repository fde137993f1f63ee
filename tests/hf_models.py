"""Small random Hugging Face models, and the attention that tests compare with."""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 400, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, dict[str, Any]] = {
    "Bert": SIZES,
    "Llama": GROUPED,
    "Qwen2": GROUPED,
    "GPT2": {
        "vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 400,
        "scale_attn_by_inverse_layer_idx": True, "bos_token_id": 1, "eos_token_id": 2,
    },
}  # fmt: skip


def tiny(
    kind: str, auto: str = "AutoModel", sizes: dict[str, Any] | None = None, **more: Any
) -> Any:
    """A model in float64 and evaluation mode whose attention is far from uniform."""
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(**(sizes or MODELS[kind]))
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(config, **more).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def save_tiny(folder: Any, kind: str, auto: str) -> Any:
    """Write a small model into a folder, with a tokenizer of the words w1, w2, …"""
    import tokenizers
    import transformers

    tiny(kind, auto).float().save_pretrained(folder)
    words = {"[PAD]": 0, **{f"w{number}": number for number in range(1, 50)}}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[PAD]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]")
    fast.save_pretrained(folder)
    return folder


def for_each(cases: Iterable[Any], after: Callable[[], Any] | None = None) -> Callable[..., Any]:
    """Let a test walk a list of cases; its failure names all those that break the promise."""

    def decorate(test: Callable[[Any], Any]) -> Callable[[], None]:
        def walked() -> None:
            broken = []
            for case in cases:
                try:
                    test(case)
                except Exception:
                    broken.append(f"{case}:\n{traceback.format_exc(limit=-2)}")
                finally:
                    if after is not None:
                        after()
            if broken:
                pytest.fail("\n".join(broken), pytrace=False)

        walked.__name__ = test.__name__
        return walked

    return decorate


@functools.cache
def reference(setting: str) -> str:
    """Register an attention function that uses only the dense engine, for rows without padding."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    import kerneltrick as kt

    def attend(module, query, key, value, attention_mask, scaling, **_):
        n = query.shape[2]
        assert key.shape[2] == n
        scale = None if math.isclose(scaling, query.shape[3] ** -0.5) else scaling
        how = {"causal": module.is_causal, "scale": scale, "engine": "dense"}
        out = kt.linear_attention(query, key, value, setting, **how)
        return out.transpose(1, 2), None

    name = f"reference:{setting}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, lambda *_, **__: None)
    return name
