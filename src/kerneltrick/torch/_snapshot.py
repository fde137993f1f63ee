"""Snapshots of a training with Adam, so that it can continue after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from kerneltrick._files import read_tensors, write

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

MOMENTS = ("exp_avg", "exp_avg_sq")  # what Adam stores for a parameter


def save_snapshot(
    path: Path,
    about: dict[str, str],
    optimizer: Any,
    parameters: dict[str, Tensor],
    best: dict[str, Tensor],
    more: dict[str, Any],
) -> None:
    """Write the parameters, the best ones so far, Adam's moments and the arrays in `more`.

    `about` identifies the run by "format" and "key", and has the number of steps in "step".
    """
    import safetensors.numpy  # here, because it would slow down every import

    tensors = dict(more)
    for name, x in parameters.items():
        moments = {part: optimizer.state[x][part] for part in MOMENTS}
        parts = {"now": x.detach(), "best": best[name], **moments}
        tensors |= {f"{part}.{name}": value.cpu().numpy() for part, value in parts.items()}
    tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    write(path, safetensors.numpy.save(tensors, about))


def load_snapshot(
    path: Path,
    about: dict[str, str],
    optimizer: Any,
    parameters: dict[str, Tensor],
    best: dict[str, Tensor],
) -> tuple[dict[str, str], dict[str, Any]] | None:
    """Restore a snapshot and return its metadata and other arrays, or None if there is none.

    A file whose "format" or "key" differs from `about` belongs to another run and is ignored.
    """
    try:
        found, tensors = read_tensors(path, "unfinished run")
    except (FileNotFoundError, ValueError):
        return None
    if any(found.get(name) != about[name] for name in ("format", "key")):
        return None
    step = torch.tensor(float(found["step"]))
    with torch.no_grad():
        for name, x in parameters.items():
            now, kept, *moments = (
                torch.from_numpy(tensors[f"{part}.{name}"]).to(x.device)
                for part in ("now", "best", *MOMENTS)
            )
            x.copy_(now)
            best[name] = kept
            known = dict(zip(MOMENTS, moments, strict=True))
            optimizer.state[x] = {"step": step.clone(), **known}
    return found, tensors
