"""Pairs whose first job runs and is still to be joined by its partner, with `joins = "partner"`.

In the paper both jobs of a group start at once. Here the second one joins when the GPU has settled,
and until then nobody else may be paired with either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from carmad.plugin import Job, JobId, View
from policies.cuckoo.groups import Packer
from policies.cuckoo.members import Member, Site, is_known
from policies.cuckoo.remembering import Memory
from policies.cuckoo.schedule import Turn
from policies.cuckoo.telling import Planned


def recall(view: View) -> Mapping[JobId, JobId]:
    """By running job, the queued one that was to join it when the last plan was made."""
    return dict(view.memory.joining) if isinstance(view.memory, Memory) else {}


def awaiting(view: View, jobs: Sequence[Job], where: Site) -> dict[JobId, Job]:
    """By running job, the partner among the queued `jobs` that can still join it: as long as enough
    is known about both. Otherwise the partner is planned like any other job."""
    pairs = recall(view)
    if not pairs:
        return {}
    wanted = set(pairs.values())
    queued = {job.id: job for job in jobs if job.id in wanted and is_known(job, where, view)}
    return {
        first.id: queued[pairs[first.id]]
        for first in _alone(view, where)
        if pairs.get(first.id) in queued and is_known(first, where, view)
    }


def _alone(view: View, where: Site) -> Iterator[Job]:
    """The jobs that have their GPUs to themselves and have not been told to stop."""
    residents = {gpu.id: len(gpu.residents) for gpu in where.gpus}
    for job in view.running:
        if job.stop is None and all(residents.get(gpu) == 1 for gpu in job.gpus):
            yield job


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
