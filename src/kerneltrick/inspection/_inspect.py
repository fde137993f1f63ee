"""Measure what the layers of a model attend to on a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from kerneltrick._progress import ProgressReport
from kerneltrick.attention import Dial
from kerneltrick.inspection import _states as states
from kerneltrick.inspection import _weights as of_weights
from kerneltrick.inspection._measures import HeadMeasures
from kerneltrick.inspection._result import InspectedLayer, Inspection
from kerneltrick.inspection._words import kind_of, told
from kerneltrick.torch import (
    ConvolutionOperator,
    DeltaOperator,
    HeadOperator,
    LanguageModel,
    LinearOperator,
    ScanOperator,
)

Array: TypeAlias = np.ndarray[Any, Any]
WHOLE = 256  # tokens up to which all rows are measured and shown
ROWS = 64  # rows of longer texts
ROOM = 8_000_000  # weights that a result holds at most


class TracedLayer(NamedTuple):
    """A layer whose operator was seen on the text."""

    name: str
    kind: str
    operator: HeadOperator


class InspectionError(ValueError):
    """The model or the text cannot be inspected; the message says why."""


def inspect(
    model: Any,
    tokens: Any,
    *,
    words: Sequence[str] | None = None,
    source: str = "",
    progress: ProgressReport | None = None,
) -> Inspection:
    """Measure what every head of a model attends to on a text.

    model: a `LanguageModel`, or a model of transformers with softmax attention, linear attention or
        both; linearised models too. It must be on the CPU.
    tokens: the token numbers of one text, (n,) or (1, n).
    words: the tokens as texts; the default is their numbers.
    source: where the model comes from, for the report.
    progress: is told which layer is measured.

    Raises InspectionError if no layer can be inspected, for several texts at once, and if there is
    not one word for each token.

    >>> from kerneltrick.torch import LanguageModel
    >>> sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
    >>> model = LanguageModel(9, mixer="deltanet+softmax", **sizes)
    >>> found = inspect(model, torch.arange(60) % 9)
    >>> [(layer.kind, layer.operator, len(layer.heads)) for layer in found.layers]
    [('DeltaNet', 'delta rule', 2), ('Attention', 'softmax', 2)]
    """
    tokens = _one_text(model, tokens)
    if words is not None and len(words) != tokens.shape[1]:
        raise InspectionError(
            f"inspect got {len(words)} words for {tokens.shape[1]} tokens: give one for each"
        )
    layers, left_out = trace(model, tokens)
    n = tokens.shape[1]
    causal = all(_is_causal(layer.operator) for layer in layers)
    counts = [_heads(layer.operator) for layer in layers]
    rows, notes = _rows(n, sum(counts))
    found: list[Array] = []
    for at, layer in enumerate(layers):
        if progress is not None:
            progress(f"weights of {layer.name}", at, 2 * len(layers))
        found.append(_weights(layer.operator, rows))
    soft = [
        of_weights.shares(weights)
        for weights, layer in zip(found, layers, strict=True)
        if states.is_softmax(layer.operator)
    ]
    made = []
    for at, (layer, weights) in enumerate(zip(layers, found, strict=True)):
        if progress is not None:
            progress(f"state of {layer.name}", len(layers) + at, 2 * len(layers))
        made.append(_measured(layer, weights, rows, soft))
    texts = [str(int(x)) for x in tokens[0]] if words is None else list(words)
    return Inspection(source, texts, rows.tolist(), causal, made, left_out + notes)


def trace(model: Any, tokens: Any) -> tuple[list[TracedLayer], list[str]]:
    """The operators of all layers for tokens (1, n), and what was left out."""
    if isinstance(model, LanguageModel):
        return _trace_mixers(model, tokens), []
    if not hasattr(model, "config"):
        raise InspectionError(
            f"inspect needs a LanguageModel or a model of transformers, not {type(model).__name__}"
        )
    from kerneltrick.hf import watch_layers  # imports transformers only for its models

    try:
        seen, notes = watch_layers(model, tokens)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        config, n = model.config.get_text_config(), tokens.shape[1]
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and n > most:
            raise InspectionError(
                f"the text has {n} tokens, but {type(model).__name__} has positions for {most}: "
                "read fewer tokens"
            ) from error
        raise InspectionError(
            f"{type(model).__name__} cannot read this text: {error}; inspect needs a model that "
            "takes token numbers"
        ) from error
    if not seen:
        reason = " ".join(notes) or (
            "It needs softmax attention through transformers' attention interface, or layers that "
            "hf.accelerate knows, such as those of Qwen3.5, Kimi Linear, Mamba or Falcon-H1."
        )
        raise InspectionError(
            f"{type(model).__name__} has no layer that can be inspected. {reason}"
        )
    return [TracedLayer(*each) for each in seen], notes


def _trace_mixers(model: LanguageModel, tokens: Any) -> list[TracedLayer]:
    found: list[TracedLayer] = []

    def watched(name: str) -> Any:
        def before(mixer: Any, given: tuple[Any, ...]) -> None:
            if not hasattr(mixer, "operator"):
                raise InspectionError(
                    f"{type(mixer).__name__} does not say what it computes: it needs a method "
                    "operator(x), as the mixers of kerneltrick.torch have"
                )
            found.append(TracedLayer(name, type(mixer).__name__, mixer.operator(given[0])))

        return before

    hooks = [
        block.mixer.register_forward_pre_hook(watched(f"blocks.{at}"))
        for at, block in enumerate(model.blocks)
    ]
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _one_text(model: Any, tokens: Any) -> Any:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"inspect needs a model (a torch.nn.Module), not {type(model).__name__}")
    away = {x.device for x in model.parameters()} - {torch.device("cpu")}
    if away:
        raise InspectionError(
            f"the model is on {', '.join(map(str, away))}, but inspect reads it on the CPU: call "
            'model.to("cpu") first'
        )
    tokens = torch.as_tensor(tokens)
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or tokens.shape[0] != 1:
        raise InspectionError(
            f"inspect reads one text at a time, tokens (n,) or (1, n), not {tuple(tokens.shape)}: "
            "call it once for each text"
        )
    if tokens.shape[1] < 2:
        raise InspectionError("a text needs at least 2 tokens to be inspected")
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise InspectionError(f"tokens must be whole numbers, not {tokens.dtype}")
    table = _embedding(model)
    if table is not None and not (tokens.min() >= 0 and tokens.max() < table.num_embeddings):
        raise InspectionError(
            f"tokens must lie from 0 to {table.num_embeddings - 1}, the vocabulary of the model, "
            f"not from {int(tokens.min())} to {int(tokens.max())}: use its own tokenizer"
        )
    return tokens


def _embedding(model: Any) -> torch.nn.Embedding | None:
    """The table of token vectors, if the model has a plain one."""
    if isinstance(model, LanguageModel):
        found = model.embedding
    else:
        try:
            found = model.get_input_embeddings()
        except (AttributeError, NotImplementedError):  # no model of transformers, or not of text
            return None
    return found if isinstance(found, torch.nn.Embedding) else None


def _rows(n: int, heads: int) -> tuple[Array, list[str]]:
    """The queries to measure, and what to say about them."""
    if n <= WHOLE and heads * n * n <= ROOM:
        return np.arange(n), []
    count = max(2, min(ROWS, n, ROOM // max(1, heads * n)))
    rows = np.unique(np.linspace(0, n - 1, count).round().astype(np.int64))
    told = (
        f"Whole pictures of {n:,} tokens and {heads:,} heads would be {heads * n * n:,} numbers, "
        f"so {len(rows)} queries spread over the text are measured and shown."
    )
    return rows, [told]


def _heads(operator: HeadOperator) -> int:
    if isinstance(operator, (ScanOperator, ConvolutionOperator)):
        return 1  # the mean over channels
    assert isinstance(operator, (LinearOperator, DeltaOperator))
    return max(int(operator.q.shape[1]), int(operator.v.shape[1]))


def _is_causal(operator: HeadOperator) -> bool:
    return not isinstance(operator, LinearOperator) or bool(operator.options.get("causal"))


def _weights(operator: HeadOperator, rows: Array) -> Array:
    """The weights (heads, rows, n) in float64: of a token where it has several steps."""
    with torch.no_grad():
        if isinstance(operator, ScanOperator):
            parts = [part.double().sum(1) for part in operator.pieces(rows)]
            weights = sum(parts) / operator.x.shape[-1]
        elif isinstance(operator, ConvolutionOperator):
            weights = operator.implied(rows).weights.double().mean(1)
        else:
            weights = operator.implied(rows).weights[0].double()
            steps = getattr(operator, "steps", 1)
            weights = weights.unflatten(-1, (-1, steps)).sum(-1)
    found: Array = weights.numpy()
    return np.nan_to_num(found)


def _measured(layer: TracedLayer, weights: Array, rows: Array, soft: list[Array]) -> InspectedLayer:
    operator, heads = layer.operator, len(weights)
    late = rows >= rows[-1] // 2
    share, later = of_weights.shares(weights), rows[late]
    seen = share[:, late]
    own = seen[:, np.arange(len(later)), later].mean(-1)
    negative = np.where(weights[:, late] < 0, seen, 0).sum(-1).mean(-1)
    agreement = np.full(heads, math.nan)
    exact = states.is_softmax(operator)
    if soft and not exact:
        agreement = of_weights.overlap(seen, np.concatenate(soft)[:, late])
    with torch.no_grad():
        replaced, rank = states.memory(operator, heads)
        lives, betas = states.half_life(operator, heads), states.strength(operator, heads)
    near, far = (of_weights.reach(seen, later, level) for level in (0.5, 0.9))
    content = of_weights.content(seen, later)
    columns = zip(
        near, far, own, content, negative, lives, betas, replaced, rank, agreement, strict=True
    )
    measures = [HeadMeasures(*(float(x) for x in line)) for line in columns]
    name = describe(operator)
    total = np.abs(weights).sum(-1, keepdims=True)
    signed = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return InspectedLayer(
        layer.name, layer.kind, name, kind_of(measures), told(name, measures), measures, signed
    )


def describe(operator: HeadOperator) -> str:
    """What the heads compute, in a few words."""
    if isinstance(operator, DeltaOperator):
        steps = f", {operator.steps} steps a token" if operator.steps > 1 else ""
        decay = " with decay" if operator.options.get("log_decay") is not None else ""
        return f"delta rule{decay}{steps}"
    if isinstance(operator, ScanOperator):
        return "selective scan, mean over channels"
    if isinstance(operator, ConvolutionOperator):
        return "long convolution, mean over channels"
    assert isinstance(operator, LinearOperator)
    if operator.feature_map == "identity":
        return "linear attention" + (
            " with decay" if operator.options.get("log_decay") is not None else ""
        )
    dial = Dial.get(operator.feature_map)
    name = dial.feature_map.name if dial.feature_map.has_features else "softmax"
    window = f" with a window of {dial.window}" if dial.window else ""
    if isinstance(dial.window, tuple):
        window = " with a window for each head"
    return f"softmax{window}" if name == "softmax" else f"linear attention, {name}{window}"
