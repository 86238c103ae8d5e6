"""The host's CPUs and memory, of which jobs may ask for a part: what is left for whom.

The first job of each line, of those for GPUs and of those for CPUs alone, keeps what it wants free
until it starts: otherwise small jobs could pass a large one for ever. What asks for nothing counts
for nothing and waits for nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nlargest

from carmad.config import Host
from carmad.core.decision import Reason
from carmad.core.types import Job, JobId, JobSpec
from carmad.readable import gib

NAMED = 3  # jobs that a reason names: those that have most

CPUS, MEMORY = "cpus", "host_memory_mib"  # fields of `JobSpec`
Key = tuple[int | None, int | None]


def key(spec: JobSpec) -> Key:
    """The CPUs and MiB that a job asks for."""
    return spec.cpus, spec.host_memory_mib


def asks(spec: JobSpec) -> bool:
    return spec.cpus is not None or spec.host_memory_mib is not None


class Room:
    """What the host has left, as of one moment. `used`: the sums over `holders`, by field of
    `JobSpec`; `firsts`: the first job of each line, in order."""

    def __init__(
        self,
        total: Host,
        used: Mapping[str, int],
        holders: Mapping[JobId, JobSpec],
        firsts: Iterable[Job] = (),
    ) -> None:
        self._total = {CPUS: total.cpus, MEMORY: total.memory_mib}
        self._used = used
        self._holders = holders
        self._firsts = list(firsts)
        self._known: dict[Key, Reason | None] = {}  # of jobs that are no first: they are alike

    def lack(self, job: Job) -> Reason | None:
        """What is missing for the job to start; None if nothing is."""
        if not asks(job.spec):
            return None
        for place, first in enumerate(self._firsts):
            if job.id in first.ids:
                return self._lack(job.spec, self._firsts[:place])
        wanted = key(job.spec)
        if wanted not in self._known:
            self._known[wanted] = self._lack(job.spec, self._firsts)
        return self._known[wanted]

    @property
    def no_cpu(self) -> bool:
        """Whether jobs have them all."""
        total = self._total[CPUS]
        return total is not None and total <= self._used.get(CPUS, 0)

    def _lack(self, spec: JobSpec, ahead: list[Job]) -> Reason | None:
        for kind in (CPUS, MEMORY):
            wanted, total = getattr(spec, kind), self._total[kind]
            if wanted is None or total is None:
                continue
            free = max(0, total - self._used.get(kind, 0))
            if wanted > free - _sum(ahead, kind):
                unit = "CPUs" if kind == CPUS else "MiB"
                return Reason(kind, wanted, free, unit, self._who(kind, total, free, ahead))
        return None

    def _who(self, kind: str, total: int, free: int, ahead: list[Job]) -> str:
        """Such as `8 of 32 are free: job 12 has 24`."""
        said = str if kind == CPUS else gib
        asked = ((id, getattr(spec, kind)) for id, spec in self._holders.items())
        most = nlargest(NAMED, ((n, id) for id, n in asked if n))
        has = [f"job {id} has {said(n)}" for n, id in most]
        before = ((job.id, getattr(job.spec, kind)) for job in ahead)
        has += [f"job {id} is before it and wants {said(n)}" for id, n in before if n]
        are = "are" if kind == CPUS and free != 1 else "is"
        left = f"{said(free)} of {said(total)} {are} free"
        return f"{left}: {', '.join(has)}" if has else left


def worth(asked: Key, total: Host, gpus: int) -> float:
    """How many of the server's GPUs are as large a part of it as what is asked for: of its CPUs
    or of its memory, whichever part is larger."""
    parts = zip(asked, (total.cpus, total.memory_mib), strict=True)
    return max(wanted * gpus / whole if wanted and whole else 0.0 for wanted, whole in parts)


def counted(counts: Counter[str], spec: JobSpec, sign: int) -> None:
    """Add what a job asks for to the sums, or subtract it."""
    for kind in (CPUS, MEMORY):
        counts[kind] += sign * (getattr(spec, kind) or 0)


def _sum(jobs: Iterable[Job], kind: str) -> int:
    return sum(getattr(job.spec, kind) or 0 for job in jobs)
