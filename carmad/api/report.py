"""The numbers of a report, from the jobs that held GPUs in a period, and a job's efficiency
receipt. Pure; `now` is given."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from typing_extensions import TypedDict

from carmad.api.wire import SCHEMA, Digits, stamp
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.sharing import Overlaps, Seen, Stay, first_started_at, label, overlaps
from carmad.core.gpus.slowdown import HOUR_S, Basis, Receipt, receipt, work_s
from carmad.core.jobs.attempt import Cause, GpuId
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import ENDED, JobState

JOULES_PER_KWH = 3.6e6
LONGEST = 5  # waits, and idle jobs, that are listed
LEAST_WAIT_S = 60.0  # to be listed
IDLE = 0.05  # SM activity below which a GPU is hardly used
IDLE_HOURS = 1.0  # GPU-hours that a job must have held to be listed as idle
MEASURED = 0.5  # of a job's GPU time, for its activity to count

if TYPE_CHECKING:
    Slowdown = dict[str, Any]  # in JSON
else:
    from carmad.core.gpus.slowdown import Slowdown

Rounded = Annotated[float, Digits(4)]
Why = Callable[[Seen], str]  # the main reason why a job waited
Gpus = Mapping[GpuId, Gpu]


class ReceiptOut(TypedDict):
    """What sharing GPUs cost a job, and what it saved. In GPU-hours."""

    gpu_hours: Annotated[Rounded, lambda it: it.held]  # that it held
    # The part of that, 0–1, in which another job was on any of its GPUs.
    shared: Annotated[Rounded, lambda it: it.shared / it.held if it.held else 0.0]
    # A GPU with n jobs counts an n-th for each.
    share_gpu_hours: Annotated[Rounded, lambda it: it.share]
    neighbours: Annotated[int, lambda it: len(it.neighbours)]
    beside: Annotated[list[int], lambda it: sorted(it.neighbours)]  # the ids of these
    slowdown: Slowdown | None  # null: it did not share, or nothing is known
    alone_gpu_hours: Annotated[Rounded | None, lambda it: it.alone]  # that its work would have held
    saved_gpu_hours: Annotated[Rounded | None, lambda it: it.saving]  # alone - share


class GpuReportOut(TypedDict):
    id: str
    index: int | None  # null: it is no longer there
    name: str
    busy_hours: float  # with any job on it
    shared_hours: float  # with several
    idle_hours: float
    jobs: int


class UserReportOut(TypedDict):
    user: str  # "": all others together
    jobs: int  # that held GPUs
    gpu_hours: float  # a GPU with n jobs counts an n-th for each
    share: float | None  # of all users' GPU-hours, 0–1
    energy_kwh: float


class SharingReportOut(TypedDict):
    """What sharing GPUs gave and cost, all jobs together."""

    shared: float | None  # part of the GPUs' busy time with several jobs, 0–1; null: it is none
    jobs: int  # that shared
    saved_gpu_hours: float  # of the jobs whose slow-down is known
    slowdown: float | None  # their mean, over the time in company; 1: none
    known: float | None  # part of the time in company whose slow-down is known, 0–1
    sources: dict[str, int]  # jobs by where their slow-down is known from
    unknown_at_most_gpu_hours: float  # that the other jobs have saved, if nothing slowed them


class EstimateReportOut(TypedDict):
    source: str
    jobs: int  # that succeeded, with a measured peak
    ratio_median: float  # estimate over peak
    under: float  # part of the jobs that used more, 0–1


class OomReportOut(TypedDict):
    crashes: int  # attempts that ran out of GPU memory
    jobs: int
    saved: int  # of those jobs: succeeded after a retry
    waiting: int  # of those jobs: have not ended


class JobNameOut(TypedDict):
    id: int
    label: str
    user: str
    name: str


class WaitReportOut(JobNameOut):
    wait_s: float  # until it started, or until the end of the period
    started: bool
    why: str  # the reason that lasted longest; "": not recorded


class IdleReportOut(JobNameOut):
    """A job that held GPUs, but hardly used them."""

    gpu_hours: float  # that it held
    sm_active: float  # mean of its GPUs while it was there, 0–1


class ExternalReportOut(TypedDict):
    user: str  # "": all others together
    processes: int
    gpu_hours: float


class ReportOut(TypedDict):
    """Everyone may see totals. Users other than administrators see only themselves by name, and
    only their own jobs."""

    schema: int
    since: str | None  # null: a simulation, which has no date
    until: str | None
    hours: float
    title: NotRequired[str]  # of a simulation
    jobs: int  # that held GPUs
    gpus: list[GpuReportOut]
    users: list[UserReportOut]
    sharing: SharingReportOut
    estimates: list[EstimateReportOut]
    ooms: OomReportOut
    waits: list[WaitReportOut]
    idle: list[IdleReportOut]
    external: list[ExternalReportOut]


@dataclass(frozen=True, slots=True)
class Period:
    since: float
    until: float  # no later than `now`
    now: float

    def has(self, at: float | None) -> bool:
        return at is not None and self.since <= at < self.until


@dataclass(frozen=True, slots=True)
class Entry:
    """A job that held GPUs in the period."""

    job: Seen
    stays: Sequence[Stay]
    receipt: Receipt


def report_out(
    jobs: Iterable[Seen], period: Period, gpus: Gpus, why: Why, user: Owner | None = None
) -> ReportOut:
    """Everything but the external processes. `jobs`: all that were there in the period, and
    possibly others. `user`: the reader; None: an administrator."""
    known = list(jobs)
    seen = overlaps(known, period.since, period.until, period.now)
    entries = list(_entries(known, seen, gpus, period))
    hours = (period.until - period.since) / HOUR_S
    mine = [job for job in known if user in (None, job.spec.owner)]
    own = [each for each in entries if user in (None, each.job.spec.owner)]
    return {
        "schema": SCHEMA,
        "since": stamp(period.since),
        "until": stamp(period.until),
        "hours": round(hours, 3),
        "jobs": len(entries),
        "gpus": list(_gpus(seen, gpus, hours)),
        "users": _users(entries, user),
        "sharing": _sharing(entries, seen),
        "estimates": list(_estimates(known, period)),
        "ooms": _ooms(known, period),
        "waits": _waits(mine, period, why),
        "idle": _idle(own),
        "external": [],
    }


def _entries(jobs: Sequence[Seen], seen: Overlaps, gpus: Gpus, period: Period) -> Iterator[Entry]:
    known = knowledge(jobs, seen, gpus, period.since)
    for job in jobs:
        stays = seen.stays.get(job.id, ())
        if any(each.held_s > 0 for each in stays):
            yield Entry(job, stays, receipt(job, stays, known))


def knowledge(
    jobs: Iterable[Seen],
    seen: Overlaps,
    gpus: Gpus,
    since: float,
    runs: Iterable[Seen] = (),
) -> Basis:
    """`since`: from when on all jobs are known. `runs`: further ones, which never shared."""
    listed = {job.id: job for job in jobs}
    alone: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job in listed.values():
        stays, began_at = seen.stays.get(job.id, ()), first_started_at(job)
        whole = began_at is not None and began_at >= since
        if job.state is JobState.SUCCEEDED and whole and not any(s.shared_s for s in stays):
            alone[job.group, _kind(job, gpus)].append(work_s(stays))
    for job in runs:
        stays = overlaps([job], since, since, since).stays.get(job.id, ())
        if stays and job.id not in listed:
            alone[job.group, _kind(job, gpus)].append(work_s(stays))
    profiles = ((id, job.profile) for id, job in listed.items() if job.profile)
    return Basis(
        since,
        lambda job: alone.get((job.group, _kind(job, gpus)), ()) if job.group else (),
        {id: sm for id, its in profiles if (sm := its.mean("sm_active"))},
    )


def _kind(job: Seen, gpus: Gpus) -> str:
    """The name of its GPUs."""
    its = (gpus[gpu] for each in job.attempts for gpu in each.gpus[:1] if gpu in gpus)
    return next((gpu.name for gpu in its), "")


def _gpus(seen: Overlaps, gpus: Gpus, hours: float) -> Iterator[GpuReportOut]:
    known = {gpu: (its.index, its.name) for gpu, its in gpus.items()}
    for id in [*sorted(known, key=lambda gpu: known[gpu]), *sorted(seen.gpus.keys() - known)]:
        index, name = known.get(id, (None, ""))
        time = seen.gpus.get(id)
        busy = time.busy_s / HOUR_S if time else 0.0
        if index is None and not busy:
            continue
        yield {
            "id": id,
            "index": index,
            "name": name,
            "busy_hours": round(busy, 4),
            "shared_hours": round(time.shared_s / HOUR_S, 4) if time else 0.0,
            "idle_hours": round(max(0.0, hours - busy), 4),
            "jobs": len(time.jobs) if time else 0,
        }


def _users(entries: Iterable[Entry], user: Owner | None) -> list[UserReportOut]:
    """By use; to anyone but administrators, all others are one."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for each in entries:
        its = each.job.spec
        found[its.user if user in (None, its.owner) else ""].append(each)
    whole = math.fsum(each.receipt.share for its in found.values() for each in its)
    out: list[UserReportOut] = [
        {
            "user": name,
            "jobs": len(its),
            "gpu_hours": round(used := math.fsum(each.receipt.share for each in its), 4),
            "share": used / whole if whole else None,
            "energy_kwh": round(math.fsum(map(_energy_j, its)) / JOULES_PER_KWH, 6),
        }
        for name, its in found.items()
    ]
    return sorted(out, key=lambda row: (row["user"] == "", -row["gpu_hours"], row["user"]))


