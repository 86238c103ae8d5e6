"""A scheduler in this process, with eight GPUs and as many jobs on them and in line as asked; and a
daemon's database with many jobs, written through the store as the daemon would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.daemon.carmad import GPUS
from carma_testing import a_gpu, a_job, a_spec
from carmad import registry
from carmad.config import Limits, Settings
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs.attempt import Cause, Exit, GpuId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import Discovered, Event, Exited, Sampled, Step, Submitted, Tick
from carmad.core.scheduler import Scheduler
from carmad.guards import GuardedPolicy, GuardedPredictor, GuardedRecovery
from carmad.store.sql import SqlStore

BEGUN = 1_000_000.0
CARDS = tuple(a_gpu(index) for index in range(GPUS))
ENV = tuple((f"VARIABLE_{n}", "some value of ordinary length " * 2) for n in range(40))
HOLDS_MIB = 10_000

AT_ONCE = 1000


def scheduler(policy: str = "magm", backfill: int = 0) -> Scheduler:
    settings = Settings(policy=policy, limits=Limits(backfill=backfill))
    made = Scheduler(
        settings,
        GuardedPolicy(registry.bare_policy(settings)),
        GuardedRecovery(registry.bare_recovery(settings)),
        GuardedPredictor(registry.bare_predictor(settings)),
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


def reading(at: float, running: Iterable[Job] = (), external_mib: int = 0) -> Sampled:
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


def write_ended(directory: Path, count: int) -> None:
    ids = range(1, count + 1)
    _commit(directory, (_end(ids[n : n + AT_ONCE]) for n in range(0, count, AT_ONCE)))


def write_waiting(directory: Path, jobs: Sequence[Job]) -> None:
    _commit(directory, (waiting(jobs[n : n + AT_ONCE]) for n in range(0, len(jobs), AT_ONCE)))


def waiting(jobs: Iterable[Job]) -> Step:
    return Step((Tick(BEGUN),), tuple(jobs), (), ())


def _commit(directory: Path, steps: Iterator[Step]) -> None:
    with closing(SqlStore.open(directory / "carma.db")) as store:
        for step in steps:
            store.commit(step)


def _end(ids: range) -> Step:
    """Submitted, run and ended, all in one commit."""
    done, end = Exit(Cause.SUCCESS, 0), BEGUN + 60
    ran: dict[str, Any] = {"attempt": 1, "gpus": (CARDS[0].id,), "started_at": BEGUN}
    queued = [job(id) for id in ids]
    running = [job(id, state=JobState.RUNNING, **ran) for id in ids]
    ended = [job(id, state=JobState.SUCCEEDED, exit=done, ended_at=end, **ran) for id in ids]
    events: tuple[Event, ...] = (
        Submitted(BEGUN, queued[0].id, tuple(job.spec for job in queued)),
        *(Exited(end, job.id, 1, done) for job in queued),
    )
    return Step(events, (*queued, *running, *ended), (), ())
