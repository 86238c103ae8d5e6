"""The partners of running jobs.

In the paper both jobs of a group start at once. On CARMA's GPUs the second one joins when the first
has settled, and until then neither may be paired with another job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from carmad.plugin import Job, JobId, View
from policies.cuckoo.groups import Packer
from policies.cuckoo.members import Member, is_known
from policies.cuckoo.schedule import Turn
from policies.cuckoo.site import Site
from policies.cuckoo.telling import Planned


@dataclass(frozen=True, slots=True)
class Memory:
    """What the policy remembers: who is to join whom, and who knows when its turn is."""

    joining: tuple[tuple[JobId, JobId], ...] = ()  # by running job, the queued one
    told: tuple[JobId, ...] = ()  # the first waiting jobs
    told_at: float = -math.inf
    due_at: float = math.inf  # when the first of the jobs that ran then should have ended


def recall(view: View) -> Memory:
    return view.memory if isinstance(view.memory, Memory) else Memory()


def awaiting(view: View, jobs: Sequence[Job], where: Site) -> dict[JobId, Job]:
    """By running job, the partner among the queued `jobs` that can still join it: as long as the
    first has its GPUs to itself and stays there, and enough is known about both. Otherwise the
    partner is planned like any other job."""
    pairs = dict(recall(view).joining) if where.gpus else {}
    wanted = set(pairs.values())
    queued = {job.id: job for job in jobs if job.id in wanted and is_known(job, where, view)}
    return {
        first.id: queued[pairs[first.id]]
        for first in view.running
        if pairs.get(first.id) in queued
        and where.single.issuperset(first.gpus)
        and not first.leaves
        and is_known(first, where, view)
    }


def turns(
    partners: Mapping[JobId, Member], running: Sequence[Member], where: Site, packer: Packer
) -> Iterator[Turn]:
    """The joins of partners, whether or not their GPUs can take them yet."""
    by_id = {gpu.id: gpu for gpu in where.gpus}
    for first in running:
        second = partners.get(first.job.id)
        if second:
            gpus = tuple(by_id[gpu] for gpu in first.job.gpus)
            kind = where.kind(gpus[0])
            group = packer.together(first, second, kind)
            yield Turn(Planned(group, ends_s=group.ends_s(kind)), gpus)
