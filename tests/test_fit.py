"""Fitted maps learn, are reproducible, continue after a stop, and are tested on other tokens."""

import dataclasses
import filecmp
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import kerneltrick as kt  # noqa: E402
from kerneltrick import analysis, maps  # noqa: E402
from kerneltrick.analysis import AttentionData, FittedMaps, _curves, _timing  # noqa: E402
from kerneltrick.analysis import _fitted as fitted_module  # noqa: E402
from kerneltrick.torch import LearnedMap, fit  # noqa: E402
from kerneltrick.torch import _transfer as transfer_module  # noqa: E402

pytestmark = pytest.mark.xdist_group("fit")  # one map is fitted for many tests


@pytest.fixture(autouse=True)
def _short_comparison(monkeypatch):
    monkeypatch.setattr(_curves, "FAVOR_FEATURES", (8,))
    monkeypatch.setattr(_curves, "LARGEST", 100)
    monkeypatch.setattr(_timing, "SECONDS", 0.0)
    monkeypatch.setattr(_timing, "LENGTHS", (32, 64, 128))


def part(data, first, last):
    """Return tokens first … last − 1 as a separate sequence."""
    arrays = {name: getattr(data, name)[:, :, first:last] for name in "qkv"}
    tokens = None if data.tokens is None else data.tokens[first:last]
    return dataclasses.replace(data, **arrays, tokens=tokens)


def same_files(a, b):
    """Tell whether both have the same bytes; pytest's own comparison takes minutes."""
    return filecmp.cmp(a, b, shallow=False)


def random_data(seed=0, heads=4, kv_heads=2, n=24, d=6, layers=(1, 4), **known):
    rng = np.random.default_rng(seed)
    shape = (len(layers), kv_heads, n, d)
    q = 2 * rng.standard_normal((len(layers), heads, n, d))
    k, v = rng.standard_normal((2, *shape))
    return AttentionData(q, k, v, tuple(layers), source=f"random {seed}", **known)


@pytest.fixture(scope="module")
def heads():
    return analysis.sample().sanitized()[0].select([2, 5], [0, 7])


@pytest.fixture(scope="module")
def found(heads):
    """Hedgehog with a window, fitted to the first 96 tokens of four heads."""
    return fit(part(heads, 0, 96), "hedgehog@window=4,sinks=1", steps=48)


@pytest.fixture(scope="module")
def small():
    """Two layers of four query heads that share two key heads, each with its own key weights."""
    data = [random_data(seed) for seed in range(3)]
    return fit(data, "hedgehog@window=4", key_weight=True, steps=6)


def test_a_fitted_map_is_closer_than_an_untrained_one_on_tokens_it_never_saw(heads, found):
    judged = part(heads, 96, 128)
    texts = [found.maps, "hedgehog@window=4,sinks=1", "softmax@window=4,sinks=1"]
    errors = [x.summary.output_error for x in analysis.compare(judged, texts, measure=False).maps]
    assert errors[0] < 0.8 * min(errors[1:])


