"""What plugins say of a submission before it is stored (`carma.submissions`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from carmad.api.service import Service
from carmad.core.jobs.spec import JobSpec
from carmad.edge import Checked, Condition, SubmissionCheck
from carmad.guards import refuse_on_failure_of
from carmad.threads import run_in_threadpool


@asynccontextmanager
async def admission(service: Service, spec: JobSpec) -> AsyncIterator[JobSpec]:
    """The submission as the checks complete it. If one depends on the jobs that have not ended,
    nothing else that does is admitted before this one is stored.

    Raises CarmaError if one refuses it.
    """
    conditions: list[tuple[SubmissionCheck, Condition]] = []
    if service.checks:
        spec, conditions = await run_in_threadpool(_ask, service.checks, spec)
    if not conditions:
        yield spec
        return
    async with service.admitting:
        others = await service.ask(lambda core: [job.spec for job in core.jobs.rows.values()])
        await run_in_threadpool(_require, conditions, others)
        yield spec


def _ask(
    checks: Sequence[SubmissionCheck], spec: JobSpec
) -> tuple[JobSpec, list[tuple[SubmissionCheck, Condition]]]:
    conditions = []
    for each in checks:
        with refuse_on_failure_of(each):
            checked = each.check(spec)
            if not isinstance(checked, Checked) or checked.spec.owner != spec.owner:
                raise TypeError(f"it answered {checked!r:.200}")
        spec = checked.spec
        if checked.condition:
            conditions.append((each, checked.condition))
    return spec, conditions


def _require(
    conditions: Sequence[tuple[SubmissionCheck, Condition]], others: Sequence[JobSpec]
) -> None:
    for check, condition in conditions:
        with refuse_on_failure_of(check):
            condition(others)
