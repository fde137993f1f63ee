"""What PyTorch is doing with the tensors of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from kerneltrick._arrays import compute_dtype, is_concrete
from kerneltrick.engines._engine import AnyRule, Host
from kerneltrick.engines._problem import Rule

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
else:
    Tensor = torch.Tensor


def host(rule: AnyRule, arrays: tuple[Any, ...], keys: Tensor) -> Host:
    """How PyTorch treats a call with these arrays, the weights of its map among them."""
    tensors = [x for x in arrays if torch.is_tensor(x)]
    if tangents() or not all(map(_reaches_the_core, tensors)):
        return "foreign"
    if traced(keys):
        return "onnx" if torch.onnx.is_in_onnx_export() else "recorded"
    if torch.is_grad_enabled() and (any(x.requires_grad for x in tensors) or _learned(rule, keys)):
        return "recorded"
    return "eager"


def traced(x: Tensor) -> bool:
    """Whether values are not at hand, or what happens to them is watched."""
    return not is_concrete(x) or torch._C._are_functorch_transforms_active()


def observed() -> bool:
    """Whether any tensor may be traced, or carry tangents, or be wrapped by torch.func."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or tangents()
        or torch.compiler.is_compiling()
        or torch._C._is_tracing()
    )


def tangents() -> bool:
    """Whether tensors may carry tangents of forward mode, which the core would drop."""
    return bool(torch.autograd.forward_ad._current_level >= 0)


def _reaches_the_core(x: Tensor) -> bool:
    """Whether an operator for CPU tensors takes x: not if its class has its own ideas."""
    kind = type(x)
    ours = kind is torch.Tensor or kind is torch.nn.Parameter
    return bool((ours or kind.__module__.startswith("torch._subclasses.")) and x.is_cpu)


def _learned(rule: AnyRule, keys: Tensor) -> bool:
    """Whether features have a gradient of their own, by weights that the map keeps out of sight."""
    if not isinstance(rule, Rule) or rule.fused is not None:
        return False
    token = torch.ones((*keys.shape[:-2], 1, keys.shape[-1]), dtype=compute_dtype(keys))
    return any(x is not None and x.requires_grad for x in rule.feature_map.phi_key(token))
