"""The operators that can be checked here: ours, and those of other packages."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

from kerneltrick._install import install_command
from kerneltrick._text import nearest
from kerneltrick._version import __version__
from kerneltrick.conformance._kinds import KINDS
from kerneltrick.conformance._operator import Operator

DOT_PRODUCT = "scaled_dot_product_attention"  # of PyTorch, and of its adapter


@dataclasses.dataclass(frozen=True)
class KnownOperator:
    """An operator by name, which may not be installed.

    package: what it is part of, as pip knows it; needs: the modules that must be importable.
    """

    name: str
    kind: str
    package: str
    needs: tuple[str, ...]
    make: Callable[[KnownOperator], Operator]

    @property
    def installed(self) -> bool:
        return all(importlib.util.find_spec(module) is not None for module in self.needs)

    @property
    def version(self) -> str:
        if self.package == "kerneltrick":
            return __version__
        return importlib.metadata.version(self.package)

    @property
    def install(self) -> str:
        """How to install it."""
        extra = {"torch": "torch", "transformers": "hf"}.get(self.package, "peers")
        return install_command(extra)

    def operator(self) -> Operator:
        if not self.installed:
            raise ImportError(f"{self.name} is not installed: {self.install}")
        return dataclasses.replace(
            self.make(self), source=f"operator = conformance.find({self.name!r})"
        )


def _ours(libraries: bool) -> list[KnownOperator]:
    """Every engine on NumPy arrays, and the compiled one on tensors; or every pair that exists."""
    from kerneltrick.conformance import _ours

    made = []
    for kind in KINDS:
        for engine, library in itertools.product(_ours.engines_of(kind), _ours.LIBRARIES):
            usual = library == "NumPy" or (library == "PyTorch" and engine == "native")
            if not (usual or (libraries and _ours.goes_with(kind, engine, library))):
                continue
            where = "" if library == "NumPy" else f", {library}"
            needs = (_ours.MODULES[library],) if where else ()
            name = f"kerneltrick {kind} ({engine}{where})"
            make = functools.partial(_make, engine, library)
            made.append(KnownOperator(name, kind, "kerneltrick", needs, make))
    return made


def _make(engine: str, library: str, known: KnownOperator) -> Operator:
    from kerneltrick.conformance import _ours

    return _ours.our_operator(known.kind, engine, library, known.name)


def _peer(
    module: str,
    function: str,
    name: str,
    kind: str,
    package: str,
    needs: tuple[str, ...],
    *,
    tensors: bool = True,
    **more: Any,
) -> KnownOperator:
    def make(known: KnownOperator) -> Operator:
        found = getattr(importlib.import_module(f"kerneltrick.conformance.{module}"), function)
        if not tensors:
            return Operator(found, kind, name, **more)
        from kerneltrick.conformance._adapters import from_torch

        return from_torch(found, kind, name, **more)

    return KnownOperator(name, kind, package, needs, make)


def _peers() -> list[KnownOperator]:
    torch = ("_torch_peers", "torch", ("torch",))
    hf = ("_transformers_peers", "transformers", ("torch", "transformers"))
    fla = ("_fla_peers", "fla-core", ("torch", "fla", "einops"))
    rows = [
        (torch, "softmax_attention", DOT_PRODUCT, DOT_PRODUCT),
        (torch, "softmax_attention", "nn.MultiheadAttention", "multihead_attention"),
        (hf, "delta_rule", "gated delta rule (chunked, then steps)", "gated_delta_rule"),
        (hf, "delta_rule", "gated delta rule (recurrent)", "recurrent_gated_delta_rule"),
        (hf, "delta_rule_per_feature", "KDA (chunked, then steps)", "kimi_delta_attention"),
        (hf, "state_space", "Mamba-2 (scan, then steps)", "mamba2_scan"),
        (fla, "delta_rule", "gated delta rule (recurrent)", "recurrent_gated_delta_rule"),
        (fla, "delta_rule", "gated delta rule (chunked)", "chunk_gated_delta_rule"),
        (fla, "delta_rule_per_feature", "KDA (recurrent)", "recurrent_kda"),
        (fla, "gated_linear_attention_per_feature", "GLA (recurrent)", "recurrent_gla"),
        (fla, "gated_linear_attention", "simple GLA (recurrent)", "recurrent_simple_gla"),
        (fla, "gated_linear_attention", "simple GLA (chunked)", "chunk_simple_gla"),
        (fla, "linear_attention", "linear attention (recurrent)", "recurrent_linear_attention"),
        (fla, "softmax_attention", "softmax attention (parallel)", "parallel_attention"),
    ]
    # Its single-token update changes the state that it is given.
    more: dict[str, dict[str, Any]] = {"mamba2_scan": {"consumes_state": True}}
    found = [
        _peer(module, function, f"{package} {name}", kind, package, needs, **more.get(function, {}))
        for (module, package, needs), kind, name, function in rows
    ]
    for function, kind in (
        ("gated_linear_attention", "gated_linear_attention"),
        ("gated_linear_attention", "gated_linear_attention_per_feature"),
        ("gated_delta_rule", "delta_rule"),
        ("gated_delta_rule", "delta_rule_per_feature"),
    ):
        name = f"onnxruntime LinearAttention ({kind})"
        needs = ("onnx", "onnxruntime")
        found.append(_peer("_onnx_peer", function, name, kind, "onnxruntime", needs, tensors=False))
    return found


def known(*, peers: bool = False, libraries: bool = False) -> list[KnownOperator]:
    """Our operators, and with `peers` those of other packages, installed or not.

    `libraries`: every engine of ours on arrays of every library.
    """
    return _ours(libraries) + (_peers() if peers else [])


def find(name: str) -> Operator:
    """The operator of this name, ours or a peer's.

    >>> find("kerneltrick delta_rule (chunked)").kind
    'delta_rule'
    """
    every = {each.name: each for each in known(peers=True, libraries=True)}
    if name not in every:
        raise ValueError(f"unknown operator {name!r}; {nearest(name, [*every])}")
    return every[name].operator()
