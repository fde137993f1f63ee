"""The folder of a linearised model: its weights, its tokenizer, its card, and how it was made.

The folder is written beside its final place and then renamed, so it appears as a whole or not at
all. It lists the files that were written, with their digests. When a folder is replaced, everything
else in it belongs to the user: added files are carried over, and changed files are never replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerneltrick._files import check_folder_writable, write
from kerneltrick._text import to_json
from kerneltrick.hf._capture import load_tokenizer, quiet
from kerneltrick.hf._card import model_card
from kerneltrick.hf._companions import copy_companions
from kerneltrick.hf._evaluate import Evaluation
from kerneltrick.hf._linearized import NAME, Linearized
from kerneltrick.hf._record import FILES, RECORD, read_json

CARD = "README.md"

# What transformers writes into the folder of a model, for folders without a list of their files.
_USUAL = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)"
    r"\.json|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|(merges|vocab)\.txt|"
    r"(spiece|sentencepiece\.bpe|tokenizer)\.model|chat_template\.jinja"
)
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # how libraries written in Rust report errno


def save_folder(
    out: Path,
    model: Linearized,
    teacher: str,
    judged: Evaluation,
    errors: Mapping[int, float],
    kept: Mapping[int, str],
    remarks: Sequence[str],
    record: Mapping[str, Any],
    *,
    force: bool = False,
) -> None:
    """Write the folder as a whole or not at all.

    An existing folder is an error, unless `force` is given and it holds a linearised model. Files
    that linearize did not write stay in it.
    """
    card = model_card(model, Path(teacher).name, judged, errors, kept, remarks)
    with _one_sentence(out), _replacing(out, force) as folder, quiet():
        model.save_pretrained(folder)
        load_tokenizer(teacher).save_pretrained(folder)
        copy_companions(teacher, folder)
        write(folder / CARD, card)
        files = {name: _digest(folder / name) for name in sorted(_files(folder))}
        write(folder / RECORD, to_json({**record, FILES: files}, indent=2) + "\n")


def check_folder(out: Path, force: bool) -> None:
    """Raise OSError now, rather than after the work, if the folder cannot be written."""
    out = Path(os.path.realpath(out))
    if out.exists():
        if not force:
            raise FileExistsError(f"{out} exists; choose another folder, or replace it (--force)")
        config = read_json(out / "config.json")
        if config is None or config.get("model_type") != NAME:
            raise FileExistsError(
                f"{out} exists and holds no linearised model, so it is not replaced"
            )
        _added_files(out)
    check_folder_writable(out)


@contextlib.contextmanager
def _replacing(out: Path, force: bool) -> Iterator[Path]:
    """Yield a new folder that takes the place of `out` at the end, or vanishes after an error."""
    check_folder(out, force)
    out = Path(os.path.realpath(out))
    part, old = _beside(out, "part"), _beside(out, "old")
    part.mkdir()
    try:
        yield part
        if out.exists():
            added = _added_files(out)
            for name in added:
                if _collides(Path(name), part):
                    raise _not_ours(out / name)
            _carry_over(out, part, set(_files(out)) - set(added))
            out.rename(old)
        try:
            part.rename(out)
        except BaseException:
            if old.exists():
                old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _beside(out: Path, what: str) -> Path:
    """Return a new hidden name beside `out`."""
    # The name is cut short, as it may be as long as the file system allows already.
    return out.with_name(f".{out.name[:32]}.{os.getpid()}.{os.urandom(4).hex()}.{what}")


def _carry_over(old: Path, new: Path, written: set[str], inside: str = "") -> None:
    """Link all but the files that linearize wrote into the new folder.

    They are in both folders until the old one is removed, so that a kill loses none of them.
    """
    for entry in sorted((old / inside).iterdir()):
        name = entry.relative_to(old).as_posix()
        if not entry.is_dir() or entry.is_symlink():
            if name not in written:
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                _link(entry, new / name)
        elif (new / name).is_dir() or any(x.startswith(f"{name}/") for x in written):
            _carry_over(old, new, written, name)
        else:
            shutil.copytree(entry, new / name, symlinks=True, copy_function=_link)


def _link(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _added_files(folder: Path) -> list[str]:
    """Return the files that the user added to a linearised model; one that was changed raises."""
    added, changed = _users_files(folder)
    if changed:
        raise _not_ours(folder / changed[0])
    return added


def _not_ours(path: Path) -> FileExistsError:
    return FileExistsError(
        f"{path} is not as linearize wrote it, so it is not replaced; move it, or choose another "
        "folder"
    )


def _users_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files that the user added to a linearised model, and those that were changed."""
    record = read_json(folder / RECORD)
    listed = (record or {}).get(FILES)
    added: list[str] = []
    changed: list[str] = []
    for name in sorted(_files(folder)):
        path = folder / name
        if isinstance(listed, dict):
            if name in listed and not _is_as_written(path, listed[name]):
                changed.append(name)
            elif name not in listed and name != RECORD:
                (changed if name == CARD else added).append(name)
        elif name == CARD and record is None:  # save_pretrained alone wrote the folder
            changed.append(name)
        elif name not in (CARD, RECORD) and not _USUAL.fullmatch(name):
            added.append(name)
    return added, changed


def _files(folder: Path) -> Iterator[str]:
    """Yield all files and links by their path in the folder."""
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        for name in (*files, *links):
            yield Path(place, name).relative_to(folder).as_posix()


def _is_as_written(path: Path, digest: Any) -> bool:
    return path.is_file() and not path.is_symlink() and _digest(path) == digest


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _collides(name: Path, part: Path) -> bool:
    """Return whether a file of this name cannot be put into the new folder."""
    above = [parent for parent in name.parents if parent.parts]
    return os.path.lexists(part / name) or any((part / parent).is_file() for parent in above)


@contextlib.contextmanager
def _one_sentence(out: Path) -> Iterator[None]:
    """Turn what the system refuses (a full disk, no permission) into an OSError of one sentence."""
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        raise _told(str(out), error) from error
    except Exception as error:  # safetensors and tokenizers have exceptions of their own for this
        number = _SYSTEM_ERROR.search(str(error))
        if number is None:
            raise
        raise _told(str(out), OSError(int(number[1]), os.strerror(int(number[1])))) from error


def _told(where: str, error: OSError) -> OSError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    told = OSError(f"cannot write {where}: {reason}")
    told.errno = error.errno
    return told
