"""Fillers: jobs that start before their turn, on GPUs that the first in line cannot use yet.
Policies propose them, and their suspension as soon as a job before them can start without them. So
the first in line waits no longer for them than suspending takes, which is why a filler must be a
job that can be expected to be suspendable at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carmad.config import Settings
from carmad.core.gpus.fleet import Fleet
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.control import host_room_mib
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import Ledger


def places(queue: Sequence[Job], ledger: Ledger, settings: Settings) -> dict[JobId, int]:
    """The running fillers, each with how many of these queued jobs are before it."""
    if settings.limits.preemption != "suspend":
        return {}
    return {job.id: ledger.place_among(job, queue) for job in ledger.on_gpus() if job.filler}


def room_mib(fillers: Mapping[JobId, int], ledger: Ledger, fleet: Fleet, settings: Settings) -> int:
    """What the host can take of further fillers, when all that are there are suspended."""
    if settings.limits.preemption != "suspend":
        return 0
    left_mib = host_room_mib(ledger.suspended.values(), settings)
    for job in (ledger.jobs[id] for id in fillers):
        for gpu, held_mib in fleet.memory_of(job).items():
            need_mib = job.need.safe_mib if job.need else fleet.gpus[gpu].memory_mib
            left_mib -= max(held_mib, need_mib)
    return max(0, left_mib)


def end(queue: Sequence[Job], ledger: Ledger, settings: Settings) -> None:
    """Fillers whose turn has come are like any other job from now on."""
    for id, before in places(queue, ledger, settings).items():
        if not before:
            ledger.put(ledger.jobs[id].with_attempt(filler=False))
