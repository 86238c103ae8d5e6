"""A scheduler in this process, with eight GPUs and as many jobs on them and in line as asked."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.daemon.carmad import GPUS
from carmad import registry
from carmad.config import Limits, Settings
from carmad.core.messages import Discovered, Sampled
from carmad.core.scheduler import Scheduler
from carmad.core.types import Estimate, GpuId, GpuSample, Job, JobState, ProcessUse
from carmad.testing import a_gpu, a_job, a_spec

BEGUN = 1_000_000.0
CARDS = tuple(a_gpu(index) for index in range(GPUS))
ENV = tuple((f"VARIABLE_{n}", "some value of ordinary length " * 2) for n in range(40))
HOLDS_MIB = 10_000


def scheduler(policy: str = "magm", backfill: int = 0) -> Scheduler:
    settings = Settings(policy=policy, limits=Limits(backfill=backfill))
    made = Scheduler(
        settings,
        registry.policy(settings),
        registry.recovery(settings),
        registry.predictor(settings),
    )
    made.handle(Discovered(BEGUN, CARDS))
    return made


def residents(per_gpu: int, *, first: int = 1, exclusive: bool = False) -> list[Job]:
    """Jobs that ran their first kernels long ago."""
    return [
        job(
            id,
            state=JobState.RUNNING,
            spec=a_spec(env=ENV, memory_mib=HOLDS_MIB, exclusive=exclusive),
            attempt=1,
            gpus=(CARDS[id % GPUS].id,),
            started_at=BEGUN - 1000,
            kernels=((CARDS[id % GPUS].id, BEGUN - 990),),
        )
        for id in range(first, first + per_gpu * GPUS)
    ]


def job(id: int, mib: int = HOLDS_MIB, **changes: object) -> Job:
    """In line, unless `changes`, fields as of `a_job`, say otherwise."""
    fields: dict[str, object] = {
        "spec": a_spec(env=ENV, memory_mib=mib),
        "submitted_at": BEGUN - 2000 + id / 1000,
        "estimate": Estimate(mib, "declared", firm=True),
    }
    return a_job(id, **(fields | changes))


def line(first: int, count: int, mib: int = HOLDS_MIB) -> list[Job]:
    return [job(id, mib) for id in range(first, first + count)]


def sampled(at: float, running: Iterable[Job] = (), external_mib: int = 0) -> Sampled:
    """A reading of all GPUs, on each of which its jobs hold their memory, and maybe a process of no
    job holds some."""
    uses: dict[GpuId, list[ProcessUse]] = {card.id: [] for card in CARDS}
    for each in running:
        for gpu in each.gpus:
            uses[gpu].append(ProcessUse(10_000 + each.id, HOLDS_MIB, 0.2, each.id, attempt=1))
    if external_mib:
        for processes in uses.values():
            processes.append(ProcessUse(9_999, external_mib, 0.2))
    held = {gpu: sum(each.memory_mib or 0 for each in its) for gpu, its in uses.items()}
    return Sampled(
        at,
        tuple(
            GpuSample(
                card.id,
                at,
                memory_used_mib=held[card.id],
                memory_free_mib=card.memory_mib - held[card.id],
                sm_active=0.2,
                sm_occupancy=0.1,
                dram_active=0.1,
                power_w=200.0,
                energy_mj=round(at * 200_000),
                processes=tuple(uses[card.id]),
            )
            for card in CARDS
        ),
    )
