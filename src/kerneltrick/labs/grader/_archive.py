"""Zip files that students hand in: unpacked with limits, or refused with a reason.

Only Python files and notebooks are unpacked, so nothing else in the archive can do harm, and zip
files that are in no other one, as a course system puts them into the zip file of a class. Their
sizes are counted while they are read: what the archive says about itself is not trusted.
"""

from __future__ import annotations

import datetime
import os
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

LARGEST_ARCHIVE = 2**26  # bytes on disk
LARGEST_UNPACKED = 2**27  # bytes of Python files and notebooks, and of zip files inside
LARGEST_DIRECTORY = 2**22  # bytes of the list of entries, which is read into memory
MOST_FILES = 2000  # entries
MOST_UNPACKED = 20_000  # files, with those of the zip files inside
DEEPEST_PATH = 12  # folders
ARCHIVES = (".zip", ".rar", ".7z", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst")
_UNPACKED = {".py", ".ipynb"}
_END = struct.Struct("<4s4H2LH")  # the record at the end of a zip file
_ENCRYPTED = 0x1
_OTHER = "a {} archive; only .zip is unpacked"
_DEEPER = "a zip file in a zip file in a zip file: unpack the outer one"


@dataclass
class Budget:
    """What may still be written for a zip file and those inside it."""

    size: int = field(default_factory=lambda: LARGEST_UNPACKED)
    files: int = field(default_factory=lambda: MOST_UNPACKED)


class NotUnpacked(Exception):
    """The archive is not unpacked; the text is the reason."""


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive, be it one that can be unpacked or not."""
    return path.suffix.lower() in ARCHIVES


def unpack(archive: Path, target: Path, budget: Budget, inside: bool = False) -> dict[str, str]:
    """Write the Python files, notebooks and zip files of a zip file into `target`, a new folder.

    With `inside`, the zip file was in another one, and zip files in it are left out. Returns the
    archives that are left out, each with the reason. Raises NotUnpacked for anything that is not a
    plain zip file of a reasonable size whose paths stay inside the folder.
    """
    if archive.suffix.lower() != ".zip":
        raise NotUnpacked(_OTHER.format(archive.suffix.lower()))
    left_out: dict[str, str] = {}
    try:
        _check_size(archive)
        with zipfile.ZipFile(archive) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            for entry, path in _wanted(entries):
                suffix = path.suffix.lower()
                if suffix in ARCHIVES and (inside or suffix != ".zip"):
                    left_out[entry.filename] = (
                        _DEEPER if suffix == ".zip" else _OTHER.format(suffix)
                    )
                    continue
                content = _read(opened, entry, budget)
                _write(target / path, content, entry)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise NotUnpacked(f"not a zip file that can be read ({type(error).__name__})") from None
    except RuntimeError:  # zipfile's word for a password
        raise NotUnpacked("the zip file has a password") from None
    except OSError as error:
        raise NotUnpacked(f"the zip file cannot be unpacked: {error.strerror}") from None
    return left_out


def _check_size(archive: Path) -> None:
    """Refuse an archive whose list of entries would fill the memory, before zipfile reads it."""
    size = archive.stat().st_size
    if size > LARGEST_ARCHIVE:
        raise NotUnpacked(f"the zip file has {size:,} bytes; at most {LARGEST_ARCHIVE:,} are read")
    with archive.open("rb") as file:
        file.seek(max(0, size - _END.size - 2**16))
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise zipfile.BadZipFile
    _, _, _, _, count, directory, _, _ = _END.unpack_from(tail, at)
    if count > MOST_FILES or directory > LARGEST_DIRECTORY:  # so does zip64, which has 0xFFFF here
        raise NotUnpacked(f"the zip file has more than {MOST_FILES:,} entries")


def _wanted(entries: list[zipfile.ZipInfo]) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """The entries to unpack, each with its path, and all archives."""
    if len(entries) > MOST_FILES:
        raise NotUnpacked(f"the zip file has more than {MOST_FILES:,} entries")
    found = []
    for entry in entries:
        name = entry.filename.replace("\\", "/")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or name[1:2] == ":":
            raise NotUnpacked(f"a path in the zip file leads out of it: {entry.filename}")
        archive = path.suffix.lower() in ARCHIVES
        if not (archive or path.suffix in _UNPACKED) or _is_link(entry):
            continue
        if len(path.parts) > DEEPEST_PATH or any(_of_macos(part) for part in path.parts):
            continue
        if entry.flag_bits & _ENCRYPTED:
            raise NotUnpacked("the zip file has a password")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NotUnpacked("the zip file is compressed in an unusual way")
        found.append((entry, path))
    return found


def _of_macos(part: str) -> bool:
    return part == "__MACOSX" or part.startswith("._")


def _is_link(entry: zipfile.ZipInfo) -> bool:
    return stat.S_ISLNK(entry.external_attr >> 16)


def _read(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: Budget) -> bytes:
    with opened.open(entry) as stream:
        content = stream.read(budget.size + 1)
    if len(content) > budget.size:
        raise NotUnpacked(f"the zip file holds more than {LARGEST_UNPACKED:,} bytes of code")
    if budget.files < 1:
        raise NotUnpacked(f"the zip file holds more than {MOST_UNPACKED:,} files of code")
    budget.size -= len(content)
    budget.files -= 1
    return content


def _write(path: Path, content: bytes, entry: zipfile.ZipInfo) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:  # the newest of several versions may count
        when = datetime.datetime(*entry.date_time).timestamp()
        os.utime(path, (when, when))
    except (ValueError, OverflowError, OSError):
        pass
