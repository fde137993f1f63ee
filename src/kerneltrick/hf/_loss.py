"""The distance of a linearised model from its teacher, on one window of tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kerneltrick import maps
from kerneltrick._progress import Progress, ProgressReport
from kerneltrick._version import __version__
from kerneltrick.analysis import Store, run_key
from kerneltrick.attention import Dial
from kerneltrick.hf._linearized import (
    Head,
    Linearized,
    attention_modules,
    dial_of,
    head_sizes,
)
from kerneltrick.hf._prefix import layers_of, recorded, reused


def models_key(model: Linearized, teacher: Any = None) -> str:
    """Return a hash of what is compared; the pieces of a run are named by their texts."""
    networks = [model] if teacher is None else [model, teacher]
    weights = [float(x.double().sum()) for own in networks for x in own.state_dict().values()]
    return run_key(__version__, str(model.config), weights)


def softmax_everywhere(model: Linearized) -> list[Dial]:
    """Return the teacher's settings: softmax in each layer."""
    return [Dial(maps.Softmax())] * len(model.settings)


def outcome(
    model: Any,
    ids: Sequence[int],
    weights: Mapping[str, Any],
    language: bool | None = None,
    last: int = 0,
) -> Any:
    """Return the logits (n, V) of a language model, or the hidden states (n, F) of all layers.

    ids: the token numbers of the window.
    weights: parameters to use instead of the model's own, by name.
    language: whether the model predicts tokens; by default, what its configuration says.
    last: the number of tokens at the end whose logits are asked for; 0 asks for all.
    """
    batch = torch.tensor([list(ids)], device=model.device)
    language = model.config.language if language is None else language
    how = {"use_cache": False} if language else {"output_hidden_states": True}
    more = {"logits_to_keep": last} if last else {}
    given = {"input_ids": batch, **how, **more}
    out = torch.func.functional_call(model, dict(weights), (), given)
    if language:
        return out.logits[0].float()
    return [x[0].float() for x in out.hidden_states]


def loss(model: Linearized, found: Any, wanted: Any) -> Any:
    """Return the distance of an outcome from the teacher's.

    For language models, it is the Kullback–Leibler divergence KL(teacher ‖ model) of the next
    token, averaged over tokens. For others, it is ‖h − h_teacher‖² / ‖h_teacher‖² of the hidden
    states, averaged over layers, plus the same for the mean of the last hidden states over tokens,
    which is the embedding of the text.
    """
    if model.config.language:
        logs = (x.log_softmax(-1) for x in (found, wanted))
        return torch.nn.functional.kl_div(*logs, log_target=True, reduction="batchmean")
    # The first hidden states are token embeddings, which equal the teacher's.
    every = [_distance(a, b) for a, b in zip(found[1:], wanted[1:], strict=True)]
    return sum(every) / len(every) + _distance(found[-1].mean(0), wanted[-1].mean(0))


