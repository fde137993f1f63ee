"""Capturing q, k and v of every layer and head of a Hugging Face model on a text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.utils import logging

from kerneltrick._folders import Kind, kind_of
from kerneltrick.analysis import AttentionData
from kerneltrick.hf._mask import AttentionError
from kerneltrick.hf._recorder import NAME, CaptureError, Recording, recording, register

_TOKENIZER = re.compile(r"^(tokenizer|vocab|merges|spiece)|\.(model|tiktoken)$")


def capture(
    model: str | os.PathLike[str],
    text: str | None = None,
    *,
    token_ids: Sequence[int] | None = None,
    max_tokens: int | None = None,
    layers: Sequence[int] | None = None,
) -> AttentionData:
    """Run `model` once on `text` and return q, k and v of its attention, in float32.

    Any model that uses transformers' attention interface works. Other models raise `CaptureError`,
    and so do layers that do not compute softmax(s·QKᵀ)V. Keys are taken after rotary embedding and
    before heads are repeated. For an encoder–decoder model, the encoder is captured. No code from
    the model's folder is run, and only safetensors weights are read.

    model: the folder of the model, or its name on the hub.
    text: the text to read. For a model without a tokenizer, give `token_ids` instead.
    token_ids: the token numbers to read.
    max_tokens: cut the text to this number of tokens. By default, a text that is too long for the
        model is refused.
    layers: the numbers of the layers to return. By default, all layers.

    >>> data = capture("gpt2", "Call me Ishmael.")  # doctest: +SKIP
    >>> data.q.shape, data.causal  # doctest: +SKIP
    ((12, 12, 6, 64), True)
    """
    _check_arguments(text, token_ids, max_tokens, layers)
    register()
    where = place_of(model)
    with quiet():
        config = load(where, transformers.AutoConfig.from_pretrained)
        check_original(where, config)
        ids, tokens, mask = _read(where, text, token_ids, max_tokens)
        check_length(where, config, len(ids))
        count = getattr(config.get_text_config(), "num_hidden_layers", None)
        if isinstance(count, int) and not getattr(config, "is_encoder_decoder", False):
            for number in (x for x in layers or () if x >= count):
                raise CaptureError(f"{where} has no layer {number}; its {count} layers begin at 0")
        network = load_network(where, config)
        return record(where, network, ids, mask, layers, tokens)


def record(
    where: str,
    network: Any,
    ids: Sequence[int],
    mask: Any,
    layers: Sequence[int] | None = None,
    tokens: tuple[str, ...] | None = None,
) -> AttentionData:
    """Return what the attention of a network from `load_network` receives for these tokens."""
    target = Recording(len(ids), None if layers is None else frozenset(layers), mask)
    with recording(target), torch.inference_mode():
        try:
            network(input_ids=torch.tensor([ids]), attention_mask=mask[None].long())
        except (CaptureError, AttentionError) as error:
            raise CaptureError(f"{where}: {error}") from None
        except Exception as error:  # the model's own code may raise anything
            raise CaptureError(f"{where} fails on {len(ids)} tokens: {_line(error)}") from None
    return _data(where, type(network).__name__, target, layers, tokens)


def _check_arguments(
    text: str | None,
    token_ids: Sequence[int] | None,
    max_tokens: int | None,
    layers: Sequence[int] | None,
) -> None:
    if (text is None) == (token_ids is None):
        raise ValueError("capture needs either a text or token_ids")
    if max_tokens is not None and (isinstance(max_tokens, bool) or max_tokens < 1):
        raise ValueError(f"max_tokens must be a whole number ≥ 1, not {max_tokens!r}")
    if layers is not None and (not layers or len(set(layers)) != len(layers)):
        raise ValueError(f"layers must be at least one number, without repeats, not {list(layers)}")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and load reports of transformers."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def place_of(model: str | os.PathLike[str]) -> str:
    """Return the folder or hub name of a model, as transformers takes it."""
    path = Path(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            if kind_of(path) is Kind.TRAINED:
                raise CaptureError(
                    f"{path} holds {Kind.TRAINED.value}, and this needs {Kind.TRANSFORMERS.value}"
                )
            raise CaptureError(f"{path} has no config.json, so it is not the folder of a model")
        return str(path)
    if not isinstance(model, str) or path.exists() or model.count("/") > 1 or path.is_absolute():
        raise CaptureError(
            f"{model}: there is no folder of that name, and hub names have the form owner/name"
        )
    return model


def load(where: str, loader: Any, **keywords: Any) -> Any:
    """Call one of transformers' loaders, and turn its errors into CaptureError."""
    local = Path(where).is_dir()
    try:
        return loader(where, trust_remote_code=False, local_files_only=local, **keywords)
    except Exception as error:  # transformers, the hub and safetensors each raise their own
        absent = "" if local else f"there is no folder {where}, and from the hub "
        raise CaptureError(f"{absent}{where} cannot be loaded: {_line(error)}") from None


def check_original(where: str, config: Any) -> None:
    """Raise CaptureError if the softmax of the model has been replaced already."""
    if config.model_type == "kerneltrick":
        raise CaptureError(f"{where} is linearised already; give the original model")


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] if lines else type(error).__name__


