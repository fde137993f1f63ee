"""Linearise and evaluate small models from folder to folder."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import save_tiny, tiny  # noqa: E402

import kerneltrick as kt  # noqa: E402
import kerneltrick.hf  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("hf"),  # transformers is loaded once
]
KINDS = {"Llama": "AutoModelForCausalLM", "Bert": "AutoModel"}
SETTING = "hedgehog:activation=exp@window=4,sinks=1"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of small models with a tokenizer of words w1, w2, …"""

    @functools.cache
    def get(kind):
        return save_tiny(tmp_path_factory.mktemp(kind), kind, KINDS[kind])

    return get


def text(count, seed=0):
    return " ".join(f"w{x}" for x in np.random.default_rng(seed).integers(3, 50, count))


def cut(folder, count=448, seed=0, length=32):
    return kt.hf.windows(folder, text(count, seed), tokens=count, length=length, least=2)


@pytest.fixture(scope="module")
def linearized(folders):
    return {kind: kt.hf.linearize(folders(kind), cut(folders(kind)), SETTING) for kind in KINDS}


def test_validation_windows_are_spread_over_the_text():
    windows = [[number] for number in range(64)]
    fitted, validation, dropped, _ = kt.hf._split.split(windows)
    assert validation == [[8], [24], [40], [56]]
    assert (sorted(fitted + validation), dropped) == (windows, 0)
    assert len(kt.hf._split.split(windows[:2]).validation) == 1


def test_windows_that_repeat_validation_windows_are_not_fitted_to(folders):
    folder, notice = folders("Bert"), text(20, seed=1)
    windows = cut(folder, 448)
    words = notice + " " + text(12, seed=2) + " " + notice + " " + text(12, seed=3)
    repeated = kt.hf.windows(folder, words, tokens=64, length=32, least=2)
    middle = len(windows) // 2
    whole = [*windows[:middle], *repeated, *windows[middle:]]
    fitted, validation, dropped, run = kt.hf._split.split(whole)
    assert run == 8
    assert len([ids for ids in whole if ids not in validation and ids not in fitted]) == dropped > 0
    said = []
    found = kt.hf.linearize(folder, whole, SETTING, say=said.append)
    assert said == [
        f"Fitting uses {len(fitted)} of {len(whole)} windows; 1 are for validation. Windows that "
        f"are skipped: {dropped}, because they repeat text of the validation windows (8 tokens in "
        "a row or more; --overlap changes this)."
    ]
    assert kt.hf._split.split(whole, 21).dropped == 0
    assert found.dropped == dropped
    assert f"Windows that were skipped: {dropped}, because they repeat text" in found.remarks[0]
    reason = r"all windows share 8 tokens in a row with the {}; provide .* \(--overlap\)"
    for count, which in ((4, "validation window"), (40, "two validation windows")):
        with pytest.raises(ValueError, match=reason.format(which)):
            kt.hf._split.split([[5] * 8] * count)


def drawn(kind, rows, seed=0):
    """Windows of 64 tokens drawn independently, of so many different ones or from a template."""
    rng = np.random.default_rng(seed)
    if kind != "template":
        return rng.integers(3, 3 + kind, (rows, 64)).tolist()
    forms = np.random.default_rng(0).integers(3, 30, (4, 12))  # sentences with two open places
    forms = forms[rng.integers(0, 4, 6 * rows)]
    forms[:, ::6] = rng.integers(30, 40, (len(forms), 2))
    return forms.reshape(-1)[: 64 * rows].reshape(rows, 64).tolist()


@pytest.mark.parametrize("kind", [2, "template"])
def test_independent_text_is_used_however_it_repeats_itself_and_copies_are_found(kind):
    from kerneltrick.hf._overlap import overlap, sketch

    windows = drawn(kind, 160)
    fitted, validation, dropped, run = kt.hf._split.split(windows)
    assert dropped <= len(windows) // 50
    assert overlap(drawn(kind, 40, seed=1), sketch(fitted, run), run) < 0.02
    assert overlap(fitted[:40], sketch(fitted, run), run) == 1
    places = [place for place in range(0, 160, 20) if windows[place] not in validation]
    for place, copied in zip(places, validation, strict=False):
        windows[place] = [*windows[place][:10], *copied[5:59]]  # at another place
    found = kt.hf._split.split(windows)
    assert not [place for place in places if windows[place] in found.fitted]
    assert found.dropped <= dropped + len(places)


