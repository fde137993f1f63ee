"""Calls on CPU tensors that come again with other values, as each step of a decoder does.

Whether a call is right, and how the core reads it, depends on the shapes, strides and dtypes of its
tensors alone. It is checked and laid out when it first comes, by the same code as any other call;
the next time, only addresses change.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from kerneltrick._arrays import recorded
from kerneltrick.engines._core_call import CoreCall, core
from kerneltrick.engines._torch_host import observed

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
else:
    Tensor = torch.Tensor

Tensors: TypeAlias = tuple[Tensor | None, ...]
Layout: TypeAlias = tuple[Hashable | None, bytes]
PLAIN = (torch.Tensor, torch.nn.Parameter)
MOST = 256  # calls that are remembered
_REPEATED: dict[Hashable, Repeated] = {}


class Repeated:
    """A call that is laid out for tensors of one layout."""

    def __init__(self, call: CoreCall, names: tuple[str, ...], operation: str) -> None:
        """`names` are the fields of the tensors that `run` gets the addresses of, in that order."""
        fields = [call.field(name) for name in names]
        self._offsets = call.offsets  # kept alive
        self.run = core().Repeated(operation, call.packed(), fields).run


def layout(what: Hashable, tensors: Tensors) -> Layout:
    """All that a call depends on but for its values, or None if the core may not have the tensors
    as they are; and their addresses, which are good for as long as the tensors live.

    `what` names the operator and its options.
    """
    if recorded(*tensors):
        return None, b""
    found = None if observed() else _reader()(tensors)
    return (None, b"") if found is None else ((what, found[0]), found[1])


def recall(key: Hashable | None) -> Repeated | None:
    return None if key is None else _REPEATED.get(key)


def remember(key: Hashable, repeated: Repeated) -> None:
    if len(_REPEATED) >= MOST:
        _REPEATED.clear()
    _REPEATED[key] = repeated


def _reader() -> Callable[[Tensors], Layout | None]:
    """What reads the layout of tensors: the core, where this version of PyTorch lets it."""
    global _READ
    if _READ is None:
        _READ = _read
        interface = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if interface is not None:
            reader = core().TensorReader(interface, PLAIN)
            _READ = reader.read if reader.usable() else _read
    return _READ


_READ: Callable[[Tensors], Layout | None] | None = None


def _read(tensors: Tensors) -> Layout | None:
    found: list[Hashable] = []
    for x in tensors:
        if x is None:
            found.append(None)
        elif type(x) in PLAIN and x.is_cpu and x.layout is torch.strided and not x.is_neg():
            found.append((x.shape, x.stride(), x.dtype))
        else:
            return None
    addresses = (0 if x is None else x.data_ptr() for x in tensors)
    return tuple(found), struct.pack(f"={len(tensors)}q", *addresses)
