"""Feature maps fitted to the heads of a model, with the tokens they were fitted to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kerneltrick import maps
from kerneltrick._arrays import Array, as_numpy, is_array
from kerneltrick._files import AnyPath, read_tensors, writing
from kerneltrick._text import to_json
from kerneltrick.analysis._data import AttentionData
from kerneltrick.analysis._repeats import STRETCH
from kerneltrick.analysis._safetensors import write_safetensors
from kerneltrick.attention import Dial, Far, check_scale, dial_text, read_tail
from kerneltrick.maps import from_fields, to_fields

FORMAT = "kerneltrick.FittedMaps/1"
SUFFIX = ".safetensors"  # marks a text as the name of a file of maps
MOST_SEEN = 4096  # hashes stored per head: all of a short text, the smallest of a long one

Hashes: TypeAlias = NDArray[np.uint64]
Heads: TypeAlias = Sequence[tuple[int, int]]  # numbers of layer and query head

_KEY = re.compile(r"layers\.(0|[1-9][0-9]{0,5})\.([a-z_]+)")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FittedMaps:
    """A `Dial` for each layer of a model, with weights and gains for each of its heads.

    `kerneltrick.torch.fit` creates them, `compare` accepts them like a map, and `linear_attention`
    accepts the dial of a layer. The tokens that they were fitted to must not be used to judge them:
    `check_unseen`, which `compare` calls, refuses such tokens.

    >>> dial = Dial(maps.Hedgehog(np.stack([np.eye(4), 2 * np.eye(4)])), window=8)
    >>> fitted = FittedMaps({0: dial}, heads=(0, 1))
    >>> fitted, fitted.of_heads([(0, 1)]).feature_map.weight.shape
    (FittedMaps(1 layer, 2 heads, 'fitted.safetensors@window=8'), (1, 4, 4))
    """

    dials: Mapping[int, Dial]
    heads: tuple[int, ...]  # numbers of the query heads, in the order of the weights and gains
    scale: float | None = None  # scale of the softmax that they imitate; None: 1/√d
    causal: bool = False
    seen: Mapping[int, Hashes] = dataclasses.field(default_factory=dict)  # (H_kv, hashes) by layer
    source: str = ""
    name: str = "fitted" + SUFFIX  # path of the file
    overlap: int = STRETCH  # consecutive tokens of a hash in `seen`

    def __post_init__(self) -> None:
        if not self.dials or len(set(self.heads)) != len(self.heads) or not self.heads:
            raise ValueError("fitted maps need at least one layer, and heads with distinct numbers")
        if self.scale is not None:
            check_scale("fitted maps", self.scale)
        if len({_kind(dial) for dial in self.dials.values()}) > 1:
            raise ValueError(
                "all layers of fitted maps must have the same map, window and sinks, and weights "
                "of the same shapes"
            )
        for layer, dial in self.dials.items():
            for name, x in _weights(dial).items():
                if name == "gain" and x.shape not in ((), (len(self.heads),)):
                    raise ValueError(
                        f"layer {layer} has gains {x.shape} for {len(self.heads)} query heads"
                    )
                if x.ndim == 3 and len(self.heads) % x.shape[0]:
                    raise ValueError(
                        f"layer {layer} has {name} for {x.shape[0]} heads, which "
                        f"{len(self.heads)} query heads cannot share"
                    )

    def __str__(self) -> str:
        return dial_text(self.name, self.window, self.sinks)

    def __repr__(self) -> str:
        layers, heads = len(self.dials), len(self.heads)
        count = f"{layers} layer{'s' * (layers != 1)}, {heads} head{'s' * (heads != 1)}"
        return f"FittedMaps({count}, {str(self)!r})"

    @property
    def window(self) -> int:
        """The window of every layer."""
        return next(iter(self.dials.values())).alike("FittedMaps")[0]

    @property
    def sinks(self) -> int:
        """The sinks of every layer."""
        return next(iter(self.dials.values())).alike("FittedMaps")[1]

    @property
    def digest(self) -> str:
        """A text that identifies these weights and gains."""
        return " ".join(f"{layer} {dial}" for layer, dial in self.dials.items())

    def of_heads(self, heads: Heads) -> Dial:
        """Return one dial with the weights of these (layer, head) pairs, in this order.

        It is for arrays with exactly these heads, whose keys are not shared.
        """
        first = next(iter(self.dials.values()))
        parts: dict[str, list[Any]] = {name: [] for name in _weights(first)}
        for pair in heads:
            place = self._place(pair)
            for name, x in _weights(self.dials[pair[0]]).items():
                parts[name].append(_of_head(name, x, place, len(self.heads)))
        return _with_weights(first, {name: np.stack(x) for name, x in parts.items()})

    def turned(self, **tail: Any) -> FittedMaps:
        """Return the same maps with another `window`, `sinks` or `far`; `far` replaces the gains.

        >>> fitted = FittedMaps({0: Dial(maps.Hedgehog(np.eye(4)), 16, 2, Far(-1.0))}, (0,))
        >>> str(fitted.turned(window=8)), str(fitted.turned(window=0, sinks=0))
        ('fitted.safetensors@window=8,sinks=2', 'fitted.safetensors')
        """

        def with_tail(dial: Dial) -> Dial:
            made = {"window": dial.window, "sinks": dial.sinks, "far": dial.far, **tail}
            if not (made["window"] or made["sinks"]) and "far" not in tail:
                made["far"] = None
            return Dial(dial.feature_map, **made)

        return dataclasses.replace(
            self, dials={i: with_tail(dial) for i, dial in self.dials.items()}
        )

    def check_serves(self, data: AttentionData) -> None:
        """Raise ValueError unless there is a map for every head of `data`, of the same width.

        Data with tokens that the maps were fitted to is refused too.
        """
        for layer in data.layers:
            for head in data.heads:
                self._place((layer, head))
            for name, x in _weights(self.dials[layer]).items():
                if name in ("weight", "key_weight") and x.shape[-2] != data.q.shape[-1]:
                    raise ValueError(
                        f"{self.name} was fitted to heads of d = {x.shape[-2]}, but {data.source} "
                        f"has d = {data.q.shape[-1]}"
                    )
        self.check_unseen(data)

    def notes(self, causal: bool, scale: float, d: int) -> list[str]:
        """Return notes on how the fit differs from this kind of softmax."""
        found = []
        if causal != self.causal:
            kind = "causal" if self.causal else "full"
            found.append(f"{self.name} was fitted to {kind} attention")
        own = 1 / math.sqrt(d) if self.scale is None else self.scale
        if not math.isclose(own, scale, rel_tol=1e-6):
            found.append(f"{self.name} was fitted to softmax with scale {own:g}")
        return found

    def check_unseen(self, data: AttentionData) -> None:
        """Raise ValueError if the maps were fitted to tokens of `data`.

        A token is identified by its key and those of the tokens before it, in float16: by 8 keys,
        or more where the fitted text repeats itself (see `fit`).
        """
        for row, layer in enumerate(data.layers):
            if layer not in self.seen:
                continue
            known, share = self.seen[layer], len(self.heads) // len(self.seen[layer])
            for place, head in enumerate(data.heads):
                if head not in self.heads:
                    continue
                keys = data.k[row, place // data.groups]
                ours = hashes(keys, self.overlap)
                same = int(np.isin(ours, known[self.heads.index(head) // share]).sum())
                if same:
                    raise ValueError(
                        f"{data.source} overlaps the text that {self.name} was fitted to (at least "
                        f"{same} tokens in layer {layer}); judge it on other text"
                    )

    def _place(self, pair: tuple[int, int]) -> int:
        layer, head = pair
        if layer not in self.dials or head not in self.heads:
            raise ValueError(
                f"{self.name} was fitted to layers {_listing(self.dials)} and heads "
                f"{_listing(self.heads)}, not to layer {layer} head {head}"
            )
        return self.heads.index(head)

    def save(self, path: AnyPath) -> None:
        """Write a safetensors file, whole or not at all; `-` means standard output."""
        tensors: dict[str, Any] = {}
        values: dict[str, str] = {}
        for layer, dial in self.dials.items():
            texts, weights = to_fields(dial.feature_map)
            far = dial.far or Far()
            if is_array(far.gain):
                weights["gain"] = np.ascontiguousarray(as_numpy(far.gain))
            elif far.gain is not None:
                weights["gain"] = np.asarray(float(far.gain))
            if layer in self.seen:
                weights["seen"] = self.seen[layer]
            window = {"window": dial.window, "sinks": dial.sinks, "relative": far.relative}
            values[f"layers.{layer}"] = to_json({"map": texts, **window})
            tensors |= {f"layers.{layer}.{name}": x for name, x in weights.items()}
        known = {"heads": self.heads, "scaling": self.scale, "causal": self.causal}
        if self.overlap != STRETCH:
            known["overlap"] = self.overlap
        values |= {key: to_json(value) for key, value in known.items()} | {"source": self.source}
        with writing(path) as stream:
            write_safetensors(stream, tensors, {"format": FORMAT, **values})

    @classmethod
    def load(cls, path: AnyPath) -> FittedMaps:
        """Load the file, with the weights as NumPy arrays."""
        metadata, tensors = read_tensors(path, "file of fitted maps")
        where = os.fspath(path)
        if metadata.get("format") != FORMAT:
            raise ValueError(
                f"{where} is not a file of fitted maps: expected format {FORMAT!r}, found "
                f"{metadata.get('format')!r}"
            )
        try:
            return _read(metadata, tensors, where)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{where} is not a valid file of fitted maps: {error}") from None


def _read(metadata: dict[str, str], tensors: dict[str, Any], where: str) -> FittedMaps:
    weights: dict[int, dict[str, Any]] = {}
    for key, x in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(f"it contains an unknown array {key!r}")
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise ValueError(f"its array {key} is not finite")
        weights.setdefault(int(match[1]), {})[match[2]] = x
    dials, seen = {}, {}
    for key, text in metadata.items():
        if not key.startswith("layers."):
            continue
        layer, known = int(key.removeprefix("layers.")), json.loads(text)
        arrays = weights.pop(layer, {})
        if "seen" in arrays:
            seen[layer] = arrays.pop("seen")
        gain = arrays.pop("gain", None)
        fields = dict(known["map"])
        feature_map = from_fields(fields.pop("name"), fields, arrays)
        far = None
        if gain is not None or known["relative"]:
            far = Far(
                float(gain) if gain is not None and gain.ndim == 0 else gain, known["relative"]
            )
        dials[layer] = Dial(feature_map, known["window"], known["sinks"], far)
    if weights:
        raise ValueError(f"it has no description of layer {min(weights)}")
    heads, causal = json.loads(metadata["heads"]), json.loads(metadata["causal"])
    overlap = json.loads(metadata.get("overlap", str(STRETCH)))
    if not all(type(x) is int for x in (*heads, overlap)) or type(causal) is not bool:
        raise ValueError("its heads or overlap are not whole numbers, or causal is not a boolean")
    return FittedMaps(
        dials=dict(sorted(dials.items())),
        heads=tuple(heads),
        scale=json.loads(metadata["scaling"]),
        causal=causal,
        seen=seen,
        source=metadata.get("source", ""),
        name=where,
        overlap=overlap,
    )


Setting: TypeAlias = Dial | FittedMaps


def names_file(text: str) -> bool:
    """Return whether a text names a file of fitted maps rather than a map."""
    return text.partition("@")[0].strip().endswith(SUFFIX)


def read_setting(setting: maps.MapLike | Dial | FittedMaps) -> Setting:
    """Return what `compare` accepts: everything that `Dial.get` accepts, and fitted maps.

    Fitted maps can be given by the name of their file; `@window=8` after it sets their window.
    """
    if isinstance(setting, FittedMaps):
        return setting
    if not (isinstance(setting, str) and names_file(setting)):
        return Dial.get(setting)
    name, at, _ = setting.partition("@")
    fitted = FittedMaps.load(name.strip())
    return fitted.turned(**read_tail(setting)) if at else fitted


def hashes(k: Array, run: int = STRETCH) -> Hashes:
    """Hash each token of the keys (n, d) together with the tokens before it, `run` in all.

    A text that is shorter has one hash, of all its tokens.
    """
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(as_numpy(k), dtype=np.float16)
    # −0 and 0 are the same number
    rows = rows + np.float16(0)
    size = min(run, len(rows))
    found = [
        hashlib.blake2b(rows[i : i + size].tobytes(), digest_size=8).digest()
        for i in range(len(rows) - size + 1)
    ]
    return np.frombuffer(b"".join(found), np.uint64)


def smallest_hashes(found: Iterable[Hashes]) -> Hashes:
    """Return the smallest of these hashes, sorted; all of them unless the text is long."""
    return np.unique(np.concatenate(list(found)))[:MOST_SEEN]


def _kind(dial: Dial) -> tuple[Any, ...]:
    """What all layers of fitted maps must have in common."""
    feature_map, far = dial.feature_map, dial.far or Far()
    values = [getattr(feature_map, field.name) for field in dataclasses.fields(feature_map)]
    plain = tuple(x.shape if is_array(x) else x for x in values)
    return type(feature_map), plain, dial.window, dial.sinks, far.relative, far.gain is None


def _weights(dial: Dial) -> dict[str, Any]:
    """Return the arrays of a dial by name, including gains, as NumPy arrays."""
    feature_map = dial.feature_map
    found = {
        field.name: as_numpy(value)
        for field in dataclasses.fields(feature_map)
        if is_array(value := getattr(feature_map, field.name))
    }
    if dial.far is not None and is_array(dial.far.gain):
        found["gain"] = as_numpy(dial.far.gain)
    return found


def _with_weights(dial: Dial, weights: dict[str, Any]) -> Dial:
    far, own = dial.far, dict(weights)
    if "gain" in own:
        assert far is not None
        far = Far(own.pop("gain"), far.relative)
    feature_map = dataclasses.replace(dial.feature_map, **own)
    return dataclasses.replace(dial, feature_map=feature_map, far=far)


def _of_head(name: str, x: Any, place: int, heads: int) -> Any:
    """Return the part of an array that one query head uses: its own, its group's, or all of it."""
    if x.ndim == 3:
        return x[place * x.shape[0] // heads]
    if name == "gain":
        return x[place] if x.ndim else x
    return x[None] if x.ndim == 1 else x  # a bias (m,), of a head (1, m)


def _listing(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def of_heads(setting: Setting, heads: Heads, groups: int) -> Dial:
    """Return the dial for data with these (layer, query head) pairs, whose keys are not shared.

    In the data that they come from, so many query heads share a key–value head.
    """
    if not isinstance(setting, Dial):
        return setting.of_heads(heads)
    if not setting.by_head:
        return setting
    shared = [head // groups for _, head in heads]
    window, sinks = zip(*map(setting.at_head, shared), strict=True)
    bare = [at for at, head in enumerate(shared) if head in setting.bare]
    return dataclasses.replace(setting, window=window, sinks=sinks, whole=(), bare=bare)


def has_window(setting: Setting) -> bool:
    """Return whether some keys have exact weights beside the map."""
    return bool(setting.window or setting.sinks or (isinstance(setting, Dial) and setting.whole))


def scale_of(setting: Setting) -> float | None:
    """Return the scale that a map was fitted with; None means the default of the map."""
    return None if isinstance(setting, Dial) else setting.scale