def test_text_of_few_tokens_is_fitted_to(folders):
    """Its keys repeat too, which the fit itself must not take for held-out text."""
    said, folder = [], folders("Llama")
    windows = [ids[:40] for ids in drawn(2, 24)]
    found = kt.hf.linearize(folder, windows, SETTING, held_out="end", say=said.append)
    assert (found.dropped, found.overlap > 8) == (0, True)
    assert said == ["Fitting uses 20 of 21 windows; 1 are for validation. No other is skipped."]
    assert "used for fitting" not in found.judged.verdict


def test_the_end_of_a_text_is_held_back_and_other_text_must_not_overlap():
    windows = [[number] for number in range(40)]
    assert kt.hf._split.hold_out(windows, "end") == (windows[:-5], windows[-5:])
    assert [len(x) for x in kt.hf._split.hold_out(windows[:6], "end")] == [4, 2]
    assert kt.hf._split.hold_out(windows, None) == (windows, ())
    for wrong in ([], [[100], [7, 8]]):
        with pytest.raises(ValueError, match="held_out needs windows of tokens, all of one length"):
            kt.hf._split.hold_out(windows, wrong)
    with pytest.raises(ValueError, match="needs at least 4 windows, not 3; provide a longer text"):
        kt.hf._split.hold_out(windows[:3], "end")
    with pytest.raises(kt.hf.OverlapError, match="overlaps the fitting text"):
        kt.hf._split.hold_out(windows, [[100], [7]])


def test_a_text_that_was_fitted_to_is_noticed(folders, linearized, run, tmp_path):
    out, other = tmp_path / "out", cut(folders("Bert"), seed=1)
    linearized["Bert"].save(out, kt.hf.evaluate(linearized["Bert"].model, other))
    assert "fitting" not in kt.hf.evaluate(out, other).verdict
    known = [ids[5:29] for ids in cut(folders("Bert"))]  # windows of another length
    said = "used for fitting, so these figures are too good; evaluate on other text."
    assert f"About 100% of this text was {said}" in kt.hf.evaluate(out, known[:4]).verdict
    mixed = [*known[:4], *(ids[:24] for ids in other[:4])]
    assert f"About 50% of this text was {said}" in kt.hf.evaluate(out, mixed).verdict
    (tmp_path / "text.txt").write_text(text(448))
    printed = run("evaluate", out, "--text", tmp_path / "text.txt", "--length", 24)[1]
    assert said in " ".join(printed.split())
    assert "fitted" not in kt.hf.read_record(out)
    (out / "linearization.json").unlink()  # then nothing is known
    assert "fitting" not in kt.hf.evaluate(out, known[:4]).verdict


def test_a_sketch_of_a_long_text_estimates_the_share_that_was_fitted_to():
    from kerneltrick.hf._overlap import SIZE, overlap, sketch

    rng = np.random.default_rng(0)
    fitted, other = rng.integers(0, 5000, (2, 300, 128)).tolist()
    known = sketch(fitted, 8)
    assert len(known) == SIZE
    assert overlap(other, known, 8) == 0
    assert overlap(fitted[:50], known, 8) == 1
    assert overlap([*fitted[:30], *other[:90]], known, 8) == pytest.approx(0.25, abs=0.06)


def test_figures_are_needed_for_the_card(linearized, tmp_path):
    with pytest.raises(ValueError, match="save needs figures for the model card"):
        linearized["Bert"].save(tmp_path / "out")


def test_texts_are_cut_into_whole_windows(folders):
    found = kt.hf.windows(folders("Llama"), text(100), tokens=80, length=32, least=2)
    assert [len(ids) for ids in found] == [32, 32]
    assert found[0] + found[1] == [int(word[1:]) for word in text(100).split()[:64]]


@pytest.mark.parametrize("kind", KINDS)
def test_fitted_maps_are_nearer_to_softmax(linearized, kind):
    found = linearized[kind]
    assert found.fit.steps == 14 - 1
    assert found.model.config.causal == (kind == "Llama")
    before, after = (np.mean(list(x.values())) for x in (found.fit.before, found.fit.after))
    assert after < before
    assert found.kept == {}


def test_the_teacher_of_a_model_is_the_model_with_softmax(linearized, folders):
    judged, model = cut(folders("Llama"), seed=1)[:4], linearized["Llama"].model
    alone = kt.hf.evaluate(model, judged)
    beside = kt.hf.evaluate(model, judged, teacher=folders("Llama"))
    assert [row.name for row in alone.rows] == ["teacher", "hybrid", "window alone", "map alone"]
    for ours, theirs in zip(alone.rows, beside.rows, strict=True):
        assert ours.figures == pytest.approx(theirs.figures, rel=1e-4)


