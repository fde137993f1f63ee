"""A linearised model loads as it was saved, and never as the softmax model."""

from __future__ import annotations

import copy
import functools
import json
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import safetensors.torch  # noqa: E402
from hf_models import MODELS, tiny  # noqa: E402

import kerneltrick as kt  # noqa: E402
import kerneltrick.hf  # noqa: E402
from kerneltrick.hf._linearized import LinearizedConfig, assemble  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("hf"),  # transformers is loaded once
]
KINDS = {"Llama": "AutoModelForCausalLM", "GPT2": "AutoModelForCausalLM", "Bert": "AutoModel"}


def dial(kv_heads, **more):
    rng = np.random.default_rng(0)
    weight = np.eye(8) + 0.3 * rng.standard_normal((kv_heads, 8, 8))
    gain = kt.Far(rng.standard_normal(4).astype(np.float32), **more)
    return kt.Dial(kt.maps.Hedgehog(weight.astype(np.float32), "exp"), 4, 1, gain)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a linearised model, the model, and the weights of the original."""

    @functools.cache
    def get(kind):
        original = tiny(kind, KINDS[kind]).float()
        original.config.dtype = torch.float32  # as `linearize` loads it
        weights = {name: x.clone() for name, x in original.state_dict().items()}
        dials = {1: dial(2 if kind == "Llama" else 4, relative=True)}
        model = assemble(original, dials, causal=kind != "Bert")
        folder = tmp_path_factory.mktemp(kind)
        model.save_pretrained(folder)
        return folder, model, weights

    return get


def tokens():
    torch.manual_seed(1)
    return torch.randint(3, 50, (2, 30))


def first(model, ids):
    with torch.inference_mode():
        return model(ids)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_gives_the_model_back(saved, kind):
    folder, model, weights = saved(kind)
    again = getattr(transformers, KINDS[kind]).from_pretrained(folder)
    assert torch.equal(first(again, tokens()), first(model, tokens()))
    for name, x in weights.items():  # the original weights are intact
        assert torch.equal(again.state_dict()[f"model.{name}"], x)


def test_each_layer_attends_by_its_own_dial(saved):
    """Layer 0 keeps softmax, so layer 1 has the same inputs as in the original."""
    _, model, _ = saved("Bert")
    original = tiny("Bert").float()
    settings = model.settings
    assert str(settings[0]) == "softmax"
    assert settings[1].dial.far.relative
    with torch.inference_mode():
        ours = model(tokens(), output_hidden_states=True).hidden_states
        theirs = original(tokens(), output_hidden_states=True).hidden_states
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(ours[2], theirs[2], rtol=1e-2, atol=1e-2)
    with model.attending_by([kt.Dial.get("softmax")] * 2):
        torch.testing.assert_close(first(model, tokens()), theirs[2], rtol=1e-4, atol=1e-4)
    assert model.settings == settings


def test_it_generates_with_a_state_unless_told_otherwise(saved):
    folder, _, _ = saved("Llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    how = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found = model.generate(tokens(), return_dict_in_generate=True, **how)
    assert isinstance(found.past_key_values, kt.hf.Cache)
    assert torch.equal(found.sequences, model.generate(tokens(), use_cache=False, **how))
    assert isinstance(model(tokens()).past_key_values, kt.hf.Cache)
    assert model.train()(tokens()).past_key_values is None


def test_the_body_of_a_language_model_loads_alone(saved):
    folder, model, _ = saved("Llama")
    body = transformers.AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        logits = model.model.lm_head(first(body, tokens()))
    torch.testing.assert_close(logits, first(model, tokens()))


def test_an_encoder_has_no_head_to_predict_tokens(saved):
    with pytest.raises(ValueError, match="predicts no tokens"):
        transformers.AutoModelForCausalLM.from_pretrained(saved("Bert")[0])


def error(found, wanted):
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("kind", "dtype"), [("Llama", HALF[0]), ("GPT2", HALF[1]), ("Bert", HALF[0])]
)
def test_half_precision_loses_no_more_than_it_does_with_softmax(saved, kind, dtype):
    folder, model, _ = saved(kind)
    load = getattr(transformers, KINDS[kind]).from_pretrained
    softmax = [kt.Dial.get("softmax")] * 2
    with model.attending_by(softmax):
        exact = first(model, tokens())
    loaded, moved = load(folder, dtype=dtype), load(folder).to(dtype)
    named = load(folder, dtype=str(dtype).removeprefix("torch."))
    for each in (loaded, moved, named):
        assert {x.dtype for x in each.parameters()} == {dtype}
        found = first(each, tokens())
        assert found.dtype == dtype
        with each.attending_by(softmax):
            rounding = error(first(each, tokens()), exact)
        assert error(found, first(model, tokens())) < 2 * rounding < 0.1


def test_a_folder_in_half_precision_comes_back_in_it(saved, tmp_path):
    folder, _, _ = saved("Llama")
    load = transformers.AutoModelForCausalLM.from_pretrained
    assert load(folder, dtype="auto").dtype == torch.float32
    half = load(folder, dtype=torch.bfloat16)  # `.to` would round Llama's rotary angles too
    half.save_pretrained(tmp_path)
    again = load(tmp_path, dtype="auto")
    assert {x.dtype for x in again.parameters()} == {torch.bfloat16}
    assert torch.equal(first(again, tokens()), first(half, tokens()))
    wide = load(tmp_path, dtype=torch.float32)
    assert {x.dtype for x in wide.parameters()} == {torch.float32}
    body = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    assert {x.dtype for x in body.parameters()} == {torch.bfloat16}


@torch.no_grad()
def test_tokens_one_by_one_go_through_the_compiled_step_in_every_dtype(saved):
    for dtype in (torch.float32, *HALF):
        model = transformers.AutoModelForCausalLM.from_pretrained(saved("Llama")[0], dtype=dtype)
        ids, cache, parts = tokens(), kt.hf.Cache(), []
        whole = model(ids, use_cache=False).logits
        for at in (slice(0, 20), *(slice(i, i + 1) for i in range(20, 30))):
            parts.append(model(ids[:, at], past_key_values=cache).logits)
        assert {type(layer._memory).__name__ for layer in cache.layers} == {"Decoder"}
        assert error(torch.cat(parts, dim=1), whole) < 4 * torch.finfo(dtype).eps, dtype


def test_half_precision_generates_and_learns_as_float32_does(saved):
    (folder, _, _), dtype = saved("Llama"), torch.bfloat16
    load = transformers.AutoModelForCausalLM.from_pretrained
    half, wide = load(folder, dtype=dtype), load(folder, dtype=dtype).float()
    how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    how |= {"return_dict_in_generate": True, "output_logits": True}
    ids = tokens()
    (found, wanted) = (model.generate(ids, **how).logits[0] for model in (half, wide))
    assert error(found, wanted) < 0.05
    cached = half.generate(ids, **how)
    assert isinstance(cached.past_key_values, kt.hf.Cache)
    with torch.inference_mode():  # the cache goes on where the whole text is
        whole = half(cached.sequences[:, :-1], use_cache=False).logits[:, -6:]
    assert error(torch.stack(cached.logits, dim=1), whole) < 0.05
    for model in (half, wide):
        model(ids, use_cache=False)[0].float().square().mean().backward()
    for name in ("weight", "gain"):
        ours, theirs = (getattr(model.maps["1"], name).grad for model in (half, wide))
        assert ours.dtype == dtype
        assert error(ours, theirs) < 0.1


def test_without_this_package_the_folder_is_refused(saved, monkeypatch):
    """It does not load as the original type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    monkeypatch.delitem(CONFIG_MAPPING._extra_content, "kerneltrick")
    with pytest.raises(ValueError, match="model type `kerneltrick`"):
        transformers.AutoModel.from_pretrained(saved("Bert")[0])


