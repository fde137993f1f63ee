"""Attention transfer: fit maps, and the gains of windows, to the softmax of a model."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kerneltrick import maps
from kerneltrick._arrays import Array, is_array
from kerneltrick._executor import Piece, Team
from kerneltrick._progress import ProgressReport
from kerneltrick._version import __version__
from kerneltrick.analysis import AttentionData, FittedMaps, hashes, identifying_run, run_key
from kerneltrick.attention import Dial, check_count, check_scale, combined
from kerneltrick.maps import one_of, seeded
from kerneltrick.torch._learned_map import LearnedMap, modules_of
from kerneltrick.torch._transfer import Ended, Loss, Shape, Transfer

Item: TypeAlias = AttentionData | Sequence[Array]  # a sequence: q, k and v of its tokens
Data: TypeAlias = AttentionData | Iterable[Item]

LEAST_TOKENS = 16  # needed to cut one sequence into fitted and held-out tokens


@dataclasses.dataclass(frozen=True)
class Fit:
    """The result of a fit: the maps, and their errors on held-out tokens.

    The error of a head is ‖O − O_softmax‖ / ‖O_softmax‖, averaged over held-out sequences. The
    held-out tokens decide when the fit stops, so evaluate the maps on other tokens;
    `analysis.compare` insists on it.
    """

    maps: FittedMaps
    before: dict[int, tuple[float, ...]]  # error of each head by layer, before the first step
    after: dict[int, tuple[float, ...]]
    history: tuple[tuple[int, float], ...]  # step, and the mean error of all heads after it
    steps: int
    stopped: Ended


def fit(
    data: Data,
    feature_map: maps.MapLike | Dial = "hedgehog",
    *,
    window: int = 0,
    sinks: int = 0,
    far: Any = None,
    features: int | None = None,
    key_weight: bool = False,
    loss: Loss = "both",
    causal: bool | None = None,
    scale: float | None = None,
    held_out: Data | None = None,
    overlap: int | None = None,
    steps: int = 600,
    learning_rate: float = 0.04,
    seed: int = 0,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
    executor: concurrent.futures.Executor | None = None,
) -> Fit:
    """Fit a map to each head of each layer of `data`, so that its outputs match those of softmax.

    Every head is fitted independently with Adam and a cosine schedule. Each step uses `ROWS`
    queries of one sequence. For each head the weights with the smallest held-out error are kept;
    the starting weights count too, so on held-out tokens a fitted map is never worse than before.

    data
        One sequence: `AttentionData`, or (q, k, v) as `AttentionData.from_arrays` takes them. Or a
        list of sequences. Or an iterator of them: each item is used for one step and released, so
        `steps` should be the number of items.
    feature_map, window, sinks, far, features, key_weight
        What is learned and where it starts: see `LearnedMap`. Window, sinks and far can also be
        given in the text, as in `hedgehog@window=16,sinks=2`.
    loss
        "outputs" is ‖O − O_softmax‖² / ‖O_softmax‖². "weights" is the cross-entropy between the
        weights of softmax and of the map. "both" is their sum.
    causal, scale
        The softmax to imitate. By default they are taken from the data, else full attention with
        scale 1/√d.
    held_out
        Sequences with the same heads that decide when to stop. The default is every eighth sequence
        of a list (at least one), the first item of an iterator, or the last quarter of a single
        sequence, which then attends only to itself.
    overlap
        So many equal keys in a row are the same text, which must not be fitted to and held out or
        judged. By default, more than chance gives: at least 8, and more for a text of few different
        tokens or with a template, judged by how the sequences to fit to repeat each other (8 for an
        iterator).
    seed
        The seed of the order of sequences and of the choice of rows. The same seed and number of
        threads give the same maps.
    resume
        A file that stores the state of the fit every second. A fit that was stopped continues from
        there and ends with the same result.
    executor
        Workers that each fit one layer. A layer stops on its own when it no longer improves, and
        its result does not depend on the others. Each worker stores its state in a separate file,
        `resume` with the number of the layer appended. An iterator cannot be used with an executor.

    >>> from kerneltrick.analysis import sample
    >>> found = fit(sample().select([5], [3]), "hedgehog@window=4,sinks=1", steps=20)
    >>> found.after[5] < found.before[5], found.maps
    (True, FittedMaps(1 layer, 1 head, 'fitted.safetensors@window=4,sinks=1'))
    """
    one_of("fit", "loss", loss, ("outputs", "weights", "both"))
    steps = check_count("fit", "steps", steps, 1)
    seed = check_count("fit", "seed", seed)
    learning_rate = check_scale("fit", learning_rate, "learning_rate")
    sequences, stream, apart = _split(data, held_out)
    if executor is not None and stream is not None:
        raise ValueError("fit with an executor needs a list, not a stream, which cannot be sent")
    dial = Dial(*combined("fit", feature_map, window, sinks, far))
    dial.alike("fit")
    if modules_of(dial.feature_map):
        raise TypeError(
            "fit learns weights for each head on its own, but all heads share a torch.nn.Module: "
            "train it with a layer, as in kerneltrick.torch.Attention(..., feature_map=module)"
        )
    if overlap is None:  # as the first layer repeats itself most, it decides
        overlap = identifying_run([hashes(x.k[0, 0], 1) for x in sequences])
    job = _Job(
        sequences=sequences,
        apart=apart,
        overlap=check_count("fit", "overlap", overlap, 1),
        dial=dial,
        features=features,
        key_weight=key_weight,
        loss=loss,
        causal=causal,
        scale=scale,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
        resume=resume,
    )
    if executor is None:
        return _fitted(job, stream, progress)
    pieces = [Piece(str(i), f"layer {i}", (i,)) for i in apart[0].layers]
    found: dict[str, Fit] = {}
    with Team(job, executor) as team:
        for piece, value in team.results(_fit_layer, pieces):
            found[piece.key] = value
            if progress is not None:
                progress(piece.what, len(found), len(pieces))
    return _joined([found[piece.key] for piece in pieces])


@dataclasses.dataclass(frozen=True)
class _Job:
    """A fit in the form that is sent to workers."""

    sequences: list[AttentionData]
    apart: list[AttentionData]  # held out
    overlap: int
    dial: Dial
    features: int | None
    key_weight: bool
    loss: Loss
    causal: bool | None
    scale: float | None
    steps: int
    learning_rate: float
    seed: int
    resume: Path | None


def _fit_layer(job: _Job, layer: int) -> Fit:
    sequences, apart = ([x.select([layer]) for x in each] for each in (job.sequences, job.apart))
    resume = job.resume
    if resume is not None:  # a worker on another machine may not have that folder
        resume = layer_file(resume, layer) if resume.parent.is_dir() else None
    own = dataclasses.replace(job, sequences=sequences, apart=apart, resume=resume)
    return _fitted(own, None, None)


def layer_file(resume: Path, layer: int) -> Path:
    """The file that stores the fit of one layer."""
    return resume.with_name(f"{resume.name}.{layer}")


def _fitted(job: _Job, stream: Iterator[Item] | None, progress: ProgressReport | None) -> Fit:
    """Fit all layers of the job at once."""
    shape = Shape.of(job.apart[0], job.causal, job.scale)
    for sequence in job.apart:
        shape.check(sequence)
    learned = LearnedMap(
        job.dial,
        num_heads=len(shape.layers) * len(shape.heads),
        num_kv_heads=len(shape.layers) * shape.kv_heads,
        head_dim=shape.width,
        features=job.features,
        key_weight=job.key_weight,
        seed=job.seed,
    )
    run = Transfer(
        learned,
        shape,
        job.loss,
        job.steps,
        job.learning_rate,
        job.seed,
        job.apart,
        job.overlap,
    )
    run.see(*job.sequences)
    key = ""
    if job.resume is not None:
        given = (
            __version__,
            shape,
            job.loss,
            job.steps,
            job.learning_rate,
            job.seed,
            job.overlap,
            stream is None,
        )
        arrays = (x for s in (*job.sequences, *job.apart) for x in (s.q, s.k, s.v))
        key = run_key(*given, str(learned.export()), *arrays)
        run.restore(job.resume, key)
    if stream is None:
        items = _shuffled(job.sequences, job.seed, run.step)
    else:
        items = _streamed(stream, run)
    stopped = run.train(items, progress, job.resume, key)
    return Fit(
        maps=run.fitted(),
        before=run.by_layer(run.before),
        after=run.by_layer(run.best_error),
        history=tuple(run.history),
        steps=run.step,
        stopped=stopped,
    )


def _joined(fits: Sequence[Fit]) -> Fit:
    """Join the fits of several layers; a layer that stopped early keeps its last error."""
    first = fits[0].maps
    dials = {layer: dial for found in fits for layer, dial in found.maps.dials.items()}
    seen = {layer: hashes for found in fits for layer, hashes in found.maps.seen.items()}
    history = []
    for step in sorted({step for found in fits for step, _ in found.history}):
        errors = [[error for at, error in found.history if at <= step][-1:] for found in fits]
        known = [error for each in errors for error in each]
        history.append((step, sum(known) / len(known)))
    ends = {found.stopped for found in fits}
    return Fit(
        maps=dataclasses.replace(first, dials=dials, seen=seen),
        before={layer: errors for found in fits for layer, errors in found.before.items()},
        after={layer: errors for found in fits for layer, errors in found.after.items()},
        history=tuple(history),
        steps=max(found.steps for found in fits),
        stopped=ends.pop() if len(ends) == 1 else "steps",
    )


def _split(
    data: Data, held_out: Data | None
) -> tuple[list[AttentionData], Iterator[Item] | None, list[AttentionData]]:
    """The sequences to fit, or a stream of them, and the held-out sequences; none in both."""
    stream = None
    if _is_sequence(data):
        sequences = [_prepared(data)]
    elif isinstance(data, Iterator):
        sequences, stream = [], data
    elif isinstance(data, Iterable):
        sequences = [_prepared(item) for item in data]
        if not sequences:
            raise ValueError("fit needs a sequence of q, k and v; the list is empty")
    else:
        raise TypeError(
            f"fit needs AttentionData, (q, k, v), or a list or stream of them, not "
            f"{type(data).__name__}"
        )
    if held_out is not None:
        given: Any = (held_out,) if _is_sequence(held_out) else held_out
        apart = [_prepared(item) for item in given]
        if not apart:
            raise ValueError("fit needs at least one held-out sequence; the list is empty")
        return sequences, stream, apart
    if stream is not None:
        item = next(stream, None)
        if item is None:
            raise ValueError("fit needs a sequence of q, k and v; the stream is empty")
        return sequences, stream, [_prepared(item)]
    if len(sequences) > 1:
        places = [*range(7, len(sequences), 8)] or [len(sequences) - 1]
        fitted = [s for place, s in enumerate(sequences) if place not in places]
        return fitted, None, [sequences[place] for place in places]
    first, last = _cut(sequences[0])
    return [first], None, [last]


def _is_sequence(data: Any) -> bool:
    """Whether this is a single sequence."""
    if isinstance(data, AttentionData):
        return True
    return isinstance(data, tuple) and len(data) == 3 and all(map(is_array, data))


def _prepared(item: Any) -> AttentionData:
    """The sequence without padding; NaN and infinity are refused."""
    if not _is_sequence(item):
        raise TypeError(f"fit needs AttentionData or (q, k, v), not {type(item).__name__}")
    data = item if isinstance(item, AttentionData) else AttentionData.from_arrays(*item)
    if data.q.shape[2] != data.k.shape[2]:
        raise ValueError(
            f"fit needs as many queries as keys, but {data.source} has {data.q.shape[2]} and "
            f"{data.k.shape[2]}"
        )
    data, _ = data.sanitized()
    if data.excluded:
        layer, head = data.excluded[0]
        raise ValueError(
            f"{data.source}: layer {layer} head {head} holds NaN or infinity; select other heads"
        )
    return data


def _cut(data: AttentionData) -> tuple[AttentionData, AttentionData]:
    """The first three quarters of the tokens and the last quarter, as separate sequences."""
    n = data.q.shape[2]
    if n < LEAST_TOKENS:
        raise ValueError(
            f"fit holds out the last quarter of a single sequence, so it needs {LEAST_TOKENS} "
            f"tokens, but {data.source} has {n}; give more tokens, or held_out"
        )
    at = n - n // 4

    def excerpt(where: slice) -> AttentionData:
        arrays: dict[str, Any] = {name: getattr(data, name)[:, :, where] for name in "qkv"}
        tokens = None if data.tokens is None else data.tokens[where]
        return dataclasses.replace(data, **arrays, tokens=tokens)

    return excerpt(slice(at)), excerpt(slice(at, n))


def _shuffled(sequences: list[AttentionData], seed: int, start: int) -> Iterator[AttentionData]:
    """Repeat the sequences forever, in a new order each time, starting at step `start`."""
    epoch, place = divmod(start, len(sequences))
    while True:
        order = seeded(f"order {epoch}", seed).permutation(len(sequences))
        yield from (sequences[i] for i in order[place:])
        epoch, place = epoch + 1, 0


def _streamed(stream: Iterator[Item], run: Transfer) -> Iterator[AttentionData]:
    """The items of a stream after those of the steps already taken."""
    for item in itertools.islice(stream, run.step, None):
        data = _prepared(item)
        run.see(data)
        yield data
