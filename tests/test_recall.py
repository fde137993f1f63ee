"""Recall has the task of Zoology, continues after a kill, and counts the bytes of states."""

import dataclasses
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kerneltrick import recall, report  # noqa: E402
from kerneltrick._executor import Processes  # noqa: E402
from kerneltrick.recall import _train  # noqa: E402
from kerneltrick.recall._model import RecallModel  # noqa: E402
from kerneltrick.recall._result import Training, pareto, points_of  # noqa: E402

SMALL = recall.RecallSettings(
    mixers=("softmax", "elu"), widths=(8, 4), task=recall.Task(16, 12, 2), steps=2, seeds=2,
    batch=4, judged=8,
)  # fmt: skip


def untimed(result):
    return [dataclasses.replace(training, seconds=0.0) for training in result.trainings]


def test_every_query_stands_at_an_even_offset_and_asks_for_the_value_of_its_key():
    task = recall.Task(vocabulary=64, length=40, pairs=7)
    tokens, places, answers = task.examples(200, seed=3)
    keys, values = tokens[:, 0:14:2], tokens[:, 1:14:2]
    assert keys.min() >= 1
    assert keys.max() < 32 <= values.min()
    assert values.max() < 64
    for row in (keys, values, places):
        assert all(len(set(line)) == 7 for line in row.tolist())
    assert places.min() >= 14
    assert places.max() < 40
    assert not (places % 2).any()
    assert (np.take_along_axis(tokens, places, axis=1) == keys).all()
    assert (answers == values).all()
    again = task.examples(200, seed=3)
    assert all((a == b).all() for a, b in zip(again, (tokens, places, answers), strict=True))
    others = np.ones(tokens.shape, bool)
    others[:, :14] = False
    np.put_along_axis(others, places, False, axis=1)
    assert abs(tokens[others].mean() - 31.5) < 1  # all tokens, keys and values alike


def test_gaps_fall_as_the_power_says():
    task = recall.Task(vocabulary=64, length=20, pairs=1, power=0.5)
    _, places, _ = task.examples(20_000, seed=0)
    expected = np.arange(1, 10) ** -0.5
    found = np.bincount((places[:, 0] - 2) // 2, minlength=9) / 20_000
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.012)


