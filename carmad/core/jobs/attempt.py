"""One run of a job on GPUs, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Literal, NewType, Self

JobId = NewType("JobId", int)
MAX_ID = 10**12  # a thousand jobs a second for thirty years: ids stay below
GpuId = NewType("GpuId", str)  # the UUID the driver gives: GPU-… or MIG-…

HOUR_S = 3600.0
KEPT = 100  # attempts of a job: a policy may preempt one any number of times


# The evidence of a failure begins with this where a GPU was full and no other cause is known.
SILENT = "its log does not tell why it failed"


class Mode(StrEnum):
    """How a job shares a GPU (CARMA paper, 3.6 and 6)."""

    EXCLUSIVE = "exclusive"  # alone on its GPUs
    STREAMS = "streams"  # time-sliced with others by the driver
    MPS = "mps"  # with others under one MPS server
    MIG = "mig"  # alone on a MIG instance


class Cause(StrEnum):
    """Why an attempt ended."""

    SUCCESS = "success"
    FAILURE = "failure"  # the program's own error
    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    IDLE = "idle"  # it did not use its GPUs for too long: `interactive.idle_s`, `idle.batch`
    LAUNCH_FAILED = "launch_failed"  # never started: cwd, environment, command
    NO_ACCOUNT = "no_account"  # its user's name and uid do not belong together any more
    UNSTARTED = "unstarted"  # its supervisor did not start in time: an overloaded server, a kill -9
    LOST = "lost"  # its supervisor vanished: a reboot, a kill -9
    DEPENDENCY = "dependency"  # a job it waited for ended the wrong way
    PREEMPTED = "preempted"  # the policy took its GPUs back; it continues later
    PROFILED = "profiled"  # its profiling run is over; it is requeued
    REQUEUED = "requeued"  # its owner wants it to run again, with its whole time limit
    UNRESTORED = "unrestored"  # it was suspended, and its GPU memory cannot be brought back


# Final stops, by the owner or a limit: the attempt itself records them, in case the job's row
# could not be written.
FOR_GOOD = frozenset({Cause.CANCELLED, Cause.TIME_LIMIT, Cause.IDLE})
# Stopped to be requeued.
SENT_BACK = frozenset({Cause.PREEMPTED, Cause.PROFILED, Cause.REQUEUED, Cause.UNRESTORED})


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended. `code` is None when `signal` ended it."""

    cause: Cause
    code: int | None = None
    signal: int | None = None
    evidence: str = ""  # the line that proves the cause, for people
    tried_mib: int | None = None  # the allocation that failed
    free_mib: int | None = None  # free on the GPU at that time
    unused_mib: int | None = None  # reserved by the job's own allocator, but unused
    neighbours: tuple[str, ...] = ()  # who else held memory on its GPUs
    tail: tuple[str, ...] = ()  # the last lines of its logs, if it did not succeed
    left: bool = False  # some of its processes could not be killed: no other attempt may follow
    limit_mib: int | None = None  # its own on that GPU (`MemoryLimits`), if it ran into that

    @property
    def fragmented(self) -> bool:
        """Whether the allocation failed although enough memory was free, but fragmented."""
        if self.tried_mib is None:
            return False
        return max(self.free_mib or 0, self.unused_mib or 0) >= self.tried_mib


@dataclass(frozen=True, slots=True)
class Signs:
    """What the processes of an attempt have done so far: while any of it grows, they live."""

    job: JobId
    attempt: int
    cpu_s: float  # processor time
    printed: tuple[int, ...] = ()  # bytes to stdout and to stderr; empty: not known


@dataclass(frozen=True, slots=True)
class ProfilingRun:
    """Keeps an attempt alone on its GPUs until a given time, so that it can be profiled."""

    until: float
    evict: bool  # requeue it then; otherwise it stays, and others may join it


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """What an attempt may have of a GPU's memory. The driver enforces it."""

    gpu: GpuId
    guaranteed_mib: int = 0  # before others get any
    most_mib: int | None = None  # None: it has no limit, as where it has left the GPU


