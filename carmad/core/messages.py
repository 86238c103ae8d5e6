"""What goes into the core (events) and what comes out of it (actions, in a step)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from carmad.config import Settings
from carmad.core.gpus.gpu import Drain, Gpu, GpuSample
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId, Mode, Signs
from carmad.core.jobs.findings import Estimate, StageTimes
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.placing.decision import Decision, Failure
from carmad.core.rules.limits import Limit, Reservation
from carmad.core.rules.share import Account
from carmad.learning.models import Model


@dataclass(frozen=True, slots=True)
class Event:
    """What goes into the core; `at` is when it happened."""

    at: float


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    job: JobId


@dataclass(frozen=True, slots=True)
class Discovered(Event):
    """The GPUs that exist now: sent at every start, and when MIG instances come or go.

    `unread`: why they are not known yet, such as a driver loaded late; then `gpus` is empty."""

    gpus: tuple[Gpu, ...]
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    """New jobs, with ids from `first` on: one job, or tasks of an array."""

    first: JobId
    specs: tuple[JobSpec, ...]
    held: bool = False
    env: tuple[tuple[str, str], ...] = ()  # their complete environment, for the store only
    script: str = ""  # likewise, the text of their job script
    groups: tuple[str, ...] = ()  # that their user is in


@dataclass(frozen=True, slots=True)
class Adopted(Event):
    """A process that runs on `gpus` already, as `spec.process`, becomes a job."""

    id: JobId
    spec: JobSpec
    gpus: tuple[GpuId, ...]
    mode: Mode


UNESTIMATED = "has no memory estimate"  # how a note begins that says why


@dataclass(frozen=True, slots=True)
class Estimated(JobEvent):
    """An estimator's answer; None when it has none."""

    estimate: Estimate | None
    note: str = ""  # why there is none
    crash: str = ""  # as in `Refusal`
    late: bool = False  # likewise: another answer follows
    again: bool = False  # as in `EstimateMemory`: it is for all waiting runs of the job


@dataclass(frozen=True, slots=True)
class Sampled(Event):
    """`signs`: of the attempts that run, with some of the readings."""

    samples: tuple[GpuSample, ...]
    signs: tuple[Signs, ...] = ()


@dataclass(frozen=True, slots=True)
class Silent(Event):
    """All GPUs of which there are no readings now, and why."""

    gpus: tuple[tuple[GpuId, str], ...]


@dataclass(frozen=True, slots=True)
class Postponed(JobEvent):
    """The attempt cannot start now, through no fault of the job; `over`: it has started at last."""

    attempt: int
    over: bool = False


@dataclass(frozen=True, slots=True)
class Began(JobEvent):
    """An attempt without GPUs has been launched: no first kernel will tell that it runs."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Exited(JobEvent):
    """An attempt is over and its processes and GPU memory are gone. Repeats are harmless."""

    attempt: int
    exit: Exit
    ended_at: float | None = None  # when it ended, if that was earlier than `at`
    stop: Cause | None = None  # why it was stopped for good, as recorded by the attempt itself


@dataclass(frozen=True, slots=True)
class CancelRequested(JobEvent):
    """Cancel this job and the `more` jobs whose ids follow its own."""

    by: str
    more: int = 0


@dataclass(frozen=True, slots=True)
class HoldRequested(JobEvent):
    """Hold (`held`) or release this waiting job and the `more` whose ids follow its own."""

    held: bool
    by: str
    more: int = 0


@dataclass(frozen=True, slots=True)
class UpdateRequested(JobEvent):
    """Set the options `names` of this job, and of the `more` whose ids follow its own, to their
    values in `spec`; its other fields do not count. `admin`: `by` is an administrator."""

    spec: JobSpec
    names: tuple[str, ...]
    by: str
    admin: bool = False
    more: int = 0


@dataclass(frozen=True, slots=True)
class SuspendRequested(JobEvent):
    """Suspend this running job, until its resumption is requested; and the `more` jobs whose ids
    follow its own."""

    by: str
    more: int = 0


@dataclass(frozen=True, slots=True)
class ResumeRequested(JobEvent):
    """Let this suspended job wait for GPUs, and the `more` jobs whose ids follow its own."""

    by: str
    more: int = 0


@dataclass(frozen=True, slots=True)
class MoveRequested(JobEvent):
    """Move this running job to these GPUs."""

    gpus: tuple[GpuId, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Suspended(JobEvent):
    """What came of a `Suspend`. `why`: it could not be done, and the job runs on; or (`lost`) its
    processes are of no use any more."""

    attempt: int
    why: str = ""
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Resumed(JobEvent):
    """What came of a `Resume`. `why`: it could not be done, and the job is suspended as before; or
    (`lost`) its processes are of no use any more. `hung`: as the driver did not answer."""

    attempt: int
    why: str = ""
    lost: bool = False
    hung: bool = False


@dataclass(frozen=True, slots=True)
class RequeueRequested(Event):
    """Run a job again, under the same id: one that has ended, or that is to be stopped for it."""

    job: Job  # as it was when this was asked: the core forgets ended jobs
    by: str
    ended: tuple[tuple[JobId, JobState], ...] = ()  # how its dependencies ended
    secrets: tuple[tuple[str, str], ...] = ()  # variables for the store: see `JobSpec.secrets`


CARMAD = "carmad"


@dataclass(frozen=True, slots=True)
class DrainRequested(Event):
    """Drain `gpu`, or (`reason` None) resume it. `move`: jobs on it go elsewhere, where they can
    be suspended."""

    gpu: GpuId
    reason: str | None
    by: str  # an administrator, or CARMAD, whose drain replaces no other
    move: bool = False


@dataclass(frozen=True, slots=True)
class LimitRequested(Event):
    """Set a limit. What is None in it stays as it was; with `clear`, it goes."""

    limit: Limit
    clear: bool = False


@dataclass(frozen=True, slots=True)
class Reserved(Event):
    """Make this reservation. Without effect if its id is taken or it meets another one."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class Unreserved(Event):
    """Cancel this reservation."""

    id: int
    by: str