def test_perplexity_is_that_of_the_losses(linearized, folders):
    judged = cut(folders("Llama"), count=500, seed=1, length=100)[:3]
    model = linearized["Llama"].model
    result = kt.hf.evaluate(model, judged)
    ids = torch.tensor(judged)
    with torch.inference_mode():
        logits = model(ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.mT, ids[:, 1:], reduction="none")
    figures = result.rows[1].figures
    assert figures["perplexity"] == pytest.approx(float(loss.mean().exp()), rel=1e-4)
    assert figures["0–63"] == pytest.approx(float(loss[:, :64].mean().exp()), rel=1e-4)
    assert figures["64–99"] == pytest.approx(float(loss[:, 64:].mean().exp()), rel=1e-4)
    assert result.rows[0].figures["agreement"] == 1.0
    assert 0 < figures["agreement"] < 1
    held = {row.name: list(row.states.values()) for row in result.rows}
    assert all(list(row.states) == ["0–63", "64–99"] for row in result.rows)
    assert held["teacher"][1] / held["teacher"][0] == pytest.approx(100 / 64)
    for name in ("hybrid", "window alone", "map alone"):
        assert held[name][0] == held[name][1]  # beyond the window the size of a state is constant
    size = {row.name: row.state_bytes for row in result.rows}
    assert size == {name: sizes[-1] for name, sizes in held.items()}
    assert 0 < size["map alone"] < size["hybrid"] < size["teacher"]
    assert size["window alone"] < size["hybrid"]
    assert (result.windows, result.length) == (3, 100)


def test_windows_alone_and_maps_alone_are_what_they_say(linearized, folders):
    judged = cut(folders("Llama"), seed=1)[:3]
    model = linearized["Llama"].model
    rows = {row.name: row.figures["perplexity"] for row in kt.hf.evaluate(model, judged).rows}
    ids = torch.tensor(judged)

    def perplexity(network):
        with torch.inference_mode():
            return float(network(ids, labels=ids, use_cache=False).loss.exp())

    name = kt.hf.register("softmax@window=4,sinks=1")
    load = transformers.AutoModelForCausalLM.from_pretrained
    assert rows["window alone"] == pytest.approx(
        perplexity(load(folders("Llama"), attn_implementation=name)), rel=1e-4
    )
    alone = [kt.Dial(setting.dial.feature_map) for setting in model.settings]
    with model.attending_by(alone):
        assert rows["map alone"] == pytest.approx(perplexity(model), rel=1e-4)
    assert len({f"{x:.3g}" for x in rows.values()}) == 4


def test_embeddings_are_compared_with_the_teachers(linearized, folders):
    judged = cut(folders("Bert"), seed=1)[:6]
    model = linearized["Bert"].model
    result = kt.hf.evaluate(model, judged)
    teacher = transformers.AutoModel.from_pretrained(folders("Bert"))
    ids = torch.tensor(judged)
    with torch.inference_mode():
        means = [m(ids).last_hidden_state.mean(1) for m in (model, teacher)]
    cosine = torch.nn.functional.cosine_similarity(*means).mean()
    assert result.rows[1].figures["cosine"] == pytest.approx(float(cosine), abs=1e-5)
    assert result.rows[0].figures == pytest.approx({"cosine": 1, "pairs": 1, "nearest": 1})
    assert (result.rows[1].state_bytes, result.rows[1].states) == (None, {})


VERDICTS = (  # perplexities of teacher, hybrid and window alone, and tokens a second
    (10, 16, 30, (), "Keep softmax: perplexity 10 → 16."),
    (10, 12, 12, (), "The map adds nothing to the window: perplexity 10 → 12; 12 with"),
    (10, 11.99, 12, (), "The map adds almost nothing to the window: perplexity 10 → 12; 12"),
    (10, 11, 12, (9, 8), "Worth a look: perplexity 10 → 11; 12 with the window alone."),
    (10, 11, 12, (7, 8), "Slower than the teacher: perplexity 10 → 11; 12 with the window alone; "
     "after 4,096 tokens, it decodes 7 tokens/s and the teacher 8."),
    (10, 11, None, (), "Worth a look: perplexity 10 → 11."),
    (1342, 2e5, None, (), "Keep softmax: perplexity 1,340 → 200,000."),
)  # fmt: skip


def test_the_verdict_reads_its_own_table():
    from kerneltrick.hf._verdict import verdict

    for teacher, hybrid, alone, speeds, said in VERDICTS:
        rows = {"teacher": teacher, "hybrid": hybrid, "window alone": alone}
        rows = {name: {"perplexity": x} for name, x in rows.items() if x is not None}
        after = {64: (1.0, 2.0), 4096: speeds} if speeds else {}  # the longest context decides
        timed = [
            kt.hf.Speed(name, context, 1.0, rate, 1)
            for context, rates in after.items()
            for name, rate in zip(("hybrid", "teacher"), rates, strict=True)
        ]
        assert verdict(rows, timed).startswith(said)
        cosines = {name: {"cosine": 1.1 - x["perplexity"] / 100} for name, x in rows.items()}
        timed = [x._replace(prefill=x.decoding, decoding=None) for x in timed]
        found = verdict(cosines, timed)
        if hybrid != 16:
            assert found.partition(":")[0] == said.partition(":")[0]
            assert ("it reads 7 tokens/s" in found) == (7 in speeds)


