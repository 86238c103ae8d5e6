"""The simulated runs of `lab.asrpt`: which there are, and what is kept of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from carma_simulator.experiment import Experiment, Outcome, Physics, Task, Trace
from carma_simulator.hardware import parse
from carma_simulator.metrics import Times, has_finished, times
from carmad.config import Links, Monitor, Settings
from carmad.core.jobs.job import Job
from carmad.core.placing.view import Policy
from carmad.learning.models import Lookup
from carmad.learning.training import forest
from lab.asrpt.workload import LINKS, SERVERS, SIZE, learned, load, made
from lab.policies import Timed, simulate_with
from lab.processes import in_processes
from policies.asrpt import AsrptSettings
from policies.asrpt.heavy_edge import extremes
from policies.asrpt.policy import asrpt
from policies.rules import Order, by_arrival

GBIT_MIB = 1e9 / 8 / (1 << 20)
PATIENCE = 0.5  # τ, as CARMA has it: the paper does not say which it simulated

# All policies, columns and seeds on the whole cluster would take days. So it is a part of it: a
# fifth of the servers, and as many of the jobs.
PART = 5
LARGEST = 128  # GPUs of a job, on the whole cluster; on a part, as large a share of it
SIZES = (500, 1_000, 2_000)  # jobs
MIDDLE = 1_000  # where it is not their number that varies
SHARES = (0.8, 0.4, 0.0)  # of jobs of a single GPU
NICS = (1.0, 10.0, 50.0)  # Gb/s
NO_LIMIT = 20_000.0  # Gb/s: an eighth of it is more than what there is within a server
LOADS = (0.7, 3.0)
SEEDS = 5
MORE_SEEDS = 10  # where runs are short and the windows differ much
# The testbed of figure 5: 14 GPUs on one server, sets of 75 jobs, and all times a tenth.
TESTBED, TESTBED_JOBS, TESTBED_SCALE = 14, 75, 0.1
PAI_SHARE = 0.7  # of jobs of a single GPU in PAI's trace: "over 70%" (A-SRPT paper, V-B)

# As in the paper jobs train from their start on. Nobody shares a GPU: how one looks just after its
# job began is of no interest, and to watch it for long takes half of a run's time.
PHYSICS, MONITOR = Physics(first_kernel_s=0.0), Monitor(window_s=1.0)

# As in the paper; as CARMA has it; and as in the paper, but whoever fits starts.
PAPER, DEFAULT, UNHELD = "A-SRPT", "CARMA's variant", "A-SRPT, queue not held"
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
    "forest": forest.grow,
    "median": forest.medians,
    "mean": forest.means,
}
PERFECT = "perfect"
ADAPTIVE = ", A-SRPT's servers"  # baselines that take A-SRPT's choice of servers


@dataclass(frozen=True, slots=True)
class Case:
    """One run. Two tables that need the same have the same."""

    jobs: int
    policy: str = PAPER
    seed: int = 0
    load: float | None = None  # while jobs arrive; None: as it is
    testbed: bool = False
    arrivals_h: float | None = None  # until a testbed's last job comes; None: a tenth of the trace
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
# The tables of all policies, by column, of the first seed.
BY_SIZE = {f"{jobs:,}": Case(jobs) for jobs in SIZES}
BY_SHARE = {"Philly's 93%": Case(MIDDLE)} | {
    f"{share:.0%}": Case(MIDDLE, single_gpu=share) for share in SHARES
}
BY_NETWORK = {f"{gbit:g} Gb/s": replace(SEVERAL, gbit=gbit) for gbit in NICS}
BY_LOAD = {f"load {load:g}": Case(MIDDLE, load=load) for load in LOADS}
UNSLOWED = {name: replace(BY_SHARE[name], gbit=NO_LIMIT) for name in ("Philly's 93%", "0%")}
# The claims of networks, and of prediction.
SLOW, FAST = (replace(SEVERAL, gbit=gbit) for gbit in (NICS[0], 50.0))
ON_SERVERS = (*BY_SHARE.values(), *BY_SIZE.values(), SLOW, FAST)  # baselines run both ways
# All of PAI's jobs, as the paper has it, not a part of them. What is printed of the sets: 75
# consecutive jobs of a trace with one every 7 s, times a tenth (so all come within a minute), over
# 70 % of one GPU. "On the order of hours" is how long a method takes. Beside it: Philly's own
# demands, and arrivals over an hour.
SMALL = Case(TESTBED_JOBS, testbed=True, part=1, single_gpu=PAI_SHARE, patience=0.0)
SMALLS = {
    "as printed": SMALL,
    "Philly's demands": replace(SMALL, single_gpu=None),
    "arrivals over an hour": replace(SMALL, arrivals_h=1.0),
}


def cases(few: bool = False) -> list[Case]:
    """Each once; all of a seed together."""
    both: Sequence[Case] = ON_SERVERS
    columns = [*both, *BY_NETWORK.values(), *BY_LOAD.values(), *UNSLOWED.values()]
    if few:
        both = both[:1]
        columns = [*both, *BY_LOAD.values()]
    found = [
        *(replace(case, policy=policy) for case in columns for policy in (*OURS, *BASELINES)),
        *(replace(case, policy=policy + ADAPTIVE) for case in both for policy in BASELINES),
        *(
            Case(MIDDLE, policy, prediction=prediction)
            for policy in OURS
            for prediction in (*LEARNERS, PERFECT)
        ),
    ]
    predicted = [
        Case(MIDDLE, policy, prediction=prediction)
        for policy in OURS
        for prediction in ("forest", PERFECT)
    ]
    return [*_of_seeds(found, range(SEEDS)), *_of_seeds(predicted, range(SEEDS, MORE_SEEDS))]


def testbed() -> list[Case]:
    """Figure 5."""
    found = [
        its
        for case in SMALLS.values()
        for its in (
            *(replace(case, policy=policy) for policy in (*OURS, *BASELINES)),
            *(replace(case, policy=policy, prediction=PERFECT) for policy in OURS),
        )
    ]
    return _of_seeds(found, range(MORE_SEEDS))


def _of_seeds(found: Sequence[Case], seeds: Iterable[int]) -> list[Case]:
    return [replace(case, seed=seed) for seed in seeds for case in dict.fromkeys(found)]


def results(cases: Sequence[Case]) -> Iterator[Result]:
    """First all that is to be learned is: it takes as long as the runs."""
    wanted = list(dict.fromkeys(map(_lesson, cases)))
    models = dict(zip(wanted, in_processes(_learn, wanted, lambda _: ""), strict=True))
    due = [(case, models[_lesson(case)]) for case in cases]
    return in_processes(_run, due, lambda result: f"{result.case}, {result.run_s:.0f} s")


def experiment(case: Case, model: Lookup | None) -> Experiment:
    """`model`: what is learned from the jobs before; None: users know how long theirs take."""
    if model and case.testbed:
        seconds = {group: TESTBED_SCALE * took_s for group, took_s in model.seconds.items()}
        model = replace(model, seconds=seconds)
    links = Links(LINKS.within_mib_s, case.gbit * GBIT_MIB)
    servers, size = (1, TESTBED) if case.testbed else (SERVERS // case.part, SIZE)
    settings = Settings(policy="asrpt", predictor="forest", links=links, monitor=MONITOR)
    return Experiment(
        _submitted(case, _trace(case.jobs, case.seed, case.single_gpu, case.part, links)),
        parse(f"{servers}x{size}xV100-32GB"),
        settings,
        interference="none",
        physics=PHYSICS,
        expected=model is None,
        models=() if model is None else (("forest", model),),
    )


def policy(case: Case) -> Callable[[Settings], Policy]:
    def made(settings: Settings) -> Policy:
        plain = asrpt(settings, AsrptSettings())
        name, adaptive, _ = case.policy.partition(ADAPTIVE)
        if name in BASELINES:
            by, conserving = BASELINES[name]
            plain = replace(plain, patience=0.0, adaptive=bool(adaptive))
            return replace(plain, by=by, conserving=conserving)
        return replace(
            plain,
            patience=case.patience,
            reserve=case.policy != DEFAULT,
            conserving=case.policy == UNHELD,
        )

    return made


def result(case: Case, outcome: Outcome, plans_s: Sequence[float], run_s: float) -> Result:
    done = [(job, t) for job in outcome.jobs if has_finished(job) and (t := times(job))]
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


_Lesson = tuple[str, float | None, int]


def _lesson(case: Case) -> _Lesson:
    perfect = case.prediction == PERFECT
    return case.prediction, None if perfect else case.single_gpu, case.part


def _learn(lesson: _Lesson) -> Lookup | None:
    prediction, single_gpu, part = lesson
    if prediction == PERFECT:
        return None
    return learned(single_gpu, LEARNERS[prediction], part)


def _submitted(case: Case, trace: Trace) -> Trace:
    """The trace as the case submits it."""
    if case.testbed:
        few = [task for task in trace.tasks if task.gpus <= TESTBED]
        faster = TESTBED_SCALE
        if case.arrivals_h is not None:
            faster = case.arrivals_h * HOUR / few[-1].submit_s
        return replace(trace, tasks=tuple(_scaled(t, faster, TESTBED_SCALE) for t in few))
    if case.load is None:
        return trace
    slower = load(trace, SERVERS // case.part * SIZE) / case.load
    return replace(trace, tasks=tuple(_scaled(task, slower, 1.0) for task in trace.tasks))


def _scaled(task: Task, submitted: float, lasting: float) -> Task:
    duration_s = lasting * task.duration_s
    return replace(task, submit_s=submitted * task.submit_s, duration_s=duration_s)


@cache
def _trace(jobs: int, seed: int, single_gpu: float | None, part: int, links: Links) -> Trace:
    """Durations are those on the fewest servers, whatever the network: only who is spread wider
    than that is slowed by it."""
    trace = made(jobs, seed, single_gpu, part=part)
    tasks = (
        replace(task, iteration_s=extremes(task.layout, links, SIZE).fastest_s)
        if task.layout
        else task
        for task in trace.tasks
        if task.gpus * part <= LARGEST
    )
    return Trace(trace.name, tuple(tasks))


def _mapped(t: Times) -> float:
    return t.execution_s / t.alone_s