def test_tasks_that_do_not_fit_are_refused():
    for sizes, message in (
        ({"length": 13}, "even length"),
        ({"pairs": 4}, "a length of 16, not 12"),
        ({"vocabulary": 4, "pairs": 2}, "only 1 keys, but 2 pairs need 2 different ones"),
        ({"power": 0.0}, "power"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(SMALL.task, **sizes)


def test_the_numbers_of_a_state_are_counted_in_it():
    for mixer, numbers in (
        ("softmax", 2 * 8 * 12),
        ("elu@window=4", 8 * 9 + 2 * 8 * 3),
        ("based:feature_dim=2", 6 * 9),
        ("deltanet:short_convolution=0", 8 * 8),
        ("ssd:state_dim=4", 4 * 17 + 3 * (16 + 8)),
        ("mamba:state_dim=4", 4 * 16 + 3 * 16),
    ):
        model = RecallModel(16, mixer, width=8, heads=1)
        found, held = model.numbers(torch.zeros(1, 12, dtype=torch.int64))
        assert found == numbers + 2 * 8, mixer  # and two tokens of the short convolution
        assert held >= 4 * found


def test_any_executor_gives_the_same_and_small_models_come_first():
    seen = []
    alone = recall.recall(SMALL, progress=lambda *told: seen.append(told))
    with ThreadPoolExecutor(1) as executor:
        shared = recall.recall(SMALL, executor=executor)
    assert untimed(alone) == untimed(shared)
    assert [told[1:] for told in seen] == [(i, 8) for i in range(9)]
    assert seen[0][0] == "softmax, width 4, seed 0"
    assert {(p.mixer, p.width, p.seeds) for p in alone.points} == {
        (mixer, width, 2) for mixer in SMALL.mixers for width in SMALL.widths
    }
    page = report.render_recall(json.loads(alone.to_json()))
    assert "kerneltrick.recall/1" in page
    with pytest.raises(ValueError, match="the recall has format None"):
        report.render_recall({})


def test_trainings_are_the_same_to_the_bit_for_any_workers_though_one_is_killed(tmp_path):
    kept, whole = tmp_path / "kept", untimed(recall.recall(SMALL))
    with Processes(2) as two:

        def lose(what, done, count):
            if done == 2 and len(two._pids) < 3:
                os.kill(next(iter(two._pids)), signal.SIGKILL)

        assert untimed(recall.recall(SMALL, executor=two, resume=kept, progress=lose)) == whole
        assert len(two._pids) == 3  # another one came in its place
    assert kept.read_text().count("\n") == 1 + 8  # each training once


def test_a_run_that_was_stopped_trains_only_what_is_left(tmp_path, monkeypatch):
    whole, trained, stop = recall.recall(SMALL), [], 3
    own = _train.train_piece

    def counted(settings, *arguments, folder):
        if len(trained) == stop:
            raise KeyboardInterrupt
        trained.append(arguments)
        return own(settings, *arguments, folder=folder)

    monkeypatch.setattr(_train, "train_piece", counted)
    with pytest.raises(KeyboardInterrupt):
        recall.recall(SMALL, resume=tmp_path / "kept")
    with pytest.raises(ValueError, match="with other settings"):
        recall.recall(dataclasses.replace(SMALL, steps=3), resume=tmp_path / "kept")
    before, stop = (tmp_path / "kept").read_text(), 100
    found = recall.recall(SMALL, resume=tmp_path / "kept")
    assert (tmp_path / "kept").read_text().startswith(before)
    assert len(trained) == len(set(trained)) == 8
    assert untimed(found) == untimed(whole)
    assert found.points == whole.points


def test_a_long_training_goes_on_from_the_step_it_had_kept(tmp_path, monkeypatch):
    settings, folder = dataclasses.replace(SMALL, steps=12), tmp_path / "trainings"
    whole = _train.train_piece(settings, "elu", 4, 1e-2, 0)
    own, steps, stop = _train._batch, [], 7

    def counted(settings, seed, step):
        if step == stop:
            raise KeyboardInterrupt
        steps.append(step)
        return own(settings, seed, step)

    monkeypatch.setattr(_train, "_batch", counted)
    monkeypatch.setattr(_train, "PATIENCE", 0.0)
    with pytest.raises(KeyboardInterrupt):
        _train.train_piece(settings, "elu", 4, 1e-2, 0, folder=folder)
    assert len(list(folder.iterdir())) == 1
    stop = 100
    _train.train_piece(settings, "elu", 4, 1e-2, 1, folder=folder)  # another training
    assert steps == [*range(7), *range(12)]
    found = _train.train_piece(settings, "elu", 4, 1e-2, 0, folder=folder)
    assert steps[19:] == list(range(7, 12))
    assert found | {"seconds": 0} == whole | {"seconds": 0}
    assert not list(folder.iterdir())


def test_every_mixer_of_the_paper_preset_trains():
    mixers = recall.preset("paper").mixers
    settings = dataclasses.replace(SMALL, mixers=mixers, widths=(8,), seeds=1, steps=1)
    found = recall.recall(settings)
    assert [t.steps for t in found.trainings] == [1] * 24


@pytest.mark.slow
def test_after_kill_9_a_sweep_goes_on_and_comes_to_the_same(run, tmp_path, monkeypatch):
    """The child is killed in the middle of its third training, some steps after a snapshot."""
    path, kept = tmp_path / "killed.json", tmp_path / ".killed.json.unfinished"
    command = [
        "recall",
        "--mixers",
        "elu,softmax",
        "--widths",
        "4",
        "--steps",
        "9",
        "--seeds",
        "2",
        "--rates",
        "0.01",
    ]
    command += ["--pairs", "2", "--length", "12", "--vocabulary", "16", "--json"]
    script = f"""
from kerneltrick.cli import main
from kerneltrick.recall import _train
own, begun = _train._batch, []
def batch(settings, seed, step):
    begun.append(step)
    if len(begun) == 2 * 9 + 6:
        print("now", flush=True)
        time.sleep(600)
    return own(settings, seed, step)
_train._batch, _train.PATIENCE = batch, -1.0
main({[*command, str(path)]!r})
"""
    start = [sys.executable, "-c", script]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "now\n"
        child.kill()
    assert kept.read_text().count("\n") == 1 + 2
    steps, own = [], _train._batch
    monkeypatch.setattr(_train, "_batch", lambda *x: (steps.append(x[-1]), own(*x))[1])
    assert run(*command, path)[0] == 0
    assert steps == [*range(5, 9), *range(9)]
    assert list(tmp_path.iterdir()) == [path]
    assert run(*command, tmp_path / "whole.json")[0] == 0
    killed, whole = (json.loads((tmp_path / f"{x}.json").read_text()) for x in ("killed", "whole"))
    assert killed["points"] == whole["points"]
    assert len(whole["trainings"]) == 4


@pytest.mark.slow
def test_attention_learns_the_task_and_a_window_that_does_not_reach_cannot():
    settings = dataclasses.replace(recall.preset("minutes"), steps=400)
    near, far = (
        _train.train_piece(settings, mixer, 32, 1e-2, 0)["accuracy"]
        for mixer in ("softmax@window=8", "softmax")
    )
    assert far > 0.9
    assert near < far


def test_texts_are_of_easier_tasks_in_turn_and_always_new():
    settings = dataclasses.replace(SMALL, task=recall.Task(40, 64, 8))
    batches = [_train._batch(settings, 0, step) for step in range(6)]
    assert [batch.places.shape[1] for batch in batches] == [2, 4, 8, 2, 4, 8]
    assert [batch.tokens.shape[1] for batch in batches[:3]] == [16, 32, 64]
    assert batches[0].tokens.tolist() != batches[3].tokens.tolist()


def test_texts_of_an_epoch_come_again_in_another_order():
    tasks = (recall.Task(16, 12, 2), 9), (recall.Task(16, 8, 1), 4)
    settings = dataclasses.replace(SMALL, trained_on=tasks)
    epochs = [
        [_train._batch(settings, 0, step).tokens.tolist() for step in range(first, first + 4)]
        for first in (0, 4, 8)
    ]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert not epochs[0] == epochs[1] == epochs[2]
    assert sorted(len(batch[0]) for batch in epochs[0]) == [8, 12, 12, 12]
    asked = dataclasses.replace(settings, asked=tuple(dict(tasks)))
    assert 0 <= _train.train_piece(asked, "elu", 4, 1e-2, 0)["accuracy"] <= 1
    with pytest.raises(ValueError, match="the same vocabulary"):
        dataclasses.replace(SMALL, asked=(recall.Task(18, 12, 2),))


def test_a_loss_that_is_no_number_ends_a_training(monkeypatch):
    monkeypatch.setattr(_train, "_loss", lambda model, batch: torch.tensor(float("nan")))
    found = _train.train_piece(SMALL, "elu", 4, 1e-2, 0)
    assert found["steps"] == 0
    assert 0 <= found["accuracy"] <= 1


def test_points_are_the_means_of_the_best_rate_and_the_front_is_what_nothing_beats():
    def training(mixer, rate, seed, accuracy, numbers):
        return Training(mixer, 8, rate, seed, accuracy, numbers, 0, 0, 1, 0.0, [])

    points = points_of(
        [
            training("a", 1e-2, 0, 0.9, 10), training("a", 1e-2, 1, 0.1, 10),
            training("a", 1e-3, 0, 0.7, 10), training("a", 1e-3, 1, 0.5, 10),
            training("b", 1e-2, 0, 0.55, 20), training("c", 1e-2, 0, 0.8, 30),
        ]
    )  # fmt: skip
    assert [(p.mixer, p.rate, p.bytes, p.on_front) for p in points] == [
        ("a", 1e-3, 40, True), ("b", 1e-2, 80, False), ("c", 1e-2, 120, True),
    ]  # fmt: skip
    assert (points[0].accuracy, points[0].lowest, points[0].highest) == pytest.approx(
        (0.6, 0.5, 0.7)
    )
    assert pareto([(2, 0.5), (1, 0.5), (3, 0.4)]) == {1}


def test_commands_that_cannot_be_are_refused_before_training(run, monkeypatch):
    monkeypatch.setattr(_train, "train_piece", None)
    for line, message in (
        ("--mixers sofmax", "did you mean 'softmax'"),
        ("--pairs 40", "a length of 160"),
        ("--vocabulary 12", "has only 5 keys"),
        ("--widths 7 --mixers retention", "at width 7"),
        ("--preset hours", "choose minutes or paper"),
        ("--preset paper --pairs 8", "--pairs cannot change the texts of this preset"),
        ("--mixers elu,elu", "no duplicates"),
        ("--seeds 0", "seeds"),
        ("--rates fast", "--rates takes numbers"),
        ("--widths wide", "--widths takes numbers"),
        ("--task sorting", "unknown task 'sorting'"),
        ("--task parity --pairs 4", "--pairs has no meaning for the task parity"),
        ("--task permutation --items 6", "2 to 5 items"),
        ("--task permutation --moved 4", "cannot move 4 of 3 things"),
        ("--task permutation --moved 1", "moved"),
        ("--task copy --length 9", "even length"),
        ("--task selective --items 40", "need a length of 80"),
        ("--task parity --preset paper", "minutes only"),
    ):
        code, _, said = run("recall", *line.split())
        assert code == 2, line
        assert message in said


def test_the_command_writes_both_files_and_a_table(run, tmp_path):
    html, path = tmp_path / "r.html", tmp_path / "r.json"
    line = "recall --mixers elu --widths 4 --steps 1 --seeds 1 --html"
    code, out, _ = run(*line.split(), html, "--json", path)
    assert code == 0
    assert "elu" in out
    assert json.loads(path.read_text())["settings"]["steps"] == 1
    assert sorted(tmp_path.iterdir()) == [html, path]


def test_without_a_terminal_progress_is_a_line_now_and_then(run, monkeypatch):
    arguments = ["recall", "--mixers", "elu", "--widths", "4,8", "--steps", "1", "--seeds", "1"]
    monkeypatch.setattr("kerneltrick.cli._output.PAUSE", 0.0)
    for quiet, lines in (([], 3), (["-q"], 0)):
        said = run(*arguments, *quiet)[2].splitlines()
        assert len(said) == lines
        assert all(re.search(r": [012]/2", line) for line in said)


def test_the_report_draws_every_point_in_a_browser(browser, tmp_path):
    result = recall.recall(dataclasses.replace(SMALL, mixers=("softmax", "elu", "relu")))
    path = Path(tmp_path, "r.html")
    path.write_text(report.render_recall(result.to_dict()), encoding="utf-8")
    page = browser.new_page()
    troubles = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(path.as_uri())
    assert page.locator("#recall .dot").count() == len(result.points) == 6
    assert page.locator("#points-table tbody tr").count() == 6
    page.locator("#points-table tbody tr", has_text="relu").first.click()
    assert "relu" in page.locator("#curves-title").inner_text()
    assert page.locator("#curves path.line").count() == 2
    page.close()
    assert troubles == []


def test_parity_and_products_are_those_of_all_tokens_so_far():
    tokens, places, answers = recall.Parity(length=21).examples(30, seed=1)
    assert (places == np.arange(21)).all()
    for row, said in zip(tokens, answers, strict=True):
        assert [sum(row[: i + 1]) % 2 for i in range(21)] == [x - 2 for x in said]
    every = list(itertools.permutations(range(4)))
    tokens, _, answers = recall.Permutation(length=9, items=4).examples(20, seed=2)
    assert set(tokens.ravel()) <= set(range(24))
    for row, said in zip(tokens, answers, strict=True):
        things = np.arange(4)  # each permutation is applied to what the earlier ones left
        for token, answer in zip(row, said, strict=True):
            things = np.array(every[token])[things]
            assert tuple(things) == every[answer - 24]
    tokens, _, answers = recall.Permutation(length=9, items=4, moved=2).examples(80, seed=2)
    moved = {sum(i != x for i, x in enumerate(every[token])) for token in tokens.ravel()}
    assert moved == {0, 2}
    assert len(set(tokens.ravel())) == 7
    assert len(set(answers.ravel())) == 24


def test_permutations_are_learned_from_swaps_and_short_texts_first():
    task = recall.Permutation(length=12, items=4)
    sizes = [(each.most_moved, each.length) for each in task.easier()]
    assert sizes == [(2, 8), (2, 12), (3, 8), (3, 12), (4, 8), (4, 12)]
    assert task.easier()[-1] == task
    swaps = dataclasses.replace(task, moved=2)
    assert [each.length for each in swaps.easier()] == [8, 12]
    assert "at most 2 of them" in swaps.told


def test_copied_tokens_come_again_in_their_order_after_the_mark():
    for task in (recall.Selective(20, 31, 5), recall.Copy(20, 12)):
        tokens, places, answers = task.examples(40, seed=3)
        p = answers.shape[1]
        for row, where, said in zip(tokens, places, answers, strict=True):
            assert row[where[0]] == 1
            before = [x for x in row[: where[0]] if x]
            assert before == said.tolist()
            assert len(set(before)) == p
            assert row[where[1:]].tolist() == before[:-1]
        assert task.easier()[-1] == task
        assert [len(each.examples(1, 0).answers[0]) for each in task.easier()] == [p // 2, p]


def test_every_task_trains_in_the_same_sweep_and_report():
    for name in recall.TASKS.keys() - {"recall"}:
        task = recall.TASKS[name]
        settings = recall.preset(
            "minutes", name, mixers=("elu", "deltaproduct"), widths=(4,), steps=1, seeds=1,
            batch=2, judged=2, rates=(1e-2,),
        )  # fmt: skip
        assert settings.task == task
        found = json.loads(recall.recall(settings).to_json())
        assert [point["mixer"] for point in found["points"]] == ["elu", "deltaproduct"]
        assert found["settings"]["task"]["name"] == name
        assert found["published"] == {}
        assert 0 < task.chance <= 0.5
        assert task.told.split(".")[0] in report.render_recall(found)
        assert len({each.vocabulary for each in task.easier()}) == 1


@pytest.mark.slow
def test_a_state_is_tracked_by_the_layer_that_can_and_not_without():
    mixers = tuple(
        f"deltanet:short_convolution=0,negative_eigenvalues={each}" for each in ("false", "true")
    )
    settings = dataclasses.replace(
        recall.preset("minutes", "parity"), mixers=mixers, task=recall.Parity(32), steps=300,
        seeds=1, judged=128,
    )  # fmt: skip
    fails, learns = recall.recall(settings).points
    assert learns.accuracy > 0.95
    assert fails.accuracy < 0.8
