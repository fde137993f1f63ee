"""Run the linear-attention layers of a model of transformers on the compiled core.

The models call their kernels as functions of their own file, so a function is replaced there, by
one that takes over calls whose tensors are all on the CPU. transformers' own switch, a mapping of
the package `kernels`, ends in the same place, but it needs that package (5.23 wants a version that
5.22 refuses), applies to whole models, and may fetch other kernels from the hub.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import torch
import transformers

from kerneltrick.hf._functions import ANY, FUNCTIONS, NEWEST, OLDEST, Function

MARK = "_kerneltrick_replaces"  # the attribute of a replacement that holds what was there


class AccelerationError(ValueError):
    """The model cannot be accelerated; nothing was replaced."""


class Replacement(NamedTuple):
    """One function that `accelerate` replaced."""

    function: str  # its name in the file of the model
    model: str  # the type of the model, such as "mamba2"
    before: str  # what computed it before
    now: str  # what computes it on the CPU now


class _Place(NamedTuple):
    """Where a function is found: the attribute `name` of a module or class."""

    owner: Any
    name: str
    function: Function
    model: str


_HOLDERS: dict[tuple[int, str], tuple[_Place, set[int]]] = {}  # by place: who wants it replaced


class Acceleration:
    """What `accelerate` replaced: a table when printed, and the way back.

    `replaced` is a tuple of `Replacement`. `restore()` puts back what was there before, and so does
    leaving a `with` block.
    """

    def __init__(self, places: list[_Place], rows: tuple[Replacement, ...]) -> None:
        self._places, self.replaced = places, rows

    def restore(self) -> None:
        """Put back the functions, except those that another `accelerate` still wants replaced."""
        for place in self._places:
            key = (id(place.owner), place.name)
            if key in _HOLDERS and id(self) in _HOLDERS[key][1]:
                _HOLDERS[key][1].discard(id(self))
                if not _HOLDERS[key][1]:
                    _put_back(_HOLDERS.pop(key)[0])
        self._places = []
        _KEPT.pop(id(self), None)

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        rows = [("function", "in", "before", "now"), *self.replaced]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def __repr__(self) -> str:
        return f"<Acceleration of {len(self.replaced)} functions>"


def accelerate(model: Any) -> Acceleration:
    """Run the linear-attention layers of a model of transformers on the compiled core.

    Qwen3.5, Kimi Linear, Mamba, Mamba-2, Granite 4, Falcon-H1, Jamba and their relatives compute
    these layers with kernels for GPUs, and on a CPU with slow references. This function replaces
    the references for calls whose tensors are all on the CPU; other calls go where they went. The
    model computes the same, generates and trains, also on packed texts (`seq_idx` or
    `cu_seq_lens_q`), which the references refuse.

    The functions belong to the file of the model, so all models of that type change with it, until
    `restore()` is called on the result or on `kerneltrick.hf`. Importing kerneltrick changes
    nothing.

    model: a model of transformers, or a module that contains one. It may be quantised or spread
        over several devices.

    Returns the functions that were replaced, as an `Acceleration`. Raises AccelerationError if
    there are none, and if transformers has another version or a function another signature than
    those that were tried; then nothing is replaced.

    >>> import torch, transformers, kerneltrick.hf
    >>> config = transformers.Mamba2Config(
    ...     vocab_size=50, hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16,
    ...     state_size=16, n_groups=1,
    ... )
    >>> model = transformers.AutoModelForCausalLM.from_config(config)
    >>> with kerneltrick.hf.accelerate(model) as made:
    ...     logits = model(torch.tensor([[1, 2, 3]])).logits
    >>> [row.function for row in made.replaced if row.now == "linear_attention"]
    ['mamba2_chunk_scan']
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"accelerate needs a model (a torch.nn.Module), not {type(model).__name__}")
    places = list(_find(model))
    if not places:
        raise AccelerationError(
            f"nothing to accelerate: {_name(model)} has no layer whose functions accelerate knows; "
            "it needs a model of transformers with linear attention, such as Qwen3.5, Kimi Linear, "
            "Mamba-2, Falcon-H1 or Jamba"
        )
    _check_version()
    for place in places:
        _check_signature(place)
        _check_hooks(place, model)
    made = Acceleration(places, tuple(map(_describe, places)))
    for place in places:
        key = (id(place.owner), place.name)
        if key not in _HOLDERS:
            setattr(place.owner, place.name, _replacement(place))
            _HOLDERS[key] = place, set()
        _HOLDERS[key][1].add(id(made))
    _KEPT[id(made)] = made
    return made


