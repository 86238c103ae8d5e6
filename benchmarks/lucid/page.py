"""The page of `benchmarks.lucid`: the paper's figures, ours, the difference and likely causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from statistics import fmean
from typing import Any

from benchmarks.harness.report import Report
from benchmarks.harness.rows import columns, verdict
from benchmarks.lucid import notes
from benchmarks.lucid.runs import (
    BUSY,
    LIMITS_S,
    MURI,
    POLICIES,
    SMALL,
    TIMELESS,
    WHOLE,
    Knobs,
    Known,
    Result,
    cluster,
    knobs_told,
)
from benchmarks.lucid.timing import Latency
from benchmarks.lucid.workload import (
    BEFORE,
    TEST,
    Models,
    busy,
    load,
    mean_duration,
    nearest_week,
    week,
)
from carmad.sim.report import compare, markdown
from carmad.sim.report.compare import Claim

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


class Runs:
    """Results by table and row, each the mean of its samples."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._samples: dict[tuple[str, str], list[Result]] = {}
        for result in results:
            table = result.trace if result.table == "muri" else result.table
            self._samples.setdefault((table, result.what), []).append(result)

    def of(self, table: str, what: str) -> Result:
        return _mean(self._samples[table, what])

    def rows(self, table: str) -> list[Result]:
        return [_mean(found) for (name, _), found in self._samples.items() if name == table]

    def table(self, name: str) -> str:
        return columns(
            self.rows(name),
            ("", _what),
            ("JCT h", "{0.jct:.2f}"),
            ("queue h", "{0.queue:.2f}"),
            ("p99.9 queue h", "{0.queue_p999:.1f}"),
            ("slowdown", "{0.slowdown:.2f}"),
            ("lost s", "{0.lost_s:.0f}"),
            ("longest queue", "{0.queue_max:.0f}"),
            ("preempted", "{0.preemptions:.0f}"),
            ("OOM", "{0.oom_crashes:.0f}"),
            ("makespan h", "{0.makespan:.0f}"),
        )


def _mean(results: Sequence[Result]) -> Result:
    numbers: dict[str, Any] = {
        each.name: fmean(getattr(result, each.name) for result in results)
        for each in fields(Result)
        if each.type in ("int", "float")
    }
    return replace(results[0], **numbers)


def report(
    results: Sequence[Result],
    taken: Sequence[Latency],
    models: Mapping[Known, Models],
    best: Knobs,
) -> Report:
    runs = Runs(results)
    sections: tuple[tuple[str, ...], ...] = (
        ("## The trace", notes.TRACE, _trace()),
        ("## As many GPUs as in the paper", notes.WHOLE_TOLD, runs.table(cluster(WHOLE))),
        (
            "## As long a queue as in the paper",
            notes.BUSY_TOLD,
            compare.table(list(against_table_4(runs))),
        ),
        (runs.table(cluster(BUSY)),),
        (
            "## Lucid against each other policy",
            notes.RATIOS,
            compare.table([*against_lucid(runs)]),
        ),
        ("## Durations foretold", notes.FORETOLD, foretold(models)),
        ("## Muri's traces, 64 V100", notes.MURI_TOLD, *(_muri(runs, number) for number in MURI)),
        ("## Ablations (figure 11)", notes.FEW_TOLD, runs.table("ablations")),
        (compare.table(list(_ablations(runs))), notes.ABLATIONS_TOLD),
        ("## What the result hangs on", notes.VARIANTS, runs.table("variants")),
        ("## T_prof (table 6)", notes.LIMITS, _limits(runs)),
        ("## How long a plan takes (4.4)", notes.PLANS_TOLD, _plans(taken)),
        ("## Knobs tuned on the week before (3.6.1)", notes.TUNER, *_tuner(runs, best)),
        ("## Likely causes of the differences", notes.CAUSES),
    )
    data = {
        "runs": results,
        "models": {name: dict(dict(m)["duration"].errors) for name, m in models.items()},
        "plans": taken,
    }
    return Report(
        "Lucid beside other schedulers, simulated", [*chain.from_iterable(sections)], data
    )


