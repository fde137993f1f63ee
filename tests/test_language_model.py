"""The language model streams and learns, and a killed training continues correctly."""

import dataclasses
import errno
import math
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from kerneltrick.torch import (  # noqa: E402
    LanguageModel,
    TrainedModel,
    TrainingSettings,
    Vocabulary,
    _train,
    train,
)

TEXT = "in linear time, with proof.\n" * 30
SMALL = TrainingSettings(
    mixer="elu", hidden_size=16, num_layers=2, num_heads=2, length=24, batch=4, steps=40,
    learning_rate=1e-2,
)  # fmt: skip

pytestmark = pytest.mark.xdist_group("language_model")  # one model is trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return train(TEXT, folder, SMALL), folder


def model(mixer="elu", seed=0, **sizes):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2} | sizes
    return LanguageModel(11, mixer=mixer, **sizes).double()


@pytest.mark.parametrize("mixer", ["elu", "hedgehog@window=3,sinks=1", "softmax"])
def test_logits_of_a_stream_are_those_of_the_whole(mixer):
    tokens = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(0))
    own = model(mixer)
    whole, _ = own(tokens)
    left, state = own(tokens[:, :13])
    right, _ = own(tokens[:, 13:], state)
    torch.testing.assert_close(torch.cat([left, right], dim=1), whole)
    changed = torch.cat([tokens[:, :10], 10 - tokens[:, 10:]], dim=1)
    assert torch.equal(own(changed)[0][:, :10], whole[:, :10])


def test_what_a_map_has_to_learn_is_learned():
    own = model("hedgehog@window=3")
    own(torch.arange(11)[None])[0].square().sum().backward()
    learned = [block.mixer.learned for block in own.blocks]
    assert all(x.weight.grad.any() and x.gain.grad.any() for x in learned)
    assert not any("learned" in name for name, _ in model("softmax@window=3").named_parameters())


def test_padding_and_packing_reach_the_mixers():
    tokens, own = torch.arange(11)[None], model()
    alone, _ = own(tokens)
    mask = torch.tensor([[False] * 3 + [True] * 11])
    padded, _ = own(torch.nn.functional.pad(tokens, (3, 0)), mask=mask)
    torch.testing.assert_close(padded[:, 3:], alone)
    packed, _ = own(torch.cat([tokens, tokens], 1), cu_seqlens=torch.tensor([0, 11, 22]))
    torch.testing.assert_close(packed[:, 11:], alone)


def test_generating_takes_what_reading_everything_again_would():
    own, prompt = model("elu@window=3", seed=3), torch.arange(5)[None]
    text = prompt
    for _ in range(6):
        text = torch.cat([text, own(text)[0][:, -1:].argmax(-1)], dim=1)
    got, seen = own.generate(prompt, 6, temperature=0), []
    assert torch.equal(got, text[:, 5:])
    drawn = own.generate(prompt, 6, temperature=1.5, seed=4, each=seen.append)
    assert torch.equal(drawn, own.generate(prompt, 6, temperature=1.5, seed=4))
    assert torch.equal(torch.cat(seen, dim=1), drawn)
    assert torch.equal(own.generate(prompt, 6, temperature=1.5, top_k=1), got)
    assert own.generate(prompt, 0).shape == (1, 0)
    with pytest.raises(ValueError, match="at least one token"):
        own.generate(prompt[:, :0], 3)


@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e-40, 1e-30])
def test_the_smallest_temperatures_take_the_likeliest_token(temperature):
    own, prompt = model("elu", seed=3), torch.arange(5)[None]
    got = own.generate(prompt, 6, temperature=temperature)
    assert torch.equal(got, own.generate(prompt, 6, temperature=0))
    assert torch.equal(got, own.generate(prompt, 6, temperature=temperature, top_k=3))


def test_what_cannot_be_drawn_from_is_said():
    own, prompt = model("elu", seed=3), torch.arange(5)[None]
    for temperature in (math.nan, math.inf, -1.0):
        with pytest.raises(ValueError, match="a finite temperature ≥ 0"):
            own.generate(prompt, 1, temperature=temperature)
    with torch.no_grad():
        own.embedding.weight.fill_(math.nan)
    with pytest.raises(ValueError, match="the model's scores are not finite"):
        own.generate(prompt, 1)


