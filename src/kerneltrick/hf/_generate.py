"""How a linearised model continues a text, beside its teacher, its window and its map alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.hf._linearized import Linearized

TOKENS = 40  # the length of a continuation


class Continuation(NamedTuple):
    """A prompt, and the tokens with which each way to attend continues it."""

    prompt: list[int]
    written: dict[str, list[int]]


def continuations(
    model: Linearized,
    ways: Mapping[str, Sequence[Any] | None],
    teacher: Any,
    prompts: Sequence[Sequence[int]],
    progress: ProgressReport | None,
) -> tuple[Continuation, ...]:
    """Continue prompts greedily. `ways` are settings of the model; None stands for the teacher."""
    how = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    meter, found = Progress("continuing prompts", len(prompts), progress), []
    for number, ids in enumerate(prompts):
        meter(number)
        given = torch.tensor([list(ids)], device=model.device)
        written = {}
        for name, settings in ways.items():
            if settings is None:
                out = teacher.generate(given, **how)
            else:
                with model.attending_by(settings):
                    out = model.generate(given, **how)
            written[name] = out[0, len(ids) :].tolist()
        found.append(Continuation(list(ids), written))
    meter.close(len(prompts))
    return tuple(found)
