"""What kind of memory a layer is, in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from kerneltrick.analysis import mean
from kerneltrick.inspection._measures import KINDS, HeadMeasures

MEANINGS = {
    "associative": "finds tokens by what they are, not by how far they are",
    "recency": "weights tokens by their distance alone, whatever they are",
    "local": "looks at the last few tokens only",
    "unused": "passes each token on by itself; its memory is hardly used",
}


def kind_of(heads: Sequence[HeadMeasures]) -> str:
    """The kind of most heads."""
    counts = Counter(head.memory for head in heads)
    return max(KINDS, key=lambda kind: (counts[kind], -KINDS.index(kind)))


def told(operator: str, heads: Sequence[HeadMeasures]) -> str:
    """A paragraph about the memory of a layer."""
    kind = kind_of(heads)
    counts = Counter(head.memory for head in heads)
    reach = [mean([getattr(head, name) for head in heads]) for name in ("reach", "reach_most")]
    if len(heads) == 1:
        who = f"This layer ({operator}) {MEANINGS[kind]}."
    elif counts[kind] == len(heads):
        who = f"All {len(heads)} heads ({operator}) are {kind}: the layer {MEANINGS[kind]}."
    else:
        rest = ", ".join(f"{counts[x]} {x}" for x in KINDS if x != kind and counts[x])
        twice = 2 * counts[kind]
        part = "part" if twice < len(heads) else "half" if twice == len(heads) else "most"
        who = (
            f"{counts[kind]} of {len(heads)} heads ({operator}) are {kind}, and {rest}: {part} of "
            f"the layer {MEANINGS[kind]}."
        )
    parts = [
        who,
        f"Half of the weight lies on the last {reach[0]:.0f} tokens, 90 % on {reach[1]:.0f}.",
    ]
    parts += _state(heads)
    return " ".join(parts)


def _state(heads: Sequence[HeadMeasures]) -> list[str]:
    """Sentences about the state, if the layer has one."""
    found = []
    life = [head.half_life for head in heads if math.isfinite(head.half_life)]
    if life:
        low, high = (_count(x) for x in (min(life), max(life)))
        span = f"{low} tokens" if low == high else f"{low} to {high} tokens"
        found.append(f"Its state decays to half in {span}.")
    beta = mean([head.beta for head in heads])
    replaced = mean([head.replaced for head in heads])
    if not math.isnan(replaced):
        strength = "" if math.isnan(beta) else f" with β = {beta:.2f}"
        found.append(f"A token writes{strength} and takes out {replaced:.0%} of the state.")
    negative = mean([head.negative for head in heads])
    if negative >= 0.005:
        found.append(f"{negative:.0%} of the weight is negative.")
    rank = mean([head.rank for head in heads])
    if not math.isnan(rank):
        found.append(f"The state uses {rank:.1f} directions.")
    agreement = mean([head.agreement for head in heads])
    if not math.isnan(agreement):
        found.append(
            f"{agreement:.0%} of its weight lies where a softmax head of the model has it."
        )
    return found


def _count(x: float) -> str:
    return f"{x:.1f}" if x < 10 else f"{x:,.0f}"
