"""The simulated runs of `python -m lab.cuckoo`: which there are, what is kept of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from carma_simulator import interference, metrics
from carma_simulator.experiment import Experiment, Outcome, Physics
from carma_simulator.hardware import parse
from carma_simulator.workload import Workload
from carmad import registry
from carmad.config import Monitor, Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.placing.decision import Placement, Proposal
from carmad.core.placing.view import Policy, View
from carmad.gpu.kinds import GpuKind
from lab.cuckoo.muri import Exclusive, earliest_deadline_first, first_in_first_out
from lab.cuckoo.truth import LAMBDA_GPU, FreeRunning, InStep, Truth
from lab.cuckoo.workload import GPUS, LONGER, load, trace
from lab.policies import simulate_with
from lab.processes import in_processes
from policies.cuckoo import CuckooSettings
from policies.cuckoo.policy import Cuckoo, cuckoo

Setting = tuple[str, str]  # whose stages (`workload.STAGES`), and what pairs come to

HEADLINE = ("Muri", "free running, λ = 1.5")
BUSIER = (LONGER, HEADLINE[1])
SENDING = ("table 3", "free running, λ = 2")
IN_STEP = ("table 3", "in step, λ = 2")
TRUTHS: Mapping[str, tuple[type[Truth], float]] = {
    HEADLINE[1]: (FreeRunning, LAMBDA_GPU),
    SENDING[1]: (FreeRunning, 2.0),  # 3.2.3
    IN_STEP[1]: (InStep, 2.0),
}
OTHERS = ("sjf", "magm")  # CARMA's own, on the same trace

# In the paper both jobs of a group start at once. So here a job computes as soon as it is launched,
# and its partner follows a second later.
PHYSICS, MONITOR = Physics(first_kernel_s=0.0), Monitor(window_s=1.0)


@dataclass(frozen=True, slots=True)
class Variant:
    """What of the policy is not as ever."""

    packer: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)

    def made(self, settings: Settings, truth: str = HEADLINE[1]) -> Cuckoo:
        """The paper's λ where the truth has it, and groups in step where they are."""
        kind, gpu = TRUTHS[truth]
        own = CuckooSettings() if truth == HEADLINE[1] else CuckooSettings(lambda_gpu=gpu)
        made = self.of(cuckoo(settings, own))
        return replace(made, packer=replace(made.packer, in_step=kind is InStep))

    def of(self, policy: Cuckoo) -> Cuckoo:
        return replace(policy, packer=replace(policy.packer, **self.packer), **self.policy)


