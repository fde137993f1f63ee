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
from kerneltrick.hf._linearized import Linearized, dial_of


def models_key(model: Linearized, teacher: Any = None) -> str:
    """Return a hash of what is compared; the pieces of a run are named by their texts."""
    networks = [model] if teacher is None else [model, teacher]
    weights = [float(x.double().sum()) for own in networks for x in own.state_dict().values()]
    return run_key(__version__, str(model.config), weights)


def softmax_everywhere(model: Linearized) -> list[Dial]:
    """Return the teacher's settings: softmax in each layer."""
    return [Dial(maps.Softmax())] * len(model.settings)


def outcome(
    model: Any, ids: Sequence[int], weights: Mapping[str, Any], language: bool | None = None
) -> Any:
    """Return the logits (n, V) of a language model, or the hidden states (n, F) of all layers.

    ids: the token numbers of the window.
    weights: parameters to use instead of the model's own, by name.
    language: whether the model predicts tokens; by default, what its configuration says.
    """
    batch = torch.tensor([list(ids)], device=model.device)
    language = model.config.language if language is None else language
    how = {"use_cache": False} if language else {"output_hidden_states": True}
    given = {"input_ids": batch, **how}
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
) -> tuple[int, ...]:
    """Drop the map of each layer whose window and sinks alone are as good, and return the layers.

    A layer is asked while all others keep their maps. Of the model with all maps, with those that
    helped and with none, the best stays.

    windows: the windows that decide.
    teacher: the original; None is the model itself with softmax in each layer.
    """
    own = model.settings
    bare = [window_alone(dial_of(x)) for x in own]
    mapped = [at for at, x in enumerate(own) if dial_of(x).feature_map.has_features]
    meter = Progress("asking which maps help", len(mapped) + 3, progress)
    with torch.no_grad():
        wanted = []
        for ids in windows:
            if teacher is not None:
                wanted.append(outcome(teacher, ids, {}, model.config.language))
                continue
            with model.attending_by(softmax_everywhere(model)):
                wanted.append(outcome(model, ids, {}))

        def lost(dropped: Sequence[int]) -> float:
            settings = [bare[at] if at in dropped else x for at, x in enumerate(own)]
            with model.attending_by(settings):
                found = [outcome(model, ids, {}) for ids in windows]
            each = [float(loss(model, a, b)) for a, b in zip(found, wanted, strict=True)]
            return sum(each) / len(each)

        losses = {(): lost(()), tuple(mapped): lost(mapped)}
        useless = []
        for done, layer in enumerate(mapped):
            meter(done)
            if lost([layer]) <= losses[()]:
                useless.append(layer)
        losses.setdefault(tuple(useless), lost(useless))
    meter.close(len(mapped) + 3)
    chosen = min(losses, key=lambda dropped: (losses[dropped], -len(dropped)))
    model.replace_settings({layer: bare[layer] for layer in chosen})
    return chosen


def window_alone(dial: Dial) -> Dial:
    """Return the dial without its map: softmax over the window, the sinks and whole heads."""
    if not dial.near:
        return dial
    return dataclasses.replace(dial, feature_map=maps.Softmax(), far=None)


def _distance(found: Any, wanted: Any) -> Any:
    return (found - wanted).square().sum() / wanted.square().sum()
