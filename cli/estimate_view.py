"""Renders the answers to `carma estimate`: with rich in a terminal, with matplotlib as an image or
in a self-contained page. Pure, like `cli.render`."""

from __future__ import annotations

import re
from bisect import bisect
from io import StringIO
from itertools import accumulate
from typing import TYPE_CHECKING

from carmad.readable import clean
from cli.estimation import choice
from cli.render import refusal
from cli.text import (
    NOTHING,
    Table,
    columns,
    command,
    draw,
    heading,
    in_style,
    memory,
    number,
    styled,
)
from cli.vary import PRECISION, bounds, safe_mib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from carmad.api.guesses import EstimateOut, EstimatesOut, FitOut
    from carmad.api.reasons import VerdictOut
    from carmad.explanation import ExplanationOut, MomentOut
    from cli.text import Block
    from cli.vary import Fit

BAR_WIDTH = 60
# Parts of memory: a sign, for terminals without colour, and a colour-blind safe colour (Okabe and
# Ito's).
LOOKS = {
    "parameters": ("█", "#0072B2"),
    "gradients": ("▓", "#56B4E9"),
    "optimizer": ("▒", "#CC79A7"),
    "activations": ("░", "#009E73"),
    "cached": ("=", "#D55E00"),
    "workspace": ("#", "#E69F00"),
    "context": ("·", "#999999"),
}
OTHER = ("?", "#000000")
MOST_HOLDERS = 5
PLOT_WIDTH, PLOT_HEIGHT = 100, 14
AXIS = 8  # columns to the left of a picture


def explainable(answer: EstimatesOut) -> EstimateOut | None:
    """The first estimate with a breakdown: the chosen one, if it has one."""
    able = [one for one in answer["estimates"] if one["parts"]]
    return min(able, key=lambda one: not one["chosen"], default=None)


def estimates(answer: EstimatesOut) -> list[Block]:
    if choice(answer) is None and answer["crash"]:
        return crash_lines(answer)[:1]
    return [
        *crash_lines(answer),
        table(answer["estimates"]),
        *phase_lines(answer),
        "",
        f"{'* decides: ' if choice(answer) else ''}{need(answer)}",
        *(f"  · {refusal(reason)}" for reason in answer["reasons"]),
        *too_large_lines(answer),
        fits(answer["verdicts"], answer["fits"], is_possible=not answer.get("too_large")),
    ]


def need(answer: EstimatesOut) -> str:
    one = choice(answer)
    if one is None:
        return "Its need is unknown: only the free memory of each GPU counts."
    return f"{memory(safe_mib(one))} must be free on each of its GPUs."


def phase_lines(answer: EstimatesOut) -> list[Block]:
    """The most in use in training, evaluation and so on, if the script was followed so far."""
    one = choice(answer)
    phases = one["phases"] if one else {}
    if len(phases) < 2:
        return []
    each = ", ".join(f"{clean(name)} {memory(mib)}" for name, mib in phases.items())
    return ["", f"In use at most: {each}."]


def crash_lines(answer: EstimatesOut) -> list[Block]:
    """How the script stops by itself, and an empty line."""
    crash = answer["crash"]
    return [in_style(f"Your script stops {clean(crash)}", "bold red"), ""] if crash else []


def too_large_lines(answer: EstimatesOut) -> list[Block]:
    too_large = answer.get("too_large")
    return [in_style(f"It {clean(too_large)}.", "bold red")] if too_large else []


def table(all_of_them: Sequence[EstimateOut]) -> Table:
    """The chosen estimate, then the others with a number, then those without."""
    made = Table(columns("SOURCE MEMORY> LOW> HIGH> TOOK> NOTE*"))
    for one, note in with_notes(all_of_them):
        made.add(
            clean(one["source"]) + (" *" if one["chosen"] else ""),
            *(memory(one[key]) for key in ("mib", "low", "high")),
            number(one["seconds"], " s", 1),
            clean(note),
            style="bold" if one["chosen"] else "dim" if one["mib"] is None else "",
        )
    return made