@pytest.mark.slow
def test_the_model_compiles_as_one_graph_for_all_lengths():
    own = model("elu@window=8,sinks=1")
    compiled = torch.compile(own, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (70, 83):
        tokens = torch.randint(11, (2, n), generator=torch.Generator().manual_seed(n))
        with torch._dynamo.config.patch(error_on_recompile=n > 70):
            found, _ = compiled(tokens)
        expected, _ = own(tokens)
        torch.testing.assert_close(found, expected)
        grads = [
            torch.autograd.grad(x.square().sum(), own.embedding.weight) for x in (found, expected)
        ]
        torch.testing.assert_close(*grads)


def test_a_mixer_of_ones_own_is_taken():
    class Mean(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x, state=None, **_):
            total, count = (0.0, 0) if state is None else state
            sums = x.cumsum(1) + total
            counts = count + torch.arange(1, x.shape[1] + 1)
            return sums / counts[:, None], (sums[:, -1:], int(counts[-1]))

    own = model(Mean, num_layers=3)
    assert [block.mixer.layer for block in own.blocks] == [0, 1, 2]
    tokens = torch.arange(9)[None]
    _, state = own(tokens[:, :4])
    torch.testing.assert_close(own(tokens[:, 4:], state)[0], own(tokens)[0][:, 4:])
    with pytest.raises(ValueError, match="3 layers"):
        model(num_layers=2)(tokens, state)


def test_training_learns_a_text(trained):
    run, folder = trained
    assert len(run.losses) == 40
    assert sum(run.losses[-5:]) / 5 < 0.7 * run.losses[0]
    assert list(run.validation) == list(range(4, 41, 4))
    assert run.validation[40] < run.validation[4]
    loaded = TrainedModel.load(folder)
    assert loaded.losses == run.losses
    assert loaded.sample("in ", 9, seed=1) == run.sample("in ", 9, seed=1)


@pytest.mark.slow
def test_after_kill_9_in_a_step_training_goes_on_with_the_same_losses(trained, tmp_path):
    """The child hangs in the middle of a step, three steps after its fourth checkpoint."""
    script = f"""
import time
from kerneltrick.torch import TrainingSettings, _train, train
from tests_text import TEXT
whole = _train._step
def step(spread, optimizer, tokens, settings, number):
    if number == 19:
        spread.model.embedding.weight.data.mul_(2)
        print("now", flush=True)
        time.sleep(600)
    return whole(spread, optimizer, tokens, settings, number)
_train._step = step
train(TEXT, {str(tmp_path / "out")!r}, TrainingSettings(**{dataclasses.asdict(SMALL)!r}))
""".replace("from tests_text import TEXT", f"TEXT = {TEXT!r}")
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "now\n"
    child.kill()
    child.wait()
    child.stdout.close()
    left = TrainedModel.load(tmp_path / "out")
    assert len(left.losses) == 16
    run = train(TEXT, tmp_path / "out", SMALL)
    assert run.losses == pytest.approx(trained[0].losses, rel=1e-6)
    assert run.validation == pytest.approx(trained[0].validation, rel=1e-6)
    assert [x.name for x in (tmp_path / "out").iterdir()] == ["model.safetensors"]


def test_a_folder_of_another_training_is_refused(trained, tmp_path):
    _, folder = trained
    with pytest.raises(ValueError, match="with mixer elu, not softmax"):
        train(TEXT, folder, dataclasses.replace(SMALL, mixer="softmax"))
    with pytest.raises(ValueError, match="another text"):
        train(TEXT + "more", folder, SMALL)
    with pytest.raises(ValueError, match="too short"):
        train(TEXT[:40], tmp_path, SMALL)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="not a readable trained model"):
        train(TEXT, tmp_path, SMALL)
    run = TrainedModel.load(folder)
    run.save(tmp_path)
    with pytest.raises(ValueError, match="not the state of its training"):
        train(TEXT, tmp_path, SMALL)
    run.settings = dataclasses.replace(SMALL, hidden_size=20_000)
    run.save(tmp_path)
    with pytest.raises(ValueError, match="not a model of this package"):
        TrainedModel.load(tmp_path)


def test_bytes_and_characters_come_back():
    for words, vocabulary in (("naïve→🎉", Vocabulary(None)), ("ba→🎉", Vocabulary.of("a→b🎉"))):
        assert vocabulary.decode(vocabulary.encode(words)) == words
    read = Vocabulary(None).reader()
    assert [read(token[None]) for token in Vocabulary(None).encode("é!")] == ["", "é", "!"]
    with pytest.raises(ValueError, match="does not know the character 'z'"):
        Vocabulary.of("ab").encode("az")


