"""Operators on arrays of other libraries as operators on NumPy arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.conformance._operator import Operator, narrowed, source_of


def from_library(
    function: Callable[..., Any],
    kind: str,
    name: str = "",
    *,
    asarray: Callable[[Array], Any],
    to_numpy: Callable[[Any], Array] = np.asarray,
    gradient: Callable[..., Any] | None = None,
    **more: Any,
) -> Operator:
    """An `Operator` from a function on arrays of any library, with the same keywords.

    `asarray` and `to_numpy` convert. Masks and segment ids are converted too; states stay as the
    function returned them.

    >>> import array_api_strict as xp
    >>> def summed(x, weight, bias):
    ...     return xp.cumulative_sum(x, axis=-2)
    >>> operator = from_library(summed, "short_convolution", asarray=xp.asarray)
    >>> operator(np.ones((1, 1, 2, 1)), np.ones((1, 4)), np.ones(1))[0].ravel().tolist()
    [1.0, 2.0]
    """

    @functools.wraps(function)
    def run(*arrays: Array, **options: Any) -> Any:
        given = {
            key: asarray(x) if isinstance(x, np.ndarray) and key != "state" else x
            for key, x in options.items()
        }
        found = function(*map(asarray, arrays), **given)
        o, *state = found if isinstance(found, tuple) else (found,)
        return (to_numpy(o), *state) if state else to_numpy(o)

    slope = None
    if gradient is not None:

        def slope(arrays: list[Array], cotangent: Array) -> list[Array]:
            found = gradient(function, [asarray(x) for x in arrays], asarray(cotangent))
            return [to_numpy(x) for x in found]

    more.setdefault("source", source_of(function, kind, "from_library"))
    return Operator(run, kind, name, gradient=slope, **more)


def from_torch(
    function: Callable[..., Any],
    kind: str,
    name: str = "",
    *,
    halves: tuple[str, ...] = ("float16", "bfloat16"),
    differentiable: bool = True,
    **more: Any,
) -> Operator:
    """An `Operator` from a function on CPU tensors (batch, heads, n, …), with the same keywords.

    Masks and segment ids come as tensors, states as the function returned them. Its gradients are
    those of autograd; half precision is that of q, k and v.

    >>> import torch
    >>> def attention(q, k, v):
    ...     return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> operator = from_torch(attention, "softmax_attention")
    >>> sorted(operator.abilities)
    ['dtype', 'gradient']
    """
    import torch

    @functools.wraps(function)
    def run(*arrays: Array, dtype: str | None = None, **options: Any) -> Any:
        given = [torch.from_numpy(x) for x in arrays]
        if dtype is not None:
            given = narrowed(kind, given, lambda x: x.to(getattr(torch, dtype)))
        tensors = {
            key: torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x
            for key, x in options.items()
        }
        with torch.no_grad():
            found = function(*given, **tensors)
        o, *state = found if isinstance(found, tuple) else (found,)
        o = o.detach()
        array = (o.float() if dtype is not None else o).numpy()
        return (array, *state) if state else array

    signature = inspect.signature(function)
    if halves:
        extra = inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default=None)
        signature = signature.replace(parameters=[*signature.parameters.values(), extra])
    run.__signature__ = signature  # type: ignore[attr-defined] # read by `Operator`

    def gradient(arrays: list[Array], cotangent: Array) -> list[Array]:
        leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
        found = function(*leaves)
        o = found[0] if isinstance(found, tuple) else found
        wanted = torch.from_numpy(cotangent)
        slopes = torch.autograd.grad(o, leaves, wanted, materialize_grads=True)
        return [x.numpy() for x in slopes]

    slope = gradient if differentiable else None
    more.setdefault("source", source_of(function, kind, "from_torch"))
    return Operator(run, kind, name, gradient=slope, halves=halves, **more)
