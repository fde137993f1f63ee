"""The state of a mixer in a stream, as an immutable value."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from kerneltrick._arrays import Wide, as_numpy
from kerneltrick._files import read_tensors, write
from kerneltrick.attention import Decoder, MixedState, State, encoded, state_from, tensors_of
from kerneltrick.engines import Carry, Near

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

HELD = "kerneltrick.Held/1"


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """A memory that is not a sum over tokens: one tensor whose first axis is the batch."""

    tensor: Tensor
    stop: int  # the number of the next token

    @property
    def nbytes(self) -> int:
        """The bytes of the memory."""
        return int(self.tensor.numel() * self.tensor.element_size())


Memory: TypeAlias = State | Decoder | Held


@dataclasses.dataclass(frozen=True, eq=False)
class MixerState:
    """All that a mixer needs to know about the tokens so far, for every row of a batch.

    A state never changes: to fork a stream, continue twice from the same state. The only exception
    is a state made by `Attention.live`, which changes with every token.
    """

    owner: str  # the layer that made it
    # For linear attention: sums, and the near keys and values. A Decoder if the state is live.
    memory: Memory
    tail: Tensor | None = None  # (batch, taps − 1, channels): last inputs of convolutions, shifts
    count: Tensor | None = None  # (batch,): tokens of the text that took part; None: all, `stop`

    @property
    def stop(self) -> int:
        """The number of tokens so far, including masked ones: the number of the next token."""
        return int(self.memory.stop)

    @property
    def nbytes(self) -> int:
        """The bytes of the state: constant for a map, growing with the stream for softmax."""
        tail = 0 if self.tail is None else self.tail.numel() * self.tail.element_size()
        return int(self.memory.nbytes) + int(tail)

    @property
    def size(self) -> int:
        """The count of numbers in the state, whatever the bytes of each (sums are float64)."""
        memory = self.value()
        held = 0 if self.tail is None else int(self.tail.numel())
        if isinstance(memory, Held):
            return held + int(memory.tensor.numel())
        for part in memory.parts:
            near = () if part.near is None else (part.near.k, part.near.v)
            held += sum(int(x.numel()) for x in (part.sums.hi, *near))
        return held

    @property
    def place(self) -> tuple[int, Any]:
        """The number of rows of the batch, and their device."""
        if isinstance(self.memory, Held):
            return self.memory.tensor.shape[0], self.memory.tensor.device
        if isinstance(self.memory, State):
            sums = self.memory.parts[0].sums.hi
            return sums.shape[0], sums.device
        return self.memory.shape[0], torch.device("cpu")

    def value(self) -> Any:
        """The memory as a value; a live state gives a copy of its present one."""
        if isinstance(self.memory, Decoder):
            return self.memory.snapshot().to(torch.empty(0))
        return self.memory

    def frozen(self) -> MixerState:
        """The present state as a value that no longer changes."""
        return dataclasses.replace(self, memory=self.value())

    def detach(self) -> MixerState:
        """The same state without its autograd history, to train on a long text in pieces."""

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
        """Write the state to a safetensors file, completely or not at all."""
        memory = self.value()
        if isinstance(memory, Held):
            tensors = {"held": as_numpy(memory.tensor.detach())}
            metadata = {"format": HELD, "stop": str(memory.stop)}
        else:
            tensors, metadata = tensors_of(memory)
        for name in ("tail", "count"):
            if getattr(self, name) is not None:
                tensors[name] = as_numpy(getattr(self, name).detach())
        write(path, encoded(tensors, metadata | {"owner": self.owner}))

    @staticmethod
    def load(path: str | os.PathLike[str], like: Tensor) -> MixerState:
        """Read a state from a file, as tensors on the device of `like`."""
        metadata, tensors = read_tensors(path, "state file")
        if "owner" not in metadata:
            raise ValueError(
                f"{os.fspath(path)} is not the state of a layer; kerneltrick.State.load reads the "
                "states of linear_attention"
            )
        own = {name: tensors.pop(name, None) for name in ("tail", "count")}
        memory: Memory
        if metadata.get("format") == HELD:
            memory = _held(os.fspath(path), metadata, tensors, like)
            batch = memory.tensor.shape[0]
        else:
            memory = state_from(os.fspath(path), metadata, tensors).to(like)
            batch = memory.parts[0].sums.hi.shape[0]
        for name, kind, axes in (("tail", "f", 3), ("count", "iu", 1)):
            x = own[name]
            if x is not None and (x.dtype.kind not in kind or x.ndim != axes or len(x) != batch):
                raise ValueError(f"{os.fspath(path)} is not a state: {name} is {x.dtype} {x.shape}")
        moved = [None if x is None else torch.tensor(x, device=like.device) for x in own.values()]
        return MixerState(metadata["owner"], memory, *moved)


def _held(path: str, metadata: dict[str, str], tensors: dict[str, Any], like: Tensor) -> Held:
    """The memory in a file that holds a single tensor."""
    try:
        tensor, stop = tensors["held"], int(metadata["stop"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a state: missing or malformed entry {error}") from None
    if tensor.ndim < 2 or tensor.dtype.kind != "f" or stop < 0:
        raise ValueError(
            f"{path} is not a state: it holds {tensor.dtype} {tensor.shape} after {stop} tokens"
        )
    return Held(torch.tensor(tensor, device=like.device), stop)


def _register(
    cls: type, constants: tuple[str, ...], branches: tuple[str, ...] | None = None
) -> None:
    """Register a state as a tree of tensors, so that torch.export accepts and returns it.

    All fields are branches except `constants`.
    """
    if branches is None:
        names = (field.name for field in dataclasses.fields(cls))
        branches = tuple(name for name in names if name not in constants)

    def flatten(state: Any) -> tuple[list[Any], tuple[Any, ...]]:
        found = [_plain(getattr(state, name)) for name in branches]
        return found, tuple(getattr(state, name) for name in constants)

    def flatten_with_keys(state: Any) -> tuple[list[Any], tuple[Any, ...]]:
        values, context = flatten(state)
        keys = map(_pytree.GetAttrKey, branches)
        return list(zip(keys, values, strict=True)), context

    def unflatten(values: Any, context: Any) -> Any:
        given = dict(zip(branches, values, strict=True))
        if "carry" in given:
            given["carry"] = _carry(*given["carry"])
        return cls(**given, **dict(zip(constants, context, strict=True)))

    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"kerneltrick.{cls.__name__}",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
        flatten_with_keys_fn=flatten_with_keys,
    )


def _plain(x: Any) -> Any:
    """Named tuples as plain ones, which torch.export knows."""
    return tuple(map(_plain, x)) if isinstance(x, tuple) else x


def _carry(sums: Any, log_scale: Any, log_decay: Any, bad: Any, near: Any) -> Carry:
    """The carry that `_plain` took apart."""
    decay = None if log_decay is None else Wide(*log_decay)
    return Carry(Wide(*sums), log_scale, decay, bad, None if near is None else Near(*near))


_register(State, ("fingerprint", "window", "sinks", "headless"))
_register(MixedState, ("heads",), ("parts",))
_register(Held, ("stop",))
_register(MixerState, ("owner",))
