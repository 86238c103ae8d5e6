"""Renders the answers to `carma estimate`: with rich in a terminal, with matplotlib as an image or
in a self-contained page. Pure, like `cli.render`."""

from __future__ import annotations

from bisect import bisect
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING

from carmad.charts import RC, WIDTH_IN, legend
from carmad.charts import image as embedded
from carmad.readable import clean
from cli.estimation import choice
from cli.render import refusal
from cli.text import (
    GIB,
    NOTHING,
    Table,
    columns,
    command,
    heading,
    in_style,
    memory,
    number,
    styled,
)
from cli.vary import PRECISION, bounds, safe_mib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.figure import Figure

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


LONGEST = 110  # characters of a command that fit into an image


def page(one: EstimateOut, found: ExplanationOut, argv: list[str]) -> str:
    """HTML without scripts or links; the drawing is in it. Needs matplotlib."""
    from matplotlib import rc_context

    from carmad.html import environment

    total = one["mib"] or 1
    with rc_context(RC):
        drawing = embedded(_figure(one, found, argv))
    template = environment("carmad.html").get_template("estimate.html.j2")
    text = template.render(
        command=command(argv),
        summary=summary(one),
        drawing=drawing,
        parts=[
            (colour(name), name, memory(mib), f"{mib / total:.1%}")
            for name, mib in one["parts"].items()
        ],
        tables=_tables(found),
        notes=one["notes"],
    )
    return f"{text}\n"


def _tables(found: ExplanationOut) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    modules, lines, remedies = found["modules"], found["lines"], found["remedies"]
    kinds = [f"{one['count']} × {one['kind']}" for one in modules]
    rows = zip(modules, kinds, strict=True)
    yield "Activations by module", [(memory(one["mib"]), one["name"], kind) for one, kind in rows]
    yield "Activations by line", [(memory(one["mib"]), one["name"]) for one in lines]
    yield (
        "What would help",
        [
            ("" if one["exact"] else "about ", "-" + memory(one["saved_mib"]), one["what"])
            for one in remedies
        ],
    )


def image(one: EstimateOut, found: ExplanationOut, argv: list[str], form: str) -> bytes:
    """An SVG or a PNG, in the style of the simulator's charts. Needs matplotlib."""
    from matplotlib import rc_context

    written = BytesIO()
    with rc_context(RC):
        figure = _figure(one, found, argv)
        metadata = {"Date": None, "Creator": None} if form == "svg" else None
        figure.savefig(written, format=form, metadata=metadata)
    return written.getvalue()


def _figure(one: EstimateOut, found: ExplanationOut, argv: list[str]) -> Figure:
    """The memory in use over two steps, stacked by part, and what the allocator holds."""
    from matplotlib.figure import Figure

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
