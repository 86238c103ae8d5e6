"""The report of a week, or of any other period, and a job's efficiency receipt."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict


class SlowdownOut(TypedDict):
    """How many times as long a job's work took beside others as alone."""

    ratio: float  # at least 1
    low: float  # the ratio is from here to `high`, as far as the source can tell
    high: float
    source: str  # steps, runs, model, simulation
    known_from: int  # neighbours measured, runs alone, or pairs predicted


class ReceiptOut(TypedDict):
    """What sharing GPUs cost a job, and what it saved. In GPU-hours."""

    gpu_hours: float  # that it held
    shared: float  # the part of that, 0–1, in which another job was on any of its GPUs
    share_gpu_hours: float  # a GPU with n jobs counts an n-th for each
    neighbours: int
    slowdown: SlowdownOut | None  # null: it did not share, or nothing is known
    alone_gpu_hours: float | None  # what its work would have held alone
    saved_gpu_hours: float | None  # alone_gpu_hours - share_gpu_hours


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