@dataclass(frozen=True, slots=True)
class Suspension:
    """An attempt is without GPUs, or about to be, and its processes live: what they held on the
    GPUs is in the host's memory (CUDA's process checkpoint)."""

    at: float  # when it was decided
    why: str  # for people
    gpus: tuple[GpuId, ...]  # that it had, in its own order
    kind: str  # of these: it can return to no other
    node: str  # likewise; "": they are on several, and it can return to these alone
    gpu_mib: int  # that it needs on each GPU to return
    host_mib: int  # that it takes on the host
    # To return elsewhere, or alone if that is not possible (`elsewhere`), or alone.
    after: Literal["", "elsewhere", "alone"] = ""
    to: tuple[GpuId, ...] = ()  # it is moving there; once that was tried, anywhere
    failures: int = 0  # of attempts to return
    again_at: float = 0.0  # it does not try before, after such a failure
    hung: int = 0  # attempts to return that the driver did not answer
    # Since when somebody wants it, not only others' jobs; None: since `at`. Before that, for so
    # long in all: who waits in line is not parked.
    parked_at: float | None = None
    parked_s: float = 0.0

    def parked(self, held: bool, now: float) -> Suspension:
        """The suspension, as somebody wants it from now on, or does not any more."""
        if held:
            return replace(self, parked_at=now)
        return replace(self, parked_at=None, parked_s=self.has_parked_s(now))

    def has_parked_s(self, now: float) -> float:
        """For how long in all somebody has wanted it, who still does."""
        return self.parked_s + now - (self.at if self.parked_at is None else self.parked_at)

    def shift(self, by_s: float) -> Suspension:
        parked_at = None if self.parked_at is None else self.parked_at + by_s
        again_at = self.again_at + by_s
        return replace(self, at=self.at + by_s, again_at=again_at, parked_at=parked_at)


@dataclass(frozen=True, slots=True)
class Attempt:
    """From the placement until all its processes are gone. Times are the core's."""

    number: int  # counted from 1, over all attempts of the job
    gpus: tuple[GpuId, ...]
    mode: Mode | None = None  # None: not on record, as of old rows
    started_at: float | None = None  # None: it is yet to begin, or never began
    kernels: tuple[tuple[GpuId, float], ...] = ()  # when its first kernel was seen, per GPU
    accumulation: int = 1  # micro-batches per batch
    served_s: float = 0.0  # total run time of earlier, preempted attempts
    profiling: ProfilingRun | None = None  # while it is being profiled
    shared: bool = False  # another job was on one of its GPUs
    warned: bool = False  # the signal before its time limit was sent
    nearing: bool = False  # 80 % of its time limit have passed, and its owner is notified
    idle: bool = False  # its owner was warned that it does not use its GPUs, and it still does not
    stalled_since: float | None = None  # it shows no sign of life, if for long: `idling`
    suspended_s: float = 0.0  # in suspensions that are over
    suspended_at: tuple[float, ...] = ()  # when they began, in the last hour before the latest
    resumed_at: float | None = None  # from the latest
    memory_limits: tuple[MemoryLimits, ...] = ()  # as last set, by GPU: see `core.rules.guarantees`

    @property
    def exit(self) -> Exit | None:
        """How it ended; None: it is in progress."""
        return None

    @property
    def ended_at(self) -> float | None:
        return None

    def run_s(self, until: float) -> float:
        """How long it has run, or ran, by then. A suspension that is not over counts."""
        return 0.0 if self.started_at is None else until - self.started_at - self.suspended_s

    def resumed(self, gone: Suspension, now: float) -> Self:
        """The attempt on its GPUs again, as of `now`."""
        gone_s = max(0.0, now - gone.at)
        return replace(self, suspended_s=self.suspended_s + gone_s, resumed_at=now)

    def suspended_lately(self, now: float) -> tuple[float, ...]:
        """When its suspensions of the last hour began."""
        return tuple(at for at in self.suspended_at if now - at < HOUR_S)

    def ended(self, exit: Exit, at: float, stop: Cause | None) -> EndedAttempt:
        its = {each.name: getattr(self, each.name) for each in fields(Attempt)}
        return EndedAttempt(**its, exit=exit, ended_at=at, stop=stop)

    def shift(self, by_s: float) -> Self:
        """The attempt with all times moved `by_s` later."""
        run, back_at, stalled_at = self.profiling, self.resumed_at, self.stalled_since
        return replace(
            self,
            started_at=None if self.started_at is None else self.started_at + by_s,
            kernels=tuple((gpu, at + by_s) for gpu, at in self.kernels),
            profiling=run and replace(run, until=run.until + by_s),
            stalled_since=None if stalled_at is None else stalled_at + by_s,
            suspended_at=tuple(at + by_s for at in self.suspended_at),
            resumed_at=None if back_at is None else back_at + by_s,
        )


NO_ATTEMPT = Attempt(0, ())  # that of a job which has not started


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt(Attempt):
    """An attempt that is over."""

    exit: Exit = field()  # `field`: the properties that these replace are no defaults
    ended_at: float = field()
    stop: Cause | None = None  # why it was stopped

    def shift(self, by_s: float) -> Self:
        moved = super(EndedAttempt, self).shift(by_s)
        return replace(moved, ended_at=self.ended_at + by_s)


def with_room(attempts: tuple[EndedAttempt, ...]) -> tuple[EndedAttempt, ...]:
    """The attempts, so that one more may follow: of `KEPT`, the oldest sent back is dropped."""
    if len(attempts) < KEPT:
        return attempts
    sent_back = (n for n, each in enumerate(attempts) if each.stop in SENT_BACK)
    oldest = next(sent_back, 0)
    return attempts[:oldest] + attempts[oldest + 1 :]
