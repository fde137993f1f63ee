"""The training loop of a fit: steps, held-out errors, and snapshots."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.analysis import AttentionData, FittedMaps, hashes, smallest_hashes
from kerneltrick.attention import (
    Dial,
    Far,
    attention_weights,
    check_scale,
    linear_attention,
    softmax_attention,
)
from kerneltrick.maps import seeded
from kerneltrick.torch._learned_map import LearnedMap
from kerneltrick.torch._snapshot import load_snapshot, save_snapshot

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow
Loss: TypeAlias = Literal["outputs", "weights", "both"]
Ended: TypeAlias = Literal["steps", "no better", "data"]

ROWS = 64  # queries in a step: weights are rows × n, never n × n
LOOKS = 24  # evaluations on held-out tokens, spread over the steps
PATIENCE = 8  # evaluations without an improvement before the fit stops
WARM_UP = 20  # steps over which the learning rate rises
FLOOR = 1e-14  # smallest weight whose logarithm is taken: the square of float32's resolution
PAUSE = 1.0  # seconds between snapshots
FORMAT = "kerneltrick.Transfer/1"


@dataclasses.dataclass(frozen=True)
class Shape:
    """The heads that all sequences share, and the softmax to imitate."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: int
    width: int
    causal: bool
    scale: float | None  # None: 1/√d, the default of maps that approximate softmax
    source: str

    @staticmethod
    def of(data: AttentionData, causal: bool | None, scale: float | None) -> Shape:
        d = int(data.q.shape[-1])
        found = data.scale if scale is None else check_scale("fit", scale)
        if found is not None and math.isclose(found, 1 / math.sqrt(d), rel_tol=1e-6):
            found = None
        kind = bool(data.causal if causal is None else causal)
        return Shape(data.layers, data.heads, int(data.k.shape[1]), d, kind, found, data.source)

    def check(self, data: AttentionData) -> None:
        """Raise ValueError if `data` has other heads."""
        ours = (self.layers, self.heads, self.kv_heads, self.width)
        theirs = (data.layers, data.heads, int(data.k.shape[1]), int(data.q.shape[-1]))
        for what, a, b in zip(("layers", "heads", "key heads", "d"), ours, theirs, strict=True):
            if a != b:
                raise ValueError(
                    f"fit needs sequences with the same heads, but {self.source} has {what} {a} "
                    f"and {data.source} has {b}"
                )


