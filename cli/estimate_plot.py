"""The memory of a traced job over two steps, as an image or in a self-contained page."""

from __future__ import annotations

from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from carmad.readable import clean
from cli.estimate_view import LOOKS, OTHER, parts_at
from cli.format import GIB, command, memory
from cli.vary import safe_mib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.figure import Figure

    from carmad.api.estimates import EstimateOut, ExplanationOut

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
  h2 {{ font-size: 1rem; }}
  img {{ max-width: 100%; }}
  table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
  td {{ padding: .1rem .8rem .1rem 0; }}
  .parts td + td + td {{ text-align: right; }}
  .sign {{ display: inline-block; width: 1em; height: 1em; }}
</style>
<h1>GPU memory of <code>{command}</code></h1>
<p>{summary}</p>
<img src="{drawing}" alt="GPU memory over two training steps, stacked by what it is for">
<table class="parts">
{rows}
</table>
<h2>Activations by module</h2>
<table>
{modules}
</table>
<h2>Activations by line</h2>
<table>
{lines}
</table>
<h2>What would help</h2>
<table>
{remedies}
</table>
<ul>
{notes}
</ul>
</html>
"""


def page(one: EstimateOut, found: ExplanationOut, argv: list[str]) -> str:
    """HTML without scripts or links; the drawing is in it. Needs matplotlib."""
    from matplotlib import rc_context

    from carmad.sim.report.style import RC
    from carmad.sim.report.style import image as embedded

    parts = {escape(clean(name)): (colour(name), mib) for name, mib in one["parts"].items()}
    total = one["mib"] or 1
    with rc_context(RC):
        source = embedded(_figure(one, found, argv))
    return PAGE.format(
        command=escape(command(argv)),
        summary=escape(summary(one)),
        drawing=source,
        rows="\n".join(
            f'<tr><td><span class="sign" style="background: {look}"></span></td>'
            f"<td>{name}</td><td>{memory(mib)}</td><td>{mib / total:.1%}</td></tr>"
            for name, (look, mib) in parts.items()
        ),
        modules=_table(
            (memory(held["mib"]), held["name"], f"{held['count']} × {held['kind']}")
            for held in found["modules"]
        ),
        lines=_table((memory(held["mib"]), held["name"]) for held in found["lines"]),
        remedies=_table(
            ("" if one["exact"] else "about ", "-" + memory(one["saved_mib"]), one["what"])
            for one in found["remedies"]
        ),
        notes="\n".join(f"<li>{escape(clean(note))}</li>" for note in one["notes"]),
    )


def _table(rows: Iterable[Iterable[str]]) -> str:
    return "\n".join(
        "<tr>" + "".join(f"<td>{escape(clean(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )


def image(one: EstimateOut, found: ExplanationOut, argv: list[str], form: str) -> bytes:
    """An SVG or a PNG, in the style of the simulator's charts. Needs matplotlib."""
    from matplotlib import rc_context

    from carmad.sim.report.style import RC

    written = BytesIO()
    with rc_context(RC):
        figure = _figure(one, found, argv)
        metadata = {"Date": None, "Creator": None} if form == "svg" else None
        figure.savefig(written, format=form, metadata=metadata)
    return written.getvalue()


def _figure(one: EstimateOut, found: ExplanationOut, argv: list[str]) -> Figure:
    """The memory in use over two steps, stacked by part, and what the allocator holds."""
    from matplotlib.figure import Figure

    from carmad.sim.report.style import WIDTH_IN, legend

    title = command(argv)
    stacks = [parts_at(moment, one["parts"].get("context", 0)) for moment in found["moments"]]
    names = [name for name in stacks[0] if any(stack[name] for stack in stacks)]
    figure = Figure(figsize=(WIDTH_IN, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.stackplot(
        range(len(stacks)),
        *([stack[name] / GIB for stack in stacks] for name in names),
        colors=[colour(name) for name in names],
        labels=[_label(name, one["parts"].get(name, 0)) for name in names],
        linewidth=0,
    )
    axes.axhline(safe_mib(one) / GIB, color="#555555", linestyle="--", linewidth=1)
    marks = [(at, each["mark"]) for at, each in enumerate(found["moments"]) if each["mark"]]
    axes.set_xticks([at for at, _ in marks], [f"end of {mark[:4]} {mark[4:]}" for _, mark in marks])
    axes.set_xlim(0, len(stacks) - 1)
    axes.set_ylim(0)
    axes.set_title(title if len(title) <= LONGEST else title[:LONGEST] + "…")
    axes.set_ylabel("GPU memory [GiB]")
    axes.set_xlabel(f"allocations: {summary(one)}; dashed: to be kept free")
    legend(figure, *axes.get_legend_handles_labels())
    return figure


def summary(one: EstimateOut) -> str:
    low, high = memory(one["low"]), memory(safe_mib(one))
    return f"{memory(one['mib'])} ({low} to {high}) by {clean(one['source'])}"


def colour(part: str) -> str:
    return LOOKS.get(part, OTHER)[1]


def _label(name: str, mib: int) -> str:
    return f"{clean(name)} {memory(mib)}"
