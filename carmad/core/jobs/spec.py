"""What a user asked for: a job's command, its options, and where these came from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate, StageTimes
from carmad.core.jobs.layout import Layout
from carmad.options import AUTO_MIB, JobOptions


class AfterKind(StrEnum):
    OK = "afterok"
    ANY = "afterany"
    NOT_OK = "afternotok"

    def accepts(self, succeeded: bool) -> bool:
        """Whether the dependency is satisfied by the end of a job that succeeded, or did not."""
        return self is AfterKind.ANY or succeeded == (self is AfterKind.OK)


@dataclass(frozen=True, slots=True)
class After:
    """Do not start before `job` has ended this way."""

    job: JobId
    kind: AfterKind = AfterKind.OK
    label: str = ""  # what people call the job

    def __str__(self) -> str:
        return f"job {self.label or self.job}"


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """A job's place in an array. The array has an id of its own, so that each id names either one
    job or an array."""

    array: JobId
    index: int
    limit: int | None = None  # how many tasks of the array may hold GPUs at once
    tasks: int = 0  # in the array; 0: it was submitted before they were counted
    least: int = 0  # index in the array
    most: int = 0
    params: tuple[tuple[str, str], ...] = ()  # of a sweep, this task's: see `core.jobs.recurrence`
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

    `env` has only the variables that identify recurring jobs (`core.jobs.recurrence`): the complete
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
        """How many jobs it counts as: see `core.jobs.tasks`."""
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