def test_a_folder_without_its_maps_is_refused(saved, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(saved("Bert")[0], folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    del tensors["maps.1.gain"]
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"its weights lack maps\.1\.gain \(1 in all\)"):
        transformers.AutoModel.from_pretrained(folder)


BROKEN = {
    "format 7, from another version": {"format": 7},
    "describes 0 layers, but the model has 2": {"layers": []},
    "describes 3 layers, but the model has 2": {"layers": [{"dial": "softmax"}] * 3},
    "has a layer {}, which is not what linearize writes": {"layers": [{"dial": "softmax"}, {}]},
    r"has a layer .*hedgehog.* which is not what linearize writes": {
        "layers": [{"dial": "softmax"}, {"dial": "hedgehog", "sizes": {"heads": 4}}]
    },
    "configuration of this linearised model does not": {"text_config": {"hidden_size": 32}},
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_broken_configuration_is_refused(saved, tmp_path, said):
    folder = tmp_path / "model"
    shutil.copytree(saved("Bert")[0], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **BROKEN[said]}))
    with pytest.raises(ValueError, match=said):
        transformers.AutoModel.from_pretrained(folder)


def test_its_attention_is_not_exchanged(saved):
    with pytest.raises(kt.hf.AttentionError, match="attends with its maps"):
        saved("Bert")[1].set_attn_implementation("sdpa")


