"""The simulated runs of `lab.lucid`: which there are, and what is kept of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, cast
from unittest import mock

from carma_simulator import metrics
from carma_simulator.experiment import Experiment, JobOutcome, Outcome, Physics, Trace
from carma_simulator.hardware import parse
from carmad import registry
from carmad.config import Limits, Profiling, Settings
from carmad.core.jobs.attempt import GpuId, JobId
from lab import baselines
from lab.lucid import packing
from lab.lucid.consolidate import consolidate
from lab.lucid.workload import (
    ASKED,
    BEFORE,
    SAMPLES,
    TEST,
    Busy,
    Models,
    brief_week,
    muri_trace,
    pairs,
    sample,
    trained,
    week,
)
from lab.policies import simulate_with
from lab.processes import in_processes
from policies.lucid import binder, room, traits
from policies.lucid import policy as planning

POLICIES = ("fifo", "sjf", "qssf", "horus", "tiresias", "lucid")
# The share of the GPUs that the samples keep busy within the week, if no job waits: on the paper's
# 864; that at which Lucid's queue is as long as in the paper, as trying LOADS has shown; and on the
# 344 GPUs on which FIFO's is.
WHOLE, BUSY, FULL = 0.42, 0.70, 1.05
LOADS = (WHOLE, BUSY, FULL)
WIDEST = 32  # GPUs of a job, and the fewest of a cluster
MURI, MURI_GPUS = (3,), "8x8xV100-32GB"  # as in its artifact
# A tenth of the 16 GPUs that the artifact has for Philly.
PROFILER = Profiling(run_s=200.0, gpus=2, largest=8)
IN_PLACE = replace(PROFILER, gpus=0)
MURI_PROFILER = replace(PROFILER, gpus=8)
OFF_BELOW = 1.87  # `service_rate(86.4)`: below, a cluster of so many keeps up without sharing
LOOKS_AHEAD = 5  # Horus, jobs in line
LIMITS_S = (100.0, 200.0, 600.0)  # T_prof of table 6
# Saving, loading and starting again, as Tiresias's authors measured it (Lucid paper, 4.8).
PREEMPTION_S = 62.0
PHYSICS = Physics(checkpoint_s=PREEMPTION_S - Physics().first_kernel_s)
THRESHOLDS = ((0.90, 0.75), (0.97, 0.85))  # Tiny's and Medium's: the lowest and highest of 4.5
TUNED = tuple(product((100.0, 200.0), (2,), (1, 2)))  # T_prof, its GPUs, GSS; with the defaults
HOUR = 3600.0
MEASURED = "measured"  # interference as Lucid's authors measured pairs
OTHERWISE = ("additive", "none")  # its models beside that, for whoever shares
NEVER = 1e9  # times as long: never too long for a pair
TIMELESS = "lucid, no time-aware rule"
UNGUARDED = "lucid, no guard on utilisation"

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
    interference: str = MEASURED
    thresholds: tuple[float, float] | None = None  # of another packing tree than the shipped one
    labelled: bool = False  # sharing scores are the labels that Lucid's authors gave by hand
    scattered: bool = False  # Lucid takes GPUs on several nodes rather than wait
    consolidated: bool = False  # others: as in the simulator of Lucid's authors
    first_queue: float = baselines.FIRST_QUEUE_GPU_S  # of tiresias


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
    queue_mean: float  # jobs, over the makespan
    queue_max: int
    busy: float  # share of GPU time with any job
    makespan: float
    profiled: float  # share of all jobs that ended in their profiling run
    profiling_queue_s: float  # before it
    wall_s: float
    packed: float = 0.0  # share of all jobs that shared their GPUs for a while


def cases() -> list[Case]:
    """Those of `lab.lucid`."""
    return list(chain(_headline(), _otherwise(), _loads(), _ablations()))


def sensitivity() -> list[Case]:
    """Those of `lab.lucid.sensitivity`."""
    found = (_headline(("tiresias", "lucid")), _profiler(), _busy(), _limits(), _thresholds())
    return list(chain.from_iterable((*found, _tuner(), _muri())))


def tuned(best: Knobs) -> list[Case]:
    """The knobs that were best on the week before, on the test week."""
    return list(_samples("tuned", "tuned knobs", _knobs(*best)))


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


def settings(policy: str, profiling: Profiling = PROFILER, **lucid: float) -> Settings:
    """CARMA's defaults, but for what the policy's paper asks for. `lucid`: its own settings."""
    return replace(
        Settings(),
        policy=policy,
        predictor="additive",
        limits=Limits(
            preemption=policy == "tiresias", backfill=LOOKS_AHEAD if policy == "horus" else 0
        ),
        profiling=profiling,
        plugins={"policies.lucid": dict(lucid)},
    )


def cluster(number: int, load: float) -> str:
    """Nodes of eight GPUs for a sample of the week."""
    nodes = max(WIDEST // 8, round(ASKED[number] / load / 8))
    return f"{nodes}x8xRTX3090-24GB"


def _samples(
    table: str,
    what: str,
    made: Settings,
    knows: Known = "profiled",
    *,
    load: float = BUSY,
    busy: Busy = "median",
    **more: Any,
) -> Iterator[Case]:
    for number in SAMPLES:
        trace = f"philly {TEST} {number} {busy}"
        yield Case(table, what, trace, cluster(number, load), made, knows, **more)


def _headline(policies: Sequence[str] = POLICIES) -> Iterator[Case]:
    for policy in policies:
        yield from _samples("headline", policy, settings(policy), KNOWS.get(policy, "nothing"))


def _otherwise() -> Iterator[Case]:
    """Whoever shares, under other models of interference."""
    for model in OTHERWISE:
        for policy in ("horus", "lucid"):
            knows = KNOWS.get(policy, "nothing")
            yield from _samples(model, policy, settings(policy), knows, interference=model)


def _loads() -> Iterator[Case]:
    """The load of the headline is there."""
    made = settings("lucid")
    for load in set(LOADS) - {BUSY}:
        yield from _samples("loads", f"load {load}", made, load=load)
    yield from _samples("whole", "fifo", settings("fifo"), "nothing", load=WHOLE)
    made = settings("lucid", off_below=OFF_BELOW)
    yield from _samples("whole", "lucid, off_below", made, load=WHOLE)


def _ablations() -> Iterator[Case]:
    made = settings("lucid")
    for what, ablation in (
        ("without binder", {"sharing": "naive"}),
        ("without sharing", {"sharing": "off"}),
        ("without estimator", {"estimated": False}),
    ):
        yield from _samples("ablations", what, made, ablation=ablation)
    yield from _samples("ablations", TIMELESS, made, outlasts=NEVER)
    unguarded = settings("lucid", utilization_capacity=2.0)
    yield from _samples("ablations", UNGUARDED, unguarded)


def _profiler() -> Iterator[Case]:
    made = settings("lucid", replace(PROFILER, run_s=500.0))  # as in 4.5
    for what, space_aware in (("space-aware", True), ("in order of arrival", False)):
        ablation = {"time_aware": False, "space_aware": space_aware}
        yield from _samples("profiler", what, made, ablation=ablation)


def _busy() -> Iterator[Case]:
    """Figure 12. The median load is the headline's."""
    loads: tuple[Busy, ...] = ("low", "high")
    for busy in loads:
        for policy in ("tiresias", "lucid"):
            knows = KNOWS.get(policy, "nothing")
            yield from _samples(f"busy, {busy}", policy, settings(policy), knows, busy=busy)