def _trace() -> str:
    ours, near = week(TEST), nearest_week(PAPER_JOBS, PAPER_MEAN_S)
    over_jobs, over_time = busy(ours)
    claims = (
        Claim("jobs", PAPER_JOBS, len(ours.tasks), ""),
        Claim("mean duration", PAPER_MEAN_S, mean_duration(ours), "s"),
        Claim("jobs, nearest week", PAPER_JOBS, len(near.tasks), "", near.name),
        Claim("mean duration, nearest week", PAPER_MEAN_S, mean_duration(near), "s", near.name),
    )
    told = (
        f"GPU time asked for in the week: {100 * load(ours, 8 * WHOLE):.0f} % of what {8 * WHOLE}"
        f" GPUs have, {100 * load(ours, 8 * BUSY):.0f} % of {8 * BUSY}. The models that jobs drew"
        f" keep a GPU busy {100 * over_jobs:.0f} % of the time on average over jobs, and"
        f" {100 * over_time:.0f} % over GPU time."
    )
    return f"{compare.table(claims)}\n\n{told}"


def against_table_4(runs: Runs) -> Iterator[Claim]:
    """Table 4."""
    for n, what in enumerate(("JCT", "queue", "p99.9 queue")):
        for policy in POLICIES:
            mine = runs.of(cluster(BUSY), policy)
            ours = (mine.jct, mine.queue, mine.queue_p999)[n]
            note = notes.NOTES.get((what, policy), "")
            yield Claim(f"{what}, {policy}", PAPER[policy][n], ours, "h", note)


def against_lucid(runs: Runs) -> Iterator[Claim]:
    lucid = runs.of(cluster(BUSY), "lucid")
    for policy in POLICIES[:-1]:
        other = runs.of(cluster(BUSY), policy)
        paper = PAPER[policy][0] / PAPER["lucid"][0]
        yield Claim(f"JCT, {policy} : lucid", paper, other.jct / lucid.jct, "times")
    for policy in POLICIES[:-1]:
        other = runs.of(cluster(BUSY), policy)
        paper = PAPER[policy][1] / PAPER["lucid"][1]
        yield Claim(f"queue, {policy} : lucid", paper, other.queue / lucid.queue, "times")


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
    jobs = runs.of(name, "fifo").jobs
    return f"Trace {number}, {jobs:.0f} jobs:\n\n{runs.table(name)}"


def _ablations(runs: Runs) -> Iterator[Claim]:
    whole = runs.of("ablations", "lucid").queue
    for what, paper, note in (
        ("without binder", 1.4, "naive: wherever memory allows it"),
        ("without estimator", 2.2, "in order of arrival"),
    ):
        ours = runs.of("ablations", what).queue / whole
        yield Claim(f"queue, {what} : whole", paper, ours, "times", note)
    timeless = runs.of("ablations", TIMELESS).queue
    for what, paper in (("without binder", 1.4), ("without estimator", 2.2)):
        ours = runs.of("ablations", what).queue / timeless
        yield Claim(f"queue, {what} : no time-aware rule", paper, ours, "times")
    unshared = runs.of("ablations", "without sharing").queue
    qssf = runs.of("ablations", "qssf").queue / unshared
    yield Claim("queue, qssf : without sharing", 2.0, qssf, "times", "paper: over 2.0")
    first, last = (runs.of("profiler", w) for w in ("in order of arrival", "space-aware"))
    ratio = first.profiling_queue_s / last.profiling_queue_s
    yield Claim(
        "profiling queue, by arrival : space-aware", 11.6, ratio, "times", notes.PROFILER_NOTE
    )


def _limits(runs: Runs) -> str:
    claims = []
    for run_s in LIMITS_S:
        row = ("ablations", "lucid") if run_s == SMALL.run_s else ("limits", f"{run_s:.0f} s")
        ours, paper = runs.of(*row), PAPER_LIMITS[run_s]
        at = f"T_prof {run_s:.0f} s"
        claims += [
            Claim(f"{at}: end while profiled", paper[0], 100 * ours.profiled, "%"),
            Claim(f"{at}: profiling queue", paper[1], ours.profiling_queue_s, "s"),
            Claim(f"{at}: JCT", paper[2], 3600 * ours.jct, "s"),
            Claim(f"{at}: queue", paper[3], 3600 * ours.queue, "s"),
        ]
    return compare.table(claims)


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
    default = replace(runs.of("ablations", "lucid"), what="defaults")
    change = 100 * (found.jct / default.jct - 1)
    better = "better" if change < 0 else "no better"
    told = (
        "The knobs that were best on the week before change the JCT by"
        f" {change:+.1f} %: they are {better}."
    )
    return _knobs(BEFORE, runs.rows("tuner")), _knobs(TEST, [default, found]), told


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
