"""Linearising a pretrained model: fit maps to its layers, train, evaluate, and write a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from kerneltrick import maps
from kerneltrick._progress import ProgressReport, paced
from kerneltrick._text import shown
from kerneltrick.analysis import STRETCH, AttentionData
from kerneltrick.attention import Dial, check_count
from kerneltrick.hf._capture import check_original, load_network, place_of, quiet, record
from kerneltrick.hf._choose import (
    choose_window,
    is_exact,
    is_softmax,
    keep_layers,
    most_kept,
    state_bytes,
    with_features,
)
from kerneltrick.hf._companions import check_companions
from kerneltrick.hf._evaluate import Evaluation, evaluate
from kerneltrick.hf._finetune import Tuned, peft_package
from kerneltrick.hf._finetune import finetune as tune
from kerneltrick.hf._folder import check_folder, save_folder
from kerneltrick.hf._heads import HeadRanking, rank_heads
from kerneltrick.hf._linearized import Linearized, assemble, attention_modules, with_whole
from kerneltrick.hf._loss import drop_maps, layer_losses, mapped_heads
from kerneltrick.hf._overlap import overlap_remark, sketch
from kerneltrick.hf._passkey import DEPTHS, FITTED_PHRASINGS, Passkey, passkeys
from kerneltrick.hf._record import FITTED, RUN
from kerneltrick.hf._recorder import CaptureError
from kerneltrick.hf._recorder import register as register_recorder
from kerneltrick.hf._split import Split, Windows, hold_out, split
from kerneltrick.hf._texts import model_kind
from kerneltrick.maps import one_of
from kerneltrick.torch import Fit, fit

CHOOSING = 2  # validation windows that choose the layers which keep softmax
TRIALS = 4  # planted numbers for each depth that evaluate a language model
RANKED, RANKED_TOKENS = 4, 4096  # windows that rank heads, and tokens in them, at least
RANKED_TRIALS = 6  # planted numbers for each depth that rank heads: each phrasing once
PLANTED_LENGTH = 512  # tokens around a planted number that ranks heads or trains, at most
SHARES = (0.0, 0.05, 0.1, 0.2, 0.25, 0.35, 0.5)  # of heads, for the curve
FINETUNE = ("none", "maps", "lora", "all")
PARTS = ("heads", "tuning", "maps")  # parts of an unfinished run that have files of their own


@dataclasses.dataclass(frozen=True)
class Linearization:
    """A linearised model, how it was made, and how good it is."""

    model: Linearized
    fit: Fit | None  # the fit of the maps; None if there was nothing to fit
    kept: dict[int, str]  # the layers that keep softmax, with the reason
    teacher: str  # the folder or name of the original
    tuned: Tuned | None = None  # the training end to end, if there was one
    window: str | None = None  # why the window was chosen, if it was
    dropped: int = 0  # windows that were not fitted to, as they repeat text of validation windows
    overlap: int = STRETCH  # how many tokens in a row make a repetition
    judged: Evaluation | None = None  # the figures on held-out windows, if there were any
    sketch: tuple[str, ...] = ()  # a sketch of the text, by which `evaluate` knows it again
    ranking: HeadRanking | None = None  # how much heads need the whole text, if it was measured
    bare: dict[int, tuple[int, ...]] | None = None  # heads whose map did not help, if measured

    @property
    def changed(self) -> bool:
        """Whether the weights of the original were trained too."""
        return self.tuned is not None and self.tuned.trained != "maps"

    @property
    def whole(self) -> dict[int, tuple[int, ...]]:
        """The key–value heads that see the whole text, by layer, if heads were ranked."""
        if self.ranking is None:
            return {}
        every = tuple(range(self.ranking.shape[1]))
        dials = [Dial.get(layer["dial"]) for layer in self.model.config.layers]
        found = [every if is_exact(dial) else tuple(dial.whole) for dial in dials]
        return {layer: heads for layer, heads in enumerate(found) if heads}

    @property
    def remarks(self) -> list[str]:
        """Sentences about how the model was made."""
        found = []
        if self.dropped:
            found.append(
                f"Windows that were skipped: {self.dropped}, because they repeat text of the "
                f"validation windows ({self.overlap} tokens in a row or more)."
            )
        if self.window is not None:
            found.append(f"Window: {self.window}.")
        if self.ranking is not None:
            count = sum(map(len, self.whole.values()))
            every = math.prod(self.ranking.shape)
            found.append(f"Heads that see the whole text: {count} of {every}.")
        if self.bare is not None:
            dropped = sum(map(len, self.bare.values()))
            found.append(
                f"Heads that keep no map, as their window and sinks alone are as good on held-out "
                f"text: {dropped} of {dropped + len(mapped_heads(self.model))}."
            )
        if self.tuned is not None:
            found.append(
                f"Trained end to end (`{self.tuned.trained}`, {self.tuned.tokens:,} tokens): "
                f"held-out loss {shown(self.tuned.before)} → {shown(self.tuned.after)}."
            )
        return found

    def save(
        self,
        folder: str | os.PathLike[str],
        judged: Evaluation | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Write the model, its tokenizer and a card with the figures, as a whole or not at all.

        folder: the folder to write. An existing folder is an error.
        judged: the figures for the card. By default, those of this linearisation.
        force: replace the folder if it holds a linearised model. Files that you added to it stay,
            and a file that was changed since it was written is an error.
        """
        judged = judged or self.judged
        if judged is None:
            raise ValueError(
                "save needs figures for the model card: pass what kerneltrick.hf.evaluate returns, "
                "or give linearize held_out windows"
            )
        errors: dict[int, float] = {} if self.fit is None else _means(self.fit)
        save_folder(
            out=Path(folder),
            model=self.model,
            teacher=self.teacher,
            judged=judged,
            errors=errors,
            kept=self.kept,
            remarks=self.remarks,
            record={**self.record(), FITTED: self.sketch},
            force=force,
        )

    def record(self) -> dict[str, Any]:
        """Return the losses, the errors of heads and the choices as plain values, for reports."""
        found: dict[str, Any] = {"kept": self.kept, "window": self.window, "dropped": self.dropped}
        found[RUN] = self.overlap
        if self.ranking is not None:
            found["heads"] = {**self.ranking.record(), "whole": self.whole}
        if self.bare is not None:
            found["bare"] = self.bare
        if self.fit is not None:
            names = ("before", "after", "history", "steps", "stopped")
            found["fit"] = {name: getattr(self.fit, name) for name in names}
        if self.tuned is not None:
            found["tuned"] = self.tuned._asdict()
        return found


