"""Files beside a model's weights that belong to it: modules of sentence-transformers, licences.

sentence-transformers builds a model from `modules.json`, which names a folder for each module after
the transformer (pooling, normalisation, dense layers). Without these files it would make up a mean
pooling and leave the rest out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath

import huggingface_hub

from kerneltrick.hf._capture import load
from kerneltrick.hf._recorder import CaptureError

MODULES = "modules.json"
PATTERNS = (MODULES, "config_sentence_transformers.json", "sentence_*_config.json", "LICENSE*")


def copy_companions(teacher: str, folder: Path) -> None:
    """Copy the files that belong to a model into the folder of its linearised form.

    teacher: the folder of the model, or its name on the hub.
    """
    source = _local(teacher, PATTERNS)
    for pattern in PATTERNS:
        for path in source.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    modules = _module_folders(teacher, source / MODULES)
    if modules:
        source = _local(teacher, [f"{name}/*" for name in modules])
    for name in modules:
        if (source / name).is_dir():  # modules without settings have no folder
            shutil.copytree(source / name, folder / name, copy_function=shutil.copyfile)


def check_companions(teacher: str) -> None:
    """Raise CaptureError now, rather than after the work, if the files cannot be copied."""
    _module_folders(teacher, _local(teacher, PATTERNS) / MODULES)


def _module_folders(teacher: str, path: Path) -> list[str]:
    """Return the folders of all modules but the transformer, which is replaced."""
    if not path.is_file():
        return []
    try:
        found = [module["path"] for module in json.loads(path.read_text(encoding="utf-8"))]
        names = [PurePosixPath(name) for name in found if name]
    except (ValueError, TypeError, KeyError):
        raise CaptureError(f"{teacher}: {MODULES} is not a list of modules") from None
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise CaptureError(f"{teacher}: {MODULES} names a folder outside the model: {name}")
    return [str(name) for name in names]


def _local(teacher: str, patterns: list[str] | tuple[str, ...]) -> Path:
    """Return the folder of the model; for a model on the hub, fetch the files first."""
    if Path(teacher).is_dir():
        return Path(teacher)

    def fetch(where: str, **_: object) -> str:
        return str(huggingface_hub.snapshot_download(where, allow_patterns=list(patterns)))

    return Path(load(teacher, fetch))
