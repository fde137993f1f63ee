"""The cost of decoding one token for each of b sequences, with a growing cache or a fixed state.

The model has width d, h query heads and g key/value heads (g = h is multi-head, g = 1 multi-query).
Each head has keys of width k = d/h and values of width v, and n tokens are cached. Weights, cache
and state are read from memory once per step; the scores of a step stay on the chip.
"""

from __future__ import annotations

import dataclasses

from kerneltrick import maps
from kerneltrick.costs._attention import _NO_PHI
from kerneltrick.costs._cost import Cost, W
from kerneltrick.costs._features import feature_cost
from kerneltrick.costs._polynomial import Like, Polynomial, symbols

b, n, d, h, g, k, v, M = symbols("b n d h g k v M")
_IDENTITIES = {"k": d / h, "v": d / h, "M": d / h}
_RELATIONS = (("g", "h"), ("h", "d"), ("k", "d"))


def decoding(kv_heads: Like | None = None, *, steps: bool = False) -> Cost:
    """The cost of one step of softmax attention with a cache: b(2d² + 2d·g·k + 2n·d) for v = k.

    `kv_heads` is g; with None it remains a symbol. n includes the new token. With `steps`, the
    costs of all steps that generate n tokens are added.

    >>> from kerneltrick import costs
    >>> d, h = costs.symbols("d h")
    >>> print(costs.decoding(kv_heads=1).subs(k=d / h, v=d / h).order("moved"))
    b·n·d/h + b·d + d²
    """
    parts = {**_projected(), "qKᵀ": b * n * h * k, "weights·V": b * n * h * v}
    # Scale of q; row maximum, difference, exp, sum; division of the output.
    elementwise = b * h * (k + 4 * n + v)
    moved = _weights() + _activations() + b * n * g * (k + v)
    cost = Cost(
        "decoding with a cache",
        parts,
        elementwise,
        W * moved,
        W * b * n * g * (k + v),
        relations=_RELATIONS,
        identities=_IDENTITIES,
    )
    if kv_heads is not None:
        cost = cost.subs(g=kv_heads)
        kind = "multi-query" if kv_heads == 1 else "multi-head" if kv_heads == h else "grouped"
        cost = dataclasses.replace(cost, name=f"{kind} decoding")
    return _all_steps(cost) if steps else cost


def linear_decoding(
    feature_map: maps.MapLike | None = None,
    kv_heads: Like | None = None,
    *,
    steps: bool = False,
    width: int | None = None,
) -> Cost:
    """The cost of one step of linear attention, with a state of g·m·(M+1) numbers and no n.

    With `steps`, the costs of n steps are added. `width` is needed for a callable map.
    """
    phi = _NO_PHI if feature_map is None else feature_cost(feature_map, width)
    f, products, other = (x.subs(D=k) for x in (phi.features, phi.products, phi.elementwise))
    parts = {
        **_projected(M),
        "φ": b * (h + g) * products,
        "φ(k)vᵀ into state": b * g * f * (M + 1),
        "φ(q)·state": b * h * f * (M + 1),
    }
    elementwise = b * (h + g) * other + b * h * M
    state = b * g * f * (M + 1)
    moved = _weights(M) + _activations(M) + 2 * state
    name = "linear decoding" + ("" if feature_map is None else f", {maps.get(feature_map)}")
    cost = Cost(
        name,
        parts,
        elementwise,
        W * moved,
        W * state,
        relations=_RELATIONS,
        identities=_IDENTITIES,
    )
    if kv_heads is not None:
        cost = cost.subs(g=kv_heads)
    return _all_steps(cost) if steps else cost


def multi_head(kv_heads: Like | None = None) -> Cost:
    """The cost of attention over n tokens with h heads, including projections.

    Sharing keys between heads does not save any scores.
    """
    parts = {
        **{name: n * part / b for name, part in _projected().items()},
        "QKᵀ": n**2 * h * k,
        "weights·V": n**2 * h * v,
    }
    elementwise = n * h * (k + 4 * n + v)
    # Each product reads its arguments and writes its result.
    moved = _weights() + n * (4 * d + 2 * h * (k + v) + 2 * g * (k + v)) + 4 * h * n**2
    cost = Cost(
        "multi-head attention",
        parts,
        elementwise,
        W * moved,
        W * h * n**2,
        relations=_RELATIONS,
        identities=_IDENTITIES,
    )
    return cost if kv_heads is None else cost.subs(g=kv_heads)


def _projected(width: Polynomial = v) -> dict[str, Polynomial]:
    return {
        "q": b * d * h * k,
        "k, v": b * d * g * (k + width),
        "output": b * h * width * d,
    }


def _weights(width: Polynomial = v) -> Polynomial:
    return d * h * k + d * g * (k + width) + h * width * d


def _activations(width: Polynomial = v) -> Polynomial:
    """x is read and y written; q, the new k and v, and the heads' outputs are written and read."""
    return 2 * b * d + 2 * b * (h * (k + width) + g * (k + width))


def _all_steps(cost: Cost) -> Cost:
    """The sum over the steps t = 1…n. The memory is that of the last step."""
    return dataclasses.replace(
        cost,
        name=f"{cost.name}, n steps",
        parts={name: part.total("n") for name, part in cost.parts.items()},
        elementwise=cost.elementwise.total("n"),
        moved=cost.moved.total("n"),
    )
