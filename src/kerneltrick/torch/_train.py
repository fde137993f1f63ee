"""Train a `LanguageModel` on a text, with checkpoints to continue from after a kill."""

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

from kerneltrick._files import check_writable, new_folder, read_tensors, write
from kerneltrick._folders import Kind, kind_of
from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.attention import check_count, check_scale
from kerneltrick.torch._language_model import LanguageModel
from kerneltrick.torch._snapshot import MOMENTS
from kerneltrick.torch._vocabulary import Vocabulary
from kerneltrick.torch.distributed._exchange import Ranks

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

FORMAT = "kerneltrick.LanguageModel/1"
FILE = "model.safetensors"
EVALUATIONS = 10  # validations during a training
WINDOWS = 32  # held-out sequences in each validation
MOST = 10**10  # weights, and tokens in a step: many times what a CPU can train
LARGEST_RATE = 1000
PATIENCE = 10.0  # seconds between two checkpoints


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """The settings of a training; the same settings and text give the same losses."""

    mixer: str = "elu"
    tokens: str = "characters"  # or "bytes"
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    length: int = 256  # tokens in each sequence
    batch: int = 8  # sequences in each step
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
        if self.learning_rate > LARGEST_RATE:  # a step changes each weight by about as much
            raise ValueError(
                f"{who} needs learning_rate ≤ {LARGEST_RATE:,}, not {self.learning_rate:g}"
            )
        weights = 12 * self.num_layers * self.hidden_size**2
        for what, count, names in (
            ("weights", weights, "num_layers or hidden_size"),
            ("tokens in a step", self.batch * self.length, "batch or length"),
        ):
            if count > MOST:
                raise ValueError(
                    f"{who} takes at most {MOST:,} {what}, not {count:,}: use a smaller {names}"
                )

    def model(self, vocabulary: int) -> LanguageModel:
        """The model before it is trained."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return LanguageModel(
                vocabulary,
                mixer=self.mixer,
                hidden_size=self.hidden_size,
                num_layers=self.num_layers,
                num_heads=self.num_heads,
            )

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up for 5 % of the steps, then half a cosine."""
        warm = max(1, self.steps // 20)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        along = (step - warm) / max(1, self.steps - warm)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * along))


@dataclasses.dataclass
class TrainedModel:
    """A trained model with its vocabulary, settings and losses (in nats per token)."""

    settings: TrainingSettings
    vocabulary: Vocabulary
    model: LanguageModel
    text: str  # SHA-256 of the training text
    losses: list[float] = dataclasses.field(default_factory=list)  # one for each step so far
    validation: dict[int, float] = dataclasses.field(default_factory=dict)  # by number of steps

    def save(self, folder: str | os.PathLike[str], optimizer: Any = None) -> None:
        """Write folder/model.safetensors, completely or not at all."""
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
        """Load the model that `train` wrote to a folder, even if training is unfinished."""
        return _load(Path(folder, FILE))[0]

    def sample(self, prompt: str, length: int, **options: Any) -> str:
        """Generate `length` tokens of text after `prompt`; options as in `generate`."""
        made = self.model.generate(self.vocabulary.encode(prompt)[None], length, **options)
        return self.vocabulary.decode(made[0])

    def perplexity(self, text: str, *, tokens: int, length: int) -> tuple[float, int]:
        """The perplexity on a text that the model was not trained on, and how many windows it has.

        Up to `tokens` tokens are read, in windows of `length` that do not see each other.
        """
        ids = self.vocabulary.encode(text)[: max(tokens, length)] if text else torch.empty(0)
        count = len(ids) // length
        if length < 2 or not count:
            raise ValueError(
                f"the text has {len(ids)} {self.settings.tokens}, and a window needs {length}: use "
                "a longer text, or a shorter length (at least 2)"
            )
        windows = ids[: count * length].unflatten(0, (count, length))
        return math.exp(_loss(_Spread(self.model, None), windows)), count


def _load(path: Path) -> tuple[TrainedModel, dict[str, Tensor]]:
    """The model in a file, and all tensors of the file."""
    metadata, arrays = read_tensors(path, "trained model")
    try:
        if metadata.get("format") != FORMAT:
            kind = kind_of(path.parent)
            found_kind = "" if kind is Kind.OTHER else f"; the folder holds {kind.value}"
            told = f"expected format {FORMAT!r}, found {metadata.get('format')!r}"
            raise ValueError(told + found_kind)
        settings = TrainingSettings(**json.loads(metadata["settings"]))
        vocabulary = Vocabulary(json.loads(metadata["characters"]))
        tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
        weights = {
            name[6:]: x.float() if x.dtype == torch.float16 else x  # a file may be half as large
            for name, x in tensors.items()
            if name.startswith("model.")
        }
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
    """Train a language model on a text; the last tenth of the text is held out for validation.

    The optimizer is AdamW with the learning rates of `settings.rate`. Random numbers depend only on
    the seed and the step, and checkpoints go to `folder`: after a kill, the same call continues
    from the last one, with the same losses. `tell` receives a progress line and a sample of text
    ten times.

    With a process group of torch.distributed, every rank calls this function and reads its part of
    each sequence. The first rank writes to `folder` and calls `tell`. The losses do not depend on
    the number of ranks, up to rounding, so a training can continue with another number. All ranks
    must see the folder.
    """
    settings = settings or TrainingSettings()
    folder = Path(folder)
    tokens, held_out, run = _read(text, settings)
    optimizer = torch.optim.AdamW(
        run.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    with new_folder(folder):
        check_writable(folder / FILE)
        if (folder / FILE).exists():
            run = _resume(folder / FILE, run, optimizer)
        windows = _windows(held_out, settings.length)
        spread = _Spread(run.model, group)
        _continue(run, folder, optimizer, tokens, windows, spread, progress, tell)
    return run


def _continue(
    run: TrainedModel,
    folder: Path,
    optimizer: Any,
    tokens: Tensor,
    windows: Tensor,
    spread: _Spread,
    progress: ProgressReport | None,
    tell: Callable[[str], None] | None,
) -> None:
    """Take the steps that are left, with checkpoints."""
    settings, group = run.settings, spread.group
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
        due = judged or time.monotonic() - saved > PATIENCE
        finite = not due or all(bool(x.isfinite().all()) for x in run.model.parameters())
        losses = [run.losses[-1], run.validation.get(done, 0.0)]
        if not all(map(math.isfinite, losses)) or (judged and not finite):
            kept = f"; {folder} keeps the last good step" if (folder / FILE).exists() else ""
            raise FloatingPointError(
                f"the training diverged at step {done} of {settings.steps}: its loss is not finite"
                f"{kept}; train again into another folder with learning_rate below "
                f"{settings.learning_rate:g}"
            )
        if spread.leads and due and finite:
            run.save(folder, optimizer)
            saved = time.monotonic()
        if spread.leads and judged and tell is not None:
            spread.model.spread(None)  # the first rank generates the sample alone
            _tell(tell, run, every, speed)
            spread.model.spread(group)
    spread.model.spread(None)
    meter.close(len(run.losses))


class _Spread:
    """A model on this process, or on a group whose ranks each read a part of every sequence."""

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
        """This rank's share of the mean loss, scaled because gradients are averaged over ranks."""
        n = rows.shape[1] - 1
        edges = [i * n // self.count for i in (self.rank, self.rank + 1)]
        logits, _ = self.call(rows[:, edges[0] : edges[1]])
        wanted = rows[:, edges[0] + 1 : edges[1] + 1]
        lost = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        return lost * self.count / (len(rows) * n)

    def mean(self, loss: Tensor) -> float:
        """The mean loss over all tokens, from the shares of all ranks."""
        if self.group is None:
            return float(loss.detach())
        shares = Ranks(self.group).gather(loss.detach().double().reshape(1))
        return float(sum(shares) / self.count)


def _read(text: str, settings: TrainingSettings) -> tuple[Tensor, Tensor, TrainedModel]:
    """The training tokens, the held-out tokens, and an untrained model."""
    vocabulary = Vocabulary(None) if settings.tokens == "bytes" else Vocabulary.of(text)
    tokens = vocabulary.encode(text) if text else torch.empty(0)
    held = max(len(tokens) // 10, settings.length + 1)
    if len(tokens) < held + settings.length + 1:
        raise ValueError(
            f"a text of {len(tokens)} {settings.tokens} is too short for training and validation "
            f"with sequences of {settings.length}: use a longer text or a smaller length"
        )
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    run = TrainedModel(settings, vocabulary, settings.model(vocabulary.size), digest)
    return tokens[:-held], tokens[-held:], run


def _resume(path: Path, fresh: TrainedModel, optimizer: Any) -> TrainedModel:
    """Continue the run in a file with the model and the optimizer of a fresh one."""
    found, tensors = _load(path)
    if found.text != fresh.text:
        raise ValueError(f"{path.parent} holds a training on another text: use another folder")
    for name, value in dataclasses.asdict(fresh.settings).items():
        other = getattr(found.settings, name)
        if other != value:
            raise ValueError(
                f"{path.parent} holds a training with {name} {other}, not {value}: use the same "
                "settings to continue it, or another folder"
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
        raise ValueError(
            f"{path} holds a model but not the state of its training: {error} is missing"
        ) from None
    optimizer.load_state_dict(held)
    return dataclasses.replace(fresh, losses=found.losses, validation=found.validation)


def _step(
    spread: _Spread, optimizer: Any, tokens: Tensor, settings: TrainingSettings, step: int
) -> float:
    """Take one step on randomly drawn sequences and return the loss before it."""
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
    """Up to WINDOWS held-out sequences, spread evenly over the text."""
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
