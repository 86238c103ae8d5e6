"""What is said of a job that is submitted: what is odd but allowed, and what its earlier runs
used."""

from __future__ import annotations

from carmad.api.requests import Submission
from carmad.api.service import Service
from carmad.attempt.environment import BATCH_SIZE, CPU, MEMORY, excluded, scrub
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.spec import JobSpec
from carmad.core.rules.promises import foresee, size
from carmad.core.scheduler import Scheduler
from carmad.estimates.asking import measured
from carmad.threads import run_in_threadpool
from carmad.words import first_few

EXCLUDED = "this server does not give jobs {}; --export {} passes it on"


def warnings(asked: Submission, service: Service) -> list[str]:
    """Of what is odd but allowed."""
    found, body, env_exclude = [], asked.body, service.settings.submit.env_exclude
    begin_at, deadline_at = body.begin_at, body.deadline_at
    if begin_at is not None and begin_at <= asked.at:
        found.append("the begin time is in the past: the job may start at once")
    if begin_at is not None and deadline_at is not None and begin_at >= deadline_at:
        found.append("it may begin only after its deadline")
    if body.array and body.array.limit and body.array.limit >= len(body.array.indices) > 1:
        found.append("the array's limit has no effect: there are no more tasks than that")
    if body.warn and body.time_limit_s and body.warn.before_s >= body.time_limit_s:
        found.append("the time limit is so short that the warning comes soon after the start")
    sizes = body.batch_size, body.array and body.array.params.get("batch_size")
    if not any(sizes) and any(BATCH_SIZE in word for word in body.argv):
        found.append(f"{BATCH_SIZE} in the command is not replaced without --batch-size")
    if env_exclude and (names := excluded(scrub(body.env), body.export, env_exclude)):
        found.append(EXCLUDED.format(first_few(", ".join(names)), names[0]))
    for wanted, controller in ((body.cpus, CPU), (body.host_memory_mib, MEMORY)):
        if wanted is not None and controller not in service.limited_by:
            what = "--cpus" if controller == CPU else "--mem"
            found.append(f"{what} is counted, but this server cannot enforce it")
    return found


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
    if known is None:
        return []

    def look(core: Scheduler) -> int:
        return max((gpu.memory_mib for gpu in core.gpus.values()), default=0)

    most_mib = await service.ask(look)
    advice = foresee(spec.memory_mib or 0, known, most_mib or None)
    return [advice] if advice else []


def _automatic(known: Estimate | None) -> str:
    if known is None:
        return "no earlier run of it was measured: its memory need is estimated"
    used = f"its earlier runs used {size(known.mib)} (p95, {known.notes[0]})"
    return f"{used}: it asks for {size(known.safe_mib)}, if its script is still the same"
