"""The simulated runs of `benchmarks.lucid`: which there are, and what is kept of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal
from unittest import mock

from benchmarks.harness.policies import simulate_with
from benchmarks.harness.processes import in_processes
from benchmarks.lucid.workload import BEFORE, TEST, Models, muri_trace, pairs, trained, week
from carmad import registry
from carmad.config import Limits, Profiling, Settings
from carmad.sim import metrics
from carmad.sim.experiment import Experiment
from carmad.sim.hardware import parse
from carmad.sim.outcome import JobOutcome, Outcome
from carmad.sim.task import Trace
from carmad.sim.traces.rows import ordered
from policies.lucid import binder

POLICIES = ("fifo", "sjf", "qssf", "horus", "tiresias", "lucid")
# Nodes of eight: the paper's; those on which FIFO's mean queueing comes nearest to the paper's, as
# trying has shown; a third of them.
WHOLE, BUSY, FEW = 108, 43, 14
SAMPLES = 3  # with FEW nodes: every so many-th job, from the first, the second …
MURI, MURI_GPUS = (1, 2, 3), "8x8xV100-32GB"  # as in its artifact
PROFILER = Profiling(run_s=200.0, gpus=16, largest=8)  # two nodes, as the artifact has for Philly
IN_PLACE = replace(PROFILER, gpus=0)
SMALL = replace(PROFILER, gpus=8)  # of FEW nodes: one is as little as can be
LOOKS_AHEAD = 5  # Horus, jobs in line
LIMITS_S = (100.0, 200.0, 300.0, 600.0)  # T_prof of table 6
TUNED = tuple(product((100.0, 200.0), (8, 16), (1, 2)))  # T_prof, its GPUs, GSS; with the defaults
HOUR = 3600.0
NEVER = 1e9  # times as long: never too long for a pair
TIMELESS = "lucid, no time-aware rule"

Knobs = tuple[float, int, int]
Known = Literal["nothing", "truth", "plain", "profiled"]  # of durations: see `Case`
KNOWS: Mapping[str, Known] = {"sjf": "truth", "qssf": "plain", "lucid": "profiled"}


@dataclass(frozen=True, slots=True)
class Case:
    """`knows`: durations as they are, or from a model of what is known at submission, or of that
    and of the profile. `ablation`: fields of the policy that are not as ever."""

    table: str
    what: str
    trace: str
    gpus: str
    settings: Settings
    knows: Known = "nothing"
    ablation: Mapping[str, Any] = field(default_factory=dict)
    outlasts: float = binder.OUTLASTS  # of the time-aware rule
    measured: bool = True  # interference by measured pairs, else as `learned`


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run. Times are means over jobs, hours where nothing else is said."""

    table: str
    what: str
    trace: str
    gpus: str
    jobs: int
    finished: int
    jct: float
    queue: float
    queue_p999: float
    lost_s: float  # in profiling runs that came to nothing, and crashes
    slowdown: float
    preemptions: int
    oom_crashes: int
    queue_max: int
    busy: float  # share of GPU time with any job
    makespan: float
    profiled: float  # share of all jobs that ended in their profiling run
    profiling_queue_s: float  # before it
    wall_s: float


def cases() -> list[Case]:
    found = (_headline(), _muri(), _ablations(), _variants(), _limits(), _tuner())
    return list(chain.from_iterable(found))


def tuned(best: Knobs) -> list[Case]:
    """The knobs that were best on the week before, on the test week."""
    return list(_few("tuned", "tuned knobs", TEST, _knobs(*best)))


@dataclass(frozen=True, slots=True)
class Given:
    """What all runs have in common."""

    models: Mapping[Known, Models]
    interference: str


def prepared(directory: Path) -> Given:
    """The models, trained, and the measured pairs, which are written to the directory."""
    models = in_processes(_models, MODELS, lambda _: "")
    return Given(dict(zip(MODELS, models, strict=True)), pairs(directory))


def results(cases: Sequence[Case], given: Given) -> Iterator[Result]:
    def told(result: Result) -> str:
        return f"{result.table}, {result.what}, {result.trace}: {result.wall_s:.0f} s"

    return in_processes(run, cases, told, begin=_take, given=(given,))


# -- which runs there are


def settings(
    policy: str, profiling: Profiling = PROFILER, capacity: int = 2, window_s: float = 30.0
) -> Settings:
    """CARMA's defaults, but for what the policy's paper asks for."""
    base = Settings()
    return replace(
        base,
        policy=policy,
        predictor="additive",
        limits=Limits(
            preemption=policy == "tiresias", backfill=LOOKS_AHEAD if policy == "horus" else 0
        ),
        profiling=profiling,
        plugins={"policies.lucid": {"sharing_capacity": capacity}},
        monitor=replace(base.monitor, window_s=window_s),
    )


def cluster(nodes: int) -> str:
    return f"{nodes}x8xRTX3090-24GB"


def _headline() -> Iterator[Case]:
    for gpus in (cluster(WHOLE), cluster(BUSY)):
        for policy in POLICIES:
            knows = KNOWS.get(policy, "nothing")
            yield Case(gpus, policy, f"philly {TEST}", gpus, settings(policy), knows)
    timeless = Case(gpus, TIMELESS, f"philly {TEST}", gpus, settings("lucid"), "profiled")
    yield replace(timeless, outlasts=NEVER)


def _muri() -> Iterator[Case]:
    """Muri names no users and no dates to learn from: whoever asks for durations is told them."""
    for number in MURI:
        for policy in POLICIES:
            knows: Known = "truth" if policy in KNOWS else "nothing"
            made = settings(policy, SMALL)
            yield Case("muri", policy, f"muri {number}", MURI_GPUS, made, knows, measured=False)
    made = settings("lucid", IN_PLACE)
    trace = f"muri {MURI[-1]}"  # the smallest
    yield Case("muri", "lucid, profiled in place", trace, MURI_GPUS, made, "truth", measured=False)


