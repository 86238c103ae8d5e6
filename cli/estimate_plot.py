"""The breakdown of an estimate, as an image or as a self-contained page."""

from __future__ import annotations

from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from carmad.readable import clean
from cli.estimate_view import LOOKS, OTHER
from cli.format import GIB, command, memory
from cli.vary import safe_mib

if TYPE_CHECKING:
    from carmad.api.responses.estimates import EstimateOut

LONGEST = 110  # characters of a command that fit into an image

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>GPU memory of {command}</title>
<style>
  :root {{ color-scheme: light; }}
  body {{ font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
         max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
  h1 {{ font-size: 1.2rem; overflow-wrap: anywhere; }}
  .bar {{ display: flex; height: 2.5rem; }}
  table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
  td {{ padding: .1rem .8rem .1rem 0; }}
  td + td + td {{ text-align: right; }}
  .sign {{ display: inline-block; width: 1em; height: 1em; }}
</style>
<h1>GPU memory of <code>{command}</code></h1>
<p>{summary}</p>
<div class="bar">
{bar}
</div>
<table>
{rows}
</table>
<ul>
{notes}
</ul>
</html>
"""


def page(one: EstimateOut, argv: list[str]) -> str:
    """HTML without scripts, images or links."""
    parts = {escape(clean(name)): (colour(name), mib) for name, mib in one["parts"].items()}
    total = one["mib"] or 1
    return PAGE.format(
        command=escape(command(argv)),
        summary=escape(summary(one)),
        bar="\n".join(
            f'<div style="width: {mib / total:.2%}; background: {look}" title="{name}"></div>'
            for name, (look, mib) in parts.items()
        ),
        rows="\n".join(
            f'<tr><td><span class="sign" style="background: {look}"></span></td>'
            f"<td>{name}</td><td>{memory(mib)}</td><td>{mib / total:.1%}</td></tr>"
            for name, (look, mib) in parts.items()
        ),
        notes="\n".join(f"<li>{escape(clean(note))}</li>" for note in one["notes"]),
    )


def image(one: EstimateOut, argv: list[str]) -> bytes:
    """A PNG, in the style of the simulator's charts. Needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from carmad.sim.report.style import RC, WIDTH_IN, legend

    title = command(argv)
    written = BytesIO()
    with rc_context(RC):
        figure = Figure(figsize=(WIDTH_IN, 2.2), layout="constrained")
        axes = figure.subplots()
        start = 0.0
        for name, mib in one["parts"].items():
            axes.barh(0, mib / GIB, left=start, color=colour(name), label=_label(name, mib))
            start += mib / GIB
        axes.axvline(safe_mib(one) / GIB, color="#555555", linestyle="--", linewidth=1)
        axes.set_title(title if len(title) <= LONGEST else title[:LONGEST] + "…")
        axes.set_xlabel(f"GPU memory [GiB] — {summary(one)}; dashed: to be kept free")
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        legend(figure, *axes.get_legend_handles_labels())
        figure.savefig(written, format="png")
    return written.getvalue()


def summary(one: EstimateOut) -> str:
    low, high = memory(one["low"]), memory(safe_mib(one))
    return f"{memory(one['mib'])} ({low} to {high}) by {clean(one['source'])}"


def colour(part: str) -> str:
    return LOOKS.get(part, OTHER)[1]


def _label(name: str, mib: int) -> str:
    return f"{clean(name)} {memory(mib)}"
