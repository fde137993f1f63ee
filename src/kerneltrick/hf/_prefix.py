"""Layers of a model that variants of one run share: they are computed once, and then reused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def layers_of(network: Any, modules: Sequence[Any]) -> list[Any]:
    """Return the layers that attention modules belong to: the smallest elements of lists."""
    lists = [x for x in network.modules() if isinstance(x, torch.nn.ModuleList)]

    def layer(module: Any) -> Any:
        known = [x for each in lists for x in each if any(y is module for y in x.modules())]
        return min(known, key=lambda x: sum(1 for _ in x.modules()))

    return [layer(module) for module in modules]


@contextmanager
def recorded(layers: Sequence[Any], outputs: dict[int, Any]) -> Iterator[None]:
    """Write what the layers return into `outputs`."""
    hooks = []
    for number, layer in enumerate(layers):

        def keep(_: Any, __: Any, out: Any, number: int = number) -> None:
            outputs[number] = out

        hooks.append(layer.register_forward_hook(keep))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def reused(layers: Sequence[Any], outputs: dict[int, Any], rows: int = 1) -> Iterator[None]:
    """Let the layers return what they returned before, without computing, for so many rows."""
    for number, layer in enumerate(layers):
        known = _repeated(outputs[number], rows)
        layer.forward = lambda *_, _known=known, **__: _known
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _repeated(out: Any, rows: int) -> Any:
    """Return what a layer returned, repeated for each row of a batch."""
    if isinstance(out, torch.Tensor):
        return out.expand(rows, *out.shape[1:])
    if isinstance(out, (tuple, list)):
        return type(out)(_repeated(x, rows) for x in out)
    return out
