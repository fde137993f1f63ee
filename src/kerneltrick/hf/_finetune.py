"""Training a linearised model end to end towards the outputs of its teacher."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from kerneltrick._install import missing
from kerneltrick._progress import Progress, ProgressReport, paced
from kerneltrick._text import shown
from kerneltrick._version import __version__
from kerneltrick.analysis import run_key
from kerneltrick.hf._linearized import Linearized, attention_blocks
from kerneltrick.hf._loss import loss, outcome, softmax_everywhere
from kerneltrick.hf._passkey import Passkey
from kerneltrick.torch import load_snapshot, save_snapshot

Trained: TypeAlias = Literal["maps", "lora", "all"]

LOOKS = 8  # validations, spread over the steps
WARM_UP = 10  # steps over which the learning rate rises
PAUSE = 5.0  # seconds between snapshots, …
PACE = 20.0  # … or this many times as long as the last one took to write
BATCH = 8  # windows per step, …
LEAST = 32  # … or fewer, so that there are at least this many steps
MAP_RATE = 3e-3  # the learning rate of maps
GAIN_RATE = 3e-2  # the learning rate of gains, which are logarithms, and few
WEIGHT_RATE = {"lora": 1e-3, "all": 1e-4}  # the learning rate of other weights
RANK = 8  # the rank of the matrices that `lora` adds
MOST = 1.0  # gradients are clipped to this norm
RECALL = 0.1  # how much the answer to a planted fact counts, beside the tokens of the text
FORMAT = "kerneltrick.Finetune/4"


class Tuned(NamedTuple):
    """What was trained, and the loss on validation windows over time: (step, loss)."""

    trained: Trained
    history: tuple[tuple[int, float], ...]
    tokens: int

    @property
    def before(self) -> float:
        """The loss before the first step."""
        return self.history[0][1]

    @property
    def after(self) -> float:
        """The loss of the weights that were kept, which is the smallest of all."""
        return min(loss for _, loss in self.history)


def finetune(
    model: Linearized,
    windows: Sequence[Sequence[int]],
    held_out: Sequence[Sequence[int]],
    *,
    trained: Trained = "maps",
    planted: Sequence[Passkey] = (),
    held_out_planted: Sequence[Passkey] = (),
    learning_rate: float | None = None,
    seed: int = 0,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> Tuned:
    """Train the whole model to give the outputs of its teacher.

    The teacher is the model before training, with softmax in every layer. `_loss` defines the loss.
    One step of Adam has eight windows, or fewer for a short text. The weights with the smallest
    loss on the validation windows are kept; they may be those before the first step.

    windows: the token numbers to train on.
    held_out: the validation windows.
    trained: what to train. "maps" trains maps and gains alone. "all" trains the attention weights
        too. "lora" trains matrices of rank 8 beside them (with peft), which are merged at the end.
    planted: texts with planted facts, for models that predict tokens. Each step has one of them
        beside its windows, and there the answer alone counts. Plain text hardly ever asks for a
        fact from far back, so a model that is trained on it alone does not learn to recall.
    held_out_planted: the same for validation.
    learning_rate: the learning rate of the attention weights, or of the maps if they are trained
        alone. The default depends on `trained`.
    seed: the seed of the matrices that "lora" starts from.
    progress: called with what is being done, how many steps are done, and how many there are.
    resume: the file that keeps an unfinished run. The same call continues it to the same result.
    """
    wanted = {name: x.requires_grad for name, x in model.named_parameters()}
    training = model.training
    model.eval()
    try:
        with _trainable(model, trained, seed) as weights:
            facts = planted, held_out_planted
            run = _TuningRun(model, weights, windows, held_out, facts, trained, learning_rate)
            key = ""
            if resume is not None:
                start = (x.detach().cpu().numpy() for x in run.parameters.values())
                given = (np.array(windows), np.array(held_out))
                key = run_key(__version__, trained, learning_rate, seed, *given, *facts, *start)
                run.restore(resume, key)
            run.train(progress, resume, key)
    finally:
        for name, x in model.named_parameters():
            x.requires_grad_(wanted.get(name, True))
            x.grad = None
        model.train(training)
    return Tuned(trained, tuple(run.history), sum(map(len, windows)))


@contextmanager
def _trainable(model: Linearized, trained: Trained, seed: int) -> Iterator[dict[str, Any]]:
    """Make the maps trainable, and yield the other weights to train, by name."""
    model.requires_grad_(False)
    model.maps.requires_grad_(True)
    if trained == "lora":
        with _adapted(model, seed):
            yield {name: x for name, x in model.named_parameters() if "lora_" in name}
        return
    own = {id(x) for block in attention_blocks(model.model) for x in block.parameters()}
    weights = {name: x for name, x in model.named_parameters() if id(x) in own}
    yield weights if trained == "all" else {}


@contextmanager
def _adapted(model: Linearized, seed: int) -> Iterator[None]:
    """Add low-rank matrices to the attention weights, and merge them at the end."""
    peft = peft_package()
    places = {id(x) for block in attention_blocks(model.model) for x in block.modules()}
    names = [
        name
        for name, x in model.model.named_modules()
        if id(x) in places and type(x).__name__ in ("Linear", "Conv1D")
    ]
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wrapped = peft.get_peft_model(model.model, config)
    model.maps.requires_grad_(True)
    try:
        yield
    except BaseException:
        wrapped.unload()
        raise
    wrapped.merge_and_unload()


def peft_package() -> Any:
    """Return the package peft, or raise ImportError that says how to install it."""
    try:
        import peft
    except ImportError:
        raise missing("training with LoRA needs peft", "linearize") from None
    return peft


class _TuningRun:
    """The steps of a training, its validations, and the file that keeps them."""

    def __init__(
        self,
        model: Linearized,
        weights: dict[str, Any],
        windows: Sequence[Sequence[int]],
        held_out: Sequence[Sequence[int]],
        facts: tuple[Sequence[Passkey], Sequence[Passkey]],
        trained: Trained,
        rate: float | None,
    ) -> None:
        self.model, self.held_out = model, held_out
        self.planted, self.held_out_planted = facts
        size = max(1, min(BATCH, len(windows) // LEAST))
        self.batches = [windows[at : at + size] for at in range(0, len(windows), size)]
        self.steps = len(self.batches)
        own = {f"maps.{name}": x for name, x in model.maps.named_parameters()}
        self.parameters: dict[str, Any] = {**own, **weights}
        if not self.parameters:
            raise ValueError("finetune needs a map with weights or gains, and this model has none")
        for x in weights.values():
            x.requires_grad_(True)
        gains = [x for name, x in own.items() if name.endswith("gain")]
        matrices = [x for name, x in own.items() if not name.endswith("gain")]
        rates = [MAP_RATE, GAIN_RATE, WEIGHT_RATE.get(trained, 0.0)]
        if rate is not None:
            rates[2 if weights else 0] = rate
        groups = [{"params": x} for x in (matrices, gains, list(weights.values()))]
        self.optimizer = torch.optim.Adam([x for x in groups if x["params"]], betas=(0.9, 0.99))
        self.rates = [r for r, x in zip(rates, groups, strict=True) if x["params"]]
        # The teacher keeps the weights from before training. LoRA's start at zero.
        self.teacher = {name: x.detach().clone() for name, x in weights.items()}
        self.softmax = softmax_everywhere(model)
        self.step = 0
        self.history: list[tuple[int, float]] = []
        self.best = {name: x.detach().clone() for name, x in self.parameters.items()}

    def train(self, progress: ProgressReport | None, resume: Path | None, key: str) -> None:
        if not self.history:
            self.history.append((0, self._held_out_loss()))
        every, pause, kept_at = max(1, self.steps // LOOKS), PAUSE, time.monotonic()
        tokens = sum(map(len, self.batches[0]))
        meter = Progress(self._told(), self.steps, paced(progress, tokens))
        while self.step < self.steps:
            meter(self.step)
            self._take_step(self.batches[self.step])
            if self.step % every == 0 or self.step == self.steps:
                self._look()
                meter.what = self._told()
            if resume is not None and time.monotonic() - kept_at >= pause:
                start = time.monotonic()
                self._keep(resume, key)
                kept_at = time.monotonic()
                pause = max(PAUSE, PACE * (kept_at - start))
        meter.close(self.step)
        with torch.no_grad():
            for name, x in self.parameters.items():
                x.copy_(self.best[name])

    def _told(self) -> str:
        losses = [loss for _, loss in self.history]
        return f"distilling, held-out loss {shown(losses[0])} → {shown(min(losses))}"

    def _take_step(self, batch: Sequence[Sequence[int]]) -> None:
        self.optimizer.zero_grad()
        for ids in batch:
            (self._loss(ids) / len(batch)).backward()
        if self.planted:
            (RECALL * self._recall_loss(self.planted[self.step % len(self.planted)])).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), MOST)
        if not bool(torch.isfinite(norm)):
            for x in self.parameters.values():  # diverged; the best weights are finite, and kept
                x.grad.zero_()
        warm = min(1.0, (self.step + 1) / WARM_UP)
        cosine = (1 + math.cos(math.pi * self.step / self.steps)) / 2
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            group["lr"] = rate * warm * cosine
        self.optimizer.step()
        self.step += 1

    def _look(self) -> None:
        loss = self._held_out_loss()
        if loss < min(known for _, known in self.history):
            self.best = {name: x.detach().clone() for name, x in self.parameters.items()}
        self.history.append((self.step, loss))

    def _held_out_loss(self) -> float:
        with torch.no_grad():
            found = np.mean([float(self._loss(ids)) for ids in self.held_out])
            if self.held_out_planted:
                asked = [float(self._recall_loss(text)) for text in self.held_out_planted]
                found += RECALL * np.mean(asked)
        return float(found)

    def _recall_loss(self, text: Passkey) -> Any:
        """Return the distance from the teacher for the answer to a planted fact."""
        return self._loss(text.ids, text.answer)

    def _loss(self, ids: Sequence[int], answer: int = 0) -> Any:
        """Return the distance from the teacher, for all tokens or for the answer at the end."""
        last = answer + 1 if answer else 0
        with torch.no_grad(), self.model.attending_by(self.softmax):
            wanted = outcome(self.model, ids, self.teacher, last=last)
        found = outcome(self.model, ids, {}, last=last)
        if answer:
            found, wanted = found[:-1], wanted[:-1]
        return loss(self.model, found, wanted)

    def _keep(self, path: Path, key: str) -> None:
        about = {"format": FORMAT, "key": key, "step": str(self.step)}
        history = {"history": np.array(self.history, dtype=np.float64)}
        save_snapshot(path, about, self.optimizer, self.parameters, self.best, history)

    def restore(self, path: Path, key: str) -> None:
        """Continue the run in a file, if it is this run."""
        about = {"format": FORMAT, "key": key}
        found = load_snapshot(path, about, self.optimizer, self.parameters, self.best)
        if found is None:
            return
        self.step = int(found[0]["step"])
        self.history = [(int(step), loss) for step, loss in found[1]["history"].tolist()]