def with_notes(all_of_them: Sequence[EstimateOut]) -> Iterator[tuple[EstimateOut, str]]:
    """In that order, each with a note on it, or with why it is none."""
    first: dict[str, str] = {}  # by reason, the first source: several may share one trial
    for one in sorted(all_of_them, key=lambda one: (not one["chosen"], one["mib"] is None)):
        why = one["why"] or ""
        as_for = first.setdefault(why, one["source"])
        if why and as_for != one["source"]:
            why = f"as for {as_for}"
        yield one, why or "; ".join(one["notes"])


def fits(judged: Sequence[VerdictOut], room: Sequence[FitOut], is_possible: bool) -> Table:
    """For each GPU: free memory, and whether the job would be placed there now, if it is possible
    at all."""
    free = {one["gpu"]: one["free_mib"] for one in room}
    made = Table(columns("- -> -*"), header=False)
    for verdict in judged:
        index, why = verdict["gpu"]["index"], verdict["refused"]
        name = f"GPU {verdict['gpu']['id'] if index is None else index}"
        has = NOTHING if index not in free else f"{memory(free[index])} free"
        words = "\n".join(map(refusal, why)) or "would take it now" * is_possible
        made.add(in_style(name, "green" if is_possible and not why else "red"), has, words)
    return made


# -- breakdown


def explanation(one: EstimateOut, found: ExplanationOut | None) -> list[Block]:
    """A bar with one character per 60th, and a legend; who holds the activations; what helps."""
    parts = one["parts"]
    total = sum(parts.values())
    bar, legend = list[tuple[str, str]](), Table(columns("- - -> ->"), header=False)
    ends, done = [0], 0
    for name, mib in parts.items():
        sign, colour = LOOKS.get(name, OTHER)
        done += mib
        ends.append(round(BAR_WIDTH * done / total))
        bar.append((sign * (ends[-1] - ends[-2]), colour))
        legend.add(in_style(sign, colour), clean(name), memory(mib), f"{mib / total:.1%}")
    legend.add("", f"by {clean(one['source'])}", memory(one["mib"]), "")
    notes = [f"  · {clean(note)}" for note in one["notes"]]
    return ["", styled(*bar), legend, *notes, *(_holders(found) if found else ())]


def _holders(found: ExplanationOut) -> Iterator[Block]:
    for title, ones in (("activations by module", found["modules"]), ("by line", found["lines"])):
        if shown := [one for one in ones if one["mib"]][:MOST_HOLDERS]:
            yield from heading(title)
            made = Table(columns("-> -* -*"), header=False)
            for one in shown:
                name, kind = clean(one["name"]), clean(one["kind"])
                times = f"{one['count']} × {kind}" if one["count"] > 1 else kind
                made.add(f"  {memory(one['mib'])}", name or kind, times if name else "")
            yield made
    if found["remedies"]:
        yield from heading("what would help")
        made = Table(columns("-> -*"), header=False)
        for remedy in found["remedies"]:
            about = "" if remedy["exact"] else "about "
            made.add(f"  {about}-{memory(remedy['saved_mib'])}", clean(remedy["what"]))
        yield made


