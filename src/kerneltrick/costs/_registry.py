"""Look up algorithms by name, for claims about costs."""

from __future__ import annotations

from collections.abc import Callable

from kerneltrick import _text
from kerneltrick.costs._attention import (
    chunked,
    linear,
    projections,
    quadratic,
    recurrent,
    softmax,
)
from kerneltrick.costs._cost import Cost, W
from kerneltrick.costs._decoding import decoding, linear_decoding, multi_head
from kerneltrick.costs._delta import delta_chunked, delta_decoding, delta_recurrent
from kerneltrick.costs._features import feature_cost
from kerneltrick.costs._polynomial import Polynomial, symbols

n, D, M, m, h = symbols("n D M m h")


def algorithms() -> list[str]:
    """The names that `get` knows."""
    return list(_ALGORITHMS)


def get(name: str) -> Cost:
    """The cost of an algorithm by name. `linear:MAP` and similar names contain a feature map.

    >>> print(get("linear:poly:degree=2").order())
    n·D²·M
    """
    family, colon, text = " ".join(name.split()).partition(":")
    if colon and family.lower().removesuffix(" attention") in _WITH_MAP:
        return _WITH_MAP[family.lower().removesuffix(" attention")](text)
    key = " ".join(name.lower().split())
    if key not in _ALGORITHMS:  # people say "linear attention" for `linear`
        key = " ".join(word for word in key.split() if word != "attention")
    if key in _ALGORITHMS:
        return _ALGORITHMS[key]()
    raise ValueError(
        f"unknown algorithm {name!r}; {_text.nearest(key, _ALGORITHMS)}; "
        f"{', '.join(_WITH_MAP)} also take a feature map, as in linear:elu"
    )


def _row_softmax() -> Cost:
    """The maximum, difference, exp, sum and division for all n rows of n scores."""
    return _piece("row softmax", 5 * n**2)


def _features(feature_map: str) -> Cost:
    """The cost of φ for all queries and keys."""
    return _piece("features", 2 * n * feature_cost(feature_map).products)


def _piece(name: str, count: Polynomial) -> Cost:
    zero = Polynomial()
    return Cost(name, {name: count}, zero, W * zero, zero)


_ALGORITHMS: dict[str, Callable[[], Cost]] = {
    "projections": projections,
    "softmax": softmax,
    "softmax streamed": lambda: softmax(streamed=True),
    "softmax training": lambda: softmax(train=True),
    "softmax streamed training": lambda: softmax(streamed=True, train=True),
    "row softmax": _row_softmax,
    "linear": linear,
    "linear training": lambda: linear(train=True),
    "quadratic": quadratic,
    "quadratic training": lambda: quadratic(train=True),
    "quadratic features": lambda: _features("poly:degree=2"),
    "state loop": lambda: _piece("U", n * m * M),
    "normaliser": lambda: _piece("φ(q)·Z", m),
    "quadratic normaliser": lambda: _piece("φ(q)·Z", feature_cost("poly:degree=2").features),
    "chunked": chunked,
    "chunked training": lambda: chunked(train=True),
    "recurrent": recurrent,
    "delta rule": delta_recurrent,
    "delta rule chunked": delta_chunked,
    "delta rule decoding": delta_decoding,
    "multi-head attention": lambda: multi_head(h),
    "grouped attention": multi_head,
    "multi-query attention": lambda: multi_head(1),
    "multi-head decoding": lambda: decoding(h),
    "grouped decoding": decoding,
    "multi-query decoding": lambda: decoding(1),
    "linear decoding": lambda: linear_decoding(None, h),
    "multi-head decoding n steps": lambda: decoding(h, steps=True),
    "multi-query decoding n steps": lambda: decoding(1, steps=True),
    "linear decoding n steps": lambda: linear_decoding(None, h, steps=True),
}
_WITH_MAP: dict[str, Callable[[str], Cost]] = {
    "linear": linear,
    "chunked": chunked,
    "recurrent": recurrent,
    "features": _features,
}
