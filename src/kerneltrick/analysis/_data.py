"""Queries, keys and values of several layers and heads, and what is known about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import resources
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kerneltrick._arrays import Array, as_numpy
from kerneltrick.analysis._blocks import WHOLE_UP_TO
from kerneltrick.attention import check_causal, check_inputs, check_scale

Numbers: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]

SAMPLE = "minilm-moby-dick.safetensors"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AttentionData:
    """q (layers, H_q, n, d), k (layers, H_kv, n, d) and v (layers, H_kv, n, M) as NumPy arrays.

    Query head h uses key head h // (H_q / H_kv). `layers` and `heads` are the numbers of the layers
    and query heads in the model, which `select` keeps. `excluded` lists the (layer, head) pairs
    that `sanitized` found unusable.

    >>> data = AttentionData.from_arrays(*np.ones((3, 12, 100, 32)))
    >>> data
    AttentionData(1 layer, 12 heads, n = 100, d = 32, float64, 'arrays')
    >>> data.select(heads=[3, 7]).heads
    (3, 7)
    """

    q: Numbers
    k: Numbers
    v: Numbers
    layers: tuple[int, ...]
    causal: bool | None = None  # None: not known
    scale: float | None = None  # None: not known; 1/√d is used
    mask: Bools | None = None  # (n,), True = a real token
    tokens: tuple[str, ...] | None = None
    source: str = "arrays"
    heads: tuple[int, ...] = ()  # numbers of the query heads; () for 0 … H_q − 1
    excluded: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        inputs = check_inputs("attention data", self.q, self.k, self.v)
        shapes = ", ".join(f"{name}: {getattr(self, name).shape}" for name in "qkv")
        if self.q.ndim != 4:
            raise ValueError(f"attention data needs arrays (layers, heads, n, d) ({shapes})")
        if 0 in self.q.shape[:3] or 0 in self.v.shape[2:]:
            raise ValueError(f"attention data needs a layer, a token and a value ({shapes})")
        if self.causal:
            check_causal("attention data", inputs, True)
        if self.scale is not None:
            object.__setattr__(self, "scale", check_scale("attention data", self.scale))
        heads = self.heads or tuple(range(self.q.shape[1]))
        object.__setattr__(self, "heads", heads)
        _check_numbers("layers", self.layers, self.q.shape[0])
        _check_numbers("heads", heads, self.q.shape[1])
        self._check_tokens()
        for layer, head in self.excluded:
            if layer not in self.layers or head not in heads:
                raise ValueError(f"there is no layer {layer} head {head} to exclude")

    def _check_tokens(self) -> None:
        n_q, n = self.q.shape[2], self.k.shape[2]
        if (self.mask is not None or self.tokens is not None) and n_q != n:
            raise ValueError(
                f"with a mask or tokens there must be as many queries as keys, not {n_q} and {n}"
            )
        if self.mask is not None:
            if self.mask.dtype != np.bool_:
                raise TypeError(f"mask must be boolean, True = a real token, not {self.mask.dtype}")
            if self.mask.shape != (n,):
                raise ValueError(
                    f"mask must have one entry per token, ({n},), not {self.mask.shape}"
                )
        if self.tokens is not None and len(self.tokens) != n:
            raise ValueError(f"there are {len(self.tokens)} token texts for {n} tokens")

    @classmethod
    def from_arrays(
        cls,
        q: Array,
        k: Array,
        v: Array,
        *,
        layers: Sequence[int] | None = None,
        causal: bool | None = None,
        scale: float | None = None,
        mask: Array | None = None,
        tokens: Sequence[str] | None = None,
        source: str = "arrays",
    ) -> AttentionData:
        """Create data from arrays (n, d), (heads, n, d) or (layers, heads, n, d) of any library."""
        check_inputs("attention data", q, k, v)
        if q.ndim > 4:
            raise ValueError(
                "attention data needs arrays (n, d), (heads, n, d) or (layers, heads, n, d), "
                f"but q is {tuple(q.shape)}"
            )
        q, k, v = (as_numpy(x) for x in (q, k, v))
        q, k, v = (x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (q, k, v))
        return cls(
            q,
            k,
            v,
            tuple(range(q.shape[0]) if layers is None else layers),
            causal=causal,
            scale=scale,
            mask=None if mask is None else as_numpy(mask),
            tokens=None if tokens is None else tuple(tokens),
            source=source,
        )

    @property
    def groups(self) -> int:
        """Number of query heads that share one key/value head."""
        return int(self.q.shape[1] // self.k.shape[1])

    def __repr__(self) -> str:
        layers, heads, n, d = self.q.shape
        count = f"{layers} layer{'s' * (layers != 1)}, {heads} head{'s' * (heads != 1)}"
        return f"AttentionData({count}, n = {n}, d = {d}, {self.q.dtype}, {self.source!r})"

    def select(
        self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> AttentionData:
        """Select layers and query heads by their numbers, in the given order.

        Each selected query head gets its own copy of its key/value head.
        """
        chosen_layers = self.layers if layers is None else tuple(layers)
        chosen_heads = self.heads if heads is None else tuple(heads)
        q, k, v = self.q, self.k, self.v
        if layers is not None:
            rows = _places("layer", chosen_layers, self.layers)
            q, k, v = q[rows], k[rows], v[rows]
        if heads is not None:
            columns = _places("head", chosen_heads, self.heads)
            shared = [column // self.groups for column in columns]
            q, k, v = q[:, columns], k[:, shared], v[:, shared]
        excluded = tuple(
            pair for pair in self.excluded if pair[0] in chosen_layers and pair[1] in chosen_heads
        )
        return dataclasses.replace(
            self, q=q, k=k, v=v, layers=chosen_layers, heads=chosen_heads, excluded=excluded
        )

    def sanitized(self, scale: float = 1.0) -> tuple[AttentionData, list[str]]:
        """Return the data without padding and unusable heads, and a note for each thing left out.

        A head is unusable if its q, k or v holds NaN or infinity, or values whose products overflow
        (with q multiplied by `scale`). Such a head is set to zero and listed in `excluded`; the
        other heads keep their numbers.
        """
        data, notes = self._without_padding()
        heads, n = self.q.shape[1:3]
        if heads >= max(16, 2 * n):  # tokens were probably taken for heads
            notes.append(
                f"read as {heads} heads of n = {n}; if the data has {n} heads of n = {heads}, use "
                "--axes n,heads,d or load_attention(..., axes='n,heads,d')"
            )
        faults = {name: ~np.isfinite(getattr(data, name)) for name in "qkv"}
        counts = {name: fault.sum(axis=(2, 3)) for name, fault in faults.items()}
        sizes = {
            name: np.where(fault, 0, np.abs(getattr(data, name))).max(axis=(2, 3)).astype(float)
            for name, fault in faults.items()
        }
        # Powers of q·k and squares of the outputs must not overflow, in float64 or, for long data,
        # in float32.
        whole = max(data.q.shape[2], data.k.shape[2]) <= WHOLE_UP_TO
        vectors, values = (1e15, 1e75) if whole else (1e8, 1e15)
        limits = {"q": vectors / max(1.0, scale), "k": vectors, "v": values}
        bad = {name: (counts[name] > 0) | (sizes[name] > limits[name]) for name in "qkv"}
        if not any(found.any() for found in bad.values()):
            return data, notes
        clean: dict[str, Any] = {
            name: np.where(bad[name][..., None, None], 0, getattr(data, name)).astype(
                data.q.dtype, copy=False
            )
            for name in "qkv"
        }
        excluded = list(data.excluded)
        for row, layer in enumerate(data.layers):
            for column, head in enumerate(data.heads):
                shared = column // data.groups
                places = {"q": column, "k": shared, "v": shared}
                parts = [
                    f"{name} holds {count} value{'s' * (count != 1)}"
                    for name, place in places.items()
                    if (count := int(counts[name][row, place]))
                ]
                large = [
                    f"{name} holds values up to {sizes[name][row, place]:.3g}"
                    for name, place in places.items()
                    if sizes[name][row, place] > limits[name]
                ]
                if not parts and not large:
                    continue
                told = []
                if parts:
                    one = len(parts) == 1 and parts[0].endswith(" 1 value")
                    verb = "that is" if one else "that are"
                    told.append(f"{' and '.join(parts)} {verb} NaN or infinite")
                if large:
                    told.append(f"{' and '.join(large)}, whose products overflow")
                notes.append(f"layer {layer} head {head}: {'; '.join(told)}: left out")
                if (layer, head) not in excluded:
                    excluded.append((layer, head))
        return dataclasses.replace(data, **clean, excluded=tuple(excluded)), notes

    def _without_padding(self) -> tuple[AttentionData, list[str]]:
        if self.mask is None:
            return self, []
        padding = int((~self.mask).sum())
        if padding == 0:
            return dataclasses.replace(self, mask=None), []
        if padding == self.mask.size:
            raise ValueError(f"{self.source}: the mask leaves no token of {self.mask.size}")
        keep = self.mask
        kept = None
        if self.tokens is not None:
            kept = tuple(token for token, real in zip(self.tokens, keep, strict=True) if real)
        data = dataclasses.replace(
            self,
            q=self.q[:, :, keep],
            k=self.k[:, :, keep],
            v=self.v[:, :, keep],
            mask=None,
            tokens=kept,
        )
        return data, [f"{padding} padding token{'s' * (padding != 1)}: left out"]


def sample() -> AttentionData:
    """Load the built-in sample: layers 0, 2 and 5 of all-MiniLM-L6-v2 on 128 tokens of Moby-Dick.

    It has 12 heads, d = 32 and full attention, in float32. `sample/NOTE.md` says how it was made.

    >>> data = sample()
    >>> data.layers, data.q.shape, data.causal, " ".join(data.tokens[1:5])
    ((0, 2, 5), (3, 12, 128, 32), False, 'call me is ##hma')
    """
    from kerneltrick.analysis._files import load_attention  # a circular import otherwise

    place = resources.files("kerneltrick.analysis").joinpath("sample").joinpath(SAMPLE)
    with resources.as_file(place) as path:
        data = load_attention(path)
    # Stored in float16 to save space; NumPy is an order of magnitude faster in float32.
    wide: dict[str, Any] = {name: getattr(data, name).astype(np.float32) for name in "qkv"}
    return dataclasses.replace(data, **wide)


def _check_numbers(what: str, numbers: tuple[int, ...], count: int) -> None:
    if len(numbers) != count or len(set(numbers)) != count:
        raise ValueError(f"{what} must be {count} distinct numbers, not {numbers}")


def _places(what: str, wanted: tuple[int, ...], known: tuple[int, ...]) -> list[int]:
    if not wanted:
        raise ValueError(f"choose at least one {what}; there are {_listing(known)}")
    for number in wanted:
        if number not in known:
            raise ValueError(f"there is no {what} {number}; there are {_listing(known)}")
        if wanted.count(number) > 1:
            raise ValueError(f"{what} {number} is chosen twice")
    return [known.index(number) for number in wanted]


def _listing(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
