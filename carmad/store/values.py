"""What the store returns, besides the core's own values."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.core.history import Past, Submission
from carmad.core.messages import Drain
from carmad.core.quota import Limit
from carmad.core.reservations import Reservation
from carmad.core.share import Account
from carmad.core.types import GpuId, Job, JobId, JobState


@dataclass(frozen=True, slots=True)
class Restored:
    """All that the core needs to continue where it was."""

    jobs: tuple[Job, ...]  # not ended, in id order
    ended: tuple[tuple[JobId, JobState], ...]  # the last few thousand, the latest at the end
    drains: tuple[Drain, ...]
    next_id: JobId
    accounts: tuple[Account, ...] = ()
    limits: tuple[Limit, ...] = ()
    reservations: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True)
class Remembered:
    """What `carmad.core.history.History` is built from, both in order of time."""

    runs: tuple[Past, ...]  # the latest ones
    submissions: tuple[Submission, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    at: float
    job: JobId
    before: JobState | None  # None: the job is new
    after: JobState
    attempt: int


@dataclass(frozen=True, slots=True)
class Named:
    """A job as people know it."""

    label: str
    user: str
    uid: int
    name: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the owner of a job asked to be told of."""

    id: int
    job: JobId
    at: float
    what: str  # one of `options.TOLD_OF`
    words: str


@dataclass(frozen=True, slots=True)
class Spread:
    """A duration over many jobs, in seconds; zeros when there are none."""

    mean_s: float = 0.0
    p95_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over ended jobs."""

    jobs: tuple[tuple[JobState, int], ...]  # how many ended in each state
    gpu_hours: float
    energy_j: float
    wait: Spread  # from submission to the first start
    run: Spread  # of the last attempt


@dataclass(frozen=True, slots=True)
class External:
    """A process outside of the queue, on one GPU. Times are Unix seconds."""

    gpu: GpuId
    pid: int
    started_at: float
    user: str
    command: str
    seen_from: float
    seen_to: float
    peak_mib: int | None  # None: not known


@dataclass(frozen=True, slots=True)
class ExternalTotals:
    """Of a user's external processes; one on two GPUs counts twice."""

    user: str
    processes: int
    gpu_hours: float
    peak_mib: int | None


@dataclass(frozen=True, slots=True)
class Statistics:
    overall: Totals
    users: tuple[tuple[str, Totals], ...]  # by name
    months: tuple[tuple[str, Totals], ...] = ()  # in which jobs ended, as 2026-11, in local time
