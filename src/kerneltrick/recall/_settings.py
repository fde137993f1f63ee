"""The settings of a recall sweep, and two presets."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kerneltrick.attention import check_count
from kerneltrick.recall._copying import Copy, Selective
from kerneltrick.recall._task import AnyTask, Task
from kerneltrick.recall._tracking import Parity, Permutation

# Softmax attention, the maps of the Based paper, hybrids with a window, windows alone, and the
# other mixers.
MIXERS = (
    "softmax", "based:feature_dim=8", "based:feature_dim=16", "hedgehog", "elu", "relu", "square",
    "identity", "cosformer:horizon=1024", "favor:features=64", "elu@window=16",
    "hedgehog@window=16", "softmax@window=16", "softmax@window=64", "retention",
    "ssd:state_dim=16", "gla", "rwkv", "deltanet", "gated_deltanet", "kda", "gated_deltanet2",
    "rwkv7", "power_retention:head_dim=16",
)  # fmt: skip


TASKS: dict[str, AnyTask] = {  # at the size of the preset "minutes"
    "recall": Task(vocabulary=128, length=64, pairs=16),
    "parity": Parity(),
    "permutation": Permutation(),
    "copy": Copy(),
    "selective": Selective(),
}
# What tracks a state: corrections with β up to 1 or 2, and several of them for each token. A
# convolution before the heads ends in SiLU, which leaves keys almost no negative numbers. Without
# it, a training needs a fraction of the steps to find reflections.
TRACKERS = (
    "softmax",
    "ssd:state_dim=16",
    "gla",
    "deltanet:short_convolution=0",
    "deltanet:short_convolution=0,negative_eigenvalues=true",
    "gated_deltanet:short_convolution=0",
    "gated_deltanet:short_convolution=0,negative_eigenvalues=true",
    "rwkv7",
    "deltaproduct:steps=2,short_convolution=0,negative_eigenvalues=false",
    "deltaproduct:steps=2,short_convolution=0",
    "deltaproduct:steps=4,short_convolution=0",
)

# What copies: a state that grows, sums, decays that the token sets, and corrections.
COPIERS = (
    "softmax",
    "elu",
    "ssd:state_dim=16",
    "gla",
    "mamba",
    "deltanet",
    "gated_deltanet",
    "rwkv7",
)


@dataclasses.dataclass(frozen=True)
class RecallSettings:
    """One model is trained for every combination of mixer, width, learning rate and seed.

    For each mixer and width, the best of the learning rates counts. By default every step trains on
    new sequences and cycles through `task` and its easier versions (`Task.easier`); without these a
    model learns nothing for most of the steps. With `trained_on`, a list of tasks and their number
    of sequences, the model sees the same sequences in every epoch, in a new order, as in the
    published runs. The accuracy is measured on `task`, or averaged over the tasks in `asked`.
    """

    mixers: tuple[str, ...]
    widths: tuple[int, ...]
    task: AnyTask
    steps: int
    seeds: int = 2
    rates: tuple[float, ...] = (5e-3,)
    batch: int = 64
    trained_on: tuple[tuple[Task, int], ...] = ()
    asked: tuple[AnyTask, ...] = ()
    judged: int = 512  # sequences of each task that the accuracy is measured on
    heads: int = 1
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        for name in ("mixers", "widths", "rates"):
            given = getattr(self, name)
            if not given or len(set(given)) != len(given):
                raise ValueError(
                    f"recall needs at least one of {name} and no duplicates: {given!r}"
                )
        for name in ("steps", "seeds", "batch", "judged", "heads"):
            check_count("recall", name, getattr(self, name), least=1)
        for width in self.widths:
            check_count("recall", "width", width, least=1)
        for rate in self.rates:
            if not (0 < rate < math.inf):
                raise ValueError(f"recall needs learning rates > 0, not {rate!r}")
        for task, count in self.trained_on:
            check_count("recall", f"the number of texts with {task.pairs} pairs", count, least=1)
        if {task.vocabulary for task in (*self.asked, *dict(self.trained_on))} - {
            self.task.vocabulary
        }:
            raise ValueError("recall needs all tasks to have the same vocabulary")

    def to_dict(self) -> dict[str, Any]:
        """The settings as a dictionary that JSON can hold."""
        about = {"name": self.task.name, "told": self.task.told, "chance": self.task.chance}
        found = dataclasses.asdict(self)
        return found | {"task": found["task"] | {"vocabulary": self.task.vocabulary} | about}


def preset(name: str, task: str = "recall", **changes: Any) -> RecallSettings:
    """The settings with this name, with `changes` applied.

    `task` is one of `TASKS`. State tracking and copying are the same sweep with other sequences and
    other mixers; they have the preset "minutes" only.

    "minutes" is a task small enough that a model learns it in half a minute. "paper" is the task of
    Zoology and of the published results; it needs days on a large machine, and we have not
    completed it.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose {', '.join(TASKS)}")
    if task != "recall" and name == "paper":
        raise ValueError(f"the preset paper is of the task recall; {task} has minutes only")
    if name == "minutes" and task != "recall":
        mixers = COPIERS if task in ("copy", "selective") else TRACKERS
        found = RecallSettings(
            mixers=mixers, widths=(64,), task=TASKS[task], steps=1600, rates=(5e-3,), heads=4
        )
    elif name == "minutes":
        found = RecallSettings(
            mixers=(
                "softmax",
                "based:feature_dim=8",
                "hedgehog",
                "elu",
                "elu@window=8",
                "softmax@window=16",
                "deltanet",
                "gla",
                "retention",
                "ssd:state_dim=16",
            ),
            widths=(16, 32, 64),
            task=TASKS["recall"],
            steps=1600,
            rates=(1e-2,),
            batch=32,
        )
    elif name == "paper":
        # Arora et al. 2024, as configured in Zoology's repository: 32 epochs of 180,000 texts.
        texts = (
            (64, 4, 100_000),
            (128, 8, 20_000),
            (256, 16, 20_000),
            (256, 32, 20_000),
            (256, 64, 20_000),
        )
        asked = ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))
        batch = 256
        found = RecallSettings(
            mixers=MIXERS,
            widths=(64, 128, 256),
            task=Task(8192, 256, 64),
            steps=32 * sum(-(-count // batch) for *_, count in texts),
            seeds=3,
            rates=(1e-3, 10**-2.5, 1e-2, 10**-1.5),
            batch=batch,
            judged=1000,
            trained_on=tuple((Task(8192, n, pairs), count) for n, pairs, count in texts),
            asked=tuple(Task(8192, n, pairs) for n, pairs in asked),
        )
    else:
        raise ValueError(f"unknown preset {name!r}; choose minutes or paper")
    return dataclasses.replace(found, **changes)
