"""A layer or a language model as an ONNX file."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, get_args

import torch
from onnx import helper, version_converter
from torch import nn
from torch.utils import _pytree

from kerneltrick._files import check_writable, write
from kerneltrick.attention import State
from kerneltrick.engines import onnx_operator
from kerneltrick.onnx._state import KEY, StateInput, described
from kerneltrick.torch import Attention, LanguageModel
from kerneltrick.torch.mixers import MIXERS, Hyena

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

# No size of a model is likely to be one of these, so no axis is taken for another.
BATCH, LENGTH = 11, 13
DOMAIN = "com.microsoft"  # of the operators that only ONNX Runtime has
LARGEST = 2_000_000_000  # bytes of a file in the format of protocol buffers


Operators: TypeAlias = Literal["plain", "microsoft", "opset27"]


def export(
    model: nn.Module, path: str | os.PathLike[str], *, operators: Operators = "plain"
) -> None:
    """Write a layer (`Attention`, a mixer) or a `LanguageModel` as an ONNX file.

    The first input is `x` (batch, n, hidden_size), or `tokens` (batch, n) of a language model, and
    the first output is `y` or `logits`. The other inputs `past.…` and outputs `present.…` are the
    state: give the outputs of a call to the next one, and `empty_state(path, batch)` to the first.
    Batch and n are free, so one file serves prefill and decoding.

    The file computes the same as the layer, in linear time. `operators` says what it may hold:

    - "plain": operators of ONNX 20 only, which every runtime has. Chunks of tokens go through a
      `Scan`.
    - "microsoft": also `com.microsoft::LinearAttention`, which is faster; ONNX Runtime has it.
    - "opset27": also `LinearAttention` of ONNX 27, for runtimes that have it.

    The last two are for linear attention and the delta rule in float32. What their operator does
    not have stays a `Scan`: windows, maps with a log-scale such as FAVOR+, normalised maps whose
    weights come close to 0 by cancellation such as `poly`, and the mixers Mamba, Mesa, Comba,
    GatedDeltaNet2, RWKV7 and PowerRetention.

    A token outside the vocabulary is an error. A call without tokens returns the state as it is.
    `torch.onnx.export` of PyTorch's writes a layer too: the outputs alone, without a state.

    The layer must be on the CPU, causal and not spread over ranks. Two kinds of layer are refused:
    softmax, which has no features, and Hyena, in whose Fourier transforms ONNX Runtime fails if the
    length is free.

    >>> import tempfile
    >>> import onnxruntime
    >>> from kerneltrick.onnx import empty_state
    >>> from kerneltrick.torch.mixers import GatedDeltaNet
    >>> layer, x = GatedDeltaNet(16, num_heads=2).eval(), torch.randn(1, 20, 16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = folder + "/layer.onnx"
    ...     export(layer, path)
    ...     session = onnxruntime.InferenceSession(path)
    ...     state = empty_state(path)
    ...     prompt = session.run(None, {"x": x[:, :19].numpy(), **state})
    ...     state = dict(zip(state, prompt[1:]))
    ...     token = session.run(None, {"x": x[:, 19:].numpy(), **state})
    >>> torch.allclose(torch.tensor(token[0]), layer(x)[0][:, 19:], atol=1e-5)
    True
    """
    if operators not in get_args(Operators):
        raise ValueError(
            f"operators must be one of {', '.join(get_args(Operators))}, not {operators!r}"
        )
    problem = refusal(model)
    if problem is not None:
        raise ValueError(f"cannot write {type(model).__name__} as ONNX: {problem}")
    check_writable(path)
    training = model.training
    model.eval()
    try:
        write(path, _written(model, operators))
    finally:
        model.train(training)


def refusal(model: nn.Module) -> str | None:
    """Why a model cannot be written as ONNX; None if it can."""
    kinds: tuple[Any, ...] = (Attention, *MIXERS.values())
    if isinstance(model, LanguageModel):
        layers = [block.mixer for block in model.blocks]
    elif isinstance(model, kinds):
        layers = [model]
    else:
        return "it must be a kerneltrick.torch.Attention, a mixer or a LanguageModel"
    for layer in layers:
        found = _refused_layer(layer, kinds)
        if found is not None:
            return found
    devices = {str(x.device) for x in model.parameters()} - {"cpu"}
    if devices:
        return f"it is on {', '.join(sorted(devices))}; move it with .cpu()"
    return None


def _refused_layer(layer: Any, kinds: tuple[Any, ...]) -> str | None:
    who = type(layer).__name__
    if not isinstance(layer, kinds):
        return f"its layer {who} is not a mixer of kerneltrick.torch"
    if layer.group is not None:
        return f"{who} is spread over ranks; call spread(None) first"
    if isinstance(layer, Hyena):
        return "ONNX Runtime fails in the Fourier transforms of Hyena if the length is free"
    if isinstance(layer, Attention):
        if not layer.causal:
            return "full attention has no order of tokens, so it cannot continue from a state"
        dials = [group.dial for group in layer.dial.groups(layer.num_kv_heads)]
        if not all(dial.feature_map.has_features for dial in dials):
            return (
                "softmax has no features, and its state over a whole text grows; use a feature map "
                "beside the window, such as elu@window=64"
            )
    return None


class _Streaming(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """A model whose state is a flat list of tensors."""

    def __init__(self, model: nn.Module, state: Any) -> None:
        super().__init__()
        self.model = model
        self.paths, self.leaves, self.spec = _leaves(
            _pytree.tree_map_only(State, _unnamed, state, is_leaf=_is_state)
        )
        tensors = [i for i, x in enumerate(self.leaves) if isinstance(x, torch.Tensor)]
        # The log-decay since the start is for merging states, which a stream never does.
        self.unused = [i for i in tensors if _name(self.paths[i]) == "log_decay"]
        self.places = [i for i in tensors if i not in self.unused]

    def forward(self, x: Tensor, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if isinstance(self.model, LanguageModel):
            # ONNX counts negative tokens from the end; past the end they are an error, as here.
            x = torch.where(x < 0, self.model.embedding.num_embeddings, x)
        leaves = list(self.leaves)
        for place, given in zip(self.places, past, strict=True):
            leaves[place] = given
        for place in self.unused:
            leaves[place] = leaves[place].new_zeros((x.shape[0], *leaves[place].shape[1:]))
        y, after = self.model(x, _pytree.tree_unflatten(leaves, self.spec))
        made = _pytree.tree_leaves(
            _pytree.tree_map_only(State, _with_nan, after, is_leaf=_is_state)
        )
        return y, [made[place] for place in self.places]

    def parts(self) -> list[StateInput]:
        """The tensors of the state, by names that say what they are."""
        found = []
        for place in self.places:
            x, name = self.leaves[place], _full_name(self.paths[place])
            start = -torch.inf if _name(self.paths[place]) == "log_scale" else 0.0
            kind = str(x.dtype).removeprefix("torch.")
            found.append(
                StateInput(f"past.{name}", f"present.{name}", tuple(x.shape[1:]), kind, start)
            )
        return found


def _is_state(x: Any) -> bool:
    return type(x) is State  # a MixedState consists of them


def _unnamed(state: State) -> State:
    """The state as one of learned weights whose values are not looked at while they are traced."""
    text = re.sub(r"sha256-[0-9a-f]+", "traced", state.fingerprint)
    return dataclasses.replace(state, fingerprint=text)


def _with_nan(state: State) -> State:
    """The state with NaN in the columns that are marked as spoiled: the marks are not written."""
    carry = state.carry
    if carry.bad is None:
        return state
    sums = carry.sums._replace(hi=torch.where(carry.bad, torch.nan, carry.sums.hi))
    return dataclasses.replace(state, carry=carry._replace(sums=sums, bad=None))


def _leaves(state: Any) -> tuple[list[str], list[Any], Any]:
    pairs, spec = _pytree.tree_flatten_with_path(state)
    return [_pytree.keystr(path) for path, _ in pairs], [x for _, x in pairs], spec


# The places of a State's arrays, by the fields of Carry and Near.
NAMES = {
    ".carry[0][0]": "sums",
    ".carry[1]": "log_scale",
    ".carry[2][0]": "log_decay",
    ".carry[4][0]": "near.k",
    ".carry[4][1]": "near.v",
    ".carry[4][2]": "near.positions",
    ".carry[4][3]": "near.keep",
    ".carry[4][4]": "near.count",
    ".memory.tensor": "state",
    ".tail": "tail",
    ".count": "count",
}


def _name(path: str) -> str:
    """What a tensor of a state is called: "sums", "near.k", "tail"."""
    return next((name for end, name in NAMES.items() if path.endswith(end)), path)


def _full_name(path: str) -> str:
    """The name with the number of the layer, and of the kind of heads where these differ."""
    layer = re.match(r"\[(\d+)\]", path)
    part = re.search(r"\.parts\[(\d+)\]", path)
    words = [*(found[1] for found in (layer, part) if found), _name(path)]
    return ".".join(words)


def _written(model: nn.Module, operators: Operators) -> bytes:
    x = _example(model)
    longest = max(_windows(model), default=1) or 1  # so many tokens fill every window
    with torch.no_grad():
        _, state = model(_repeated(x, longest), mask=_everything(x, longest))
    streaming = _Streaming(model, state).eval()
    past = [streaming.leaves[place] for place in streaming.places]
    parts = streaming.parts()
    named = isinstance(model, LanguageModel)
    shapes = {"x": {0: "batch", 1: "length"}, "past": [{0: "batch"} for _ in past]}
    with torch.no_grad(), _quiet(), onnx_operator(operators != "plain"):
        program = torch.onnx.export(
            streaming,
            (x, past),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=["tokens" if named else "x", *(part.past for part in parts)],
            output_names=["logits" if named else "y", *(part.present for part in parts)],
            verbose=False,
        )
    free = [str(size) for size in program.model.graph.inputs[0].shape[:2]]
    if any(size.isdigit() for size in free):
        raise RuntimeError(f"batch and length became fixed at {' and '.join(free)}")
    program.model.metadata_props[KEY] = described(parts)
    proto = program.model_proto
    if operators == "opset27":
        proto = _of_opset_27(proto)
    if proto.ByteSize() > LARGEST:
        raise ValueError(
            f"the model has {proto.ByteSize():,} bytes, but an ONNX file holds at most {LARGEST:,}"
        )
    content: bytes = proto.SerializeToString()
    return content


def _of_opset_27(proto: Any) -> Any:
    """The model with the operator of ONNX's own in place of ONNX Runtime's, which is its twin."""
    proto = version_converter.convert_version(proto, 27)
    for node in proto.graph.node:
        if node.domain == DOMAIN:
            node.domain = ""
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 27))
    return proto


def _example(model: nn.Module) -> Tensor:
    if isinstance(model, LanguageModel):
        return torch.zeros((BATCH, LENGTH), dtype=torch.int64)
    return torch.ones((BATCH, LENGTH, model.hidden_size), dtype=model.o_proj.weight.dtype)


def _windows(model: nn.Module) -> Iterator[int]:
    """The windows of all heads: a state is full after so many tokens."""
    for layer in model.modules():
        if isinstance(layer, Attention):
            for group in layer.dial.groups(layer.num_kv_heads):
                window = group.dial.window
                assert isinstance(window, int)  # the same for all heads of a group
                yield window


def _repeated(x: Tensor, count: int) -> Tensor:
    return x[:, :1].expand(-1, count, *x.shape[2:])


def _everything(x: Tensor, count: int) -> Tensor:
    """A mask of ones: with it, a state counts the tokens of each row in a tensor."""
    return torch.ones((x.shape[0], count), dtype=torch.bool)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of the exporter about packages and names that are of no concern here."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
