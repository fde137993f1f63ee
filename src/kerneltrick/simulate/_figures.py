"""Draw the simulations with matplotlib (extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kerneltrick._pictures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    log_axes,
    new_figure,
    picture_style,
    plain_numbers,
)
from kerneltrick.simulate._features import KINDS, FeatureErrors
from kerneltrick.simulate._moments import Moments
from kerneltrick.simulate._representer import Representer
from kerneltrick.simulate._scaling import Scaling
from kerneltrick.simulate._svm import SVMAndAttention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def moments_figure(found: Moments) -> Figure:
    """Draw Var[q·k] and Var[q·k/√d] against d: dots are measured, lines are theory."""
    d = [row.d for row in found.rows]
    with picture_style():
        figure = new_figure(5.4, 3.4)
        axes = figure.subplots()
        log_axes(axes, "width d", "variance")
        plain_numbers(axes.xaxis, d)
        for colour, name, measured, theory in (
            (
                ORANGE,
                "q·k",
                [row.variance for row in found.rows],
                [row.theory_variance for row in found.rows],
            ),
            (
                BLUE,
                "q·k/√d",
                [row.scaled_variance for row in found.rows],
                [row.theory_scaled_variance for row in found.rows],
            ),
        ):
            axes.plot(d, theory, color=colour, lw=1.2)
            axes.plot(d, measured, "o", color=colour, ms=4.5)
            axes.annotate(
                name,
                (d[-1], theory[-1]),
                (-16, 4),
                textcoords="offset points",
                ha="right",
                color=colour,
            )
        axes.set_title(
            f"q, k of d coordinates N({found.mu:g}, {found.sigma**2:g}): dots {found.draws:,} "
            f"draws, lines theory"
        )
    return figure


def scaling_figure(found: Scaling) -> Figure:
    """Draw the entropy of softmax and the trace of its gradient, with and without 1/√d."""
    d = [row.d for row in found.rows]
    with picture_style():
        figure = new_figure(8.6, 3.3)
        left, right = figure.subplots(1, 2)
        for axes in (left, right):
            log_axes(axes, "width d", "")
            plain_numbers(axes.xaxis, d)
            axes.set_yscale("linear")
        fine = np.geomspace(d[0], d[-1], 200)
        entropy = np.maximum(math.log(found.n) - fine / 2, 0)
        left.plot(fine, entropy, color=ORANGE, lw=1, ls="--")
        left.plot(d, [row.theory_scaled for row in found.rows], color=BLUE, lw=1, ls="--")
        left.axhline(math.log(found.n), color=FAINT, lw=0.8, ls=":")
        left.annotate(
            "uniform weights, log n",
            (d[-1], math.log(found.n)),
            (0, 3),
            textcoords="offset points",
            ha="right",
            color=FAINT,
        )
        for colour, name, rows in (
            (BLUE, "with 1/√d", [row.scaled for row in found.rows]),
            (ORANGE, "without", [row.plain for row in found.rows]),
        ):
            left.plot(d, [row.entropy for row in rows], "o-", color=colour, ms=4, lw=1.2)
            right.plot(
                d, [row.gradient for row in rows], "o-", color=colour, ms=4, lw=1.2, label=name
            )
        left.set_title(f"entropy of the weights over n = {found.n} keys, nats")
        right.set_title("trace of ∂softmax/∂scores, 1 − Σp²")
        left.set_ylim(bottom=0)
        right.set_ylim(0, 1.05)
        right.legend(loc="center left")
    return figure


def features_figure(found: Sequence[FeatureErrors]) -> Figure:
    """Draw errors against m: the kernel with its theory, and the weights with ELU+1."""
    first = found[0]
    colours = dict(zip(KINDS, (BLUE, GREEN, ORANGE), strict=True))
    with picture_style():
        figure = new_figure(2.9 * (1 + len(found)) + 0.6, 3.4)
        left, *others = figure.subplots(1, 1 + len(found))
        counts = sorted({row.m for row in first.rows})
        log_axes(left, "features m", "relative error")
        plain_numbers(left.xaxis, counts)
        plain_numbers(left.yaxis)
        for kind in KINDS:
            rows = [row for row in first.rows if row.kind == kind]
            left.plot(counts, [row.theory for row in rows], color=colours[kind], lw=1.2)
            left.plot(
                counts, [row.kernel for row in rows], "o", color=colours[kind], ms=4, label=kind
            )
        left.legend(title="dots measured, lines theory", title_fontsize=8, loc="lower left")
        left.set_title(f"kernel φ(q)·φ(k), size {first.size:g}")
        for axes, errors in zip(others, found, strict=True):
            _weights_error(axes, errors)
    return figure


def _weights_error(axes: Axes, errors: FeatureErrors) -> None:
    rows = [row for row in errors.rows if row.kind == "positive"]
    counts = [row.m for row in rows]
    log_axes(axes, "features m", "")
    plain_numbers(axes.xaxis, counts)
    plain_numbers(axes.yaxis)
    limit = [row.theory_weights or math.nan for row in rows]
    measured = [row.weights for row in rows]
    low, high = min(*measured, errors.elu) / 1.6, max(*measured, errors.uniform) * 1.6
    if min(limit) < high:
        axes.plot(counts, limit, color=BLUE, lw=1, ls="--", label="limit for large m")
    axes.plot(counts, measured, "o-", color=BLUE, ms=4, lw=1.2, label="FAVOR+, positive")
    axes.axhline(errors.elu, color=PURPLE, lw=1.3, label=f"ELU+1, {errors.d} features")
    axes.axhline(errors.uniform, color=FAINT, lw=0.9, ls=":", label="uniform weights")
    axes.set_ylim(low, high)
    axes.set_title(f"weights ‖A − S‖/‖S‖, size {errors.size:g}, d = {errors.d}")
    axes.legend(loc="lower left")


def representer_figure(found: Representer) -> Figure:
    """Draw the functions of the descent, its path among ridge solutions, and its distance."""
    with picture_style():
        figure = new_figure(10.4, 3.3)
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
        shown = range(1, len(found.rows))
        shades = np.linspace(0.75, 0.0, max(len(shown), 1))
        left.plot(found.grid, found.truth, color=FAINT, lw=0.9, ls=":", label="truth")
        for row, shade in zip(shown, shades, strict=True):
            left.plot(found.grid, found.values[row], color=_mix(BLUE, float(shade)), lw=1)
        left.plot(found.grid, found.ridge_values, color=ORANGE, lw=1.6, ls="--", label="ridge")
        left.plot(found.x, found.y, "o", color=INK, ms=3.5)
        steps = ", ".join(str(found.rows[row].step) for row in shown)
        left.set_title(f"f after {steps} steps", wrap=True)
        left.set(xlabel="x")
        left.legend(loc="lower right")

        middle.set(xscale="linear", yscale="log", xlabel="norm ‖f‖")
        middle.grid(axis="y")
        plain_numbers(middle.yaxis)
        inside = [p for p in found.ridge_path if p.norm <= 1.6 * found.ridge.norm]
        middle.plot(
            [p.norm for p in inside],
            [p.loss for p in inside],
            color=FAINT,
            lw=1,
            label="ridge, every λ",
        )
        middle.plot(
            [row.norm for row in found.rows],
            [row.loss for row in found.rows],
            "o-",
            color=BLUE,
            ms=4,
            lw=1.2,
            label="descent",
        )
        middle.plot(
            found.ridge.norm,
            found.ridge.loss,
            "*",
            color=ORANGE,
            ms=11,
            label=f"ridge, λ = {found.mean_penalty:g}",
        )
        middle.set_title("mean squared loss")
        middle.legend(loc="upper right")

        rows = [row for row in found.rows if row.step > 0]
        steps_shown = [row.step for row in rows]
        log_axes(right, "step", "")
        plain_numbers(right.xaxis, steps_shown)
        right.plot(
            steps_shown,
            [row.bound for row in rows],
            color=FAINT,
            lw=1,
            ls="--",
            label="bound √(gap/λ)",
        )
        right.plot(
            steps_shown,
            [row.distance for row in rows],
            "o-",
            color=BLUE,
            ms=4,
            lw=1.2,
            label="‖f − f*‖",
        )
        right.set_title("distance to the ridge solution")
        right.legend(loc="lower left")
    return figure


def svm_figure(found: SVMAndAttention) -> Figure:
    """Draw the boundaries of the SVM and of attention, and the multiplier of each point."""
    with picture_style():
        figure = new_figure(10.4, 3.3)
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 1.15, 1))
        svm, attention = found.machines
        for axes, values, title, levels in (
            (left, found.svm_grid, f"SVM, {svm.accuracy:.1%} right", (-1, 0, 1)),
            (middle, found.attention_grid, f"attention, {attention.accuracy:.1%} right", (0,)),
        ):
            top = 1.0 if axes is middle else 2.0
            bands = np.linspace(-top, top, 17)
            axes.contourf(
                found.grid_x, found.grid_y, values, bands, cmap=_diverging(), extend="both"
            )
            axes.contour(
                found.grid_x,
                found.grid_y,
                values,
                levels,
                colors=INK,
                linewidths=[1.4 if level == 0 else 0.7 for level in levels],
                linestyles=["-" if level == 0 else "--" for level in levels],
            )
            for label, colour in ((1.0, BLUE), (-1.0, ORANGE)):
                points = found.x[found.y == label]
                axes.plot(*points.T, "o", color=colour, ms=2.6, mec="white", mew=0.3)
            axes.set(title=title, xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        chosen = found.x[found.coefficients != 0]
        left.plot(*chosen.T, "o", mfc="none", mec=INK, ms=5.5, mew=0.7)
        left.set_xlabel(f"circled: {svm.carriers} support vectors of {found.n} points")
        middle.set_xlabel(f"all {found.n} points are keys, their labels the values")

        sizes = np.sort(np.abs(found.coefficients))[::-1]
        right.step(
            np.arange(1, found.n + 1),
            sizes,
            where="mid",
            color=BLUE,
            lw=1.4,
            label="SVM: |α|, learned, ≤ C",
        )
        right.axhline(1, color=ORANGE, lw=1.4, ls="--", label="attention: |label|, given")
        right.set(xlabel="points, sorted", ylim=(-0.03, 1.35 * max(1.0, float(sizes[0]))))
        right.set_title("what a point's kernel is multiplied by")
        right.legend(loc="upper right")
    return figure


def _mix(colour: str, white: float) -> tuple[float, ...]:
    """A colour mixed with white."""
    from matplotlib.colors import to_rgb

    return tuple(white + (1 - white) * part for part in to_rgb(colour))


def _diverging() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    ends = (_mix(ORANGE, 0.35), (0.98, 0.98, 0.97), _mix(BLUE, 0.35))
    return LinearSegmentedColormap.from_list("kerneltrick-classes", ends)