def drawing(moments: Sequence[MomentOut], one: EstimateOut, width: int) -> list[Block]:
    """The memory over two steps: a column for one or several moments, a row for a share of the
    peak."""
    room = min(PLOT_WIDTH, max(1, width - AXIS))
    context = one["parts"].get("context", 0)
    top = max(moment["held_mib"] for moment in moments) + context
    each = -(-len(moments) // room)
    groups = [moments[at : at + each] for at in range(0, len(moments), each)]
    rows: list[list[str | tuple[str, str]]] = [
        [memory(round(top * (row + 1) / PLOT_HEIGHT)).rjust(6) + " │"] for row in range(PLOT_HEIGHT)
    ]
    for group in groups:
        moment = max(group, key=lambda moment: sum(moment["in_use"].values()))
        for row, name in enumerate(_stack(moment, context, top)):
            sign, colour = LOOKS.get(name, OTHER) if name else (" ", "")
            rows[row].append((sign, colour))
    margin = " " * AXIS
    steps = "".join("─↑"[any(moment["mark"] for moment in group)] for group in groups)
    tail = f"{margin}from the first layer to the end of step 2; ↑ an optimizer step ended"
    looks = (part for name, look in LOOKS.items() for part in (look, f" {name}  "))
    lines = (styled(*row) for row in reversed(rows))
    return ["", *lines, margin + steps, tail, "", styled(margin, *looks)]


def _stack(moment: MomentOut, context_mib: int, top_mib: int) -> list[str]:
    """The part at the middle of each row, from the bottom; "" above all of them."""
    parts = parts_at(moment, context_mib)
    names, ends = [*parts, ""], list(accumulate(parts.values()))
    middles = (top_mib * (row + 0.5) / PLOT_HEIGHT for row in range(PLOT_HEIGHT))
    return [names[bisect(ends, middle)] for middle in middles]


def parts_at(moment: MomentOut, context_mib: int) -> dict[str, int]:
    """The parts at that moment in MiB, from the bottom: what is constant comes first."""
    in_use = moment["in_use"]
    cached = max(0, moment["held_mib"] - sum(in_use.values()))
    return {"context": context_mib, **in_use, "cached": cached}


# -- the largest that fits


def learnt(mib: Mapping[int, int], limit_mib: int) -> str:
    """What a search knows so far: the largest value that fits, and the smallest that does not."""
    fits, over = bounds(mib, limit_mib)
    known = [f"{fits} fits ({memory(mib[fits])})"] if fits else []
    known += [f"{over} does not ({memory(mib[over])})"] if over else []
    return "".join(f", {part}" for part in known)


def fit_view(fit: Fit) -> list[Block]:
    if not fit.tried:
        assert fit.refused is not None
        value, answer = fit.refused
        head = f"There is no estimate for --{fit.command.name} {value}:"
        return [*crash_lines(answer), in_style(head, "bold"), "", table(answer["estimates"])]
    tried, shown = fit.tried, [value for value in (fit.largest, fit.too_large) if value]
    made = Table(columns(f"{fit.command.name.upper()}> MEMORY> LOW> HIGH> FITS"))
    for value in sorted(tried) if fit.steady else shown:
        one = tried[value]
        sizes = (memory(one[key]) for key in ("mib", "low", "high"))
        made.add(str(value), *sizes, "yes" if safe_mib(one) <= fit.limit_mib else "no")
    source = clean(next(iter(tried.values()))["source"])
    seconds = sum(one["seconds"] for one in tried.values())
    tail = f"Estimator: {source}. Tried {len(tried)} values in {seconds:.0f} s."
    return [in_style(_outcome(fit), "bold"), "", made, "", tail]


def _outcome(fit: Fit) -> str:
    option, limit = f"--{fit.command.name}", memory(fit.limit_mib)
    largest, over = fit.largest, fit.too_large
    if fit.cut_short is not None:
        value, why = fit.cut_short
        known = f"{option} {largest} fits into {limit}; " if largest else ""
        return f"{known}there is no estimate for {option} {value}: {clean(why)}"
    if fit.steady:
        neither = "It fits into" if over is None else "It does not fit into"
        return f"{neither} {limit}, and {option} does not affect its memory."
    if largest is None:
        return f"Not even {option} 1 fits into {limit}."
    if over is None:
        return f"{option} {largest} fits into {limit}; more was not tried."
    about = "" if over == largest + 1 else f", to {PRECISION:.0%}"
    return f"{option} {largest} is the largest that fits into {limit}{about}."


def save(file: Path, one: EstimateOut, found: ExplanationOut, argv: list[str]) -> None:
    """The drawing and the breakdown, as rich writes a terminal into HTML or SVG: without scripts,
    and without fonts from elsewhere."""
    from rich.console import Console

    low, high = memory(one["low"]), memory(safe_mib(one))
    picture = [
        in_style(command(argv), "bold"),
        f"{memory(one['mib'])} ({low} to {high}) by {clean(one['source'])}",
        *drawing(found["moments"], one, AXIS + PLOT_WIDTH),
        *explanation(one, found),
    ]
    screen = Console(record=True, file=StringIO(), width=AXIS + PLOT_WIDTH, highlight=False)
    screen.print(draw(picture))
    text = screen.export_html() if file.suffix == ".html" else screen.export_svg(title="carma")
    file.write_text(re.sub(r"@font-face {.*?}", "", text, flags=re.DOTALL), encoding="utf-8")
