"""What a mixer of tokens remembers of a stream, as a value."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from kerneltrick._arrays import Wide, as_numpy
from kerneltrick._files import read_tensors, write
from kerneltrick.attention import Decoder, State
from kerneltrick.attention._state_file import encoded, fields, parts
from kerneltrick.engines._problem import Near

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

HELD = "kerneltrick.Held/1"


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """A memory that is no sum over tokens: one tensor, its first axis the batch."""

    tensor: Tensor
    stop: int  # the number of the next token

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self.tensor.numel() * self.tensor.element_size())


Memory: TypeAlias = State | Decoder | Held


@dataclasses.dataclass(frozen=True, eq=False)
class MixerState:
    """All that a mixer needs of the tokens so far, of every row of a batch.

    Never changed: to fork a stream, go on from the same state twice. Only one that
    `Attention.live` made changes with every token.
    """

    owner: str  # the layer that made it
    # Of linear attention: sums, and the keys and values that are still near; a Decoder while live.
    memory: Memory
    tail: Tensor | None = None  # (batch, taps − 1, channels): of short convolutions and shifts
    count: Tensor | None = None  # (batch,): tokens of the text that took part; None: all, `stop`

    @property
    def stop(self) -> int:
        """How many tokens there were, masked ones included: the number of the next."""
        return int(self.memory.stop)

    @property
    def nbytes(self) -> int:
        """Bytes held: of a map they do not grow with the stream, of exact attention they do."""
        tail = 0 if self.tail is None else self.tail.numel() * self.tail.element_size()
        return int(self.memory.nbytes) + int(tail)

    @property
    def size(self) -> int:
        """Numbers held, whatever the width of each: sums are kept in wider ones than they need."""
        memory = self.value()
        held = 0 if self.tail is None else int(self.tail.numel())
        if isinstance(memory, Held):
            return held + int(memory.tensor.numel())
        near = () if memory.near is None else (memory.near.k, memory.near.v)
        return held + sum(int(x.numel()) for x in (memory.sums.hi, *near))

    @property
    def place(self) -> tuple[int, Any]:
        """The rows of the batch, and the device they are on."""
        if isinstance(self.memory, Held):
            return int(self.memory.tensor.shape[0]), self.memory.tensor.device
        if isinstance(self.memory, State):
            return int(self.memory.sums.hi.shape[0]), self.memory.sums.hi.device
        return self.memory.shape[0], torch.device("cpu")

    def value(self) -> Any:
        """The memory as it is now, also of a live state."""
        if isinstance(self.memory, Decoder):
            return self.memory.snapshot().to(torch.empty(0))
        return self.memory

    def frozen(self) -> MixerState:
        """A state that is no longer live, as it is now."""
        return dataclasses.replace(self, memory=self.value())

    def detach(self) -> MixerState:
        """The same numbers without their history, for training on a long text by pieces."""

        def plain(x: Any) -> Any:
            if isinstance(x, tuple):  # Wide, Near
                return type(x)(*(plain(part) for part in x))
            return x.detach() if isinstance(x, torch.Tensor) else x

        memory = self.memory
        if not isinstance(memory, Decoder):
            names = [field.name for field in dataclasses.fields(memory)]
            memory = type(memory)(*(plain(getattr(memory, name)) for name in names))
        return MixerState(self.owner, memory, plain(self.tail), self.count)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, which appears whole or not at all."""
        memory = self.value()
        if isinstance(memory, Held):
            tensors = {"held": as_numpy(memory.tensor.detach())}
            metadata = {"format": HELD, "stop": str(memory.stop)}
        else:
            tensors, metadata = parts(memory)
        for name in ("tail", "count"):
            if getattr(self, name) is not None:
                tensors[name] = as_numpy(getattr(self, name).detach())
        write(path, encoded(tensors, metadata | {"owner": self.owner}))

    @staticmethod
    def load(path: str | os.PathLike[str], like: Tensor) -> MixerState:
        """Read a state back, as tensors on the device of `like`."""
        metadata, tensors = read_tensors(path, "state file")
        if "owner" not in metadata:
            raise ValueError(
                f"{os.fspath(path)} is no state of a layer; kerneltrick.State.load reads those of "
                "attention alone"
            )
        own = {name: tensors.pop(name, None) for name in ("tail", "count")}
        memory: Memory
        if metadata.get("format") == HELD:
            memory = _held(os.fspath(path), metadata, tensors, like)
            batch = memory.tensor.shape[0]
        else:
            memory = State(*fields(os.fspath(path), metadata, tensors)).to(like)
            batch = memory.sums.hi.shape[0]
        for name, kind, axes in (("tail", "f", 3), ("count", "iu", 1)):
            x = own[name]
            if x is not None and (x.dtype.kind not in kind or x.ndim != axes or len(x) != batch):
                raise ValueError(f"{os.fspath(path)} is no state: {name} is {x.dtype} {x.shape}")
        moved = [None if x is None else torch.tensor(x, device=like.device) for x in own.values()]
        return MixerState(metadata["owner"], memory, *moved)


def _held(path: str, metadata: dict[str, str], tensors: dict[str, Any], like: Tensor) -> Held:
    """The memory of a file that says it has one tensor."""
    try:
        tensor, stop = tensors["held"], int(metadata["stop"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is no state: missing or malformed entry {error}") from None
    if tensor.ndim < 2 or tensor.dtype.kind != "f" or stop < 0:
        raise ValueError(
            f"{path} is no state: it holds {tensor.dtype} {tensor.shape} after {stop} tokens"
        )
    return Held(torch.tensor(tensor, device=like.device), stop)


def _register(cls: type, kept: tuple[str, ...], rows: dict[str, type]) -> None:
    """States are trees of tensors to PyTorch, so that torch.export takes and gives them: all fields
    are branches but those `kept`, and those in `rows` are tuples of that type."""
    names = [field.name for field in dataclasses.fields(cls)]
    branches = [name for name in names if name not in kept]

    def flatten(state: Any) -> tuple[list[Any], tuple[Any, ...]]:
        found = (getattr(state, name) for name in branches)
        plain = [tuple(x) if isinstance(x, tuple) else x for x in found]
        return plain, tuple(getattr(state, name) for name in kept)

    def flatten_with_keys(state: Any) -> tuple[list[Any], tuple[Any, ...]]:
        values, context = flatten(state)
        keys = map(_pytree.GetAttrKey, branches)
        return list(zip(keys, values, strict=True)), context

    def unflatten(values: Any, context: Any) -> Any:
        given = dict(zip(branches, values, strict=True)) | dict(zip(kept, context, strict=True))
        for name, row in rows.items():
            given[name] = None if given[name] is None else row(*given[name])
        return cls(**given)

    _pytree.register_pytree_node(
        cls, flatten, unflatten, serialized_type_name=f"kerneltrick.{cls.__name__}",
        to_dumpable_context=list, from_dumpable_context=tuple,
        flatten_with_keys_fn=flatten_with_keys,
    )  # fmt: skip


_register(
    State,
    ("fingerprint", "window", "sinks"),
    {"sums": Wide, "decay_log": Wide, "near": Near},
)
_register(Held, ("stop",), {})
_register(MixerState, ("owner",), {})
