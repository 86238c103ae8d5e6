"""How long a plan of Lucid's takes with 2,048 jobs in line on 128 GPUs (Lucid paper, 4.4: 3 ms).

A plan is made as the daemon makes it: after a reading of all GPUs, so that nothing that was known
of one still stands. All jobs have a profile and a prediction. Judged is processor time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from statistics import median

from benchmarks.harness import percentile
from carma_simulator.catalogue import activity
from carma_testing import a_gpu, a_job, a_spec
from carmad import registry
from carmad.config import Settings
from carmad.core.gpus.gpu import Gpu, GpuSample, ProcessUse
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Indicator, Prediction, Profile
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Discovered, Launch, Sampled
from carmad.core.scheduler import Scheduler
from lab.policies import Timed

NODES, PER_NODE, CARD_MIB = 16, 8, 24_576
QUEUED, PLANS = 2048, 100
BEGUN = 1_000_000.0
SIZES = (1, 1, 1, 1, 1, 1, 2, 4, 8, 16)
CARDS = tuple(
    a_gpu(index, CARD_MIB, node=f"node{index // PER_NODE}") for index in range(NODES * PER_NODE)
)


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of processor time: of the policy, and of the core's whole tick around it."""

    what: str
    placed: int
    median_ms: float
    p99_ms: float
    tick_ms: float


def latencies(plans: int = PLANS) -> list[Latency]:
    return [
        _measured("64 of 128 GPUs idle", 64, 1, plans),
        _measured("none idle, a job on each", 128, 1, plans),
        _measured("one idle, two jobs on each other", 127, 2, plans),
        _measured("none idle, two jobs on each", 128, 2, plans),
    ]


def _measured(what: str, occupied: int, per_gpu: int, plans: int) -> Latency:
    settings = Settings(policy="lucid")
    timed = Timed(registry.bare_policy(settings))
    core = Scheduler(settings, timed, registry.bare_recovery(settings))
    core.handle(Discovered(BEGUN, CARDS))
    dice = Random(what)
    cards = CARDS[:occupied] * per_gpu
    running = [_job(dice, id, 1, **_ran_on(card)) for id, card in enumerate(cards, 1)]
    line = [_job(dice, id, dice.choice(SIZES)) for id in range(10_001, 10_001 + QUEUED)]
    ticks, placed = [], 0
    for second in range(40 + plans):  # the first 40 fill the windows, and let the GPUs settle
        at = BEGUN + second
        core.restore([*running, *(line if second >= 40 else [])])
        begun = time.process_time()
        step = core.handle(_sampled(at, running))
        ticks.append(1000 * (time.process_time() - begun))
        placed = sum(isinstance(action, Launch) for action in step.actions)
    taken = [1000 * plan_s for _, plan_s in timed.plans[-plans:]]
    return Latency(what, placed, median(taken), percentile(taken, 0.99), median(ticks[-plans:]))


def _job(dice: Random, id: int, wanted: int, **changes: object) -> Job:
    """As busy as any, and most of them short."""
    busy, memory = dice.random(), dice.random() / 2
    indicators = tuple(
        Indicator(name, value, 0.0001)
        for name, value in (("gpu_utilization", busy), ("memory_utilization", memory * busy))
    )
    return a_job(
        id,
        spec=a_spec(gpus=wanted),
        submitted_at=BEGUN - 20_000 + id,
        profile=Profile(200.0, dice.randrange(2_000, 12_000), indicators),
        prediction=Prediction(dice.lognormvariate(7.0, 2.0), "history"),
        **changes,
    )


def _ran_on(card: Gpu) -> dict[str, object]:
    return {
        "state": JobState.RUNNING,
        "attempt": 1,
        "gpus": (card.id,),
        "started_at": BEGUN - 1000,
        "kernels": ((card.id, BEGUN - 990),),
    }


def _sampled(at: float, running: Iterable[Job]) -> Sampled:
    there: dict[str, list[Job]] = {card.id: [] for card in CARDS}
    for job in running:
        there[job.gpus[0]].append(job)
    return Sampled(at, tuple(_sample(card, at, there[card.id]) for card in CARDS))


def _sample(card: Gpu, at: float, jobs: list[Job]) -> GpuSample:
    held = [job.profile.peak_mib if job.profile else 0 for job in jobs]
    busy = min(1.0, sum((job.profile and job.profile.mean("gpu_utilization")) or 0 for job in jobs))
    sm, occupancy, dram = activity(busy, busy / 2)
    uses = zip(jobs, held, strict=True)
    return GpuSample(
        card.id,
        at,
        sum(held),
        card.memory_mib - sum(held),
        sm,
        occupancy,
        dram,
        busy,
        power_w=200.0,
        energy_mj=round(at * 200_000),
        processes=tuple(
            ProcessUse(10_000 + job.id, mib, 0.2, JobId(job.id), attempt=1) for job, mib in uses
        ),
        memory_utilization=busy / 2,
    )