# The paper's variants by name. "Blossom" packs by efficiency alone. In which order Muri starts its
# groups the paper does not say: its tail is FIFO's, and so is it here. "Muri-Hetero" has Cuckoo's
# planning (4.6).
BLOSSOM = {"weight": 1.0}
MURI = {"model": Exclusive(), **BLOSSOM}
FIFO = {"planner": first_in_first_out}
HOMO = {"heterogeneous": False}
VARIANTS = {
    "Cuckoo": Variant(),
    "Muri": Variant(MURI, {**FIFO, **HOMO}),
    "Muri-Hetero": Variant(MURI),
    "Cuckoo-Homo": Variant(policy=HOMO),
    "Muri-P": Variant({"model": Exclusive()}),
    "Blossom": Variant(BLOSSOM),
    "None": Variant(policy={"packs": False}),
    "FIFO": Variant(policy=FIFO),
    "EDF": Variant(policy={"planner": earliest_deadline_first}),
}
WEIGHTS = {f"w = {w:g}": Variant({"weight": w}) for w in (0.0, 0.4, 0.8)}
ALL = {**VARIANTS, **WEIGHTS}
# What is behind the differences: longer jobs, table 3's stages, groups kept in step.
SETTINGS: Mapping[Setting, Sequence[str]] = {
    HEADLINE: tuple(VARIANTS),
    BUSIER: ("Cuckoo", "EDF", "Muri-Hetero", "Blossom"),
    SENDING: (*ALL, *OTHERS),
    IN_STEP: ("Cuckoo", "Muri-P", "Blossom", "None"),
}
SEEDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    setting: Setting
    what: str  # a variant of Cuckoo, or another policy
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run; seconds where nothing else is said."""

    setting: Setting
    what: str
    seed: int
    jobs: int
    finished: int
    jct: float
    tail: float  # the 99th percentile of it
    met: float  # share of all deadlines
    queue: float  # jobs in line, in the mean
    slowdown: float
    # Of the jobs by what was foretold at their start, in time or late, and what came of it.
    kept: int  # in time, and was (true positive)
    broken: int  # in time, and was not
    late: int  # late, and was (true negative)
    lucky: int  # late, and was not
    plans: int  # with jobs in line
    wall: float


def cases() -> list[Case]:
    """The first seed of everything comes first."""
    found = [
        Case(setting, what, seed)
        for setting, variants in SETTINGS.items()
        for what in variants
        for seed in range(SEEDS)
    ]
    return sorted(found, key=lambda case: case.seed)


def results(cases: Sequence[Case]) -> Iterator[Result]:
    return in_processes(run, cases, lambda r: f"{r.setting}, {r.what}, {r.seed}: {r.wall:.0f} s")


# -- one of them, in a process of its own


@dataclass(slots=True)
class Watched:
    """A policy, and what it predicted of each job's deadline when it started it."""

    policy: Policy
    name: str
    late: dict[JobId, bool] = field(default_factory=dict)
    plans: int = 0

    def order(self, job: Job) -> float:
        return self.policy.order(job)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        plan = self.policy.plan(view)
        self.plans += bool(view.queue)
        for each in plan:
            if isinstance(each, Placement) and each.gpus:
                self.late[each.job] = any(ground.code == "deadline" for ground in each.explanation)
        return plan


def run(case: Case) -> Result:
    (stages, truth), what = case.setting, case.what
    settings = Settings(policy="cuckoo" if what in ALL else what, monitor=MONITOR)
    made = ALL[what].made(settings, truth) if what in ALL else registry.bare_policy(settings)
    watched = Watched(made, settings.policy)
    jobs, (kind, gpu) = trace(stages, case.seed), TRUTHS[truth]
    with (
        mock.patch.object(Workload, "load", _load),
        mock.patch.dict(interference.MODELS, {truth: lambda: kind(jobs, gpu)}),
    ):
        experiment = Experiment(jobs, parse(GPUS), settings, "oracle", truth, PHYSICS)
        outcome = simulate_with(watched, experiment)
    return _result(case, outcome, watched)


def _load(workload: Workload, job: JobId, kind: GpuKind, parts: int = 1) -> Any:
    """Instead of `Workload.load`, which asks for the same on each kind of GPU."""
    return load(workload.task(job), kind.name)


def _result(case: Case, outcome: Outcome, watched: Watched) -> Result:
    figures = metrics.figures(outcome)
    assert figures.jct and figures.slowdown and figures.deadlines_met is not None
    told: Counter[tuple[bool, bool]] = Counter()
    for job in outcome.jobs:
        if job.id in watched.late and job.task.deadline_s is not None:
            in_time = job.ended_at - job.task.submit_s <= job.task.deadline_s
            told[watched.late[job.id], in_time and metrics.has_finished(job)] += 1
    return Result(
        case.setting,
        case.what,
        case.seed,
        figures.jobs,
        figures.finished,
        figures.jct.mean,
        figures.jct.p99,
        figures.deadlines_met,
        figures.queue_mean or 0.0,
        figures.slowdown.mean,
        kept=told[False, True],
        broken=told[False, False],
        late=told[True, False],
        lucky=told[True, True],
        plans=watched.plans,
        wall=outcome.wall_s,
    )
