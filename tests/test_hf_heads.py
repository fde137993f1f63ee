"""Ranking heads by how much they need the whole text, on models whose heads are known."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import save_tiny, tiny  # noqa: E402

import kerneltrick as kt  # noqa: E402
import kerneltrick.hf  # noqa: E402
from kerneltrick.analysis import Store  # noqa: E402
from kerneltrick.hf._probe import Probe  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("hf"),  # transformers is loaded once
]
KINDS = {"Llama": "AutoModelForCausalLM", "Bert": "AutoModel"}
SOFTMAX = "softmax@window=4,sinks=1"
LAYER, HEAD, KEYS = 1, 2, 6  # which head recalls, and how many facts there are
QUESTION, FIRST_FACT, FIRST_ANSWER, FIRST_FILLER = 1, 2, 8, 14


def recalling_model():
    """A Llama of three layers whose head 2 of layer 1 looks for the fact when it is asked.

    Facts and answers are single tokens. The head finds facts by a rotary dimension that hardly
    turns; all other heads see noise. Feed-forward layers give nothing.
    """
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=8, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, head_dim=8, rope_theta=1e8,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    asked, is_fact, first = 0, 1, 2  # features: the question, a fact, and which fact
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.5)
        embed = model.get_input_embeddings().weight
        embed.zero_()
        embed[:, 12:] = 0.3 * torch.randn(50, 20)
        embed[QUESTION, asked] = 3.0
        head = model.get_output_embeddings().weight
        for key in range(KEYS):
            embed[FIRST_FACT + key, is_fact] = embed[FIRST_FACT + key, first + key] = 2.0
            head[FIRST_ANSWER + key].zero_()
            head[FIRST_ANSWER + key, first + key] = 3.0
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.zero_()
        attention, at = model.model.layers[LAYER].self_attn, 8 * HEAD
        for weight in (attention.q_proj, attention.k_proj, attention.v_proj):
            weight.weight[at : at + 8] = 0
        attention.o_proj.weight[:, at : at + 8] = 0
        attention.q_proj.weight[at + 3, asked] = 10.0
        attention.k_proj.weight[at + 3, is_fact] = 10.0
        for key in range(KEYS):
            attention.v_proj.weight[at + key, first + key] = 2.0
            attention.o_proj.weight[first + key, at + key] = 2.0
    return model


def filler(count, seed=0):
    return np.random.default_rng(seed).integers(FIRST_FILLER, 50, count).tolist()


def facts(length=61):
    found = []
    for key in range(KEYS):
        ids = filler(length, seed=key)
        depth = (0.1, 0.5, 0.7)[key % 3]
        ids[round(depth * length)] = FIRST_FACT + key
        ids[-2:] = [QUESTION, FIRST_ANSWER + key]
        found.append(kt.hf.Passkey(depth, ids, 1, 1))
    return found


@pytest.fixture(scope="module")
def model():
    return recalling_model()


def windows(length=61):
    return [filler(length, seed=100 + number) for number in range(2)]


@pytest.mark.parametrize("fast", [False, True], ids=["one by one", "gates"])
def test_the_ranking_finds_the_head_that_recalls(model, fast):
    found = kt.hf.rank_heads(model, windows(), window=8, sinks=1, planted=facts(), fast=fast)
    names = ["gate", "gate among half"] if fast else ["freed", "limited"]
    assert sorted(found.scores) == [*names, *(f"planted {name}" for name in names)]
    for name in names:
        scores = found.scores[f"planted {name}"]
        assert np.unravel_index(scores.argmax(), scores.shape) == (LAYER, HEAD)
        assert scores[LAYER, HEAD] > 5 * np.partition(scores.ravel(), -2)[-2]
    assert (LAYER, HEAD) in found.order[:2]
    assert sorted(found.order) == [(layer, head) for layer in range(3) for head in range(4)]
    assert sum(map(len, found.whole(5).values())) == 5


@pytest.mark.slow  # 60 steps of training
def test_gates_that_are_trained_find_the_head_that_recalls(model, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "tools")
    from duo_attention import duo_ranking

    before = [x.requires_grad for x in model.parameters()]
    found = duo_ranking(model, facts(), 8, 1, steps=60)
    assert found.order[0] == (LAYER, HEAD)
    gates = found.scores["planted gate"]
    assert gates[LAYER, HEAD] > 0.8
    assert np.sort(gates.ravel())[-2] < 0.5
    assert [x.requires_grad for x in model.parameters()] == before


def test_the_tail_is_read_again_with_the_keys_of_the_last_run(model):
    ids = filler(50)
    with torch.inference_mode(), Probe(model, 8, 1) as probe:
        whole = probe.run(ids, probe.gates(1))
        again = probe.run(ids, probe.gates(1), tail=7)
        assert torch.allclose(whole[:, -7:], again, atol=1e-5)
        gates = probe.gates(1)[None].repeat(3, 1, 1)
        gates[1, 2, 0] = gates[2, 0, 1] = 0
        varied = probe.vary(gates)
        assert torch.allclose(varied[0], again[0], atol=1e-5)
        assert not torch.allclose(varied[2], again[0], atol=1e-5)
        # In the last layer, a gate for the tail is a gate for the whole text.
        assert torch.allclose(varied[1], probe.run(ids, gates[1])[0, -7:], atol=1e-5)


@pytest.mark.parametrize(("kind", "mapped"), [("Llama", True), ("Bert", True), ("Llama", False)])
def test_variants_are_the_model_whose_limited_heads_have_the_maps_that_are_given(kind, mapped):
    model, heads = tiny(kind, KINDS[kind]), 2 if kind == "Llama" else 4
    rng, ids = np.random.default_rng(0), filler(37)
    dials = dict.fromkeys(range(2), kt.Dial.get("softmax@window=6,sinks=2"))
    if mapped:
        for layer in dials:
            learned = kt.maps.Hedgehog(rng.standard_normal((heads, 8, 5)))
            dials[layer] = kt.Dial(learned, 6, 2, kt.Far(rng.normal(0, 1, 4)))
    drawn = torch.tensor(rng.integers(0, 2, (5, 2, heads)), dtype=torch.float32)
    drawn[0], drawn[1] = 1, 0
    drawn[2:, 0] = drawn[2, 0]  # they share the first layer
    with torch.inference_mode():
        before = model(torch.tensor([ids]))[0]
        with Probe(model, 6, 2, dials if mapped else None) as probe:
            alone = [probe.run(ids, gates)[0] for gates in drawn]
            varied = torch.cat([probe.vary(drawn[:2]), probe.vary(drawn[2:])])
            if kind == "Llama":  # the last layer of a tail is that of the whole text
                gates = probe.gates(1)
                gates[1, 0] = 0
                whole = probe.run(ids, gates)[:, -7:]
                probe.run(ids, probe.gates(1))
                tail = probe.run(ids, gates, tail=7)
                assert torch.allclose(tail, whole, atol=1e-5)
        assert torch.equal(model(torch.tensor([ids]))[0], before)
        for gates, ours, one in zip(drawn, varied, alone, strict=True):
            own = {
                layer: kt.hf._linearized.with_whole(
                    dial, gates[layer].nonzero()[:, 0].tolist(), heads
                )
                for layer, dial in dials.items()
            }
            made = kt.hf._linearized.assemble(copy.deepcopy(model), own, causal=kind == "Llama")
            theirs = made(torch.tensor([ids]))[0]
            if kind == "Bert":
                theirs = theirs.mean(1)
            assert torch.allclose(ours, theirs[0].float(), atol=1e-5)
            assert torch.allclose(one, theirs[0].float(), atol=1e-5)


def test_gates_share_out_what_is_lost(model):
    found = kt.hf.rank_heads(model, windows(), window=8, sinks=1, planted=facts(), fast=True)
    lost = {"gate": [], "gate among half": []}
    with torch.inference_mode(), Probe(model, 8, 1) as probe:
        half = probe.gates(0)
        for head in found.order[:6]:
            half[head] = 1

        def distance(whole, gates):
            logs = (x[0, 9:].log_softmax(-1) for x in (probe.run(ids, gates), whole))
            return torch.nn.functional.kl_div(*logs, log_target=True, reduction="batchmean")

        for ids in windows():
            whole = probe.run(ids, probe.gates(1))
            lost["gate"].append(distance(whole, probe.gates(0.75)))
            closed = distance(whole, probe.gates(0))
            lost["gate among half"].append(closed - distance(whole, half))
    for name, each in lost.items():
        assert found.scores[name].sum() == pytest.approx(float(np.mean(each)), rel=0.1)


def test_a_ranking_that_was_stopped_goes_on_to_the_same_scores(model, tmp_path, monkeypatch):
    from kerneltrick.hf._heads import _Text

    given = {"window": 8, "sinks": 1, "planted": facts()}
    whole = kt.hf.rank_heads(model, windows(), **given)
    change, count = _Text.change, []

    def counted(text, *arguments):
        count.append(arguments)
        if len(count) == 8:
            raise KeyboardInterrupt
        return change(text, *arguments)

    monkeypatch.setattr(_Text, "change", counted)
    path = tmp_path / "heads.unfinished"
    with pytest.raises(KeyboardInterrupt):
        kt.hf.rank_heads(model, windows(), **given, resume=path)
    path.write_text(path.read_text()[:-5])  # the last line is torn
    again = kt.hf.rank_heads(model, windows(), **given, resume=path)
    pieces = 2 * 2 * 3 + len(facts()) * 2
    assert len(count) == 8 + pieces - 6
    for name, scores in whole.scores.items():
        assert np.array_equal(scores, again.scores[name])
    other = kt.hf.rank_heads(model, windows(), **{**given, "sinks": 2}, resume=path)
    assert not np.array_equal(other.scores["freed"], whole.scores["freed"])


def test_windows_must_be_longer_than_what_a_limited_head_sees(model):
    with pytest.raises(ValueError, match="rank_heads needs windows of more than 68 tokens"):
        kt.hf.rank_heads(model, windows())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    @functools.cache
    def get(kind):
        return save_tiny(tmp_path_factory.mktemp(kind), kind, KINDS[kind])

    return get


def words(count, length=32):
    drawn = np.random.default_rng(7).integers(3, 50, (count, length))
    return drawn.tolist()


def whole_heads(model):
    return {
        (layer, head)
        for layer, setting in enumerate(model.settings)
        for head in kt.hf._linearized.dial_of(setting).whole
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_heads_is_kept_without_training_and_the_folder_loads(folders, tmp_path, kind):
    where, texts, out = folders(kind), words(12), tmp_path / "out"
    made = kt.hf.linearize(where, texts, SOFTMAX, keep="auto", out=out)
    count = {"Llama": 1, "Bert": 2}[kind]  # a quarter of 4 and of 8
    assert made.fit is None
    assert made.tuned is None
    assert made.kept == {}
    assert whole_heads(made.model) == set(made.ranking.order[:count])
    assert f"Heads that see the whole text: {count} of {4 * count}." in made.remarks
    rows = [row.name for row in made.judged.rows]
    assert rows == ["teacher", "hybrid", "window for all heads"]
    again = kt.hf.HeadRanking.from_record(kt.hf.read_record(out)["heads"])
    assert again.order == made.ranking.order
    auto = getattr(transformers, KINDS[kind])
    loaded = auto.from_pretrained(out).eval()
    ids = torch.tensor([words(13)[-1]])
    with torch.inference_mode():
        ours, theirs = loaded(ids)[0], made.model(ids)[0]
        assert torch.equal(ours, theirs)
        with Probe(auto.from_pretrained(where).eval(), 4, 1) as probe:
            gates = probe.gates(0)
            for layer, head in whole_heads(made.model):
                gates[layer, head] = 1
            same = probe.run(ids[0].tolist(), gates)
        expected = ours if kind == "Llama" else ours.mean(1)
        assert torch.allclose(same, expected, atol=1e-5)
    if kind == "Llama":
        said = loaded.generate(ids, max_new_tokens=9, do_sample=False, pad_token_id=0)
        more = ids
        with torch.inference_mode():
            for _ in range(said.shape[1] - ids.shape[1]):
                more = torch.cat([more, loaded(more, use_cache=False).logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(said, more)


def test_the_curve_has_the_figures_of_models_with_other_shares(folders):
    where, texts = folders("Llama"), words(12)
    how = {"keep": "auto", "held_out": "end"}
    half = kt.hf.linearize(where, texts, SOFTMAX, share=0.5, **how)
    curve = half.judged.curve
    assert [x.heads for x in curve] == [0, 1, 2]
    assert sum(x.knee for x in curve) <= 1  # a curve that bends upwards has none
    rows = {row.name: row.figures["perplexity"] for row in half.judged.rows}
    assert curve[0].quality == pytest.approx(rows["window for all heads"], rel=1e-4)
    assert curve[2].quality == pytest.approx(rows["hybrid"], rel=1e-4)
    quarter = kt.hf.linearize(where, texts, SOFTMAX, **how)
    assert curve[1].quality == pytest.approx(quarter.judged.rows[1].figures["perplexity"], rel=1e-4)


def test_the_knee_is_where_most_is_gained_over_a_line():
    from kerneltrick.hf._curve import HeadCurvePoint, _marked

    for qualities, knee in (
        ((40, 27, 25, 23), [1]),  # falls fast, then slowly
        ((0.9, 0.91, 0.92, 1.0), []),  # rises slowly, then fast
        ((5, 5, 5, 5), []),
    ):
        points = [HeadCurvePoint(at, at / 3, quality) for at, quality in enumerate(qualities)]
        assert [x.heads for x in _marked(points) if x.knee] == knee


def test_an_evaluation_that_was_stopped_goes_on_to_the_same_figures(folders, tmp_path, monkeypatch):
    where, texts = folders("Bert"), words(12)
    made = kt.hf.linearize(where, texts[:9], SOFTMAX, keep="auto")
    how = {"ranking": made.ranking, "shares": (0.0, 0.5)}
    whole = kt.hf.evaluate(made.model, texts[9:], **how)
    resume, put, seen = tmp_path / "kept", Store.put, []

    def stop(store, key, value):
        put(store, key, value)
        seen.append(key)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", stop)
        with pytest.raises(KeyboardInterrupt):
            kt.hf.evaluate(made.model, texts[9:], **how, resume=resume)
    kept = len(resume.read_text().splitlines())
    assert kt.hf.evaluate(made.model, texts[9:], **how, resume=resume) == whole
    assert kept < len(resume.read_text().splitlines())
    before = resume.read_text()
    assert kt.hf.evaluate(made.model, texts[9:], **how, resume=resume) == whole
    assert resume.read_text() == before


def test_the_better_half_is_ordered_by_its_second_measure():
    first, second = np.array([[9.0, 8.0], [7.0, 1.0], [2.0, 0.5]]), np.zeros((3, 2))
    second[0, 0], second[0, 1], second[1, 0] = 1.0, 3.0, 2.0
    second[2, 0] = 99.0  # a head of the other half, which stayed limited
    ranking = kt.hf.HeadRanking({"gate": first, "gate among half": second}, 4, 1)
    assert ranking.order == ((0, 1), (1, 0), (0, 0), (2, 0), (1, 1), (2, 1))
    assert kt.hf.HeadRanking.from_record(ranking.record()).order == ranking.order


def test_heads_are_kept_as_far_as_a_budget_allows(folders):
    where, texts = folders("Llama"), words(6)
    sizes = []
    for dial in (SOFTMAX, "softmax"):
        data = kt.hf.capture(where, token_ids=texts[0])
        sizes.append(kt.hf._choose.state_bytes(kt.Dial.get(dial), data) / 2)

    def count(budget):
        setting = kt.Dial.get(SOFTMAX)
        made = kt.hf.linearize(where, texts, setting, keep="auto", budget=budget)
        return len(whole_heads(made.model))

    exact = round(3 * sizes[0] + sizes[1])
    assert (count(exact), count(exact - 1)) == (1, 0)
    with pytest.raises(ValueError, match=r"of 4 heads need .* bytes, more than the budget of 10;"):
        count(10)


def test_a_map_that_adds_nothing_is_dropped_and_one_that_helps_stays(folders):
    from kerneltrick.hf._loss import drop_maps, loss, outcome, softmax_everywhere, window_alone

    where, texts = folders("Llama"), words(2)
    setting = "hedgehog:activation=exp@window=4,sinks=1,gain={},whole=1"
    network = transformers.AutoModelForCausalLM.from_pretrained(where).eval()
    dials = {0: kt.Dial.get(setting.format(3)), 1: kt.Dial.get(setting.format(-60))}
    model = kt.hf._linearized.assemble(network, dials, causal=True)

    def lost():
        found = []
        with torch.no_grad():
            for ids in texts:
                with model.attending_by(softmax_everywhere(model)):
                    wanted = outcome(model, ids, {})
                found.append(float(loss(model, outcome(model, ids, {}), wanted)))
        return np.mean(found)

    with model.attending_by([window_alone(dials[0]), model.settings[1]]):
        without = lost()
    before = lost()
    assert before < without  # the first map helps, the second is too quiet to be heard
    assert drop_maps(model, texts) == {1: (0,)}
    assert lost() == pytest.approx(before)
    assert str(model.settings[1]) == "softmax@window=4,sinks=1,whole=1"
    assert list(model.maps) == ["0"]


def test_a_model_without_some_maps_is_saved_and_keeps_less(folders, tmp_path):
    dial = kt.Dial.get("hedgehog:activation=exp@window=4,sinks=1")
    made = kt.hf.linearize(folders("Llama"), words(6), dial).model  # with fitted weights
    ids = torch.tensor(words(1))

    def state():
        cache = kt.hf.Cache()
        with torch.inference_mode():
            out = made(ids, past_key_values=cache).logits
        return out, cache.layers[0].state.bytes_by_head

    whole, (mapped, _) = state()
    made.drop_maps({0: (1,)})
    out, sizes = state()
    assert not torch.allclose(out, whole)
    assert sizes[0] == mapped > sizes[1]
    made.drop_maps({1: (0, 1)})
    assert [str(x) for x in made.maps] == ["0"]
    assert str(made.settings[1]) == SOFTMAX
    made.save_pretrained(tmp_path / "saved")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    with torch.inference_mode():
        assert torch.equal(loaded(ids).logits, made(ids).logits)
    dials = [kt.hf._linearized.dial_of(x) for x in loaded.settings]
    assert [x.bare for x in dials] == [(1,), ()]
    ranking = kt.hf.HeadRanking({"gate": np.array([[1.0, 2.0], [0.0, 0.0]])}, 4, 1)
    curve = kt.hf.evaluate(made, words(2), ranking=ranking, shares=[0, 0.25, 1]).curve
    assert [x.heads for x in curve] == [0, 1, 4]  # the first whole head is one without a map
    with made.attending_by([kt.hf._loss.window_alone(x) for x in dials]), torch.inference_mode():
        alone = made(ids).logits
    made.drop_maps({0: (0,)})
    with torch.inference_mode():
        assert torch.allclose(made(ids).logits, alone)
    assert list(made.maps) == []


@pytest.mark.parametrize("kind", KINDS)
def test_losses_without_a_map_are_those_of_whole_runs(folders, kind, tmp_path, monkeypatch):
    from kerneltrick.hf import _loss

    texts, found = words(2), []
    auto = getattr(transformers, KINDS[kind])
    for file in ("reused", "computed", "again"):
        network = auto.from_pretrained(folders(kind)).eval()
        dials = dict.fromkeys(range(2), kt.Dial.get("elu@window=4,sinks=1,whole=1"))
        model = kt.hf._linearized.assemble(network, dials, causal=kind == "Llama")
        path = tmp_path / ("reused" if file == "again" else file)
        if file == "computed":
            monkeypatch.setattr(_loss, "reused", lambda *_: contextlib.nullcontext())
        if file == "again":  # everything is in the file
            monkeypatch.setattr(_loss, "outcome", None)
        bare = _loss.drop_maps(model, texts, resume=path)
        lines = path.read_text().splitlines()[1:]  # the first is the key of the run
        found.append((bare, dict(json.loads(line[17:]) for line in lines)))
        assert _loss.mapped_heads(model) == [
            (layer, head)
            for layer in range(2)
            for head in range(2 if kind == "Llama" else 4)
            if head != 1 and head not in bare.get(layer, ())
        ]
    assert found[0][0] == found[1][0] == found[2][0]
    assert len(found[0][1]) >= 2 * (2 + (2 if kind == "Llama" else 6))
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-4)
    assert len(set(found[0][1].values())) > len(found[0][1]) / 2


def test_training_on_planted_facts_brings_their_answers_nearer_to_the_original(folders):
    from kerneltrick.hf._finetune import RECALL, finetune
    from kerneltrick.hf._loss import loss, outcome, softmax_everywhere

    texts, found = words(40), {}
    planted = [kt.hf.Passkey(0.5, ids, 3, 2) for ids in words(46)[40:]]
    for facts in ((), planted):
        network = transformers.AutoModelForCausalLM.from_pretrained(folders("Llama")).eval()
        dials = dict.fromkeys(range(2), kt.Dial.get("softmax@window=3,whole=1"))
        model = kt.hf._linearized.assemble(network, dials, causal=True)
        with torch.no_grad(), model.attending_by(softmax_everywhere(model)):
            wanted = [outcome(model, text.ids, {})[-4:-1] for text in planted]

        def lost(model=model, wanted=wanted):
            with torch.no_grad():
                ours = [outcome(model, text.ids, {})[-4:-1] for text in planted]
                return np.mean([float(loss(model, *x)) for x in zip(ours, wanted, strict=True)])

        before = lost()
        tuned = finetune(
            model, texts[4:], texts[:4], trained="all", planted=facts, held_out_planted=facts,
            learning_rate=3e-3,
        )  # fmt: skip
        found[len(facts)] = lost(), tuned.before
    assert found[6][0] < 0.7 * found[0][0] < 0.7 * before
    assert found[6][1] == pytest.approx(found[0][1] + RECALL * before, rel=1e-4)


@pytest.fixture(scope="module")
def trained(folders):
    """The phrasings of the planted facts of a training, in order, and what was trained on."""
    from kerneltrick.hf import _linearize
    from kerneltrick.hf._passkey import PHRASINGS

    asked, given, tune = [], [], _linearize.tune

    def planted(*inputs, **how):
        asked.append(how.get("phrasings", PHRASINGS))
        return kt.hf.passkeys(*inputs, **how)

    def tuned(model, windows, held_out, **how):
        given.append((how["planted"], how["held_out_planted"], windows, held_out))
        return tune(model, windows, held_out, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_linearize, "passkeys", planted)
        patch.setattr(_linearize, "tune", tuned)
        for share in (0.25, 0.0):
            how = {"keep": "auto", "share": share, "finetune": "all"}
            how["held_out"] = "end" if share else None
            kt.hf.linearize(folders("Llama"), words(8 if share else 4, 200), SOFTMAX, **how)
    return asked, given


def test_models_with_whole_heads_are_trained_on_planted_facts(trained):
    from kerneltrick.hf._split import stretches

    _, ((planted, validating, windows, held_out), without) = trained
    assert without[:2] == ([], [])  # as no head can recall
    assert len(planted) >= len(windows)
    assert len(validating) >= len(held_out)
    for facts, texts, others in ((planted, windows, held_out), (validating, held_out, windows)):
        own, strange = ({run for ids in x for run in stretches(ids, 8)} for x in (texts, others))
        for fact in facts:
            assert stretches(fact.ids, 8) & own
            assert not stretches(fact.ids, 8) & strange


def test_models_are_evaluated_on_phrasings_that_nothing_was_fitted_to(trained):
    *fitted, judged = trained[0][:4]
    assert len(fitted) == 3  # they rank, train and validate
    words_of = [{x.fact.strip(), x.question.strip()} for x in judged]
    for phrasings in fitted:
        others = " ".join(x.fact + x.question for x in phrasings)
        assert not any(text in others for own in words_of for text in own)


def test_the_command_keeps_heads_and_shows_the_curve(folders, run, tmp_path):
    text, other = ((" ".join(f"w{x}" for x in np.random.default_rng(seed).integers(3, 50, 420)))
                   for seed in (0, 1))  # fmt: skip
    (tmp_path / "fit.txt").write_text(text)
    (tmp_path / "other.txt").write_text(other)
    out = tmp_path / "out"
    how = ("--length", 32, "--window", 4, "--sinks", 1)
    code, printed, _ = run("linearize", folders("Llama"), "--text", tmp_path / "fit.txt",
                           "--out", out, "--keep", "auto", *how)  # fmt: skip
    assert code == 0
    assert "Heads that see the whole text: 1 of 4." in printed
    assert "knee" in printed
    given = ("evaluate", out, "--text", tmp_path / "other.txt", "--length", 32)
    code, printed, _ = run(*given, "--shares", "0,0.5,1")
    assert code == 0
    assert "window for all heads" in printed
    assert " 4   100%" in printed
    for wrong, message in [
        ((*given, "--shares", "2"), "--shares must be numbers between 0 and 1"),
        (("linearize", folders("Llama"), "--text", tmp_path / "fit.txt", "--out", tmp_path / "no",
          "--unit", "word"), "--unit must be head or layer"),
    ]:  # fmt: skip
        code, _, complaint = run(*wrong)
        assert code != 0
        assert message in complaint
