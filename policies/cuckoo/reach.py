"""Which queued jobs a plan covers: later ones are planned when some of these have started.

Groups are planned separately for each number of GPUs that jobs ask for, on sets of so many GPUs. If
a job might start now, enough of them are planned to choose from. Otherwise only the jobs whose turn
is next matter, as GPUs are kept for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from operator import attrgetter

from carmad.plugin import Job, View
from policies.cuckoo.members import Site

CHOICE = 4  # jobs per set of GPUs to choose from
LEAST_CHOICE = 64  # so many at least
LEAST_NEXT = 16  # jobs planned at least, if none can start


def joinable(view: View, where: Site) -> set[int]:
    """The numbers of GPUs of the jobs that another job might join."""
    residents = {gpu.id: len(gpu.residents) for gpu in where.gpus}
    return {
        job.spec.gpus
        for job in view.running
        if not view.demand(job).alone and all(residents.get(gpu) == 1 for gpu in job.gpus)
    }


def in_reach(jobs: Sequence[Job], where: Site, joinable: Collection[int]) -> list[Job]:
    """The jobs to plan, of those that can ever start, in queue order. Only jobs about which
    something is known may join one that runs."""
    idle = sum(1 for gpu in where.gpus if not gpu.residents)
    most: dict[int, tuple[int, int]] = {}  # by number of GPUs: of unknown and of known jobs
    left = 0
    for gpus, waiting in Counter(map(attrgetter("spec.gpus"), jobs)).items():
        sets = len(where.gpus) // gpus
        choice, following = max(LEAST_CHOICE, CHOICE * sets), max(LEAST_NEXT, sets)
        starting = choice if idle >= gpus else following
        most[gpus] = starting, choice if gpus in joinable else starting
        left += min(waiting, most[gpus][1])
    found: list[Job] = []
    counts: Counter[int] = Counter()
    for job in jobs:
        gpus = job.spec.gpus
        is_known = job.profile is not None or bool(job.stage_times)
        if counts[gpus] < most[gpus][is_known] and where.holds(job):
            counts[gpus] += 1
            found.append(job)
            if len(found) == left:
                break
    return found