def _limits() -> Iterator[Case]:
    """The default is the headline's."""
    for run_s in set(LIMITS_S) - {PROFILER.run_s}:
        made = settings("lucid", replace(PROFILER, run_s=run_s))
        yield from _samples("limits", f"{run_s:.0f} s", made)


def _thresholds() -> Iterator[Case]:
    """The default is the headline's."""
    for thresholds in THRESHOLDS:
        what = thresholds_told(*thresholds)
        yield from _samples("thresholds", what, settings("lucid"), thresholds=thresholds)


def _tuner() -> Iterator[Case]:
    """One sample of the week before: 40 runs would take too long."""
    for knobs in TUNED:
        trace = f"philly {BEFORE} 0 median"
        what = knobs_told(*knobs)
        yield Case("tuner", what, trace, cluster(0, BUSY), _knobs(*knobs), "profiled")


def _muri() -> Iterator[Case]:
    """Muri names no users and no dates to learn from: whoever asks for durations is told them."""
    for number in MURI:
        for policy in POLICIES:
            knows: Known = "truth" if policy in KNOWS else "nothing"
            made = settings(policy, MURI_PROFILER)
            yield Case(
                "muri", policy, f"muri {number}", MURI_GPUS, made, knows, interference="conserving"
            )
    made = settings("lucid", IN_PLACE)
    trace = f"muri {MURI[-1]}"  # the smallest
    yield Case(
        "muri",
        "lucid, profiled in place",
        trace,
        MURI_GPUS,
        made,
        "truth",
        interference="conserving",
    )


