"""The page of `lab.asrpt`: the paper's figures, ours, the difference and causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

from benchmarks.harness import Report, columns, markdown_table
from lab.asrpt import notes
from lab.asrpt.runs import (
    ADAPTIVE,
    BASELINES,
    BY_LOAD,
    BY_NETWORK,
    BY_SHARE,
    BY_SIZE,
    FAST,
    LEARNERS,
    MIDDLE,
    MORE_SEEDS,
    OURS,
    PAPER,
    PERFECT,
    SEEDS,
    SHARES,
    SLOW,
    UNSLOWED,
    Case,
    Result,
)

POLICIES = (*OURS, *BASELINES)
AGAINST_PERFECT = "against perfect prediction"


@dataclass(frozen=True, slots=True)
class Beside:
    """A figure of the paper's beside ours, in %: of each of `OURS`, a value per seed.

    `on_servers`: A-SRPT's where its baselines take the servers that it would take."""

    what: str
    paper: float
    ours: Mapping[str, Sequence[float]]
    on_servers: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Runs:
    """All results, by what was run."""

    of: Mapping[Case, Result]
    count: int = SEEDS  # how many seeds count: the first ones

    def has(self, *cases: Case) -> bool:
        return all(case in self.of for case in cases)

    def there(self, cases: Mapping[str, Case]) -> dict[str, Case]:
        """Those columns that were run."""
        return {name: case for name, case in cases.items() if self.has(case)}

    def seeds(self, case: Case) -> list[Result]:
        return [self.of[replace(case, seed=seed)] for seed in range(self.count)]

    def median(self, case: Case, what: str) -> float:
        return float(median(getattr(result, what) for result in self.seeds(case)))

    def changes(self, case: Case, other: Case, what: str = "total") -> list[float]:
        """Of the total completion time in % of the other's, seed by seed."""
        pairs = zip(self.seeds(case), self.seeds(other), strict=True)
        return [100 * (getattr(one, what) / getattr(two, what) - 1) for one, two in pairs]


def report(results: Sequence[Result]) -> Report:
    runs = Runs({result.case: result for result in results})
    beside = list(against_paper(runs))
    columns = (
        ("## Load", notes.LOAD, BY_LOAD, _totals, _crowd),
        ("## Number of jobs (figure 6)", notes.JOBS, BY_SIZE, _totals),
        ("## Jobs of a single GPU (figure 7)", notes.SHARE, BY_SHARE, _totals),
        ("## Baselines on A-SRPT's servers", notes.SERVERS, BY_SHARE, _adaptive),
        ("## Network (figure 8)", notes.NETWORK, BY_NETWORK, _totals, _slowdowns),
        ("## Where no job is slowed", notes.UNSLOWED, UNSLOWED, _totals),
    )
    sections = (
        ("## The paper's figures and ours", notes.SETTING, beside_paper(beside)),
        *(
            (title, note, *(table(runs, found) for table in tables))
            for title, note, cases, *tables in columns
            if (found := runs.there(cases))
        ),
        ("## Predictions (figure 9)", notes.PREDICTED, _predictions(runs)),
        ("## Scheduling overhead", notes.OVERHEAD, _overhead(runs)),
        ("## Causes of the differences", notes.CAUSES),
    )
    title = "A-SRPT beside the schedulers of its paper, simulated"
    data = {"beside": beside, "runs": results}
    return Report(title, [*chain.from_iterable(sections)], data)


# -- beside the paper


def against_paper(runs: Runs) -> Iterator[Beside]:
    shares = [Case(MIDDLE, single_gpu=share) for share in SHARES]
    every = tuple(BASELINES)
    for what, paper, cases, pick, baselines in (
        ("Philly's jobs, against any baseline: least", -31, [Case(MIDDLE)], max, every),
        ("Philly's jobs, against any baseline: most", -91, [Case(MIDDLE)], min, every),
        ("number of jobs, against any baseline: least", -31, [*BY_SIZE.values()], max, every),
        ("number of jobs, against any baseline: most", -91, [*BY_SIZE.values()], min, every),
        ("single-GPU jobs, against any baseline: least", -16, shares, max, every),
        ("single-GPU jobs, against any baseline: most", -57, shares, min, every),
        ("1 Gb/s, against any baseline: most", -92, [SLOW], min, every),
        ("50 Gb/s, against WCS-duration", -12, [FAST], max, ("WCS-duration",)),
    ):
        if runs.has(*cases):
            yield extreme(runs, what, paper, cases, pick, baselines)
    more = replace(runs, count=MORE_SEEDS)
    yield price(more, AGAINST_PERFECT, 14, Case(MIDDLE))


def price(runs: Runs, what: str, paper: float, case: Case) -> Beside:
    """What the forest's predictions cost, against durations that are known."""
    ours = {}
    for mine in OURS:
        its = replace(case, policy=mine)
        if runs.has(known := replace(its, prediction=PERFECT)):
            ours[mine] = runs.changes(its, known)
    return Beside(what, paper, ours)


