"""The simulated runs of `lab.castor`: which there are, and what is kept of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import hypot
from statistics import fmean
from typing import Any

from carma_simulator import interference
from carma_simulator.experiment import Experiment, Load, Outcome, Physics, Trace
from carma_simulator.hardware import parse
from carma_simulator.interference import Interference
from carma_simulator.metrics import crashes, has_finished, preemptions, times
from carma_simulator.run import simulate
from carmad.config import Collocation, Limits, Settings
from carmad.core.jobs.attempt import Mode
from carmad.learning.files import find_model
from carmad.learning.models import Boosted
from lab.castor import gavel
from lab.castor.sharing import crowded, decisions
from lab.castor.workload import BEGIN_S, JOBS, as_queued, muri, profiled_before, resizable, sampled
from lab.castor.workload import with_lucids_models as lucids
from lab.data import DATA
from lab.processes import in_processes
from policies.castor.interference import NAME as INTERFERENCE

POLICIES = ("fifo", "sjf", "tiresias", "lucid", "sjf_ffs", "castor")
SHARING = ("lucid", "sjf_ffs", "castor")
GUESSED = 1.0  # σ of the factor by which a guess of a duration is off
GUESSING = "lucid, durations guessed"
FAMILIES = ("philly", "saturn")
GPUS = {"128": "16x8xA6000-48GB", "64": "8x8xA6000-48GB"}  # the paper's, and half of them
THEIRS, FULL = "128", "64"  # the paper's, and where jobs queue
MURI_GPUS = "16x8xV100-32GB"
GAVEL_JOBS = 160
GAVEL_POLICIES = ("sjf", "sjf_ffs", "castor")
GAVEL_GPUS = f"8x8x{gavel.GPU}"
SCARCE = {"philly": "RTX6000-24GB", "muri": "RTX2080Ti-11GB"}  # GPUs with little memory
INTENSITIES = (120, 240, 480)  # jobs in the same eight hours: the paper's 0.5, 1 and 2
GROWING = ("fifo", "tiresias", "lucid", "sjf_ffs", "castor")
FEW = range(5)  # samples of each family
MURI_TRACES, MURI_JOBS = (1, 2, 3), 480
LARGE = 8  # a large job has more GPUs (9.4)
PAIRS = f"measured:{DATA}/lucid/colocated_pairs_rtx3090.csv"
OF_THE_PAPER = (
    "policies",
    "benefits",
    "muri",
    "intensities",
    "techniques",
    "predictions",
    "splits",
)
UNHELD = 10_000  # `limits.backfill`: no job holds the line
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Known(Boosted):
    """Not foretold: what the simulator does to a pair, found again by what its jobs keep busy.

    The paper's "mathematical fitting" (9.5), for which every pair has been measured."""

    simulated: str = "conserving"
    loads: tuple[Load, ...] = ()  # of all jobs
    memory_mib: int = 1  # of a GPU

    def predict(self, values: Mapping[str, float]) -> float:
        own, other = (
            _nearest(
                self.loads,
                values[f"{who}.sm_active.mean"],
                values[f"{who}.dram_active.mean"],
                round(values[f"{who}.memory.share"] * self.memory_mib),
            )
            for who in ("own", "other")
        )
        mode = Mode.MPS if values["mode.mps"] else Mode.STREAMS
        return 1 / _simulated(self.simulated).speeds((own, other), mode)[0]


@cache
def _simulated(name: str) -> Interference:
    return interference.make(name)