def _knobs(run_s: float, gpus: int, capacity: int) -> Settings:
    made = replace(PROFILER, run_s=run_s, gpus=gpus)
    return settings("lucid", made, sharing_capacity=capacity)


def knobs_told(run_s: float, gpus: int, capacity: int) -> str:
    return f"T_prof {run_s:.0f} s, {gpus} GPUs, GSS {capacity}"


def thresholds_told(tiny: float, medium: float) -> str:
    return f"Tiny {tiny:.2f}, Medium {medium:.2f}"


# -- one of them, in a process of its own

MODELS: tuple[Known, ...] = ("plain", "profiled")
_GIVEN: list[Given] = []  # to this process


def _models(name: Known) -> Models:
    return trained(profiled=name == "profiled")


def _take(given: Given) -> None:
    _GIVEN[:] = [given]


def trace(name: str) -> Trace:
    """`muri N`, `philly DAY N BUSY` for the week's N-th sample, `week DAY N BUSY` for all of it by
    the N-th draw, or `brief DAY SECONDS` for its jobs while they are profiled."""
    kind, first, *more = name.split()
    if kind == "muri":
        return muri_trace(int(first))
    if kind == "brief":
        return brief_week(first, float(more[0]), PROFILER.largest)
    number, busy = int(more[0]), cast(Busy, more[1])
    return (week if kind == "week" else sample)(first, number, busy)


def run(case: Case) -> Result:
    policy = case.settings.policy
    given = _GIVEN[0]
    models = given.models.get(case.knows, ())
    if case.thresholds:
        models = (*models, ("packing", packing.by_thresholds(*case.thresholds)))
    experiment = Experiment(
        trace(case.trace),
        parse(case.gpus),
        case.settings,
        estimator="oracle" if policy == "horus" else "none",  # Horus predicts it
        interference=given.interference if case.interference == MEASURED else case.interference,
        expected=case.knows == "truth",
        physics=PHYSICS,
        models=models,
    )
    made = registry.bare_policy(case.settings)
    if case.ablation:
        made = replace(made, **case.ablation)  # type: ignore[type-var]
    with ExitStack() as stack:
        for module, name, value in (
            (planning, "VERDICTS", 0),  # they take half of the time
            (binder, "OUTLASTS", case.outlasts),
            (baselines, "FIRST_QUEUE_GPU_S", case.first_queue),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        if case.labelled:
            stack.enter_context(mock.patch.object(traits, "sharing_score", packing.labelled_score))
        if case.scattered:  # no node ever has enough
            stack.enter_context(mock.patch.object(room, "usable", lambda gpu, view: 0))
        if case.consolidated:
            made = consolidate(made)
        return _result(case, simulate_with(made, experiment))


def _result(case: Case, outcome: Outcome) -> Result:
    figures = metrics.figures(outcome)
    assert figures.jct and figures.wait and figures.lost and figures.slowdown
    profiling = case.settings.profiling
    largest = min(profiling.largest, int(profiling.gpus) or profiling.largest)
    new = [job for job in outcome.jobs if job.task.gpus <= largest]
    done = [job for job in new if _ended_profiled(job, profiling)]
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
        figures.queue_mean or 0.0,
        figures.queue_max,
        figures.gpus_busy or 0.0,
        outcome.makespan_s / HOUR,
        len(done) / len(outcome.jobs),
        fmean(waits),
        outcome.wall_s,
        len(packed(outcome.jobs)) / len(outcome.jobs),
    )


def packed(jobs: Iterable[JobOutcome]) -> set[JobId]:
    """The jobs that were on a GPU together with another one."""
    attempts = ((gpu, job.id, each) for job in jobs for each in job.attempts for gpu in each.gpus)
    by_gpu: dict[GpuId, list[tuple[float, float, JobId]]] = {}
    for gpu, id, each in attempts:
        by_gpu.setdefault(gpu, []).append((each.launched_at, each.ended_at, id))
    found: set[JobId] = set()
    for stays in by_gpu.values():
        stays.sort()
        there: list[tuple[float, float, JobId]] = []
        for stay in stays:
            there = [each for each in there if each[1] > stay[0]]
            found.update(id for *_, id in ((*there, stay) if there else ()))
            there.append(stay)
    return found


def _ended_profiled(job: JobOutcome, profiling: Profiling) -> bool:
    """In its first attempt, before it would have been sent back in line."""
    if not profiling.gpus or len(job.attempts) != 1:
        return False
    only = job.attempts[0]
    return only.ended_at - only.launched_at <= profiling.run_s
