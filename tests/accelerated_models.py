"""Tiny models of every type that `kerneltrick.hf.accelerate` knows, with random weights."""

import functools
import itertools
import re
from pathlib import Path

import torch
import transformers
from hf_models import for_each

import kerneltrick.hf as hf
from kerneltrick.hf._functions import FUNCTIONS

VOCABULARY = 64
SIZE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
MLP = {**SIZE, "intermediate_size": 48, "tie_word_embeddings": False}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
ALIKE = {**HEADS, "num_key_value_heads": 4}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4,
}  # fmt: skip
KDA = {
    "linear_num_heads": 4, "linear_head_dim": 8, "linear_conv_kernel_dim": 4, "kv_lora_rank": 16,
    "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
QSA = {
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 64,
    "indexer_compress_ratio": 4, "hc_lowrank": 8,
}  # fmt: skip
MAMBA_1 = {"mamba_d_state": 4, "mamba_dt_rank": 3}
MAMBA_2 = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8,
    "mamba_expand": 2, "mamba_chunk_size": 16,
}  # fmt: skip
INKLING = {
    "layer_types": ["hybrid", "hybrid_sliding"], "n_routed_experts": 4,
    "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8,
    "sliding_window_size": 8, "d_rel": 4, "rel_extent": 64,
}  # fmt: skip
FIRST = {"layer_types": ["linear_attention", "full_attention"]}
HYBRID = {
    "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
}  # fmt: skip

CONFIGS = {
    "qwen3_next": {**MLP, **HEADS, **DELTA, **EXPERTS, **FIRST},
    "qwen3_5_text": {**MLP, **HEADS, **DELTA, **FIRST},
    "qwen3_5_moe_text": {**MLP, **HEADS, **DELTA, **EXPERTS, **FIRST},
    "qwen4_exp_text": {**MLP, **HEADS, **DELTA, **EXPERTS, **FIRST, **QSA},
    "olmo_hybrid": {**MLP, **HEADS, **DELTA, **FIRST},
    "kimi_linear": {**MLP, **ALIKE, **KDA, **EXPERTS, **FIRST},
    "glm5_next": {
        **MLP, **ALIKE, **KDA, **EXPERTS, **FIRST, "n_routed_experts": 4, "qk_rope_head_dim": 0,
    },
    "bailing_hybrid": {**MLP, **ALIKE, **KDA, **EXPERTS, **FIRST},
    "mamba2": {
        **SIZE, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 16,
    },
    "bamba": {**MLP, **HEADS, **MAMBA_2, "attn_layer_indices": [1]},
    "zamba2": {
        **MLP, **HYBRID, "num_attention_heads": 4, "n_mamba_heads": 4, "mamba_ngroups": 2,
        "mamba_d_state": 8, "chunk_size": 16, "adapter_rank": 4,
    },
    "falcon_h1": {**MLP, **HEADS, **MAMBA_2, "mamba_d_ssm": 64},
    "granitemoehybrid": {
        **MLP, **HEADS, **MAMBA_2, "layer_types": ["mamba", "attention"], "num_local_experts": 0,
        "shared_intermediate_size": 48,
    },
    "nemotron_h": {
        **MLP, **HEADS, "layers_block_type": FIRST["layer_types"], "mamba_num_heads": 4,
        "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 16,
    },
    "mamba": {**SIZE, "state_size": 4},
    "falcon_mamba": {**SIZE, "state_size": 4},
    "jamba": {
        **MLP, **HEADS, **MAMBA_1, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
    },
    "zamba": {**MLP, **MAMBA_1, **HYBRID, "num_attention_heads": 4, "num_key_value_heads": 4},
    "lfm2": {
        **MLP, **HEADS, "layer_types": ["conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": {**MLP, **HEADS, **EXPERTS, "layer_types": ["conv", "full_attention"]},
    "lfm3": {
        **MLP, **HEADS, "num_hidden_layers": 3, "sliding_window": 8,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
    },
    "inkling_text": {**MLP, **HEADS, **EXPERTS, **INKLING, "logits_mup_width_multiplier": 1.0},
    "inkling2_text": {**SIZE, **HEADS, **EXPERTS, **INKLING, "unpadded_vocab_size": VOCABULARY},
    "minimax": {**MLP, **HEADS, **EXPERTS, "block_size": 8, **FIRST},
}  # fmt: skip
KINDS = tuple(kind for kind in CONFIGS if kind in transformers.CONFIG_MAPPING)
# The smallest types that call, between them, every function that `accelerate` replaces.
ONE_OF_EACH = tuple(
    kind
    for kind in ("qwen3_next", "kimi_linear", "mamba2", "jamba", "lfm2", "inkling2_text", "minimax")
    if kind in KINDS
)
VISION = {
    "depth": 1, "hidden_size": 8, "num_heads": 1, "out_hidden_size": 32, "intermediate_size": 8,
    "projection_intermediate_size": 8,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "initializer_range": 0.15}


# Models whose softmax layers mix packed texts, unless flash attention keeps them apart.
ONLY_LINEAR = {"granitemoehybrid": "mamba", "glm5_next": "linear_attention"}


def file_of(kind):
    """The folder of transformers that holds the models of a type."""
    return transformers.CONFIG_MAPPING[kind].__module__.split(".")[2]


@functools.cache
def served():
    """The folders of transformers whose models call something that `accelerate` replaces."""
    names = "|".join({function.name.partition(".")[0] for function in FUNCTIONS})
    defined = re.compile(rf"^(?:def|class) (?:{names})\b", re.MULTILINE)
    files = Path(transformers.models.__file__).parent.glob("*/modeling_*.py")
    return {x.parent.name for x in files if defined.search(x.read_text(encoding="utf-8"))}


def build(kind, seed=0, dtype=torch.float32, **more):
    """A model of a type, in evaluation mode, with weights large enough that every layer matters."""
    torch.manual_seed(seed)
    settings = {**CONFIGS[kind], **TOKENS, **more}
    if kind == "glm5_next":
        config = transformers.AutoConfig.for_model(kind, text_config=settings, vision_config=VISION)
        model = transformers.Glm5NextForConditionalGeneration(config)
    else:
        config = transformers.AutoConfig.for_model(kind, **settings)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():  # biases and taps that begin at zero would not matter
                parameter.normal_(std=TOKENS["initializer_range"])
    model.to(dtype)
    wide = model._keep_in_fp32_modules_strict  # as `from_pretrained` reads them
    if dtype == torch.float16:
        wide = wide | model._keep_in_fp32_modules
    for name, x in itertools.chain(model.named_parameters(), model.named_buffers()):
        if any(part in name for part in wide):
            x.data = x.data.float()
    return model.eval()


@functools.cache
def ready(kind):
    """The float32 model of a type, made once, for tests that leave it as it is."""
    return build(kind)


# Let a test walk a list of types, each of which gives its functions back.
for_types = functools.partial(for_each, after=hf.restore)
