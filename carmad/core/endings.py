"""What the end of an attempt means: who else was there, and whether the job is tried again."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from carmad.core.asking import DECIDE, Asked, said
from carmad.core.fleet import Fleet
from carmad.core.line import never_satisfied
from carmad.core.ports import Recovery
from carmad.core.types import Cause, Exit, GpuId, Job, JobId, JobState, Retry


def explained(job: Job, exit: Exit, fleet: Fleet) -> Exit:
    """For an OOM: who else was on the GPUs, as the last samples have it."""
    if exit.cause is not Cause.GPU_OOM:
        return exit
    held = []
    for gpu in job.gpus:
        for p in fleet.processes(gpu):
            if p.job != job.id and p.memory_mib:
                who = f"job {p.job}" if p.job else f"pid {p.pid} ({p.user or '?'})"
                held.append(f"{who} held {p.memory_mib} MiB")
    return replace(exit, neighbours=tuple(held))


def retried(
    job: Job, exit: Exit, recovery: Recovery, asked: Asked, retries: int, usable: Set[GpuId]
) -> Retry | None:
    """How a job that ran out of memory goes back in line; None if it does not. `usable`: the GPUs
    that it might be given."""
    ooms = sum(1 for failure in job.failures if failure.cause is Cause.GPU_OOM)
    if ooms >= retries:
        return None
    try:
        retry = asked.ask(DECIDE, lambda: recovery.decide(job, exit))
    except Exception as error:  # noqa: BLE001 - foreign code
        why = f"the recovery failed, tried next alone: it raised {said(error)}"
        return Retry(why, exclusive=True)
    if retry and len(usable - set(retry.avoid)) < job.spec.gpus:
        return replace(retry, avoid=(), exclusive=True)  # there is no elsewhere
    return retry


def in_vain(job: Job, ended: Mapping[JobId, JobState]) -> Exit | None:
    """What to say of a job that waits for one that ended the wrong way."""
    culprit = never_satisfied(job, ended)
    if culprit is None or job.holds_gpus:
        return None
    return Exit(Cause.DEPENDENCY, evidence=f"job {culprit} ended as {ended[culprit]}")


def lost_before(job: Job) -> bool:
    return any(failure.cause is Cause.LOST for failure in job.failures)
