"""Generation with the constant-size cache equals generation without it."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import tiny  # noqa: E402

import kerneltrick as kt  # noqa: E402
import kerneltrick.hf  # noqa: E402
from kerneltrick.hf._linearized import assemble  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("hf"),  # transformers is loaded once
]
DIAL = "taylor:order=2@window=6,sinks=2"
MIXED = f"{DIAL},whole=1"  # a head that sees everything beside one that does not
BOTH = pytest.mark.parametrize("dial", [DIAL, MIXED], ids=["alike", "mixed"])


@pytest.fixture(scope="module")
def models():
    made = {}

    def get(kind="Llama", dial=DIAL):
        if kind not in made:
            made[kind] = tiny(kind, "AutoModelForCausalLM")
            made[kind].generation_config.pad_token_id = 0
        made[kind].set_attn_implementation(kt.hf.register(dial))
        return made[kind]

    return get


def prompt(rows=2, length=23, padded=5):
    """Token numbers and their mask; the first row is padded on the left."""
    torch.manual_seed(2)
    ids, mask = torch.randint(3, 50, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    ids[0, :padded] = mask[0, :padded] = 0
    return {"input_ids": ids, "attention_mask": mask}


def generate(model, cache, inputs=None, **how):
    torch.manual_seed(3)
    inputs = prompt() if inputs is None else inputs
    keywords = {"past_key_values": cache} if cache is not None else {"use_cache": False}
    how = {"max_new_tokens": 15, "do_sample": False, **how}
    return model.generate(**inputs, eos_token_id=None, **keywords, **how)


@pytest.mark.parametrize(
    ("kind", "dial"),
    [
        ("Llama", "elu"),
        ("Qwen2", DIAL),
        ("GPT2", "softmax@window=5"),
        ("Llama", "softmax"),
        ("Llama", MIXED),
    ],
)
def test_greedy_with_the_cache_is_greedy_without(models, kind, dial):
    model = models(kind, dial)
    how = {"return_dict_in_generate": True, "output_logits": True}
    alone, cached = generate(model, None, **how), generate(model, kt.hf.Cache(), **how)
    assert torch.equal(cached.sequences, alone.sequences)
    close(torch.stack(cached.logits), torch.stack(alone.logits))


def test_every_way_of_generating_takes_the_cache(models):
    for how in (
        {"num_beams": 3, "num_return_sequences": 2},
        {"num_beams": 3, "dial": MIXED},
        {"do_sample": True, "top_k": 20},
        {"prefill_chunk_size": 7},
        {"prompt_lookup_num_tokens": 4},
    ):
        keywords = dict(how)
        model = models(dial=keywords.pop("dial", DIAL))
        inputs = prompt()
        if "prompt_lookup_num_tokens" in how:  # for one row only, and here it succeeds
            inputs = {key: x[1:].repeat(1, 3) for key, x in inputs.items()}
        exact = "prefill_chunk_size" in how or "prompt_lookup_num_tokens" in how
        alone = generate(model, None, inputs, **({} if exact else keywords))
        assert torch.equal(generate(model, kt.hf.Cache(), inputs, **keywords), alone), how


def test_a_cache_that_keeps_all_keys_gives_the_same(models):
    model = models()
    theirs = transformers.DynamicCache(config=model.config)
    assert torch.equal(generate(model, theirs), generate(model, None))


def logits(model, ids, cache=None, **more):
    with torch.inference_mode():
        return model(ids, past_key_values=cache, use_cache=cache is not None, **more).logits


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@BOTH
def test_chunks_are_the_whole_whatever_their_length(models, dial):
    model, inputs = models(dial=dial), prompt(length=40)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    whole = logits(model, ids, attention_mask=mask)
    cache, parts, start = kt.hf.Cache(), [], 0
    for stop in (3, 4, 17, 40):  # the first chunk of the first row is padding alone
        assert cache.get_seq_length() == start
        parts.append(logits(model, ids[:, start:stop], cache, attention_mask=mask[:, :stop]))
        start = stop
    real = mask.bool()
    close(torch.cat(parts, dim=1)[real], whole[real])


def test_threads_with_caches_of_their_own_do_not_mix(models):
    """Each thread stops between passing its keys to the cache and attending with them."""
    model, texts = models(), torch.randint(3, 50, (2, 1, 12))
    meeting = threading.Barrier(2, timeout=60)

    class Cache(kt.hf.Cache):
        def update(self, *arguments, **keywords):
            found = super().update(*arguments, **keywords)
            meeting.wait()
            return found

    def read(ids):
        cache = Cache()
        return torch.cat([logits(model, part, cache) for part in ids.split(4, dim=1)], dim=1)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(read, texts))
    for ids, out in zip(texts, found, strict=True):
        close(out, logits(model, ids))


def test_its_size_does_not_grow(models):
    model, cache, sizes = models(), kt.hf.Cache(), []
    for length in (50, 1, 1, 300):
        logits(model, torch.randint(3, 50, (1, length)), cache)
        sizes.append(cache.nbytes)
    assert len(set(sizes)) == 1
    assert cache.get_seq_length() == 352
    state = cache.layers[0].state
    assert state.near.k.shape == (1, 2, 2 + 5, 8)
    assert len(cache.layers) == 2
    assert sizes[0] == 2 * state.nbytes


@torch.no_grad()
@BOTH
def test_tokens_one_by_one_go_through_the_compiled_step(models, dial):
    model, ids = models(dial=dial), torch.randint(3, 50, (2, 40))
    whole, cache = logits(model, ids), kt.hf.Cache()
    parts, kinds = [logits(model, ids[:, :20], cache)], []
    for at in range(20, 36):
        parts.append(logits(model, ids[:, at : at + 1], cache))
        kinds.append(type(cache.layers[0]._memory).__name__)
        if at == 30:
            other, size = cache.fork(), cache.nbytes
            logits(model, torch.randint(3, 50, (2, 1)), other)
    parts.append(logits(model, ids[:, 36:], cache))  # and several at once again
    close(torch.cat(parts, dim=1), whole)
    value = "State" if dial == DIAL else "MixedState"
    assert kinds == [value] * 2 + ["Decoder"] * 9 + [value] * 2 + ["Decoder"] * 3
    assert (cache.nbytes == size) == (dial == DIAL)
    assert other.get_seq_length() == 32


def test_the_bytes_are_those_of_each_head(models):
    model, cache, sizes = models(dial=MIXED), kt.hf.Cache(), []
    for length in (50, 300):
        logits(model, torch.randint(3, 50, (1, length)), cache)
        sizes.append(cache.layers[0].state.bytes_by_head)
    limited, whole = zip(*sizes, strict=True)
    assert limited[0] == limited[1]
    assert whole == (50 * 16 * 8, 350 * 16 * 8)
    assert cache.nbytes == 2 * sum(sizes[1])


@torch.no_grad()
def test_a_step_sees_that_weights_of_a_map_have_changed():
    learned = kt.torch.LearnedMap("hedgehog@window=3", num_heads=2, head_dim=4)
    layer, tokens = kt.hf._cache.Layer(), kt.hf._mask.TokenMask(True, None, None)
    q, k, v = torch.randn(3, 1, 2, 12, 4)

    def step(at):
        part = [x[:, :, at : at + 1] for x in (q, k, v)]
        return layer.attend_cached(
            "it", kt.hf._attend.LayerSetting(learned.dial, None), *part, tokens
        )

    for at in range(6):
        step(at)
    assert type(layer._memory).__name__ == "Decoder"
    learned.weight.mul_(2)
    with pytest.raises(ValueError, match="hedgehog"):  # sums of another map
        step(6)


@torch.no_grad()
@pytest.mark.parametrize(("reach", "steps"), [(0, 0), (0, 4), (3, 4)])
def test_an_error_leaves_the_layer_as_it_was(reach, steps):
    layer, tokens = kt.hf._cache.Layer(reach), kt.hf._mask.TokenMask(True, None, None)
    setting = kt.hf._attend.LayerSetting(kt.Dial.get("relu"), None)

    def attend(*arrays):
        return layer.attend_cached("it", setting, *arrays, tokens)

    x = torch.rand(1, 2, 8, 4)
    for length in (8, *[1] * steps):
        attend(*[x[:, :, :length]] * 3)
    before = copy.deepcopy(layer).state
    late = torch.where(torch.arange(8)[:, None] < 7, x, -x)  # the last row has no weight at all
    with pytest.raises(kt.VanishingNormalizerError):
        attend(late, x, x)
    assert layer.seen == before.stop == 8 + steps
    assert torch.equal(layer.state.U, before.U)


def test_a_fork_has_a_future_of_its_own(models):
    model, ids = models(dial=MIXED), torch.randint(3, 50, (1, 30))
    cache = kt.hf.Cache()
    logits(model, ids[:, :20], cache)
    for other in (cache.fork(), copy.deepcopy(cache)):
        logits(model, torch.randint(3, 50, (1, 13)), other)
        assert (other.get_seq_length(), cache.get_seq_length()) == (33, 20)
    close(logits(model, ids[:, 20:], cache), logits(model, ids)[:, 20:])


@pytest.mark.parametrize(("removed", "dial"), [(0, DIAL), (4, DIAL), (12, DIAL), (9, MIXED)])
def test_crop_takes_tokens_back(models, removed, dial):
    model, inputs = models(dial=dial), prompt(length=40)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    ids[0, 28:32] = mask[0, 28:32] = 0  # padding among what is taken back
    cache = kt.hf.Cache()
    logits(model, ids[:, :18], cache, attention_mask=mask[:, :18])
    cache.activate_past_recording()
    for stop in (22, 30):
        logits(model, ids[:, cache.get_seq_length() : stop], cache, attention_mask=mask[:, :stop])
    other = cache.fork()
    logits(model, ids[:, 30:33], other, attention_mask=mask[:, :33])
    cache.crop(-removed)
    assert (cache.get_seq_length(), other.get_seq_length()) == (30 - removed, 33)
    rest = logits(model, ids[:, 30 - removed :], cache, attention_mask=mask)
    whole = logits(model, ids, attention_mask=mask)
    real = mask[:, 30 - removed :].bool()
    close(rest[real], whole[:, 30 - removed :][real])


def test_crop_without_a_record_is_refused(models):
    model, cache = models(), kt.hf.Cache()
    logits(model, torch.randint(3, 50, (1, 20)), cache)
    with pytest.raises(RuntimeError, match=r"the last 0 tokens .* not 3; .*reach=3.*fork\(\)"):
        cache.crop(-3)
    with pytest.raises(ValueError, match="minus the number of tokens to remove"):
        cache.crop(3)


@pytest.mark.parametrize(
    ("dial", "every"), [(DIAL, 1), (DIAL, 64), (MIXED, 3), ("softmax", 3)], ids=str
)
def test_a_cache_with_reach_goes_back_at_any_time(models, dial, every):
    """Token by token, with drafts that are taken back: the logits are those of the text alone."""
    model, ids = models(dial=dial), torch.randint(3, 50, (2, 30))
    cache = kt.hf.Cache(reach=9, every=every)
    found = [logits(model, ids[:, :12], cache)]
    for at, wrong in zip(range(12, 30), (5, 1, 0, 3, 4, 2) * 3, strict=True):
        logits(model, torch.randint(3, 50, (2, wrong)), cache) if wrong else None
        cache.crop(-wrong)
        assert cache.get_seq_length() == at
        found.append(logits(model, ids[:, at : at + 1], cache))
    close(torch.cat(found, dim=1), logits(model, ids))
    cache.crop(-2)
    cache.batch_select_indices(torch.tensor([1]))
    cache.crop(-2)  # again, without a token between them, and with one stream of the two
    close(logits(model, ids[1:, 26:], cache), logits(model, ids[1:])[:, 26:])
    held = [layer._past.held for layer in cache.layers]
    assert max(held) <= 9 + every + 5
    with pytest.raises(RuntimeError, match=r"the last \d+ tokens"):
        cache.crop(-31)


def hybrid(dial):
    """A Llama whose first layer attends by a map, and its second by softmax."""
    original = tiny("Llama", "AutoModelForCausalLM")
    made = assemble(original, {0: kt.Dial.get(dial)}, causal=True).eval()
    made.generation_config.pad_token_id = 0
    assert [layer["dial"] for layer in made.config.layers] == [dial, "softmax"]
    return made


@pytest.mark.parametrize("which", ["elu", MIXED, "a hybrid", "a linear assistant"])
def test_assisted_generation_is_greedy_decoding(models, which):
    # The assistant has the same weights, but softmax: it is often right, and often wrong.
    assistant, cache = tiny("Llama", "AutoModelForCausalLM"), kt.hf.Cache()
    assistant.generation_config.pad_token_id = 0
    if which == "a hybrid":  # it makes its own cache
        model, cache = hybrid(DIAL), None
    elif which == "a linear assistant":  # its cache is cropped too
        model, assistant = models(), hybrid("elu")
    else:
        model = models(dial=which)
    inputs = {key: x[1:] for key, x in prompt().items()}  # for one row only
    how = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    keywords = {} if cache is None else {"past_key_values": cache}
    with torch.inference_mode():
        plain = model.generate(**inputs, **how)
        drafted = model.generate(**inputs, **how, assistant_model=assistant, **keywords)
    assert torch.equal(drafted, plain)


@BOTH
def test_streams_are_chosen_repeated_and_forgotten(models, dial):
    model, ids = models(dial=dial), torch.randint(3, 50, (3, 30))
    cache = kt.hf.Cache()
    logits(model, ids[:, :20], cache)
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    rows = ids[[2, 2, 0, 0]]
    close(logits(model, rows[:, 20:], cache), logits(model, rows)[:, 20:])
    cache.reset()
    assert (cache.get_seq_length(), cache.nbytes) == (0, 0)
    close(logits(model, ids, cache), logits(model, ids))


def test_a_model_with_another_attention_is_refused(models):
    model, ids, cache = models(), torch.randint(3, 50, (1, 10)), kt.hf.Cache()
    model.set_attn_implementation("sdpa")
    logits(model, ids, cache)  # it has all keys, so nothing is wrong yet
    with pytest.raises(
        kt.hf.AttentionError, match="keys were cached, but kerneltrick's attention never ran"
    ):
        logits(model, ids, cache)


def test_a_state_of_another_map_is_refused(models):
    model, ids, cache = models(), torch.randint(3, 50, (1, 10)), kt.hf.Cache()
    logits(model, ids, cache)
    with pytest.raises(ValueError, match=r"the state is of taylor.* but this call needs elu"):
        logits(models(dial="elu"), ids, cache)


def test_a_cache_with_room_for_the_future_is_refused(models):
    model = models()
    room = transformers.StaticCache(config=model.config, max_cache_len=64)
    with pytest.raises(kt.hf.AttentionError, match=r"use kerneltrick.hf.Cache\(\)"):
        generate(model, room)


def test_full_attention_cannot_have_one():
    model = tiny("Bert", attn_implementation=kt.hf.register("elu"))
    keys = torch.randn(1, 4, 5, 8, dtype=torch.float64)
    layer = kt.hf.Cache()._layer()
    k, v = layer.update(keys, keys)
    attention = model.encoder.layer[0].attention.self
    attend = transformers.AttentionInterface()[kt.hf.register("elu")]
    with pytest.raises(kt.hf.AttentionError, match="attends to all tokens"):
        attend(attention, keys, k, v, None)