def _read(
    where: str, text: str | None, token_ids: Sequence[int] | None, max_tokens: int | None
) -> tuple[list[int], tuple[str, ...] | None, Any]:
    """Return the token numbers, their texts, and which of them are real."""
    if token_ids is not None:
        ids = [int(number) for number in token_ids][:max_tokens]
        if not ids:
            raise CaptureError(f"{where}: token_ids is empty")
        return ids, None, torch.ones(len(ids), dtype=torch.bool)
    tokenizer = load_tokenizer(where)
    cut = {} if max_tokens is None else {"truncation": True, "max_length": max_tokens}
    found = tokenizer(text, **cut)
    ids = list(found["input_ids"])
    if not ids:
        raise CaptureError(f"{where}: the text has no tokens")
    mask = torch.tensor(found.get("attention_mask", [1] * len(ids)), dtype=torch.bool)
    return ids, tuple(_text(tokenizer, number) for number in ids), mask


def load_tokenizer(where: str) -> Any:
    """Return the tokenizer of a model, or raise CaptureError if there is none."""
    if Path(where).is_dir() and not any(_TOKENIZER.search(x.name) for x in Path(where).iterdir()):
        # Some versions of transformers would make one up.
        raise CaptureError(
            f"{where} has no tokenizer; save one beside it, or in Python give token_ids instead of "
            "a text"
        )
    try:
        return load(where, transformers.AutoTokenizer.from_pretrained)
    except CaptureError as error:
        raise CaptureError(f"the tokenizer of {error}; give token_ids instead") from None


def _text(tokenizer: Any, number: int) -> str:
    """Return the text of a token, or its vocabulary entry if it is only part of a letter."""
    shown: str = tokenizer.decode([number], clean_up_tokenization_spaces=False)
    if shown and "\ufffd" not in shown:
        return shown
    return str(tokenizer.convert_ids_to_tokens(number))


def check_length(
    where: str, config: Any, count: int, remedy: str = "give max_tokens (--max-tokens)"
) -> None:
    """Raise CaptureError if the model has fewer positions than there are tokens."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(limit, int) and 0 < limit < count:
        raise CaptureError(
            f"{where} has {limit} positions but the text has {count} tokens; {remedy}"
        )


def load_network(where: str, config: Any, kind: Any = transformers.AutoModel) -> Any:
    """Return the model, ready to run and to be recorded.

    It has a head only if `kind` has one. For an encoder–decoder model, it is the encoder.
    """
    if getattr(config, "use_cache", None):
        config.use_cache = False
    # First without weights, so that a model that cannot be captured is refused before a download.
    try:
        with torch.device("meta"):
            kind.from_config(config, attn_implementation=NAME)
    except AttentionError as error:
        raise CaptureError(f"{where}: {error}") from None
    except Exception as error:
        raise CaptureError(f"{where} cannot be built: {_line(error)}") from None
    network, report = load(
        where,
        kind.from_pretrained,
        config=config,
        attn_implementation=NAME,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    # A head or pooler may be missing, as it runs after the last attention.
    used = r"\.\d+\.|emb" if kind is transformers.AutoModel else ""
    missing = sorted(key for key in report["missing_keys"] if re.search(used, key))
    if missing:
        raise CaptureError(f"{where}: its weights lack {missing[0]} ({len(missing)} in all)")
    if getattr(config, "is_encoder_decoder", False):
        network = network.get_encoder()
    return network.eval()


def _not_routed(where: str, name: str, reason: str = "") -> CaptureError:
    return CaptureError(
        f"{where}: {name} does not route its attention through transformers' attention interface"
        + (f" ({reason})" if reason else "")
        + ", so its q, k and v cannot be captured"
    )


def _data(
    where: str,
    name: str,
    target: Recording,
    layers: Sequence[int] | None,
    tokens: tuple[str, ...] | None,
) -> AttentionData:
    if not target.seen:
        raise _not_routed(where, name, "nothing was recorded")
    numbers = sorted(target.seen) if layers is None else list(layers)
    for number in numbers:
        if number not in target.calls:
            known = ", ".join(map(str, sorted(target.seen)))
            raise CaptureError(f"{where} has no attention in layer {number}; there are {known}")
    first = target.calls[numbers[0]]
    for number in numbers:
        call = target.calls[number]
        for what, a, b in (
            ("q of shape", call.q.shape, first.q.shape),
            ("k of shape", call.k.shape, first.k.shape),
            ("v of shape", call.v.shape, first.v.shape),
            ("causal =", call.causal, first.causal),
            ("scaling", call.scale, first.scale),
        ):
            if a != b:
                raise CaptureError(
                    f"{where}: layer {number} has {what} {a} but layer {numbers[0]} {b}; "
                    "choose layers that are alike"
                )
    calls = [target.calls[number] for number in numbers]
    return AttentionData(
        np.stack([call.q for call in calls]),
        np.stack([call.k for call in calls]),
        np.stack([call.v for call in calls]),
        tuple(numbers),
        causal=first.causal,
        scale=first.scale,
        mask=target.mask.numpy(),
        tokens=tokens,
        source=f"{Path(where).name} ({name}), {target.tokens} tokens",
    )
