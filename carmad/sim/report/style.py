"""The style of charts: colours, sizes, time axes, and embedding in a page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from carmad.readable import TimeUnit, time_unit

WIDTH_IN = 10.0
DPI = 144  # of pixel graphics: twice a screen's 72 points

# Okabe and Ito's colour-blind safe palette, without the yellow, which is too pale for lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")  # used when the colours repeat
BAD = "#B00020"  # attempts that ran out of memory

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

_ROUND = {
    1: "1 s",
    10: "10 s",
    60: "1 min",
    600: "10 min",
    3600: "1 h",
    21_600: "6 h",
    86_400: "1 day",
    864_000: "10 days",
    8_640_000: "100 days",
}


def colour(run: int) -> str:
    """The colour, in every chart, of the run with this index."""
    return _COLOURS[run % len(_COLOURS)]


def dash(run: int) -> str:
    return _DASHES[run // len(_COLOURS) % len(_DASHES)]


def image(figure: Figure) -> str:
    """An SVG as a data URI: self-contained, and its ids do not clash with other charts'."""
    written = BytesIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(written.getvalue()).decode()


def log_time_axis(axes: Axes, shortest_s: float, longest_s: float) -> None:
    """A logarithmic x axis in seconds, labelled in readable units."""
    axes.set_xscale("log")
    axes.set_xlim(shortest_s, longest_s)
    axes.xaxis.set_major_locator(FixedLocator(list(_ROUND)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: _ROUND.get(round(at), "")))


def time_axis(axes: Axes, end_s: float) -> TimeUnit:
    """A linear x axis from the first submission to `end_s`. Returns its unit."""
    unit = time_unit(end_s)
    axes.set_xlim(0, end_s / unit.seconds)
    return unit


def time_label(unit: TimeUnit) -> str:
    return f"time since the first submission [{unit.name}]"


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Above the chart, in rows of as many as fit."""
    longest = max(map(len, labels))
    columns = max(1, min(len(labels), int(110 / (longest + 7))))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)
