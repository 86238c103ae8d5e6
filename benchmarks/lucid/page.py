"""The page of `benchmarks.lucid`: the paper's figures, ours, the difference and likely causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from statistics import median
from typing import Any

from benchmarks.harness.report import Report
from benchmarks.harness.rows import columns, verdict
from benchmarks.lucid import notes
from benchmarks.lucid.runs import (
    BUSY,
    LIMITS_S,
    LOADS,
    MURI,
    POLICIES,
    PROFILER,
    THRESHOLDS,
    WHOLE,
    Knobs,
    Known,
    Result,
    knobs_told,
    thresholds_told,
)
from benchmarks.lucid.timing import Latency
from benchmarks.lucid.workload import (
    BEFORE,
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
from carmad.sim.report import compare, markdown
from carmad.sim.report.compare import Claim
from carmad.sim.report.numbers import number

# Lucid paper, table 4 on Philly: JCT, queueing and its 99.9th percentile in hours
PAPER = {
    "fifo": (36.85, 30.45, 117.55),
    "sjf": (9.41, 3.01, 101.60),
    "qssf": (9.03, 2.63, 125.57),
    "horus": (10.49, 4.09, 223.47),
    "tiresias": (9.02, 2.62, 98.80),
    "lucid": (6.84, 0.29, 71.22),
}
PAPER_JOBS, PAPER_MEAN_S = 12_389, 25_533  # table 2
# Table 6, Venus: share that ends while profiled (%), queueing before it (s), JCT (s), queueing (s)
PAPER_LIMITS = {
    100.0: (27.65, 21, 13_087, 1_074),
    200.0: (44.61, 73, 12_886, 915),
    300.0: (53.73, 175, 13_160, 1_222),
    600.0: (64.40, 509, 13_270, 1_422),
}
PLAN_MS = 3.0

Row = tuple[str, str]  # table and what
Figure = Callable[[Result], float]


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim, with the lowest and highest of the samples."""

    claim: Claim
    low: float
    high: float

    def noted(self) -> Claim:
        spread = f"{number(self.low)} to {number(self.high)}"
        return replace(self.claim, note="; ".join(filter(None, (spread, self.claim.note))))