@dataclasses.dataclass(frozen=True)
class _Wishes:
    """What the caller asked for; see `linearize`."""

    setting: maps.MapLike | Dial
    window: int | Literal["auto"] | None
    features: int | None
    key_weight: bool
    keep: Sequence[int] | Literal["auto"]
    share: float
    budget: int | None
    finetune: Literal["none", "maps", "lora", "all"]
    seed: int
    unit: Literal["layer", "head"]
    ranking: Literal["fast", "slow"]


def linearize(
    model: str | os.PathLike[str],
    windows: Windows,
    setting: maps.MapLike | Dial = "hedgehog@window=64,sinks=4",
    *,
    window: int | Literal["auto"] | None = None,
    features: int | None = None,
    key_weight: bool = False,
    keep: Sequence[int] | Literal["auto"] = (),
    unit: Literal["layer", "head"] = "head",
    share: float = 0.25,
    budget: int | None = None,
    ranking: Literal["fast", "slow"] = "fast",
    finetune: Literal["none", "maps", "lora", "all"] = "none",
    held_out: Windows | Literal["end"] | None = None,
    overlap: int | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    seed: int = 0,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
    say: Callable[[str], object] | None = None,
) -> Linearization:
    """Fit a feature map to every layer of a pretrained model, and replace its softmax by the maps.

    With `out`, this function does all that the command `kerneltrick linearize` does: it evaluates
    the model on held-out windows, writes its folder, continues an unfinished run, and removes the
    files of that run at the end.

    model: the folder of the model, or its name on the hub.
    windows: token numbers, in windows of one length (see `windows`). Each window runs through the
        model once. Its queries, keys and values make one step for all layers and are then freed.
    setting: the map to fit, with its window; see `kerneltrick.torch.fit`. The map `softmax` with a
        window has nothing to fit: it keeps the window alone, as a baseline.
    window: replaces the window of `setting`. "auto" chooses the shortest window that gives half of
        the output by itself, measured on the validation windows.
    features, key_weight: passed to `kerneltrick.torch.fit`.
    keep: the numbers of the layers that keep softmax. "auto" chooses key–value heads or layers.
    unit: what `keep="auto"` chooses. "head" chooses the heads that need the whole text most (see
        `rank_heads`). At the end, it drops the map of each head whose window and sinks alone are
        as good on the validation windows. "layer" chooses the layers that change the model most
        when each is linearised alone, if they change it more than the average layer.
    share: the share of heads, or the largest share of layers, that `keep="auto"` keeps.
    budget: the bytes that one stream may hold after one window. It limits what is chosen by "auto"
        and replaces `share`.
    ranking: how heads are ranked: "fast" uses gradients, "slow" limits and frees heads one by one.
    finetune: what to train end to end afterwards, in a second pass over the windows, so that the
        whole model gives what the original gives. "maps" trains the maps and leaves the weights of
        the original as they are. "all" trains the attention weights too. "lora" trains low-rank
        matrices beside them (needs peft). If heads or layers see the whole text and the model
        predicts tokens, each step also asks for a fact that is planted in a text.
    held_out: the windows to evaluate on. "end" holds back the last eighth of `windows`, which is
        the default if `out` is given. Otherwise nothing is evaluated by default.
    overlap: skip windows that share so many tokens in a row with a window that validates the
        training. By default, more than chance gives: at least 8, and more for a text of few
        different tokens or with a template, judged by how its windows repeat each other.
    out: the folder to write. By default none is written; see `Linearization.save`.
    force: replace `out` if it holds a linearised model; see `Linearization.save`.
    seed: the seed of all random numbers.
    progress: called with what is being done, how many steps are done, and how many there are.
    resume: the file that keeps an unfinished run, so that the same call continues it. The training
        end to end is kept beside it (`.tuning`). If `out` is given, the default is a hidden file
        beside it, which is removed at the end.
    say: called before the training with a sentence that says how much of the text is used.
    """
    one_of("linearize", "finetune", finetune, FINETUNE)
    one_of("linearize", "unit", unit, ("layer", "head"))
    one_of("linearize", "ranking", ranking, ("fast", "slow"))
    if budget is not None and "auto" not in (keep, window):
        raise ValueError(
            "budget limits what is chosen automatically: set keep or window to auto as well "
            "(--keep auto, --window auto)"
        )
    if finetune == "lora":
        peft_package()  # if it is missing, say so before the fit
    where = place_of(model)
    if len({len(ids) for ids in windows}) != 1 or len(windows) < 2:
        raise ValueError("linearize needs at least two windows of tokens, all of one length")
    target, unfinished = None, resume
    if out is not None:
        target = Path(os.path.abspath(out))
        check_folder(target, force)
        check_companions(where)
        held_out = "end" if held_out is None else held_out
        unfinished = resume or target.with_name(f".{target.name}.unfinished")
    used, judged = hold_out(windows, held_out)
    parts = split(
        used, None if overlap is None else check_count("linearize", "overlap", overlap, 1)
    )
    known = tuple(sketch(used, parts.run))
    if say is not None:
        say(f"{parts}{overlap_remark(judged, known, parts.run)}")
    wishes = _Wishes(
        setting, window, features, key_weight, keep, share, budget, finetune, seed, unit, ranking
    )
    with _enough_memory(len(windows[0])):
        found = _fit_and_train(where, parts, wishes, progress, unfinished)
        found = dataclasses.replace(found, sketch=known, overlap=parts.run)
        if judged:
            found = dataclasses.replace(found, judged=_judge(found, judged, progress))
    if target is not None:
        found.save(target, force=force)
        if resume is None and unfinished is not None:
            for path in (unfinished, *(_beside(unfinished, what) for what in PARTS)):
                path.unlink(missing_ok=True)
    return found


