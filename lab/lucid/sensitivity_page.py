"""The page of `lab.lucid.sensitivity`: the paper's figures, ours and the difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from benchmarks.harness import Report, columns
from lab.lucid import notes
from lab.lucid.findings import Figure, Finding, Runs, claims, tables
from lab.lucid.runs import (
    LIMITS_S,
    MURI,
    PROFILER,
    THRESHOLDS,
    Knobs,
    Result,
    knobs_told,
    thresholds_told,
)
from lab.lucid.workload import BEFORE, TEST

# Table 6, Venus: share that ends while profiled (%), queueing before it (s), JCT (s), queueing (s)
PAPER_LIMITS = {
    100.0: (27.65, 21, 13_087, 1_074),
    200.0: (44.61, 73, 12_886, 915),
    300.0: (53.73, 175, 13_160, 1_222),
    600.0: (64.40, 509, 13_270, 1_422),
}


def report(results: Sequence[Result], best: Knobs) -> Report:
    runs = Runs(results)
    found = {
        "profiler": [space_aware(runs)],
        "figure 12": list(by_load(runs)),
        "thresholds": list(by_thresholds(runs)),
        "table 6": list(_limits(runs)),
    }
    told = tables(found)
    sections: tuple[tuple[str, ...], ...] = (
        ("## Space-aware profiling (figure 11 b)", told["profiler"]),
        ("## Busier and less busy jobs (figure 12)", notes.FIGURE_12, told["figure 12"]),
        ("## Thresholds of Tiny and Medium (4.5)", notes.THRESHOLDS_TOLD, told["thresholds"]),
        ("## T_prof (table 6)", notes.LIMITS, told["table 6"]),
        ("## Knobs tuned on the week before (3.6.1)", notes.TUNER, *_tuner(runs, best)),
        ("## Muri's traces, 64 V100", notes.MURI_TOLD, *(_muri(runs, number) for number in MURI)),
    )
    return Report(
        "What Lucid's results depend on, simulated",
        [notes.TRACE, *chain.from_iterable(sections)],
        {"claims": claims(found), "runs": results},
    )


def space_aware(runs: Runs) -> Finding:
    rows = ("profiler", "in order of arrival"), ("profiler", "space-aware")
    what = "profiling queue, by arrival : space-aware"
    return runs.ratio(what, 11.6, notes.PROFILER_NOTE, lambda one: one.profiling_queue_s, *rows)


def by_load(runs: Runs) -> Iterator[Finding]:
    for told, table in (("low", "busy, low"), ("median", "headline"), ("high", "busy, high")):
        rows = (table, "tiresias"), (table, "lucid")
        what = f"queue, tiresias : lucid, {told}"
        paper, note = PAPER_LOADS[told]
        yield runs.ratio(what, paper, note, lambda one: one.queue, *rows)


PAPER_LOADS = {
    "low": (4.2, "paper: 1.8 to 4.2; that the least busy gains most is assumed"),
    "median": (0.82 / 0.25, "Venus, table 4"),
    "high": (1.8, "as the first"),
}


def by_thresholds(runs: Runs) -> Iterator[Finding]:
    for thresholds in THRESHOLDS:
        what = thresholds_told(*thresholds)
        rows = ("thresholds", what), ("headline", "lucid")
        yield runs.ratio(
            f"JCT, {what} : default", 1.0, "paper: within 3.6 %", lambda one: one.jct, *rows
        )


def _limits(runs: Runs) -> Iterator[Finding]:
    figures: tuple[tuple[str, str, Figure], ...] = (
        ("end while profiled", "%", lambda one: 100 * one.profiled),
        ("profiling queue", "s", lambda one: one.profiling_queue_s),
        ("JCT", "s", lambda one: 3600 * one.jct),
        ("queue", "s", lambda one: 3600 * one.queue),
    )
    for run_s in LIMITS_S:
        default = run_s == PROFILER.run_s
        row = ("headline", "lucid") if default else ("limits", f"{run_s:.0f} s")
        for n, (what, unit, figure) in enumerate(figures):
            told = f"T_prof {run_s:.0f} s: {what}"
            yield runs.finding(told, PAPER_LIMITS[run_s][n], unit, "", figure, row)


def _tuner(runs: Runs, best: Knobs) -> tuple[str, str, str]:
    found = replace(runs.of("tuned", "tuned knobs"), what=knobs_told(*best))
    default = replace(runs.of("headline", "lucid"), what="defaults")
    change = 100 * (found.jct / default.jct - 1)
    better = "better" if change < 0 else "no better"
    told = (
        "The knobs that were best on the week before change the JCT by"
        f" {change:+.1f} %: they are {better}."
    )
    tried = [runs.of(*row) for row in runs.rows if row[0] == "tuner"]
    return _knobs(BEFORE, tried), _knobs(TEST, [default, found]), told


def _knobs(week: str, rows: Sequence[Result]) -> str:
    return columns(
        rows,
        (f"week of {week}", "{0.what}"),
        ("JCT h", "{0.jct:.3f}"),
        ("queue h", "{0.queue:.3f}"),
        ("profiling queue s", "{0.profiling_queue_s:.0f}"),
    )


def _muri(runs: Runs, number: int) -> str:
    name = f"muri {number}"
    rows = [row for row in runs.rows if row[0] == name]
    return f"Trace {number}, {runs.of(*rows[0]).jobs:.0f} jobs:\n\n{runs.table(*rows)}"
