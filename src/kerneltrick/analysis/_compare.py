"""Several maps against softmax on the same data: quality, time and memory, a row a map."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kerneltrick import maps
from kerneltrick._arrays import Array, as_numpy
from kerneltrick.analysis._cost import measure_time
from kerneltrick.analysis._quality import MapQuality, analyze_map
from kerneltrick.analysis._result import Result


@dataclasses.dataclass(frozen=True)
class MapReport(Result):
    """One map on the data of a `Comparison`."""

    map: str
    features: int  # m
    sign: str  # what φ(q)·φ(k) can be
    quality: MapQuality
    ms_per_1000_tokens: float


@dataclasses.dataclass(frozen=True)
class Comparison(Result):
    """Maps against softmax on the same q, k, v."""

    shape: tuple[int, ...]  # of q
    value_width: int
    dtype: str
    causal: bool
    softmax_ms_per_1000_tokens: float
    softmax_cache_bytes: int  # the keys and values of all n tokens, which softmax must remember
    maps: tuple[MapReport, ...]


def compare_maps(
    q: Array,
    k: Array,
    v: Array,
    feature_maps: Iterable[maps.MapLike],
    *,
    causal: bool = False,
    seconds: float = 0.3,
) -> Comparison:
    """`analyze_map` and `measure_time` for each map; about `seconds` of timing for each.

    >>> from kerneltrick.analysis import synthetic
    >>> q, k, v = synthetic("gaussian:n=64,d=8")
    >>> result = compare_maps(q, k, v, ["elu", "poly:degree=2"], seconds=0)
    >>> [(row.map, row.features, row.quality.state_bytes) for row in result.maps]
    [('elu', 8, 576), ('poly:degree=2', 45, 3240)]
    """
    chosen = [maps.get(feature_map) for feature_map in feature_maps]
    reports = []
    for feature_map in chosen:
        quality = analyze_map(q, k, v, feature_map, causal=causal)
        time = measure_time(q, k, v, feature_map, causal=causal, seconds=seconds)
        m = feature_map.dim(q.shape[-1])
        reports.append(MapReport(str(feature_map), m, feature_map.sign, quality, time))
    return Comparison(
        shape=tuple(q.shape),
        value_width=int(v.shape[-1]),
        dtype=str(q.dtype),
        causal=causal,
        softmax_ms_per_1000_tokens=measure_time(q, k, v, causal=causal, seconds=seconds),
        softmax_cache_bytes=as_numpy(k).nbytes + as_numpy(v).nbytes,
        maps=tuple(reports),
    )
