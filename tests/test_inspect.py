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

from kerneltrick import inspection, report  # noqa: E402
from kerneltrick.cli import main  # noqa: E402
from kerneltrick.inspection import _inspect  # noqa: E402
from kerneltrick.torch import LanguageModel, TrainingSettings, mixers, train  # noqa: E402

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


@pytest.mark.parametrize("name", [*mixers.MIXERS, "elu@window=4", "softmax"])
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
    """RetNet's decay, DeltaNet's β, and one state and correction by hand."""
    retention = inspection.inspect(model("retention"), text()).layers[0]
    expected = [math.log(2) / -math.log1p(-(2.0 ** (-5 - h))) for h in range(2)]
    np.testing.assert_allclose([head.half_life for head in retention.heads], expected, rtol=1e-6)
    made = model("deltanet")
    with torch.no_grad():
        made.blocks[0].mixer.beta_proj.weight.zero_()
    delta = inspection.inspect(made, text()).layers[0]
    assert [head.beta for head in delta.heads] == [0.5, 0.5]
    assert all(head.half_life == math.inf for head in delta.heads)
    replaced, rank = by_hand(made.blocks[0].mixer.operator(inputs(made)))
    np.testing.assert_allclose([head.replaced for head in delta.heads], replaced, rtol=1e-5)
    np.testing.assert_allclose([head.rank for head in delta.heads], rank, atol=1e-3)


def inputs(made):
    x = made.embedding(text()[None])
    return made.blocks[0].mixer_norm(x).detach()


def by_hand(operator):
    """The share that corrections take out, and the rank, token by token in NumPy."""
    k, v = (x[0].detach().double().numpy() for x in (operator.k, operator.v))
    k = k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    shares, ranks = [], []
    for head in range(len(k)):
        S, taken, seen = np.zeros((k.shape[-1], v.shape[-1])), [], []
        for t in range(k.shape[1]):
            gone = 0.5 * np.outer(k[head, t], k[head, t] @ S)
            if t:
                taken.append(np.linalg.norm(gone) / np.linalg.norm(S))
            S = S - gone + 0.5 * np.outer(k[head, t], v[head, t])
            if (t + 1) % 5 == 0:
                p = np.linalg.svd(S, compute_uv=False)
                p = p / p.sum()
                seen.append(np.exp(-(p * np.log(p)).sum()))
        shares.append(np.mean(taken))
        ranks.append(np.mean(seen))
    return shares, ranks


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
    made = model("elu")
    with pytest.raises(ValueError, match=r"one text at a time.*once for each text"):
        inspection.inspect(made, text(20).reshape(2, 10))
    with pytest.raises(ValueError, match="at least 2 tokens"):
        inspection.inspect(made, text(1))
    with pytest.raises(TypeError, match="needs a model"):
        inspection.inspect("model", text())
    with pytest.raises(ValueError, match=r'model.to\("cpu"\)'):
        inspection.inspect(model("elu").to("meta"), text())
    with pytest.raises(ValueError, match="LanguageModel or a model of transformers"):
        inspection.inspect(torch.nn.Linear(2, 2), text())
    own = LanguageModel(30, mixer=lambda layer: Plain(), **SIZES)
    with pytest.raises(ValueError, match="Plain does not say what it computes"):
        inspection.inspect(own, text())


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
    found = json.loads(paths["--json"].read_text("utf-8"))
    assert found["tokens"] == list("the sea")
    assert [layer["operator"] for layer in found["layers"]] == ["delta rule with decay", "softmax"]
    assert [each["name"] for each in found["measures"]] == list(inspection.MEASURES)
    assert "pictures" not in found
    assert "https://" not in paths["--html"].read_text("utf-8")
    with pytest.raises(ValueError, match="has no 'pictures'"):
        report.render_inspection(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("nowhere",), "nowhere"),
        (("--text", "missing.txt"), "cannot read missing.txt"),
        (("--text", "bytes.bin"), "is not UTF-8"),
        (("--text", "empty.txt"), "at least 2 tokens"),
    ],
)
def test_commands_that_cannot_be_say_what_is_wrong(given, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bytes.bin").write_bytes(b"\xff\xfe\x00")
    Path("empty.txt").write_text("")
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