class Runs:
    """Results by table and row: those of a row are one for each sample of the week."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.rows: dict[Row, list[Result]] = {}
        for result in results:
            table = result.trace if result.table == "muri" else result.table
            self.rows.setdefault((table, result.what), []).append(result)

    def of(self, table: str, what: str) -> Result:
        """The median of each figure."""
        return _median(self.rows[table, what])

    def finding(
        self, what: str, paper: float, unit: str, note: str, figure: Figure, row: Row
    ) -> Finding:
        values = [figure(result) for result in self.rows[row]]
        return _found(Claim(what, paper, median(values), unit, note), values)

    def ratio(
        self, what: str, paper: float, note: str, figure: Figure, over: Row, under: Row
    ) -> Finding:
        """Of one row to another, sample by sample."""
        pairs = zip(self.rows[over], self.rows[under], strict=True)
        values = [figure(one) / figure(other) for one, other in pairs if figure(other)]
        return _found(Claim(what, paper, median(values), "times", note), values)

    def table(self, *rows: Row) -> str:
        return columns(
            [self.rows[row] for row in rows],
            ("", lambda found: _what(found[0])),
            ("JCT h", _spread(lambda one: one.jct, ".2f")),
            ("queue h", _spread(lambda one: one.queue, ".2f")),
            ("p99.9 queue h", _spread(lambda one: one.queue_p999, ".1f")),
            ("slowdown", _middle(lambda one: one.slowdown, ".2f")),
            ("lost s", _middle(lambda one: one.lost_s, ".0f")),
            ("mean queue", _spread(lambda one: one.queue_mean, ".1f")),
            ("longest queue", _spread(lambda one: one.queue_max, ".0f")),
            ("preempted", _middle(lambda one: one.preemptions, ".0f")),
            ("OOM", _middle(lambda one: one.oom_crashes, ".0f")),
            ("makespan h", _middle(lambda one: one.makespan, ".0f")),
        )


def _found(claim: Claim, values: Sequence[float]) -> Finding:
    return Finding(claim, min(values), max(values))


def _spread(figure: Figure, form: str) -> Callable[[Sequence[Result]], str]:
    """The median, and the lowest and highest if there are several."""

    def told(found: Sequence[Result]) -> str:
        values = sorted(map(figure, found))
        middle = f"{median(values):{form}}"
        return middle if len(values) == 1 else f"{middle} ({values[0]:{form}}–{values[-1]:{form}})"

    return told


def _middle(figure: Figure, form: str) -> Callable[[Sequence[Result]], str]:
    return lambda found: f"{median(map(figure, found)):{form}}"


def _median(results: Sequence[Result]) -> Result:
    numbers: dict[str, Any] = {
        each.name: median(getattr(result, each.name) for result in results)
        for each in fields(Result)
        if each.type in ("int", "float")
    }
    return replace(results[0], **numbers)


def report(
    results: Sequence[Result], taken: Sequence[Latency], models: Mapping[Known, Models]
) -> Report:
    runs = Runs(results)
    found = {
        "table 4": list(against_table_4(runs)),
        "ratios": list(against_lucid(runs)),
        "figure 11": list(_ablations(runs)),
    }
    tables = _tables(found)
    headline = [("headline", policy) for policy in POLICIES]
    ablations = [row for row in runs.rows if row[0] == "ablations"]
    whole = ("whole", "fifo"), ("loads", f"load {WHOLE}"), ("whole", "lucid, off_below")
    sections: tuple[tuple[str, ...], ...] = (
        ("## The trace", notes.TRACE, _trace()),
        ("## How many GPUs", notes.LOADS_TOLD, _by_load(runs)),
        ("## Table 4", notes.HEADLINE, tables["table 4"], runs.table(*headline)),
        ("## Lucid against each other policy", notes.RATIOS, tables["ratios"]),
        ("## As many GPUs as in the paper", notes.WHOLE_TOLD, runs.table(*whole)),
        ("## Durations foretold", notes.FORETOLD, foretold(models)),
        ("## Ablations (figure 11)", notes.FIGURE_11, runs.table(headline[-1], *ablations)),
        (_against_whole(runs), tables["figure 11"], notes.ABLATIONS_TOLD),
        ("## How long a plan takes (4.4)", notes.PLANS_TOLD, _plans(taken)),
        ("## Likely causes of the differences", notes.CAUSES),
    )
    data = {
        "claims": _claims(found),
        "runs": results,
        "models": {name: dict(dict(m)["duration"].errors) for name, m in models.items()},
        "plans": taken,
    }
    return Report(
        "Lucid beside other schedulers, simulated", [*chain.from_iterable(sections)], data
    )


def sensitivity(results: Sequence[Result], best: Knobs) -> Report:
    runs = Runs(results)
    found = {
        "profiler": [_space_aware(runs)],
        "figure 12": list(_loads(runs)),
        "thresholds": list(_thresholds(runs)),
        "table 6": list(_limits(runs)),
    }
    tables = _tables(found)
    sections: tuple[tuple[str, ...], ...] = (
        ("## Space-aware profiling (figure 11 b)", tables["profiler"]),
        ("## Busier and less busy jobs (figure 12)", notes.FIGURE_12, tables["figure 12"]),
        ("## Thresholds of Tiny and Medium (4.5)", notes.THRESHOLDS_TOLD, tables["thresholds"]),
        ("## T_prof (table 6)", notes.LIMITS, tables["table 6"]),
        ("## Knobs tuned on the week before (3.6.1)", notes.TUNER, *_tuner(runs, best)),
        ("## Muri's traces, 64 V100", notes.MURI_TOLD, *(_muri(runs, number) for number in MURI)),
    )
    return Report(
        "What Lucid's results depend on, simulated",
        [notes.TRACE, *chain.from_iterable(sections)],
        {"claims": _claims(found), "runs": results},
    )


def _tables(found: Mapping[str, Sequence[Finding]]) -> dict[str, str]:
    return {name: compare.table([each.noted() for each in all]) for name, all in found.items()}


def _claims(found: Mapping[str, Sequence[Finding]]) -> dict[str, Finding]:
    return {f"{name}: {each.claim.what}": each for name, all in found.items() for each in all}


def _trace() -> str:
    ours, near = week(TEST), nearest_week(PAPER_JOBS, PAPER_MEAN_S)
    claims = (
        Claim("jobs", PAPER_JOBS, len(ours.tasks), ""),
        Claim("mean duration", PAPER_MEAN_S, mean_duration(ours), "s"),
        Claim("jobs, nearest week", PAPER_JOBS, len(near.tasks), "", near.name),
        Claim("mean duration, nearest week", PAPER_MEAN_S, mean_duration(near), "s", near.name),
    )
    shares = [busy(sample(TEST, number)) for number in SAMPLES]
    over_jobs, over_time = (median(column) for column in zip(*shares, strict=True))
    told = (
        f"The models that jobs drew keep a GPU busy {100 * over_jobs:.0f} % of the time on average"
        f" over jobs, and {100 * over_time:.0f} % over GPU time (median of the samples)."
    )
    return f"{compare.table(claims)}\n\n{told}"


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
        (f"mean queue, times {PARTS}", lambda load: _spread(queue, ".0f")(row(load))),
        (f"longest queue, times {PARTS}", lambda load: _spread(longest, ".0f")(row(load))),
        ("JCT h", lambda load: _spread(lambda one: one.jct, ".2f")(row(load))),
        ("queue h", lambda load: _spread(lambda one: one.queue, ".2f")(row(load))),
    )


def against_table_4(runs: Runs) -> Iterator[Finding]:
    figures: tuple[tuple[str, Figure], ...] = (
        ("JCT", lambda one: one.jct),
        ("queue", lambda one: one.queue),
        ("p99.9 queue", lambda one: one.queue_p999),
    )
    for n, (what, figure) in enumerate(figures):
        for policy in POLICIES:
            paper, row = PAPER[policy][n], ("headline", policy)
            yield runs.finding(f"{what}, {policy}", paper, "h", "", figure, row)


def against_lucid(runs: Runs) -> Iterator[Finding]:
    figures: tuple[tuple[str, Figure], ...] = (
        ("JCT", lambda one: one.jct),
        ("queue", lambda one: one.queue),
        ("p99.9 queue", lambda one: one.queue_p999),
    )
    for n, (what, figure) in enumerate(figures):
        for policy in POLICIES[:-1]:
            paper = PAPER[policy][n] / PAPER["lucid"][n]
            rows = ("headline", policy), ("headline", "lucid")
            yield runs.ratio(f"{what}, {policy} : lucid", paper, "", figure, *rows)


def foretold(models: Mapping[Known, Models]) -> str:
    """The errors of the models of durations."""
    rows, headings = [], ["model", "jobs"]
    for name, learned in models.items():
        model = dict(learned)["duration"]
        headings[2:] = [what for what, _ in model.errors]
        rows.append((name, f"{model.rows:,}", *(f"{error:.2f}" for _, error in model.errors)))
    return markdown.table(headings, rows, range(1, len(headings)))


def _muri(runs: Runs, number: int) -> str:
    name = f"muri {number}"
    rows = [row for row in runs.rows if row[0] == name]
    return f"Trace {number}, {runs.of(*rows[0]).jobs:.0f} jobs:\n\n{runs.table(*rows)}"


def _ablations(runs: Runs) -> Iterator[Finding]:
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


def _space_aware(runs: Runs) -> Finding:
    rows = ("profiler", "in order of arrival"), ("profiler", "space-aware")
    what = "profiling queue, by arrival : space-aware"
    return runs.ratio(what, 11.6, notes.PROFILER_NOTE, lambda one: one.profiling_queue_s, *rows)


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


def _loads(runs: Runs) -> Iterator[Finding]:
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


def _thresholds(runs: Runs) -> Iterator[Finding]:
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


def _what(one: Result) -> str:
    ended = "" if one.finished == one.jobs else f" ({one.jobs - one.finished:.0f} never ended)"
    return one.what + ended
