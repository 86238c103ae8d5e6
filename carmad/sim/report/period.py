"""The report that `carma report` would give of a simulated run."""

from __future__ import annotations

import math

from carmad.api.report import Period, ReportOut, Server, report_out
from carmad.core.sharing import (
    AttemptSummary,
    EstimateSummary,
    ExitSummary,
    JobSummary,
    SpecSummary,
)
from carmad.core.types import Gpu, Usage
from carmad.readable import duration
from carmad.sim.outcome import JobOutcome, Outcome


def report(outcome: Outcome) -> ReportOut:
    """Of the whole run. How long each job takes alone is known exactly. Why jobs waited is not
    kept; estimates are those that the run was given."""
    memory = {kind.name: kind.memory_mib for node in outcome.cluster.nodes for kind in node.units}
    gpus = {
        each.gpu: Gpu(each.gpu, index, each.kind, memory[each.kind], node=each.node)
        for index, each in enumerate(outcome.gpus)
    }
    jobs = [_ran(job, outcome.estimator) for job in outcome.jobs]
    end_s = math.nextafter(outcome.makespan_s, math.inf)  # so that the last job ends before it
    period = Period(0.0, end_s, end_s)
    out = report_out(jobs, period, Server(gpus), lambda job: "")
    whole = f"{outcome.trace} under {outcome.policy}, simulated: {duration(outcome.makespan_s)}"
    return {**out, "since": None, "until": None, "title": whole}


def _ran(job: JobOutcome, estimator: str) -> JobSummary:
    task = job.task
    known = {"oracle": task.load.memory_mib, **dict(task.estimates)}
    stays = tuple(
        AttemptSummary(
            each.gpus, each.mode, each.launched_at, each.ended_at, exit=ExitSummary(each.cause)
        )
        for each in job.attempts
    )
    held_s = sum(len(each.gpus) * (each.ended_at - each.launched_at) for each in job.attempts)
    return JobSummary(
        id=job.id,
        spec=SpecSummary(task.user, 0, task.name),
        state=job.state,
        submitted_at=task.submit_s,
        attempts=stays,
        estimate=EstimateSummary(known[estimator], estimator) if estimator in known else None,
        usage=Usage(task.load.memory_mib, job.energy_j, task.load.sm_active * held_s, held_s),
        alone_s=job.alone_s,
    )
