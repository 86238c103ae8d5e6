"""What a placement in two stages costs on a cluster: Slurm chooses the node by the sums that jobs
asked for, the node's own core the GPUs by measurement. Compared with one core that sees all GPUs.

Jobs are sequences of Philly's (one per seed) for at most a node's 8 GPUs, cut to a day each, and
their submissions are moved closer together for the load that is asked for: the jobs' work alone,
over all GPUs, while jobs are submitted. Estimates are wrong by a log-normal factor per model, and
whole GiB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.harness import Report, columns
from carma_simulator import metrics
from carma_simulator.experiment import Experiment, Outcome, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.public import philly
from carma_simulator.traces.rows import in_order
from carma_simulator.traces.sources import assign
from carmad.config import Settings
from lab.cluster.stages import First, simulate_staged
from lab.data import DATA
from lab.main import main
from lab.processes import in_processes

POLICIES = ("exclusive", "magm", "lug", "rr", "first_fit")
NODE_GPUS, KIND = 8, "A100-40GB"
LONGEST_S = 86_400.0
ERROR = 0.25  # σ of the logarithm of an estimate
GIB = 1024  # MiB

ONE = "one stage"
SLURM = "two stages"
# What is changed in the first stage, or in the jobs, to see what the difference is due to.
WAYS: dict[str, First | None] = {
    ONE: None,
    SLURM: First(),
    "packed": First("packed"),
    "exact sums": First(unit_mib=1),
    "measured": First("measured"),
    "measured, late": First("measured", late=True),
    "late": First(late=True),
    "GPUs counted": First(unit_mib=0),
}
CAUSES = tuple(way for way in WAYS if way not in (ONE, SLURM))


@dataclass(frozen=True, slots=True)
class Case:
    policy: str
    way: str
    nodes: int
    load: float
    jobs_per_gpu: float
    single: bool  # jobs of one GPU only
    seed: int


@dataclass(frozen=True, slots=True)
class Last:
    """The job that ended last, and so made the makespan."""

    gpus: int
    wait_h: float
    slowdown: float  # from its launch to its end, over what it takes alone


@dataclass(frozen=True, slots=True)
class Run:
    case: Case
    jobs: int
    unfinished: int
    jct_mean_s: float
    jct_median_s: float
    jct_p95_s: float
    makespan_s: float
    oom: int
    busy: float  # share of GPU time with a job, up to the last end
    sm_active: float  # over the same
    spread: int  # jobs on GPUs of several nodes
    first_wait_s: float | None  # per job, as in `Staged`
    node_wait_s: float | None
    wait_beside_idle: float | None
    last: Last
    wall_s: float


def measure(
    nodes: int = 2000,
    seeds: int = 5,
    load: float = 1.1,
    jobs_per_gpu: float = 1.0,
    policies: str = ",".join(POLICIES),
    causes: bool = False,
    single: bool = False,
) -> Report:
    """`causes`: with every variant of the first stage, too."""
    names = tuple(policies.split(","))
    ways = (ONE, SLURM, *(CAUSES if causes else ()))
    cases = [
        Case(policy, way, nodes, load, jobs_per_gpu, single, seed)
        for policy in names
        for seed in range(1, seeds + 1)
        for way in ways
    ]
    runs = list(in_processes(run, cases, _told))
    jobs = fmean(each.jobs for each in runs)
    kinds = "jobs of one GPU only" if single else f"jobs of up to {NODE_GPUS} GPUs"
    return Report(
        f"Two stages on {nodes:,} nodes",
        [
            f"{nodes * NODE_GPUS:,} GPUs ({nodes}x{NODE_GPUS}x{KIND}), {jobs:,.0f} {kinds}, "
            f"load {load:g}; ratios to one stage of the same policy and seed: mean (lowest-highest "
            f"of {seeds} seeds)",
            _table(runs, names, ways),
        ],
        {"runs": runs},
        [
            "one stage: one core, all GPUs; two stages: the least loaded node by what was asked "
            "for, among those where the sum of memory fits",
            "wait: per job, in the first stage and at its node; beside idle: the share of the wait "
            "at nodes while any GPU of the cluster was idle",
            "last job: that ended last, by seed",
        ],
        name=f"cluster_{nodes}" + ("_causes" if causes else "") + ("_single" if single else ""),
    )


def run(case: Case) -> Run:
    experiment, first = experiment_of(case), WAYS[case.way]
    if first is None:
        return _measured(case, simulate(experiment))
    staged = simulate_staged(experiment, first)
    waits = staged.first_wait_s, staged.node_wait_s, staged.wait_beside_idle
    return _measured(case, staged.outcome, *waits)


def experiment_of(case: Case) -> Experiment:
    gpus = case.nodes * NODE_GPUS
    trace = _drawn(case.seed, round(gpus * case.jobs_per_gpu), 1 if case.single else NODE_GPUS)
    return Experiment(
        replace(trace, tasks=loaded(trace.tasks, gpus, case)),
        parse(f"{case.nodes}x{NODE_GPUS}x{KIND}"),
        Settings(policy=case.policy),
        estimator="known",
        seed=case.seed,
    )


@cache
def _philly() -> Trace:
    return philly(DATA / "philly" / "philly.csv")


@lru_cache(maxsize=8)
def _drawn(seed: int, count: int, gpus: int) -> Trace:
    """So many consecutive jobs, of those for at most `gpus` GPUs each."""
    small = [task for task in _philly().tasks if task.gpus <= gpus]
    begin = Random(f"cluster/{seed}").randrange(len(small) - count + 1)
    run = small[begin : begin + count]
    return assign(in_order(f"philly[{begin}:{begin + count}]", run), seed)


def loaded(tasks: Sequence[Task], gpus: int, case: Case) -> tuple[Task, ...]:
    """The tasks, cut to a day, with estimates, at such times that they load the GPUs as wanted."""
    cut = [replace(task, duration_s=min(task.duration_s, LONGEST_S)) for task in tasks]
    work_s = sum(task.gpus * task.duration_s for task in cut)
    factor = work_s / (gpus * case.load) / (cut[-1].submit_s - cut[0].submit_s)
    return tuple(
        replace(
            task,
            submit_s=round((task.submit_s - cut[0].submit_s) * factor),
            estimates=(("known", _estimate(task, case.seed)),),
        )
        for task in cut
    )


def _estimate(task: Task, seed: int) -> int:
    """The same for each run of a model."""
    load = task.load
    dice = Random(f"{seed}/{load.model}/{load.batch_size}")
    return GIB * math.ceil(load.memory_mib * dice.lognormvariate(0.0, ERROR) / GIB)


def _measured(
    case: Case,
    outcome: Outcome,
    first_wait_s: float | None = None,
    node_wait_s: float | None = None,
    wait_beside_idle: float | None = None,
) -> Run:
    figures = metrics.figures(outcome)
    assert figures.jct and figures.over_makespan and figures.gpus_busy is not None
    lasts = (job.attempts[-1].gpus for job in outcome.jobs if job.attempts)
    return Run(
        case,
        figures.jobs,
        figures.jobs - figures.finished,
        figures.jct.mean,
        figures.jct.median,
        figures.jct.p95,
        outcome.makespan_s,
        figures.oom_crashes,
        figures.gpus_busy,
        figures.over_makespan.sm_active,
        sum(len({gpu.rpartition("/")[0] for gpu in gpus}) > 1 for gpus in lasts),
        first_wait_s,
        node_wait_s,
        wait_beside_idle,
        _last(outcome),
        outcome.wall_s,
    )


def _last(outcome: Outcome) -> Last:
    job = max(outcome.jobs, key=lambda job: job.ended_at)
    attempt = job.attempts[-1]
    ran_s = attempt.ended_at - attempt.launched_at
    wait_s = attempt.launched_at - job.task.submit_s
    return Last(job.task.gpus, wait_s / 3600, ran_s / job.alone_s)


def _told(run: Run) -> str:
    case = run.case
    jct = f"JCT {run.jct_mean_s:.0f} s, median {run.jct_median_s:.0f} s"
    return f"{case.policy}, {case.way}, seed {case.seed}: {jct}, {run.wall_s:.0f} s"


def _table(runs: Sequence[Run], policies: Sequence[str], ways: Sequence[str]) -> str:
    found = {(each.case.policy, each.case.way, each.case.seed): each for each in runs}
    seeds = sorted({each.case.seed for each in runs})

    def of(row: tuple[str, str], field: str) -> list[Any]:
        return [getattr(found[*row, seed], field) for seed in seeds]

    def ratio(row: tuple[str, str], field: str) -> str:
        pairs = zip(of(row, field), of((row[0], ONE), field), strict=True)
        ratios = [mine / its for mine, its in pairs]
        if row[1] == ONE:
            return f"{fmean(of(row, field)) / 3600:.2f} h"
        return f"{fmean(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"

    def lasts(row: tuple[str, str], form: str) -> str:
        return ", ".join(map(form.format, of(row, "last")))

    def waits(row: tuple[str, str]) -> str:
        if row[1] == ONE:
            return ""
        return f"{fmean(of(row, 'first_wait_s')):.0f} + {fmean(of(row, 'node_wait_s')):.0f}"

    return columns(
        [(policy, way) for policy in policies for way in ways],
        ("policy", "{0[0]}"),
        ("", "{0[1]}"),
        ("JCT mean", lambda row: ratio(row, "jct_mean_s")),
        ("median", lambda row: ratio(row, "jct_median_s")),
        ("p95", lambda row: ratio(row, "jct_p95_s")),
        ("makespan", lambda row: ratio(row, "makespan_s")),
        ("OOM crashes", lambda row: f"{fmean(of(row, 'oom')):.1f}"),
        ("GPUs busy", lambda row: f"{fmean(of(row, 'busy')):.3f}"),
        ("SMACT", lambda row: f"{fmean(of(row, 'sm_active')):.3f}"),
        ("wait s", waits),
        ("beside idle", lambda row: _share(of(row, "wait_beside_idle"))),
        ("on several nodes", lambda row: f"{fmean(of(row, 'spread')):.0f}"),
        ("last job's GPUs", lambda row: lasts(row, "{0.gpus}")),
        ("wait h", lambda row: lasts(row, "{0.wait_h:.1f}")),
        ("slow-down", lambda row: lasts(row, "{0.slowdown:.2f}")),
        ("unfinished", lambda row: f"{fmean(of(row, 'unfinished')):.0f}"),
        ("wall s, longest", lambda row: f"{max(of(row, 'wall_s')):.0f}"),
        text=(0, 1),
    )


def _share(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.0%}" if known else ""


if __name__ == "__main__":
    main("cluster", measure, DATA)
