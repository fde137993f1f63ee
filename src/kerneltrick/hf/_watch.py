"""Watch what the layers of a model compute, from inside our replacements of its functions."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from kerneltrick.torch import HeadOperator


class Seen(NamedTuple):
    """What one layer computed."""

    layer: str  # its name in the model
    kind: str  # its class
    operator: HeadOperator


@dataclasses.dataclass
class _Watcher:
    """The modules that are running, the innermost last, and what they computed so far."""

    running: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    seen: list[Seen] = dataclasses.field(default_factory=list)


class _Current(threading.local):
    """The watcher of this thread. torch.compile reads attributes, but no context variables."""

    def __init__(self) -> None:
        self.watcher: _Watcher | None = None


_CURRENT = _Current()


def is_watched() -> bool:
    return _CURRENT.watcher is not None


def show(operator: HeadOperator) -> None:
    """Tell the watcher what the running layer computes."""
    watcher = _CURRENT.watcher
    assert watcher is not None
    watcher.seen.append(Seen(*(watcher.running or [("model", "model")])[-1], operator))


@contextlib.contextmanager
def watching(model: Any) -> Iterator[list[Seen]]:
    """Collect what the layers of a model compute inside the block, in the order of their calls."""
    watcher = _Watcher()

    def entering(name: str) -> Any:
        return lambda module, _: watcher.running.append((name, type(module).__name__))

    def leaving(*_: Any) -> None:
        watcher.running.pop()

    hooks = [x.register_forward_pre_hook(entering(name)) for name, x in model.named_modules()]
    hooks += [x.register_forward_hook(leaving, always_call=True) for x in model.modules()]
    before, _CURRENT.watcher = _CURRENT.watcher, watcher
    try:
        with torch.no_grad():
            yield watcher.seen
    finally:
        _CURRENT.watcher = before
        for hook in hooks:
            hook.remove()
