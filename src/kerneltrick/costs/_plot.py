"""Draw multiply-adds against n (extra `plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kerneltrick import maps
from kerneltrick._pictures import BLUE, COLOURS, LINE, new_figure, picture_style
from kerneltrick.attention import Dial
from kerneltrick.costs._attention import near_tokens, softmax
from kerneltrick.costs._summary import Sizes, full_cost, paper_crossover

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = [2**p for p in range(5, 18)]


def figure(
    sizes: Sizes,
    feature_maps: Sequence[maps.MapLike | Dial] = ("elu",),
    measured: Mapping[str, Mapping[str, Any]] | None = None,
) -> Figure:
    """Draw the multiply-adds of softmax and linear attention against n, and measured times.

    `measured` has a dictionary for the text of each map, with the keys `lengths`, `linear_ms`,
    `softmax_ms`, `baseline` (the name of the softmax that was timed) and `crossover`.
    """
    with picture_style():
        drawn = new_figure(9.6 if measured else 5.4, 3.8)
        axes = drawn.subplots(1, 2 if measured else 1, squeeze=False)[0]
        for ax in axes:
            ax.set(xscale="log", yscale="log", xlabel="n")
        _paper(axes[0], sizes, feature_maps)
        if measured:
            _times(axes[1], measured)
        for ax in axes:
            ax.grid(color=LINE)
            ax.legend()
    return drawn


def _paper(ax: Any, sizes: Sizes, feature_maps: Sequence[maps.MapLike | Dial]) -> None:
    values = sizes.symbols()

    def draw(cost: Any, colour: str, label: str, first: int = 1) -> None:
        lengths = [n for n in LENGTHS if n >= first]
        counts = [float(cost.at(**{**values, "n": n}).multiply_adds) for n in lengths]
        ax.plot(lengths, counts, color=colour, label=label)

    draw(softmax(), BLUE, "softmax")
    for feature_map, colour in zip(feature_maps, COLOURS[1:] * len(feature_maps), strict=False):
        dial = Dial.get(feature_map)
        # Windows are counted for n ≥ window + sinks.
        draw(full_cost(dial, sizes), colour, str(dial), near_tokens(dial, sizes.groups))
        cross = paper_crossover(sizes, dial)
        if cross is not None and LENGTHS[0] <= cross <= LENGTHS[-1]:
            ax.axvline(cross, color=colour, linestyle=":", linewidth=1)
            ax.annotate(
                f" n = {cross}",
                (cross, 0.02),
                xycoords=("data", "axes fraction"),
                color=colour,
                fontsize=8,
            )
    ax.set_title(f"multiply-adds, d = {sizes.d}, values {sizes.value_width}")


def _times(ax: Any, measured: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.ticker import NullLocator

    first = next(iter(measured.values()))
    ax.plot(first["lengths"], first["softmax_ms"], "o-", color=BLUE, label=first["baseline"])
    for (name, found), colour in zip(measured.items(), COLOURS[1:] * len(measured), strict=False):
        ax.plot(found["lengths"], found["linear_ms"], "o-", color=colour, label=name)
        if found["crossover"] is not None:
            ax.axvline(found["crossover"], color=colour, linestyle=":", linewidth=1)
    ax.set_xticks(first["lengths"], [str(n) for n in first["lengths"]])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title("milliseconds of one head, measured here")
