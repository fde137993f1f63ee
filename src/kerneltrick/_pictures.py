"""The style of all pictures, and saving them (extra `plot`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerneltrick._files import AnyPath, regular_file, write
from kerneltrick._install import missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
INK, FAINT, LINE = "#17212b", "#66727d", "#e4e6e3"
BLUE, ORANGE, GREEN, PURPLE, RED, BROWN = COLOURS = (
    "#0b6a88", "#c2601f", "#5f7f2e", "#8a4c8f", "#a33b4a", "#7a6a4f",
)  # fmt: skip
_STYLE = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.labelcolor": INK, "text.color": INK,
    "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT, "legend.frameon": False,
    "legend.fontsize": 8, "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": LINE, "pdf.fonttype": 42, "svg.hashsalt": "kerneltrick",
}  # fmt: skip


def require_matplotlib() -> Any:
    """Return matplotlib, or raise an ImportError that names the extra."""
    try:
        import matplotlib
    except ImportError as error:
        raise missing("a picture needs matplotlib", "plot") from error
    return matplotlib


def picture_style() -> Any:
    """Return a context in which matplotlib uses our colours and sizes."""
    return require_matplotlib().rc_context(_STYLE)


def new_figure(width: float, height: float) -> Figure:
    require_matplotlib()
    from matplotlib.figure import Figure  # not pyplot, which has windows and global state

    return Figure(figsize=(width, height), layout="constrained")


def log_axes(axes: Axes, xlabel: str, ylabel: str) -> None:
    """Make both axes logarithmic, label them, and draw horizontal grid lines."""
    axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    axes.grid(axis="y", which="major")


def plain_numbers(axis: Axis, ticks: Sequence[float] | None = None) -> None:
    """Label a logarithmic axis with 1, 2, 5, 10, … or with about six of `ticks`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    few = None if ticks is None else ticks[:: max(1, -(-len(ticks) // 6))]
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if few is None else FixedLocator(few))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def picture_format(path: AnyPath) -> str:
    """Return png, svg or pdf by the file name; png for standard output, a device or a pipe."""
    suffix = Path(path).suffix.lower()
    if suffix in SUFFIXES:
        return suffix[1:]
    if regular_file(path) is None:
        return "png"
    raise ValueError(f"a picture must end in {', '.join(SUFFIXES)}, not {Path(path).name!r}")


def save_figure(figure: Figure, path: AnyPath, *, dpi: int = 144) -> None:
    """Write a .png, .svg or .pdf, whole or not at all; `-` means a .png on standard output."""
    kind = picture_format(path)
    # Without a date, equal numbers give equal files.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    drawn = io.BytesIO()  # some formats need to seek, which a pipe cannot
    with picture_style():  # fonts are also chosen while saving
        figure.savefig(drawn, format=kind, dpi=dpi, metadata=metadata)
    write(path, drawn.getvalue())
