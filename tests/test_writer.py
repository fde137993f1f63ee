"""The one writer: standard output, devices and pipes, links, and files that appear whole."""

import contextlib
import io
import json
import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick import _files, _pictures, analysis, simulate
from kerneltrick.analysis._store import Store

SMALL = ("compare", "--synthetic", "gaussian:n=8,d=2", "--map", "elu")


def read_in_background(fifo):
    """The bytes that somebody writes into a pipe, and a function that waits for them."""
    found = []
    thread = threading.Thread(target=lambda: found.append(fifo.read_bytes()), daemon=True)
    thread.start()

    def wait():
        thread.join(60)
        return found[0]

    return wait


def kerneltrick(*arguments, **options):
    command = [sys.executable, "-m", "kerneltrick", *map(str, arguments)]
    return subprocess.run(command, capture_output="stdout" not in options, **options, timeout=300)


def test_a_minus_is_standard_output(capsysbinary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    print("before")
    _files.write("-", "né")
    with _files.writing("-") as stream:
        stream.write(b"\0")
    assert capsysbinary.readouterr().out == b"before\nn\xc3\xa9\0"
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    _files.check_writable(fifo)
    wait = read_in_background(fifo)
    _files.write(fifo, b"through")
    assert wait() == b"through"
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert _files.regular_file(fifo) is None


def test_a_device_stays_a_device():
    before = os.stat("/dev/null")
    _files.check_writable("/dev/null")
    _files.write("/dev/null", "gone")
    after = os.stat("/dev/null")
    assert stat.S_ISCHR(after.st_mode)
    assert (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)


def test_links_are_followed(tmp_path):
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "file"
    target.write_text("old")
    link, chain, dangling = (tmp_path / name for name in ("link", "chain", "dangling"))
    link.symlink_to("there/file")
    chain.symlink_to(link)
    dangling.symlink_to("there/new")
    for name, text in ((link, "one"), (chain, "two")):
        _files.write(name, text)
        assert name.is_symlink()
        assert target.read_text() == text
    _files.write(dangling, "three")
    assert dangling.is_symlink()
    assert (tmp_path / "there" / "new").read_text() == "three"


def test_files_keep_their_rights_and_appear_whole(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    target.chmod(0o640)
    with contextlib.suppress(ZeroDivisionError), _files.writing(target) as stream:
        stream.write(b"half")
        stream.flush()
        raise ZeroDivisionError
    assert target.read_bytes() == b"old"
    with target.open("rb") as reader:
        _files.write(target, b"new")
        assert reader.read() == b"old"  # replaced, not written over
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_new_files_have_the_rights_of_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        _files.write(tmp_path / "file", "")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_names_may_be_as_long_as_the_system_allows(tmp_path):
    long = tmp_path / ("x" * 255)
    _files.check_writable(long)
    _files.write(long, "text")
    assert long.read_text() == "text"


def test_a_descriptor_is_appended_to(tmp_path):
    log = tmp_path / "log"
    log.write_text("before ")
    with log.open("a") as file:
        _files.write(f"/dev/fd/{file.fileno()}", "after")
    assert log.read_text() == "before after"


@pytest.mark.parametrize("name", ["nowhere/file", "", "."])
def test_what_cannot_be_written_is_one_sentence(tmp_path, name):
    path = tmp_path / name
    for call in (_files.check_writable, lambda path: _files.write(path, "")):
        with pytest.raises(OSError, match=f"cannot write {path}: .*folder|directory"):
            call(path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_one_sentence(run):
    with pytest.raises(OSError, match="cannot write /dev/full: No space left on device"):
        _files.write("/dev/full", "x" * 100_000)
    code, out, err = run(*SMALL, "--json", "/dev/full", "-q")
    assert (code, out) == (1, "")
    assert err == "kerneltrick: cannot write /dev/full: No space left on device\n"
    with open("/dev/full", "w") as full:
        done = kerneltrick("costs", "--no-measure", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"kerneltrick: No space left on device\n"


def test_a_reader_that_has_read_enough_gets_no_complaint():
    read, write = os.pipe()
    os.close(read)
    done = kerneltrick("costs", "--no-measure", stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_json_on_standard_output_is_all_that_is_there(name, tmp_path):
    done = kerneltrick(*SMALL, "--json", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["format"] == "kerneltrick.compare/3"
    assert b"Feature maps against softmax" in done.stderr
    assert b"wrote" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_standard_output_that_is_a_file_is_not_replaced(tmp_path):
    target = tmp_path / "log"
    target.write_text("before\n")
    with target.open("a") as file:
        done = kerneltrick(
            *SMALL, "-q", "--json", "/dev/stdout", stdout=file, stderr=subprocess.PIPE
        )
    assert done.returncode == 0, done.stderr
    first, rest = target.read_text().split("\n", 1)
    assert first == "before"
    assert json.loads(rest)["format"] == "kerneltrick.compare/3"


def test_two_options_do_not_write_the_same_file(run, tmp_path):
    (tmp_path / "link").symlink_to("report")
    for one, two in (("-", "-"), (tmp_path / "report", tmp_path / "link")):
        code, out, err = run(*SMALL, "--html", one, "--json", two)
        assert (code, out) == (2, "")
        assert "--html and --json both write" in err


def test_a_link_to_a_report_keeps_the_finished_pieces_beside_the_report(run, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/report.json")
    from kerneltrick.cli import _app

    seen = []
    compare = _app.compare
    monkeypatch.setattr(
        _app, "compare", lambda *a, **k: (seen.append(k["resume"]), compare(*a, **k))[1]
    )
    assert run(*SMALL, "--json", tmp_path / "link", "-q")[0] == 0
    assert seen == [tmp_path / "there" / ".report.json.unfinished"]
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["report.json"]


@pytest.mark.parametrize("found", ["folder", "nested", "changed"])
def test_finished_pieces_that_cannot_be_used(run, tmp_path, found):
    kept = tmp_path / ".r.json.unfinished"
    if found == "folder":
        kept.mkdir()
        code, out, err = run(*SMALL, "--json", tmp_path / "r.json", "-q")
        assert (code, out) == (1, "")
        assert err == f"kerneltrick: cannot write {kept}: Is a directory\n"
        return
    store = Store(kept, "run")
    store.put("a", [1])
    if found == "nested":
        kept.write_text(kept.read_text() + "[" * 100_000)
    else:
        kept.write_text(kept.read_text().replace("[1]", "[2]"))
    assert Store(kept, "run").resumed == (found == "nested")


def test_pictures_go_wherever_files_go(tmp_path, capsysbinary):
    pytest.importorskip("matplotlib")
    figure = simulate.moments_figure(simulate.moments([1, 2], draws=10))
    _pictures.save_figure(figure, "-")
    assert capsysbinary.readouterr().out.startswith(b"\x89PNG")
    fifo = tmp_path / "pipe.pdf"
    os.mkfifo(fifo)
    wait = read_in_background(fifo)
    _pictures.save_figure(figure, fifo)
    assert wait().startswith(b"%PDF")


def test_states_and_attention_go_wherever_files_go(tmp_path, capsysbinary):
    x = np.ones((1, 4, 2))
    _, state = kt.linear_attention(x, x, x, return_state=True)
    state.save("-")
    (tmp_path / "state").write_bytes(capsysbinary.readouterr().out)
    assert kt.State.load(tmp_path / "state").stop == 4
    analysis.save_attention(analysis.AttentionData.from_arrays(x, x, x), "-")
    (tmp_path / "x.safetensors").write_bytes(capsysbinary.readouterr().out)
    assert analysis.load_attention(tmp_path / "x.safetensors").q.shape == (1, 1, 4, 2)


def test_standard_output_without_a_buffer_is_one_sentence_too():
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(OSError, match="standard output"):
        _files.write("-", "text")