def test_errors_before_and_after_are_those_of_held_out_tokens(heads, found):
    held = part(heads, 72, 96)
    for errors, setting in (
        (found.before, dict.fromkeys(heads.layers, "hedgehog@window=4,sinks=1")),
        (found.after, found.maps.dials),
    ):
        for row, layer in enumerate(heads.layers):
            q, k, v = (getattr(held, name)[row] for name in "qkv")
            exact = kt.softmax_attention(q, k, v)
            lost = kt.linear_attention(q, k, v, setting[layer]) - exact
            expected = np.linalg.norm(lost, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
            np.testing.assert_allclose(errors[layer], expected, rtol=1e-4)
    assert found.history[-1][0] == found.steps == 48


def test_the_best_weights_of_each_head_are_kept_though_learning_goes_wrong(heads):
    """And the fit ends early when held-out tokens gain nothing."""
    wild = fit(part(heads, 0, 64), steps=48, learning_rate=1e4)
    for layer in heads.layers:
        for before, after in zip(wild.before[layer], wild.after[layer], strict=True):
            assert after <= before
    assert max(error for _, error in wild.history) > np.mean([*wild.before.values()])
    assert wild.stopped == "no better"
    assert wild.steps < 48


def test_a_head_keeps_its_best_weights_whatever_the_others_do(heads, monkeypatch):
    told = itertools.chain([[0.5, 0.5, 0.5, 0.5]], itertools.repeat([0.1, 0.9, 0.2, 0.6]))
    monkeypatch.setattr(transfer_module.Transfer, "_errors", lambda _: torch.tensor(next(told)))
    found = fit(part(heads, 0, 64), steps=1)
    assert [*found.after.values()] == [pytest.approx((0.1, 0.5)), pytest.approx((0.2, 0.5))]
    untrained = fit(part(heads, 0, 64), steps=1, learning_rate=1e-30).maps
    for layer in heads.layers:
        ours, first = (x.dials[layer].feature_map.weight for x in (found.maps, untrained))
        assert [np.array_equal(a, b) for a, b in zip(ours, first, strict=True)] == [False, True]


def test_every_loss_brings_the_map_closer(heads):
    for loss in ("outputs", "weights", "both"):
        found = fit(part(heads, 0, 64).select([2]), loss=loss, steps=16)
        assert np.mean([*found.after.values()]) < 0.97 * np.mean([*found.before.values()]), loss


def test_heads_learn_alone(heads):
    data = part(heads, 0, 64)
    both = fit(data, "hedgehog@window=2", steps=4)
    one = fit(data.select([5], [7]), "hedgehog@window=2", steps=4)
    ours, alone = both.maps.of_heads([(5, 7)]), one.maps.of_heads([(5, 7)])
    np.testing.assert_allclose(ours.feature_map.weight, alone.feature_map.weight, atol=1e-4)
    np.testing.assert_allclose(ours.far.gain, alone.far.gain, atol=1e-4)


def test_a_seed_gives_the_same_file_and_another_one_another(tmp_path, heads):
    data = [part(heads, 0, 40), part(heads, 40, 80), part(heads, 80, 120)]
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        fit(data, steps=5, seed=seed).maps.save(tmp_path / name)
    assert same_files(tmp_path / "a", tmp_path / "b")
    assert not same_files(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, heads, kind, monkeypatch):
    monkeypatch.setattr(transfer_module, "PAUSE", 0.0)
    data = [part(heads, 0, 40), part(heads, 40, 80), part(heads, 80, 120)]

    def run(**options):
        given = data if kind == "list" else itertools.cycle(data[:2])
        return fit(given, "hedgehog@window=3", held_out=data[2:] if kind == "stream" else None,
                   steps=8, **options)  # fmt: skip

    whole = run()
    resume = tmp_path / "unfinished"
    monkeypatch.setattr(transfer_module.Transfer, "_look", _dies_at(4))
    with pytest.raises(KeyboardInterrupt):
        run(resume=resume)
    monkeypatch.undo()
    assert resume.exists()
    taken = []
    step = transfer_module.Transfer._take_step
    monkeypatch.setattr(
        transfer_module.Transfer, "_take_step", lambda self, x: (taken.append(x), step(self, x))
    )
    again = run(resume=resume)
    assert 0 < len(taken) < 8
    again.maps.save(tmp_path / "again")
    whole.maps.save(tmp_path / "whole")
    assert same_files(tmp_path / "again", tmp_path / "whole")
    assert dataclasses.replace(again, maps=None) == dataclasses.replace(whole, maps=None)


def _dies_at(step):
    look = transfer_module.Transfer._look

    def dies(self):
        look(self)
        if self.step >= step:
            raise KeyboardInterrupt

    return dies


def test_the_snapshot_of_another_run_is_not_taken(tmp_path, heads, monkeypatch):
    monkeypatch.setattr(transfer_module, "PAUSE", 0.0)
    resume, data = tmp_path / "unfinished", part(heads, 0, 40)
    fit(data, steps=4, resume=resume)
    plain = fit(data, steps=4, seed=1)
    assert fit(data, steps=4, seed=1, resume=resume).history == plain.history
    resume.write_bytes(b"torn")
    assert fit(data, steps=4, seed=1, resume=resume).history == plain.history


def test_a_stream_is_used_once_and_let_go(heads):
    pieces = [part(heads, i, i + 20) for i in range(0, 120, 20)]
    found = fit(iter(pieces), steps=50)
    assert (found.steps, found.stopped) == (5, "data")
    with pytest.raises(ValueError, match=r"overlaps the text that .* was fitted to"):
        found.maps.check_unseen(pieces[4])


def test_tokens_that_were_fitted_to_cannot_judge(heads, found):
    for where in ((0, 40), (80, 96), (30, 128)):  # fitted to, held out, some of both
        judged = part(heads, *where)
        narrow = {name: getattr(judged, name).astype(np.float16) for name in "qkv"}
        for data in (judged, judged.select([5], [7]), dataclasses.replace(judged, **narrow)):
            with pytest.raises(ValueError, match=r"overlaps the text that .*judge it on other"):
                analysis.compare(data, [found.maps], measure=False)


def test_held_out_tokens_must_be_others(heads):
    with pytest.raises(ValueError, match="also held out"):
        fit(part(heads, 0, 60), held_out=part(heads, 40, 80), steps=1)
    with pytest.raises(ValueError, match="also held out"):
        fit([part(heads, 0, 40)] * 2, steps=1)


def test_a_token_is_known_by_the_stretch_before_it(heads):
    k = heads.k[0, 0]
    some, others = fitted_module.hashes(k[:20]), fitted_module.hashes(k[12:40])
    assert len(some) == 13
    assert np.isin(some, others).sum() == 1  # tokens 12 … 19
    assert not np.isin(some, fitted_module.hashes(k[13:40])).any()
    assert len(fitted_module.hashes(k[:3])) == 1


def test_each_head_gets_its_own_weights_and_those_of_its_key_head(small):
    data = random_data(9)
    for row, layer in enumerate(data.layers):
        dial = small.maps.dials[layer]
        assert dial.feature_map.weight.shape == (4, 6, 6)
        assert dial.feature_map.key_weight.shape == (2, 6, 6)
        q, k, v = (getattr(data, name)[row] for name in "qkv")
        whole = kt.linear_attention(q, k, v, dial, causal=True)
        for head in range(4):
            one = kt.linear_attention(
                q[head : head + 1], k[head // 2][None], v[head // 2][None],
                small.maps.of_heads([(layer, head)]), causal=True,
            )  # fmt: skip
            np.testing.assert_allclose(one[0], whole[head], atol=1e-12)


def test_compare_judges_every_head_by_its_own_weights(small):
    data = random_data(9)
    result = analysis.compare(data, [small.maps], measure=False)
    for row, layer in enumerate(data.layers):
        q, k, v = (getattr(data, name)[row] for name in "qkv")
        exact = kt.softmax_attention(q, k, v)
        lost = kt.linear_attention(q, k, v, small.maps.dials[layer]) - exact
        expected = np.linalg.norm(lost, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
        ours = [head.output_error for head in result.maps[0].heads[row]]
        np.testing.assert_allclose(ours, expected, rtol=1e-9)
    assert result.maps[0].map == "fitted.safetensors@window=4"


def test_windows_are_turned_beside_fitted_maps(small):
    data = random_data(9).select([4], [1, 2])
    alone = small.maps.turned(window=0)
    result = analysis.compare(data, [alone], measure=False)
    curve = next(c for c in result.windows if c.map == "fitted.safetensors")
    by_window = {point.window: point for point in curve.points}
    expected = analysis.compare(data, [alone.turned(window=8, sinks=1)], measure=False).maps[0]
    assert by_window[8].output_error == pytest.approx(expected.summary.output_error, rel=1e-9)
    assert by_window[0].output_error == pytest.approx(result.maps[0].summary.output_error, rel=1e-9)
    assert by_window[8].map == "fitted.safetensors@window=8,sinks=1"


def test_gains_stay_with_another_window_and_go_without_one(small):
    maps_ = small.maps
    gain = maps_.dials[1].far.gain
    assert maps_.turned(window=9, sinks=2).dials[1].far.gain is gain
    assert maps_.turned(window=0).dials[1].far is None
    assert maps_.turned(window=9, far=kt.Far(-3.0)).dials[4].far.gain == -3.0


def test_a_file_gives_back_what_was_fitted(tmp_path):
    data = random_data(3, causal=True, scale=0.7)
    for text, options in (
        ("hedgehog:activation=exp@window=4,sinks=2", {}),
        ("hedgehog:separate=true@window=4,relative", {"key_weight": True}),
        ("t2r:features=5@window=3", {}),
        ("hedgehog", {"features": 6}),
        ("elu@window=4,gain=-2", {}),
    ):
        found = fit(data, text, steps=2, **options)
        found.maps.save(tmp_path / "m.safetensors")
        again = FittedMaps.load(tmp_path / "m.safetensors")
        assert again.name == str(tmp_path / "m.safetensors")
        about = (again.heads, again.scale, again.causal, again.source)
        assert about == ((0, 1, 2, 3), 0.7, True, "random 3")
        assert [*map(str, again.dials.values())] == [*map(str, found.maps.dials.values())]
        q, k, v = (x[1] for x in (data.q, data.k, data.v))
        ours, theirs = (
            kt.linear_attention(q, k, v, m.dials[4], causal=True, on_zero="zero")
            for m in (again, found.maps)
        )
        assert np.array_equal(ours, theirs), text
        with pytest.raises(ValueError, match=r"overlaps the text that .* was fitted to"):
            again.check_unseen(data)


def of_tokens(rows, seed):
    """Sequences whose keys are those of a first layer: one for each of three different tokens."""
    key = np.random.default_rng(0).standard_normal((3, 6))
    rng = np.random.default_rng(seed)
    for tokens in rng.integers(3, size=(rows, 64)):
        q, v = rng.standard_normal((2, 1, 2, 64, 6))
        yield AttentionData(q, np.tile(key[tokens], (1, 2, 1, 1)), v, (0,))


def test_equal_keys_by_chance_are_not_the_same_text(tmp_path):
    sequences, others = list(of_tokens(24, 0)), list(of_tokens(3, 1))
    made = fit(sequences, "elu@window=2", steps=2).maps
    made.save(tmp_path / "maps.safetensors")
    for each in (made, FittedMaps.load(tmp_path / "maps.safetensors")):
        assert 8 < each.overlap < 40
        for data in others:
            each.check_unseen(data)
        with pytest.raises(ValueError, match="overlaps the text that"):
            each.check_unseen(part(sequences[3], 5, 60))
    copied = [*sequences[:10], part(sequences[23], 5, 60)]
    with pytest.raises(ValueError, match=r"also held out; .* in a row or more .*--overlap"):
        fit(copied, "elu@window=2", held_out=sequences[16:], steps=2)
    fit(copied, "elu@window=2", held_out=sequences[16:], steps=2, overlap=60)


def test_the_map_of_a_layer_is_a_map_as_others_are(tmp_path, heads, found):
    """It has a file, and runs in the compiled core."""
    dial = found.maps.dials[5]
    maps.save(dial.feature_map, tmp_path / "map.safetensors")
    assert str(maps.load(tmp_path / "map.safetensors")) == str(dial.feature_map)
    if kt.engines.core() is not None:
        q, k, v = (getattr(heads, name)[1] for name in "qkv")
        native, dense = (
            kt.linear_attention(q, k, v, dial, engine=engine) for engine in ("native", "dense")
        )
        np.testing.assert_allclose(native, dense, atol=1e-5)


def test_scale_and_causality_are_those_of_the_data_and_compare_says_if_they_differ():
    data, other = (random_data(i, causal=True, scale=0.9).select([1], [0, 3]) for i in (1, 2))
    found = fit(data, "hedgehog@window=3", steps=3)
    assert (found.maps.causal, found.maps.scale) == (True, 0.9)
    row = analysis.compare(other, [found.maps], measure=False)
    assert not any("was fitted to" in note for note in row.data.notes)
    q, k, v = other.q[0], other.k[0], other.v[0]
    exact = kt.softmax_attention(q, k, v, causal=True, scale=0.9)
    ours = kt.linear_attention(q, k, v, found.maps.dials[1], causal=True, scale=0.9)
    error = np.linalg.norm(ours[0] - exact[0]) / np.linalg.norm(exact[0])
    assert row.maps[0].heads[0][0].output_error == pytest.approx(error, rel=1e-6)
    notes = found.maps.notes(causal=False, scale=0.5, d=6)
    assert notes == [
        "fitted.safetensors was fitted to causal attention",
        "fitted.safetensors was fitted to softmax with scale 0.9",
    ]


def test_gradients_reach_every_parameter_of_a_learned_map():
    data = random_data()
    q, k, v = (torch.tensor(x[0], dtype=torch.float32) for x in (data.q, data.k, data.v))
    for text, key_weight in (
        ("hedgehog@window=3,sinks=1", False),
        ("hedgehog@window=3,sinks=1", True),
        ("t2r:features=8@window=3", False),
        ("t2r", True),
    ):
        learned = LearnedMap(text, num_heads=4, num_kv_heads=2, head_dim=6, key_weight=key_weight)
        learned(q, k, v, causal=True).square().sum().backward()
        for name, x in learned.named_parameters():
            reached = x.grad.abs().flatten(1).sum(1) if x.ndim > 1 else x.grad.abs()
            assert bool(reached.gt(0).all()), (text, name)
        ours = learned(q, k, v).detach().numpy()
        theirs = kt.linear_attention(q.numpy(), k.numpy(), v.numpy(), learned.export())
        np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_an_untrained_learned_map_is_the_map_it_starts_from():
    data = random_data()
    q, k, v = (torch.tensor(x[0]).float() for x in (data.q, data.k, data.v))
    for text in ("hedgehog@window=3", "hedgehog:activation=exp", "elu@window=3,gain=-1,relative"):
        dial = kt.Dial.get(text)
        own = not dial.window
        learned = LearnedMap(text, num_heads=4, num_kv_heads=2, head_dim=6, key_weight=own)
        torch.testing.assert_close(learned(q, k, v), kt.linear_attention(q, k, v, text))


def test_learning_goes_on_from_weights_that_are_given(small):
    dial = small.maps.dials[1]
    learned = LearnedMap(dial, num_heads=4, num_kv_heads=2, head_dim=6)
    assert str(learned.export()) == str(dial)
    shared = kt.Dial(maps.Hedgehog(np.eye(6)), window=2)
    started = LearnedMap(shared, num_heads=4, head_dim=6)
    assert tuple(started.weight.shape) == (4, 6, 6)


def test_what_cannot_be_learned_is_refused():
    for setting, options, message in (
        ("elu", {}, "nothing to learn in elu"),
        ("softmax@window=4", {}, "nothing to learn in softmax@window=4"),
        ("hedgehog", {"features": 5}, "must be even, not 5"),
        ("elu@window=2", {"features": 5}, "only hedgehog and t2r take features"),
        ("hedgehog", {"num_kv_heads": 3}, "multiple of num_kv_heads"),
        ("hedgehog", {"head_dim": 0}, "whole number ≥ 1"),
        (maps.Hedgehog(np.eye(5)), {}, r"needs weights \(6, p\)"),
        (maps.Hedgehog(np.zeros((3, 6, 6))), {}, "such a matrix for each of 4 heads"),
        (maps.Hedgehog(np.eye(6)), {"features": 8}, "give 12 features, not 8"),
        (maps.T2R(weight=np.ones((6, 3))), {"features": 8}, "give 3 features, not 8"),
        (kt.Dial(maps.Hedgehog(), 3, far=np.zeros(3)), {}, "one for each of 4 heads"),
    ):
        with pytest.raises(ValueError, match=message):
            LearnedMap(setting, **{"num_heads": 4, "head_dim": 6, **options})


def test_bad_input_is_refused_by_fit():
    data, spoiled, short = random_data(), random_data(), np.zeros((3, 2, 20, 4))
    spoiled.k[0, 1, 3, 2] = np.nan
    for given, options, error, message in (
        (data, {"steps": 0}, ValueError, "steps to be a whole number ≥ 1"),
        (data, {"learning_rate": 0.0}, ValueError, "learning_rate > 0"),
        (data, {"loss": "l2"}, ValueError, "outputs, weights, both"),
        (data, {"seed": -1}, ValueError, "seed to be a whole number"),
        (data, {"feature_map": "poly"}, ValueError, "nothing to learn in poly"),
        (data, {"feature_map": "hedgehog@window=2", "window": 3}, ValueError, "twice"),
        (data, {"held_out": []}, ValueError, "held-out sequence"),
        ([], {}, ValueError, "the list is empty"),
        (iter([]), {}, ValueError, "the stream is empty"),
        (3, {}, TypeError, "not int"),
        (["qkv"], {}, TypeError, "not str"),
        (random_data(n=12), {}, ValueError, "needs 16 tokens"),
        (spoiled, {}, ValueError, r"layer 1 head 2 holds NaN or infinity"),
        ([data, random_data(1, d=4)], {}, ValueError, "same heads"),
        ([data, random_data(1, layers=(0, 1))], {}, ValueError, "layers"),
        (iter([data, random_data(1, d=4)]), {}, ValueError, "same heads"),
        (tuple(short[:, :, :n] for n in (9, 20, 20)), {}, ValueError, "as many queries as keys"),
    ):
        with pytest.raises(error, match=message):
            fit(given, **{"steps": 1, **options})


def test_arrays_of_any_library_are_data():
    data = random_data(layers=(0,), d=4, scale=0.5)
    found = fit(data, steps=2)
    assert found.maps.scale is None  # the default is not written down
    tensors = tuple(torch.tensor(x[0]) for x in (data.q, data.k, data.v))
    assert fit(tensors, steps=2).history == found.history


def test_damaged_files_are_refused(tmp_path, found):
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    found.maps.save(good)
    content = good.read_bytes()
    for damage, message in (
        (content[:-9], "not a readable file"),
        (content.replace(b"FittedMaps/1", b"FittedMaps/2"), "expected format"),
        (content.replace(b'"layers.5"', b'"layers.6"'), "fitted maps"),
        (content.replace(b"hedgehog", b"hedgehig"), "unknown feature map"),
        (content.replace(b"layers.2.weight", b"layers.2.waight"), "no weights"),
        (content.replace(b"layers.2.weight", b"layerz.2.weight"), "it contains an unknown array"),
    ):
        bad.write_bytes(damage)
        with pytest.raises(ValueError, match=message):
            FittedMaps.load(bad)
    with pytest.raises(FileNotFoundError, match="no file of fitted maps"):
        FittedMaps.load(tmp_path / "none.safetensors")


def test_heads_to_which_nothing_was_fitted_are_named(heads, found):
    with pytest.raises(ValueError, match=r"layers 2, 5 and heads 0, 7, not to layer 0 head 0"):
        analysis.compare(
            part(analysis.sample().sanitized()[0], 96, 128), [found.maps], measure=False
        )
    wide = random_data(heads=8, layers=(2, 5), d=6)
    with pytest.raises(ValueError, match="d = 32, but random 0 has d = 6"):
        analysis.compare(wide.select(heads=[0, 7]), [found.maps], measure=False)


def test_layers_of_one_file_are_alike():
    dials = {0: kt.Dial(maps.Hedgehog(np.eye(4))), 1: kt.Dial(maps.Hedgehog(np.eye(4)), 3)}
    with pytest.raises(ValueError, match="the same map, window and sinks"):
        FittedMaps(dials, (0,))
    with pytest.raises(ValueError, match="which 4 query heads cannot share"):
        FittedMaps({0: kt.Dial(maps.Hedgehog(np.zeros((3, 4, 4))))}, (0, 1, 2, 3))


def test_weights_that_heads_share_are_those_of_each_head():
    rng = np.random.default_rng(0)
    shared = maps.T2R(weight=rng.standard_normal((4, 2)), bias=rng.standard_normal(2))
    dial = kt.Dial(shared, 3, far=kt.Far(np.array([-1.0, 1.0])))
    q, k, v = rng.standard_normal((3, 2, 12, 4))
    found = FittedMaps({7: dial}, (0, 1)).of_heads([(7, 1), (7, 0)])
    ours = kt.linear_attention(q[::-1], k[::-1], v[::-1], found, on_zero="zero")
    expected = kt.linear_attention(q, k, v, dial, on_zero="zero")
    np.testing.assert_allclose(ours[::-1], expected, atol=1e-12)


def test_the_command_fits_and_compare_judges(run, tmp_path, heads):
    analysis.save_attention(part(heads, 0, 96), tmp_path / "qkv.safetensors")
    analysis.save_attention(part(heads, 96, 128), tmp_path / "other.safetensors")
    out = tmp_path / "maps.safetensors"
    code, text, err = run(
        "fit", str(tmp_path / "qkv.safetensors"), "--map", "hedgehog", "--window", "4",
        "--steps", "12", "--out", str(out),
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "Stopped after 12 steps: the maximum." in " ".join(text.split())
    assert str(FittedMaps.load(out)) == f"{out}@window=4"
    assert sorted(x.name for x in tmp_path.iterdir()) == [
        "maps.safetensors", "other.safetensors", "qkv.safetensors",
    ]  # fmt: skip
    report = tmp_path / "report.html"
    code, text, err = run(
        "compare", str(tmp_path / "other.safetensors"), "--html", str(report),
        "--map", f"{out},{out}@window=2,sinks=1", "--heads", "7", "--layers", "2",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "maps.safetensors" in text
    assert "maps.safetensors@window=2,sinks=1" in report.read_text(encoding="utf-8")
    code, text, err = run("compare", str(tmp_path / "qkv.safetensors"), "--map", str(out))
    assert (code, text) == (2, "")
    assert "overlaps the text that" in err


def test_the_command_refuses_what_it_cannot_do(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    analysis.save_attention(random_data(), "q.safetensors")
    for arguments, message in (
        (("--out", "m.npz"), "must name a .safetensors file"),
        (("--loss", "mse"), "--loss must be outputs, weights or both"),
        (("--map", "hedgehig"), "unknown feature map"),
        (("--map", "hedgehog@window=3", "--window", "4"), "window twice"),
        (("--steps", "0"), "--steps"),
        (("--layers", "9"), "there is no layer 9"),
        (("q.safetensors",), "given twice"),
    ):
        code, text, err = run("fit", "q.safetensors", "--out", "m.safetensors", *arguments)
        assert (code, text) == (2, "")
        assert message in err
        assert [x.name for x in tmp_path.iterdir()] == ["q.safetensors"]


@pytest.mark.slow
def test_after_kill_9_the_same_command_writes_the_same_file(run, tmp_path, monkeypatch):
    """The child is killed in the middle of a step, after it has kept several."""
    monkeypatch.chdir(tmp_path)
    analysis.save_attention(random_data(), "qkv.safetensors")
    command = ["fit", "qkv.safetensors", "--window", "4", "--steps", "12", "--out"]
    script = f"""
import time
import torch
from kerneltrick.cli import main
from kerneltrick.torch import _transfer
torch.set_num_threads({torch.get_num_threads()})
step, taken = _transfer.Transfer._take_step, []
def take(*arguments):
    taken.append(step(*arguments))
    if len(taken) == 7:
        print("now", flush=True)
        time.sleep(600)
_transfer.Transfer._take_step, _transfer.PAUSE = take, 0.0
main({[*command, "maps.safetensors"]!r})
"""
    start = [sys.executable, "-c", script]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "now\n"
        child.kill()
    kept = tmp_path / ".maps.safetensors.unfinished"
    ours, whole = (tmp_path / f"{x}.safetensors" for x in ("maps", "whole"))
    assert kept.exists()
    assert not ours.exists()
    taken, step = [], transfer_module.Transfer._take_step
    monkeypatch.setattr(
        transfer_module.Transfer, "_take_step", lambda self, x: (taken.append(x), step(self, x))
    )
    assert run(*command, ours.name)[0] == 0
    assert 0 < len(taken) < 12
    assert run(*command, whole.name)[0] == 0
    assert same_files(ours, whole)
    assert not kept.exists()


def test_progress_tells_the_error(heads):
    told = []
    fit(part(heads, 0, 40), steps=3, progress=lambda *what: told.append(what))
    what, done, total = told[-1]
    assert (done, total) == (3, 3)
    before, after = map(float, what.removeprefix("held-out error ").split(" → "))
    assert math.isfinite(before)
    assert after <= before