def test_a_dial_for_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="has 2 layers of attention, but no layer 2"):
        assemble(tiny("Llama"), {2: kt.Dial.get("elu")}, causal=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "padding"),
    [("Llama", "left"), ("Llama", "right"), ("GPT2", "right"), ("GPT2", "holes")],
)
def test_padded_texts_without_positions_are_the_texts_alone(kind, padding):
    """Maps that notice where a token is, read at once and with a cache."""
    learned = dial(2 if kind == "Llama" else 4)
    sizes = {**MODELS[kind], "n_layer" if kind == "GPT2" else "num_hidden_layers": 3}
    settings = ["elu@window=3,sinks=2", "cosformer:horizon=40@window=2"]
    original = tiny(kind, "AutoModelForCausalLM", sizes)
    dials = {0: learned, **{i: kt.Dial.get(x) for i, x in enumerate(settings, 1)}}
    model = assemble(original, dials, causal=True)
    ids, mask, n = torch.randint(3, 50, (3, 18)), torch.ones(3, 18, dtype=torch.long), 14
    for row, length in enumerate((14, 9, 3)):
        mask[row, : n - length] = padding != "left"
        mask[row, length:n] = padding != "right"
        mask[row, 1 : length - 1 : 3] = padding != "holes"
    whole = model(ids, attention_mask=mask, use_cache=False).logits
    cache, parts, start = None, [], 0
    for stop in range(6, 19):  # padding comes alone, too
        given = {"attention_mask": mask[:, :stop], "past_key_values": cache}
        out = model(ids[:, start:stop], use_cache=True, **given)
        cache, start = out.past_key_values, stop
        parts.append(out.logits)
    for row in range(3):
        real = mask[row].bool()
        alone = model(ids[row : row + 1, real], use_cache=False).logits[0]
        for found in (whole, torch.cat(parts, dim=1)):
            torch.testing.assert_close(found[row, real], alone, rtol=1e-9, atol=1e-9)


def learn(model, run, ids, mask):
    """The outputs of a run, and the gradients of the model's weights."""
    model.zero_grad()
    out = run(ids, use_cache=False, attention_mask=mask)[0]
    out.square().mean().backward()
    return [out.detach(), *(x.grad.clone() for x in model.parameters())]


def one_layer():
    """A linearised model that is quick to compile."""
    original = tiny("Llama", "AutoModelForCausalLM", {**MODELS["Llama"], "num_hidden_layers": 1})
    return assemble(original.float(), {0: dial(2)}, causal=True)


def test_compiled_copied_and_with_checkpoints_it_learns_the_same():
    model, ids = one_layer(), tokens()
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    other = copy.deepcopy(model).train()
    other.gradient_checkpointing_enable()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    runs = [(model, model), (other, other), (model, compiled)]
    expected, *found = (learn(*run, ids, mask) for run in runs)
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@torch.no_grad()
def test_compiled_it_goes_on_with_its_cache():
    model, ids, cache, parts = one_layer(), tokens()[:, :29], None, []
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    for at in (slice(0, 26), *(slice(i, i + 1) for i in range(26, 29))):
        run = compiled if at.start else model  # to compile the whole text takes as long again
        out = run(ids[:, at], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    assert {type(layer._memory).__name__ for layer in cache.layers} == {"Decoder"}
    whole = model(ids, use_cache=False).logits
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_the_configuration_is_that_of_the_original_and_the_dials(saved):
    config = transformers.AutoConfig.from_pretrained(saved("Llama")[0])
    assert isinstance(config, LinearizedConfig)
    assert config.get_text_config().model_type == "llama"
    assert [layer["dial"] for layer in config.layers] == [
        "softmax",
        "hedgehog:activation=exp@window=4,sinks=1,relative",
    ]
