"""What plugins say of a submission before it is stored (`carma.submissions`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from carmad.api.service import Service
from carmad.core.jobs.spec import JobSpec
from carmad.edge import Condition, SubmissionCheck
from carmad.threads import run_in_threadpool


@asynccontextmanager
async def admission(service: Service, spec: JobSpec) -> AsyncIterator[JobSpec]:
    """The submission as the checks complete it. If one depends on the jobs that have not ended,
    nothing else that does is admitted before this one is stored.

    Raises CarmaError if one refuses it.
    """
    conditions: list[Condition] = []
    if service.checks:
        spec, conditions = await run_in_threadpool(_ask, service.checks, spec)
    if not conditions:
        yield spec
        return
    async with service.admitting:
        others = await service.ask(lambda core: [job.spec for job in core.jobs.rows.values()])
        await run_in_threadpool(_require, conditions, others)
        yield spec


def _ask(checks: Sequence[SubmissionCheck], spec: JobSpec) -> tuple[JobSpec, list[Condition]]:
    conditions = []
    for each in checks:
        checked = each.check(spec)
        spec = checked.spec
        if checked.condition:
            conditions.append(checked.condition)
    return spec, conditions


def _require(conditions: Sequence[Condition], others: Sequence[JobSpec]) -> None:
    for condition in conditions:
        condition(others)
