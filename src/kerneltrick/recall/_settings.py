"""What a sweep of recall is of, and the two that have names."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kerneltrick.attention._arguments import check_count
from kerneltrick.recall._task import Task

# Softmax attention, the maps of the Based paper, hybrids with a window, windows, the relatives.
MIXERS = (
    "softmax", "based:feature_dim=8", "based:feature_dim=16", "hedgehog", "elu", "relu", "square",
    "identity", "cosformer:horizon=1024", "favor:features=64", "elu@window=16",
    "hedgehog@window=16", "softmax@window=16", "softmax@window=64", "retention",
    "ssd:state_dim=16", "gla", "rwkv", "deltanet", "gated_deltanet",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RecallSettings:
    """Mixers × widths × learning rates × seeds, each a model that is trained on a task.

    Of the rates, the best counts for each mixer and width. `examples` None: new texts at every
    step; a number: so many, again and again, as in the published runs.
    """

    mixers: tuple[str, ...]
    widths: tuple[int, ...]
    task: Task
    steps: int
    seeds: int = 2
    rates: tuple[float, ...] = (5e-3,)
    batch: int = 64
    examples: int | None = None
    judged: int = 512  # texts that it is asked about
    heads: int = 1
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        for name in ("mixers", "widths", "rates"):
            given = getattr(self, name)
            if not given or len(set(given)) != len(given):
                raise ValueError(f"recall needs {name}, none of them twice, not {given!r}")
        for name in ("steps", "seeds", "batch", "judged", "heads"):
            check_count("recall", name, getattr(self, name), least=1)
        for width in self.widths:
            check_count("recall", "width", width, least=1)
        for rate in self.rates:
            if not (0 < rate < math.inf):
                raise ValueError(f"recall needs learning rates > 0, not {rate!r}")
        if self.examples is not None:
            check_count("recall", "examples", self.examples, least=self.batch)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self)


def preset(name: str, **changes: Any) -> RecallSettings:
    """The settings of a name, but for what is given.

    "minutes": a task small enough that a model learns it in half a minute. "paper": that of Zoology
    and the published points, for days of a large machine.
    """
    if name == "minutes":
        found = RecallSettings(
            mixers=(
                "softmax", "based:feature_dim=8", "hedgehog", "elu", "square", "elu@window=8",
                "softmax@window=16", "deltanet", "gla", "ssd:state_dim=16",
            ),
            widths=(16, 32, 64), task=Task(vocabulary=128, length=64, pairs=8), steps=600,
            rates=(1e-2,),
        )  # fmt: skip
    elif name == "paper":
        found = RecallSettings(
            mixers=MIXERS, widths=(64, 128, 256), task=Task(vocabulary=8192, length=256, pairs=64),
            steps=32 * 180_000 // 256, seeds=3, rates=(1e-3, 10**-2.5, 1e-2, 10**-1.5),
            batch=256, examples=180_000, judged=1000,
        )  # fmt: skip
    else:
        raise ValueError(f"unknown preset {name!r}; known are minutes and paper")
    return dataclasses.replace(found, **changes)
