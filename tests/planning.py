"""Builders for tests of policies: queued and running jobs, GPUs with jobs, plans by job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from carma_testing import a_gpu, a_gpu_view, a_job, a_spec
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.gpuview import GpuView
from carmad.core.jobs.attempt import Attempt
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.plugin import Placement, Policy, Proposal, View

OF_SPEC = {field.name for field in fields(JobSpec)} - {
    field.name for field in (*fields(Job), *fields(Attempt))
}


def queued(id: int, wants: int = 1, **changes: Any) -> Job:
    """A queued job with this many GPUs; further arguments are fields of its spec."""
    spec = {name: changes.pop(name) for name in OF_SPEC & changes.keys()}
    return a_job(id, spec=a_spec(gpus=wants, **spec), **changes)


def running_on(*gpus: int) -> dict[str, Any]:
    """The fields of a job that has been running on these GPUs, by index, since time 0."""
    ids = tuple(a_gpu(n).id for n in gpus)
    return {"state": JobState.RUNNING, "gpus": ids, "started_at": 0.0}


def gpu_views(
    gpus: Iterable[Gpu],
    residents: Iterable[Job] = (),
    free_mib: Callable[[int], int] = lambda jobs: 40_960,
    at: float = 0.0,
    **looks: Mapping[str, Any],
) -> list[GpuView]:
    """These GPUs with these jobs on them. `free_mib` is a function of the number of jobs; `looks`
    are further changes, as `gpu2={"free_mib": 7}`."""
    views = []
    for n, gpu in enumerate(gpus):
        there = tuple(job for job in residents if gpu.id in job.gpus)
        look = {"gpu": gpu, "residents": there, "free_mib": free_mib(len(there))}
        views.append(a_gpu_view(n, at=at, **{**look, **looks.get(f"gpu{n}", {})}))
    return views


def half_free(jobs: int) -> int:
    """Half of 40 GiB is free once a job is there."""
    return 20_000 if jobs else 40_960


def placements(policy: Policy, view: View) -> dict[int, Placement]:
    """The placements, by job."""
    return {each.job: each for each in policy.plan(view) if isinstance(each, Placement)}


def where(plan: Mapping[int, Placement] | Iterable[Proposal]) -> dict[int, tuple[int, ...]]:
    """Each job's GPUs, by index; () if it waits."""
    proposals = plan.values() if isinstance(plan, Mapping) else plan
    placed = (each for each in proposals if isinstance(each, Placement))
    return {each.job: tuple(int(gpu.removeprefix("GPU-")) for gpu in each.gpus) for each in placed}


def refused(placement: Placement) -> dict[int, list[str]]:
    """The codes of the reasons against each GPU, by index."""
    verdicts = enumerate(placement.verdicts)
    return {n: [reason.code for reason in verdict.refused] for n, verdict in verdicts}