class Transfer:
    """Fits all heads of all layers as the heads of one attention, each independently."""

    def __init__(
        self,
        learned: LearnedMap,
        shape: Shape,
        loss: Loss,
        steps: int,
        learning_rate: float,
        seed: int,
        apart: list[AttentionData],
        overlap: int,
    ) -> None:
        self.learned, self.shape, self.loss = learned, shape, loss
        self.steps, self.learning_rate, self.seed = steps, learning_rate, seed
        self.parameters: dict[str, Tensor] = dict(learned.named_parameters())
        self.optimizer = torch.optim.Adam(self.parameters.values(), betas=(0.9, 0.99))
        self.apart = [_tensors(sequence) for sequence in apart]
        self.overlap = overlap
        self.held_out = _hashes(apart, shape, overlap)
        self.seen = self.held_out
        self.step = self.stale = 0
        self.history: list[tuple[int, float]] = []
        self.before = self.best_error = self._errors()
        self.best = {name: x.detach().clone() for name, x in self.parameters.items()}

    def see(self, *sequences: AttentionData) -> None:
        """Record tokens as used for fitting; raise ValueError if they are held out."""
        for sequence in sequences:
            self.shape.check(sequence)
        found = _hashes(sequences, self.shape, self.overlap)
        for ours, theirs in zip(found, self.held_out, strict=True):
            same = int(np.isin(ours, theirs).sum())
            if same:
                raise ValueError(
                    f"{sequences[0].source}: at least {same} tokens are used for fitting and also "
                    f"held out; held-out tokens must be different ({self.overlap} in a row or more "
                    "count as the same text; --overlap changes this)"
                )
        self.seen = [smallest_hashes(pair) for pair in zip(self.seen, found, strict=True)]

    def train(
        self,
        items: Iterator[AttentionData],
        progress: ProgressReport | None,
        resume: Path | None,
        key: str,
    ) -> Ended:
        """Take steps until all are done, held-out errors stop improving, or items run out."""
        every = max(1, self.steps // LOOKS)
        meter, kept_at = Progress(self._told(), self.steps, progress), time.monotonic()
        while self.step < self.steps and self.stale < PATIENCE:
            meter(self.step)
            item = next(items, None)
            if item is None:
                break
            self._take_step(item)
            if self.step % every == 0 or self.step == self.steps:
                self._look()
                meter.what = self._told()
            if resume is not None and time.monotonic() - kept_at > PAUSE:
                self._keep(resume, key)
                kept_at = time.monotonic()
        if self.step % every and self.step < self.steps:
            self._look()
        meter.close(self.step)
        if resume is not None:  # other layers may still be running when this one is done
            self._keep(resume, key)
        if self.stale >= PATIENCE:
            return "no better"
        return "steps" if self.step == self.steps else "data"

    def _told(self) -> str:
        start, best = float(self.before.mean()), float(self.best_error.mean())
        return f"held-out error {start:.3f} → {best:.3f}"

    def _take_step(self, item: AttentionData) -> None:
        q, k, v = _tensors(item)
        rows = np.arange(q.shape[-2])
        if len(rows) > ROWS:
            rows = seeded(f"rows {self.step}", self.seed).choice(rows, ROWS, replace=False)
        self.optimizer.zero_grad()
        self._loss(q, k, v, rows).sum().backward()
        for x in self.parameters.values():
            # Heads are independent: one that diverged stays where it is and keeps its best.
            whole = torch.isfinite(x.grad.reshape(len(x), -1)).all(-1)
            x.grad[~whole] = 0.0
        warm = min(1.0, (self.step + 1) / WARM_UP)
        cosine = (1 + math.cos(math.pi * self.step / self.steps)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * warm * cosine
        self.optimizer.step()
        self.step += 1

    def _loss(self, q: Tensor, k: Tensor, v: Tensor, rows: Any) -> Tensor:
        """The loss of each head, (H,), for these rows."""
        options: dict[str, Any] = {
            "rows": rows,
            "causal": self.shape.causal,
            "scale": self.shape.scale,
        }
        exact = attention_weights(q, k, "softmax", **options)
        weights = attention_weights(q, k, self.learned.dial, on_zero="zero", **options)
        total = torch.zeros(len(q))
        if self.loss != "weights":
            values = v.repeat_interleave(len(q) // len(v), dim=0)
            wanted = exact @ values
            size = (wanted**2).sum((-2, -1))
            error = ((weights @ values - wanted) ** 2).sum((-2, -1))
            total = total + error / torch.where(size > 0, size, torch.ones_like(size))
        if self.loss != "outputs":
            # A weight can be 0, with T2R exactly 0. The floor keeps the logarithm finite.
            logs = torch.log(weights.clamp_min(FLOOR))
            total = total - (exact * logs).sum(-1).mean(-1)
        return total

    def _errors(self) -> Tensor:
        """‖O − O_softmax‖ / ‖O_softmax‖ of each head, averaged over held-out sequences."""
        options: dict[str, Any] = {"causal": self.shape.causal, "scale": self.shape.scale}
        found = []
        with torch.no_grad():
            dial = self.learned.dial
            for q, k, v in self.apart:
                wanted = softmax_attention(q, k, v, **options)
                ours = linear_attention(q, k, v, dial, on_zero="zero", **options)
                size = wanted.norm(dim=(-2, -1))
                lost = (ours - wanted).norm(dim=(-2, -1))
                found.append(lost / torch.where(size > 0, size, torch.ones_like(size)))
        return torch.stack(found).mean(0)

    def _look(self) -> None:
        """Evaluate, and keep the weights of heads that improved.

        Heads that share keys share weights, so they count as one.
        """
        errors = self._errors()
        self.history.append((self.step, float(errors.nanmean())))
        groups = len(errors) // (len(self.shape.layers) * self.shape.kv_heads)
        mean, least = (x.reshape(-1, groups).mean(-1) for x in (errors, self.best_error))
        better = mean < least
        self.stale = 0 if bool(better.any()) else self.stale + 1
        for name, x in self.parameters.items():
            chosen = better.repeat_interleave(len(x) // len(better))
            chosen = chosen.reshape(-1, *(1,) * (x.ndim - 1))
            self.best[name] = torch.where(chosen, x.detach(), self.best[name])
        self.best_error = torch.where(better.repeat_interleave(groups), errors, self.best_error)

    def by_layer(self, errors: Tensor) -> dict[int, tuple[float, ...]]:
        rows = errors.reshape(len(self.shape.layers), -1).tolist()
        return {layer: tuple(row) for layer, row in zip(self.shape.layers, rows, strict=True)}

    def fitted(self) -> FittedMaps:
        """The best weights, as one dial for each layer."""
        with torch.no_grad():
            for name, x in self.parameters.items():
                x.copy_(self.best[name])
        whole, count = self.learned.export(), len(self.shape.layers)
        dials, seen = {}, {}
        for row, layer in enumerate(self.shape.layers):
            dials[layer] = _rows_of(whole, row, count)
            each = self.seen[row * self.shape.kv_heads :][: self.shape.kv_heads]
            most = min(map(len, each))  # heads with equal tokens may have fewer hashes
            seen[layer] = np.stack([x[:most] for x in each])
        return FittedMaps(
            dials,
            heads=self.shape.heads,
            scale=self.shape.scale,
            causal=self.shape.causal,
            seen=seen,
            source=self.shape.source,
            overlap=self.overlap,
        )

    def _keep(self, path: Path, key: str) -> None:
        about = {"format": FORMAT, "key": key, "step": str(self.step), "stale": str(self.stale)}
        more = {
            "before": self.before.numpy(),
            "best_error": self.best_error.numpy(),
            "history": np.array(self.history, dtype=np.float64).reshape(-1, 2),
        }
        more |= {f"seen.{i}": x for i, x in enumerate(self.seen)}
        save_snapshot(path, about, self.optimizer, self.parameters, self.best, more)

    def restore(self, path: Path, key: str) -> None:
        """Continue from the snapshot in a file if it belongs to this fit."""
        known = {"format": FORMAT, "key": key}
        found = load_snapshot(path, known, self.optimizer, self.parameters, self.best)
        if found is None:
            return
        about, tensors = found
        self.step, self.stale = int(about["step"]), int(about["stale"])
        self.before = torch.from_numpy(tensors["before"])
        self.best_error = torch.from_numpy(tensors["best_error"])
        self.history = [(int(step), error) for step, error in tensors["history"].tolist()]
        self.seen = [tensors[f"seen.{i}"] for i in range(len(self.seen))]


def _tensors(data: AttentionData) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in float32, with the heads of all layers on one axis.

    Query head h still uses key head h // groups.
    """
    q, k, v = (torch.tensor(x, dtype=torch.float32).flatten(0, 1) for x in (data.q, data.k, data.v))
    return q, k, v


def _hashes(sequences: Any, shape: Shape, overlap: int) -> list[Any]:
    """The hashes of all tokens for each key head of each layer."""
    empty = np.zeros(0, np.uint64)
    return [
        smallest_hashes([empty, *(hashes(data.k[row, head], overlap) for data in sequences)])
        for row in range(len(shape.layers))
        for head in range(shape.kv_heads)
    ]


def _rows_of(whole: Dial, row: int, count: int) -> Dial:
    """The dial of one of `count` layers."""

    def share(x: Any) -> Any:
        return x[row * len(x) // count : (row + 1) * len(x) // count]

    own = {
        field.name: share(x)
        for field in dataclasses.fields(whole.feature_map)
        if isinstance(x := getattr(whole.feature_map, field.name), np.ndarray)
    }
    far = None if whole.far is None else Far(share(whole.far.gain), whole.far.relative)
    feature_map = dataclasses.replace(whole.feature_map, **own)
    return dataclasses.replace(whole, feature_map=feature_map, far=far)
