"""Quality against the number of heads that see the whole text, from one ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kerneltrick import maps
from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.analysis import Store, run_key
from kerneltrick.attention import Dial
from kerneltrick.hf._heads import HeadRanking
from kerneltrick.hf._linearized import Linearized, dial_of, with_whole


class HeadCurvePoint(NamedTuple):
    """The quality of a model in which so many heads see the whole text."""

    heads: int
    share: float
    quality: float  # perplexity, or the mean cosine of embeddings with the teacher's
    knee: bool = False  # whether it gains most here over a straight line


def head_curve(
    model: Linearized,
    ranking: HeadRanking,
    windows: Sequence[Sequence[int]],
    shares: Sequence[float],
    teacher: Any = None,
    progress: ProgressReport | None = None,
    store: Store | None = None,
) -> tuple[HeadCurvePoint, ...]:
    """Return the quality for several shares of heads, the best ones, without any training.

    teacher: the original, for embeddings; None is the model itself with softmax in each layer.
    store: keeps finished pieces.
    """
    layers, heads = ranking.shape
    counts = sorted({round(share * layers * heads) for share in shares})
    limited = [_limited(dial_of(x), ranking) for x in model.settings]
    meter = Progress("measuring shares of heads", len(counts) * len(windows), progress)
    store = store or Store()
    found, done = [], 0
    with torch.inference_mode():
        wanted = [] if model.config.language else _wanted(model, windows, teacher)
        for count in counts:
            whole = ranking.whole(count)
            settings = [with_whole(x, whole.get(at, ()), heads) for at, x in enumerate(limited)]
            values = []
            for number, ids in enumerate(windows):
                meter(done)
                done += 1
                piece = f"{run_key(ids)} {whole}"
                if store.get(piece) is None:
                    batch = torch.tensor([list(ids)], device=model.device)
                    with model.attending_by(settings):
                        ours = _outcome(model, batch)
                    if wanted:
                        ours = torch.nn.functional.cosine_similarity(ours, wanted[number], dim=0)
                    store.put(piece, float(ours))
                values.append(store.get(piece))
            mean = sum(values) / len(values)
            quality = math.exp(mean) if model.config.language else mean
            found.append(HeadCurvePoint(count, count / (layers * heads), quality))
    meter.close(done)
    return _marked(found)


def _wanted(model: Linearized, windows: Sequence[Sequence[int]], teacher: Any) -> list[Any]:
    """Return the teacher's embeddings."""
    exact = [Dial(maps.Softmax())] * len(model.settings)
    with model.attending_by(exact):
        which = model if teacher is None else teacher
        return [_outcome(which, torch.tensor([list(ids)], device=model.device)) for ids in windows]


def _outcome(model: Any, batch: Any) -> Any:
    """Return the loss of the next tokens, or the embedding of the text."""
    if model.get_output_embeddings() is None:
        return model(input_ids=batch).last_hidden_state[0].double().mean(0)
    logits = model(input_ids=batch, use_cache=False).logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(logits, batch[0, 1:])


def _limited(dial: Dial, ranking: HeadRanking) -> Dial:
    """Return the dial of a layer without whole heads."""
    if dial.near:
        return with_whole(dial, (), -1)
    return Dial(maps.Softmax(), ranking.window, ranking.sinks)


def _marked(points: list[HeadCurvePoint]) -> tuple[HeadCurvePoint, ...]:
    """Mark the knee: the point that gains most over the line between the two ends, if any does."""
    if len(points) < 3 or points[0].quality == points[-1].quality:
        return tuple(points)
    first, last = points[0], points[-1]
    gains = [
        (x.quality - first.quality) / (last.quality - first.quality)
        - (x.heads - first.heads) / (last.heads - first.heads)
        for x in points
    ]
    knee = max(range(len(points)), key=gains.__getitem__)
    return tuple(x._replace(knee=at == knee and gains[at] > 0) for at, x in enumerate(points))
