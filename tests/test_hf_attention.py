"""Maps replace softmax in Hugging Face models: the numbers of the dense engine, all masks kept."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import GROUPED, MODELS, SIZES, reference, tiny  # noqa: E402
from native_cases import python  # noqa: E402

import kerneltrick as kt  # noqa: E402
import kerneltrick.hf  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("hf"),  # transformers is loaded once
]
DIALS = ["elu", "taylor:order=2@window=4,sinks=2", "softmax@window=5", "softmax"]
LENGTHS = (19, 7, 1)


@pytest.fixture(scope="module")
def models():
    return functools.cache(tiny)


def rows(side):
    """Token numbers of unequal length, padded on one side, their mask and positions."""
    torch.manual_seed(1)
    total = max(LENGTHS)
    ids, mask = torch.zeros(3, total, dtype=torch.long), torch.zeros(3, total, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        at = slice(total - length, None) if side == "left" else slice(None, length)
        ids[row, at] = torch.randint(3, 50, (length,))
        mask[row, at] = 1
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def hidden(model, name, *arguments, **keywords):
    model.set_attn_implementation(name)
    with torch.inference_mode():
        return model(*arguments, **keywords).last_hidden_state


@pytest.mark.parametrize(
    ("kind", "dial", "side"),  # each with each side
    [
        (kind, DIALS[(at + turn) % 4], side)
        for at, kind in enumerate(MODELS)
        for turn, side in enumerate(("left", "right"))
    ],
)
def test_a_padded_batch_is_the_dense_engine_on_each_row(models, kind, dial, side):
    model, (ids, mask, places) = models(kind), rows(side)
    name = kt.hf.register(dial)
    out = hidden(model, name, ids, attention_mask=mask, position_ids=places)
    for row in range(3):
        real = mask[row].bool()
        alone = hidden(model, reference(dial), ids[row, real][None])
        torch.testing.assert_close(out[row, real], alone[0], rtol=1e-9, atol=1e-9)


def test_padding_on_the_left_needs_positions_unless_the_map_is_a_function_of_the_scores(models):
    model, (ids, mask, places) = models("Llama"), rows("left")
    with pytest.raises(kt.hf.AttentionError, match="padding on the left, which the positions of"):
        hidden(model, kt.hf.register("elu"), ids, attention_mask=mask)
    for dial in DIALS[1:]:
        name = kt.hf.register(dial)
        out = hidden(model, name, ids, attention_mask=mask)[mask.bool()]
        expected = hidden(model, name, ids, attention_mask=mask, position_ids=places)[mask.bool()]
        # Llama's rotary angles are float32 in every model.
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_softmax_is_what_transformers_computes(models, kind):
    model, (ids, mask, places) = models(kind), rows("left")
    inputs = {"attention_mask": mask, "position_ids": places}
    ours = hidden(model, kt.hf.register("softmax"), ids, **inputs)[mask.bool()]
    exact = hidden(model, "sdpa", ids, **inputs)[mask.bool()]
    torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-9)
    # Llama's own formula goes through float32, where its mask is −inf …
    expected = hidden(model, "eager", ids, **inputs)[mask.bool()]
    usable = expected.isfinite()
    assert usable.sum() > usable.numel() / 2  # … and what depends on a row of padding NaN
    torch.testing.assert_close(ours[usable], expected[usable], rtol=1e-4, atol=1e-4)


def test_packed_sequences_do_not_see_each_other(models):
    model, name = models("Llama"), kt.hf.register(DIALS[1])
    ids = torch.randint(3, 50, (1, 20))
    places = torch.tensor([[*range(8), *range(12)]])
    out = hidden(model, name, ids, position_ids=places, use_cache=False)
    for at in (slice(0, 8), slice(8, 20)):
        alone = hidden(model, name, ids[:, at])
        torch.testing.assert_close(out[:, at], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["causal", "full", "additive", "packed"])
def test_masks_of_four_axes_are_read(models, kind):
    model, name = models("Bert" if kind == "full" else "Llama"), kt.hf.register(DIALS[1])
    ids = torch.randint(3, 50, (2, 12))  # two texts, one mask
    pattern = torch.ones(1, 1, 12, 12, dtype=torch.bool)
    pattern = pattern if kind == "full" else pattern.tril()
    pattern[..., :3] = False  # padding
    if kind == "packed":
        pattern[..., 8:, :8] = False
    if kind == "additive":
        pattern = torch.zeros(12, 12).double().masked_fill(~pattern, torch.finfo(torch.float64).min)
    out = hidden(model, name, ids, attention_mask=pattern, position_ids=torch.arange(12)[None])
    for at in [slice(3, 8), slice(8, 12)] if kind == "packed" else [slice(3, 12)]:
        places = torch.arange(at.start, at.stop)[None]
        alone = hidden(model, name, ids[:, at], position_ids=places, attention_mask=None)
        torch.testing.assert_close(out[:, at], alone, rtol=1e-9, atol=1e-9)


def test_masks_that_are_neither_and_biases_are_refused(models):
    ids, causal = torch.randint(3, 50, (1, 12)), torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    prefix, window = causal.clone(), causal.clone()
    prefix[..., :4] = True
    window[..., 6:, :2] = False
    bias = -torch.arange(12.0).double() * torch.ones(1, 1, 12, 12)
    for pattern, reason in ((prefix, "neither"), (window, "neither"), (bias, "adds a bias")):
        with pytest.raises(kt.hf.AttentionError, match=reason):
            hidden(models("Llama"), kt.hf.register("elu"), ids, attention_mask=pattern)


def test_a_mask_of_one_token_is_read_as_the_model_says_and_others_as_what_they_are():
    def read(mask, causal):
        return kt.hf._mask.read_mask("it", mask[None, None], *mask.shape, causal)

    one = torch.tensor([[True, False], [True, False]])
    for causal in (True, False):
        found = read(one, causal)
        assert (found.causal, found.keep.tolist()) == (causal, [[True, False]])
    last = torch.ones(5, 5, dtype=torch.bool).tril()[3:]  # of a text whose keys are all there
    assert read(last, False) == (True, None, None, None)


def test_a_pattern_that_hides_the_past_of_a_state_is_refused():
    from transformers import masking_utils

    def mask(hidden_token):
        def pattern(batch, head, q, k):
            return (k <= q) & (k != hidden_token)

        make = masking_utils.AttentionMaskInterface()[kt.hf.register("elu")]
        sizes = {"batch_size": 1, "q_length": 2, "q_offset": 4, "kv_length": 2, "kv_offset": 4}
        return make(mask_function=pattern, **sizes)

    assert mask(9)[0, 0].tolist() == [[True, False], [True, True]]  # it is none of the six
    with pytest.raises(
        kt.hf.AttentionError, match="masks earlier tokens, which a recurrent state cannot"
    ):
        mask(1)


REFUSED = {
    "Mistral": ({**GROUPED, "sliding_window": 8}, "mistral has a sliding window of its own"),
    "ModernBert": (SIZES, "modernbert has a sliding window"),
    "Bloom": (
        {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50},
        "BloomModel does not route its attention",
    ),
    "T5": (
        {"d_model": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4, "d_ff": 32, "vocab_size": 50},
        "adds a position bias",
    ),
    "Bart": (
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "vocab_size": 50, "encoder_ffn_dim": 32,
         "decoder_ffn_dim": 32},
        "may attend from one sequence to another",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_models_with_more_than_softmax_are_refused_by_name(kind):
    sizes, reason = REFUSED[kind]
    with pytest.raises(kt.hf.AttentionError, match=reason):
        tiny(kind, sizes=sizes, attn_implementation=kt.hf.register("elu"))(torch.ones(1, 12).long())


SMALL = {"hidden_size": 32, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
NOT_ROUTED = {  # with a table of their own, or with one formula alone
    "GPTJ": {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4, **SMALL},
    "Falcon": {"num_hidden_layers": 1, "num_attention_heads": 4, **SMALL},
    "DebertaV2": {**SIZES, "relative_attention": True, "pos_att_type": ["p2c"]},
    "XLNet": {"d_model": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50, "d_inner": 32},
}


@pytest.mark.parametrize("kind", NOT_ROUTED)
def test_models_that_never_ask_for_an_attention_function_are_refused_when_built(kind, tmp_path):
    sizes, name = NOT_ROUTED[kind], kt.hf.register("elu")
    said = rf"{kind}Model does not route its attention .* use a model that does, such as BERT"
    with pytest.raises(kt.hf.AttentionError, match=said):
        tiny(kind, sizes=sizes, attn_implementation=name)
    tiny(kind, sizes=sizes).save_pretrained(tmp_path)  # without the name nothing is refused
    with pytest.raises(kt.hf.AttentionError, match=said):
        transformers.AutoModel.from_pretrained(tmp_path, attn_implementation=name)


def test_after_one_name_others_can_be_typed():
    kt.hf.register("elu")
    typed = "kerneltrick:hedgehog@sinks=1,window=3"
    assert typed not in transformers.AttentionInterface()
    model, (ids, mask, places) = tiny("Llama", attn_implementation=typed), rows("left")
    inputs = {"attention_mask": mask, "position_ids": places}
    ours = hidden(model, typed, ids, **inputs)[mask.bool()]
    name = kt.hf.register("hedgehog@window=3,sinks=1")
    assert torch.equal(ours, hidden(model, name, ids, **inputs)[mask.bool()])
    model.set_attn_implementation("kerneltrick:relu@window=7")
    assert model.config._attn_implementation == "kerneltrick:relu@window=7"
    for wrong, reason in (("kerneltrick:hedgehg", "did you mean"), ("kerneltrick:elu@w=3", "w")):
        with pytest.raises(ValueError, match=reason):
            model.set_attn_implementation(wrong)
        with pytest.raises(ValueError, match=reason):
            tiny("Llama", attn_implementation=wrong)


def test_a_formula_that_is_not_softmax_is_refused(models, monkeypatch):
    from transformers.models.llama import modeling_llama

    own = modeling_llama.eager_attention_forward
    monkeypatch.setattr(
        modeling_llama,
        "eager_attention_forward",
        lambda *a, scaling, **k: own(*a, 2 * scaling, **k),
    )
    model = tiny("Llama", attn_implementation=kt.hf.register("elu"))
    with pytest.raises(kt.hf.AttentionError, match=r"layer 0 .* does not compute softmax"):
        model(torch.ones(1, 12).long())


def test_dropout_of_weights_is_refused_in_training():
    model = tiny("Bert", attn_implementation=kt.hf.register("elu"))
    with pytest.raises(kt.hf.AttentionError, match="applies dropout to its attention weights"):
        model.train()(torch.ones(1, 12).long())


def test_gradients_are_those_of_the_dense_engine(models):
    model, ids = models("Llama"), torch.randint(3, 50, (1, 12))
    found = []
    for name in (kt.hf.register(DIALS[1]), reference(DIALS[1])):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(ids, use_cache=False).last_hidden_state.square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Llama", "Bert"])
def test_compiled_as_one_graph_it_computes_the_same(kind):
    sizes, name = {**MODELS[kind], "num_hidden_layers": 1}, kt.hf.register(DIALS[1])
    model, ids = tiny(kind, sizes=sizes, attn_implementation=name), rows("left")[0]
    pattern = torch.ones(1, 1, 19, 19, dtype=torch.bool).tril()
    masks = [{}, {"attention_mask": pattern.clone()}] if kind == "Llama" else [{}]
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for mask in masks:
        with torch.no_grad():
            out = compiled(ids, use_cache=False, **mask).last_hidden_state
            expected = model(ids, use_cache=False, **mask).last_hidden_state
        torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    if kind == "Llama":  # the same graph refuses what it cannot compute
        pattern[..., :4] = True
        with pytest.raises(RuntimeError, match="has a mask that is neither causal nor full"):
            compiled(ids, use_cache=False, attention_mask=pattern)


def test_names_say_the_dial_are_given_once_and_never_to_functions():
    name = kt.hf.register("taylor:order=2@window=64,sinks=4")
    assert name == "kerneltrick:taylor:order=2@window=64,sinks=4"
    assert kt.hf.register(kt.Dial.get("taylor@sinks=4,window=64")) == name
    with pytest.raises(TypeError, match="a map that its text describes"):
        kt.hf.register(lambda x: x)


@pytest.mark.slow  # it looks at all of transformers
def test_the_import_replaces_nothing_of_transformers_and_the_rest_can_be_undone():
    code = """
        import sys, types
        import transformers
        from transformers.masking_utils import AttentionMaskInterface as masks

        def parts():  # every function, class, method and attribute that is there
            for name, module in list(sys.modules.items()):
                if name.partition(".")[0] == "transformers":
                    for key, value in list(vars(module).items()):
                        yield (name, key), value
                        if isinstance(value, type):
                            yield from (((name, key, x), y) for x, y in vars(value).items())

        assert transformers.LlamaForCausalLM and transformers.Mamba2ForCausalLM
        before = dict(parts())
        tables = [table._global_mapping for table in (transformers.AttentionInterface, masks)]
        names = [dict(table) for table in tables]

        def changed():
            own = [dict(table) for table in tables] != names
            now = dict(parts())
            return own, [at for at, x in before.items() if now.get(at, None) is not x]

        import kerneltrick.hf
        print(changed())
        kerneltrick.hf.register("elu")
        print(changed()[0], len(changed()[1]) > 0)
        kerneltrick.hf.unregister()
        kerneltrick.hf.unregister()
        print(changed())
    """
    assert python(code).splitlines() == ["(False, [])", "True True", "(False, [])"]