def layer_losses(
    model: Linearized,
    windows: Sequence[Sequence[int]],
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> dict[int, float]:
    """Return, for each layer, the loss of the model in which that layer alone is linearised.

    resume: the file that keeps finished pieces.
    """
    exact, own = softmax_everywhere(model), model.settings
    losses = dict.fromkeys(range(len(own)), 0.0)
    store = Store(resume, models_key(model))
    meter = Progress("choosing the layers that keep softmax", len(windows) * len(own), progress)
    with torch.no_grad():
        for place, ids in enumerate(windows):
            wanted = None
            for layer in losses:
                meter(place * len(own) + layer)
                piece = f"{run_key(ids)} {layer}"
                if store.get(piece) is None:
                    if wanted is None:
                        with model.attending_by(exact):
                            wanted = outcome(model, ids, {})
                    with model.attending_by([*exact[:layer], own[layer], *exact[layer + 1 :]]):
                        found = outcome(model, ids, {})
                    store.put(piece, float(loss(model, found, wanted)))
                losses[layer] += store.get(piece) / len(windows)
    meter.close(len(windows) * len(own))
    return losses


def drop_maps(
    model: Linearized,
    windows: Sequence[Sequence[int]],
    teacher: Any = None,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> dict[int, tuple[int, ...]]:
    """Drop the map of each head whose window and sinks alone are as good; return them by layer.

    A head is asked while all others keep their maps. Of the model with all maps, with those that
    helped and with none, the best stays.

    windows: the windows that decide.
    teacher: the original; None is the model itself with softmax in each layer.
    resume: the file that keeps finished pieces.
    """
    own = model.settings
    heads = mapped_heads(model)
    layers = layers_of(model.model, attention_modules(model.model))
    store = Store(resume, models_key(model, teacher))
    meter = Progress("asking which maps help", len(windows) * (len(heads) + 2), progress)
    none: frozenset[Head] = frozenset()
    losses = dict.fromkeys([none, frozenset(heads), *map(frozenset, zip(heads))], 0.0)
    wanted: dict[int, Any] = {}  # by window, if it is needed

    def lost(dropped: frozenset[Head], number: int, outputs: dict[int, Any]) -> float:
        """Return the loss on a window, from the first layer on in which something differs."""
        ids = windows[number]
        piece = f"{run_key(ids)} {sorted(dropped)}"
        if store.get(piece) is None:
            if number not in wanted:
                wanted[number] = _wanted(model, ids, teacher)
            start = min((head.layer for head in dropped), default=0)
            settings = [_without(x, layer, dropped) for layer, x in enumerate(own)]
            known = layers[:start] if outputs else []
            with reused(known, outputs), model.attending_by(settings):
                found = outcome(model, ids, {})
            store.put(piece, float(loss(model, found, wanted[number])))
        return float(store.get(piece)) / len(windows)

    done = 0
    with torch.no_grad():
        for number, ids in enumerate(windows):
            wanted.clear()
            outputs: dict[int, Any] = {}
            if any(store.get(f"{run_key(ids)} {[head]}") is None for head in heads):
                with recorded(layers, outputs):
                    outcome(model, ids, {})
            for dropped in losses:
                meter(done)
                losses[dropped] += lost(dropped, number, outputs)
                done += 1
        useless = frozenset(x for x in heads if losses[frozenset([x])] <= losses[none])
        if useless not in losses:
            wanted.clear()
            losses[useless] = sum(lost(useless, number, {}) for number in range(len(windows)))
    meter.close(done)
    known = (none, useless, frozenset(heads))
    chosen = min(known, key=lambda dropped: (losses[dropped], -len(dropped)))
    found: dict[int, tuple[int, ...]] = {}
    for layer, head in sorted(chosen):
        found[layer] = (*found.get(layer, ()), head)
    model.drop_maps(found)
    return found


def mapped_heads(model: Linearized) -> list[Head]:
    """Return the key–value heads that have a map beside a window or sinks."""
    count = head_sizes(model.config.text_config)[0]["num_kv_heads"]
    dials = enumerate(map(dial_of, model.settings))
    return [
        Head(layer, head)
        for layer, dial in dials
        if dial.near and dial.feature_map.has_features
        for head in range(count)
        if head not in (*dial.whole, *dial.bare)
    ]


def _wanted(model: Linearized, ids: Sequence[int], teacher: Any) -> Any:
    """Return the outcome of the teacher."""
    if teacher is not None:
        return outcome(teacher, ids, {}, model.config.language)
    with model.attending_by(softmax_everywhere(model)):
        return outcome(model, ids, {})


def _without(setting: Any, layer: int, dropped: frozenset[Head]) -> Any:
    """Return the setting of a layer in which these heads have no map."""
    bare = [head for at, head in dropped if at == layer]
    if not bare:
        return setting
    dial = dial_of(setting)
    return dataclasses.replace(dial, bare=sorted({*dial.bare, *bare}))


def window_alone(dial: Dial) -> Dial:
    """Return the dial without its map: softmax over the window, the sinks and whole heads."""
    if not dial.near:
        return dial
    return dataclasses.replace(dial, feature_map=maps.Softmax(), far=None, bare=())


def _distance(found: Any, wanted: Any) -> Any:
    return (found - wanted).square().sum() / wanted.square().sum()
