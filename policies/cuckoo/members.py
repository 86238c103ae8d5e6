"""The jobs in a plan, and what is known about each: its stage times on each kind of GPU (the
profiler of the Cuckoo paper, 3.1), how long it takes, and when it is due.

A plan covers a part of the queue (`in_reach`); later jobs are planned when some of these have
started. Groups are planned separately for each number of GPUs that jobs ask for, on sets of so many
GPUs. If a job might start now, enough of them are planned to choose from. Otherwise only the jobs
whose turn is next matter, as GPUs are kept for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from carmad.plugin import Job, Links, Profile, StageTimes, View
from policies.backfilling import is_overdue
from policies.castor.neighbours import OVERRUN
from policies.cuckoo.interleaving import Model, Phases, standalone
from policies.cuckoo.site import Site
from policies.views import margin_mib, need_mib

FORWARD = 1 / 3  # of the computing time: the backward pass has two matrix products per forward one
SHORTEST_S = 1e-6  # shortest credible iteration
FASTER = 100.0  # largest credible ratio of the speeds of two kinds
ASSUMED_S = 1.0  # step time if unknown: between two such jobs only ratios matter

UNHEARD_S = 3600.0  # assumed duration if none is known for any job
LEAST_S = 1.0  # least duration and remaining time of a running job, even one told to stop

ANYONE = -1  # instead of a user: without MPS, all users may share

CHOICE = 4  # jobs per set of GPUs to choose from
LEAST_CHOICE = 64  # so many at least
LEAST_NEXT = 16  # jobs planned at least, if none can start


def find_stage_times(job: Job, measured_on: str, links: Links) -> tuple[StageTimes, ...]:
    """Known stage times, by kind; empty if the job has neither stage times nor a profile, or if its
    iterations are implausibly short.

    `measured_on`: the kind assumed for profiles of releases that did not record it.
    """
    if job.stage_times:
        return job.stage_times if min(map(_total_s, job.stage_times)) >= SHORTEST_S else ()
    if job.profile is None:
        return ()
    kind = job.profile.gpu or measured_on
    steps = {step.gpu: step.seconds for step in job.steps if step.parts == 1}
    step_s = steps.get(kind) or min(steps.values(), default=ASSUMED_S) or ASSUMED_S
    return _derive(job.profile, step_s, links if job.spec.gpus > 1 else None, kind)


def _total_s(stages: StageTimes) -> float:
    return stages.load_s + stages.forward_s + stages.backward_s + stages.communication_s


@lru_cache(maxsize=4096)
def _derive(
    profile: Profile, step_s: float, links: Links | None, kind: str
) -> tuple[StageTimes, ...]:
    """Stage times from the share of time in which a kernel ran, and, if `links` are given, what the
    GPUs sent. The rest counts as loading: utilisation cannot distinguish waiting for data from
    waiting for the network, but NCCL's kernels run during the latter.

    What overlaps the backward pass takes no time of its own; if more is sent than fits there, the
    passes are shorter by the excess.
    """
    busy = profile.mean("gpu_utilization")
    if busy is None:
        return ()
    computing_s = min(1.0, max(0.0, busy)) * step_s
    sending_s = min(computing_s, _sending(profile, links) * step_s) if links else 0.0
    forward_s = min(FORWARD * computing_s, computing_s - sending_s)
    backward_s = forward_s / FORWARD - forward_s
    return (StageTimes(step_s - computing_s, forward_s, backward_s, sending_s, gpu=kind),)


def _sending(profile: Profile, links: Links) -> float:
    """The share of time that the GPU's links need for what it sent, by NVLink's and PCIe's
    counters. What it received over PCIe is mostly data, so only the other direction counts."""
    nvlink, pcie = (profile.mean(f"{link}_tx_mib_s") or 0.0 for link in ("nvlink", "pcie"))
    return nvlink / links.within_mib_s + pcie / links.between_mib_s


@dataclass(frozen=True, slots=True)
class Speeds:
    """How much longer passes take on one kind of GPU than on another: the median over jobs with
    stage times on both, so that one owner's mistake does not affect everyone's plans. Kinds that no
    job connects count as equally fast."""

    ratios: Mapping[tuple[str, str], float]  # from one kind to another

    @classmethod
    def compare(cls, jobs: Iterable[Job]) -> Speeds:
        seen: dict[tuple[str, str], list[float]] = {}
        for stages in {job.stage_times for job in jobs if len(job.stage_times) > 1}:
            computing = [(each.gpu, each.forward_s + each.backward_s) for each in stages]
            for one, there_s in computing:
                for other, here_s in computing:
                    if one != other and 0 < there_s <= FASTER * here_s <= FASTER**2 * there_s:
                        seen.setdefault((one, other), []).append(here_s / there_s)
        return cls({kinds: median(ratios) for kinds, ratios in seen.items()})

    def on(self, stages: tuple[StageTimes, ...], kind: str) -> StageTimes:
        """The stage times given for this kind, or for any kind; otherwise those of the first kind
        given, with passes scaled: disk and network do not depend on the GPU."""
        by_kind = {each.gpu: each for each in stages}
        there = by_kind.get(kind) or by_kind.get("")
        if there is not None:
            return there
        first = stages[0]
        ratio = self.ratios.get((first.gpu, kind), 1.0)
        return StageTimes(
            first.load_s,
            first.forward_s * ratio,
            first.backward_s * ratio,
            first.communication_s,
            first.sync,
            kind,
        )


class Member(NamedTuple):
    """A queued or running job. Times are in seconds from now, as if it were alone."""

    job: Job
    stages: tuple[StageTimes, ...]  # one per kind of the site; empty: unknown
    alone: tuple[float, ...]  # duration of an iteration, by kind
    left_s: tuple[float, ...]  # the part of its duration that remains, by kind
    certain: tuple[bool, ...]  # whether that is as predicted, and not a guess, by kind
    deadline_s: float  # infinite: none
    need_mib: int
    room_mib: int  # that must be free beside another job
    uid: int  # the user whose jobs it may share with under MPS; otherwise `ANYONE`
    shares: bool  # it need not be alone, and nothing is missing
    missing: str  # the reason code of what must be known before it is packed; "": nothing
    overdue: bool  # it may be overtaken no longer if nobody knows when it can start


def find_members(jobs: Sequence[Job], where: Site, model: Model, view: View) -> list[Member]:
    known = [seconds for job in jobs if (seconds := job.expected_s) is not None]
    mean_s = math.fsum(known) / len(known) if known else UNHEARD_S
    speeds = Speeds.compare(jobs)
    return [_member(job, where, model, view, mean_s, speeds) for job in jobs]


def _member(
    job: Job, where: Site, model: Model, view: View, mean_s: float, speeds: Speeds
) -> Member:
    """`mean_s`: the duration that is assumed if it is not known."""
    told = find_stage_times(job, where.kinds[0], view.settings.links)
    stages = tuple([speeds.on(told, kind) for kind in where.kinds]) if told else ()
    alone = _time_alone(stages, model) if stages else (1.0,) * len(where.kinds)
    expected_s, wanted, missing = job.expected_s, view.demand(job), _missing(job, told)
    # Predictions are assumed to be for the first kind.
    first_s = mean_s if expected_s is None else expected_s
    whole_s = [first_s * each / alone[0] for each in alone]
    attained_s, is_predicted = job.attained_s(view.now), expected_s is not None
    deadline_at, needs_mib = job.spec.deadline_at, need_mib(job)
    conditions = view.settings.preconditions_for("cuckoo")
    return Member(
        job,
        stages,
        alone,
        left_s=tuple([left_s(job, view.now, each) for each in whole_s]),
        certain=tuple([job.leaves or (is_predicted and attained_s < each) for each in whole_s]),
        deadline_s=math.inf if deadline_at is None else deadline_at - view.now,
        need_mib=needs_mib,
        room_mib=max(needs_mib + margin_mib(job.retry, conditions), conditions.min_free_mib),
        uid=ANYONE if wanted.mps_uid is None else wanted.mps_uid,
        shares=not missing and not wanted.alone,
        missing=missing,
        overdue=is_overdue(job, view),
    )


def is_known(job: Job, where: Site, view: View) -> bool:
    """Whether enough is known about it to pack it."""
    return not _missing(job, find_stage_times(job, where.kinds[0], view.settings.links))


def _missing(job: Job, stages: tuple[StageTimes, ...]) -> str:
    if not (stages and need_mib(job)):
        return "unprofiled"
    return "unpredicted" if job.expected_s is None else ""


@lru_cache(maxsize=4096)
def _time_alone(stages: tuple[StageTimes, ...], model: Model) -> tuple[float, ...]:
    return tuple(standalone(model, Phases.of(stages)).tolist())


def left_s(job: Job, now: float, whole_s: float) -> float:
    """Its remaining run time alone. A job that has outlived its prediction is assumed to continue
    for a tenth of its run time, as in Castor."""
    if job.leaves:
        return 0.0
    attained_s = job.attained_s(now)
    return whole_s - attained_s if attained_s < whole_s else OVERRUN * attained_s


def in_reach(jobs: Sequence[Job], where: Site) -> list[Job]:
    """The jobs to plan, of those that can ever start, in queue order."""
    left: dict[int, int] = {}  # by number of GPUs
    for gpus, waiting in Counter(map(attrgetter("spec.gpus"), jobs)).items():
        sets = len(where.gpus) // gpus
        few, many = max(LEAST_NEXT, sets), max(LEAST_CHOICE, CHOICE * sets)
        left[gpus] = min(waiting, many if where.idle >= gpus else few)
    found: list[Job] = []
    for job in jobs:
        if left[job.spec.gpus] and where.holds(job):
            left[job.spec.gpus] -= 1
            found.append(job)
            if not any(left.values()):
                break
    return found
