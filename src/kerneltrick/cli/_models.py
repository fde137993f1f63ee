"""Which models and files each command takes, and what to do instead with the others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kerneltrick._folders import Kind, kind_of
from kerneltrick.cli._arguments import UsageError

MODELS = (Kind.TRAINED, Kind.LINEARIZED, Kind.TRANSFORMERS)
TAKES: dict[str, tuple[Kind, ...]] = {
    "generate": MODELS,
    "inspect": MODELS,
    "evaluate": (Kind.TRAINED, Kind.LINEARIZED),
    "export": (Kind.TRAINED,),
    "accelerate": (Kind.TRANSFORMERS,),
    "capture": (Kind.TRANSFORMERS,),
    "linearize": (Kind.TRANSFORMERS,),
    "evaluate --teacher": (Kind.TRANSFORMERS,),
    "compare": (Kind.ATTENTION,),
    "fit": (Kind.ATTENTION,),
}
# What to do instead, where it is more than to use a command that takes this kind.
INSTEAD: dict[tuple[str, Kind], str] = {
    **{
        (command, Kind.TRANSFORMERS): "record them first with kerneltrick capture"
        for command in ("compare", "fit")
    },
    **{
        (command, Kind.LINEARIZED): "it is linearised already, so give the original model"
        for command in ("capture", "linearize", "evaluate --teacher", "compare", "fit")
    },
    ("compare", Kind.MAPS): "name them with --map",
    ("evaluate", Kind.TRANSFORMERS): "linearise it first with kerneltrick linearize",
    ("accelerate", Kind.LINEARIZED): "it runs on the compiled core already; kerneltrick evaluate "
    "--contexts measures its speed",
    ("accelerate", Kind.TRAINED): "it runs on the compiled core already",
}


def check_model(command: str, place: str | os.PathLike[str]) -> Kind:
    """Return what a place holds; raise UsageError with a remedy if the command cannot use it.

    A name may be that of a model on the hub, and a file of an unknown kind may hold queries, keys
    and values; loading finds out.
    """
    kind, takes = kind_of(place), TAKES[command]
    unknown = {Kind.NOTHING: Kind.TRANSFORMERS, Kind.OTHER: Kind.ATTENTION}
    if kind in takes or unknown.get(kind) in takes:
        return kind
    wanted = f"{command} takes {_either([each.value for each in takes])}"
    if kind is Kind.NOTHING:
        raise UsageError(f"there is no file or folder {place}; {wanted}")
    folder = Path(place).parent
    if kind is Kind.OTHER and Path(place).is_file() and kind_of(folder) in takes:
        raise UsageError(f"{place} is a part of a model; give its folder, {folder}")
    if kind is Kind.OTHER:
        raise UsageError(f"{place} holds no model; {wanted}")
    users = [other for other, kinds in TAKES.items() if kind in kinds]
    default = f"use it with kerneltrick {_either(users)}" if users else "see kerneltrick --help"
    if kind is Kind.MAPS:
        default = "judge them with kerneltrick compare --map"
    remedy = INSTEAD.get((command, kind), default)
    raise UsageError(f"{place} holds {kind.value}, but {wanted}: {remedy}")


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
