"""What is said of the memory that a job asks for when it is submitted: what its earlier runs used,
and whether its owner's word counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carmad.api.service import Service
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.spec import JobSpec
from carmad.core.rules.promises import (
    DAY_S,
    foresee,
    size,
)
from carmad.core.rules.share import ENOUGH, WINDOW_S, Broken
from carmad.core.scheduler import Scheduler
from carmad.learned.estimates import measured
from carmad.store.values import Named
from carmad.threads import run_in_threadpool
from carmad.words import clock, first_few


async def measurement(service: Service, spec: JobSpec) -> Estimate | None:
    """What earlier runs of it used; None: no run is known. Starts no process."""

    def look() -> Estimate | None:
        found = measured(service.settings, service.experience.server(), spec, looks=False)
        return found if isinstance(found, Estimate) else None

    return await run_in_threadpool(look)


async def remarks(service: Service, spec: JobSpec, known: Estimate | None) -> list[str]:
    """On a job that asks for memory. `known`: as `measurement`."""
    if spec.wants_measured:
        return [_automatic(known)]
    now = service.now()

    def look(core: Scheduler) -> tuple[Sequence[Broken], int]:
        most_mib = max((gpu.memory_mib for gpu in core.gpus.values()), default=0)
        return core.state.shares.broken(spec.owner, now), most_mib

    broken, most_mib = await service.ask(look)
    found = (
        [doubt(broken, service.store.name_jobs([each.job for each in broken]))] if broken else []
    )
    if known and (advice := foresee(spec.memory_mib or 0, known, most_mib or None)):
        found.append(advice)
    return found


def _automatic(known: Estimate | None) -> str:
    if known is None:
        return "no earlier run of it was measured: its memory need is estimated"
    used = f"its earlier runs used {size(known.mib)} (p95, {known.notes[0]})"
    return f"{used}: it asks for {size(known.safe_mib)}, if its script is still the same"


def doubt(broken: Sequence[Broken], names: Mapping[JobId, Named]) -> str:
    """Why the user's word does not count now, and until when."""
    ids = (each.job for each in broken)
    jobs = first_few(", ".join(f"job {names[id].label if id in names else id}" for id in ids))
    until = clock(broken[-ENOUGH].at + WINDOW_S)
    return (
        f"your --gpu-mem counts until {until} only where nothing higher is measured or estimated:"
        f" {jobs} used more than they asked for, and others ran out of memory beside them,"
        f" twice in {WINDOW_S / DAY_S:.0f} days"
    )
