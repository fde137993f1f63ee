"""The writer handles standard output, devices, pipes and links, and writes files atomically."""

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
    """Return the bytes written into a pipe, and a function that waits for them."""
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
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(OSError, match="standard output"):
        _files.write("-", "text")


def test_pipes_and_devices_are_written_to_and_stay(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    _files.check_writable(fifo)
    wait = read_in_background(fifo)
    _files.write(fifo, b"through")
    assert wait() == b"through"
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert _files.regular_file(fifo) is None
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


def test_new_files_have_the_rights_of_the_umask_and_names_as_long_as_the_system_allows(tmp_path):
    long = tmp_path / ("x" * 255)
    old = os.umask(0o027)
    try:
        _files.check_writable(long)
        _files.write(long, "text")
    finally:
        os.umask(old)
    assert long.read_text() == "text"
    assert stat.S_IMODE(long.stat().st_mode) == 0o640


def test_a_descriptor_is_appended_to(tmp_path):
    log = tmp_path / "log"
    log.write_text("before ")
    with log.open("a") as file:
        _files.write(f"/dev/fd/{file.fileno()}", "after")
    assert log.read_text() == "before after"


def test_what_cannot_be_written_is_one_sentence(tmp_path):
    for path in (tmp_path / "nowhere" / "file", tmp_path, tmp_path / "."):
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


def test_json_on_standard_output_is_all_that_is_there(tmp_path):
    done = kerneltrick(*SMALL, "--json", "-", cwd=tmp_path)
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


@pytest.fixture
def captured(tmp_path):
    """A file of q, k and v, as .npz, as .safetensors and as a folder."""
    arrays = dict(zip("qkv", np.random.default_rng(0).standard_normal((3, 2, 16, 4)), strict=True))
    np.savez(tmp_path / "ok.npz", **arrays)
    analysis.save_attention(
        analysis.AttentionData.from_arrays(*arrays.values()), tmp_path / "ok.safetensors"
    )
    (tmp_path / "folder").mkdir()
    for name, x in arrays.items():
        np.save(tmp_path / "folder" / f"{name}.npy", x)
    return tmp_path


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_compare_does_not_overwrite_what_it_reads(run, captured, monkeypatch):
    """Neither its files by any name, nor what is in a folder that it reads, nor maps."""
    monkeypatch.chdir(captured)
    file, folder, maps = captured / "ok.npz", captured / "folder", captured / "maps.safetensors"
    link, same, inside = (captured / name for name in ("link", "same", "inside"))
    link.symlink_to(file)
    same.hardlink_to(file)
    inside.hardlink_to(folder / "v.npy")
    dial = kt.Dial(kt.maps.Hedgehog(np.eye(4)), window=4)
    analysis.FittedMaps({0: dial}, heads=(0, 1)).save(maps)
    before = contents(captured)
    for read, text, option, out in (
        (file, "elu", "--json", file),
        (file, "elu", "--html", link),
        (file, "elu", "--json", same),
        (file, "elu", "--html", "folder/../ok.npz"),
        (folder, "elu", "--json", folder / "v.npy"),
        (folder, "elu", "--html", inside),
        (file, maps, "--json", maps),
        (file, f"elu,{maps}@window=2", "--html", maps),
    ):
        code, printed, err = run("compare", read, "--map", text, option, out)
        assert (code, printed) == (2, ""), out
        assert f"cannot write {out}: this command reads" in err
        assert contents(captured) == before


def test_reports_in_a_folder_that_is_read_can_be_replaced(run, captured):
    folder = captured / "folder"
    (folder / ".report.json.unfinished").write_text("of another run")
    outputs = ("--json", folder / "report.json", "--html", folder / "report.html")
    for _ in range(2):
        assert run("compare", folder, "--map", "elu", "-q", *outputs)[0] == 0
    assert json.loads((folder / "report.json").read_text())["format"].startswith("kerneltrick")


def test_no_other_command_overwrites_what_it_reads(run, captured, monkeypatch):
    """Fit, capture, evaluate and train: refused before the work, nothing changed."""
    pytest.importorskip("torch")
    model, text = captured / "model", captured / "text.safetensors"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    text.write_text("a text of some words " * 9)
    (model / "text").hardlink_to(text)
    file = captured / "ok.safetensors"
    before = contents(captured)
    for command in (
        ("fit", file, "--out", file),
        ("capture", model, "--text", text, "--out", text),
        ("capture", model, "--text", text, "--out", model / "model.safetensors"),
        ("evaluate", model, "--text", text, "--html", text),
        ("evaluate", model, "--text", text, "--json", model / "config.json"),
        ("evaluate", model, "--text", model / "text", "--teacher", model, "--json", text),
    ):
        code, out, err = run(*command)
        assert (code, out) == (2, ""), command
        assert "this command reads" in err, err
        assert contents(captured) == before
    (captured / "lm").mkdir()
    (captured / "lm" / "model.safetensors").symlink_to(text)
    code, _, err = run("train", text, "--out", captured / "lm", "--steps", 1, "-q")
    assert code != 0
    assert {p: x for p, x in contents(captured).items() if p in before} == before


def test_a_command_does_not_append_its_output_to_what_it_reads(captured):
    file = captured / "ok.npz"
    before = file.read_bytes()
    with file.open("ab") as stream:
        arguments = ("compare", file, "--map", "elu", "-q", "--json", "-")
        done = kerneltrick(*arguments, stdout=stream, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert b"cannot write standard output: this command reads it" in done.stderr
    assert file.read_bytes() == before


def test_protection_ends_with_the_command(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")
    with _files.protecting([file]):
        for call in (_files.check_writable, lambda path: _files.write(path, "new")):
            with pytest.raises(OSError, match="this command reads it"):
                call(file)
        with pytest.raises(OSError, match="this command reads"):
            _files.append(file, "new")
    _files.write(file, "new")
    assert file.read_text() == "new"


def test_a_folder_that_cannot_be_made_or_replaced_says_why(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "text").write_text("read")
    monkeypatch.chdir(tmp_path)
    _files.check_folder_writable("new")
    with pytest.raises(OSError, match=r"cannot write none/new: there is no folder .*none"):
        _files.check_folder_writable("none/new")
    for read in ("old", "old/text"):
        with _files.protecting([read]), pytest.raises(OSError, match=r"this command reads .*old"):
            _files.check_folder_writable("old")
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # root may write anywhere
    with pytest.raises(
        PermissionError, match=rf"cannot write new: Permission denied in .*{tmp_path.name}"
    ):
        _files.check_folder_writable("new")


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


def test_finished_pieces_that_cannot_be_used(run, tmp_path):
    kept = tmp_path / ".r.json.unfinished"
    for damage, resumed in ((("", "[" * 100_000), True), (("[1]", "[2]"), False)):
        store = Store(kept, "run")
        store.put("a", [1])
        text = kept.read_text()
        kept.write_text(text.replace(*damage) if damage[0] else text + damage[1])
        assert Store(kept, "run").resumed == resumed
        kept.unlink()
    kept.mkdir()
    code, out, err = run(*SMALL, "--json", tmp_path / "r.json", "-q")
    assert (code, out, err) == (1, "", f"kerneltrick: cannot write {kept}: Is a directory\n")


def test_pictures_states_and_attention_go_wherever_files_go(tmp_path, capsysbinary):
    x = np.ones((1, 4, 2))
    _, state = kt.linear_attention(x, x, x, return_state=True)
    state.save("-")
    (tmp_path / "state").write_bytes(capsysbinary.readouterr().out)
    assert kt.State.load(tmp_path / "state").stop == 4
    analysis.save_attention(analysis.AttentionData.from_arrays(x, x, x), "-")
    (tmp_path / "x.safetensors").write_bytes(capsysbinary.readouterr().out)
    assert analysis.load_attention(tmp_path / "x.safetensors").q.shape == (1, 1, 4, 2)
    pytest.importorskip("matplotlib")
    fifo = tmp_path / "pipe.pdf"
    os.mkfifo(fifo)
    wait = read_in_background(fifo)
    _pictures.save_figure(simulate.moments_figure(simulate.moments([1, 2], draws=10)), fifo)
    assert wait().startswith(b"%PDF")