def _fit_and_train(
    where: str,
    windows: Split,
    wishes: _Wishes,
    progress: ProgressReport | None,
    resume: Path | None,
) -> Linearization:
    network = _load(where, wishes.keep)
    layers, body = len(attention_modules(network)), network.base_model

    def captured(ids: Sequence[int]) -> AttentionData:
        return record(where, body, ids, torch.ones(len(ids), dtype=torch.bool))

    dial, why = Dial.get(wishes.setting), None
    window, needed = wishes.window, windows.validation
    if is_softmax(dial) and window != "auto":
        needed = needed[:1]  # there is nothing to fit; one shows the sizes of layers
    validation = [captured(ids) for ids in needed]
    if window == "auto":
        wide = with_features(dial, wishes.features, validation[0])
        window, why = choose_window(wide, validation, wishes.budget)
    if window is not None:
        dial = dataclasses.replace(dial, window=window)
    most = _most_kept(layers, dial, validation[0], wishes)  # a budget that is too small raises
    found, dials = None, dict.fromkeys(range(layers), dial)
    if not is_softmax(dial):
        found = fit(
            map(captured, windows.fitted),
            dial,
            features=wishes.features,
            key_weight=wishes.key_weight,
            held_out=validation,
            overlap=windows.run,
            steps=len(windows.fitted),
            seed=wishes.seed,
            progress=paced(progress, len(windows.fitted[0])),
            resume=resume,
        )
        dials = dict(found.maps.dials)
    elif not (dial.window or dial.sinks):
        raise ValueError(
            "linearize needs a map, or a window beside softmax; softmax alone is the model itself"
        )
    causal, ranked = bool(validation[0].causal), None
    kept: dict[int, str] = {}
    if wishes.keep == "auto" and wishes.unit == "head":
        ranked = _rank(where, network, windows, dials, wishes, progress, resume)
        whole, heads = ranked.whole(most), ranked.shape[1]
        dials = {
            layer: with_whole(own, whole.get(layer, ()), heads) for layer, own in dials.items()
        }
    elif wishes.keep == "auto":
        every = assemble(network, dials, causal=causal)
        file = None if resume is None else _beside(resume, "heads")
        losses = layer_losses(every, windows.validation[:CHOOSING], progress, file)
        kept = keep_layers(losses, most)
    else:
        kept = dict.fromkeys(sorted(wishes.keep), "as requested")
    dials = {layer: own for layer, own in dials.items() if layer not in kept}
    made, tuned = assemble(network, dials, causal=causal), None
    if wishes.finetune != "none":
        facts: list[list[Passkey]] = [[], []]
        if kept or any(is_exact(own) or own.whole for own in dials.values()):  # it can recall
            facts = [
                _planted(where, network, texts, len(texts), wishes.seed + 1)
                for texts in (windows.fitted, windows.validation)
            ]
        tuned = tune(
            made,
            windows.fitted,
            windows.validation,
            trained=wishes.finetune,
            planted=facts[0],
            held_out_planted=facts[1],
            seed=wishes.seed,
            progress=progress,
            resume=None if resume is None else _beside(resume, "tuning"),
        )
    made.config.finetune = wishes.finetune
    bare = None
    if ranked is not None and found is not None:
        teacher = None  # the model itself, unless training has changed more than its maps
        if wishes.finetune in ("lora", "all"):
            teacher = _load(where, ())
            teacher.set_attn_implementation("eager")  # nothing is recorded any more
        bare = drop_maps(
            made,
            windows.validation[:CHOOSING],
            teacher,
            progress,
            None if resume is None else _beside(resume, "maps"),
        )
    return Linearization(
        made, found, kept, where, tuned, why, windows.dropped, ranking=ranked, bare=bare
    )


