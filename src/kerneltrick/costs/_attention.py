"""The costs of attention over n tokens: softmax, linear and chunked, forward and training.

All counts are for one head with queries and keys of width D, values of width M, m features, chunks
of C tokens and tiles of B×B scores. Linear attention stores its normaliser as an additional column
of the values, as the engines do, so its state has m·(M+1) numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from kerneltrick import maps
from kerneltrick.attention import Dial
from kerneltrick.costs._cost import Cost, W
from kerneltrick.costs._features import FeatureCost, feature_cost
from kerneltrick.costs._polynomial import Polynomial, symbols

n, D, M, m, F, C, B = symbols("n D M m F C B")
_NO_PHI = FeatureCost(m, Polynomial(), Polynomial(), Polynomial())


def projections() -> Cost:
    """The cost of Q = xW_Q, K = xW_K, V = xW_V: n·F·(2D+M) for inputs of width F."""
    parts = {"Q": n * F * D, "K": n * F * D, "V": n * F * M}
    moved = 3 * n * F + F * (2 * D + M) + n * (2 * D + M)
    return Cost("projections", parts, Polynomial(), W * moved, Polynomial())


def softmax(*, streamed: bool = False, train: bool = False) -> Cost:
    """The cost of softmax(QKᵀ/√D)V: n²(D+M), with n×n weights in memory or in tiles of B×B.

    In training, each product costs two more of the same size, and the weights are kept. With
    `streamed`, the backward pass computes the scores again (FlashAttention): n²(4D+3M) in all.
    """
    # Scaling q; row maximum, difference, exp and sum; dividing the output.
    elementwise = n * D + 4 * n**2 + n * M
    if not streamed:
        parts = {"QKᵀ": n**2 * D, "weights·V": n**2 * M}
        moved = 4 * n**2 + 2 * n * (D + M)
        if train:
            parts = {
                **parts,
                "dV, dweights": 2 * n**2 * M,
                "dQ, dK": 2 * n**2 * D,
            }
            moved = moved + 7 * n**2 + 4 * n * (D + M)
        name = "softmax, weights formed"
        return Cost(_named(name, train), parts, elementwise, W * moved, W * n**2)
    parts = {"QKᵀ": n**2 * D, "weights·V": n**2 * M}
    # Each of the n/B blocks of queries reads all keys and values.
    moved = n * (D + M) + n**2 / B * (D + M)
    memory = 2 * n + B**2  # row maximum and sum; one tile
    if train:
        parts = {
            **parts,
            "QKᵀ again": n**2 * D,
            "dV, dweights": 2 * n**2 * M,
            "dQ, dK": 2 * n**2 * D,
        }
        # Each block of keys reads all queries, output gradients and row statistics, and updates dQ.
        # The row sums of O∘dO are computed before; the forward pass writes one statistic per row.
        moved = moved + 2 * n * (D + M) + n**2 / B * (3 * D + M + 2) + 2 * n * M + 2 * n
    constants = ("w", "B")
    name = "softmax, streamed"
    return Cost(_named(name, train), parts, elementwise, W * moved, W * memory, constants=constants)


def linear(
    feature_map: maps.MapLike | None = None, *, train: bool = False, d: int | None = None
) -> Cost:
    """The cost of full linear attention: 2·n·m·M + 2·n·m, and that of φ.

    The steps are U = φ(K)ᵀV and Z, then φ(Q)U and φ(Q)Z. Without a map, m remains a symbol and φ is
    not counted. `d` is needed for a callable map.
    """
    phi = _phi(feature_map, d)
    state = phi.features * (M + 1)
    parts = {"φ": 2 * n * phi.products, "U": n * phi.features * M, "Z": n * phi.features}
    parts |= {"φ(Q)U": n * phi.features * M, "φ(Q)Z": n * phi.features}
    elementwise = 2 * n * phi.elementwise + n * M
    moved = 2 * n * (D + M) + 2 * state  # one pass over keys and values, one over queries
    memory = state
    if train:
        parts = _backward(parts, phi)
        # dQ and the state's gradient from one pass over Q, O and dO, then dK and dV from another;
        # the normalisers are kept.
        moved = moved + n * (2 * D + 2 * M) + 2 * state + n * (2 * D + 2 * M) + state + 2 * n
        memory = 2 * state + n
    return Cost(
        _named(_title("linear", feature_map), train), parts, elementwise, W * moved, W * memory
    )


def chunked(
    feature_map: maps.MapLike | None = None, *, train: bool = False, d: int | None = None
) -> Cost:
    """The cost of causal linear attention in chunks of C tokens.

    C×C weights inside the chunks cost n·C·(m+M+1), the state between chunks 2·n·m·(M+1), and φ is
    added. The last chunk is padded, so n is rounded up to a multiple of C.
    """
    phi = _phi(feature_map, d)
    f, width = phi.features, M + 1
    parts = {
        "φ": 2 * n * phi.products,
        "φ(Q)φ(K)ᵀ inside": n * C * f,
        "weights·V inside": n * C * width,
        "φ(Q)·state": n * f * width,
        "φ(K)ᵀV into state": n * f * width,
    }
    state = f * width
    # The mask; adding both parts; carrying the state to the next chunk; the division.
    elementwise = 2 * n * phi.elementwise + n * C + n * width + n / C * state + n * M
    moved = 2 * n * (D + M) + 2 * n / C * state
    memory = state + C * (2 * f + C + 2 * width)
    if train:
        parts = _backward(parts, phi)
        # The states at the chunk boundaries are kept, and a gradient of the state runs backward.
        moved = moved + 4 * n * (D + M) + 3 * n / C * state + 2 * n
        memory = memory + n / C * state + n
    name = _named(_title("linear, causal by chunks", feature_map), train)
    return Cost(
        name,
        parts,
        elementwise,
        W * moved,
        W * memory,
        constants=("w", "C"),
        whole_chunks=True,
    )


def windowed(
    setting: maps.MapLike | Dial, *, causal: bool = False, d: int | None = None, heads: int = 1
) -> Cost:
    """The cost of exact weights for near keys and a map for the others, for n ≥ window + sinks.

    It is O(n·(w(D+M) + m·M)). Causal attention has n·w − w(w−1)/2 near pairs, and
    t·(n−w) − t(t−1)/2 more for t sinks. The map is computed for the n − w − t tokens that leave the
    window and for the n − w − t rows that see them. In full attention the window has two sides, and
    the far sums take one forward and one backward sweep. For `softmax`, which has no features, only
    the window is counted; without a window it sees the whole text.

    Where heads differ, the counts are means over the key–value heads, of which there are `heads`.

    >>> print(windowed("softmax@window=16", causal=True).multiply_adds)
    16·n·D + 16·n·M - 120·D - 120·M
    >>> print(windowed("softmax@window=1,whole=0", causal=True, heads=2).multiply_adds)
    n²·D/4 + n²·M/4 + 3·n·D/4 + 3·n·M/4
    """
    dial = Dial.get(setting)
    groups = dial.groups(heads)
    name = f"{'causal' if causal else 'full'}, {dial}"
    costs = [_alike(name, group.dial, causal, d) for group in groups]
    if len(costs) == 1:
        return costs[0]
    shares = [Fraction(len(group.heads), heads) for group in groups]

    def mean(values: Sequence[Polynomial]) -> Polynomial:
        return sum((a * x for a, x in zip(shares, values, strict=True)), Polynomial())

    return Cost(
        name,
        {part: mean([cost.parts[part] for cost in costs]) for part in costs[0].parts},
        mean([cost.elementwise for cost in costs]),
        mean([cost.moved for cost in costs]),
        mean([cost.memory for cost in costs]),
        constants=("w", "B"),
    )


def _alike(name: str, dial: Dial, causal: bool, d: int | None) -> Cost:
    """`windowed` for heads that attend alike."""
    w, t = dial.alike("costs.windowed")
    phi = _phi(dial.feature_map, d)
    whole = not (dial.near or dial.feature_map.has_features)
    pairs, width = n**2 if whole else _near_pairs(w, t, causal), M + 1
    if whole and causal:
        pairs = n * (n + 1) / 2
    leaving = reading = n - w - t  # tokens that become far, and rows that see far tokens
    if not causal:
        # One sweep in each direction; without a window one sum serves all rows.
        leaving, reading = (leaving + n - w, reading + n - w) if w else (n - t, n)
    parts = {
        "near QKᵀ": pairs * D,
        "near weights·V": pairs * M,
        "φ": (leaving + reading) * phi.products,
        "φ(K)ᵀV into state": leaving * phi.features * width,
        "φ(Q)·state": reading * phi.features * width,
    }
    state = phi.features * width
    # Scaling q; maximum, difference, exp and sum of near scores; φ; near plus far; the division.
    elementwise = n * D + 4 * pairs + (leaving + reading) * phi.elementwise
    elementwise = elementwise + (0 if whole else reading * width) + n * M
    moved = 2 * n * (D + M) + 2 * state
    memory = state + (max(0, w - 1) + t) * (D + M)
    if whole:  # each of the n/B blocks of queries reads the keys that it sees
        moved = n * (D + M) + pairs / B * (D + M)
        memory = n * (D + M) if causal else 2 * n + B**2
    constants = ("w", "B") if whole else ("w",)
    return Cost(name, parts, elementwise, W * moved, W * memory, constants=constants)


def near_tokens(dial: Dial, heads: int) -> int:
    """The longest window with its sinks, among heads that do not see the whole text."""
    return max(sum(group.dial.alike("costs")) for group in dial.groups(heads))


def _near_pairs(w: int, t: int, causal: bool) -> Polynomial:
    """The number of pairs at a distance below w, and of pairs of the first t keys beyond it."""
    if not causal and t > w > 0:
        raise ValueError(f"costs are counted for at most window = {w} sinks, not {t}")
    half = n * w - w * (w - 1) // 2
    if causal:
        return half + t * (n - w) - t * (t - 1) // 2
    if not w:
        return t * n
    return 2 * half - n + t * (n - w) - t * (t - 1) // 2


def recurrent(feature_map: maps.MapLike | None = None, *, d: int | None = None) -> Cost:
    """The cost of causal linear attention token by token: n steps that read and write the state."""
    phi = _phi(feature_map, d)
    state = phi.features * (M + 1)
    parts = {
        "φ": 2 * n * phi.products,
        "φ(k)vᵀ into state": n * state,
        "φ(q)·state": n * state,
    }
    elementwise = 2 * n * phi.elementwise + n * M
    moved = 2 * n * (D + M) + 2 * n * state
    return Cost(
        _title("linear, causal by tokens", feature_map), parts, elementwise, W * moved, W * state
    )


def quadratic(*, train: bool = False) -> Cost:
    """The cost of linear attention with the exact map of (q·k+1)²: m = (D+1)(D+2)/2, O(n·D²·M)."""
    return linear("poly:degree=2", train=train)


def _phi(feature_map: maps.MapLike | None, d: int | None) -> FeatureCost:
    return _NO_PHI if feature_map is None else feature_cost(feature_map, d)


def _title(kind: str, feature_map: maps.MapLike | None) -> str:
    if feature_map is None:
        return kind
    found = maps.get(feature_map)
    unknown = " (φ not counted)" if isinstance(found, maps.Custom) else ""
    return f"{kind}, {found}{unknown}"


def _named(name: str, train: bool) -> str:
    return name + (", training" if train else "")


def _backward(parts: dict[str, Polynomial], phi: FeatureCost) -> dict[str, Polynomial]:
    """Add the backward pass: for each product, one of the same size for each of its factors."""
    back = {f"d {name}": 2 * part for name, part in parts.items()}
    return {**parts, **back, "d φ": 2 * n * phi.backward}
