"""The page of `lab.lucid`: the paper's figures, ours, the difference and likely causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import median

from benchmarks.harness import Report, columns, markdown_table, verdict
from lab import compare
from lab.compare import Quote
from lab.lucid import notes
from lab.lucid.findings import Figure, Finding, Runs, claims, spread, tables
from lab.lucid.runs import BUSY, LOADS, MEASURED, POLICIES, WHOLE, Known, Result
from lab.lucid.timing import Latency
from lab.lucid.workload import (
    PARTS,
    SAMPLES,
    TEST,
    Models,
    asked,
    busy,
    mean_duration,
    nearest_week,
    sample,
    week,
)

# Lucid paper, table 4 on Philly: JCT, queueing and its 99.9th percentile in hours
PAPER = {
    "fifo": (36.85, 30.45, 117.55),
    "sjf": (9.41, 3.01, 101.60),
    "qssf": (9.03, 2.63, 125.57),
    "horus": (10.49, 4.09, 223.47),
    "tiresias": (9.02, 2.62, 98.80),
    "lucid": (6.84, 0.29, 71.22),
}
FIGURES: tuple[tuple[str, Figure], ...] = (
    ("JCT", lambda one: one.jct),
    ("queue", lambda one: one.queue),
    ("p99.9 queue", lambda one: one.queue_p999),
)
PAPER_JOBS, PAPER_MEAN_S = 12_389, 25_533  # table 2
PLAN_MS = 3.0


def report(
    results: Sequence[Result], taken: Sequence[Latency], models: Mapping[Known, Models]
) -> Report:
    runs = Runs(results)
    found = {
        "table 4": list(against_table_4(runs)),
        "ratios": list(against_lucid(runs)),
        "figure 11": list(ablations(runs)),
    }
    told = tables(found)
    headline = [("headline", policy) for policy in POLICIES]
    without = [row for row in runs.rows if row[0] == "ablations"]
    whole = ("whole", "fifo"), ("loads", f"load {WHOLE}"), ("whole", "lucid, off_below")
    sections: tuple[tuple[str, ...], ...] = (
        ("## The trace", notes.TRACE, _trace()),
        ("## How many GPUs", notes.LOADS_TOLD, _by_load(runs)),
        ("## Table 4", notes.HEADLINE, told["table 4"], runs.table(*headline)),
        ("## Lucid against each other policy", notes.RATIOS, told["ratios"]),
        ("## As many GPUs as in the paper", notes.WHOLE_TOLD, runs.table(*whole)),
        ("## Durations foretold", notes.FORETOLD, foretold(models)),
        ("## Ablations (figure 11)", notes.FIGURE_11, runs.table(headline[-1], *without)),
        (_against_whole(runs), told["figure 11"], notes.ABLATIONS_TOLD),
        ("## How long a plan takes (4.4)", notes.PLANS_TOLD, _plans(taken)),
        ("## Likely causes of the differences", notes.CAUSES),
    )
    data = {
        "claims": claims(found),
        "runs": results,
        "models": {name: dict(dict(m)["duration"].errors) for name, m in models.items()},
        "plans": taken,
    }
    return Report(
        "Lucid beside other schedulers, simulated", [*chain.from_iterable(sections)], data
    )


def _trace() -> str:
    ours, near = week(TEST), nearest_week(PAPER_JOBS, PAPER_MEAN_S)
    quotes = (
        Quote("jobs", PAPER_JOBS, len(ours.tasks), ""),
        Quote("mean duration", PAPER_MEAN_S, mean_duration(ours), "s"),
        Quote("jobs, nearest week", PAPER_JOBS, len(near.tasks), "", near.name),
        Quote("mean duration, nearest week", PAPER_MEAN_S, mean_duration(near), "s", near.name),
    )
    shares = [busy(sample(TEST, number)) for number in SAMPLES]
    over_jobs, over_time = (median(column) for column in zip(*shares, strict=True))
    told = (
        f"The models that jobs drew keep a GPU busy {100 * over_jobs:.0f} % of the time on average"
        f" over jobs, and {100 * over_time:.0f} % over GPU time (median of the samples)."
    )
    return f"{compare.table(quotes)}\n\n{told}"


def _by_load(runs: Runs) -> str:
    def row(load: float) -> list[Result]:
        return runs.rows[("headline", "lucid") if load == BUSY else ("loads", f"load {load}")]

    def queue(one: Result) -> float:
        return PARTS * one.queue_mean

    def longest(one: Result) -> float:
        return PARTS * one.queue_max

    whole = asked(week(TEST).tasks)
    return columns(
        LOADS,
        ("load", "{0:.2f}"),
        ("GPUs for the whole week", lambda load: f"{whole / load:.0f}"),
        (f"mean queue, times {PARTS}", lambda load: spread(queue, ".0f")(row(load))),
        (f"longest queue, times {PARTS}", lambda load: spread(longest, ".0f")(row(load))),
        ("JCT h", lambda load: spread(lambda one: one.jct, ".2f")(row(load))),
        ("queue h", lambda load: spread(lambda one: one.queue, ".2f")(row(load))),
    )


def against_table_4(runs: Runs) -> Iterator[Finding]:
    for n, (what, figure) in enumerate(FIGURES):
        for policy in POLICIES:
            paper, row = PAPER[policy][n], ("headline", policy)
            yield runs.finding(f"{what}, {policy}", paper, "h", "", figure, row)


def against_lucid(runs: Runs, model: str = MEASURED) -> Iterator[Finding]:
    """`model`: of interference; who does not share is the same under each."""
    for n, (what, figure) in enumerate(FIGURES):
        for policy in POLICIES[:-1]:
            paper = PAPER[policy][n] / PAPER["lucid"][n]
            rows = (
                row if (row := (model, name)) in runs.rows else ("headline", name)
                for name in (policy, "lucid")
            )
            yield runs.ratio(f"{what}, {policy} : lucid", paper, "", figure, *rows)


def foretold(models: Mapping[Known, Models]) -> str:
    """The errors of the models of durations."""
    rows, headings = [], ["model", "jobs"]
    for name, learned in models.items():
        model = dict(learned)["duration"]
        headings[2:] = [what for what, _ in model.errors]
        rows.append((name, f"{model.rows:,}", *(f"{error:.2f}" for _, error in model.errors)))
    return markdown_table(headings, rows, range(1, len(headings)))


def ablations(runs: Runs) -> Iterator[Finding]:
    def queue(one: Result) -> float:
        return one.queue

    lucid = ("headline", "lucid")
    for what, paper, note in (
        ("without binder", 1.4, "naive: wherever memory allows it"),
        ("without estimator", 2.2, "in order of arrival, nor does a duration keep a pair apart"),
    ):
        row = ("ablations", what)
        yield runs.ratio(f"queue, {what} : whole", paper, note, queue, row, lucid)
    rows = ("headline", "qssf"), ("ablations", "without sharing")
    yield runs.ratio("queue, qssf : without sharing", 2.0, "paper: over 2.0", queue, *rows)


def _against_whole(runs: Runs) -> str:
    """The paper has no such figures."""
    lucid = ("headline", "lucid")
    found = [
        runs.ratio(row[1], 1.0, "", lambda one: one.jct, row, lucid)
        for row in runs.rows
        if row[0] == "ablations"
    ]
    return columns(
        found,
        ("JCT over Lucid's", "{0.claim.what}"),
        ("median", "{0.claim.ours:.3f}"),
        ("lowest", "{0.low:.3f}"),
        ("highest", "{0.high:.3f}"),
    )


def _plans(taken: Sequence[Latency]) -> str:
    return columns(
        taken,
        ("", "{0.what}"),
        ("placed", "{0.placed}"),
        ("median ms", "{0.median_ms:.2f}"),
        ("P99 ms", "{0.p99_ms:.2f}"),
        ("core's whole tick, ms", "{0.tick_ms:.2f}"),
        ("≤ 3 ms (paper: 3)", lambda each: verdict(each.median_ms <= PLAN_MS)),
        text=(0, 5),
    )
