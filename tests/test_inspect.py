"""Inspection measures what heads attend to, of our own models and of those of transformers."""

import base64
import dataclasses
import json
import math
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hf_models import for_each  # noqa: E402

from kerneltrick import inspection, report  # noqa: E402
from kerneltrick.cli import main  # noqa: E402
from kerneltrick.inspection import _inspect  # noqa: E402
from kerneltrick.torch import (  # noqa: E402
    DeltaOperator,
    LanguageModel,
    LinearOperator,
    TrainingSettings,
    mixers,
    train,
)

SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}


def model(mixer, seed=0, **sizes):
    torch.manual_seed(seed)
    made = LanguageModel(30, mixer=mixer, **SIZES | sizes)
    with torch.no_grad():  # initial weights are so small that heads hardly differ
        for p in made.parameters():
            if p.ndim > 1:
                p.mul_(8)
    return made.eval()


def text(n=40, seed=1):
    return torch.randint(30, (n,), generator=torch.Generator().manual_seed(seed))


@for_each([*mixers.MIXERS, "elu@window=4", "softmax"])
def test_every_mixer_can_be_inspected_and_its_rows_are_shares(name):
    made = model("hyena:length=40" if name == "hyena" else name)
    found = inspection.inspect(made, text())
    assert len(found.layers) == 2
    for layer in found.layers:
        heads = 1 if name in ("mamba", "hyena") else 2
        assert layer.weights.shape == (heads, 40, 40)
        # The first token of RWKV-6 finds nothing: it reads before it writes, and its bonus is 0.
        np.testing.assert_allclose(np.abs(layer.weights[:, 1:]).sum(-1), 1, atol=1e-6)
        assert not np.triu(layer.weights, 1).any()
        for head in layer.heads:
            assert 1 <= head.reach <= head.reach_most <= 40
            assert min(head.own, head.content, head.negative) >= 0
            assert max(head.own, head.content, head.negative) <= 1
            assert head.memory in ("associative", "recency", "local", "unused")
        assert layer.memory in layer.told or MEANS[layer.memory] in layer.told
    json.loads(found.to_json())


MEANS = {
    "associative": "finds tokens",
    "recency": "distance",
    "local": "last few",
    "unused": "hardly",
}


def test_the_measures_of_known_heads_are_known():
    """RetNet's decay, DeltaNet's β, and the states and corrections of both by hand."""
    made = model("retention")
    retention = inspection.inspect(made, text()).layers[0]
    expected = [math.log(2) / -math.log1p(-(2.0 ** (-5 - h))) for h in range(2)]
    np.testing.assert_allclose([head.half_life for head in retention.heads], expected, rtol=1e-6)
    _, rank = by_hand(made)
    np.testing.assert_allclose([head.rank for head in retention.heads], rank, atol=1e-3)
    made = model("deltanet")
    with torch.no_grad():
        made.blocks[0].mixer.beta_proj.weight.zero_()
    delta = inspection.inspect(made, text()).layers[0]
    assert [head.beta for head in delta.heads] == [0.5, 0.5]
    assert all(head.half_life == math.inf for head in delta.heads)
    replaced, rank = by_hand(made)
    np.testing.assert_allclose([head.replaced for head in delta.heads], replaced, rtol=1e-5)
    np.testing.assert_allclose([head.rank for head in delta.heads], rank, atol=1e-3)


def by_hand(made):
    """The share that corrections take out, and the rank, token by token in NumPy."""
    mixer = made.blocks[0].mixer
    operator = mixer.operator(made.blocks[0].mixer_norm(made.embedding(text()[None])))
    k, v = (x[0].detach().double().numpy() for x in (operator.k, operator.v))
    decay, corrects = operator.options.get("log_decay"), isinstance(operator, DeltaOperator)
    kept = [1.0] * len(k) if decay is None else np.exp(np.asarray(decay))
    if corrects:
        k = k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    shares, ranks = [], []
    for head in range(len(k)):
        S, taken, seen = np.zeros((k.shape[-1], v.shape[-1])), [], []
        for t in range(k.shape[1]):
            gone = 0.5 * np.outer(k[head, t], k[head, t] @ S) if corrects else 0 * S
            if t:
                taken.append(np.linalg.norm(gone) / np.linalg.norm(S))
            written = np.outer(k[head, t], v[head, t])
            S = kept[head] * S - gone + (0.5 * written if corrects else written)
            if (t + 1) % 5 == 0:
                p = np.linalg.svd(S, compute_uv=False)
                p = p / p.sum()
                seen.append(np.exp(-(p * np.log(p)).sum()))
        shares.append(np.mean(taken))
        ranks.append(np.mean(seen))
    return shares, ranks


N = 64  # tokens of the constructed heads


def decaying(rate):
    """Weights that depend on the distance alone: exp(−rate · distance)."""
    distance = np.arange(N)[:, None] - np.arange(N)
    return share_rows(np.where(distance >= 0, np.exp(-rate * np.maximum(distance, 0)), 0))


def share_rows(weights):
    return weights / weights.sum(-1, keepdims=True)


