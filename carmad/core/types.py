"""CARMA's domain values. All are frozen, so sharing one is always safe."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from carmad.core.attempt import FOR_GOOD as FOR_GOOD
from carmad.core.attempt import SENT_BACK as SENT_BACK
from carmad.core.attempt import Attempt as Attempt
from carmad.core.attempt import Cause as Cause
from carmad.core.attempt import Exit as Exit
from carmad.core.attempt import GpuId as GpuId
from carmad.core.attempt import JobId as JobId
from carmad.core.attempt import MemoryLimits as MemoryLimits
from carmad.core.attempt import Mode as Mode
from carmad.core.attempt import ProfilingRun as ProfilingRun
from carmad.core.attempt import Suspension as Suspension
from carmad.core.attempt import append
from carmad.core.findings import Company as Company
from carmad.core.findings import Estimate as Estimate
from carmad.core.findings import Indicator as Indicator
from carmad.core.findings import Loaded as Loaded
from carmad.core.findings import Prediction as Prediction
from carmad.core.findings import Profile as Profile
from carmad.core.findings import Refusal as Refusal
from carmad.core.findings import StageTimes as StageTimes
from carmad.core.findings import StepTime as StepTime
from carmad.core.findings import Usage as Usage
from carmad.core.layout import Layout
from carmad.options import AUTO_MIB, JobOptions


class JobState(StrEnum):
    PENDING = "pending"  # waiting; its memory need is not known yet: only idle GPUs can take it
    QUEUED = "queued"  # waiting for GPUs
    STARTING = "starting"  # handed to the launcher; no kernel seen yet
    RUNNING = "running"  # its first kernel was seen
    SUSPENDING = "suspending"  # its GPU memory is on its way to the host's
    SUSPENDED = "suspended"  # it is there; waiting for GPUs, its processes alive
    RESUMING = "resuming"  # on its way back
    STOPPING = "stopping"  # told to stop; keeps its GPUs until its processes are gone
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"


NEW = frozenset({JobState.PENDING, JobState.QUEUED})  # waiting for the next attempt to begin
WAITING = NEW | {JobState.SUSPENDED}
HOLDING = frozenset(
    {
        JobState.STARTING,
        JobState.RUNNING,
        JobState.SUSPENDING,
        JobState.RESUMING,
        JobState.STOPPING,
    }
)
LEAVING = frozenset({JobState.SUSPENDING, JobState.STOPPING})
ENDED = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
        JobState.OUT_OF_MEMORY,
    }
)


class AfterKind(StrEnum):
    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"

    def accepts(self, state: JobState) -> bool:
        """Whether the dependency is satisfied by a job that ended in `state`."""
        return self is AfterKind.ANY or (state is JobState.SUCCEEDED) == (self is AfterKind.OK)


@dataclass(frozen=True, slots=True)
class After:
    """Do not start before `job` has ended this way."""

    job: JobId
    kind: AfterKind = AfterKind.OK
    label: str = ""  # what people call the job; "": it was submitted to 0.1

    def __str__(self) -> str:
        return f"job {self.label or self.job}"


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """A job's place in an array. The array has an id of its own, so that each id names either one
    job or an array; one that was submitted to 0.1 has that of its first job."""

    array: JobId
    index: int
    limit: int | None = None  # how many tasks of the array may hold GPUs at once
    tasks: int = 0  # in the array; 0: it was submitted before they were counted
    least: int = 0  # index in the array
    most: int = 0
    params: tuple[tuple[str, str], ...] = ()  # of a sweep, this task's: see `core.recurrence`
    more: int = 0  # further tasks that wait with this one as one job: they have the next ids, …
    step: int = 1  # … and indices so far apart


@dataclass(frozen=True, slots=True)
class WarnSignal:
    """Send `signum` this many seconds before the time limit (`--signal USR2@60`)."""

    signum: int
    before_s: float


@dataclass(frozen=True, slots=True)
class Environment:
    """A reference to an environment in the store, and its size there."""

    id: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Secrets:
    """A reference to the values of variables that look like secrets: the store keeps them until the
    job has ended."""

    id: str
    names: tuple[str, ...]
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """What another resource manager has given the process of a job, such as a job of Slurm's. The
    process stays in that one's cgroup; that one ends it when its time is over, whatever the job's
    own time limit says, and counts on while the job is suspended: so it never is."""

    system: str  # as people call it
    id: int  # of the allocation, there


@dataclass(frozen=True, slots=True)
class Script:
    """A job script as it was at submission. It is in the store, like an environment, and each
    attempt runs a copy of it in place of a word of the command, which is the script's path."""

    id: str
    bytes: int
    word: int
    text: str = ""  # only where `JobSpec.env` is complete