def _few(
    table: str, what: str, day: str, made: Settings, knows: Known = "profiled", **ablation: Any
) -> Iterator[Case]:
    """A third of the jobs on a third of the nodes, for each third: a row is the mean of the three.

    In one alone much hangs on when its one job of eight GPUs and 26 days starts."""
    for sample in range(SAMPLES):
        trace = f"philly {day} {sample}"
        yield Case(table, what, trace, cluster(FEW), made, knows, ablation)


def _ablations() -> Iterator[Case]:
    made = settings("lucid", SMALL)
    yield from _few("ablations", "qssf", TEST, settings("qssf"), "plain")
    yield from _few("ablations", "lucid", TEST, made)
    yield from _few("ablations", "without binder", TEST, made, sharing="naive")
    yield from _few("ablations", "without sharing", TEST, made, sharing="off")
    yield from _few("ablations", "without estimator", TEST, made, estimated=False)
    for case in _few("ablations", TIMELESS, TEST, made):
        yield replace(case, outlasts=NEVER)
    made = settings("lucid", replace(SMALL, run_s=500.0))  # as in 4.5
    for what, space_aware in (("space-aware", True), ("in order of arrival", False)):
        yield from _few("profiler", what, TEST, made, time_aware=False, space_aware=space_aware)


def _variants() -> Iterator[Case]:
    """What of the differences other assumptions could explain."""
    made = settings("lucid", SMALL)
    for policy in ("fifo", "tiresias"):
        yield from _few("variants", policy, TEST, settings(policy), "nothing")
    for policy in ("sjf", "qssf"):
        told = f"{policy}, durations known"
        yield from _few("variants", told, TEST, settings(policy), "truth")
    yield from _few("variants", "lucid, durations known", TEST, made, "truth")
    yield from _few("variants", "lucid, foretold without the profile", TEST, made, "plain")
    quick = settings("lucid", SMALL, window_s=1.0)
    yield from _few("variants", "lucid, window of 1 s", TEST, quick)


def _limits() -> Iterator[Case]:
    """The default is among the ablations."""
    for run_s in set(LIMITS_S) - {SMALL.run_s}:
        made = settings("lucid", replace(SMALL, run_s=run_s))
        yield from _few("limits", f"{run_s:.0f} s", TEST, made)


def _tuner() -> Iterator[Case]:
    for knobs in TUNED:
        yield from _few("tuner", knobs_told(*knobs), BEFORE, _knobs(*knobs))


def _knobs(run_s: float, gpus: int, capacity: int) -> Settings:
    return settings("lucid", replace(PROFILER, run_s=run_s, gpus=gpus), capacity)


def knobs_told(run_s: float, gpus: int, capacity: int) -> str:
    return f"T_prof {run_s:.0f} s, {gpus} GPUs, GSS {capacity}"


# -- one of them, in a process of its own

MODELS: tuple[Known, ...] = ("plain", "profiled")
_GIVEN: list[Given] = []  # to this process


def _models(name: Known) -> Models:
    return trained(profiled=name == "profiled")


def _take(given: Given) -> None:
    _GIVEN[:] = [given]


def trace(name: str) -> Trace:
    """`muri N`, `philly DAY`, or `philly DAY N` for its N-th third."""
    kind, day, *sample = name.split()
    if kind == "muri":
        return muri_trace(int(day))
    whole = week(day)
    if not sample:
        return whole
    fitting = [task for task in whole.tasks if task.gpus <= 8 * FEW]
    return ordered(name, fitting[int(sample[0]) :: SAMPLES])


def run(case: Case) -> Result:
    policy = case.settings.policy
    given = _GIVEN[0]
    experiment = Experiment(
        trace(case.trace),
        parse(case.gpus),
        case.settings,
        estimator="oracle" if policy == "horus" else "none",  # Horus predicts it
        interference=given.interference if case.measured else "learned",
        expected=case.knows == "truth",
        models=given.models.get(case.knows, ()),
    )
    made = registry.bare_policy(case.settings)
    if case.ablation:
        made = replace(made, **case.ablation)  # type: ignore[type-var]
    with mock.patch.object(binder, "OUTLASTS", case.outlasts):
        return _result(case, simulate_with(made, experiment))


def _result(case: Case, outcome: Outcome) -> Result:
    figures = metrics.figures(outcome)
    assert figures.jct and figures.wait and figures.lost and figures.slowdown
    new = [job for job in outcome.jobs if job.task.gpus <= case.settings.profiling.largest]
    done = [job for job in new if _ended_profiled(job, case.settings.profiling)]
    waits = [job.attempts[0].launched_at - job.task.submit_s for job in new if job.attempts]
    return Result(
        case.table,
        case.what,
        case.trace,
        case.gpus,
        figures.jobs,
        figures.finished,
        figures.jct.mean / HOUR,
        figures.wait.mean / HOUR,
        figures.wait.p999 / HOUR,
        figures.lost.mean,
        figures.slowdown.mean,
        figures.preemptions,
        figures.oom_crashes,
        figures.queue_max,
        figures.gpus_busy or 0.0,
        outcome.makespan_s / HOUR,
        len(done) / len(outcome.jobs),
        fmean(waits),
        outcome.wall_s,
    )


def _ended_profiled(job: JobOutcome, profiling: Profiling) -> bool:
    """In its first attempt, before it would have been sent back in line."""
    if not profiling.gpus or len(job.attempts) != 1:
        return False
    only = job.attempts[0]
    return only.ended_at - only.launched_at <= profiling.run_s
