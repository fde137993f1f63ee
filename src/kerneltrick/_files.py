"""Where everything that is written goes: standard output, a device or pipe, or a whole file.

And files of tensors, read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]


def read_tensors(path: AnyPath, kind: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Metadata and NumPy arrays of a safetensors file; `kind` is what errors call it."""
    import safetensors  # it would slow every import

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {kind} at {os.fspath(path)}")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except Exception as error:
        raise ValueError(f"{os.fspath(path)} is not a readable {kind}: {error}") from None


def write(path: AnyPath, content: str | bytes) -> None:
    """Write `path` as `writing` does; a text as UTF-8."""
    with writing(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def append(path: AnyPath, text: str) -> None:
    """Add a text to the end of a file."""
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise _told(path, error) from error


@contextlib.contextmanager
def writing(path: AnyPath) -> Iterator[BinaryIO]:
    """A stream of bytes into `path`; an OSError is one sentence.

    `-` and every other name of standard output are standard output. Whatever is no regular file (a
    device, a pipe) is written to as it is. Links are followed. A regular file appears whole or not
    at all: it is written beside, and renamed at the end.
    """
    try:
        target = regular_file(path)
        if is_standard_output(path):
            if not hasattr(sys.stdout, "buffer"):  # a notebook's, or one of a test
                raise OSError(errno.ENOTSUP, "it takes no bytes here")
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
    """OSError now, rather than after the work, if `path` cannot be written."""
    try:
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


def is_standard_output(path: AnyPath) -> bool:
    """Whether `path` is `-`, or leads to what standard output leads to, as /dev/stdout does."""
    if os.fspath(path) == "-":
        return True
    with contextlib.suppress(OSError):
        found, ours = os.stat(path), os.fstat(1)
        named = _is_descriptor(Path(path)) or stat.S_ISREG(found.st_mode)
        return named and os.path.samestat(found, ours)
    return False


def regular_file(path: AnyPath) -> Path | None:
    """The file that `path` names or would make, links followed; None for anything else.

    An open descriptor, such as /dev/fd/3, is something else even where it leads to a file: whoever
    opened it keeps the old file when the name gets a new one.
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
    """An empty file beside `target`, with its owner and its rights; removed at the end."""
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {target.parent}")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    # Cut short: the name may be as long as the file system allows already.
    part = target.with_name(f".{target.name[:32]}.{os.getpid()}.{os.urandom(4).hex()}.part")
    part.touch(exist_ok=False)
    try:
        with contextlib.suppress(OSError):  # a new file, or no right to give it away
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