def last(count):
    """Equal weights on the last tokens."""
    return share_rows(np.tril(np.ones((N, N))) - np.tril(np.ones((N, N)), -count))


def with_own(share):
    """This share of the weight on the token itself, the rest spread over its past."""
    return share * np.eye(N) + (1 - share) * decaying(0)


def by_content(share):
    """This share of the weight on one token anywhere in the past, the rest by distance."""
    rng = np.random.default_rng(0)
    found = np.zeros((N, N))
    found[np.arange(N), [rng.integers(i + 1) for i in range(N)]] = 1
    return share * found + (1 - share) * decaying(0.01)


def constructed(*heads):
    """A layer whose heads have exactly these weights: linear attention with one key a token."""
    q = torch.tensor(np.stack(heads))[None]
    k = torch.eye(N, dtype=torch.float64).expand_as(q)
    options = {"causal": True, "normalize": False, "scale": 1.0}
    return LinearOperator(q, k, k, "identity", options)


def inspected(monkeypatch, operator):
    layer = _inspect.TracedLayer("made", "Made", operator)
    monkeypatch.setattr(_inspect, "trace", lambda *_: ([layer], []))
    return inspection.inspect(torch.nn.Linear(1, 1), torch.zeros(N, dtype=torch.int64)).layers[0]


def test_the_kind_of_memory_of_constructed_heads_is_known(monkeypatch):
    for name, weights, kind in (
        ("nearly all on itself", with_own(0.93), "unused"),
        ("a tenth on its past", with_own(0.87), "recency"),
        ("the last 8", last(8), "local"),
        ("the last 10", last(10), "recency"),
        ("fast decay", decaying(0.5), "local"),
        ("slow decay", decaying(0.05), "recency"),
        ("mean of the past", decaying(0), "recency"),
        ("little content", by_content(0.3), "recency"),
        ("much content", by_content(0.42), "associative"),
        ("content alone", by_content(1), "associative"),
    ):
        found = inspected(monkeypatch, constructed(weights))
        np.testing.assert_allclose(found.weights[0], weights, atol=1e-12)
        assert (found.heads[0].memory, found.memory) == (kind, kind), name
        assert MEANS[kind] in found.told


def test_a_layer_is_called_what_most_of_its_heads_are(monkeypatch):
    found = inspected(monkeypatch, constructed(last(3), last(4), decaying(0), by_content(1)))
    kinds = [head.memory for head in found.heads]
    assert kinds == ["local", "local", "recency", "associative"]
    assert found.memory == "local"
    assert "2 of 4 heads (linear attention) are local, and 1 associative, 1 recency" in found.told
    assert "half of the layer looks at the last few tokens" in found.told
    most = inspected(monkeypatch, constructed(last(3), last(4), decaying(0)))
    assert "2 of 3 heads (linear attention) are local, and 1 recency: most of the" in most.told


def test_a_state_that_looks_up_keys_is_associative_and_one_that_only_decays_is_not(monkeypatch):
    """Each of 16 keys is written and asked for at random; the delta rule finds its last value."""
    keys = torch.eye(16, dtype=torch.float64)[torch.randint(16, (N,), generator=seeded(0))]
    asked = torch.eye(16, dtype=torch.float64)[torch.randint(16, (N,), generator=seeded(1))]
    q, k = asked[None, None], keys[None, None]
    v = torch.randn(1, 1, N, 4, dtype=torch.float64, generator=seeded(2))
    assert inspected(monkeypatch, DeltaOperator(q, k, v, 1.0, {})).memory == "associative"
    same = torch.ones_like(q)
    options = {"causal": True, "normalize": False, "log_decay": -0.03}
    decays = LinearOperator(same, same, v, "identity", options)
    assert inspected(monkeypatch, decays).memory == "recency"


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_agreement_is_one_for_a_head_that_is_the_softmax_of_another_layer(monkeypatch):
    made = model("softmax")
    tokens = text()[None]
    layers, _ = _inspect.trace(made, tokens)
    first = layers[0].operator
    other = layers[0]._replace(operator=dataclasses.replace(first))  # passes for a linear layer
    monkeypatch.setattr(_inspect, "trace", lambda *_: ([layers[0], other], []))
    monkeypatch.setattr(_inspect.states, "is_softmax", lambda operator: operator is first)
    found = inspection.inspect(made, tokens)
    np.testing.assert_allclose([head.agreement for head in found.layers[1].heads], 1)


def test_long_texts_are_measured_in_rows_and_the_note_says_so():
    found = inspection.inspect(model("gla"), text(300))
    assert len(found.rows) == 64
    assert found.rows[-1] == 299
    assert found.layers[0].weights.shape == (2, 64, 300)
    assert "64 queries" in found.notes[0]
    raw = base64.b64decode(found.pictures()[0][0])
    assert len(raw) == 2 * sum(row + 1 for row in found.rows)


