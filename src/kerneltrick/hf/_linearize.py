"""Attention transfer: maps that imitate the layers of a model, in one pass over a text."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from kerneltrick import maps
from kerneltrick._progress import ProgressReport, paced
from kerneltrick.analysis import AttentionData
from kerneltrick.analysis._fitted import STRETCH
from kerneltrick.attention import Dial
from kerneltrick.hf._capture import check_original, load_network, place_of, quiet, record
from kerneltrick.hf._choose import (
    choose_window,
    is_softmax,
    keep_layers,
    most_kept,
    state_bytes,
    with_features,
)
from kerneltrick.hf._evaluate import Evaluation
from kerneltrick.hf._finetune import Tuned, peft_package
from kerneltrick.hf._finetune import finetune as tune
from kerneltrick.hf._folder import save_folder
from kerneltrick.hf._linearized import Linearized, assemble, attention_modules
from kerneltrick.hf._loss import layer_losses
from kerneltrick.hf._recorder import register as register_recorder
from kerneltrick.hf._texts import model_kind
from kerneltrick.maps._base import one_of
from kerneltrick.torch import Fit, fit

APART = 8  # windows to stop by, at most; a sixteenth of a short text
CHOOSING = 2  # of these, by which layers that keep softmax are chosen


@dataclasses.dataclass(frozen=True)
class Linearization:
    """A linearised model, the fit of its maps, and what was chosen for it, and why."""

    model: Linearized
    fit: Fit | None  # None: there was nothing to fit
    kept: dict[int, str]  # layers that keep softmax
    teacher: str  # the folder or name that it was made of
    tuned: Tuned | None = None  # what training end to end brought
    window: str | None = None  # why it was chosen, if it was

    @property
    def changed(self) -> bool:
        """Whether the weights of the original were trained too."""
        return self.tuned is not None and self.tuned.trained != "maps"

    def save(self, folder: Path, judged: Evaluation, *, force: bool = False) -> None:
        """Write model, tokenizer and a card with the figures, whole or not at all.

        A folder that exists stays, unless `force` replaces it.
        """
        errors: dict[int, float] = {} if self.fit is None else _means(self.fit)
        told = [] if self.window is None else [f"Window: {self.window}."]
        if self.tuned is not None:
            told.append(
                f"Trained end to end (`{self.tuned.trained}`, {self.tuned.tokens:,} tokens): "
                f"held-out loss {self.tuned.before:.3g} → {self.tuned.after:.3g}."
            )
        save_folder(
            folder, self.model, self.teacher, judged, errors, self.kept, told, self.record(),
            force=force,
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """Losses, errors of heads and what was chosen, as plain values; a report draws them."""
        found: dict[str, Any] = {"kept": self.kept, "window": self.window}
        if self.fit is not None:
            names = ("before", "after", "history", "steps", "stopped")
            found["fit"] = {name: getattr(self.fit, name) for name in names}
        if self.tuned is not None:
            found["tuned"] = self.tuned._asdict()
        return found


def linearize(
    model: str | os.PathLike[str],
    windows: Sequence[Sequence[int]],
    setting: maps.MapLike | Dial = "hedgehog@window=64,sinks=4",
    *,
    window: int | Literal["auto"] | None = None,
    features: int | None = None,
    key_weight: bool = False,
    keep: Sequence[int] | Literal["auto"] = (),
    share: float = 0.25,
    budget: int | None = None,
    finetune: Literal["none", "maps", "lora", "all"] = "none",
    seed: int = 0,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> Linearization:
    """Fit a map to every layer of a pretrained model, and put the maps in place of its softmax.

    model:    a folder, or a name on the hub.
    windows:  token numbers, all windows of one length. Each is run through the model once, its
              queries, keys and values serve one step of all layers, and are let go.
    setting:  what is fitted; see `kerneltrick.torch.fit`, also for features and key_weight. The map
              `softmax` beside a window has nothing to fit: the window alone, to compare with.
    window:   another than that of `setting`. "auto": the shortest that gives half of the output by
              itself, measured on a few windows.
    keep:     numbers of layers that keep softmax. "auto": those that change the model most if each
              is linearised alone, as long as it is more than on average, at most `share` of all
              layers; or as many as `budget` allows.
    budget:   bytes that a stream may hold after one window, for what is chosen.
    finetune: train end to end afterwards, in a second pass over the windows, so that the whole
              model gives what the original gives. "maps": the maps; weights of the original stay.
              "all": the weights of attention too. "lora": matrices of low rank beside them (peft).
    resume:   a file where the fit is kept, and beside it (`.tuning`) what comes after: a run that
              was stopped goes on from there.
    """
    one_of("linearize", "finetune", finetune, ("none", "maps", "lora", "all"))
    if budget is not None and "auto" not in (keep, window):
        raise ValueError(
            "budget is for what is chosen by it: give keep or window as auto too (--keep auto, "
            "--window auto)"
        )
    if finetune == "lora":
        peft_package()  # missing: said now, not after the fit
    where = place_of(model)
    if len({len(ids) for ids in windows}) != 1 or len(windows) < 2:
        raise ValueError("linearize needs at least two windows of tokens, all of one length")
    fitted, apart = _split(windows)
    register_recorder()
    with quiet():
        config, kind = model_kind(where)
        check_original(where, config)
        network = load_network(where, config, kind)
    layers = len(attention_modules(network))
    strange = [] if keep == "auto" else sorted(set(keep) - set(range(layers)))
    if strange:
        raise ValueError(f"{where} has {layers} layers of attention, no {strange[0]} to keep")
    if keep != "auto" and len(set(keep)) == layers:
        raise ValueError(f"all {layers} layers would keep softmax: there is nothing to linearise")
    body = network.base_model

    def captured(ids: Sequence[int]) -> AttentionData:
        return record(where, body, ids, torch.ones(len(ids), dtype=torch.bool))

    def stream() -> Iterator[AttentionData]:
        for ids in fitted:
            yield captured(ids)

    held_out = [captured(ids) for ids in apart]
    dial, why = Dial.get(setting), None
    if window == "auto":
        window, why = choose_window(with_features(dial, features, held_out[0]), held_out, budget)
    if window is not None:
        dial = dataclasses.replace(dial, window=window)
    most = 0
    if keep == "auto":  # a budget that is too small is said before the fit
        each = (with_features(dial, features, held_out[0]), Dial(maps.Softmax()))
        small, large = (state_bytes(x, held_out[0]) for x in each)
        most = most_kept(layers, share, budget, (small, large))
    found, dials = None, dict.fromkeys(range(layers), dial)
    if not is_softmax(dial):
        found = fit(
            stream(), dial, features=features, key_weight=key_weight, held_out=held_out,
            steps=len(fitted), seed=seed, progress=paced(progress, len(windows[0])),
            resume=resume,
        )  # fmt: skip
        dials = dict(found.maps.dials)
    elif not (dial.window or dial.sinks):
        raise ValueError("linearize needs a map, or a window beside softmax; this is the model")
    causal = bool(held_out[0].causal)
    if keep == "auto":
        every = assemble(network, dials, causal=causal)
        kept = keep_layers(layer_losses(every, apart[:CHOOSING], progress), most)
    else:
        kept = dict.fromkeys(sorted(keep), "as asked")
    dials = {layer: own for layer, own in dials.items() if layer not in kept}
    made, tuned = assemble(network, dials, causal=causal), None
    if finetune != "none":
        beside = None if resume is None else resume.with_name(f"{resume.name}.tuning")
        tuned = tune(
            made, fitted, apart, trained=finetune, seed=seed,
            progress=progress, resume=beside,
        )  # fmt: skip
    made.config.finetune = finetune
    return Linearization(made, found, kept, where, tuned, why)


def _split(windows: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Windows to fit to, and windows to stop by, spread over the text: a chapter is not a book.

    Texts repeat themselves (licences, headings): a window that shares a stretch with one to stop by
    is not fitted to.
    """
    count = max(1, min(APART, len(windows) // 16))
    apart = [windows[(2 * at + 1) * len(windows) // (2 * count)] for at in range(count)]
    known = set().union(*map(_stretches, apart))
    fitted = [ids for ids in windows if known.isdisjoint(_stretches(ids))]
    if not fitted:
        raise ValueError(
            f"all {len(windows)} windows repeat what the {count} to stop by say; give a text that "
            "goes on"
        )
    return fitted, apart


def _stretches(ids: Sequence[int]) -> set[tuple[int, ...]]:
    size = min(STRETCH, len(ids))
    return {tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)}


def _means(found: Fit) -> dict[int, float]:
    """The error of each layer after the fit, mean over heads."""
    return {layer: sum(each) / len(each) for layer, each in found.after.items()}
