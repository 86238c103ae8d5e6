"""The style of all charts that matplotlib draws, and how they get into a page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN = 10.0
DPI = 144  # of pixel graphics: twice a screen's 72 points

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9,
    "figure.labelsize": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": DPI,
    "text.parse_math": False,  # names may contain dollar signs
    "svg.fonttype": "path",  # text that looks the same everywhere
    "svg.hashsalt": "carma",  # reproducible output
}


def image(figure: Figure) -> str:
    """An SVG as a data URI: self-contained, and its ids do not clash with other charts'."""
    written = BytesIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(written.getvalue()).decode()


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Above the chart, in rows of as many as fit."""
    longest = max(map(len, labels))
    columns = max(1, min(len(labels), int(110 / (longest + 7))))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)
