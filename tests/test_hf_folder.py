"""The folder of a linearised model: written as a whole, and never over files of the user."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hf_models import save_tiny  # noqa: E402

import kerneltrick as kt  # noqa: E402
import kerneltrick.hf  # noqa: E402
from kerneltrick import analysis  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers and torch emit warnings of their own
    pytest.mark.xdist_group("hf"),  # transformers is loaded once
]
TEXT = " ".join(f"w{(7 * at + at * at) % 47 + 1}" for at in range(700))
WINDOWS = [[3 + (7 * at + 5 * row) % 40 for at in range(16)] for row in range(6)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A linearised model and its figures."""
    folder = save_tiny(tmp_path_factory.mktemp("bert"), "Bert", "AutoModel")
    found = kt.hf.linearize(folder, WINDOWS[:4], "softmax@window=4,sinks=1")
    return found, kt.hf.evaluate(found.model, WINDOWS[4:])


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder with one of each kind of thing that commands write, tiny."""
    base = tmp_path_factory.mktemp("places")
    (base / "text").write_text(TEXT)
    for kind, auto in (("Llama", "AutoModelForCausalLM"), ("Bert", "AutoModel")):
        folder = save_tiny(base / kind.lower(), kind, auto)
        found = kt.hf.linearize(folder, WINDOWS[:4], "hedgehog@window=4,sinks=1")
        found.save(base / f"linear_{kind.lower()}", kt.hf.evaluate(found.model, WINDOWS[4:]))
    settings = kt.torch.TrainingSettings(
        hidden_size=8, num_layers=1, num_heads=1, length=8, batch=1, steps=1
    )
    kt.torch.train(TEXT, base / "trained", settings)
    data = kt.hf.capture(base / "llama", token_ids=WINDOWS[0])
    analysis.save_attention(data, base / "qkv.safetensors")
    dials = {0: kt.Dial(kt.maps.Hedgehog(np.eye(8)), window=4)}
    analysis.FittedMaps(dials, heads=(0, 1, 2, 3)).save(base / "maps.safetensors")
    (base / "report.json").write_text('{"format": "kerneltrick.recall/1"}')
    (base / "empty").mkdir()
    return base


# What each command does with what the others write: 0, or the remedy that it names.
COMMANDS = {
    "generate {} --prompt w1 --length 3": {
        "trained": 0, "linear_llama": 0, "llama": 0, "linear_bert": "use inspect",
        "bert": "use inspect", "qkv.safetensors": "use it with kerneltrick compare or fit",
        "maps.safetensors": "compare --map", "report.json": "generate takes a model",
    },
    "inspect {} --text text --tokens 16": {
        "trained": 0, "linear_llama": 0, "linear_bert": 0, "llama": 0, "bert": 0,
        "trained/model.safetensors": "give its folder", "empty": "inspect takes a model",
    },
    "evaluate {} --text text --length 16 --tokens 200 --trials 0": {
        "trained": 0, "linear_llama": 0, "linear_bert": 0, "llama": "kerneltrick linearize",
        "bert": "kerneltrick linearize", "none": "evaluate takes a model",
    },
    "evaluate linear_llama --teacher {} --text text --length 16 --tokens 200 --trials 0": {
        "trained": "takes a model of transformers", "linear_llama": "give the original", "llama": 0,
        "linear_bert": "give the original", "bert": "predicts tokens", "none": "no folder",
    },
    "export {} --onnx x.onnx": {
        "trained": 0, "linear_llama": "kerneltrick generate", "linear_bert": "kerneltrick generate",
        "llama": "kerneltrick generate", "bert": "kerneltrick generate",
    },
    "accelerate {} --tokens 8 --new 1": {
        "trained": "on the compiled core already", "linear_llama": "evaluate --contexts",
        "linear_bert": "evaluate --contexts", "llama": "it needs a model",
        "bert": "it needs a model", "qkv.safetensors": "accelerate takes a model",
    },
    "capture {} --text text --max-tokens 16 --out x.safetensors": {
        "trained": "kerneltrick generate, inspect", "linear_llama": "give the original", "llama": 0,
        "linear_bert": "give the original", "bert": 0, "none": "no folder",
    },
    "linearize {} --text text --out x --length 16 --tokens 200 --map softmax --window 2 --force": {
        "trained": "kerneltrick generate, inspect", "linear_llama": "give the original", "llama": 0,
        "linear_bert": "give the original", "bert": 0, "empty": "linearize takes a model",
    },
    "compare {} --map elu": {
        "trained": "kerneltrick generate, inspect", "linear_llama": "give the original",
        "llama": "kerneltrick capture", "qkv.safetensors": 0, "maps.safetensors": "with --map",
        "report.json": "expected a file", "empty": "expected the three files",
    },
    "fit {} --out x.safetensors --steps 1": {
        "trained": "kerneltrick generate, inspect", "linear_llama": "give the original",
        "llama": "kerneltrick capture", "qkv.safetensors": 0, "maps.safetensors": "compare --map",
    },
    "train text --out {} --steps 1 --width 8 --layers 1 --heads 1 --length 8 --batch 1": {
        "trained": 0, "linear_llama": "another folder", "llama": "another folder",
        "report.json": "must name a folder",
    },
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.partition(" {")[0])
def test_every_command_takes_what_the_others_write_or_says_what_to_do(
    run, places, monkeypatch, command
):
    monkeypatch.chdir(places)
    monkeypatch.setattr("kerneltrick.onnx.export", lambda *_, **__: sys.stderr.write("exporting"))
    monkeypatch.setattr("kerneltrick.onnx.state_inputs", lambda _: ())
    monkeypatch.setattr("kerneltrick.analysis._timing.SECONDS", 0.0)
    for place, expected in COMMANDS[command].items():
        code, printed, said = run(*command.format(place).split())
        if expected == 0:
            assert code == 0, (place, said)
            assert command[:6] != "export" or re.search("writing x.onnx.*\n.*exporting", said)
            continue
        assert (code in (1, 2), printed, said.count("\n")) == (True, "", 1), (place, said)
        assert re.search(rf"kerneltrick: .*{re.escape(expected)}", said), (place, said)


@pytest.fixture
def out(made, tmp_path):
    """A folder that linearize wrote."""
    found, judged = made
    found.save(tmp_path / "out", judged)
    return tmp_path / "out"


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def alone(folder):
    """Whether nothing was left beside the folder."""
    return [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_files_that_the_user_added_stay_when_a_folder_is_replaced(made, out):
    found, judged = made
    before = names(out)
    (out / "notes.txt").write_text("mine")
    (out / "runs" / "1").mkdir(parents=True)
    (out / "runs" / "1" / "log.csv").write_text("mine too")
    (out / ".git" / "refs").mkdir(parents=True)  # empty, as git has it
    (out / "link").symlink_to(out.parent)
    (out / "linked").symlink_to("notes.txt")
    weights = (out / "model.safetensors").stat().st_ino
    found.save(out, judged, force=True)
    added = [".git", ".git/refs", "link", "linked", "notes.txt", "runs", "runs/1", "runs/1/log.csv"]
    assert names(out) == sorted(before + added)
    assert (out / "notes.txt").read_text() == "mine"
    assert (out / "runs" / "1" / "log.csv").read_text() == "mine too"
    assert (out / "linked").read_text() == "mine"
    assert (out / "model.safetensors").stat().st_ino != weights
    assert alone(out)
    found.save(out, judged, force=True)  # and once more
    assert names(out) == sorted(before + added)


@pytest.mark.parametrize("name", ["README.md", "model.safetensors"])
def test_files_that_the_user_changed_are_not_replaced(made, out, name):
    found, judged = made
    (out / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"{name} is not as linearize wrote it"):
        kt.hf.check_folder(out, True)
    with pytest.raises(FileExistsError, match=f"{name} is not as linearize wrote it"):
        found.save(out, judged, force=True)
    assert (out / name).read_text() == "mine"
    assert alone(out)


def test_a_link_in_place_of_a_file_is_the_users(made, out):
    elsewhere = out.parent / "weights"
    (out / "model.safetensors").rename(elsewhere)
    (out / "model.safetensors").symlink_to(elsewhere)
    with pytest.raises(FileExistsError, match="is not as linearize wrote it"):
        kt.hf.check_folder(out, True)


def test_an_added_file_with_the_name_of_a_new_one_is_not_replaced(made, out, monkeypatch):
    found, judged = made
    (out / "vocab.txt").write_text("mine")
    save = transformers.PreTrainedTokenizerFast.save_pretrained

    def with_more(tokenizer, folder, **how):
        (folder / "vocab.txt").write_text("new")
        return save(tokenizer, folder, **how)

    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", with_more)
    before = names(out)
    with pytest.raises(FileExistsError, match=r"vocab\.txt is not as linearize wrote it"):
        found.save(out, judged, force=True)
    assert (names(out), (out / "vocab.txt").read_text()) == (before, "mine")
    assert alone(out)


@pytest.mark.parametrize("kind", ["no list", "save_pretrained"])
def test_folders_without_a_list_of_files_are_known_by_their_names(made, out, kind):
    found, judged = made
    before = names(out)
    record = json.loads((out / "linearization.json").read_text())
    del record["files"]
    (out / "linearization.json").write_text(json.dumps(record))
    (out / "notes.txt").write_text("mine")
    if kind == "save_pretrained":  # nothing says that linearize wrote the card
        (out / "linearization.json").unlink()
        with pytest.raises(FileExistsError, match=r"README\.md is not as linearize wrote it"):
            found.save(out, judged, force=True)
        (out / "README.md").unlink()
    found.save(out, judged, force=True)
    assert names(out) == sorted([*before, "notes.txt"])


def test_a_link_to_a_folder_is_followed(made, out, tmp_path):
    found, judged = made
    (tmp_path / "link").symlink_to(out)
    (out / "notes.txt").write_text("mine")
    card = (out / "README.md").stat().st_ino
    found.save(tmp_path / "link", judged, force=True)
    assert (tmp_path / "link").is_symlink()
    assert (out / "README.md").stat().st_ino != card
    assert (out / "notes.txt").read_text() == "mine"


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(made, out, monkeypatch):
    found, judged = made
    rename, before = type(out).rename, names(out)

    def refuse(path, target):
        if path.name.endswith(".part"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return rename(path, target)

    monkeypatch.setattr(type(out), "rename", refuse)
    with pytest.raises(OSError, match=r"cannot write .*out: Device or resource busy"):
        found.save(out, judged, force=True)
    assert names(out) == before
    assert alone(out)


MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]


def sentence_modules(folder, modules=MODULES):
    """Make the model in a folder one of sentence-transformers."""
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    how = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    how["pooling_mode_mean_tokens"] = False
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(how))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    (folder / "LICENSE").write_text("free")


@pytest.fixture
def sentences(tmp_path):
    """The folder of a linearised model of sentence-transformers, and that of its original."""
    original = save_tiny(tmp_path / "original", "Bert", "AutoModel")
    sentence_modules(original)
    whole = "softmax@window=64"  # nothing is lost
    kt.hf.linearize(original, WINDOWS, whole, out=tmp_path / "out")
    return tmp_path / "out", original


def test_modules_of_sentence_transformers_come_along(sentences):
    out, original = sentences
    for name in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "LICENSE"):
        assert (out / name).read_bytes() == (original / name).read_bytes()
    files = json.loads((out / "linearization.json").read_text())["files"]
    assert "1_Pooling/config.json" in files
    (out / "1_Pooling" / "notes.txt").write_text("mine")
    kt.hf.linearize(original, WINDOWS, "softmax@window=64", out=out, force=True)
    assert (out / "1_Pooling" / "notes.txt").read_text() == "mine"
    (out / "1_Pooling" / "config.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"1_Pooling/config\.json is not as linearize wrote"):
        kt.hf.check_folder(out, True)


def test_sentence_transformers_gives_the_embeddings_of_the_original(sentences):
    package = pytest.importorskip("sentence_transformers")
    texts = ["w3 w4 w5", "w40 w7 w7 w9 w30"]
    ours, theirs = (
        package.SentenceTransformer(str(folder), device="cpu").encode(texts) for folder in sentences
    )
    assert abs(ours - theirs).max() < 1e-4
    assert abs((ours**2).sum(-1) - 1).max() < 1e-5


def test_modules_of_a_model_on_the_hub_are_fetched(tmp_path, monkeypatch):
    from kerneltrick.hf._companions import copy_companions

    hub, asked = tmp_path / "hub", []
    hub.mkdir()
    sentence_modules(hub)

    def fetch(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(hub)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    (tmp_path / "out").mkdir()
    copy_companions("owner/name", tmp_path / "out")
    assert names(tmp_path / "out") == names(hub)
    assert [name for name, _ in asked] == ["owner/name"] * 2
    assert asked[1][1] == ["1_Pooling/*", "2_Normalize/*"]

    def lost(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", lost)
    with pytest.raises(kt.hf.CaptureError, match="owner/name cannot be loaded: no route"):
        copy_companions("owner/name", tmp_path / "out")


def fail(*_):
    raise AssertionError("the work began")


def test_modules_outside_the_model_are_refused(tmp_path):
    original, out = save_tiny(tmp_path / "original", "Bert", "AutoModel"), tmp_path / "out"
    for path in ("../outside", "/etc", "a/../../b"):
        sentence_modules(original, [*MODULES, (path, "Dense")])
        with pytest.raises(kt.hf.CaptureError, match="names a folder outside the model"):
            kt.hf.linearize(original, WINDOWS, "softmax@window=4", out=out, progress=fail)
        assert not out.exists()


@pytest.mark.parametrize("links", [True, False])
def test_the_users_files_are_in_both_folders_until_the_old_one_is_removed(
    made, out, monkeypatch, links
):
    found, judged = made
    (out / "runs").mkdir()
    (out / "runs" / "log.csv").write_text("mine")
    (out / "notes.txt").write_text("mine")
    places = []

    def removed(folder, **_):  # as after a kill: nothing is removed
        places.append(folder)

    def without(*_, **__):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", without)
    monkeypatch.setattr(kt.hf._folder.shutil, "rmtree", removed)
    found.save(out, judged, force=True)
    (old,) = (folder for folder in places if folder.name.endswith(".old"))
    for folder in (out, old):
        assert (folder / "notes.txt").read_text() == "mine"
        assert (folder / "runs" / "log.csv").read_text() == "mine"


def test_the_record_is_how_the_model_was_made(made, out):
    assert kt.hf.read_record(out) == json.loads(json.dumps(made[0].record(), default=list))


def full_while(monkeypatch, owner, name):
    """Let a method write files of at most 1000 bytes, as on a disk that is full."""
    whole = getattr(owner, name)

    def limited(*arguments, **keywords):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            return whole(*arguments, **keywords)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(owner, name, limited)


@pytest.mark.parametrize("what", ["weights", "tokenizer", "card"])
def test_a_full_disk_is_one_sentence_and_the_old_folder_stays(made, out, monkeypatch, what):
    found, judged = made
    before = {name: (out / name).read_bytes() for name in names(out)}
    if what == "weights":
        full_while(monkeypatch, type(found.model), "save_pretrained")
    elif what == "tokenizer":
        full_while(monkeypatch, transformers.PreTrainedTokenizerFast, "save_pretrained")
    else:

        def full(path, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        monkeypatch.setattr(kt.hf._folder, "write", full)
    reason = "No space left on device" if what == "card" else "File too large"
    with pytest.raises(OSError, match=f"^cannot write {out}: {reason}$"):
        found.save(out, judged, force=True)
    assert {name: (out / name).read_bytes() for name in names(out)} == before
    assert alone(out)


def test_a_folder_that_cannot_be_written_is_said_before_the_work(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=f"there is no folder {tmp_path}/none$"):
        kt.hf.check_folder(tmp_path / "none" / "out", False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # a test may run as root
    with pytest.raises(OSError, match=f"Permission denied in the folder {tmp_path}$"):
        kt.hf.check_folder(Path("out"), False)