@cache
def _nearest(
    loads: tuple[Load, ...], sm_active: float, dram_active: float, memory_mib: int
) -> Load:
    """Memory decides between loads that keep a GPU equally busy."""

    def apart(load: Load) -> tuple[float, int]:
        busy = hypot(load.sm_active - sm_active, load.dram_active - dram_active)
        return round(busy, 3), abs(load.memory_mib - memory_mib)

    return min(loads, key=apart)


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a row of a table is the mean over its samples."""

    table: str
    workload: str  # philly, saturn, muri-1 …
    size: str  # how many GPUs, or jobs
    what: str  # the policy, or what else sets the row apart
    experiment: Experiment
    profiled_before: bool = True


@dataclass(frozen=True, slots=True)
class Result:
    """Hours. What large and small jobs contribute adds up to the mean over all."""

    table: str
    workload: str
    size: str
    what: str
    sample: str
    jobs: int
    unfinished: int
    large_share: float  # of the jobs
    makespan: float
    jct: float
    wait: float
    large_jct: float
    large_wait: float
    slowdown: float
    preemptions: int
    oom_crashes: int
    crowded: int  # starts beside another with which their whole batches would not fit
    benefits: tuple[float, ...] = field(default=())  # of each decision to share (eq. 24)


def cases(tables: Collection[str]) -> list[Case]:
    """Of these tables."""
    made = {
        "policies": _policies,
        "load": _load,
        "benefits": _benefits,
        "muri": _muri,
        "intensities": _intensities,
        "techniques": _techniques,
        "predictions": _predictions,
        "splits": _splits,
        "gavel": _gavel,
    }
    return [case for name in tables for case in made[name]()]


def results(cases: Sequence[Case]) -> Iterator[Result]:
    return in_processes(
        run, cases, lambda r: f"{r.table}, {r.workload} {r.size}, {r.what}, {r.sample}"
    )


def run(case: Case) -> Result:
    return result(case, simulate(case.experiment))


def result(case: Case, outcome: Outcome) -> Result:
    begin_s = BEGIN_S if case.profiled_before else 0.0
    jobs = [job for job in outcome.jobs if job.task.submit_s >= begin_s]
    done = [(job.task.gpus, t) for job in jobs if has_finished(job) and (t := times(job))]

    def contribution(of: str, large: bool = False) -> float:
        """To the mean over all jobs."""
        told = [getattr(t, of) for gpus, t in done if gpus > LARGE or not large]
        return float(sum(told)) / len(done) / HOUR

    wanted = case.table in ("benefits", "predictions")
    shared = decisions(case.experiment, outcome) if wanted else []
    return Result(
        case.table,
        case.workload,
        case.size,
        case.what,
        outcome.trace,
        len(jobs),
        len(jobs) - len(done),
        fmean(gpus > LARGE for gpus, _ in done),
        (outcome.makespan_s - begin_s) / HOUR,
        contribution("jct_s"),
        contribution("wait_s"),
        contribution("jct_s", large=True),
        contribution("wait_s", large=True),
        fmean(t.slowdown or 1.0 for _, t in done),
        sum(map(preemptions, jobs)),
        sum(map(crashes, jobs)),
        crowded(outcome) if case.table == "splits" else 0,
        tuple(round(decision.benefit, 3) for decision in shared),
    )


# -- which runs there are


def experiment(
    trace: Trace, gpus: str, policy: str, backfill: int = 0, simulated: str = "conserving"
) -> Experiment:
    """Memory needs are known, and durations to those policies that ask; only Tiresias preempts."""
    limits = Limits(preemption=policy == "tiresias", backfill=backfill)
    settings = Settings(policy=policy, limits=limits)
    known = profiled_before(trace)
    return Experiment(known, parse(gpus), settings, "oracle", simulated)


def unprofiled(trace: Trace, gpus: str) -> Experiment:
    """Castor, where each configuration is profiled when its first job runs."""
    return replace(experiment(trace, gpus, "castor"), trace=trace)


def knowing(experiment: Experiment) -> Experiment:
    """Castor is told the ratios that the simulator has."""
    loads = tuple({task.load: None for task in experiment.trace.tasks})
    same = {
        each.name: getattr(find_model(INTERFERENCE, Boosted, {}), each.name)
        for each in fields(Boosted)
    }
    memory_mib = min(node.kind.memory_mib for node in experiment.cluster.nodes)
    known = Known(**same, simulated=experiment.interference, loads=loads, memory_mib=memory_mib)
    return replace(experiment, models=((INTERFERENCE, known),))


def with_mps(made: Experiment, scope: Any) -> Experiment:
    mps = Collocation(mps=True, mps_multiuser=True, mps_scope=scope)
    return replace(made, settings=replace(made.settings, collocation=mps))


def _samples(family: str) -> list[Trace]:
    return [sampled(family, n) for n in FEW]


def _policies() -> Iterator[Case]:
    for family in FAMILIES:
        for trace in _samples(family):
            for size, gpus in GPUS.items():
                for policy in POLICIES:
                    made = experiment(trace, gpus, policy)
                    yield Case("policies", family, size, policy, made)
            # Castor's listing lets all have their turn; CARMA's other policies hold the line.
            made = experiment(trace, GPUS[FULL], "sjf_ffs", UNHELD)
            yield Case("policies", family, FULL, "sjf_ffs, line not held", made)
            made = unprofiled(trace, GPUS[FULL])
            yield Case("policies", family, FULL, "castor, profiling online", made, False)


def _load() -> Iterator[Case]:
    """All at the paper's load."""
    for family in FAMILIES:
        for n in FEW:
            trace = as_queued(family, n)
            for policy in POLICIES:
                yield Case("load", family, THEIRS, policy, experiment(trace, GPUS[THEIRS], policy))
            made = experiment(trace, GPUS[THEIRS], "lucid")
            made = replace(made, physics=Physics(duration_error=GUESSED))
            yield Case("load", family, THEIRS, GUESSING, made)


