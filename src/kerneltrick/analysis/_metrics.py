"""What a metric is called, what it means and how it is averaged, stated once.

A metric is a field of `HeadMetrics` that is declared with `metric`. The declaration drives the
summary over heads, the JSON keys, the tables of the report and the reference documentation.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

Direction = Literal["lower", "higher", "none"]
Reduction = Literal["mean", "max", "min", "sum", "derived"]
Style = Literal["number", "percent", "times", "count"]


class Metric(NamedTuple):
    """The description of one metric."""

    name: str  # the key in JSON
    label: str  # the heading of its column; "" if the report does not show it
    title: str  # its name in running text
    formula: str
    meaning: str
    better: Direction  # which direction is better
    reduction: Reduction  # how heads are summarised; "derived" from other summaries
    style: Style  # how the report writes it


def metric(
    label: str,
    formula: str,
    meaning: str,
    better: Direction = "lower",
    *,
    title: str = "",
    reduction: Reduction = "mean",
    style: Style = "number",
) -> Any:
    """Declare a field of a dataclass as a metric."""
    values = {
        "label": label, "title": title or label, "formula": formula, "meaning": meaning,
        "better": better, "reduction": reduction, "style": style,
    }  # fmt: skip
    return dataclasses.field(metadata={"metric": values})


def metrics_of(kind: Any) -> dict[str, Metric]:
    """Return the metrics that a dataclass declares, by name, in their order."""
    return {
        field.name: Metric(field.name, **field.metadata["metric"])
        for field in dataclasses.fields(kind)
        if "metric" in field.metadata
    }


def documented(kind: Any) -> Any:
    """Add the table of metrics to the docstring of a dataclass."""
    lines = [
        f"- `{each.name}`: {each.formula}. {each.meaning}".rstrip()
        for each in metrics_of(kind).values()
    ]
    kind.__doc__ = f"{inspect.cleandoc(kind.__doc__ or '')}\n\n" + "\n".join(lines) + "\n"
    return kind


def reduced(how: Reduction, values: Sequence[Any]) -> Any:
    """Summarise the values of several heads."""
    reductions: dict[str, Callable[[Sequence[Any]], Any]] = {"max": max, "min": min, "sum": sum}
    if how in reductions:
        return reductions[how](values) if values else math.nan
    return mean(values)


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers; NaN if none is."""
    good = [x for x in values if not math.isnan(x)]
    return sum(good) / len(good) if good else math.nan
