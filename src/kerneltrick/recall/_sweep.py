"""A sweep: every training is one task for a worker, and is stored as soon as it is finished."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from kerneltrick._executor import Piece, Team
from kerneltrick._install import missing
from kerneltrick._progress import ProgressReport
from kerneltrick._version import __version__
from kerneltrick.analysis import Store, run_key
from kerneltrick.recall._result import RecallResult, Training, points_of
from kerneltrick.recall._settings import RecallSettings


def recall(
    settings: RecallSettings,
    *,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> RecallResult:
    """Train every model of the settings and measure its accuracy.

    Settings that cannot work are refused before the first training. `resume` is a file for finished
    trainings: after a kill, the same call does only the remaining ones. Long trainings also store
    snapshots in a folder beside it and continue from them on the same machine. `executor` is any
    executor of `concurrent.futures`; None runs the trainings here, one after the other.
    """
    check(settings, resume)
    store = Store(resume, _run(settings))
    pieces = pieces_of(settings)
    left = {piece.key: piece for piece in pieces if store.get(piece.key) is None}

    def tell() -> None:
        if progress is not None:
            what = next(iter(left.values())).what if left else "done"
            progress(what, len(pieces) - len(left), len(pieces))

    tell()
    folder = None if resume is None else resume.with_name(resume.name + "-trainings")
    with Team((settings, folder), executor) as team:
        for piece, value in team.results(_work, list(left.values())):
            store.put(piece.key, value)
            del left[piece.key]
            tell()
    if folder is not None:
        with contextlib.suppress(OSError):  # it does not exist, or it holds files of others
            folder.rmdir()
    trainings = [Training(**_named(piece), **store.get(piece.key)) for piece in pieces]
    return RecallResult(settings.to_dict(), trainings, points_of(trainings))


def pieces_of(settings: RecallSettings) -> list[Piece]:
    """One piece of work for each training, small models first, so that results come early."""
    return [
        Piece(
            f"{mixer} {width} {rate:g} {seed}",
            f"{mixer}, width {width}, seed {seed}",
            (mixer, width, rate, seed),
        )
        for width in sorted(settings.widths)
        for seed in range(settings.seeds)
        for rate in settings.rates
        for mixer in settings.mixers
    ]


def check(settings: RecallSettings, resume: Path | None = None) -> None:
    """Raise ValueError if a mixer cannot have a width, or if `resume` has other settings."""
    try:
        import torch
    except ImportError as error:
        raise missing("kerneltrick.recall needs PyTorch", "torch", error) from None
    from kerneltrick.torch.mixers import make

    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        for width in settings.widths:
            for mixer in settings.mixers:
                try:
                    make(mixer, width, settings.heads)
                except ValueError as error:
                    raise ValueError(f"{mixer!r} at width {width}: {error}") from None
    if resume is None or not resume.is_file():
        return
    with resume.open(encoding="utf-8", errors="replace") as file:
        found = file.readline().strip()
    if found and found != _run(settings):
        raise ValueError(
            f"{resume} holds finished trainings with other settings: repeat those settings to "
            "continue, write to another file, or delete it"
        )


def _run(settings: RecallSettings) -> str:
    return run_key(__version__, repr(settings))


def _named(piece: Piece) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(Training)]
    return dict(zip(names, piece.arguments, strict=False))


def _work(shared: tuple[RecallSettings, Path | None], *arguments: Any) -> dict[str, Any]:
    from kerneltrick.recall._train import train_piece  # import PyTorch only to train

    settings, folder = shared
    return train_piece(settings, *arguments, folder=folder)
