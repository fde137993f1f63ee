"""Models with the shapes of published ones and random weights: speed needs no trained weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from kerneltrick.hf._capture import load, quiet

HYBRID = ["linear_attention"] * 3 + ["full_attention"]  # Qwen3.5 and Kimi Linear repeat it

# By "type:size": the settings of the configuration, and what differs from the published model.
SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "qwen3_5:0.8b": (
        {
            "model_type": "qwen3_5_text",
            "vocab_size": 248320,
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "layer_types": HYBRID * 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "tie_word_embeddings": True,
        },
        "text only",
    ),
    "kimi_linear:48b": (
        {
            "vocab_size": 163840,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 4,
            "layer_types": HYBRID,
            "mlp_layer_types": ["dense"] * 4,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "linear_num_heads": 32,
            "linear_head_dim": 128,
        },
        "4 of 27 layers, dense MLPs instead of experts",
    ),
    "mamba2:130m": (
        {
            "vocab_size": 50288,
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "num_heads": 24,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "tie_word_embeddings": True,
        },
        "",
    ),
    "mamba2:1.3b": (
        {
            "vocab_size": 50288,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_heads": 64,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "tie_word_embeddings": True,
        },
        "",
    ),
    "mamba:130m": (
        {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16},
        "",
    ),
    "falcon_h1:0.5b": (
        {
            "vocab_size": 32784,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "mamba_d_ssm": 1536,
            "mamba_n_heads": 24,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
        },
        "",
    ),
    "granitemoehybrid:1b": (
        {
            "vocab_size": 100352,
            "hidden_size": 1536,
            "intermediate_size": 4096,
            "shared_intermediate_size": 4096,
            "num_local_experts": 0,
            "num_hidden_layers": 40,
            "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "mamba_n_heads": 48,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "tie_word_embeddings": True,
        },
        "",
    ),
}


def load_model(where: str, *, layers: int | None = None, dtype: Any = torch.float32) -> Any:
    """Return a language model, ready to run: a folder, a name on the hub, or a published shape.

    where: a folder, a name on the hub, or "type:size" for random weights in the shape of a
        published model: "qwen3_5:0.8b", "kimi_linear:48b", "mamba2:130m", "mamba2:1.3b",
        "mamba:130m", "falcon_h1:0.5b" or "granitemoehybrid:1b".
    layers: for "type:size", the number of layers; the default is all of them.
    dtype: the type of the weights.

    Raises ValueError for an unknown "type:size", and CaptureError for a model that cannot be
    loaded.

    >>> import kerneltrick.hf
    >>> model = kerneltrick.hf.load_model("mamba2:130m", layers=1)
    >>> model.config.num_hidden_layers, model.config.hidden_size
    (1, 768)
    """
    if ":" in where:
        return _random(where, layers, dtype)
    with quiet():
        return load(where, transformers.AutoModelForCausalLM.from_pretrained, dtype=dtype).eval()


def _random(name: str, layers: int | None, dtype: Any) -> Any:
    if name not in SHAPES:
        raise ValueError(f"{name!r} is not a published shape; these are: {', '.join(SHAPES)}")
    settings = dict(SHAPES[name][0])
    kind = settings.pop("model_type", name.partition(":")[0])
    if layers is not None:
        settings["num_hidden_layers"] = layers
        for key in ("layer_types", "mlp_layer_types"):
            if key in settings:
                kinds = (settings[key] * layers)[:layers]
                # The first are all linear, and transformers needs a softmax layer for its cache.
                settings[key] = [*kinds[:-1], settings[key][-1]] if layers > 1 else kinds
    config = transformers.AutoConfig.for_model(
        kind, **settings, pad_token_id=0, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
