"""Comparing a linearised model with its teacher, on a text."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kerneltrick import maps
from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.analysis import STRETCH, Store, run_key
from kerneltrick.attention import Dial
from kerneltrick.hf._cache import Cache
from kerneltrick.hf._capture import load, place_of, quiet
from kerneltrick.hf._curve import HeadCurvePoint, head_curve
from kerneltrick.hf._generate import Continuation, continuations
from kerneltrick.hf._heads import HeadRanking
from kerneltrick.hf._linearized import Linearized, dial_of
from kerneltrick.hf._loss import models_key, window_alone
from kerneltrick.hf._overlap import overlap_remark
from kerneltrick.hf._passkey import Passkey
from kerneltrick.hf._record import FITTED, RECORD, RUN, read_json
from kerneltrick.hf._speed import Speed, check_contexts, speeds
from kerneltrick.hf._texts import model_kind
from kerneltrick.hf._verdict import verdict

ARCHITECTURE = (  # what the original of a linearised model and a teacher must have in common
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "intermediate_size",
)  # fmt: skip
EDGES = (0, 64, 256, 1024, 4096)  # perplexity is reported between these positions


@dataclasses.dataclass(frozen=True)
class EvaluationRow:
    """The figures of one way to attend."""

    name: str  # teacher, hybrid, window alone, map alone or window for all heads
    figures: dict[str, float]
    errors: dict[str, float]  # the standard errors of figures that are shares of trials
    state_bytes: int | None  # bytes of one stream after a window; None for encoders
    states: dict[str, int]  # the same at the end of each range of positions


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The figures of a linearised model and of what it is compared with, and a verdict.

    Decoders have perplexity, overall and by position; agreement, which is how often the most likely
    next token is the teacher's; and recall, which is how often a number planted at some depth of
    the text is repeated at its end. Encoders have the mean cosine of their embeddings (means over
    tokens) with the teacher's; pairs, which is the rank correlation of all similarities; and
    nearest, which is how often the nearest neighbour is the same. `curve` has the quality with
    other numbers of heads that see the whole text, if heads were ranked.
    """

    rows: tuple[EvaluationRow, ...]
    windows: int
    length: int
    verdict: str
    speeds: tuple[Speed, ...] = ()
    continuations: tuple[Continuation, ...] = ()
    curve: tuple[HeadCurvePoint, ...] = ()


