"""`python -m benchmarks.lucid`: Lucid beside the schedulers of its paper; paper | ours | difference.

Philly's first week of October 2017 (Lucid paper, table 4), Muri's traces, the ablations of figure
11, T_prof as in table 6, how long a plan takes (4.4), and whether knobs tuned on the week before
are better than the defaults (3.6.1). `benchmarks.lucid_workload` says what is simulated and what
was decided where the paper is silent. Reads ../shared/data, writes results/lucid.{json,md}. Nothing
was tuned to the paper's results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from benchmarks.lucid_latency import PLANS, QUEUED, Latency, latencies
from benchmarks.lucid_runs import (
    BUSY,
    FEW,
    LIMITS_S,
    MURI,
    POLICIES,
    TUNED,
    WHOLE,
    Result,
    cases,
    gpus_of,
    knobs_told,
    processes,
    results,
    tuned,
)
from benchmarks.lucid_workload import BEFORE, DATA, TEST, busy, nearest_week, week
from benchmarks.rows import RESULTS, circumstances
from carmad.sim.report import compare, markdown
from carmad.sim.report.compare import Claim

# Lucid paper, table 4 on Philly: hours of JCT, of queueing, and of queueing at the 99.9th percentile
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
HEADINGS = (
    *("", "JCT h", "queue h", "p99.9 queue h", "slowdown", "lost s", "longest queue"),
    *("preempted", "OOM", "makespan h"),
)


class Runs:
    """Results by table and row."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = results

    def of(self, table: str, what: str, trace: str | None = None) -> Result:
        return next(
            r
            for r in self.results
            if (r.table, r.what) == (table, what) and trace in (None, r.trace)
        )

    def table(self, name: str) -> str:
        found = [each for each in self.results if each.table == name]
        return markdown.table(HEADINGS, [_cells(each) for each in found], range(1, len(HEADINGS)))


def main() -> None:
    if not DATA.exists():
        sys.exit(f"the public traces are not here: {DATA}")
    facts = {**circumstances(), "command": "`python -m benchmarks.lucid`"}
    taken = latencies()  # first: the runs below take all cores
    found = list(results(cases(), processes()))
    best = min(TUNED, key=lambda knobs: Runs(found).of("tuner", knobs_told(*knobs)).jct)
    found += results([tuned(best)], 1)
    text = page(Runs(found), taken, facts, best)
    print(text)
    (RESULTS / "lucid.md").write_text(text)
    data = {
        "facts": facts,
        "runs": [asdict(each) for each in found],
        "plans": [asdict(each) for each in taken],
    }
    (RESULTS / "lucid.json").write_text(json.dumps(data, indent=1) + "\n")


def page(
    runs: Runs, taken: Sequence[Latency], facts: Mapping[str, str], best: tuple[float, int, int]
) -> str:
    sections = (
        ("# Lucid beside other schedulers, simulated", *_facts(facts)),
        ("## The trace", TRACE, _trace()),
        ("## As many GPUs as in the paper", WHOLE_TOLD, runs.table(cluster(WHOLE))),
        ("## As long a queue as in the paper", BUSY_TOLD, compare.table(list(_claims(runs)))),
        (runs.table(cluster(BUSY)),),
        ("## Lucid against each other policy", RATIOS, compare.table(list(_ratios(runs)))),
        ("## Muri's traces, 64 V100", MURI_TOLD, *(_muri(runs, number) for number in MURI)),
        ("## Ablations (figure 11)", FEW_TOLD, runs.table("ablations")),
        (compare.table(list(_ablations(runs))),),
        ("## What the result hangs on", VARIANTS, runs.table("variants")),
        ("## T_prof (table 6)", LIMITS, _limits(runs)),
        ("## How long a plan takes (4.4)", PLANS_TOLD, _plans(taken)),
        ("## Knobs tuned on the week before (3.6.1)", TUNER, *_tuner(runs, best)),
        ("## Likely causes of the differences", CAUSES),
    )
    return "\n\n".join(part for section in sections for part in section) + "\n"


def _facts(facts: Mapping[str, str]) -> Iterator[str]:
    yield "\n".join(f"- {name}: {value}" for name, value in facts.items())


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


def _claims(runs: Runs) -> Iterator[Claim]:
    """Table 4."""
    for n, what in enumerate(("JCT", "queue", "p99.9 queue")):
        for policy in POLICIES:
            mine = runs.of(cluster(BUSY), policy)
            ours = (mine.jct, mine.queue, mine.queue_p999)[n]
            note = NOTES.get((what, policy), "")
            yield Claim(f"{what}, {policy}", PAPER[policy][n], ours, "h", note)


