"""Training a `LanguageModel` on a text, in a folder from which a run that was killed goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from kerneltrick._files import read_tensors, write
from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.attention._arguments import check_count, check_scale
from kerneltrick.torch._language_model import LanguageModel
from kerneltrick.torch._snapshot import MOMENTS
from kerneltrick.torch._vocabulary import Vocabulary
from kerneltrick.torch.distributed._exchange import Ranks

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

FORMAT = "kerneltrick.LanguageModel/1"
FILE = "model.safetensors"
EVALUATIONS = 10  # of a training
WINDOWS = 32  # of held-out text in each
PATIENCE = 10.0  # seconds after which a step is worth a checkpoint


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """What a training is of: two of the same settings and text have the same losses."""

    mixer: str = "elu"
    tokens: str = "characters"  # or "bytes"
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    length: int = 256  # tokens that are read in a row
    batch: int = 8  # such rows in a step
    steps: int = 1000
    learning_rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        who = "train"
        if self.tokens not in ("characters", "bytes"):
            raise ValueError(f"{who} needs tokens to be characters or bytes, not {self.tokens!r}")
        for name in ("hidden_size", "num_layers", "num_heads", "length", "batch", "steps"):
            check_count(who, name, getattr(self, name), least=1)
        check_count(who, "seed", self.seed)
        check_scale(who, self.learning_rate, "learning_rate")

    def model(self, vocabulary: int) -> LanguageModel:
        """The model before it is trained."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return LanguageModel(
                vocabulary, mixer=self.mixer, hidden_size=self.hidden_size,
                num_layers=self.num_layers, num_heads=self.num_heads,
            )  # fmt: skip

    def rate(self, step: int) -> float:
        """The learning rate of a step: rising for a twentieth of them, then half a cosine wave."""
        warm = max(1, self.steps // 20)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        along = (step - warm) / max(1, self.steps - warm)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * along))


@dataclasses.dataclass
class TrainedModel:
    """A model, what its tokens are, and how it came to be: losses in nats for each token."""

    settings: TrainingSettings
    vocabulary: Vocabulary
    model: LanguageModel
    text: str  # the SHA-256 of the text it is trained on
    losses: list[float] = dataclasses.field(default_factory=list)  # of every step so far
    validation: dict[int, float] = dataclasses.field(default_factory=dict)  # after so many steps

    def save(self, folder: str | os.PathLike[str], optimizer: Any = None) -> None:
        """Write folder/model.safetensors, which appears whole or not at all."""
        import safetensors.torch

        tensors = {f"model.{name}": x for name, x in self.model.state_dict().items()}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        if optimizer is not None:
            for name, x in self.model.named_parameters():
                held = optimizer.state[x]
                tensors |= {f"adam.{name}.{key}": held[key] for key in MOMENTS}
        metadata = {
            "format": FORMAT,
            "settings": json.dumps(dataclasses.asdict(self.settings)),
            "characters": json.dumps(self.vocabulary.characters),
            "text": self.text,
            "validation": json.dumps(list(self.validation.items())),
        }
        tensors = {name: x.contiguous() for name, x in tensors.items()}
        write(Path(folder, FILE), safetensors.torch.save(tensors, metadata))

    @staticmethod
    def load(folder: str | os.PathLike[str]) -> TrainedModel:
        """The model that `train` has left in a folder, as far as it came."""
        return _load(Path(folder, FILE))[0]

    def sample(self, prompt: str, length: int, **options: Any) -> str:
        """A text of `length` tokens that goes on from `prompt`; options as in `generate`."""
        made = self.model.generate(self.vocabulary.encode(prompt)[None], length, **options)
        return self.vocabulary.decode(made[0])


def _load(path: Path) -> tuple[TrainedModel, dict[str, Tensor]]:
    """The model in a file, and what else the file holds."""
    metadata, arrays = read_tensors(path, "trained model")
    try:
        if metadata.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT!r}, found {metadata.get('format')!r}")
        settings = TrainingSettings(**json.loads(metadata["settings"]))
        vocabulary = Vocabulary(json.loads(metadata["characters"]))
        tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
        weights = {name[6:]: x for name, x in tensors.items() if name.startswith("model.")}
        with torch.device("meta"):  # a file may claim any size
            model = settings.model(vocabulary.size)
        model.load_state_dict(weights, assign=True)
        validation = {int(step): float(loss) for step, loss in json.loads(metadata["validation"])}
        losses = [float(x) for x in tensors["losses"]]
        found = TrainedModel(settings, vocabulary, model, metadata["text"], losses, validation)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is not a model of this package: {error}") from None
    return found, tensors


