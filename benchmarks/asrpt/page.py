"""The page of `benchmarks.asrpt`: the paper's figures, ours, the difference and likely causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from benchmarks.asrpt import notes
from benchmarks.asrpt.runs import (
    ALL,
    BASELINES,
    BY_NETWORK,
    BY_SHARE,
    BY_SIZE,
    LEARNERS,
    MIDDLE,
    NICS,
    ON_ALL,
    OURS,
    PAPER,
    PART,
    PATIENCES,
    PERFECT,
    SEVERAL,
    SHARES,
    SIZES,
    UNSLOWED,
    Case,
    Result,
)
from benchmarks.asrpt.workload import SERVERS, SIZE
from benchmarks.harness.report import Report
from benchmarks.harness.rows import columns, verdict
from carmad.sim.report import markdown

POLICIES = (*OURS, *BASELINES)
OVERHEAD_S = 5.0  # a job, in the paper
SIMULATED_S = 600.0  # the time that 75,000 jobs may take


@dataclass(frozen=True, slots=True)
class Runs:
    """All results, by what was run."""

    of: Mapping[Case, Result]

    def change(self, case: Case, other: Case) -> float:
        """Of the total completion time, in % of the other's."""
        return 100 * (self.of[case].total / self.of[other].total - 1)

    def changes(self, case: Case, policy: str) -> dict[str, float]:
        """The policy's against each baseline, all else as in `case`."""
        mine = replace(case, policy=policy)
        return {name: self.change(mine, replace(case, policy=name)) for name in BASELINES}


def report(results: Sequence[Result]) -> Report:
    runs = Runs({result.case: result for result in results})
    sections = (
        ("## The paper's figures and ours", notes.SETTING, _beside_the_paper(runs)),
        ("## Number of jobs (figure 6)", notes.JOBS, _totals(runs, BY_SIZE), _crowd(runs)),
        ("## The whole cluster", notes.WHOLE, _whole(runs)),
        ("## Jobs of a single GPU (figure 7)", notes.SHARE, _totals(runs, BY_SHARE)),
        (
            "## Network (figure 8)",
            notes.NETWORK,
            _totals(runs, BY_NETWORK),
            _slowdowns(runs),
        ),
        ("## Where no job is slowed", notes.UNSLOWED, _totals(runs, UNSLOWED)),
        ("## Predictions (figure 9)", notes.PREDICTED, _predictions(runs)),
        ("## Reserve and patience", notes.PATIENT, _patience(runs)),
        ("## Scheduling overhead, and the simulator's", notes.OVERHEAD, _overhead(runs)),
        ("## Likely causes of the differences", notes.CAUSES),
    )
    title = "A-SRPT beside the schedulers of its paper, simulated"
    return Report(title, [*chain.from_iterable(sections)], {"runs": results})


# -- beside the paper


def _beside_the_paper(runs: Runs) -> str:
    headings = (
        "A-SRPT's total completion time",
        "paper",
        "ours",
        "apart",
        *OURS[1:],
        "likely cause",
    )
    return markdown.table(
        headings,
        [
            (
                what,
                f"{paper:+.0f} %",
                f"{ours:+.0f} %",
                f"{ours - paper:+.0f} points",
                *(f"{other:+.0f} %" for other in others),
                notes.CAUSE[why],
            )
            for what, paper, (ours, *others), why in _claims(runs)
        ],
        numbers=range(1, 6),
    )


def _claims(runs: Runs) -> Iterator[tuple[str, float, Sequence[float], str]]:
    """What, the paper's figure, that of each of `OURS`, and whose fault it is."""
    for what, paper, cases in (
        ("number of jobs", (-31, -91), BY_SIZE.values()),
        ("share of a single GPU", (-16, -57), [Case(MIDDLE, single_gpu=s) for s in SHARES]),
    ):
        found = [
            [*chain.from_iterable(runs.changes(case, mine).values() for case in cases)]
            for mine in OURS
        ]
        yield f"{what}: against any baseline, least", paper[0], [*map(max, found)], "least"
        yield f"{what}: most", paper[1], [*map(min, found)], "most"
    slow, fast = replace(SEVERAL, gbit=NICS[0]), replace(SEVERAL, gbit=NICS[-1])
    duration = [runs.changes(fast, mine)["WCS-duration"] for mine in OURS]
    yield "50 Gb/s, against WCS-duration", -12, duration, "fast"
    most = [min(runs.changes(slow, mine).values()) for mine in OURS]
    yield "1 Gb/s, most", -92, most, "slow"
    perfect = Case(MIDDLE, prediction=PERFECT)
    yield (
        "against perfect prediction",
        14,
        [runs.change(Case(MIDDLE, mine), replace(perfect, policy=mine)) for mine in OURS],
        "prediction",
    )


# -- all figures


