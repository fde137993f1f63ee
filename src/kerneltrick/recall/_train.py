"""One training: a model with one mixer and width learns the task and is tested on it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from kerneltrick._version import __version__
from kerneltrick.analysis import run_key
from kerneltrick.recall._model import RecallModel
from kerneltrick.recall._settings import RecallSettings
from kerneltrick.recall._task import Examples
from kerneltrick.torch import load_snapshot, save_snapshot

FORMAT = "kerneltrick.recall.training/1"
PATIENCE = 60.0  # seconds of CPU time between two snapshots
LOOKS = 20  # points on the curve of the loss
ROWS = 128  # sequences that are tested at once


def train_piece(
    settings: RecallSettings,
    mixer: str,
    width: int,
    rate: float,
    seed: int,
    *,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Train one model and return its result; all random numbers depend on the seed alone.

    Snapshots go to `folder`; after a kill, the training continues from the last one.
    """
    key = run_key(__version__, repr(settings), mixer, width, rate, seed)
    path = None if folder is None else folder / f"{key[:16]}.safetensors"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that results do not depend on how many trainings run
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = RecallModel(settings.task.vocabulary, mixer, width, settings.heads)
            return _trained(settings, model, rate, seed, path, {"format": FORMAT, "key": key})
    finally:
        torch.set_num_threads(threads)


def _trained(
    settings: RecallSettings,
    model: RecallModel,
    rate: float,
    seed: int,
    path: Path | None,
    about: dict[str, str],
) -> dict[str, Any]:
    begun = saved = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=settings.weight_decay)
    parameters = dict(model.named_parameters())
    losses: list[float] = []
    found = None if path is None else load_snapshot(path, about, optimizer, parameters, {})
    if found is not None:
        losses = found[1]["losses"].tolist()
    for step in range(len(losses), settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * _schedule(step, settings.steps)
        optimizer.zero_grad()
        loss = _loss(model, _batch(settings, seed, step))
        if not math.isfinite(float(loss.detach())):
            break  # it will not recover; the model before this step is tested
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        if path is not None and time.process_time() - saved > PATIENCE:
            saved = time.process_time()
            path.parent.mkdir(exist_ok=True)
            now = {name: x.detach() for name, x in parameters.items()}
            more = {"losses": np.array(losses)}
            told = about | {"step": str(len(losses))}
            save_snapshot(path, told, optimizer, parameters, now, more)
    with torch.no_grad():
        numbers, held = model.numbers(torch.zeros(1, settings.task.length, dtype=torch.int64))
        right = [
            _right(model, task.examples(settings.judged, (1, seed)))
            for task in settings.asked or (settings.task,)
        ]
    if path is not None:
        path.unlink(missing_ok=True)
    every = max(1, settings.steps // LOOKS)
    means = [losses[first : first + every] for first in range(0, len(losses) - every + 1, every)]
    curve = [[every * (i + 1), float(np.mean(part))] for i, part in enumerate(means)]
    return {
        "accuracy": float(np.mean(right)),
        "numbers": numbers,
        "held_bytes": held,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": len(losses),
        "curve": curve,
        "seconds": round(time.process_time() - begun, 1),
    }


def _schedule(step: int, steps: int) -> float:
    """The share of the peak rate: linear warm-up for 5 % of the steps, then a cosine to 10 %."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def _batch(settings: RecallSettings, seed: int, step: int) -> Examples:
    """New sequences at every step, or the same ones in every epoch, in a new order."""
    if not settings.trained_on:
        tasks = settings.task.easier()
        return tasks[step % len(tasks)].examples(settings.batch, (0, seed, step))
    batches = [
        (task, place)
        for task, count in settings.trained_on
        for place in range(-(-count // settings.batch))
    ]
    epoch, place = divmod(step, len(batches))
    order = np.random.default_rng((2, seed, epoch)).permutation(len(batches))
    task, place = batches[int(order[place])]
    return task.examples(settings.batch, (0, seed, task.length, task.pairs, place))


def _loss(model: RecallModel, batch: Examples) -> Any:
    tokens, places, answers = (torch.from_numpy(x) for x in batch)
    return functional.cross_entropy(model(tokens, places).flatten(0, 1), answers.flatten())


def _right(model: RecallModel, examples: Examples) -> float:
    """The share of queries whose value is the likeliest token."""
    right = 0
    for first in range(0, len(examples.tokens), ROWS):
        part = (torch.from_numpy(x[first : first + ROWS]) for x in examples)
        tokens, places, answers = part
        right += int((model(tokens, places).argmax(-1) == answers).sum())
    return right / examples.answers.size
