"""How far a linearised model is from its teacher, on one window of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kerneltrick import maps
from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.attention import Dial
from kerneltrick.hf._linearized import Linearized


def softmax_everywhere(model: Linearized) -> list[Dial]:
    """The teacher's way to attend, a setting for each layer."""
    return [Dial(maps.Softmax())] * len(model.settings)


def outcome(model: Linearized, ids: Sequence[int], weights: Mapping[str, Any]) -> Any:
    """Logits (n, V) of a language model, else the hidden states (n, F) of every layer.

    weights: what to use in place of some of the model's own.
    """
    batch = torch.tensor([list(ids)], device=model.device)
    how = {"use_cache": False} if model.config.language else {"output_hidden_states": True}
    given = {"input_ids": batch, **how}
    out = torch.func.functional_call(model, dict(weights), (), given)
    if model.config.language:
        return out.logits[0].float()
    return [x[0].float() for x in out.hidden_states]


def loss(model: Linearized, found: Any, wanted: Any) -> Any:
    """How far an outcome is from the teacher's.

    Language models: the Kullback–Leibler divergence of the teacher's next tokens from the model's,
    mean over tokens. Others: ‖h − h_teacher‖² / ‖h_teacher‖² of hidden states, mean over layers,
    and the same of their mean over tokens, which embeddings are made of.
    """
    if model.config.language:
        logs = (x.log_softmax(-1) for x in (found, wanted))
        return torch.nn.functional.kl_div(*logs, log_target=True, reduction="batchmean")
    # The first hidden states are embeddings, which are the teacher's own.
    every = [_distance(a, b) for a, b in zip(found[1:], wanted[1:], strict=True)]
    return sum(every) / len(every) + _distance(found[-1].mean(0), wanted[-1].mean(0))


def layer_losses(
    model: Linearized, windows: Sequence[Sequence[int]], progress: ProgressReport | None = None
) -> dict[int, float]:
    """The loss of the model in which one layer alone is linearised, by its number."""
    exact, own = softmax_everywhere(model), model.settings
    losses = dict.fromkeys(range(len(own)), 0.0)
    meter = Progress("choosing layers that keep softmax", len(windows) * len(own), progress)
    with torch.no_grad():
        for place, ids in enumerate(windows):
            with model.attending_by(exact):
                wanted = outcome(model, ids, {})
            for layer in losses:
                meter(place * len(own) + layer)
                with model.attending_by([*exact[:layer], own[layer], *exact[layer + 1 :]]):
                    found = outcome(model, ids, {})
                losses[layer] += float(loss(model, found, wanted)) / len(windows)
    meter.close(len(windows) * len(own))
    return losses


def _distance(found: Any, wanted: Any) -> Any:
    return (found - wanted).square().sum() / wanted.square().sum()
