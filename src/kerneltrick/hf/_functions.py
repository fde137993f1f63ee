"""The functions of transformers that `accelerate` knows, and what takes their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kerneltrick.hf._convolution import convolution, convolution_update, dynamic_convolution
from kerneltrick.hf._delta import chunk_delta_rule, recurrent_delta_rule
from kerneltrick.hf._lightning import lightning_attention
from kerneltrick.hf._packed import remember_texts
from kerneltrick.hf._selective_scan import scan
from kerneltrick.hf._state_space import chunk_scan, combined_scan, state_update

OLDEST, NEWEST = (5, 16), (5, 23)  # the versions whose signatures were compared


class Function(NamedTuple):
    """A function of a model's file, and its replacement."""

    name: str  # as the file calls it; a method as Class.method
    parameters: str  # ** stands for any others, and ANY for whatever there is
    ours: Callable[..., Any]
    operator: str  # what does the work: one of our public operators, if any
    wraps: bool = False  # whether ours gets the function that was there as its first argument


CHUNK = "chunk_size initial_state output_final_state use_qk_l2norm_in_kernel **"
RECURRENT = CHUNK.removeprefix("chunk_size ")
ANY = "..."  # ours hands all arguments on
# Models of transformers that are told where packed texts end and do not tell all of their layers.
FORGETFUL = (
    "MambaForCausalLM",
    "FalconMambaForCausalLM",
    "Mamba2ForCausalLM",
    "MambaModel",
    "FalconMambaModel",
    "JambaModel",
    "ZambaModel",
    "InklingTextModel",
    "Inkling2TextModel",
)
STEP = "state hidden_states dt A B C D dt_bias dt_softplus z **"

FUNCTIONS = (
    Function(
        "causal_conv1d_fn",
        "hidden_states weight bias activation **",
        convolution,
        "short_convolution",
    ),
    Function(
        "causal_conv1d_update",
        "hidden_states conv_state weight bias activation",
        convolution_update,
        "short_convolution",
    ),
    Function(
        "Inkling2DynamicShortConvolution.forward",
        "self hidden_states dynamic_input past_key_values conv_mask **",
        dynamic_convolution,
        "the same, tap by tap",
    ),
    *(
        Function(name, f"query key value g beta {more}", ours, "delta_rule")
        for name, more, ours in (
            ("torch_chunk_gated_delta_rule", CHUNK, chunk_delta_rule),
            ("torch_recurrent_gated_delta_rule", RECURRENT, recurrent_delta_rule),
            ("chunk_kimi_delta_attention", CHUNK, chunk_delta_rule),
            ("recurrent_kimi_delta_attention", RECURRENT, recurrent_delta_rule),
        )
    ),
    Function(
        "mamba2_chunk_scan",  # mamba_ssm calls it mamba_chunk_scan_combined
        "hidden_states dt A B C chunk_size D dt_bias initial_states dt_softplus dt_limit "
        "return_final_states **",
        chunk_scan,
        "linear_attention",
    ),
    Function("mamba2_selective_state_update", STEP, state_update, "one step, in place"),
    Function(
        "mamba2_split_conv1d_scan_combined",
        "zxbcdt conv1d_weight conv1d_bias dt_bias A D chunk_size initial_states dt_limit "
        "return_final_states activation rmsnorm_weight rmsnorm_eps outproj_weight outproj_bias "
        "headdim ngroups norm_before_gate **",
        combined_scan,
        "the layer's own steps",
    ),
    Function(
        "mamba_selective_scan",
        "hidden_states dt A B C D z delta_bias delta_softplus return_last_state use_mambapy "
        "use_associative_scan **",
        scan,
        "selective_scan",
    ),
    *(
        Function(f"{name}.forward", ANY, remember_texts, "the same, with packed texts", wraps=True)
        for name in FORGETFUL
    ),
    Function("mamba_selective_state_update", STEP, state_update, "one step, in place"),
    Function(
        "mamba_inner_fn",
        "xz conv1d_weight conv1d_bias x_proj_weight delta_proj_weight out_proj_weight "
        "out_proj_bias A B C D delta_bias delta_softplus b_rms_weight c_rms_weight dt_rms_weight "
        "b_c_dt_rms_eps **",
        combined_scan,
        "the layer's own steps",
    ),
    Function(
        "MiniMaxLightningAttention.forward",
        "self hidden_states position_embeddings attention_mask past_key_values **",
        lightning_attention,
        "linear_attention",
    ),
)
