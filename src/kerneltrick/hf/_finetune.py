"""Training the maps of a linearised model end to end, towards what its teacher gives."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kerneltrick import maps
from kerneltrick._progress import Progress, ProgressReport
from kerneltrick._version import __version__
from kerneltrick.analysis._store import run_key
from kerneltrick.attention import Dial
from kerneltrick.hf._linearized import Linearized
from kerneltrick.torch._snapshot import load_snapshot, save_snapshot

LOOKS = 8  # at held-out windows, spread over the steps
WARM_UP = 5  # steps over which the learning rate rises
PAUSE = 5.0  # seconds between snapshots
FORMAT = "kerneltrick.Finetune/1"


class Tuned(NamedTuple):
    """The loss on held-out windows, before and after."""

    before: float
    after: float


def finetune(
    model: Linearized,
    windows: Sequence[Sequence[int]],
    held_out: Sequence[Sequence[int]],
    *,
    learning_rate: float = 0.01,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> Tuned:
    """Train maps and gains, nothing else, so that the whole model gives what its teacher gives.

    The teacher is the model with softmax in every layer. Each window is one step of Adam. Language
    models: the Kullback–Leibler divergence of the teacher's next tokens from the model's, mean over
    tokens. Others: ‖h − h_teacher‖² / ‖h_teacher‖² of the last hidden states. The weights that were
    best on held-out windows are kept, before the first step too.

    resume: a file where the run is kept: a run that was stopped goes on to the same result.
    """
    run = _Run(model, held_out, len(windows), learning_rate)
    key = ""
    if resume is not None:
        key = run_key(
            __version__, learning_rate, np.array(windows), np.array(held_out), run.start_text()
        )
        run.restore(resume, key)
    wanted = {name: x.requires_grad for name, x in model.named_parameters()}
    training = model.training
    model.eval().requires_grad_(False)
    model.maps.requires_grad_(True)
    try:
        run.train(windows, progress, resume, key)
    finally:
        for name, x in model.named_parameters():
            x.requires_grad_(wanted[name])
            x.grad = None
        model.train(training)
    return Tuned(run.before, run.best_loss)


class _Run:
    """Steps, looks at held-out windows, and the file that keeps them."""

    def __init__(
        self, model: Linearized, held_out: Sequence[Sequence[int]], steps: int, rate: float
    ) -> None:
        self.model, self.held_out, self.steps, self.rate = model, held_out, steps, rate
        self.parameters: dict[str, Any] = dict(model.maps.named_parameters())
        if not self.parameters:
            raise ValueError("finetune needs a map with weights or gains; this model has none")
        self.optimizer = torch.optim.Adam(self.parameters.values(), betas=(0.9, 0.99))
        self.softmax = [Dial(maps.Softmax())] * len(model.settings)
        self.step = 0
        self.before = self.best_loss = math.nan  # known after the first look
        self.best = {name: x.detach().clone() for name, x in self.parameters.items()}

    def start_text(self) -> str:
        """What tells the maps that a run starts from apart from others."""
        return " ".join(str(setting.dial) for setting in self.model.maps.values())

    def train(
        self,
        windows: Sequence[Sequence[int]],
        progress: ProgressReport | None,
        resume: Path | None,
        key: str,
    ) -> None:
        if math.isnan(self.before):
            self.before = self.best_loss = self._held_out_loss()
        every, kept_at = max(1, self.steps // LOOKS), time.monotonic()
        meter = Progress(self._told(), self.steps, progress)
        while self.step < self.steps:
            meter(self.step)
            self._take_step(windows[self.step])
            if self.step % every == 0 or self.step == self.steps:
                self._look()
                meter.what = self._told()
            if resume is not None and time.monotonic() - kept_at >= PAUSE:
                self._keep(resume, key)
                kept_at = time.monotonic()
        meter.close(self.step)
        with torch.no_grad():
            for name, x in self.parameters.items():
                x.copy_(self.best[name])

    def _told(self) -> str:
        return f"distilling, held-out loss {self.before:.3g} → {self.best_loss:.3g}"

    def _take_step(self, ids: Sequence[int]) -> None:
        self.optimizer.zero_grad()
        self._loss(ids).backward()
        gradients = [x.grad for x in self.parameters.values()]
        if not all(bool(torch.isfinite(x).all()) for x in gradients):
            for x in gradients:  # it has run away: what was best is kept, and is finite
                x.zero_()
        warm = min(1.0, (self.step + 1) / WARM_UP)
        cosine = (1 + math.cos(math.pi * self.step / self.steps)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * warm * cosine
        self.optimizer.step()
        self.step += 1

    def _look(self) -> None:
        loss = self._held_out_loss()
        if loss < self.best_loss:
            self.best_loss = loss
            self.best = {name: x.detach().clone() for name, x in self.parameters.items()}

    def _held_out_loss(self) -> float:
        with torch.no_grad():
            return float(np.mean([float(self._loss(ids)) for ids in self.held_out]))

    def _loss(self, ids: Sequence[int]) -> Any:
        batch = torch.tensor([list(ids)], device=self.model.device)
        with torch.no_grad(), self.model.attending_by(self.softmax):
            wanted = self._outcome(batch)
        found = self._outcome(batch)
        if self.model.config.language:
            logs = (x.log_softmax(-1) for x in (found, wanted))
            return torch.nn.functional.kl_div(*logs, log_target=True, reduction="batchmean")
        return (found - wanted).square().sum() / wanted.square().sum()

    def _outcome(self, batch: Any) -> Any:
        """Logits (n, V) of a language model, else the last hidden states (n, F)."""
        if self.model.config.language:
            return self.model(input_ids=batch, use_cache=False).logits[0].float()
        return self.model(input_ids=batch).last_hidden_state[0].float()

    def _keep(self, path: Path, key: str) -> None:
        about = {"format": FORMAT, "key": key, "step": str(self.step)}
        losses = {"losses": np.array([self.before, self.best_loss])}
        save_snapshot(path, about, self.optimizer, self.parameters, self.best, losses)

    def restore(self, path: Path, key: str) -> None:
        """Go on where the run in that file was, if it was this one."""
        about = {"format": FORMAT, "key": key}
        found = load_snapshot(path, about, self.optimizer, self.parameters, self.best)
        if found is None:
            return
        self.step = int(found[0]["step"])
        self.before, self.best_loss = found[1]["losses"].tolist()
