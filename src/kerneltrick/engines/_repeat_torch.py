"""Calls on CPU tensors that come again with other values, as each step of a decoder does.

Whether a call is right, and how the core reads it, depends on the shapes, strides and dtypes of its
tensors alone. It is checked and laid out when it first comes, by the same code as any other call;
the next time, only addresses change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from kerneltrick.engines._core_call import CoreCall
from kerneltrick.engines._torch_host import tangents, traced

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
else:
    Tensor = torch.Tensor

PLAIN = (torch.Tensor, torch.nn.Parameter)
MOST = 256  # calls that are remembered
_REPEATED: dict[Hashable, Repeated] = {}


class Repeated:
    """A call that is laid out for tensors of one layout."""

    def __init__(
        self, call: CoreCall, names: tuple[str, ...], function: Callable[[bytes], None]
    ) -> None:
        """`names` are the fields of the tensors that `run` takes, in that order."""
        self._packed, self._function = call.repeated(names), function

    def run(self, tensors: tuple[Tensor | None, ...]) -> None:
        self._function(self._packed([0 if x is None else x.data_ptr() for x in tensors]))


def layout(what: Hashable, tensors: tuple[Tensor | None, ...]) -> Hashable | None:
    """What a call depends on but for its values; None if the core may not have them as they are.

    `what` names the operator and its options.
    """
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*tensors):
        return None
    found: list[Hashable] = [what]
    for x in tensors:
        if x is None:
            found.append(None)
        elif type(x) in PLAIN and x.is_cpu and x.layout is torch.strided and not x.is_neg():
            found.append((x.shape, x.stride(), x.dtype))
        else:
            return None
    return None if tangents() or traced(tensors[0]) else tuple(found)


def recall(key: Hashable | None) -> Repeated | None:
    return None if key is None else _REPEATED.get(key)


def remember(key: Hashable, repeated: Repeated) -> None:
    if len(_REPEATED) >= MOST:
        _REPEATED.clear()
    _REPEATED[key] = repeated
