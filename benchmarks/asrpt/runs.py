"""The simulated runs of `benchmarks.asrpt`: which there are, and what is kept of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from benchmarks.asrpt.workload import LINKS, SERVERS, SIZE, learned, load, made
from benchmarks.harness.policies import Timed, simulate_with
from benchmarks.harness.processes import in_processes
from carmad.config import Links, Monitor, Settings
from carmad.core.ports import Policy
from carmad.core.types import Job
from carmad.learning import forest
from carmad.models import Lookup
from carmad.sim.experiment import Experiment, Physics
from carmad.sim.hardware import parse
from carmad.sim.metrics import Times, finished, times
from carmad.sim.outcome import Outcome
from carmad.sim.task import Trace
from policies.asrpt.heavy_edge import extremes
from policies.asrpt.policy import asrpt
from policies.asrpt.settings import AsrptSettings
from policies.ranked import Order, by_arrival

GBIT_MIB = 1e9 / 8 / (1 << 20)
PATIENCE = 0.5  # τ, as CARMA has it: the paper does not say which it simulated

ALL = 75_000  # jobs, on the whole cluster
# To have all policies do that takes hours. So the others are on a part of it, every fifth job on a
# fifth of the servers, and for fewer days.
PART = 5
LARGEST = 128  # GPUs of a job, on the whole cluster; on a part, as large a share of it
SIZES = (10_000, 20_000, 40_000)
MIDDLE = 20_000  # jobs, where it is not their number that varies
SHARES = (0.8, 0.4, 0.0)  # of jobs of a single GPU
NICS = (1.0, 10.0, 50.0)  # Gb/s
NO_LIMIT = 20_000.0  # Gb/s: an eighth of it is more than what there is within a server
PATIENCES = (0.0, 0.5, 5.0, 50.0)

# As in the paper jobs train from their start on. Nobody shares a GPU: how one looks just after its
# job began is of no interest, and to watch it for long takes half of a run's time.
PHYSICS, MONITOR = Physics(first_kernel_s=0.0), Monitor(window_s=1.0)

# As in the paper; as CARMA has it; and as in the paper, but whoever fits starts.
PAPER, DEFAULT, UNHELD = "A-SRPT", "A-SRPT, nothing reserved", "A-SRPT, line not held"
OURS = (PAPER, DEFAULT, UNHELD)
HOUR = 3600.0


def workload(job: Job) -> float:
    return (job.expected_s or 0.0) * job.spec.gpus


def duration(job: Job) -> float:
    return job.expected_s or 0.0


# The paper's baselines: in which order jobs go, and whether the first that does not fit holds all.
BASELINES: Mapping[str, tuple[Order, bool]] = {
    "SPJF": (duration, False),
    "SPWF": (workload, False),
    "WCS-duration": (duration, True),
    "WCS-workload": (workload, True),
    "WCS-subtime": (by_arrival, True),
}
LEARNERS: Mapping[str, forest.Learner] = {
    "forest": forest.grown,
    "median": forest.medians,
    "mean": forest.means,
}
PERFECT = "perfect"
ON_ALL = (PAPER, DEFAULT)  # policies on the whole cluster


@dataclass(frozen=True, slots=True)
class Case:
    """One run. Two tables that need the same have the same."""

    jobs: int  # of which are every `part`-th
    policy: str = PAPER
    part: int = PART
    single_gpu: float | None = None  # None: Philly's own share
    gbit: float = 10.0
    prediction: str = "forest"
    patience: float = PATIENCE  # of A-SRPT alone


@dataclass(frozen=True, slots=True)
class Result:
    """Hours, and seconds where it says so. Slow-downs are those of jobs of several GPUs, by where
    these are."""

    case: Case
    jobs: int
    load: float  # GPU time asked for, of what there is while jobs arrive
    total: float  # sum of all job completion times
    wait: float  # mean
    makespan: float
    slowdown: float  # mean
    slowest: float
    queue_max: int
    run_s: float  # processor time of the whole run
    plan_s: float  # of the policy's plans in it
    plans: int
    longest_plan_s: float

    @property
    def mean(self) -> float:
        return self.total / self.jobs


SEVERAL = Case(MIDDLE, single_gpu=0.0)  # no job of a single GPU: the paper's set for networks
# The tables of all policies, by column.
BY_SIZE = {f"{jobs:,}": Case(jobs) for jobs in SIZES}
BY_SHARE = {"Philly's 93%": Case(MIDDLE)} | {
    f"{share:.0%}": Case(MIDDLE, single_gpu=share) for share in SHARES
}
BY_NETWORK = {f"{gbit:g} Gb/s": replace(SEVERAL, gbit=gbit) for gbit in NICS}
UNSLOWED = {name: replace(case, gbit=NO_LIMIT) for name, case in BY_SHARE.items()}


def cases() -> list[Case]:
    """Each once. The longest first, so that no process is left alone with one at the end."""
    columns = [*BY_SIZE.values(), *BY_SHARE.values(), *BY_NETWORK.values(), *UNSLOWED.values()]
    found = [
        *(replace(case, policy=policy) for case in columns for policy in (*OURS, *BASELINES)),
        *(Case(ALL, policy, part) for policy in ON_ALL for part in (1, PART)),
        *(replace(SEVERAL, policy=policy, patience=p) for policy in OURS for p in PATIENCES),
        *(
            Case(MIDDLE, policy, prediction=prediction)
            for policy in OURS
            for prediction in (*LEARNERS, PERFECT)
        ),
    ]
    return sorted(dict.fromkeys(found), key=lambda case: -case.jobs / case.part)


def results(cases: Sequence[Case]) -> Iterator[Result]:
    """First all that is to be learned is: it takes as long as the runs."""
    wanted = list(dict.fromkeys(map(_lesson, cases)))
    models = dict(zip(wanted, in_processes(_learn, wanted, lambda _: ""), strict=True))
    due = [(case, models[_lesson(case)]) for case in cases]
    return in_processes(_run, due, lambda result: f"{result.case}, {result.run_s:.0f} s")


def experiment(case: Case, model: Lookup | None) -> Experiment:
    """`model`: what is learned from the jobs before; None: users know how long theirs take."""
    links = Links(LINKS.within_mib_s, case.gbit * GBIT_MIB)
    settings = Settings(policy="asrpt", predictor="forest", links=links, monitor=MONITOR)
    return Experiment(
        _trace(case.jobs, case.single_gpu, case.part, links),
        parse(f"{SERVERS // case.part}x{SIZE}xV100-32GB"),
        settings,
        interference="none",
        physics=PHYSICS,
        expected=model is None,
        models=() if model is None else (("forest", model),),
    )


def policy(case: Case) -> Callable[[Settings], Policy]:
    def made(settings: Settings) -> Policy:
        plain = asrpt(settings, AsrptSettings())
        if case.policy in BASELINES:
            by, conserving = BASELINES[case.policy]
            return replace(plain, patience=0.0, by=by, conserving=conserving)
        return replace(
            plain,
            patience=case.patience,
            reserve=case.policy != DEFAULT,
            conserving=case.policy == UNHELD,
        )

    return made


def result(case: Case, outcome: Outcome, plans_s: Sequence[float], run_s: float) -> Result:
    done = [(job, t) for job in outcome.jobs if finished(job) and (t := times(job))]
    assert len(done) == len(outcome.jobs)
    slowdowns = [_mapped(t) for job, t in done if job.task.gpus > 1]
    return Result(
        case,
        len(outcome.jobs),
        load(Trace("", tuple(job.task for job in outcome.jobs)), len(outcome.gpus)),
        sum(t.jct_s for _, t in done) / HOUR,
        fmean(t.wait_s for _, t in done) / HOUR,
        outcome.makespan_s / HOUR,
        fmean(slowdowns) if slowdowns else 1.0,
        max(slowdowns, default=1.0),
        int(max(outcome.timeline.queued)),
        run_s,
        sum(plans_s),
        len(plans_s),
        max(plans_s),
    )


def _run(due: tuple[Case, Lookup | None]) -> Result:
    case, model = due
    asked = experiment(case, model)
    # To ask for processor time can take longer than a plan.
    timed = Timed(policy(case)(asked.settings), clock=time.perf_counter)
    began = time.process_time()
    outcome = simulate_with(timed, asked)
    run_s = time.process_time() - began
    return result(case, outcome, [plan_s for _, plan_s in timed.plans], run_s)


_Lesson = tuple[str, float | None]


def _lesson(case: Case) -> _Lesson:
    return case.prediction, None if case.prediction == PERFECT else case.single_gpu


def _learn(lesson: _Lesson) -> Lookup | None:
    prediction, single_gpu = lesson
    if prediction == PERFECT:
        return None
    return learned(single_gpu=single_gpu, how=LEARNERS[prediction])


@cache
def _trace(jobs: int, single_gpu: float | None, part: int, links: Links) -> Trace:
    """Durations are those on the fewest servers, whatever the network: only who is spread wider
    than that is slowed by it."""
    trace = made(jobs, single_gpu=single_gpu)
    tasks = (
        replace(task, iteration_s=extremes(task.layout, links, SIZE).fastest_s)
        if task.layout
        else task
        for task in trace.tasks[::part]
        if task.gpus * part <= LARGEST
    )
    return Trace(trace.name, tuple(tasks))


def _mapped(t: Times) -> float:
    return t.execution_s / t.alone_s
