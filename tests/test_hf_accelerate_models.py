"""Models with linear attention compute the same on the compiled core as on transformers' code.

Each promise walks the list of types once.
"""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from accelerated_models import (  # noqa: E402
    KINDS,
    ONE_OF_EACH,
    ONLY_LINEAR,
    VOCABULARY,
    build,
    file_of,
    for_types,
    ready,
    served,
)

import kerneltrick.hf as hf  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("accelerated"),
]


def tokens(batch=2, n=37, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, n), generator=drawn)


def error(found, expected):
    """The largest difference, as a share of the largest value."""
    return float((found - expected).abs().max() / expected.abs().max())


def cache_of(made):
    """What the next call needs to go on where one ended."""
    name = "cache_params" if "cache_params" in made else "past_key_values"
    return {name: made[name]}


def test_every_type_that_accelerate_serves_is_tried_and_listed():
    assert {file_of(kind) for kind in KINDS} == served()
    page = Path(__file__).parents[1] / "docs" / "howto" / "run_on_a_cpu.md"
    table = page.read_text(encoding="utf-8").partition("| models |")[2].partition("\n\n")[0]
    listed = re.findall(r"\w+", " ".join(re.findall(r"([^|]*)\|$", table, re.MULTILINE)))
    assert served() == {name for name in listed if hasattr(transformers.models, name)}


@for_types(KINDS)
def test_logits_are_those_of_the_reference_at_once_and_in_parts(kind):
    model, x = ready(kind), tokens()

    def in_parts():
        made, logits = {}, []
        for part in (x[:, :20], x[:, 20:30], x[:, 30:31]):
            found = model(part, use_cache=True, **made)
            made = cache_of(found)
            logits.append(found.logits)
        return torch.cat(logits, dim=1)

    with torch.no_grad():
        expected, parts = model(x).logits, in_parts()
        with hf.accelerate(model):
            assert error(model(x).logits, expected) < 1e-4
            assert error(in_parts(), parts) < 1e-4
        assert torch.equal(model(x).logits, expected)


@for_types(KINDS)
def test_padded_texts_are_read_and_continued_as_by_the_reference(kind):
    model, x, padded = ready(kind), tokens(n=21), 9
    mask = torch.ones_like(x)
    mask[0, :padded] = 0  # on the left
    how = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        expected, said = model(x, attention_mask=mask).logits, model.generate(x, **how)
        with hf.accelerate(model):
            found = model(x, attention_mask=mask).logits
            assert torch.equal(model.generate(x, **how), said)
    assert error(found[0, padded:], expected[0, padded:]) < 1e-4
    assert error(found[1], expected[1]) < 1e-4


@pytest.mark.slow
@for_types(KINDS)
def test_gradients_are_those_of_the_reference(kind):
    model, x, found = build(kind).train(), tokens(), []
    for replaced in (False, True):
        if replaced:
            hf.accelerate(model)
        model.zero_grad()
        model(x, labels=x).loss.backward()
        found.append({k: v.grad for k, v in model.named_parameters() if v.grad is not None})
    expected, ours = found
    assert ours.keys() == expected.keys()
    largest = max(float(x.abs().max()) for x in expected.values())
    wrong = []
    for name, gradient in expected.items():
        scale = max(float(gradient.abs().max()), 1e-3 * largest)
        if not float((ours[name] - gradient).abs().max()) < 1e-3 * scale:
            wrong.append(name)
    assert wrong == []


LENGTHS = (13, 5, 21)


def packed():
    """Three texts in one row, as `DataCollatorWithFlattening` describes them."""
    x = tokens(1, sum(LENGTHS))
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    numbers = torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)]).int()[None]
    return x, {
        "position_ids": positions,
        "seq_idx": numbers,
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(LENGTHS),
        "max_length_k": max(LENGTHS),
        "use_cache": False,
    }


def each_alone(model, x):
    """The logits of the packed texts, read one by one."""
    parts = x.split(LENGTHS, dim=1)
    return torch.cat([model(part, use_cache=False).logits for part in parts], dim=1)


@for_types(KINDS)
def test_packed_texts_give_what_each_gives_alone_with_gradient_checkpointing_too(kind):
    layer, (x, how), found, runs = ONLY_LINEAR.get(kind), packed(), [], []
    model = build(kind, **({"layer_types": [layer] * 2} if layer else {}))
    with torch.no_grad():
        alone = each_alone(model, x)
        hf.accelerate(model)
        assert error(model(x, **how).logits, alone) < 1e-4
    model.train()
    for layer in model.modules():
        layer.register_forward_pre_hook(lambda *_: runs.append(enabled))
    for enabled in (False, True):
        model.zero_grad()
        if enabled:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(x, labels=x, **how).loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat(gradients))
    assert runs.count(True) > 1.5 * runs.count(False)  # layers ran again
    assert error(found[1], found[0]) < 1e-5


def test_linear_layers_keep_packed_texts_apart_beside_a_cache():
    model, (x, how) = ready("mamba2"), packed()
    with torch.no_grad():
        alone = each_alone(model, x)
        with hf.accelerate(model):
            assert error(model(x, **{**how, "use_cache": True}).logits, alone) < 1e-4


@for_types(ONE_OF_EACH)
def test_a_row_with_nan_leaves_the_others_as_they_are(kind):
    model, x, found = build(kind), tokens(n=13), []
    given = model.get_input_embeddings()(x).detach()
    spoiled = given.clone()
    spoiled[0, 5] = torch.nan
    for inputs in (given, spoiled):
        inputs.requires_grad_()
        logits = model(inputs_embeds=inputs, use_cache=False).logits
        logits.square().sum((1, 2)).sum().backward()
        with torch.no_grad():
            made = model(inputs_embeds=inputs[:, :5], use_cache=True)
            for i in (5, 6):
                made = model(inputs_embeds=inputs[:, [i]], use_cache=True, **cache_of(made))
        found.append((logits.detach(), made.logits, inputs.grad))
        hf.accelerate(model)
    for expected, ours in zip(*found, strict=True):
        assert error(ours[1], expected[1]) < 1e-4
        assert ours[0, -1].isnan().all()


@pytest.mark.slow
@for_types(ONE_OF_EACH)
def test_bfloat16_is_no_further_from_float32_than_the_reference(kind):
    squares = torch.zeros(2)
    for seed in range(4):
        x = tokens(n=64, seed=seed)
        with torch.no_grad():
            truth = build(kind, seed)(x).logits
            model = build(kind, seed, torch.bfloat16)
            reference = model(x).logits.float()
            with hf.accelerate(model):
                found = model(x).logits.float()
        # The median, because rounding sends a few tokens to another expert.
        wrong = ((y - truth).square().mean(-1).median() for y in (found, reference))
        squares += torch.stack(list(wrong))
    assert squares[0] < 1.1 * squares[1]


@pytest.mark.slow
@for_types(KINDS)
def test_float16_runs(kind):
    model = build(kind, dtype=torch.float16)
    with torch.no_grad(), hf.accelerate(model):
        assert model(tokens()).logits.isfinite().all()
