"""The verdict on a linearised model: one sentence about its quality, its map and its speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kerneltrick._text import shown
from kerneltrick.hf._speed import Speed

WORSE = 1.5  # a model is not useful if its perplexity is more than this times the teacher's
ALIKE = 0.9  # an encoder is not useful if the mean cosine of its embeddings is below this
LITTLE = 0.05  # a map adds almost nothing if it recovers less than this of what the window loses


def verdict(figures: Mapping[str, Mapping[str, float]], speeds: Sequence[Speed] = ()) -> str:
    """Return the verdict on the row "hybrid".

    figures: the figures of each row, by the name of the row.
    speeds: the speeds of model and teacher, if they were measured.
    """
    alone = figures.get("window alone")
    if "perplexity" in figures["hybrid"]:
        before, after = (figures[name]["perplexity"] for name in ("teacher", "hybrid"))
        useful, found = after <= WORSE * before, f"perplexity {shown(before)} → {shown(after)}"
        losses = [math.log(x["perplexity"] / before) for x in (figures["hybrid"], alone) if x]
        beside = "" if alone is None else f"; {shown(alone['perplexity'])} with the window alone"
    else:
        cosine = figures["hybrid"]["cosine"]
        useful = cosine >= ALIKE
        found = f"the mean cosine of embeddings with the teacher's is {cosine:.3f}"
        losses = [1 - x["cosine"] for x in (figures["hybrid"], alone) if x]
        beside = "" if alone is None else f"; {alone['cosine']:.3f} with the window alone"
    every = figures.get("window for all heads")
    if every is not None:
        beside += f"; {shown(next(iter(every.values())))} with a window for all heads"
    slow = _slower(speeds)
    if not useful:
        return f"Keep softmax: {found}."
    if alone is not None and not losses[0] < losses[1]:
        headline = "The map adds nothing to the window"
    elif alone is not None and not losses[1] - losses[0] >= LITTLE * losses[1]:
        headline = "The map adds almost nothing to the window"
    else:
        headline = "Slower than the teacher" if slow else "Worth a look"
    return f"{headline}: {found}{beside}{slow}."


def _slower(speeds: Sequence[Speed]) -> str:
    """Return a clause if the model is slower than its teacher after the longest context."""
    longest = max((x.context for x in speeds), default=0)
    rates = {
        x.name: (x.prefill if x.decoding is None else x.decoding, x.decoding)
        for x in speeds
        if x.context == longest
    }
    if not rates or rates["hybrid"][0] >= rates["teacher"][0]:
        return ""
    verb = "reads" if rates["hybrid"][1] is None else "decodes"
    ours, theirs = (shown(rates[name][0]) for name in ("hybrid", "teacher"))
    return f"; after {longest:,} tokens, it {verb} {ours} tokens/s and the teacher {theirs}"