def is_accelerated(model: Any) -> bool:
    return any((id(place.owner), place.name) in _HOLDERS for place in _find(model))


_KEPT: dict[int, Acceleration] = {}  # so that no other object gets the id of one that is in use


def restore() -> None:
    """Put back every function that `accelerate` replaced, for all models.

    >>> import kerneltrick.hf
    >>> kerneltrick.hf.restore()
    """
    for made in list(_KEPT.values()):
        made.restore()


def _find(model: Any) -> Iterator[_Place]:
    """Where the functions are that layers of the model call, each place once."""
    classes = dict.fromkeys(kind for layer in model.modules() for kind in type(layer).__mro__)
    theirs = [x for x in classes if x.__module__.startswith("transformers.models.")]
    for file in dict.fromkeys(kind.__module__ for kind in theirs):
        methods = {x.__name__: x for x in theirs if x.__module__ == file}
        for function in FUNCTIONS:
            kind, _, name = function.name.rpartition(".")
            owner = methods.get(kind) if kind else sys.modules[file]
            if owner is not None and name in vars(owner):
                yield _Place(owner, name, function, file.split(".")[2])


def _check_version() -> None:
    text = transformers.__version__
    version = tuple(int(part) for part in text.split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        known = " to ".join(".".join(map(str, x)) for x in (OLDEST, NEWEST))
        raise AccelerationError(
            f"accelerate knows the functions of transformers {known}, but {text} is installed; "
            "nothing was replaced. Install one of these versions, or a newer kerneltrick"
        )


def _check_signature(place: _Place) -> None:
    """Raise AccelerationError if the function does not take the arguments that ours expects."""
    found = getattr(place.owner, place.name)
    parameters = inspect.signature(getattr(found, "forward", found)).parameters.values()
    names = tuple("**" if x.kind is x.VAR_KEYWORD else x.name for x in parameters)
    if place.function.parameters not in (ANY, " ".join(names)):
        raise AccelerationError(
            f"{place.function.name} of {place.model} takes ({' '.join(names)}), but accelerate "
            f"knows it with ({place.function.parameters}); nothing was replaced. "
            f"transformers {transformers.__version__} has changed it: install a newer kerneltrick"
        )


def _check_hooks(place: _Place, model: Any) -> None:
    """Raise AccelerationError if a layer has a method of its own in place of its class's."""
    if isinstance(place.owner, type):
        for layer in model.modules():
            if isinstance(layer, place.owner) and place.name in vars(layer):
                raise AccelerationError(
                    f"{type(layer).__name__} has a {place.name} of its own, as device_map and "
                    f"offloading give it, so {place.function.name} cannot be replaced; nothing was "
                    "replaced. Load the model without them"
                )


def _replacement(place: _Place) -> Callable[..., Any]:
    before, ours = getattr(place.owner, place.name), place.function.ours
    if place.function.wraps:
        ours = functools.partial(ours, before)

    @functools.wraps(before)
    def replacement(*inputs: Any, **options: Any) -> Any:
        given = (*inputs, *options.values())
        if all(x.is_cpu for x in given if isinstance(x, torch.Tensor)):
            return ours(*inputs, **options)
        return before(*inputs, **options)

    setattr(replacement, MARK, before)
    return replacement


def _put_back(place: _Place) -> None:
    found = getattr(place.owner, place.name)
    if hasattr(found, MARK):
        setattr(place.owner, place.name, getattr(found, MARK))
    else:
        warnings.warn(
            f"{place.function.name} of {place.model} was replaced again after accelerate, so it "
            "was left as it is",
            stacklevel=3,
        )


def _describe(place: _Place) -> Replacement:
    found = getattr(place.owner, place.name)
    before = _implementation(getattr(found, MARK, found))
    return Replacement(place.function.name, place.model, before, place.function.operator)


def _implementation(function: Any) -> str:
    """Name what computes a function of transformers: a package, or its own reference."""
    function = getattr(function, "forward", function)
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    inside = dict(zip(names, (x.cell_contents for x in cells), strict=True))
    chosen = inside.get("implementation", function)
    module = str(getattr(chosen, "__module__", ""))
    return "reference" if module.startswith("transformers.") else module.partition(".")[0]


def _name(model: Any) -> str:
    return type(getattr(model, "_orig_mod", model)).__name__
