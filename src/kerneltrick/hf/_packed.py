"""Several texts in one row: which token belongs to which text."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from kerneltrick._arrays import is_concrete

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

# What models of transformers call the two descriptions, in the order in which they are used.
INDICES = ("seq_idx",)
BOUNDARIES = ("cu_seqlens", "cu_seq_lens_q")


class _Inside(threading.local):
    """The descriptions of the packed texts that this thread is running, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[dict[str, Any]] = []


_INSIDE = _Inside()


def remember_texts(before: Callable[..., Any], module: Any, *inputs: Any, **options: Any) -> Any:
    """The forward pass of a module that does not tell its layers where packed texts end."""
    if not is_packed(options):
        return before(module, *inputs, **options)
    texts = {name: options.get(name) for name in (*INDICES, *BOUNDARIES)}
    layers = [x for x in module.modules() if getattr(x, "gradient_checkpointing", False)]
    checkpoints = [layer._gradient_checkpointing_func for layer in layers]
    for layer, checkpoint in zip(layers, checkpoints, strict=True):
        layer._gradient_checkpointing_func = functools.partial(_run_again, checkpoint)
    try:
        return _inside(texts, before, module, *inputs, **options)
    finally:
        for layer, checkpoint in zip(layers, checkpoints, strict=True):
            layer._gradient_checkpointing_func = checkpoint


def _inside(
    texts: dict[str, Any], function: Callable[..., Any], *inputs: Any, **options: Any
) -> Any:
    _INSIDE.stack.append(texts)
    try:
        return function(*inputs, **options)
    finally:
        _INSIDE.stack.pop()


def _run_again(checkpoint: Callable[..., Any], layer: Callable[..., Any], *inputs: Any) -> Any:
    """A layer that runs a second time, for the backward pass, when the model has returned."""
    return checkpoint(functools.partial(_inside, _INSIDE.stack[-1], layer), *inputs)


def is_packed(keywords: Mapping[str, Any]) -> bool:
    return any(keywords.get(name) is not None for name in (*INDICES, *BOUNDARIES))


def segments(keywords: Mapping[str, Any], batch: int, n: int) -> Tensor | None:
    """Return the number of the text of each token (batch, n), or None if there is one in each row.

    keywords: what the model passed on: `seq_idx` (batch, n), or the boundaries of the texts in one
        row, `cu_seqlens` or `cu_seq_lens_q` = (0, n_1, n_1 + n_2, …, n).
    """
    if not is_packed(keywords) and _INSIDE.stack:
        keywords = _INSIDE.stack[-1]
    for name in INDICES:
        if keywords.get(name) is not None:
            return _check_indices(name, keywords[name], batch, n)
    for name in BOUNDARIES:
        if keywords.get(name) is not None:
            ends = check_boundaries(name, keywords[name], batch, n)
            places = torch.arange(n, device=ends.device)
            return torch.bucketize(places, ends[1:], right=True)[None]
    return None


def boundaries(keywords: Mapping[str, Any], batch: int, n: int) -> list[int] | None:
    """Return the boundaries of the texts in one row as numbers, or None if they were not given."""
    for name in BOUNDARIES:
        if keywords.get(name) is not None:
            return list(map(int, check_boundaries(name, keywords[name], batch, n)))
    return None


def check_boundaries(name: str, ends: Tensor, batch: int, n: int) -> Tensor:
    if batch != 1 or ends.ndim != 1 or not len(ends):
        raise ValueError(
            f"packed texts need a batch of one row and {name} of one axis, but the batch has "
            f"{batch} rows and {name} is {tuple(ends.shape)}"
        )
    if is_concrete(ends):
        edges = ends.tolist()
        if edges[-1] != n:
            raise _mismatch(name, batch, n, f"ends at {edges[-1]}")
        if edges[0] != 0 or sorted(edges) != edges:
            raise ValueError(f"{name} must rise from 0 to n = {n}, but is {edges}")
    return ends


def _check_indices(name: str, found: Tensor, batch: int, n: int) -> Tensor:
    if found.ndim != 2 or found.shape[0] not in (1, batch) or found.shape[1] != n:
        raise _mismatch(name, batch, n, f"is {tuple(found.shape)}")
    return found.long().expand(batch, n)


def _mismatch(name: str, batch: int, n: int, found: str) -> ValueError:
    return ValueError(
        f"{name} must give the text of each of the {n} tokens of {batch} rows, but it {found}; "
        "packed texts do not go together with the cache of an earlier call"
    )
