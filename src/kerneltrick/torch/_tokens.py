"""Which tokens take part, which text they belong to, and their positions in it."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def check_mask(x: Tensor, mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor | None:
    """The mask (batch, n), True where a token takes part, from either convention."""
    if mask is not None and key_padding_mask is not None:
        raise ValueError("give mask or key_padding_mask, which is its opposite, but not both")
    given = mask if key_padding_mask is None else key_padding_mask
    if given is None:
        return None
    name, meaning = "mask", "True where a token takes part"
    if key_padding_mask is not None:
        name, meaning = "key_padding_mask", "True where a token is ignored"
    if not isinstance(given, torch.Tensor) or given.dtype != torch.bool:
        kind = given.dtype if isinstance(given, torch.Tensor) else type(given).__name__
        raise TypeError(
            f"{name} must be boolean, {meaning}, not {kind}: if yours is 1 for tokens and 0 for "
            "padding, give mask=(yours != 0)"
        )
    if given.ndim != 2 or given.shape[0] != x.shape[0] or given.shape[1] != x.shape[1]:
        raise ValueError(
            f"{name} must have one entry per token, {tuple(x.shape[:2])}, not {tuple(given.shape)}"
        )
    _same_device(name, given, x)
    return given if key_padding_mask is None else ~given


def check_segments(
    x: Tensor, segment_ids: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor | None:
    """The number of the text of each token, (batch or 1, n), starting at 0."""
    if segment_ids is None and cu_seqlens is None:
        return None
    if segment_ids is None:
        ids = _packed(x, cu_seqlens)
    elif cu_seqlens is None:
        ids = segment_ids
        _whole("segment_ids", ids)
        batch, n = x.shape[:2]
        rows = ids.ndim == 1 or (ids.ndim == 2 and ids.shape[0] == batch)
        if not rows or ids.shape[-1] != n:
            raise ValueError(
                f"segment_ids must have one entry per token, {(batch, n)} or {(n,)}, not "
                f"{tuple(ids.shape)}"
            )
        _same_device("segment_ids", ids, x)
        ids = ids if ids.ndim == 2 else ids[None]
    else:
        raise ValueError("give segment_ids or cu_seqlens, not both")
    changed = torch.zeros_like(ids, dtype=torch.bool)
    changed[:, 1:] = ids[:, 1:] != ids[:, :-1]
    return changed.cumsum(1)


def _packed(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    _whole("cu_seqlens", cu_seqlens)
    _same_device("cu_seqlens", cu_seqlens, x)
    batch, n = x.shape[:2]
    if batch != 1 or cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        raise ValueError(
            "cu_seqlens (texts + 1,) goes with one packed row, x (1, n, hidden_size), not with "
            f"{tuple(cu_seqlens.shape)} and {tuple(x.shape)}"
        )
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        edges = cu_seqlens.tolist()
        if edges[0] != 0 or edges[-1] != n or sorted(edges) != edges:
            raise ValueError(f"cu_seqlens must rise from 0 to n = {n}, but is {edges}")
    tokens = torch.arange(n, device=x.device)
    return torch.bucketize(tokens, cu_seqlens[1:-1].to(tokens.dtype), right=True)[None]


def _whole(name: str, x: Any) -> None:
    kinds = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if not isinstance(x, torch.Tensor) or x.dtype not in kinds:
        kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"{name} must be a tensor of integers, not {kind}")


def _same_device(name: str, given: Tensor, x: Tensor) -> None:
    if given.device != x.device:
        raise ValueError(f"{name} is on {given.device}, but x is on {x.device}")


def unpack(x: Tensor, mask: Tensor | None, runs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Packed texts as a batch with one row each, its mask, and the place of each token in it."""
    batch, n = x.shape[:2]
    if not batch * n:
        return x, x.new_zeros((batch, n), dtype=torch.bool), runs.new_zeros(0)
    rows = runs + (runs[:, -1:] + 1).expand(batch, 1).cumsum(0) - (runs[:, -1:] + 1)
    flat = rows.expand(batch, n).flatten()
    lengths = torch.bincount(flat)
    first = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)[:-1]])
    longest = int(lengths.max())
    where = flat * longest + torch.arange(len(flat), device=x.device) - first[flat]
    texts = x.new_zeros(len(lengths) * longest, x.shape[-1]).index_copy(0, where, x.flatten(0, 1))
    kept = torch.zeros(len(texts), dtype=torch.bool, device=x.device)
    kept[where] = True if mask is None else mask.flatten()
    shape = (len(lengths), longest)
    return texts.unflatten(0, shape), kept.unflatten(0, shape), where


def count_tokens(
    x: Tensor, mask: Tensor | None, runs: Tensor | None, stop: int, count: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Positions (n,) or (batch, n) of the tokens of x, and the count after x.

    The count before x is `count` (batch,), or `stop` if that is None. Positions count the tokens of
    a text that take part; a token that does not has the position it would have if it did.
    """
    batch, n = x.shape[:2]
    if mask is None and runs is None and count is None:
        return torch.arange(stop, stop + n, device=x.device), None
    if count is None:
        count = torch.full((batch,), stop, device=x.device)
    if n == 0:
        return torch.zeros((batch, 0), dtype=torch.int64, device=x.device), count
    own = torch.ones((batch, n), dtype=torch.int64, device=x.device)
    own = own if mask is None else own * mask
    rank, total, before = own.cumsum(1) - own, own.sum(1), count[:, None]
    if runs is not None:
        begins = torch.zeros_like(rank)
        begins[:, 1:] = torch.where(runs[:, 1:] != runs[:, :-1], rank[:, 1:], 0)
        begins = begins.cummax(1).values
        before = torch.where(runs == 0, before, 0) - begins
    return before + rank, before[:, -1] + total


def frequencies(d: int, base: float) -> Tensor:
    """±base^{−2i/d} for i < d/2, the negative ones first (Su et al. 2021, Eq. 34)."""
    steps = [base ** (-2 * i / d) for i in range(d // 2)]
    return torch.tensor([*(-x for x in steps), *steps], dtype=torch.float64, device="cpu")


def rotary_angles(x: Tensor, positions: Tensor, speeds: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position · frequency, (n, d) or (batch, 1, n, d), for `rotate`."""
    # In float32 the angle of position 100,000 has an error of 0.004; MPS has nothing better.
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    angles = positions.unsqueeze(-1) * speeds.to(wide).to(x.device)
    angles = angles if angles.ndim == 2 else angles[:, None]
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    return angles.cos().to(compute), angles.sin().to(compute)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_i, x_{i+d/2}) of x (batch, heads, n, d), as Llama does.

    The frequencies of the first half are negative, which gives (cos, cos) and (−sin, sin).
    """
    return (x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin).to(x.dtype)
