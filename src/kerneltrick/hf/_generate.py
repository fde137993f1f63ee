"""How models continue a text: to be read, or beside a teacher, a window and a map alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import transformers

from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.hf._capture import check_length, load, load_tokenizer, place_of, quiet
from kerneltrick.hf._linearized import Linearized
from kerneltrick.hf._recorder import CaptureError
from kerneltrick.hf._texts import model_kind
from kerneltrick.torch import token_drawer

TOKENS = 40  # the length of a continuation


def write_text(
    where: str,
    prompt: str | None,
    length: int,
    *,
    temperature: float,
    top_k: int | None,
    seed: int | None,
    write: Callable[[str], None],
) -> None:
    """Continue a prompt by up to `length` tokens; `write` gets the prompt and the text in pieces.

    where: the folder of a language model, linearised or not, or its name on the hub.
    prompt: by default, the token that begins a text.
    """
    with quiet():
        where = place_of(where)
        config, kind = model_kind(where)
        if kind is not transformers.AutoModelForCausalLM:
            raise CaptureError(f"{where} gives embeddings and predicts no tokens; use inspect")
        tokenizer = load_tokenizer(where)
        begin = tokenizer.bos_token_id
        if prompt is not None:
            ids = tokenizer(prompt)["input_ids"]
        else:
            ids = [] if begin is None else [begin]
        if not ids:
            raise CaptureError(f"{where} has nothing to continue; give a longer prompt (--prompt)")
        remedy = "use a shorter --length or prompt"
        check_length(where, config, len(ids) + length, remedy)
        model = load(where, kind.from_pretrained).eval()
        draw = token_drawer(temperature, top_k, seed, "cpu")
        given = torch.tensor([ids])
        pieces = _Pieces(tokenizer, write)
        if not length:  # which `generate` of transformers refuses
            pieces.put(given)
            pieces.end()
            return
        model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=length,
            do_sample=False,
            num_beams=1,
            pad_token_id=0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
            logits_processor=transformers.LogitsProcessorList([_Only(draw)]),
            streamer=pieces,
        )


class _Only(transformers.LogitsProcessor):  # type: ignore[misc] # transformers is not followed
    """Leaves only the token that was drawn, so that the same draw serves all models."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return torch.full_like(scores, -torch.inf).scatter(1, self.draw(scores), 0.0)


class _Pieces(transformers.TextStreamer):  # type: ignore[misc] # as above
    """Passes on the text as it grows, in whole words."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_special_tokens=True)
        self.write = write

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.write(text)


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
    """Continue prompts greedily. `ways` are settings of the model; None stands for the teacher.

    The continuations are shorter where the model has no more positions.
    """
    how: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
    limit = getattr(model.config.text_config.get_text_config(), "max_position_embeddings", None)
    meter, found = Progress("continuing prompts", len(prompts), progress), []
    for number, ids in enumerate(prompts):
        meter(number)
        given = torch.tensor([list(ids)], device=model.device)
        how["max_new_tokens"] = min(TOKENS, (limit or math.inf) - len(ids))
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
