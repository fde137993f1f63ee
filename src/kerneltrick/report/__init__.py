"""Self-contained HTML reports, and their charts as figures for papers."""

from kerneltrick.report._figures import (
    error_figure,
    figures,
    pareto_figure,
    timing_figure,
    weights_figure,
)
from kerneltrick.report._html import (
    render_evaluation,
    render_explore,
    render_html,
    render_inspection,
    render_recall,
    save_html,
)

__all__ = [
    "error_figure",
    "figures",
    "pareto_figure",
    "render_evaluation",
    "render_explore",
    "render_html",
    "render_inspection",
    "render_recall",
    "save_html",
    "timing_figure",
    "weights_figure",
]