def test_what_cannot_be_inspected_says_why_and_what_to_do():
    made, own = model("elu"), LanguageModel(30, mixer=lambda layer: Plain(), **SIZES)
    for reads, tokens, message in (
        (made, text(20).reshape(2, 10), r"one text at a time.*once for each text"),
        (made, text(1), "at least 2 tokens"),
        (made, [3, 30], r"from 0 to 29.*not from 3 to 30: use its own tokenizer"),
        (made, [3.0, 4.0], r"whole numbers, not torch.float"),
        (made, [True, False], r"whole numbers, not torch.bool"),
        (model("elu").to("meta"), text(), r'model.to\("cpu"\)'),
        (torch.nn.Linear(2, 2), text(), "LanguageModel or a model of transformers"),
        (own, text(), "Plain does not say what it computes"),
    ):
        with pytest.raises(ValueError, match=message):
            inspection.inspect(reads, tokens)
    with pytest.raises(TypeError, match="needs a model"):
        inspection.inspect("model", text())
    with pytest.raises(ValueError, match="1 words for 20 tokens: give one for each"):
        inspection.inspect(made, text(20), words=["whale"])


class Plain(torch.nn.Module):
    def forward(self, x, state=None, **_):
        return x, None


def test_the_embedded_model_is_small_and_a_hybrid_and_reads_any_text():
    path = resources.files("kerneltrick.inspection") / "model" / "model.safetensors"
    assert len(path.read_bytes()) < 500_000
    source = inspection.load()
    tokens, words = source.read("Ahab, ß and ≥", 50)
    assert "".join(words) == "Ahab, ß and ≥"
    found = inspection.inspect(source.model, tokens, words=words)
    kinds = [layer.kind for layer in found.layers]
    assert kinds == (["GatedDeltaNet"] * 3 + ["Attention"]) * 2
    assert next(source.model.parameters()).dtype == torch.float32
    assert len(inspection.default_text()) > 300


def run(*given):
    with pytest.raises(SystemExit) as done:
        main(["inspect", *map(str, given)])
    return done.value.code


def test_the_command_inspects_a_trained_model_and_writes_both_files(tmp_path, capsys):
    settings = TrainingSettings(
        mixer="kda+softmax", hidden_size=8, num_layers=2, num_heads=2, length=20, batch=2, steps=2
    )
    words = "the whale and the sea " * 20
    train(words, tmp_path / "model", settings)
    Path(tmp_path, "t.txt").write_text("the sea", encoding="utf-8")
    paths = {"--html": tmp_path / "i.html", "--json": tmp_path / "i.json"}
    given = [x for pair in paths.items() for x in pair]
    assert run(tmp_path / "model", "--text", tmp_path / "t.txt", *given) == 0
    shown = capsys.readouterr().out
    assert "delta rule with decay: layer 0" in shown
    assert "…" not in shown
    found = json.loads(paths["--json"].read_text("utf-8"))
    assert found["tokens"] == list("the sea")
    assert [layer["operator"] for layer in found["layers"]] == ["delta rule with decay", "softmax"]
    assert [each["name"] for each in found["measures"]] == list(inspection.MEASURES)
    assert "pictures" not in found
    assert "https://" not in paths["--html"].read_text("utf-8")
    with pytest.raises(ValueError, match="has no 'pictures'"):
        report.render_inspection(found)
    for _ in range(2):  # a report in the folder of the model may be replaced
        beside = ("--json", tmp_path / "model" / "i.json", "--tokens", 4)
        assert run(tmp_path / "model", "--text", tmp_path / "t.txt", *beside) == 0


def test_commands_that_cannot_be_say_what_is_wrong(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bytes.bin").write_bytes(b"\xff\xfe\x00")
    Path("empty.txt").write_text("")
    for given, message in (
        (("nowhere",), "nowhere"),
        (("--text", "missing.txt"), "cannot read missing.txt"),
        (("--text", "bytes.bin"), "is not UTF-8"),
        (("--text", "empty.txt"), "at least 2 tokens"),
    ):
        assert run(*given) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_the_page_shows_heads_by_mouse_and_by_keyboard(browser, tmp_path):
    found = inspection.inspect(model("deltanet+softmax"), text(12))
    path = Path(tmp_path, "i.html")
    values = {**found.to_dict(), "pictures": found.pictures()}
    path.write_text(report.render_inspection(values), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    troubles = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(path.as_uri() + "#layer=0&head=0&row=5&key=2")
    assert page.locator("#mosaic .cell").count() == 4
    weight = found.layers[0].weights[0, 5, 2]
    shown = float(page.locator("#readout dd").nth(2).inner_text().replace("−", "-"))
    assert shown == pytest.approx(weight, abs=1e-3)
    page.locator(".cross").press("ArrowUp")
    assert "token 4" in page.locator("#query-title").inner_text()
    page.locator('[data-cell="0 0"]').press("ArrowDown")
    assert "layer 1, head 0: softmax" in page.locator("#weights-title").inner_text()
    best = np.abs(found.layers[1].weights[0, 4]).argmax()
    first = page.locator("#found-table tr").first.inner_text()
    assert found.tokens[best] in first
    page.locator("#reach .dot").nth(1).click()
    assert "layer 0, head 1" in page.locator("#weights-title").inner_text()
    assert page.locator("#layers li").count() == 2
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    page.close()
    assert troubles == []