@dataclass(frozen=True, slots=True)
class Noticed(JobEvent):
    """Something about a running job that its owner should know."""

    note: str


@dataclass(frozen=True, slots=True)
class Stumbled(JobEvent):
    """The log of a running attempt says that GPU memory was short: `exit` is how that would end
    it."""

    attempt: int
    exit: Exit


@dataclass(frozen=True, slots=True)
class Stepped(JobEvent):
    """A running job's report of its step time and stage times."""

    seconds: float
    stages: StageTimes | None = None


@dataclass(frozen=True, slots=True)
class Measured(JobEvent):
    """A running job's report of metrics, such as its accuracy."""

    metrics: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Trained(Event):
    """Newly trained models, by name; the others are kept."""

    models: tuple[tuple[str, Model], ...]


@dataclass(frozen=True, slots=True)
class Reconfigured(Event):
    """New settings. Plugins keep those that they were made with."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed: time limits and begin times are checked."""


@dataclass(frozen=True, slots=True)
class Closing(Event):
    """The daemon is stopping while jobs keep running: save their usage so far."""


@dataclass(frozen=True, slots=True)
class EstimateMemory:
    """`again`: a run of this job has ended, so only measurements are asked for, and no answer is
    needed if there are none."""

    job: Job
    again: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    job: Job


@dataclass(frozen=True, slots=True)
class Signal:
    """The warning before a time limit."""

    job: Job
    signum: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Look for an out-of-memory error in what the running job has printed since `begins`, the
    positions in its logs."""

    job: Job
    begins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End all of the job's processes: politely, then by force."""

    job: Job


@dataclass(frozen=True, slots=True)
class Suspend:
    """Move the GPU memory of the job's processes to the host's; where that has begun, go on."""

    job: Job


@dataclass(frozen=True, slots=True)
class Resume:
    """Move it back, to the job's GPUs, which may be others than before."""

    job: Job


@dataclass(frozen=True, slots=True)
class LimitMemory:
    """Set the memory limits of the job's attempt on all GPUs that it has any on."""

    job: Job


@dataclass(frozen=True, slots=True)
class Wake:
    """Send a `Tick` at this time instead of the one requested before; infinite: send none. A world
    that samples every second may ignore it."""

    at: float


Action = EstimateMemory | Launch | Signal | ReadLog | Stop | Suspend | Resume | LimitMemory | Wake


def due_actions(job: Job) -> Iterator[Action]:
    """The actions a job's state calls for. Performing them twice must be harmless."""
    if job.lives and job.current.memory_limits:
        yield LimitMemory(job)
    match job.state:
        case JobState.STARTING:
            yield Launch(job)
        case JobState.STOPPING:
            yield Stop(job)
        case JobState.SUSPENDING:
            yield Suspend(job)
        case JobState.RESUMING:
            yield Resume(job)
        case JobState.RUNNING if job.current.warned and job.spec.warn:
            yield Signal(job, job.spec.warn.signum)
    if job.awaits_estimate:
        yield EstimateMemory(job)


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that a batch of events changed: committed as one transaction, then acted on.

    `jobs` has every version of each changed job, in order.
    """

    events: tuple[Event, ...]
    jobs: tuple[Job, ...]
    decisions: tuple[Decision, ...]
    actions: tuple[Action, ...]
    drains: tuple[Drain, ...] | None = None  # all of them, if any changed
    failures: tuple[Failure, ...] = ()  # of plugins: the core's only input besides events
    before: tuple[Job, ...] = ()  # the changed jobs as they were, if they were live
    accounts: tuple[Account, ...] = ()  # those that changed
    limits: tuple[Limit, ...] = ()  # as set; an empty one is gone
    reservations: tuple[Reservation, ...] | None = None  # all of them, if any changed

    @property
    def to_write(self) -> bool:
        """Whether there is anything to store."""
        changed = self.jobs or self.decisions or self.accounts or self.limits
        return bool(changed) or self.drains is not None or self.reservations is not None
