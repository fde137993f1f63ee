"""Writing files: to standard output, a device, a pipe, or a regular file that appears whole.

Every output goes through `writing`. It refuses to replace a file that the current command reads.
This module also reads files of tensors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]

_inputs: list[Path] = []  # files and folders that must not be overwritten now, see `protecting`


def read_tensors(path: AnyPath, kind: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the metadata and the NumPy arrays of a safetensors file.

    `kind` is what error messages call the file.
    """
    import safetensors  # slow to import

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {kind} at {os.fspath(path)}")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except Exception as error:
        raise ValueError(f"{os.fspath(path)} is not a readable {kind}: {error}") from None


def write(path: AnyPath, content: str | bytes) -> None:
    """Write `content` to `path` as `writing` does. Text is encoded as UTF-8."""
    with writing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def append(path: AnyPath, text: str) -> None:
    """Append `text` to a file."""
    try:
        _refuse_input(path)
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise _told(path, error) from error


@contextlib.contextmanager
def writing(path: AnyPath) -> Iterator[BinaryIO]:
    """Open `path` for writing bytes. An OSError is reported in one sentence.

    `-` and every other name of standard output mean standard output. Devices and pipes are written
    to directly. Links are followed. A regular file appears whole or not at all: the bytes go to a
    temporary file in the same folder, which is renamed at the end. A file that the current command
    reads is refused (see `protecting`).
    """
    try:
        _refuse_input(path)
        target = regular_file(path)
        if is_standard_output(path):
            if not hasattr(sys.stdout, "buffer"):  # a notebook's, or one of a test
                raise OSError(errno.ENOTSUP, "it does not accept bytes here")
            sys.stdout.flush()
            yield sys.stdout.buffer
            sys.stdout.flush()
        elif target is None:
            with open(path, "ab") as stream:  # "wb" would truncate what a descriptor appends to
                yield stream
        else:
            with _replacing(target) as stream:
                yield stream
    except OSError as error:
        raise _told(path, error) from error


def check_writable(path: AnyPath) -> None:
    """Raise OSError now, rather than after the work, if `path` cannot be written."""
    try:
        _refuse_input(path)
        target = regular_file(path)
        if target is not None:
            with _part_of(target):
                pass
        elif not is_standard_output(path):
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _told(path, error) from error


@contextlib.contextmanager
def protecting(inputs: Iterable[AnyPath]) -> Iterator[None]:
    """While it lasts, nothing can be written over these files or over what these folders hold.

    Links are followed. Files of a folder that this package wrote there itself may be replaced:
    reports, and the finished pieces of an unfinished run.
    """
    before = len(_inputs)
    _inputs.extend(Path(path).absolute() for path in inputs)
    try:
        yield
    finally:
        del _inputs[before:]


def check_folder_writable(folder: AnyPath) -> None:
    """Raise OSError now, rather than after the work, if `folder` cannot be made or replaced.

    A folder that holds an input of the current command (see `protecting`) is refused.
    """
    target = Path(os.path.realpath(folder))
    try:
        for read in _inputs:
            if Path(os.path.realpath(read)).is_relative_to(target):
                reason = f"this command reads {read}; give the output another name"
                raise FileExistsError(errno.EEXIST, reason)
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK):
            reason = f"{os.strerror(errno.EACCES)} in the folder {target.parent}"
            raise PermissionError(errno.EACCES, reason)
    except OSError as error:
        raise _told(folder, error) from error


@contextlib.contextmanager
def new_folder(folder: AnyPath) -> Iterator[None]:
    """Make a folder and those above it; after an error inside, remove those that are empty."""
    path = Path(folder).absolute()
    made = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # it is not empty
            for each in made:
                each.rmdir()
        raise


def _refuse_input(path: AnyPath) -> None:
    if not _inputs:
        return
    try:
        output = os.fstat(1) if is_standard_output(path) else os.stat(path)
    except (OSError, ValueError):
        return  # nothing is there that could be lost
    if not stat.S_ISREG(output.st_mode):
        return
    for read in _inputs:
        if _is_same(read, output):
            reason = "this command reads it"
        elif read.is_dir() and _is_in(read, path, output) and not _is_replaceable(Path(path)):
            reason = f"this command reads the folder {read}"
        else:
            continue
        raise FileExistsError(errno.EEXIST, f"{reason}; give the output another name")


def _is_same(path: Path, other: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(path.stat(), other)
    return False


def _is_in(folder: Path, path: AnyPath, output: os.stat_result) -> bool:
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return inside or any(_is_same(entry, output) for entry in folder.iterdir())


def _is_replaceable(path: Path) -> bool:
    """Whether this package wrote the file: a report, or pieces of an unfinished run."""
    if path.name.startswith(".") and ".unfinished" in path.name:
        return True
    try:
        with path.open("rb") as file:
            start = file.read(200).lstrip().lower()
    except OSError:
        return False
    report = rb'\{\s*"format": "kerneltrick\.(compare|evaluate|inspect|recall)/'
    return start.startswith(b"<!doctype html") or re.match(report, start) is not None


def is_standard_output(path: AnyPath) -> bool:
    """Return whether `path` is `-`, or leads to the same place as standard output (/dev/stdout)."""
    if os.fspath(path) == "-":
        return True
    with contextlib.suppress(OSError):
        found, ours = os.stat(path), os.fstat(1)
        named = _is_descriptor(Path(path)) or stat.S_ISREG(found.st_mode)
        return named and os.path.samestat(found, ours)
    return False


def regular_file(path: AnyPath) -> Path | None:
    """Return the regular file that `path` names or would create, with links followed, or None.

    An open descriptor such as /dev/fd/3 gives None even if it leads to a file: whoever opened it
    would keep the old file when the name gets a new one.
    """
    if os.fspath(path) == "-" or _is_descriptor(Path(path)):
        return None
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
    return Path(os.path.realpath(path))


def _is_descriptor(path: Path) -> bool:
    for _ in range(40):  # as many links as Linux follows
        folder = os.path.realpath(path.parent)
        if re.fullmatch(r"/proc/\d+(/task/\d+)?/fd", folder):
            return True
        if not path.is_symlink():
            return False
        path = Path(folder, os.readlink(path))
    return False


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    with _part_of(target) as part:
        with part.open("wb") as stream:
            yield stream
        os.replace(part, target)


@contextlib.contextmanager
def _part_of(target: Path) -> Iterator[Path]:
    """Create an empty file beside `target`, with its owner and permissions; remove it later."""
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # Truncated, because the name may already be as long as the file system allows.
    part = target.with_name(f".{target.name[:32]}.{os.getpid()}.{os.urandom(4).hex()}.part")
    part.touch(exist_ok=False)
    try:
        with contextlib.suppress(OSError):  # a new file, or no permission to change the owner
            old = target.stat()
            part.chmod(stat.S_IMODE(old.st_mode))
            os.chown(part, old.st_uid, old.st_gid)
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _told(path: AnyPath, error: OSError) -> OSError:
    name = "standard output" if os.fspath(path) == "-" else os.fspath(path)
    told = type(error)(f"cannot write {name}: {error.strerror or error}")
    told.errno = error.errno
    return told
