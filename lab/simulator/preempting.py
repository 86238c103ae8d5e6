"""What preemption costs the papers' preemptive policies: by ending and starting again, as their
authors have it, and by suspending, as the driver can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Literal

from benchmarks.harness import Report, columns
from carma_simulator import metrics
from carma_simulator.experiment import Experiment
from carma_simulator.run import simulate
from carmad.config import Collocation, Limits, Settings, Suspending
from lab.data import DATA
from lab.lucid.runs import PHYSICS, PREEMPTION_S
from lab.main import main
from lab.own.families import JUDGING
from lab.processes import in_processes

POLICIES = ("srtf", "tiresias")
HOST_MIB = 500_000  # per server: a DGX A100 has 1 TB
Way = bool | Literal["suspend"]  # as in `limits.preemption`: none, requeued, suspended
WAYS: tuple[Way, ...] = (False, True, "suspend")


@dataclass(frozen=True, slots=True)
class Case:
    policy: str
    family: str
    number: int  # of its traces
    way: Way


@dataclass(frozen=True, slots=True)
class Ran:
    case: Case
    jct_s: float
    p99_s: float
    makespan_s: float
    preemptions: int
    unfinished: int


def measure() -> Report:
    cases = [
        Case(policy, family.name, number, way)
        for policy in POLICIES
        for family in JUDGING
        for number in range(len(family.cases))
        for way in WAYS
    ]
    ran = {each.case: each for each in in_processes(run, cases, _progress)}
    rows = [
        (policy, family.name, list(_paired(ran, policy, family.name)))
        for policy in POLICIES
        for family in JUDGING
    ]
    return Report(
        "Preemption: requeued or suspended",
        [
            columns(
                rows,
                ("policy", "{0[0]}"),
                ("family, traces", lambda row: f"{row[1]}, {len(row[2])}"),
                ("requeued: JCT", lambda row: _median(row[2], 0, "jct_s")),
                ("suspended: JCT", lambda row: _median(row[2], 1, "jct_s")),
                ("requeued: p99", lambda row: _median(row[2], 0, "p99_s")),
                ("suspended: p99", lambda row: _median(row[2], 1, "p99_s")),
                ("requeued: makespan", lambda row: _median(row[2], 0, "makespan_s")),
                ("suspended: makespan", lambda row: _median(row[2], 1, "makespan_s")),
                ("times requeued", lambda row: f"{_sum(row[2], 0)}"),
                ("times suspended", lambda row: f"{_sum(row[2], 1)}"),
                text=(0, 1),
            )
        ],
        {"runs": [asdict(each) for each in ran.values()]},
        [
            "ratios to the same policy without preemption, medians over a family's traces (the"
            " judging ones of `lab.own`); durations and memory known; jobs are alone on their GPUs",
            f"requeued: {PREEMPTION_S:.0f} s each time, what Tiresias's authors measured",
            "suspended: the defaults of `[suspend]`, as measured on an H100, a quantum of 30 times"
            " that, and at most six times an hour",
        ],
    )


def run(case: Case) -> Ran:
    made = next(family for family in JUDGING if family.name == case.family).cases[case.number]()
    suspend = Suspending(host_memory_mib=HOST_MIB * len(made.cluster.nodes), moves=True)
    settings = Settings(
        policy=case.policy,
        limits=Limits(preemption=case.way),
        collocation=Collocation(mps=False),
        suspend=suspend if case.way == "suspend" else Suspending(),
    )
    outcome = simulate(
        Experiment(made.trace, made.cluster, settings, "oracle", "conserving", physics=PHYSICS)
    )
    figures = metrics.figures(outcome)
    assert figures.jct
    return Ran(
        case,
        figures.jct.mean,
        figures.jct.p99,
        outcome.makespan_s,
        outcome.suspensions or figures.preemptions,
        figures.unfinished,
    )


def _progress(ran: Ran) -> str:
    case = ran.case
    return f"{case.policy}, {case.family} {case.number}, {case.way}: {ran.preemptions}"


def _paired(
    ran: Mapping[Case, Ran], policy: str, family: str
) -> Iterator[tuple[Ran, tuple[Ran, Ran]]]:
    """The runs without preemption, each with those that preempt."""
    for case, plain in ran.items():
        if (case.policy, case.family, case.way) == (policy, family, False):
            requeued, suspended = (replace(case, way=way) for way in WAYS[1:])
            yield plain, (ran[requeued], ran[suspended])


def _median(pairs: list[tuple[Ran, tuple[Ran, Ran]]], which: int, what: str) -> str:
    ratios = [getattr(others[which], what) / getattr(plain, what) for plain, others in pairs]
    return f"{median(ratios):.2f}"


def _sum(pairs: list[tuple[Ran, tuple[Ran, Ran]]], which: int) -> int:
    return sum(others[which].preemptions for _, others in pairs)


if __name__ == "__main__":
    main("simulator_preempting", measure, DATA / "carma" / "trace1.csv")