def _energy_j(entry: Entry) -> float:
    """Of a job that was there before or after the period, in proportion to its time."""
    run_s = sum(each.run_s for each in entry.stays)
    held_s = sum(each.held_s for each in entry.stays)
    return entry.job.usage.energy_j * (held_s / run_s if run_s > 0 else 0.0)


def _sharing(entries: Iterable[Entry], seen: Overlaps) -> SharingReportOut:
    busy_s = math.fsum(gpu.busy_s for gpu in seen.gpus.values())
    sharers = [each.receipt for each in entries if each.receipt.shared > 0]
    known = [one for one in sharers if one.alone is not None]
    in_company = math.fsum(one.shared for one in sharers)
    measured = [(one.shared, one.slowdown) for one in known if one.slowdown]
    slowed = math.fsum(shared for shared, _ in measured)
    work = math.fsum(shared / how.ratio for shared, how in measured)
    return {
        "shared": math.fsum(gpu.shared_s for gpu in seen.gpus.values()) / busy_s
        if busy_s
        else None,
        "jobs": len(sharers),
        "saved_gpu_hours": round(math.fsum(one.saving or 0.0 for one in known), 4),
        "slowdown": slowed / work if work else None,
        "known": math.fsum(one.shared for one in known) / in_company if in_company else None,
        "sources": dict(Counter(how.source for _, how in measured)),
        "unknown_at_most_gpu_hours": round(
            math.fsum(one.most_saving for one in sharers if one.alone is None), 4
        ),
    }


