"""What torch.compile meets in place of our Python code; imported while it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from kerneltrick._arrays._untranslated import (
    FUNCTIONS,
    for_compiled_code,
    put_together,
    taken_apart,
)


class Parts:
    """A value taken apart: its leaves are PyTorch's business, the rest is constant to it."""

    def __init__(self, leaves: list[Any], rest: Any) -> None:
        self.leaves, self.rest = leaves, rest


def _apart(value: Any) -> Parts:
    leaves: list[Any] = []
    rest = taken_apart(value, leaves)
    return Parts(leaves, rest)


@torch._dynamo.nonstrict_trace  # type: ignore[untyped-decorator] # PyTorch's
def _run(name: str, parts: Parts) -> Parts:
    inputs, options = put_together(parts.rest, parts.leaves[:])
    with for_compiled_code():
        return _apart(FUNCTIONS[name](*inputs, **options))


def call(name: str, value: Any) -> Any:
    """A function by its name, on tensors without values."""
    made = _run(name, _apart(value))
    return put_together(made.rest, made.leaves[:])


_pytree.register_pytree_node(
    Parts,
    lambda parts: (parts.leaves, parts.rest),
    lambda leaves, rest: Parts(list(leaves), rest),
)