def _totals(runs: Runs, cases: Mapping[str, Case]) -> str:
    """Total completion time, and A-SRPT's change against it."""
    headings = ("thousand hours", *chain.from_iterable((name, "A-SRPT's") for name in cases))
    rows = []
    for policy in POLICIES:
        cells: list[str] = []
        for case in cases.values():
            its = replace(case, policy=policy)
            total = f"{runs.of[its].total / 1000:,.1f}"
            cells += [total, "" if policy == PAPER else f"{runs.change(case, its):+.0f} %"]
        rows.append((policy, *cells))
    return markdown.table(headings, rows, numbers=range(1, len(headings)))


def _crowd(runs: Runs) -> str:
    """How crowded it was, under A-SRPT."""
    results = [runs.of[case] for case in BY_SIZE.values()]
    headings = ("A-SRPT", *BY_SIZE)
    rows = [
        ("load while jobs arrive", *(f"{each.load:.1f}" for each in results)),
        ("most jobs in line", *(f"{each.queue_max:,}" for each in results)),
        ("mean completion time, h", *(f"{each.mean:.1f}" for each in results)),
        ("mean time in line, h", *(f"{each.wait:.1f}" for each in results)),
        ("makespan, days", *(f"{each.makespan / 24:.1f}" for each in results)),
    ]
    return markdown.table(headings, rows, numbers=range(1, len(headings)))


def _whole(runs: Runs) -> str:
    def change(result: Result) -> str:
        paper = replace(result.case, policy=PAPER)
        return "" if paper == result.case else f"{runs.change(paper, result.case):+.0f} %"

    return columns(
        [runs.of[Case(ALL, policy, part)] for part in (1, PART) for policy in ON_ALL],
        ("", "{0.case.policy}"),
        ("servers", lambda result: f"{SERVERS // result.case.part}"),
        ("jobs", "{0.jobs:,}"),
        ("thousand h", lambda result: f"{result.total / 1000:,.1f}"),
        ("A-SRPT's", change),
        ("mean h", "{0.mean:.1f}"),
        ("in line h", "{0.wait:.1f}"),
        ("slow-down", "{0.slowdown:.2f}"),
        ("most in line", "{0.queue_max:,}"),
        ("makespan, days", lambda result: f"{result.makespan / 24:.0f}"),
    )


def _slowdowns(runs: Runs) -> str:
    headings = ("slow-down by spreading: mean, worst", *BY_NETWORK)
    rows = []
    for policy in POLICIES:
        found = [runs.of[replace(case, policy=policy)] for case in BY_NETWORK.values()]
        rows.append((policy, *(f"{each.slowdown:.2f}, {each.slowest:.0f}" for each in found)))
    return markdown.table(headings, rows, numbers=range(1, len(headings)))


def _predictions(runs: Runs) -> str:
    headings = ("", *(f"{policy}: {what}" for policy in OURS for what in _BESIDE))
    rows = []
    for prediction in (*LEARNERS, PERFECT):
        cells: list[str] = []
        for policy in OURS:
            case = Case(MIDDLE, policy, prediction=prediction)
            above = runs.change(case, replace(case, prediction=PERFECT))
            cells += [f"{runs.of[case].total / 1000:,.1f}", f"{above:+.0f} %"]
        rows.append((prediction, *cells))
    return markdown.table(headings, rows, numbers=range(1, len(headings)))


_BESIDE = ("thousand h", "above perfect")


def _patience(runs: Runs) -> str:
    headings = ("τ", *(f"{policy}: {what}" for policy in OURS for what in _SUFFERED))
    rows = []
    for patience in PATIENCES:
        cells: list[str] = []
        for policy in OURS:
            result = runs.of[replace(SEVERAL, policy=policy, patience=patience)]
            cells += [f"{result.total / 1000:,.1f}", f"{result.slowdown:.2f}", f"{result.wait:.1f}"]
        rows.append((f"{patience:g}", *cells))
    return markdown.table(headings, rows, numbers=range(len(headings)))


_SUFFERED = ("thousand h", "slow-down", "in line h")


def _overhead(runs: Runs) -> str:
    cases = [
        *(Case(ALL, policy, 1) for policy in ON_ALL),
        *(Case(SIZES[-1], policy) for policy in POLICIES),
    ]
    return columns(
        [runs.of[case] for case in cases],
        ("", "{0.case.policy}"),
        ("GPUs", lambda result: f"{SERVERS // result.case.part * SIZE:,}"),
        ("jobs", "{0.jobs:,}"),
        ("plans", "{0.plans:,}"),
        ("ms a plan", lambda result: f"{1000 * result.plan_s / result.plans:.2f}"),
        ("worst", lambda result: f"{1000 * result.longest_plan_s:.0f}"),
        ("ms a job", lambda result: f"{1000 * result.plan_s / result.jobs:.1f}"),
        ("paper", lambda _: f"≤ {1000 * OVERHEAD_S:,.0f}"),
        ("whole run s", "{0.run_s:.0f}"),
        ("wanted", lambda result: f"≤ {SIMULATED_S:.0f}" if result.case.part == 1 else ""),
        (
            "",
            lambda result: verdict(result.run_s <= SIMULATED_S if result.case.part == 1 else None),
        ),
        text=(0, 10),
    )
