"""Layers of transformers' models show what they compute while they run as accelerated."""

import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numpy as np  # noqa: E402
from accelerated_models import CONFIGS, KINDS, build, for_types, ready  # noqa: E402
from hf_models import tiny  # noqa: E402

import kerneltrick as kt  # noqa: E402
from kerneltrick import hf, inspection  # noqa: E402
from kerneltrick.hf._linearized import assemble, attention_blocks  # noqa: E402
from kerneltrick.hf._selective_scan import scan  # noqa: E402
from kerneltrick.hf._state_space import chunk_scan  # noqa: E402
from kerneltrick.hf._watch import watching  # noqa: E402

QUICK = ("qwen3_5_text", "mamba2", "minimax")


def tokens(n=23):
    return torch.randint(2, 50, (1, n), generator=torch.Generator().manual_seed(0))


def check(kind):
    """Watching changes nothing, and all layers have weights."""
    model, ids = ready(kind), tokens()
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
    seen, notes = hf.watch_layers(model, ids)
    with torch.no_grad():
        assert torch.equal(model(ids, use_cache=False).logits, before)
    if not seen:  # convolutions alone, beside softmax layers with a window of their own
        with pytest.raises(inspection.InspectionError, match=re.escape(notes[0])):
            inspection.inspect(model, ids)
        return []
    for each in seen:
        weights, values = each.operator.implied(np.arange(23))
        assert weights.shape[2:] == (23, 23)
        assert torch.isfinite(weights @ values).all()
    found = inspection.inspect(model, ids)
    assert found.notes == notes
    assert len(found.layers) == len(seen)
    return seen


@for_types(QUICK)
def test_layers_show_what_they_compute_and_the_model_is_left_as_it_was(kind):
    assert check(kind)


@pytest.mark.slow
@for_types([kind for kind in KINDS if kind not in QUICK])
def test_all_models_that_accelerate_knows_can_be_inspected(kind):
    check(kind)


def shown(call):
    with watching(torch.nn.Identity()) as seen:
        output = call()
    weights, values = seen[0].operator.implied(np.arange(19))
    return output, weights @ values


def draw(*shape):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64
    )


def test_the_weights_of_mamba_2_give_the_output_of_its_function():
    given = {"D": draw(4), "dt_bias": draw(4), "dt_softplus": True}
    output, made = shown(
        lambda: chunk_scan(
            draw(2, 19, 4, 6), draw(2, 19, 4), -draw(4).exp(), draw(2, 19, 2, 5),
            draw(2, 19, 2, 5) + 1, 8, **given,
        )
    )  # fmt: skip
    torch.testing.assert_close(made.transpose(1, 2), output, atol=1e-10, rtol=1e-10)


def test_the_weights_of_mamba_give_the_output_of_its_function():
    output, made = shown(
        lambda: scan(
            draw(2, 6, 19), draw(2, 6, 19) - 1, -draw(6, 5).exp(), draw(2, 5, 19),
            draw(2, 5, 19) + 1, draw(6), delta_bias=draw(6), delta_softplus=True,
        )
    )  # fmt: skip
    torch.testing.assert_close(made[..., 0], output, atol=1e-10, rtol=1e-10)


def test_a_softmax_model_has_the_weights_that_eager_attention_returns():
    model = tiny("Llama", "AutoModelForCausalLM")
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(tokens(), output_attentions=True).attentions
        model.set_attn_implementation("sdpa")
    found = inspection.inspect(model, tokens())
    for layer, exact in zip(found.layers, expected, strict=True):
        np.testing.assert_allclose(layer.weights, exact[0].numpy(), atol=2e-6)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("kind", "own"),
    [("Bert", "elu"), ("Llama", "elu@window=5,sinks=1"), ("Llama", "elu@window=5,whole=1")],
)
def test_a_linearised_model_has_the_weights_of_its_own_attention(kind, own):
    """The weights times the values are what the layers hand on, however their heads attend."""
    auto = "AutoModelForCausalLM" if kind == "Llama" else "AutoModel"
    dials = {0: kt.Dial.get(own)}
    model = assemble(tiny(kind, auto), dials, causal=kind == "Llama").eval()
    made = []
    for layer in attention_blocks(model):
        last = getattr(layer, "o_proj", None) or layer.output.dense
        last.register_forward_pre_hook(lambda _, given: made.append(given[0]))
    seen, notes = hf.watch_layers(model, tokens())
    assert (len(seen), notes) == (2, [])
    for each, expected in zip(seen, made, strict=True):
        weights, values = each.operator.implied(np.arange(23))
        torch.testing.assert_close((weights @ values).transpose(1, 2).flatten(2), expected)
    found = inspection.inspect(model, tokens())
    assert [len(layer.heads) for layer in found.layers] == [4, 4]


def test_a_model_without_such_layers_is_refused():
    config = CONFIGS["lfm2"]
    model = build("lfm2", layer_types=["conv"] * config["num_hidden_layers"]).eval()
    with pytest.raises(inspection.InspectionError, match="no layer that can be inspected"):
        inspection.inspect(model, tokens())


def test_a_model_that_cannot_read_the_text_is_refused_with_the_reason():
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=50, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(
        ValueError, match=r"has 23 tokens, but GPT2LMHeadModel has positions for 16"
    ):
        inspection.inspect(model, tokens())
    with pytest.raises(ValueError, match=r"from 0 to 49, the vocabulary"):
        inspection.inspect(model, tokens(9) + 40)
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "embedding_size": 8}
    pictures = transformers.ResNetModel(transformers.ResNetConfig(**sizes)).eval()
    with pytest.raises(ValueError, match=r"ResNetModel cannot read this text: .* token numbers"):
        inspection.inspect(pictures, tokens())