def test_the_commands_train_and_write(run, tmp_path):
    source, out = tmp_path / "text.txt", tmp_path / "model"
    source.write_bytes(b"\xff" + TEXT.encode())
    sizes = ("--steps", "2", "--width", "8", "--layers", "1", "--heads", "1", "--length", "8")
    code, printed, problem = run("train", source, "--out", out, *sizes, "--bytes")
    assert code == 0, problem
    lines = printed.splitlines()
    assert re.fullmatch(r"step 2/2: loss [\d.]+, validation [\d.]+, [\d,]+ tokens/s", lines[2])
    assert lines[3].startswith("  ")
    code, printed, _ = run("generate", out, "--prompt", "in l", "--length", "5", "--seed", "1")
    assert code == 0
    assert printed.startswith("in l")
    assert printed == run("generate", out, "--prompt", "in l", "--length", "5", "--seed", "1")[1]
    plain = tmp_path / "plain.txt"
    plain.write_text(TEXT)
    code, printed, _ = run("evaluate", out, "--text", plain, "--length", "16", "--tokens", "64")
    assert (code, printed.split(":")[0]) == (0, "4 windows of 16 bytes")
    found = TrainedModel.load(out)
    ids = found.vocabulary.encode(TEXT[:64]).view(4, 16)
    losses = torch.nn.functional.cross_entropy(
        found.model(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten()
    )
    assert f"perplexity {losses.exp().item():.4g} per byte" in printed
    for words, problem in (
        (("train", source, "--out", out, *sizes), "is not UTF-8"),
        (("train", source, "--out", source, *sizes, "--bytes"), "must name a folder"),
        (("train", tmp_path / "none", "--out", out), "cannot read"),
        (("train", source, "--out", out, "--bytes", "--mixer", "ell"), "did you mean 'elu'"),
        (
            ("train", source, "--out", out, "--bytes", "--width", "30"),
            "--width 30 is not a multiple of --heads 4",
        ),
        (("train", source, "--out", out, "--heads", "0", "--bytes"), "train needs --heads to be"),
        (("train", source, "--out", out, "--rate", "0", "--bytes"), "train needs --rate > 0"),
        (("train", source, "--out", out, "--rate", "1e300", "--bytes"), "train needs --rate ≤ 1,0"),
        (("train", source, "--out", out, "--layers", 2**60, "--bytes"), "smaller --layers or --w"),
        (("train", source, "--out", out, "--batch", 2**60, "--bytes"), "smaller batch or length"),
        (("evaluate", out, "--text", plain, "--teacher", "x"), "--teacher need"),
        (("evaluate", out, "--text", plain, "--length", 9999), "a window needs 9999"),
        (
            ("train", source, "--out", out, "--bytes", "--mixer", "elu+ell", "--layers", "1"),
            "names 2 mixers, one for each layer in turn, but --layers is 1",
        ),
        (("generate", tmp_path), f"{tmp_path} holds no model"),
        (("generate", out, "--temperature", "-1"), "temperature"),
    ):
        code, _, said = run(*words)
        assert code == 2
        assert problem in said


@pytest.mark.parametrize("first", ["nothing", "a checkpoint"])
@pytest.mark.parametrize("failure", ["a full disk", "a loss that is not finite"])
def test_a_training_that_fails_keeps_the_last_good_step_or_leaves_nothing(
    tmp_path, monkeypatch, first, failure
):
    out, good = tmp_path / "new" / "model", 4 if first == "a checkpoint" else 0
    settings = dataclasses.replace(SMALL, steps=10)  # every step is judged and kept
    step, save = _train._step, _train.write

    def broken(spread, optimizer, tokens, settings, number):
        loss = step(spread, optimizer, tokens, settings, number)
        if number == good and failure != "a full disk":
            next(spread.model.parameters()).data.fill_(torch.nan)  # shown by the next loss
        return loss

    def full(path, content):
        if kept() == good:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        save(path, content)

    def kept():
        file = out / "model.safetensors"
        return len(TrainedModel.load(out).losses) if file.exists() else 0

    monkeypatch.setattr(_train, "_step", broken)
    if failure == "a full disk":
        monkeypatch.setattr(_train, "write", full)
    words = "No space left" if failure == "a full disk" else "diverged at step .* learning_rate"
    with pytest.raises((OSError, FloatingPointError), match=words):
        train(TEXT, out, settings)
    assert kept() == good
    assert [path.name for path in tmp_path.iterdir()] == (["new"] if good else [])


def test_ctrl_c_says_how_to_go_on(run, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kerneltrick.torch._train._step", stop)
    (tmp_path / "text.txt").write_text(TEXT)
    code, _, said = run("train", tmp_path / "text.txt", "--out", tmp_path / "out")
    assert code == 130
    assert "run the same command to continue" in said