class Owner(NamedTuple):
    """The account that something belongs to: both together. Uids are given again, and so are names:
    whoever has one of them alone is somebody else."""

    uid: int
    user: str


# Not done in `options`: `carma submit` imports that, too, and cannot wait for dataclasses.
dataclass(frozen=True, kw_only=True)(JobOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(JobOptions):
    """What the user asked for, if need be later (`carma update`). More fields are defined in
    `carmad.options`.

    `env` has only the variables that identify recurring jobs (`core.recurrence`): the complete
    environment, up to 1 MiB, is in the store as `environment` and `secrets`, and the text of a job
    script as `script`. Estimators and the launcher get a spec that has all of it.
    """

    argv: tuple[str, ...]
    user: str
    uid: int
    gid: int
    cwd: str
    name: str
    env: tuple[tuple[str, str], ...] = ()  # captured at submission
    environment: Environment | None = None  # None: `env` is all there is
    secrets: Secrets | None = None  # None: no variable looks like one
    excluded: tuple[str, ...] = ()  # variables that the settings left out
    script: Script | None = None  # None: no job script, or one that is run where it is
    stdout: str = "carma-%j.out"  # relative to cwd
    layout: Layout | None = None  # None: one replica per GPU, with unknown times and sizes
    stage_times: tuple[StageTimes, ...] = ()  # declared by the user, one per kind of GPU
    warn: WarnSignal | None = None
    after: tuple[After, ...] = ()
    array: ArrayTask | None = None
    limits: tuple[tuple[str, int], ...] = ()  # soft ones of its processes; -1: unlimited
    umask: int = 0o022  # for all files that it creates, including its logs
    interactive: bool = False  # its owner's own process, at a terminal, runs it
    process: tuple[int, int] | None = None  # that process, adopted: its pid and start time
    runner: tuple[int, int] | None = None  # `carma run`, whose end is the job's; likewise
    allocation: Allocation | None = None  # that its owner's process is part of

    @property
    def lacking(self) -> tuple[str, ...]:
        """If it has all of its environment: the variables whose values are no longer stored."""
        names, there = self.secrets.names if self.secrets else (), dict(self.env)
        return tuple(name for name in names if name not in there)

    @property
    def owner(self) -> Owner:
        return Owner(self.uid, self.user)

    @property
    def tasks(self) -> int:
        """How many jobs it counts as: see `core.tasks`."""
        return 1 + self.array.more if self.array else 1

    @property
    def enforced_limit_s(self) -> float | None:
        """The time limit, if it is ours to enforce."""
        return None if self.allocation else self.time_limit_s

    def tells(self, what: str) -> bool:
        """Whether its owner wants to be notified of this, which is in `options.TOLD_OF`."""
        return self.notify is not None and what in self.notify.split(",")

    @property
    def declared(self) -> Estimate | None:
        """The declared memory, as an estimate."""
        return Estimate(self.memory_mib, "declared", firm=True) if self.memory_mib else None

    @property
    def wants_measured(self) -> bool:
        """Whether it asks for what earlier runs used (`--gpu-mem auto`)."""
        return self.memory_mib == AUTO_MIB


@dataclass(frozen=True, slots=True)
class Retry:
    """Constraints on a job's next attempt. A job with a `Retry` waits in the recovery queue."""

    why: str
    exclusive: bool = False
    avoid: tuple[GpuId, ...] = ()
    margin_mib: int = 0  # free memory required on top of the estimate

    def placeable(self, gpus: int, usable: Set[GpuId]) -> Retry:
        """Exclusive instead if `avoid` leaves a job of so many GPUs too few of the `usable` ones;
        unchanged while no GPU is known."""
        if usable and len(usable - set(self.avoid)) < gpus:
            return replace(self, avoid=(), exclusive=True)
        return self


@dataclass(frozen=True, slots=True)
class Job:
    id: JobId
    spec: JobSpec
    state: JobState
    submitted_at: float
    held: bool = False
    barred: str = ""  # why nothing may be done as its user: it is held until there is no reason
    group: str = ""  # the same for runs of the same job: see `carmad.core.recurrence`
    estimate: Estimate | None = None
    estimate_late: bool = False  # it started first, or its script took too long: one may follow
    doubted: bool = False  # its owner's word on memory: see `core.promises`
    prediction: Prediction | None = None
    profile: Profile | None = None
    steps: tuple[StepTime, ...] = ()  # reported by it or an earlier run; per `parts`, `gpu`
    stage_times: tuple[StageTimes, ...] = ()  # likewise, or declared; one per kind of GPU
    company: tuple[Company, ...] = ()  # how much others slowed it, as it reported
    attempts: tuple[Attempt, ...] = ()  # in order; `attempt.KEPT` at most
    requeued_after: int = 0  # the last attempt before its owner last requeued it
    retry: Retry | None = None
    overtaken: int = 0  # jobs behind it that started first
    exit: Exit | None = None  # how it ended: as its last attempt did, or while it waited
    ended_at: float | None = None
    notes: tuple[str, ...] = ()  # what its owner should know: outside MPS, never used its GPU
    metrics: tuple[tuple[str, float], ...] = ()  # that it reported, by name: the last values
    crash: str = ""  # how its script failed when it was tried: see `Refusal`
    unsuspendable: str = ""  # why suspending it failed; it is not tried again
    usage: Usage = Usage()  # noqa: RUF009 - it is frozen

    @property
    def ids(self) -> range:
        """Several if it stands for tasks of an array that wait alike: see `core.tasks`."""
        return range(self.id, self.id + self.tasks)

    @property
    def tasks(self) -> int:
        return self.spec.tasks

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def awaits_estimate(self) -> bool:
        """Whether its memory is still being estimated."""
        return self.state is JobState.PENDING or (self.estimate_late and not self.ended)

    @property
    def holds_gpus(self) -> bool:
        return self.state in HOLDING

    @property
    def lives(self) -> bool:
        """Whether an attempt is in progress: it holds GPUs, or is suspended."""
        return self.state in HOLDING or self.state is JobState.SUSPENDED

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def current(self) -> Attempt | None:
        """The attempt in progress, or the one that the job ended with; None while it waits."""
        last = self.attempts[-1] if self.attempts else None
        return last if last and (last.exit is None or self._is_final(last)) else None

    def _is_final(self, last: Attempt) -> bool:
        """Whether the job ended with this attempt, which is over. Only a cancelled job may have
        ended while it waited; its last attempt then was not cancelled, unless its owner requeued
        the job after that."""
        if self.state is JobState.CANCELLED:
            return last.stop is Cause.CANCELLED and last.number > self.requeued_after
        return self.state in ENDED

    def with_new_attempt(self, gpus: tuple[GpuId, ...], now: float, **its: Any) -> Job:
        """The job with a new attempt on these GPUs; `its` are further fields of the attempt."""
        number, served_s = self.attempt + 1, self.served_s
        new = Attempt(number, gpus, started_at=now, served_s=served_s, **its)
        return replace(self, attempts=append(self.attempts, new))

    def with_attempt(self, **changes: Any) -> Job:
        """The job with these fields of its last attempt changed."""
        *earlier, last = self.attempts
        return replace(self, attempts=(*earlier, replace(last, **changes)))

    def with_note(self, note: str) -> Job:
        """The job with a note for its owner; the same object if it has that note already."""
        return self if note in self.notes else replace(self, notes=(*self.notes, note))

    def shift(self, by_s: float) -> Job:
        """With all recorded times moved `by_s` later. Times that its owner gave, such as the begin
        time, are wall-clock times and stay."""
        return replace(
            self,
            submitted_at=self.submitted_at + by_s,
            attempts=tuple(each.shift(by_s) for each in self.attempts),
        )

    def attained_s(self, now: float) -> float:
        """How long it has run so far, in preempted attempts and in this one."""
        running = self.current if self.lives else None
        return running.attained_s(now) if running else self.served_s

    @property
    def due_at(self) -> float:
        """When it reaches its time limit. Infinite: it does not, as things are."""
        limit_s = self.spec.enforced_limit_s
        running = self.current if self.lives else None
        return math.inf if limit_s is None or running is None else running.due_at(limit_s)

    # -- of the current attempt

    @property
    def attempt(self) -> int:
        """The number of its last attempt; 0 before the first."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def gpus(self) -> tuple[GpuId, ...]:
        # `current`, inlined here and below: policies ask very often
        its = self.attempts[-1] if self.attempts else None
        return its.gpus if its and (its.exit is None or self._is_final(its)) else ()

    @property
    def mode(self) -> Mode | None:
        return its.mode if (its := self.current) else None

    @property
    def started_at(self) -> float | None:
        """None: it waits, is yet to begin, or ended before it began."""
        its = self.attempts[-1] if self.attempts else None
        return its.started_at if its and (its.exit is None or self._is_final(its)) else None

    @property
    def kernels(self) -> tuple[tuple[GpuId, float], ...]:
        """When its first kernel was seen, per GPU."""
        its = self.attempts[-1] if self.attempts else None
        return its.kernels if its and (its.exit is None or self._is_final(its)) else ()

    @property
    def accumulation(self) -> int:
        """Micro-batches per batch."""
        return its.accumulation if (its := self.current) else 1

    @property
    def profiling(self) -> ProfilingRun | None:
        """The current profiling run, if any."""
        its = self.attempts[-1] if self.attempts else None
        return its.profiling if its and (its.exit is None or self._is_final(its)) else None

    @property
    def shared(self) -> bool:
        """Whether another job was on one of its GPUs."""
        return self.current is not None and self.current.shared

    @property
    def filler(self) -> bool:
        """Whether it started before its turn, and leaves when those before it can start."""
        its = self.attempts[-1] if self.attempts else None
        return its is not None and its.exit is None and its.filler

    @property
    def memory_limits(self) -> tuple[MemoryLimits, ...]:
        its = self.attempts[-1] if self.attempts else None
        return its.memory_limits if its and (its.exit is None or self._is_final(its)) else ()

    @property
    def warned(self) -> bool:
        return self.current is not None and self.current.warned

    @property
    def nearing(self) -> bool:
        return self.current is not None and self.current.nearing

    @property
    def idle(self) -> bool:
        return self.current is not None and self.current.idle

    @property
    def suspension(self) -> Suspension | None:
        """The present one."""
        its = self.attempts[-1] if self.attempts else None
        return its.suspension if its and its.exit is None else None

    @property
    def suspended_s(self) -> float:
        """For how long it was suspended earlier."""
        return its.suspended_s if (its := self.current) else 0.0

    @property
    def leaves(self) -> bool:
        """Whether it is about to give its GPUs back."""
        return self.state in LEAVING

    @property
    def stop(self) -> Cause | None:
        """Why it is being, or was, stopped."""
        return its.stop if (its := self.current) else None

    # -- of earlier attempts, since its owner last queued it

    @property
    def failures(self) -> tuple[Exit, ...]:
        """How the attempts that were retried ended."""
        earlier = self.attempts[:-1] if self.current else self.attempts
        return tuple(
            each.exit
            for each in earlier
            if each.exit and each.stop is None and each.number > self.requeued_after
        )

    @property
    def served_s(self) -> float:
        """The total run time of preempted attempts."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.number <= self.requeued_after:
            return 0.0
        if last.stop is Cause.PREEMPTED and last is not self.current:
            return max(0.0, last.attained_s(math.inf))
        return last.served_s

    @property
    def profiled(self) -> bool:
        """False also if its profiling run ended before its first kernel."""
        return self.profile is not None and self.profile.seconds > 0

    @property
    def expected_s(self) -> float | None:
        """How long it runs alone: as predicted, or else as declared. None if neither is known; a
        prediction of 0 means that the predictor has never seen the job."""
        if self.prediction is None:
            return self.spec.expected_s
        return self.prediction.seconds or None

    @property
    def own_s(self) -> float | None:
        """The same, unless only other jobs say so."""
        return None if self.prediction and self.prediction.is_guess else self.expected_s

    def at_most_s(self, now: float) -> float:
        """How much longer it runs at most: until its time limit, or as long as nine of ten earlier
        runs of it, or as declared. Infinite: nobody knows, or it has outlived that already."""
        done_s = self.attained_s(now)
        predicted = self.prediction.at_most_s if self.prediction else None
        longest_s = self.spec.expected_s if predicted is None else predicted
        left_s = math.inf if longest_s is None or longest_s <= done_s else longest_s - done_s
        limit_s = self.spec.time_limit_s
        return left_s if limit_s is None else min(left_s, max(0.0, limit_s - done_s))

    @property
    def need(self) -> Estimate | None:
        """The estimate, at the present number of micro-batches."""
        return self.estimate and self.estimate.accumulating(self.accumulation)

    @property
    def limit_mib(self) -> int | None:
        """What each of its processes may allocate on a GPU, in MiB; None: no limit.

        MPS enforces it. Only declared memory is a limit: an estimate that is too low would crash
        a job that has room.
        """
        if self.mode is not Mode.MPS or self.need is None or self.need.source != "declared":
            return None
        return self.need.safe_mib + (self.retry.margin_mib if self.retry else 0)

    @property
    def exclusive(self) -> bool:
        return self.spec.exclusive or (self.retry is not None and self.retry.exclusive)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a MIG instance (then `parent` is its GPU). `memory_mib` is what jobs may use."""

    id: GpuId
    index: int  # in PCI bus order
    name: str
    memory_mib: int
    parent: GpuId | None = None
    node: str = "local"
    island: str = ""  # a node's GPUs with the same value are close: by NVLink, or on one socket
    cpus: tuple[int, ...] = ()  # on its NUMA node; none: all are, or it is not known
    guarantees: bool = False  # its driver can limit a job's memory there, and guarantee it
    cuda_index: int | None = None  # with CUDA_DEVICE_ORDER=PCI_BUS_ID; None: not known for certain

    @property
    def is_mig(self) -> bool:
        return self.parent is not None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one GPU. None: the source does not report it."""

    pid: int
    memory_mib: int | None
    sm_util: float | None = None  # 0–1; 0 means no kernel ran in the last period
    job: JobId | None = None  # filled in by the daemon's monitor
    user: str = ""
    command: str = ""
    attempt: int | None = None  # of that job; the driver may list an earlier one's for a while
    mps_uid: int | None = None  # its user, if it is the client of an MPS server


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong with a GPU, although it works."""

    kind: str  # a word, the same as long as it lasts
    message: str  # for people; may change
    drains: bool = False  # the GPU should take no further job until an admin resumes it


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU. Fractions are 0–1; None means not available, never zero."""

    gpu: GpuId
    at: float
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    sm_active: float | None = None  # SMACT
    sm_occupancy: float | None = None  # SMOCC
    dram_active: float | None = None  # DRAMA
    utilization: float | None = None  # NVML's: time with any kernel at all
    power_w: float | None = None
    energy_mj: int | None = None  # millijoules since the driver was loaded
    temperature_c: int | None = None
    processes: tuple[ProcessUse, ...] = ()
    fault: str | None = None  # lost, driver gone, …: the GPU takes no job
    memory_utilization: float | None = None  # NVML's: time in which memory was read or written
    more: tuple[tuple[str, float], ...] = ()  # further metrics of this source, by name
    conditions: tuple[Condition, ...] = ()

    @property
    def activity(self) -> float | None:
        """SMACT, or else NVML's utilisation."""
        return self.utilization if self.sm_active is None else self.sm_active

    def indicators(self) -> tuple[tuple[str, float], ...]:
        """The metrics that profile a job, as far as they are available."""
        named = (
            ("gpu_utilization", self.utilization),
            ("memory_utilization", self.memory_utilization),
            ("sm_active", self.sm_active),
            ("sm_occupancy", self.sm_occupancy),
            ("dram_active", self.dram_active),
        )
        return (*((name, value) for name, value in named if value is not None), *self.more)
