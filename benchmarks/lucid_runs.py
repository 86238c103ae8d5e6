"""The simulated runs of `benchmarks.lucid`: which there are, and what is kept of each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal
from unittest import mock

from benchmarks.lucid_workload import BEFORE, TEST, Models, muri_trace, pairs, trained, week
from carmad import registry
from carmad.config import Limits, Lucid, Profiling, Settings
from carmad.sim import metrics
from carmad.sim.experiment import Experiment
from carmad.sim.hardware import parse
from carmad.sim.outcome import JobOutcome, Outcome
from carmad.sim.run import simulate
from carmad.sim.task import Trace
from carmad.sim.traces.rows import ordered

POLICIES = ("fifo", "sjf", "qssf", "horus", "tiresias", "lucid")
WHOLE, BUSY, FEW = 108, 42, 14  # nodes of eight: the paper's; FIFO queues as in it; a third of BUSY
THINNED = 3  # with FEW nodes: every so many-th job
MURI, MURI_GPUS = (1, 2, 3), "8x8xV100-32GB"  # as in its artifact
PROFILER = Profiling(run_s=200.0, gpus=16, largest=8)  # two nodes, as the artifact has for Philly
IN_PLACE = replace(PROFILER, gpus=0)
SMALL = replace(PROFILER, gpus=8)  # of FEW nodes: one is as little as can be
LOOKS_AHEAD = 5  # Horus, jobs in line
LIMITS_S = (100.0, 200.0, 300.0, 600.0)  # T_prof of table 6
TUNED = tuple(product((100.0, 200.0, 400.0), (8, 16), (1, 2)))  # T_prof, its GPUs, GSS
HOUR = 3600.0

Known = Literal["nothing", "truth", "plain", "profiled"]  # of durations: see `Case`
KNOWS: Mapping[str, Known] = {"sjf": "truth", "qssf": "plain", "lucid": "profiled"}


@dataclass(frozen=True, slots=True)
class Case:
    """`knows`: durations as they are, or from a model of what is known at submission, or of that
    and of the profile. `ablation`: fields of the policy that are other than its own."""

    table: str
    what: str
    trace: str
    gpus: str
    settings: Settings
    knows: Known = "nothing"
    ablation: Mapping[str, Any] = field(default_factory=dict)
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
    return [*_headline(), *_muri(), *_ablations(), *_variants(), *_limits(), *_tuner()]


def tuned(best: tuple[float, int, int]) -> Case:
    """The knobs that were best on the week before, on the test week."""
    return _few("tuned", "tuned knobs", TEST, _knobs(*best))


def results(cases: Sequence[Case], processes: int) -> Iterator[Result]:
    """In the order given. The models are trained first, in as many processes."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        interference = pairs(Path(directory))
        with spawn.Pool(processes) as pool:
            models = dict(zip(MODELS, pool.map(_models, MODELS), strict=True))
        with spawn.Pool(processes, _take, (models, interference), maxtasksperchild=8) as pool:
            for result in pool.imap(run, cases):
                told = f"{result.table}, {result.what}: {result.wall_s:.0f} s"
                print(told, file=sys.stderr)
                yield result


def processes() -> int:
    return os.cpu_count() or 1


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
        lucid=Lucid(sharing_capacity=capacity),
        monitor=replace(base.monitor, window_s=window_s),
    )


def cluster(nodes: int) -> str:
    return f"{nodes}x8xRTX3090-24GB"


def _headline() -> Iterator[Case]:
    for gpus in (cluster(WHOLE), cluster(BUSY)):
        for policy in POLICIES:
            knows = KNOWS.get(policy, "nothing")
            yield Case(gpus, policy, f"philly {TEST}", gpus, settings(policy), knows)


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
) -> Case:
    """Every third job on a third of the nodes."""
    return Case(table, what, f"philly {day} thinned", cluster(FEW), made, knows, ablation)


def _ablations() -> Iterator[Case]:
    made = settings("lucid", SMALL)
    yield _few("ablations", "qssf", TEST, settings("qssf"), "plain")
    yield _few("ablations", "lucid", TEST, made)
    yield _few("ablations", "without binder", TEST, made, sharing="naive")
    yield _few("ablations", "without sharing", TEST, made, sharing="off")
    yield _few("ablations", "without estimator", TEST, made, estimated=False)
    made = settings("lucid", replace(SMALL, run_s=500.0))  # as in 4.5
    yield _few("profiler", "space-aware", TEST, made, time_aware=False)
    yield _few("profiler", "in order of arrival", TEST, made, time_aware=False, space_aware=False)


def _variants() -> Iterator[Case]:
    """What of the differences other assumptions could explain."""
    made = settings("lucid", SMALL)
    yield _few("variants", "fifo", TEST, settings("fifo"), "nothing")
    yield _few("variants", "tiresias", TEST, settings("tiresias"), "nothing")
    yield _few("variants", "sjf, durations known", TEST, settings("sjf"), "truth")
    yield _few("variants", "qssf, durations known", TEST, settings("qssf"), "truth")
    yield _few("variants", "lucid, durations known", TEST, made, "truth")
    yield _few("variants", "lucid, no profile in the prediction", TEST, made, "plain")
    yield _few("variants", "lucid, profiled in place", TEST, settings("lucid", IN_PLACE))
    artifact = replace(SMALL, run_s=80.0, largest=4)
    yield _few("variants", "lucid, T_prof 80 s, N_prof 4", TEST, settings("lucid", artifact))
    yield _few("variants", "lucid, window of 1 s", TEST, settings("lucid", SMALL, window_s=1.0))


def _limits() -> Iterator[Case]:
    for run_s in LIMITS_S:
        made = settings("lucid", replace(SMALL, run_s=run_s))
        yield _few("limits", f"{run_s:.0f} s", TEST, made)


def _tuner() -> Iterator[Case]:
    for knobs in TUNED:
        yield _few("tuner", knobs_told(*knobs), BEFORE, _knobs(*knobs))


def _knobs(run_s: float, gpus: int, capacity: int) -> Settings:
    return settings("lucid", replace(PROFILER, run_s=run_s, gpus=gpus), capacity)


def knobs_told(run_s: float, gpus: int, capacity: int) -> str:
    return f"T_prof {run_s:.0f} s, {gpus} GPUs, GSS {capacity}"


# -- one of them, in a process of its own

MODELS = ("plain", "profiled")
_GIVEN: dict[str, Any] = {}  # to this process


def _models(name: str) -> Models:
    return trained(profiled=name == "profiled")


def _take(models: Mapping[str, Models], interference: str) -> None:
    _GIVEN.update(models=models, interference=interference)


def trace(name: str) -> Trace:
    kind, day, *thinned = name.split()
    if kind == "muri":
        return muri_trace(int(day))
    whole = week(day)
    if not thinned:
        return whole
    fitting = [task for task in whole.tasks if task.gpus <= 8 * FEW]
    return ordered(name, fitting[::THINNED])


def run(case: Case) -> Result:
    policy = case.settings.policy
    learned: Models = () if case.knows not in MODELS else _GIVEN["models"][case.knows]
    experiment = Experiment(
        trace(case.trace),
        parse(case.gpus),
        case.settings,
        estimator="oracle" if policy == "horus" else "none",  # Horus predicts it
        interference=_GIVEN["interference"] if case.measured else "learned",
        expected=case.knows == "truth",
        models=learned,
    )
    made = registry.bare_policy(case.settings)
    if case.ablation:
        made = replace(made, **case.ablation)  # type: ignore[type-var]
    with mock.patch.object(registry, "bare_policy", lambda settings: made):
        return _result(case, simulate(experiment))


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