def test_numbers_are_planted_at_their_depth_and_asked_for_at_the_end(folders):
    phrasings = [kt.hf.Phrasing(" w7 w7 {key}", " w8")]
    windows = [[5] * 40, [6] * 40]
    how = {"depths": (0, 0.5, 1), "phrasings": phrasings}
    found = kt.hf.passkeys(folders("Llama"), windows, **how)
    assert [x.depth for x in found] == [0, 0.5, 1] * 2
    for passkey in found:
        assert len(passkey.ids) == 40
        assert passkey.ids[-2:] == [8, 0]  # numbers are unknown words to this tokenizer
        assert (passkey.question, passkey.answer) == (1, 1)
        assert passkey.ids.index(7) == round(passkey.depth * 35)
    assert len(kt.hf.passkeys(folders("Llama"), windows, trials=5, **how)) == 15
    assert kt.hf.passkeys(folders("Llama"), [[5] * 6]) == []


def test_rivals_are_planted_elsewhere_and_one_of_them_is_asked_for(folders):
    names = ("w11", "w12", "w13")
    phrasings = [kt.hf.Phrasing(" w7 {name} {key}", " w8 {name}", names)]
    found = kt.hf.passkeys(folders("Llama"), [[5] * 60], depths=(0.1, 0.6), phrasings=phrasings)
    for passkey in found:
        asked = passkey.ids[-2]
        at = {name: passkey.ids.index(name) for name in (11, 12, 13)}
        assert all(passkey.ids[place - 1] == 7 for place in at.values())
        before = sum(3 for place in at.values() if place < at[asked])
        assert at[asked] - 1 - before == round(passkey.depth * (60 - 9 - 3))
        assert len(passkey.ids) == 60


def test_recall_is_the_share_of_answers_that_are_said(linearized, folders):
    judged, model = cut(folders("Llama"), seed=1)[:2], linearized["Llama"].model
    ids = torch.tensor(judged)
    with torch.inference_mode():
        said = model(ids).logits[:, -2].argmax(-1).tolist()
    right = [*judged[0][:-1], said[0]]
    wrong = [*judged[1][:-1], (said[1] + 1) % 50]
    planted = [kt.hf.Passkey(0.5, right, 1), kt.hf.Passkey(0.5, wrong, 1)]
    planted.append(kt.hf.Passkey(0.9, right, 1))
    figures = kt.hf.evaluate(model, judged, passkeys=planted).rows[1].figures
    assert (figures["recall at 50%"], figures["recall at 90%"]) == (0.5, 1.0)


def test_a_window_of_the_whole_text_loses_nothing(folders):
    found = kt.hf.linearize(folders("Llama"), cut(folders("Llama")), "hedgehog@window=32")
    rows = kt.hf.evaluate(found.model, cut(folders("Llama"), seed=1)[:3]).rows
    assert rows[1].figures == pytest.approx(rows[0].figures, rel=1e-4)


@torch.no_grad()
def divergence(model, ids):
    """The mean Kullback–Leibler divergence of a model's next tokens from those with softmax."""
    ours = model(input_ids=ids).logits.log_softmax(-1)
    with model.attending_by([kt.Dial.get("softmax")] * 2):
        theirs = model(input_ids=ids).logits.log_softmax(-1)
    return float((theirs.exp() * (theirs - ours)).sum(-1).mean())


