"""What is measured of a head, stated once: the fields drive JSON, tables, page and reference."""

from __future__ import annotations

import dataclasses

from kerneltrick.analysis import documented, metric, metrics_of


@documented
@dataclasses.dataclass(frozen=True)
class HeadMeasures:
    """The measures of one head on one text; NaN where a measure has no meaning.

    Weights are those with which the head mixes its values, A_ij. Shares are of Σ_j |A_ij|. Means
    and medians are over the queries of the second half of the text, which have a past.
    """

    reach: float = metric(
        "reach",
        "median over i of the least r with Σ_{j > i−r} |A_ij| ≥ ½ Σ_j |A_ij|",
        "Tokens, counted back from the query, that hold half of the weight.",
        "none",
        title="reach of half the weight",
    )
    reach_most: float = metric(
        "90 %",
        "the same with 0.9 instead of ½",
        "Tokens, counted back from the query, that hold 90 % of the weight.",
        "none",
        title="reach of 90 % of the weight",
    )
    own: float = metric(
        "own",
        "mean over i of |A_ii| / Σ_j |A_ij|",
        "The share of the weight on the token itself. At 1 the memory is not used.",
        "none",
        title="own token",
        style="percent",
    )
    content: float = metric(
        "content",
        "mean over i of ½ Σ_j |a_ij − p_ij|, a = |A| with rows of sum 1, p its mean by distance",
        "The share of the weight that the distance of the tokens does not explain.",
        "none",
        style="percent",
    )
    negative: float = metric(
        "negative",
        "mean over i of Σ_{A_ij < 0} |A_ij| / Σ_j |A_ij|",
        "The share of negative weight. Softmax has none.",
        "none",
        style="percent",
    )
    half_life: float = metric(
        "half-life",
        "ln 2 / mean over tokens of −log decay, the median over features",
        "Tokens after which the state has decayed to half. ∞ without a decay.",
        "none",
    )
    beta: float = metric(
        "β",
        "mean over tokens of β",
        "The strength of writing of the delta rule. Above 1 a correction overshoots.",
        "none",
    )
    replaced: float = metric(
        "replaced",
        "mean over tokens of ‖β x eᵀDS‖ / ‖DS‖ (Frobenius)",
        "The share of the state that the correction of a token takes out.",
        "none",
        style="percent",
    )
    rank: float = metric(
        "rank",
        "mean over eight places of exp(−Σ p ln p), p = σ/Σσ of the singular values σ of the state",
        "Directions that the state uses along the text.",
        "none",
    )
    agreement: float = metric(
        "agreement",
        "largest over softmax heads s of mean over i of Σ_j min(a_ij, s_ij)",
        "How much of the weight is where a softmax head of the same model has it.",
        "none",
        style="percent",
    )

    @property
    def memory(self) -> str:
        """The kind of memory: unused, local, recency or associative."""
        if self.own >= UNUSED:
            return "unused"
        if self.reach_most <= LOCAL:
            return "local"
        return "associative" if self.content >= ASSOCIATIVE else "recency"


UNUSED = 0.9  # share of the weight on the token itself
LOCAL = 8  # tokens that hold 90 % of the weight
ASSOCIATIVE = 0.35  # share of the weight that distance does not explain
KINDS = ("associative", "recency", "local", "unused")
MEASURES = metrics_of(HeadMeasures)
