"""Attention transfer: maps that imitate the layers of a model, in one pass over a text."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch

from kerneltrick import maps
from kerneltrick._progress import ProgressReport
from kerneltrick.analysis import AttentionData
from kerneltrick.attention import Dial
from kerneltrick.hf._capture import load_network, place_of, quiet, record
from kerneltrick.hf._evaluate import Evaluation
from kerneltrick.hf._finetune import Tuned
from kerneltrick.hf._finetune import finetune as tune
from kerneltrick.hf._folder import save_folder
from kerneltrick.hf._linearized import Linearized, assemble, attention_modules
from kerneltrick.hf._recorder import register as register_recorder
from kerneltrick.hf._texts import model_kind
from kerneltrick.maps._base import one_of
from kerneltrick.torch import Fit, fit

APART = 4  # windows to stop by, at most; a sixteenth of a short text


@dataclasses.dataclass(frozen=True)
class Linearization:
    """A linearised model, the fit of its maps, and the layers that keep softmax, and why."""

    model: Linearized
    fit: Fit
    kept: dict[int, str]
    teacher: str  # the folder or name that it was made of
    tuned: Tuned | None = None  # what training end to end brought

    def save(self, folder: Path, judged: Evaluation, *, force: bool = False) -> None:
        """Write model, tokenizer and a card with the figures, whole or not at all.

        A folder that exists stays, unless `force` replaces it.
        """
        errors = [sum(each) / len(each) for _, each in sorted(self.fit.after.items())]
        save_folder(folder, self.model, self.teacher, judged, errors, self.kept, force=force)


def linearize(
    model: str | os.PathLike[str],
    windows: Sequence[Sequence[int]],
    setting: maps.MapLike | Dial = "hedgehog@window=64,sinks=4",
    *,
    features: int | None = None,
    key_weight: bool = False,
    keep: Sequence[int] | Literal["auto"] = (),
    share: float = 0.25,
    finetune: Literal["none", "maps"] = "none",
    seed: int = 0,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> Linearization:
    """Fit a map to every layer of a pretrained model, and put the maps in place of its softmax.

    model:    a folder, or a name on the hub. Its weights are not changed.
    windows:  token numbers, all windows of one length. Each is run through the model once, its
              queries, keys and values serve one step of all layers, and are let go.
    setting:  what is fitted; see `kerneltrick.torch.fit`, also for features and key_weight.
    keep:     numbers of layers that keep softmax. "auto": those whose error after the fit is
              largest, as long as it is above the mean, at most `share` of all layers.
    finetune: "maps": train the maps end to end afterwards, in a second pass over the windows, so
              that the whole model gives what the original gives; its weights still stay.
    resume:   a file where the fit is kept, and beside it (`.tuning`) what comes after: a run that
              was stopped goes on from there.
    """
    one_of("linearize", "finetune", finetune, ("none", "maps"))
    where = place_of(model)
    if len({len(ids) for ids in windows}) != 1 or len(windows) < 2:
        raise ValueError("linearize needs at least two windows of tokens, all of one length")
    register_recorder()
    with quiet():
        config, kind = model_kind(where)
        network = load_network(where, config, kind)
    layers = len(attention_modules(network))
    strange = [] if keep == "auto" else sorted(set(keep) - set(range(layers)))
    if strange:
        raise ValueError(f"{where} has {layers} layers of attention, no {strange[0]} to keep")
    apart = max(1, min(APART, len(windows) // 16))
    body = network.base_model

    def captured(ids: Sequence[int]) -> AttentionData:
        return record(where, body, ids, torch.ones(len(ids), dtype=torch.bool))

    def stream() -> Iterator[AttentionData]:
        for ids in windows[apart:]:
            yield captured(ids)

    held_out = [captured(ids) for ids in windows[:apart]]
    found = fit(
        stream(), setting, features=features, key_weight=key_weight, held_out=held_out,
        steps=len(windows) - apart, seed=seed, progress=progress, resume=resume,
    )  # fmt: skip
    kept = _kept(found, layers, keep, share)
    dials = {layer: dial for layer, dial in found.maps.dials.items() if layer not in kept}
    made, tuned = assemble(network, dials, causal=found.maps.causal), None
    if finetune == "maps":
        beside = None if resume is None else resume.with_name(f"{resume.name}.tuning")
        tuned = tune(made, windows[apart:], windows[:apart], progress=progress, resume=beside)
    return Linearization(made, found, kept, where, tuned)


def _kept(
    found: Fit, layers: int, keep: Sequence[int] | Literal["auto"], share: float
) -> dict[int, str]:
    """The layers that keep softmax, and why."""
    errors = {layer: sum(each) / len(each) for layer, each in found.after.items()}
    if keep != "auto":
        return {layer: f"as asked (error {errors[layer]:.2f})" for layer in sorted(keep)}
    if not 0 <= share <= 1:
        raise ValueError(f"linearize needs a share of layers between 0 and 1, not {share}")
    mean = sum(errors.values()) / len(errors)
    worst = sorted(errors, key=lambda layer: -errors[layer])[: math.floor(share * layers)]
    return {
        layer: f"error {errors[layer]:.2f} after the fit, the mean is {mean:.2f}"
        for layer in sorted(worst)
        if errors[layer] > mean
    }