def train(
    text: str,
    folder: str | os.PathLike[str],
    settings: TrainingSettings | None = None,
    *,
    progress: ProgressReport | None = None,
    tell: Callable[[str], None] | None = None,
    group: Any = None,
) -> TrainedModel:
    """Train a language model on all but the last tenth of a text, judge it on that.

    AdamW, its rate rising and falling as `settings.rate` says. Whatever is drawn at a step depends
    on the seed and the step alone, and `folder` gets a checkpoint now and then: the same call after
    a kill goes on from there, with the losses that it would have had. `tell` is given a line and a
    sample ten times.

    With a process group of torch.distributed, every rank calls and reads its part of each row; the
    first writes to `folder` and tells. Losses are the same to rounding, on any number of ranks: a
    training may go on with another number. All ranks must see the folder.
    """
    settings = settings or TrainingSettings()
    folder = Path(folder)
    tokens, held_out, run = _read(text, settings)
    optimizer = torch.optim.AdamW(
        run.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / FILE).exists():
        run = _resume(folder / FILE, run, optimizer)
    windows = _windows(held_out, settings.length)
    spread = _Spread(run.model, group)
    every = max(1, settings.steps // EVALUATIONS)
    meter, first = Progress("training", settings.steps, progress), len(run.losses)
    begun = saved = time.monotonic()
    for step in range(first, settings.steps):
        run.losses.append(_step(spread, optimizer, tokens, settings, step))
        done = step + 1
        speed = (done - first) * settings.batch * settings.length / (time.monotonic() - begun)
        meter.what = f"loss {run.losses[-1]:.3f}, {speed:,.0f} tokens/s"
        meter(done)
        judged = done % every == 0 or done == settings.steps
        if judged:
            run.validation[done] = _loss(spread, windows)
        if spread.leads and (judged or time.monotonic() - saved > PATIENCE):
            run.save(folder, optimizer)
            saved = time.monotonic()
        if spread.leads and judged and tell is not None:
            spread.model.spread(None)  # the first rank writes alone
            _tell(tell, run, every, speed)
            spread.model.spread(group)
    spread.model.spread(None)
    meter.close(len(run.losses))
    return run


class _Spread:
    """A model, here or over the ranks of a group, each of which reads its part of every row."""

    def __init__(self, model: LanguageModel, group: Any) -> None:
        self.model, self.group, self.call = model, group, model
        self.leads, self.part = True, slice(None)
        self.rank, self.count = 0, 1
        if group is not None:
            ranks = Ranks(group)
            self.rank, self.count = ranks.rank, ranks.count
            self.leads = self.rank == 0
            model.spread(group)
            self.call = torch.nn.parallel.DistributedDataParallel(model, process_group=ranks.group)

    def loss(self, rows: Tensor) -> Tensor:
        """This rank's share of the mean over all tokens: gradients are averaged over the ranks."""
        n = rows.shape[1] - 1
        edges = [i * n // self.count for i in (self.rank, self.rank + 1)]
        logits, _ = self.call(rows[:, edges[0] : edges[1]])
        wanted = rows[:, edges[0] + 1 : edges[1] + 1]
        lost = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        return lost * self.count / (len(rows) * n)

    def mean(self, loss: Tensor) -> float:
        """The mean over all tokens, from the share of each rank."""
        if self.group is None:
            return float(loss.detach())
        shares = Ranks(self.group).gather(loss.detach().double().reshape(1))
        return float(sum(shares) / self.count)


def _read(text: str, settings: TrainingSettings) -> tuple[Tensor, Tensor, TrainedModel]:
    """Tokens to train on, held-out ones, and a model that has seen none."""
    vocabulary = Vocabulary(None) if settings.tokens == "bytes" else Vocabulary.of(text)
    tokens = vocabulary.encode(text) if text else torch.empty(0)
    held = max(len(tokens) // 10, settings.length + 1)
    if len(tokens) < held + settings.length + 1:
        raise ValueError(
            f"a text of {len(tokens)} {settings.tokens} is too short to train and to judge on "
            f"{settings.length} in a row: give a longer one, or a shorter length"
        )
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    run = TrainedModel(settings, vocabulary, settings.model(vocabulary.size), digest)
    return tokens[:-held], tokens[-held:], run


def _resume(path: Path, fresh: TrainedModel, optimizer: Any) -> TrainedModel:
    """The run in a file, in the model and the optimizer of a fresh one."""
    found, tensors = _load(path)
    if found.text != fresh.text:
        raise ValueError(f"{path.parent} holds a training on another text: choose another folder")
    for name, value in dataclasses.asdict(fresh.settings).items():
        other = getattr(found.settings, name)
        if other != value:
            raise ValueError(
                f"{path.parent} holds a training with {name} {other}, not {value}: choose another "
                "folder, or the same settings to go on"
            )
    fresh.model.load_state_dict(found.model.state_dict())
    held = optimizer.state_dict()
    try:
        held["state"] = {
            i: {"step": torch.tensor(float(len(found.losses)))}
            | {key: tensors[f"adam.{name}.{key}"] for key in MOMENTS}
            for i, (name, _) in enumerate(fresh.model.named_parameters())
        }
    except KeyError as error:
        raise ValueError(f"{path} holds a model but not its training: {error} is missing") from None
    optimizer.load_state_dict(held)
    return dataclasses.replace(fresh, losses=found.losses, validation=found.validation)


def _step(
    spread: _Spread, optimizer: Any, tokens: Tensor, settings: TrainingSettings, step: int
) -> float:
    """One step on rows drawn for it; its loss before."""
    drawn = np.random.default_rng((settings.seed, step))
    starts = drawn.integers(0, len(tokens) - settings.length, settings.batch)
    rows = torch.stack([tokens[a : a + settings.length + 1] for a in starts.tolist()])
    for group in optimizer.param_groups:
        group["lr"] = settings.rate(step)
    optimizer.zero_grad()
    loss = spread.loss(rows)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(spread.model.parameters(), 1.0)
    optimizer.step()
    return spread.mean(loss)


def _windows(tokens: Tensor, length: int) -> Tensor:
    """Up to so many rows of held-out text, spread over it."""
    count = min(WINDOWS, (len(tokens) - 1) // length)
    starts = np.linspace(0, len(tokens) - length - 1, count).astype(int)
    return torch.stack([tokens[a : a + length + 1] for a in starts.tolist()])


def _loss(spread: _Spread, windows: Tensor) -> float:
    with torch.no_grad():
        parts = [spread.mean(spread.loss(rows)) for rows in windows.split(4)]
        sizes = [len(rows) for rows in windows.split(4)]
    return float(np.average(parts, weights=sizes))


def _tell(tell: Callable[[str], None], run: TrainedModel, every: int, speed: float) -> None:
    done = len(run.losses)
    recent = sum(run.losses[-every:]) / min(every, done)
    tell(
        f"step {done}/{run.settings.steps}: loss {recent:.3f}, validation "
        f"{run.validation[done]:.3f}, {speed:,.0f} tokens/s"
    )
    made = run.sample(run.vocabulary.start, 80, temperature=0.8, seed=run.settings.seed)
    tell("  " + made.replace("\n", "↵"))
