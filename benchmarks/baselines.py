"""The hand-written formulas that the engines are compared with. They are not optimised further."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def elu_torch(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def elu_numpy(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def naive_full_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute φ(Q)(φ(K)ᵀV) / φ(Q)(φ(K)ᵀ1) with einsums."""
    q, k = elu_torch(q), elu_torch(k)
    context = torch.einsum("bhnd,bhne->bhde", k, v)
    normalizer = torch.einsum("bhnd,bhd->bhn", q, k.sum(-2))
    return torch.einsum("bhnd,bhde->bhne", q, context) / normalizer[..., None]


def naive_causal_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the masked n×n product."""
    weights = torch.tril(elu_torch(q) @ elu_torch(k).mT)
    return (weights @ v) / weights.sum(-1, keepdim=True)


def cumsum_causal_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the cumulative sum of all outer products, n·m·M numbers."""
    q, k = elu_torch(q), elu_torch(k)
    context = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(-3)
    normalizer = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(-2))
    return torch.einsum("bhnd,bhnde->bhne", q, context) / normalizer[..., None]


def plain_chunk_torch(q: Tensor, k: Tensor, v: Tensor, chunk: int = 64) -> Tensor:
    """Compute the usual chunked causal formula: all chunks at once, states by cumsum."""
    q, k = elu_torch(q), elu_torch(k)
    b, h, n, _ = q.shape
    if n % chunk:
        pad = chunk - n % chunk
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    q, k, v = (x.reshape(b, h, -1, chunk, x.shape[-1]) for x in (q, k, v))
    context = k.mT @ v
    context = context.cumsum(2) - context
    total = k.sum(-2)
    total = total.cumsum(2) - total
    inside = torch.tril(q @ k.mT)
    output = q @ context + inside @ v
    normalizer = (q * total[..., None, :]).sum(-1, keepdim=True) + inside.sum(-1, keepdim=True)
    return (output / normalizer).reshape(b, h, -1, v.shape[-1])[:, :, :n]


def softmax_torch(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def naive_full_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    q, k = elu_numpy(q), elu_numpy(k)
    return (q @ (k.mT @ v)) / (q @ k.sum(-2)[..., None])


def naive_causal_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    weights = np.tril(elu_numpy(q) @ elu_numpy(k).mT)
    return (weights @ v) / weights.sum(-1, keepdims=True)


def softmax_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights @ v) / weights.sum(-1, keepdims=True)