def _ratios(runs: Runs) -> Iterator[Claim]:
    lucid = runs.of(cluster(BUSY), "lucid")
    for policy in POLICIES[:-1]:
        other = runs.of(cluster(BUSY), policy)
        paper = PAPER[policy][0] / PAPER["lucid"][0]
        yield Claim(f"JCT, {policy} : lucid", paper, other.jct / lucid.jct, "times")
    for policy in POLICIES[:-1]:
        other = runs.of(cluster(BUSY), policy)
        paper = PAPER[policy][1] / PAPER["lucid"][1]
        yield Claim(f"queue, {policy} : lucid", paper, other.queue / lucid.queue, "times")


def _muri(runs: Runs, number: int) -> str:
    found = [r for r in runs.results if (r.table, r.trace) == ("muri", f"muri {number}")]
    lines = [f"Trace {number}, {found[0].jobs} jobs:", ""]
    rows = [_cells(each) for each in found]
    return "\n".join([*lines, markdown.table(HEADINGS, rows, range(1, len(HEADINGS)))])


def _ablations(runs: Runs) -> Iterator[Claim]:
    whole = runs.of("ablations", "lucid").queue
    for what, paper, note in (
        ("without binder", 1.4, "naive: wherever memory allows it"),
        ("without estimator", 2.2, "in order of arrival"),
    ):
        ours = runs.of("ablations", what).queue / whole
        yield Claim(f"queue, {what} : whole", paper, ours, "times", note)
    unshared = runs.of("ablations", "without sharing").queue
    qssf = runs.of("ablations", "qssf").queue / unshared
    yield Claim("queue, qssf : without sharing", 2.0, qssf, "times", "paper: over 2.0")
    first, last = (runs.of("profiler", w) for w in ("in order of arrival", "space-aware"))
    ratio = first.profiling_queue_s / last.profiling_queue_s
    yield Claim("profiling queue, by arrival : space-aware", 11.6, ratio, "times", PROFILER_NOTE)


def _limits(runs: Runs) -> str:
    claims = []
    for run_s in LIMITS_S:
        ours, paper = runs.of("limits", f"{run_s:.0f} s"), PAPER_LIMITS[run_s]
        at = f"T_prof {run_s:.0f} s"
        claims += [
            Claim(f"{at}: end while profiled", paper[0], 100 * ours.profiled, "%"),
            Claim(f"{at}: profiling queue", paper[1], ours.profiling_queue_s, "s"),
            Claim(f"{at}: JCT", paper[2], 3600 * ours.jct, "s"),
            Claim(f"{at}: queue", paper[3], 3600 * ours.queue, "s"),
        ]
    return compare.table(claims)


def _plans(taken: Sequence[Latency]) -> str:
    rows = [
        (
            each.what,
            f"{each.placed}",
            f"{each.median_ms:.2f}",
            f"{each.p99_ms:.2f}",
            f"{each.tick_ms:.2f}",
            "met" if each.median_ms <= PLAN_MS else "MISSED",
        )
        for each in taken
    ]
    headings = ("", "placed", "median ms", "P99 ms", "core's whole tick, ms", "≤ 3 ms (paper: 3)")
    return markdown.table(headings, rows, range(1, 5))


def _tuner(runs: Runs, best: tuple[float, int, int]) -> tuple[str, str, str]:
    found = runs.of("tuned", "tuned knobs")
    default = runs.of("ablations", "lucid")
    tried = markdown.table(
        (f"week of {BEFORE}", "JCT h", "queue h", "profiling queue s"),
        [
            (each.what, f"{each.jct:.3f}", f"{each.queue:.3f}", f"{each.profiling_queue_s:.0f}")
            for each in runs.results
            if each.table == "tuner"
        ],
        range(1, 4),
    )
    rows = [
        (what, f"{each.jct:.3f}", f"{each.queue:.3f}", f"{each.profiling_queue_s:.0f}")
        for what, each in (("defaults", default), (knobs_told(*best), found))
    ]
    headings = (f"week of {TEST}", "JCT h", "queue h", "profiling queue s")
    change = 100 * (found.jct / default.jct - 1)
    verdict = "they are better" if change < 0 else "they are no better"
    told = f"The knobs that were best on the week before change the JCT by {change:+.1f} %: {verdict}."
    return tried, markdown.table(headings, rows, range(1, 4)), told


def _cells(one: Result) -> tuple[str, ...]:
    ended = "" if one.finished == one.jobs else f" ({one.jobs - one.finished} never ended)"
    return (
        one.what + ended,
        f"{one.jct:.2f}",
        f"{one.queue:.2f}",
        f"{one.queue_p999:.1f}",
        f"{one.slowdown:.2f}",
        f"{one.lost_s:.0f}",
        f"{one.queue_max}",
        f"{one.preemptions}",
        f"{one.oom_crashes}",
        f"{one.makespan:.0f}",
    )
