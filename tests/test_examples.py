"""Each script in examples/ runs by itself in seconds and prints what it promises."""

import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cases import each

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def alone(name, *options, status=0):
    """Run a script in its own process outside the repository, and return what it prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tempfile.gettempdir())
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script in this process, and return what it prints."""

    def run(name, *options, status=0):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
        try:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
            ended = 0
        except SystemExit as stop:
            ended = stop.code or 0
        printed = capsys.readouterr()
        assert ended == status, printed
        return printed.out if status == 0 else printed.err

    return run


def numbers(pattern, text):
    return [float(found.replace(",", "")) for found in re.findall(pattern, text)]


def test_padding_does_not_change_an_encoder():
    printed = alone("bidirectional_encoder", "--width", "16", "--heads", "2", "--longest", "40")
    assert "57 of 120 tokens are padding (NaN)" in printed
    differences = numbers(r"padded and alone (\S+)", printed)
    assert len(differences) == 3
    assert max(differences) < 1e-12
    assert numbers(r"without a mask: (\S+)", printed)[0] > 0.01


def test_memory_of_a_stream_does_not_grow_with_the_document(run):
    def stream(tokens, *options):
        printed = run(
            "stream_a_million_tokens", "--tokens", str(tokens), "--chunk", "512", *options
        )
        assert f"{tokens:,} tokens in chunks of 512" in printed
        assert f"state: tokens 0:{tokens}," in printed
        assert numbers(r"largest difference (\S+)", printed)[0] < 1e-6
        return numbers(r"peak memory of arrays: (\S+) MB", printed)[0]

    stream(5)  # what is imported counts in the first run
    assert stream(10_000) <= 1.1 * stream(2000) + 0.1
    stream(1300, "--map", "favor:features=32", "--width", "8")  # the last chunk is not full


def test_rows_of_attention_are_read_and_found_or_not(run):
    def places(*options):
        printed = run("read_attention_rows", *options)
        assert "equals the output of linear_attention: True" in printed
        assert numbers(r"adds up to (\S+)", printed) == [1, 1]
        return numbers(r"has place (\d+) of", printed)

    assert places("--tokens", "2000") == [1, 1]
    assert max(places("--tokens", "500", "--map", "favor:features=256")) > 1


@each("text, decay", [("elu", "0"), ("favor:features=32", "0.99")])
def test_merged_halves_equal_the_whole(run, text, decay):
    printed = run("merge_two_halves", "--tokens", "301", "--map", text, "--decay", decay)
    assert "left:   tokens 0:150\nright:  tokens 150:301\nmerged: tokens 0:301\n" in printed
    assert max(numbers(r"differ by (\S+),", printed)) < 1e-12
    assert printed.count(": True") == 2


@each(
    "name, options",
    [
        ("bidirectional_encoder", ("--heads", "3")),
        ("stream_a_million_tokens", ("--tokens", "0")),
        ("read_attention_rows", ("--tokens", "3")),
        ("merge_two_halves", ("--decay", "2")),
    ],
)
def test_options_out_of_range_are_refused(run, name, options):
    assert "must be" in run(name, *options, status=2)


def test_every_script_is_listed():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert f"]({script.name})" in listed


@pytest.mark.slow
def test_several_processes_are_one():
    pytest.importorskip("torch")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXAMPLES / "context_parallel.py"), "--tokens", "500", "--map", "elu@window=8",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"rank (\d) of 2", done.stdout)) == ["0", "1"]
    assert "torchrun --nproc-per-node 2" in alone("context_parallel", status=2)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["flax", "equinox"])
def test_a_language_model_in_jax_learns_and_streams(framework):
    pytest.importorskip("jax")
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    printed = alone(f"{framework}_language_model", "--steps", "120", "--width", "32")
    losses = numbers(r"loss (\S+)", printed)
    assert losses[-1] < losses[0] / 2
    assert numbers(r"streamed differ by (\S+)", printed)[0] < 1e-4
    assert "letters as in the text" in printed
