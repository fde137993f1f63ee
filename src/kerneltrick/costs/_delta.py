"""The costs of the delta rule with a decay per token: by tokens, by chunks, and decoding.

All counts are for the gated rule S ← a S + k (β(v − (a S)ᵀk))ᵀ, o = Sᵀq with q scaled, for one head
with queries and keys of width D, values of width M and chunks of C tokens.
"""

from __future__ import annotations

from kerneltrick.costs._cost import Cost, W
from kerneltrick.costs._decoding import _IDENTITIES, _RELATIONS, _all_steps, b, d, g, h, k
from kerneltrick.costs._polynomial import Polynomial, symbols

n, D, M, C = symbols("n D M C")


def delta_recurrent() -> Cost:
    """The cost of the delta rule token by token: 4·n·D·M + n·M.

    Decaying the state, reading it by k, writing into it and reading it by q take D·M each.

    >>> print(delta_recurrent().multiply_adds)
    4·n·D·M + n·M
    """
    # Scaling q; the difference v − Sᵀk; the exponential of the log-decay.
    elementwise = n * (D + M + 1)
    moved = 2 * n * (D + M + 1) + 2 * n * D * M
    parts = {name: n * part for name, part in _token(D, M).items()}
    return Cost("delta rule, by tokens", parts, elementwise, W * moved, W * D * M)


def delta_chunked() -> Cost:
    """The cost of the delta rule in chunks: 3·n·D·M for the state, n·C·(D+M) inside chunks.

    Inside a chunk, the corrections U solve a triangular system. Only the triangles are counted, as
    the compiled core computes them. n is rounded up to a multiple of C.
    """
    below, lower = n * (C - 1) / 2, n * (C + 1) / 2  # pairs j < i and j ≤ i
    parts = {
        "KKᵀ": below * D,
        "QKᵀ": lower * D,
        "K·S": n * D * M,
        "solve for U": below * M,
        "Q·S": n * D * M,
        "weights·U": lower * M,
        "KᵀU into state": n * D * M,
        # β and the decay of KKᵀ, the decay of QKᵀ; those of K·S and Q·S, and β; K leaving; S.
        "decays and β": 3 * below + 3 * n * M + n * D + n / C * D * M,
    }
    # Scaling q; v − K·S; cumulated log-decays; their differences and exponentials.
    elementwise = n * D + n * M + n + 2 * below + 3 * n
    moved = 2 * n * (D + M + 1) + 2 * n / C * D * M
    memory = D * M + 2 * C**2 + C * (2 * D + M)
    return Cost(
        "delta rule, by chunks",
        parts,
        elementwise,
        W * moved,
        W * memory,
        constants=("w", "C"),
        whole_chunks=True,
    )


def delta_decoding(*, steps: bool = False) -> Cost:
    """The cost of one step of the delta rule: h value heads, g query and key heads, and no n.

    The state has h·k·M numbers for each sequence; a step reads and writes it. With `steps`, the
    costs of n steps are added.
    """
    step = {name: b * h * part for name, part in _token(k, M).items()}
    parts = {
        "q, k": 2 * b * d * g * k,
        "v": b * d * h * M,
        "β, decay": 2 * b * d * h,
        **step,
        "output": b * h * M * d,
    }
    elementwise = b * g * k + b * h * (M + 1)
    state = b * h * k * M
    weights = 2 * d * g * k + 2 * d * h * M + 2 * d * h
    activations = 2 * b * d + 2 * b * (2 * g * k + 2 * h * M + 2 * h)
    cost = Cost(
        "delta rule decoding",
        parts,
        elementwise,
        W * (weights + activations + 2 * state),
        W * state,
        relations=_RELATIONS,
        identities=_IDENTITIES,
    )
    return _all_steps(cost) if steps else cost


def _token(width: Polynomial, values: Polynomial) -> dict[str, Polynomial]:
    """The multiply-adds of one token of one head."""
    return {
        "decay of S": width * values,
        "Sᵀk": width * values,
        "β(v − Sᵀk)": values,
        "k uᵀ into state": width * values,
        "Sᵀq": width * values,
    }