def evaluate(
    model: Linearized | str | os.PathLike[str],
    windows: Sequence[Sequence[int]],
    *,
    teacher: Any = None,
    passkeys: Sequence[Passkey] = (),
    contexts: Sequence[int] = (),
    prompts: Sequence[Sequence[int]] = (),
    ranking: HeadRanking | None = None,
    shares: Sequence[float] = (),
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> Evaluation:
    """Compare a linearised model with its teacher, with its window alone and with its map alone.

    model: the linearised model, or its folder.
    windows: token numbers that the model was not fitted to, in windows of one length. For a folder
        that `linearize` wrote, the verdict says so if much of the text was fitted to.
    teacher: the original model, or its folder. By default, the model itself with softmax in all
        layers, which is the original as long as its weights were not trained.
    passkeys: texts with a planted number (see `passkeys`), for language models.
    contexts: numbers of tokens after which the speed and memory of model and teacher are measured.
    prompts: token numbers for language models to continue.
    ranking: how much heads need the whole text. For a folder, the default is what it records.
    shares: shares of heads that see the whole text, for the curve; the best heads are taken.
    progress: called with what is being done, how many steps are done, and how many there are.
    resume: the file that keeps finished pieces, so that the same call continues.
    """
    if len({len(ids) for ids in windows}) != 1:
        raise ValueError("evaluate needs windows of tokens, all of one length")
    folder = None if isinstance(model, Linearized) else model
    model = _judged(model)
    if isinstance(teacher, (str, os.PathLike)):
        teacher = _loaded(teacher)
    if teacher is not None:
        _check_teacher(model, teacher)
    if teacher is None and model.config.finetune in ("lora", "all"):
        raise ValueError(
            "the weights of this model were trained, so it cannot be its own teacher: give the "
            "original as teacher (--teacher MODEL)"
        )
    record = {} if folder is None else read_json(Path(folder) / RECORD) or {}
    if ranking is None and "heads" in record:
        ranking = HeadRanking.from_record(record["heads"])
    if shares and ranking is None:
        raise ValueError(
            "shares of heads need a ranking: use a model that linearize made with --keep auto"
        )
    check_contexts(model, contexts)
    ways = _ways(model, teacher)
    run = (_LanguageHead if model.config.language else _Encoder)(len(windows[0]))
    tasks = [_Pass(ids, run.how, run.outcome, run.see) for ids in windows]
    if isinstance(run, _LanguageHead):
        tasks += [run.asked(x) for x in passkeys]
    store = Store(resume, models_key(model, teacher))
    meter = Progress("evaluating", len(tasks) * len(ways), progress)
    training = model.training
    model.eval()
    with torch.inference_mode():
        for number, task in enumerate(tasks):
            batch = torch.tensor([list(task.ids)], device=model.device)
            for place, (name, settings) in enumerate(ways.items()):
                meter(number * len(ways) + place)
                piece = f"{run_key(task.how, task.ids)} {name}"
                if store.get(piece) is None:
                    if settings is None:
                        out = teacher(input_ids=batch)
                    else:
                        with model.attending_by(settings):
                            out = model(input_ids=batch, **task.how)
                    store.put(piece, task.outcome(out, batch))
                task.see(name, store.get(piece))
        meter.close(len(tasks) * len(ways))
        exact = [Dial(maps.Softmax())] * len(model.settings)
        states = {
            name: _states(model, own or exact, windows[0], run.ends) for name, own in ways.items()
        }
    curve = (
        ()
        if ranking is None
        else head_curve(model, ranking, windows, shares, teacher, progress, store)
    )
    failed: list[str] = []
    timed: tuple[Speed, ...] = ()
    written: tuple[Continuation, ...] = ()
    if contexts:
        with _kept_figures("The speed could not be measured", failed):
            timed = speeds(model, contexts, progress=progress)
    if prompts and model.config.language:
        with _kept_figures("The prompts could not be continued", failed):
            written = continuations(model, ways, teacher, prompts, progress)
    model.train(training)
    rows = tuple(
        EvaluationRow(name, *run.figures(name), next(reversed(held.values()), None), held)
        for name, held in states.items()
    )
    said = verdict({row.name: row.figures for row in rows}, timed)
    said += overlap_remark(windows, record.get(FITTED, ()), record.get(RUN, STRETCH))
    said = " ".join([said, *failed])
    return Evaluation(rows, len(windows), len(windows[0]), said, timed, written, curve)


@contextlib.contextmanager
def _kept_figures(what: str, failed: list[str]) -> Iterator[None]:
    """Say in the verdict that a later part failed: the figures from before it are not lost."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        failed.append(f"{what}: {' '.join(str(error).split()) or type(error).__name__}.")


class _Pass(NamedTuple):
    """A text for every way to attend, and what is kept of the output."""

    ids: Sequence[int]
    how: dict[str, Any]  # how the model is called
    outcome: Callable[[Any, Any], Any]  # plain values for an output and its batch
    see: Callable[[str, Any], None]  # collects the outcome of a way to attend


def _judged(model: Linearized | str | os.PathLike[str]) -> Linearized:
    found = model if isinstance(model, Linearized) else _loaded(model)
    if isinstance(found, Linearized):
        return found
    raise ValueError(
        f"{os.fspath(model)} holds no linearised model, but a {found.config.model_type}; make one "
        "with kerneltrick linearize"
    )


def _loaded(model: str | os.PathLike[str]) -> Any:
    where = place_of(model)
    with quiet():
        _, kind = model_kind(where)
        return load(where, kind.from_pretrained, dtype=torch.float32).eval()


def _check_teacher(model: Linearized, teacher: Any) -> None:
    """Raise ValueError if the teacher is not the model that was linearised.

    The configuration of a linearised model holds that of its original.
    """
    if isinstance(teacher, Linearized):
        raise ValueError("a linearised model cannot be the teacher: give the original")
    head = teacher.get_output_embeddings() is not None
    kinds = {True: "predicts tokens", False: "gives embeddings"}
    theirs, own = teacher.config.get_text_config(), model.config.text_config.get_text_config()
    differ = [name for name in ARCHITECTURE if getattr(theirs, name, 0) != getattr(own, name, 0)]
    if head != model.config.language:
        reason = f"it {kinds[head]}, and this model {kinds[model.config.language]}"
    elif differ:
        name = differ[0]
        reason = (
            f"its {name} is {getattr(theirs, name, None)}, and that of the original of this model "
            f"is {getattr(own, name, None)}; give the original"
        )
    else:
        return
    raise ValueError(f"{teacher.config.model_type} cannot be the teacher: {reason}")


def _ways(model: Linearized, teacher: Any) -> dict[str, list[Any] | None]:
    """Return the settings of each way to attend; None stands for the given teacher."""
    own = model.settings
    dials = [dial_of(x) for x in own]
    exact = Dial(maps.Softmax())
    found: dict[str, list[Any] | None] = {
        "teacher": [exact] * len(own) if teacher is None else None,
        "hybrid": list(own),
    }
    if any(dial.near and dial.feature_map.has_features for dial in dials):
        found["window alone"] = [window_alone(dial) for dial in dials]
        found["map alone"] = [_map_alone(dial) for dial in dials]
    near = [dial for dial in dials if dial.near]
    if near and (len(near) < len(dials) or any(dial.whole for dial in near)):
        every = Dial(maps.Softmax(), near[0].window, near[0].sinks)
        found["window for all heads"] = [every] * len(own)
    return found


def _map_alone(dial: Dial) -> Dial:
    """Return the dial without its window and sinks; whole heads stay whole."""
    if not (dial.near and dial.feature_map.has_features):
        return dial
    return Dial(dial.feature_map, whole=dial.whole)


def _states(
    model: Linearized, settings: Sequence[Any], ids: Sequence[int], ends: dict[str, int]
) -> dict[str, int]:
    """Return the bytes that one stream holds after each number of tokens in `ends`."""
    if not model.config.causal:
        return {}
    cache, held, start = Cache(), {}, 0
    with model.attending_by(settings):
        for name, end in ends.items():
            piece = torch.tensor([list(ids[start:end])], device=model.device)
            model(input_ids=piece, past_key_values=cache)
            held[name], start = cache.nbytes, end
    return held


class _LanguageHead:
    """Collects losses and most likely tokens of language models."""

    how: dict[str, Any] = {"use_cache": False}  # noqa: RUF012 (never changed)

    def __init__(self, length: int) -> None:
        self.spans = [
            (a, b) for a, b in zip(EDGES, (*EDGES[1:], length), strict=True) if a < length
        ]
        self.spans = [(a, min(b, length)) for a, b in self.spans]
        self.ends = {f"{a}–{b - 1}": b for a, b in self.spans}  # numbers of tokens, by figure
        if len(self.spans) == 1:
            self.ends = {"perplexity": length}
        self.losses: dict[str, list[Any]] = {}
        self.same: dict[str, list[float]] = {}
        self.recalled: dict[str, dict[float, list[bool]]] = {}
        self.likely: Any = None

    def outcome(self, out: Any, batch: Any) -> Any:
        logits = out.logits[0, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits, batch[0, 1:], reduction="none")
        return [loss.double().tolist(), logits.argmax(-1).tolist()]

    def see(self, name: str, found: Any) -> None:
        losses, likely = map(np.array, found)
        self.losses.setdefault(name, []).append(losses)
        if name == "teacher":  # it comes first
            self.likely = likely
        self.same.setdefault(name, []).append(float((likely == self.likely).mean()))

    def asked(self, passkey: Passkey) -> _Pass:
        """Return the task of repeating a planted number."""
        count = passkey.answer

        def outcome(out: Any, batch: Any) -> bool:
            return bool((out.logits[0, -count - 1 : -1].argmax(-1) == batch[0, -count:]).all())

        def see(name: str, right: bool) -> None:
            self.recalled.setdefault(name, {}).setdefault(passkey.depth, []).append(right)

        return _Pass(passkey.ids, {**self.how, "logits_to_keep": count + 1}, outcome, see)

    def figures(self, name: str) -> tuple[dict[str, float], dict[str, float]]:
        losses = np.stack(self.losses[name])
        found = {"perplexity": math.exp(losses.mean())}
        for a, b in self.spans if len(self.spans) > 1 else []:
            part = losses[:, a:b]  # the loss at position i is that of token i + 1
            if part.size:
                found[f"{a}–{b - 1}"] = math.exp(part.mean())
        found["agreement"] = float(np.mean(self.same[name]))
        asked = self.recalled.get(name, {})
        tried = {f"recall at {depth:.0%}": right for depth, right in sorted(asked.items())}
        if len(tried) > 1:
            tried["recall"] = [x for right in asked.values() for x in right]
        shares = {what: float(np.mean(right)) for what, right in tried.items()}
        errors = {what: math.sqrt(p * (1 - p) / len(tried[what])) for what, p in shares.items()}
        return {**found, **shares}, errors


class _Encoder:
    """Collects embeddings: means of the last hidden states over tokens."""

    how: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    def __init__(self, length: int) -> None:
        self.ends = {"cosine": length}
        self.embeddings: dict[str, list[Any]] = {}

    def outcome(self, out: Any, batch: Any) -> Any:
        mean = out.last_hidden_state[0].double().mean(0)
        return (mean / mean.norm()).tolist()

    def see(self, name: str, found: Any) -> None:
        self.embeddings.setdefault(name, []).append(np.array(found))

    def figures(self, name: str) -> tuple[dict[str, float], dict[str, float]]:
        ours, theirs = np.stack(self.embeddings[name]), np.stack(self.embeddings["teacher"])
        found = {"cosine": float((ours * theirs).sum(-1).mean())}
        if len(ours) >= 3:
            pairs = np.triu_indices(len(ours), 1)
            a, b = ours @ ours.T, theirs @ theirs.T
            found["pairs"] = _rank_correlation(a[pairs], b[pairs])
            for x in (a, b):
                np.fill_diagonal(x, -np.inf)
            found["nearest"] = float((a.argmax(-1) == b.argmax(-1)).mean())
        return found, {}


def _rank_correlation(a: Any, b: Any) -> float:
    """Return Spearman's rank correlation. Similarities in floating point have hardly any ties."""
    ranks = [np.argsort(np.argsort(x)).astype(np.float64) for x in (a, b)]
    a, b = (x - x.mean() for x in ranks)
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))