def extreme(
    runs: Runs,
    what: str,
    paper: float,
    cases: Iterable[Case],
    pick: Callable[[Iterable[float]], float],
    baselines: Iterable[str],
    prediction: str = "forest",
) -> Beside:
    """Of each seed, the least or the most that A-SRPT is ahead, of all cases and baselines.

    `prediction`: A-SRPT's."""

    def ahead(policy: str, others: Iterable[str]) -> list[float]:
        changes = [
            runs.changes(
                replace(case, policy=policy, prediction=prediction), replace(case, policy=other)
            )
            for other in others
            for case in cases
        ]
        return [pick(of_seed) for of_seed in zip(*changes, strict=True)]

    cases = list(cases)
    adaptive = [f"{name}{ADAPTIVE}" for name in baselines]
    both = runs.has(*(replace(case, policy=name) for case in cases for name in adaptive))
    return Beside(
        what,
        paper,
        {policy: ahead(policy, baselines) for policy in OURS},
        ahead(PAPER, adaptive) if both else (),
    )


def extent(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def beside_paper(rows: Sequence[Beside]) -> str:
    def cell(values: Sequence[float]) -> str:
        if not values:
            return ""
        middle, low, high = extent(values)
        return f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})"

    headings = ("total completion time", "paper", *OURS, f"A-SRPT; baselines on{ADAPTIVE[1:]}")
    return markdown_table(
        headings,
        [
            (
                row.what,
                f"{row.paper:+.0f} %",
                *(cell(row.ours.get(name, ())) for name in OURS),
                cell(row.on_servers),
            )
            for row in rows
        ],
        numbers=range(1, len(headings)),
    )


# -- all figures


def _totals(runs: Runs, cases: Mapping[str, Case]) -> str:
    """Total completion time, and A-SRPT's change against it."""
    return _table(runs, cases, POLICIES)


def _adaptive(runs: Runs, cases: Mapping[str, Case]) -> str:
    return _table(runs, cases, (PAPER, *(f"{name}{ADAPTIVE}" for name in BASELINES)))


def _table(runs: Runs, cases: Mapping[str, Case], policies: Sequence[str]) -> str:
    headings = ("thousand hours", *chain.from_iterable((name, "A-SRPT's") for name in cases))
    rows = []
    for policy in policies:
        cells: list[str] = []
        for case in cases.values():
            its = replace(case, policy=policy)
            cells.append(f"{runs.median(its, 'total') / 1000:,.2f}")
            middle, low, high = extent(runs.changes(case, its))
            cells.append("" if policy == PAPER else f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})")
        rows.append((policy, *cells))
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def _crowd(runs: Runs, cases: Mapping[str, Case]) -> str:
    """How crowded it was, under A-SRPT."""
    headings = ("A-SRPT", *cases)
    told = (
        ("load while jobs arrive", "load", ".1f"),
        ("most jobs in line", "queue_max", ",.0f"),
        ("mean completion time, h", "mean", ".1f"),
        ("mean time in line, h", "wait", ".1f"),
        ("makespan, h", "makespan", ",.0f"),
    )
    rows = [
        (name, *(format(runs.median(case, of), form) for case in cases.values()))
        for name, of, form in told
    ]
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def _slowdowns(runs: Runs, cases: Mapping[str, Case]) -> str:
    headings = ("slow-down by spreading: mean, worst", *cases)
    rows = []
    for policy in POLICIES:
        its = [replace(case, policy=policy) for case in cases.values()]
        rows.append(
            (
                policy,
                *(
                    f"{runs.median(case, 'slowdown'):.2f}, {runs.median(case, 'slowest'):.0f}"
                    for case in its
                ),
            )
        )
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


def _predictions(runs: Runs) -> str:
    headings = ("", *(f"{policy}: {what}" for policy in OURS for what in _BESIDE))
    rows = []
    for prediction in (*LEARNERS, PERFECT):
        cells: list[str] = []
        for policy in OURS:
            case = Case(MIDDLE, policy, prediction=prediction)
            above = median(runs.changes(case, replace(case, prediction=PERFECT)))
            cells += [f"{runs.median(case, 'total') / 1000:,.2f}", f"{above:+.0f} %"]
        rows.append((prediction, *cells))
    return markdown_table(headings, rows, numbers=range(1, len(headings)))


_BESIDE = ("thousand h", "above perfect")


def _overhead(runs: Runs) -> str:
    return columns(
        [runs.of[Case(MIDDLE, policy)] for policy in POLICIES],
        ("", "{0.case.policy}"),
        ("jobs", "{0.jobs:,}"),
        ("plans", "{0.plans:,}"),
        ("ms a plan", lambda result: f"{1000 * result.plan_s / result.plans:.2f}"),
        ("worst", lambda result: f"{1000 * result.longest_plan_s:.0f}"),
        ("ms a job", lambda result: f"{1000 * result.plan_s / result.jobs:.1f}"),
        ("whole run s", "{0.run_s:.1f}"),
    )
