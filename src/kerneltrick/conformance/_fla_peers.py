"""The readable references beside the kernels of flash-linear-attention.

Each is a file of its own, loaded without the package, whose other files need a GPU compiler.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any, TypeAlias

from torch.nn import functional

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@functools.cache
def naive(folder: str, function: str) -> Any:
    """A function of `fla/ops/<folder>/naive.py`."""
    found = importlib.util.find_spec("fla")
    if found is None or not found.submodule_search_locations:
        raise ImportError("flash-linear-attention is not installed: pip install fla-core einops")
    path = Path(found.submodule_search_locations[0], "ops", folder, "naive.py")
    spec = importlib.util.spec_from_file_location(f"{folder}_naive", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def _tokens_first(rule: Any, state: Any, *inputs: Tensor, **more: Any) -> tuple[Tensor, Any]:
    given = [x.transpose(1, 2) for x in inputs]
    o, after = rule(*given, initial_state=state, output_final_state=True, **more)
    return o.transpose(1, 2), after


def recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    rule = naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")
    return _tokens_first(rule, state, q, k, v, beta, log_decay)


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    rule = naive("gated_delta_rule", "naive_chunk_gated_delta_rule")
    return _tokens_first(rule, state, q, k, v, log_decay, beta)


def recurrent_kda(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    return _tokens_first(naive("kda", "naive_recurrent_kda"), state, q, k, v, log_decay, beta)


def recurrent_gla(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    return _tokens_first(naive("gla", "naive_recurrent_gla"), state, q, k, v, log_decay)


def chunk_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    rule = naive("simple_gla", "naive_chunk_simple_gla")
    return _tokens_first(rule, state, q, k, v, log_decay)


def recurrent_simple_gla(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    rule = naive("simple_gla", "naive_recurrent_simple_gla")
    return _tokens_first(rule, state, q, k, v, log_decay)


def recurrent_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, state: Any = None
) -> tuple[Tensor, Any]:
    """Normalised, with the features ELU(x) + 1 given to it."""
    rule = naive("linear_attn", "naive_recurrent_linear_attn")
    phi_q, phi_k = functional.elu(q) + 1, functional.elu(k) + 1
    return _tokens_first(rule, state, phi_q, phi_k, v, normalize=True)


def parallel_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention."""
    o, _ = naive("attn", "naive_parallel_attn")(*(x.transpose(1, 2) for x in (q, k, v)))
    return o.transpose(1, 2)