def _estimates(jobs: Iterable[Seen], period: Period) -> Iterator[EstimateReportOut]:
    """Of jobs that ended well in the period, by whose estimate it was."""
    found: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        said, peak = job.estimate, job.usage.peak_mib
        if (
            job.state is JobState.SUCCEEDED
            and said
            and peak
            and (job.attempts and period.has(job.attempts[-1].ended_at))
        ):
            found[said.source].append(said.mib / peak)
    for source, ratios in sorted(found.items(), key=lambda its: (-len(its[1]), its[0])):
        under = sum(ratio < 1 for ratio in ratios) / len(ratios)
        yield {
            "source": source,
            "jobs": len(ratios),
            "ratio_median": round(median(ratios), 4),
            "under": round(under, 4),
        }


def _ooms(jobs: Iterable[Seen], period: Period) -> OomReportOut:
    found: OomReportOut = {"crashes": 0, "jobs": 0, "saved": 0, "waiting": 0}
    for job in jobs:
        crashes = sum(
            each.exit is not None and each.exit.cause is Cause.GPU_OOM and period.has(each.ended_at)
            for each in job.attempts
        )
        if crashes:
            found["crashes"] += crashes
            found["jobs"] += 1
            found["saved"] += job.state is JobState.SUCCEEDED
            found["waiting"] += job.state not in ENDED
    return found


def _waits(jobs: Iterable[Seen], period: Period, why: Why) -> list[WaitReportOut]:
    """The longest that ended in the period, or had not ended at its end; of an array, one."""
    found: dict[tuple[bool, int], tuple[float, Seen, bool]] = {}
    for job in jobs:
        start, array = first_started_at(job), job.spec.array
        if start is None and job.state in ENDED:
            continue
        end = period.until if start is None or start >= period.until else start
        wait_s = end - max(job.submitted_at, job.spec.begin_at or 0.0)
        key = (True, array.array) if array else (False, job.id)
        if (
            wait_s >= LEAST_WAIT_S
            and end >= period.since
            and (key not in found or wait_s > found[key][0])
        ):
            found[key] = wait_s, job, end == start
    longest = sorted(found.values(), key=lambda each: (-each[0], each[1].id))[:LONGEST]
    return [
        {**_who(job), "wait_s": round(wait_s, 3), "started": started, "why": why(job)}
        for wait_s, job, started in longest
    ]


def _idle(entries: Iterable[Entry]) -> list[IdleReportOut]:
    """A GPU's activity is of all its jobs: where it is near zero, none of them used it."""
    found: list[IdleReportOut] = []
    for each in entries:
        usage = each.job.usage
        run_s = sum(one.run_s * len(one.attempt.gpus) for one in each.stays)
        active = usage.sm_active
        if active is None or usage.gpu_seconds < MEASURED * run_s:
            continue
        if active < IDLE and each.receipt.held >= IDLE_HOURS:
            held, sm_active = round(each.receipt.held, 4), round(active, 4)
            found.append({**_who(each.job), "gpu_hours": held, "sm_active": sm_active})
    return sorted(found, key=lambda row: (-row["gpu_hours"], row["id"]))[:LONGEST]


def _who(job: Seen) -> JobNameOut:
    return {"id": job.id, "label": label(job), "user": job.spec.user, "name": job.spec.name}