def _benefits() -> Iterator[Case]:
    for family in FAMILIES:
        for trace in _samples(family):
            for policy in SHARING:
                yield Case("benefits", family, FULL, policy, experiment(trace, GPUS[FULL], policy))


def _muri() -> Iterator[Case]:
    for number in MURI_TRACES:
        trace = muri(number, MURI_JOBS)
        for policy in POLICIES:
            made = experiment(trace, MURI_GPUS, policy)
            yield Case("muri", trace.name, "128", policy, made)


def _intensities() -> Iterator[Case]:
    for family in FAMILIES:
        for jobs in set(INTENSITIES) - {JOBS}:  # those are among the policies
            for n in FEW:
                trace = sampled(family, n, jobs)
                for policy in GROWING:
                    made = experiment(trace, GPUS["128"], policy)
                    yield Case("intensities", family, str(jobs), policy, made)


def _techniques() -> Iterator[Case]:
    for family in FAMILIES:
        for trace in _samples(family):
            streams = experiment(trace, GPUS[FULL], "castor")
            yield Case("techniques", family, FULL, "streams (temporal)", streams)
            for scope, what in (("gpu", "MPS, a server per GPU"), ("node", "MPS, one per node")):
                yield Case("techniques", family, FULL, what, with_mps(streams, scope))


def _predictions() -> Iterator[Case]:
    """Castor with the ratios foretold is among the policies; here are the others."""
    for family in FAMILIES:
        for n in FEW:
            trace = sampled(family, n)
            known = knowing(experiment(trace, GPUS[FULL], "castor"))
            yield Case("predictions", family, FULL, "castor, ratios known", known)
            made = experiment(lucids(trace, n), GPUS[FULL], "castor", simulated=PAIRS)
            pairs = f"{family}, Lucid's models"
            yield Case("predictions", pairs, FULL, "castor, ratios foretold", made)
            yield Case("predictions", pairs, FULL, "castor, ratios known", knowing(made))


def _gavel() -> Iterator[Case]:
    learned = ((INTERFERENCE, gavel.trained()),)
    for family in FAMILIES[:1]:
        for n in FEW:
            trace = gavel.with_gavels_models(sampled(family, n, GAVEL_JOBS, gavel.GPU), n)
            for policy in GAVEL_POLICIES:
                made = experiment(trace, GAVEL_GPUS, policy, simulated=gavel.pairs())
                made = with_mps(made, "node")
                yield Case("gavel", family, "64", policy, made)
            yield Case("gavel", family, "64", "castor, trained", replace(made, models=learned))
            yield Case("gavel", family, "64", "castor, ratios known", knowing(made))


def _splits() -> Iterator[Case]:
    for family, gpu in SCARCE.items():
        for n in FEW[: len(MURI_TRACES)] if family == "muri" else FEW:
            muris = family == "muri"
            trace = muri(n + 1, JOBS, gpu) if muris else sampled(family, n, JOBS, gpu)
            for what, one in (("nobody", trace), ("everybody", resizable(trace))):
                made = experiment(one, f"8x8x{gpu}", "castor")
                yield Case("splits", family, gpu, what, made)