def test_layers_keep_softmax_as_asked_or_where_a_map_changes_the_model_most(folders):
    windows = cut(folders("Llama"))
    asked = kt.hf.linearize(folders("Llama"), windows, SETTING, keep=[0])
    assert asked.kept == {0: "as requested"}
    assert str(asked.model.settings[0]) == "softmax"
    found = kt.hf.linearize(
        folders("Llama"), windows, SETTING, keep="auto", unit="layer", share=0.5
    )
    changed, held_out = {}, torch.tensor([list(windows[len(windows) // 2])])
    for layer in (0, 1):  # the other keeps softmax
        alone = kt.hf.linearize(folders("Llama"), windows, SETTING, keep=[1 - layer]).model
        changed[layer] = divergence(alone, held_out)
    assert list(found.kept) == [max(changed, key=changed.get)]
    assert f"changes the model by {max(changed.values()):.2g}" in next(iter(found.kept.values()))
    with pytest.raises(ValueError, match="has 2 layers of attention, but no layer 5"):
        kt.hf.linearize(folders("Llama"), windows, SETTING, keep=[5])


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_go_from_folder_to_folder_and_do_what_the_calls_do(
    folders, kind, run, tmp_path
):
    (tmp_path / "fit.txt").write_text(text(260))
    (tmp_path / "other.txt").write_text(text(100, seed=1))
    out, again = tmp_path / "linear", tmp_path / "again"
    how = ("--map", "hedgehog:activation=exp", "--window", 4, "--sinks", 1, "--length", 32)
    command = ("linearize", folders(kind), "--text", tmp_path / "fit.txt", "--out", out, *how)
    code, printed, complaint = run(*command)
    assert code == 0, complaint
    assert printed.startswith("Fitting uses 5 of 6 windows; 1 are for validation. No other")
    assert f"wrote {out}" in printed
    found = kt.hf.linearize(folders(kind), cut(folders(kind), 260), SETTING, out=again)
    assert found.judged.verdict in " ".join(printed.split())
    files = [{path.name: path.read_bytes() for path in each.iterdir()} for each in (out, again)]
    assert files[0] == files[1]
    card = files[0]["README.md"].decode()
    assert "| window alone |" in card
    assert "`hedgehog:activation=exp@window=4,sinks=1`" in card
    ids = transformers.AutoTokenizer.from_pretrained(out)("w5 w6 w7", return_tensors="pt")
    assert getattr(transformers, KINDS[kind]).from_pretrained(out)(**ids)[0].shape[1] == 3

    code, _, complaint = run(*command)  # it exists, and stays
    assert (code, "exists" in complaint) == (2, True)
    if kind == "Bert":
        assert run(*command, "--force", "-q")[:2] == (0, "")
    names = ["again", "fit.txt", "linear", "other.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names

    figures = tmp_path / "figures.json"
    judge = ("evaluate", out, "--text", tmp_path / "other.txt", "--length", 32)
    page = tmp_path / "page.html"
    more = ("--json", figures, "--teacher", folders(kind), "--html", page, "--contexts", "40,80")
    code, printed, complaint = run(*judge, *more)
    assert code == 0, complaint
    assert f"wrote {page}" in printed
    found = json.loads(figures.read_text())
    rows = found["rows"]
    assert [row["name"] for row in rows] == ["teacher", "hybrid", "window alone", "map alone"]
    places = [(x["name"], x["context"]) for x in found["speeds"]]
    assert places == [("teacher", 40), ("hybrid", 40), ("teacher", 80), ("hybrid", 80)]
    teacher, hybrid, later, same = (x["state_bytes"] for x in found["speeds"])
    if kind == "Llama":
        assert teacher < later
        assert hybrid == same
        (first, _) = found["continuations"]
        assert len(first["written"]["hybrid"]) == 40 or 2 in first["written"]["hybrid"]
        assert "decoding tokens/s" in printed
    else:
        assert (teacher, hybrid) == (None, None)
        assert "tokens/s" in printed
        assert not any(word in printed for word in ("prefill", "decoding", "bytes"))
    written = page.read_text()
    assert "kerneltrick.evaluate/1" in written
    assert '"history":[[' in written  # of the fit, from the folder


def test_a_stopped_choice_of_layers_goes_on_to_the_same_layers(folders, tmp_path, monkeypatch):
    from kerneltrick.hf import _loss

    windows, resume = cut(folders("Llama")), tmp_path / "unfinished"
    measure, measured, most = _loss.loss, [], None

    def counted(*given):
        if len(measured) == most:
            raise KeyboardInterrupt
        measured.append(given)
        return measure(*given)

    def choose(setting, resume=None):
        measured.clear()
        how = {"keep": "auto", "unit": "layer", "share": 0.5, "resume": resume}
        found = kt.hf.linearize(folders("Llama"), windows, setting, **how)
        return found.kept, len(measured)

    monkeypatch.setattr(_loss, "loss", counted)
    kept, pieces = choose("softmax@window=4")
    most = 1
    with pytest.raises(KeyboardInterrupt):
        choose("softmax@window=4", resume)
    most = None
    assert choose("softmax@window=4", resume) == (kept, pieces - 1)
    assert choose("softmax@window=5", resume)[1] == pieces


def test_maps_trained_end_to_end_bring_the_model_nearer_to_its_teacher(folders, linearized):
    windows, others = cut(folders("Llama")), cut(folders("Llama"), seed=1)[:4]
    found = kt.hf.linearize(folders("Llama"), windows, SETTING, finetune="maps")
    assert found.tuned.after < found.tuned.before
    before, after = linearized["Llama"].model, found.model
    for name, x in before.state_dict().items():  # the maps alone have changed
        assert torch.equal(after.state_dict()[name], x) == (not name.startswith("maps."))
    assert all(x.requires_grad and x.grad is None for x in after.parameters())
    distances = [divergence(model, torch.tensor(others)) for model in (before, after)]
    assert distances[1] < distances[0]


def test_maps_are_compared_with_the_original_after_training(folders, monkeypatch):
    from kerneltrick.hf import _linearize

    asked, drop = [], _linearize.drop_maps
    monkeypatch.setattr(
        _linearize, "drop_maps", lambda *given: asked.append((given, drop(*given))) or asked[-1][1]
    )
    where = folders("Llama")
    found = kt.hf.linearize(where, cut(where), SETTING, keep="auto", finetune="lora")
    ((model, _, teacher, *_), bare) = asked[0]
    assert (model is found.model, found.bare) == (True, bare)
    said = next(x for x in found.remarks if "keep no map" in x)
    assert said.endswith(f": {sum(map(len, bare.values()))} of 3.")
    original = transformers.AutoModelForCausalLM.from_pretrained(where).state_dict()
    assert all(torch.equal(x, original[name]) for name, x in teacher.state_dict().items())
    assert teacher.config._attn_implementation == "eager"  # softmax, and records nothing


@pytest.mark.parametrize(("kind", "trained"), [("Llama", "lora"), ("Bert", "all")])
def test_weights_of_attention_are_trained_towards_the_original(folders, tmp_path, kind, trained):
    windows, others = cut(folders(kind)), cut(folders(kind), seed=1)[:4]
    setting = "softmax@window=4,sinks=1"  # nothing to fit: the weights alone can help
    found = kt.hf.linearize(folders(kind), windows, setting, finetune=trained)
    assert found.fit is None
    assert found.tuned.after < found.tuned.before
    original = getattr(transformers, KINDS[kind]).from_pretrained(folders(kind))
    changed = {
        name
        for name, x in original.state_dict().items()
        if not torch.equal(x, found.model.model.state_dict()[name])
    }
    assert changed
    assert all("attention" in name or "attn" in name for name in changed)
    with pytest.raises(ValueError, match="it cannot be its own teacher: give the original"):
        kt.hf.evaluate(found.model, others)
    judged = kt.hf.evaluate(found.model, others, teacher=folders(kind))

    found.save(tmp_path / "out", judged)
    again = getattr(transformers, KINDS[kind]).from_pretrained(tmp_path / "out")
    assert again.state_dict().keys() == found.model.state_dict().keys()
    for name, x in found.model.state_dict().items():
        assert torch.equal(x, again.state_dict()[name])
    assert again.config.finetune == trained
    assert "The attention weights were trained" in (tmp_path / "out" / "README.md").read_text()


def test_windows_are_as_long_as_half_of_the_output_or_a_budget_asks(folders):
    windows = cut(folders("Llama"), count=1600, length=100)[:4]
    free = kt.hf.linearize(folders("Llama"), windows, "elu@sinks=1", window="auto")
    assert "the output error of the window alone, by its length, is 8: " in free.window
    assert free.model.settings[0].dial.window == 16  # the longest of those below a quarter
    data = kt.hf.capture(folders("Llama"), text(100))
    size = {
        w: 2 * kt.hf._choose.state_bytes(kt.Dial.get(f"elu@window={w},sinks=1"), data)
        for w in (8, 16)
    }
    assert size[8] < size[16]
    tight = kt.hf.linearize(
        folders("Llama"), windows, "elu@sinks=1", window="auto", budget=size[16] - 1
    )
    assert tight.model.settings[0].dial.window == 8
    with pytest.raises(ValueError, match="more than the budget of 10;"):
        kt.hf.linearize(folders("Llama"), windows, "elu@sinks=1", window="auto", budget=10)


def test_layers_keep_softmax_as_far_as_a_budget_allows(folders):
    windows, sizes = cut(folders("Llama"))[:4], []
    for dial in ("elu@window=4", "softmax"):
        sizes.append(kt.hf._choose.state_bytes(kt.Dial.get(dial), kt.hf.capture(
            folders("Llama"), token_ids=windows[0])))  # fmt: skip

    def kept(budget):
        how = {"keep": "auto", "unit": "layer", "budget": budget}
        return len(kt.hf.linearize(folders("Llama"), windows, "elu@window=4", **how).kept)

    assert (kept(sum(sizes)), kept(sum(sizes) - 1)) == (1, 0)
    with pytest.raises(ValueError, match=r"of 2 layers need .* bytes, more than the budget of 10;"):
        kept(10)


def test_training_that_makes_it_worse_changes_nothing(folders):
    from kerneltrick.hf._finetune import finetune

    windows = cut(folders("Bert"))[:6]
    model = kt.hf.linearize(folders("Bert"), windows, SETTING).model
    start = {name: x.clone() for name, x in model.state_dict().items()}
    tuned = finetune(model, windows[2:], windows[:2], learning_rate=100.0)
    assert tuned.after == tuned.before
    assert all(torch.equal(x, start[name]) for name, x in model.state_dict().items())


def test_fit_and_training_that_were_stopped_go_on_to_the_same_weights(
    folders, tmp_path, monkeypatch
):
    from kerneltrick.hf import _finetune
    from kerneltrick.torch import _transfer

    monkeypatch.setattr(_transfer, "PAUSE", 0.0)  # kept after every step
    for name in ("PAUSE", "PACE"):
        monkeypatch.setattr(_finetune, name, 0.0)  # kept after every step
    windows, resume = cut(folders("Bert"))[:6], tmp_path / "unfinished"
    runs = {_transfer.Transfer: [], _finetune._TuningRun: []}  # the steps that each took

    def start(resume=None, stop=None):
        """Linearize, until a step of one of the two."""
        with monkeypatch.context() as patch:
            for kind, taken in runs.items():

                def step(run, item, kind=kind, taken=taken, take=kind._take_step):
                    if stop == (kind, run.step):
                        raise KeyboardInterrupt
                    taken.append(run.step)
                    take(run, item)

                taken.clear()
                patch.setattr(kind, "_take_step", step)
            return kt.hf.linearize(
                folders("Bert"), windows, SETTING, finetune="lora", resume=resume
            )

    whole = start()
    assert [*map(len, runs.values())] == [5, 5]
    for stop in ((_transfer.Transfer, 2), (_finetune._TuningRun, 3)):
        with pytest.raises(KeyboardInterrupt):
            start(resume, stop)
    again = start(resume)
    assert [*runs.values()] == [[], [3, 4]]
    assert again.tuned == whole.tuned
    for name, x in whole.model.state_dict().items():
        assert torch.equal(x, again.model.state_dict()[name])


def test_bad_input_is_refused_by_name(folders, run, tmp_path):
    (tmp_path / "short.txt").write_text(text(40))
    (tmp_path / "text.txt").write_text(text(700))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    llama, short, long = folders("Llama"), tmp_path / "short.txt", tmp_path / "text.txt"
    new = ("--out", tmp_path / "out")
    out = (*new, "--length", 32)
    for arguments, message in [
        ((short, *out), "makes 1 windows of 32 tokens, but at least 4 are needed"),
        ((tmp_path / "none", *out), "cannot read"),
        ((long, "--out", tmp_path / "full", "--force"), "holds no linearised model"),
        ((long, "--out", tmp_path / "no" / "out"), "no folder"),
        ((long, "--out", llama, "--force"), "holds no linearised model, so it is not replaced"),
        ((long, *new), "400 positions but the text has 512 tokens; use a shorter length (--length"),
        ((long, *out, "--held-out", long), "text.txt overlaps the fitting text; evaluate on"),
        ((long, *out, "--tokens", "many"), "--tokens must be"),
        ((long, *out, "--window", "long"), "--window must be"),
        ((long, *out, "--finetune", "some"), "must be none, maps,"),
        ((long, *out, "--keep", "0,1"), "nothing to linearise"),
        ((long, *out, "--budget", "1M"), "--keep auto"),
        ((long, *out, "--budget", 10, "--keep", "auto"), "more than the budget of 10"),
        ((long, *out, "--map", "elu", "--window", 0, "--sinks", 0), "nothing to learn in elu"),
        ((long, *out, "--map", "softmax", "--window", 0, "--sinks", 0), "window beside softmax"),
    ]:
        code, _, complaint = run("linearize", llama, "--text", *arguments)
        assert code in (1, 2), arguments
        assert message in complaint
    assert sorted(x.name for x in tmp_path.iterdir()) == ["full", "short.txt", "text.txt"]
    assert (tmp_path / "full" / "precious").exists()
    assert "llama" in (llama / "config.json").read_text()


def test_an_evaluation_checks_first_and_keeps_what_it_measured(
    folders, linearized, run, tmp_path, tmp_path_factory, monkeypatch
):
    (tmp_path / "text").write_text(text(700))
    found, linear = linearized["Llama"], tmp_path / "linear"
    found.save(linear, kt.hf.evaluate(found.model, cut(folders("Llama"), seed=1)[:2]))
    judge = ("evaluate", linear, "--text", tmp_path / "text", "--length", 32, "--trials", 0)
    judge += ("--tokens", 64)
    other = save_tiny(tmp_path_factory.mktemp("other"), "Qwen2", "AutoModelForCausalLM")

    def fail(error):
        def failing(*_, **__):
            raise error

        return failing

    no_work = fail(AssertionError("work was started"))
    with monkeypatch.context() as patch:
        patch.setattr(kt.hf._evaluate._LanguageHead, "outcome", no_work)
        for more, message in (
            (("--contexts", "64,1k"), "has 400 positions"),
            (("--shares", "0.5"), "need a ranking"),
            (("--teacher", other), "its model_type is qwen2, and that of the original"),
        ):
            code, _, said = run(*judge, *more)
            assert (code, message in said) == (1, True), said
    judge += ("--contexts", 64, "--json", tmp_path / "o.json")
    with monkeypatch.context() as patch:
        patch.setattr(kt.hf._evaluate, "speeds", fail(RuntimeError("can't allocate memory")))
        code, printed, _ = run(*judge)
        assert (code, "hybrid" in printed) == (0, True)
        assert "The speed could not be measured: can't allocate memory." in " ".join(
            printed.split()
        )
        patch.setattr(kt.hf._evaluate, "speeds", fail(KeyboardInterrupt()))
        code, _, said = run(*judge)
        assert (code, "run the same command again" in said) == (130, True)
    with monkeypatch.context() as patch:
        patch.setattr(kt.hf._evaluate._LanguageHead, "outcome", no_work)
        patch.setattr(kt.hf._speed, "MORE", 5)
        assert run(*judge)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["linear", "o.json", "text"]


def test_what_stops_the_work_is_said_and_leaves_nothing_behind(folders, run, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(text(700))
    command = ("linearize", folders("Llama"), "--text", tmp_path / "text.txt", "--length", 32)
    command = (*command, "--out", tmp_path / "out", "--finetune", "lora")

    def full(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    with monkeypatch.context() as patch:
        patch.setattr(kt.hf._linearize, "fit", full)
        code, _, complaint = run(*command)
        assert (code, "windows of 32 tokens; use shorter" in complaint) == (1, True)
        patch.setitem(sys.modules, "peft", None)
        code, _, complaint = run(*command)
        assert (code, "needs peft: pip install" in complaint) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_a_full_disk_at_the_end_is_one_sentence_and_the_work_is_kept(
    folders, run, tmp_path, monkeypatch
):
    from kerneltrick.torch import _transfer

    monkeypatch.setattr(_transfer, "PAUSE", 0.0)  # kept after every step
    (tmp_path / "text.txt").write_text(text(260))
    command = ("linearize", folders("Bert"), "--text", tmp_path / "text.txt", "--length", 32)
    command = (*command, "--window", 4, "--out", tmp_path / "out")

    def full(path, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(kt.hf._folder, "write", full)
        code, printed, complaint = run(*command)
    said = f"kerneltrick: cannot write {tmp_path / 'out'}: No space left on device"
    assert (code, printed.count("\n"), complaint.count("\n")) == (1, 1, 1)
    assert printed.startswith("Fitting uses")
    assert complaint.startswith(said)
    assert "the same command continues" in complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.unfinished", "text.txt"]
    assert run(*command)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]


def test_without_a_terminal_progress_is_a_line_now_and_then(folders, run, tmp_path, monkeypatch):
    monkeypatch.setattr("kerneltrick._progress.PAUSE", 0.0)  # every step is told
    (tmp_path / "text.txt").write_text(text(260))
    model = folders("Bert")
    command = ("linearize", model, "--text", tmp_path / "text.txt", "--length", 32, "--window", 4)
    assert run(*command, "--out", tmp_path / "a")[::2] == (0, "")  # it took less than half a minute
    monkeypatch.setattr("kerneltrick.cli._output.PAUSE", 0.0)
    said = run(*command, "--out", tmp_path / "b")[2].splitlines()
    left = r"\d+/\d+, about \d+ s left"
    assert any(re.fullmatch(rf"held-out error .* tokens/s: {left}", line) for line in said)
    assert any(re.fullmatch(rf"evaluating: {left}", line) for line in said)
    assert run(*command, "--out", tmp_path / "c", "-q")[1:] == ("", "")


def test_encoder_decoder_models_are_refused_before_the_work(tmp_path):
    from test_hf_attention import REFUSED

    tiny("Bart", "AutoModel", REFUSED["Bart"][0]).float().save_pretrained(tmp_path)
    with pytest.raises(kt.hf.CaptureError, match="is an encoder–decoder model"):
        kt.hf.linearize(tmp_path, [[at] * 8 for at in range(4)], SETTING)