def _rank(
    where: str,
    network: Any,
    windows: Split,
    dials: Mapping[int, Dial],
    wishes: _Wishes,
    progress: ProgressReport | None,
    resume: Path | None,
) -> HeadRanking:
    """Rank the heads on windows, validation windows first, and on facts planted in windows."""
    window, sinks = dials[0].alike("linearize")
    planted = _planted(where, network, windows.fitted, RANKED_TRIALS * len(DEPTHS), wishes.seed)
    count = max(RANKED, RANKED_TOKENS // len(windows.fitted[0]))
    ranked = windows.validation[:count]
    more = min(count - len(ranked), len(windows.fitted))
    ranked = [*ranked, *(windows.fitted[at * len(windows.fitted) // more] for at in range(more))]
    return rank_heads(
        network,
        ranked,
        window=window,
        sinks=sinks,
        dials=dials,
        planted=planted,
        fast=wishes.ranking == "fast",
        progress=progress,
        resume=None if resume is None else _beside(resume, "heads"),
    )


def _planted(where: str, network: Any, texts: Windows, count: int, seed: int) -> list[Passkey]:
    """Plant facts in texts, about `count` times, if the model predicts tokens."""
    if not network.can_generate() or network.get_output_embeddings() is None:
        return []
    with contextlib.suppress(CaptureError):  # there is no tokenizer
        pieces = [ids[:PLANTED_LENGTH] for ids in texts]
        trials = math.ceil(count / len(DEPTHS))
        return passkeys(where, pieces, trials=trials, phrasings=FITTED_PHRASINGS, seed=seed)
    return []


def _load(where: str, keep: Sequence[int] | Literal["auto"]) -> Any:
    """Return the original, ready to be recorded, if there is something to linearise in it."""
    register_recorder()
    with quiet():
        config, kind = model_kind(where)
        check_original(where, config)
        network = load_network(where, config, kind)
    layers = len(attention_modules(network))
    strange = [] if keep == "auto" else sorted(set(keep) - set(range(layers)))
    if strange:
        raise ValueError(f"{where} has {layers} layers of attention, but no layer {strange[0]}")
    if keep != "auto" and len(set(keep)) == layers:
        raise ValueError(f"all {layers} layers would keep softmax: there is nothing to linearise")
    return network


def _most_kept(layers: int, dial: Dial, data: AttentionData, wishes: _Wishes) -> int:
    """Return how many layers or heads may keep softmax."""
    if wishes.keep != "auto":
        return 0
    each = (with_features(dial, wishes.features, data), Dial(maps.Softmax()))
    small, large = (state_bytes(x, data) for x in each)
    heads = data.k.shape[1] if wishes.unit == "head" else 1
    sizes = (small / heads, large / heads)
    return most_kept(layers * heads, wishes.share, wishes.budget, sizes, wishes.unit)


def _judge(found: Linearization, windows: Windows, progress: ProgressReport | None) -> Evaluation:
    """Evaluate the model; a language model with a tokenizer also has to recall planted numbers."""
    planted = []
    if found.model.config.language:
        with contextlib.suppress(CaptureError):  # there is no tokenizer
            planted = passkeys(found.teacher, windows, trials=TRIALS)
    teacher = found.teacher if found.changed else None
    result = evaluate(
        found.model,
        windows,
        teacher=teacher,
        passkeys=planted,
        ranking=found.ranking,
        shares=SHARES if found.ranking is not None else (),
        progress=progress,
    )
    remark = overlap_remark(windows, found.sketch, found.overlap)
    return dataclasses.replace(result, verdict=result.verdict + remark)


@contextlib.contextmanager
def _enough_memory(length: int) -> Iterator[None]:
    """Turn PyTorch's errors about memory, which have no type of their own, into MemoryError."""
    try:
        yield
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise MemoryError(
            f"not enough memory for windows of {length} tokens; use shorter windows (--length)"
        ) from error


def _beside(resume: Path, what: str) -> Path:
    """Return the file that keeps one of the `PARTS`, beside that of the fit."""
    return resume.with_name(f"{resume.name}.{what}")


def _means(found: Fit) -> dict[int, float]:
    """Return the error of each layer after the fit, averaged over heads."""
    return {layer: sum(each) / len(each) for layer, each in found.after.items()}
