"""Where packages plug into a running daemon: what it gives them, and what it asks of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from carmad.config import Settings
from carmad.core.gpus.gpu import Gpu
from carmad.core.happenings import Happening
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Allocation, JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.messages import Event, Step
from carmad.core.scene import Scene
from carmad.errors import CarmaError

Known = Literal["duration", "stages"]


@dataclass(frozen=True, slots=True)
class System:
    """What a policy's paper has besides the policy. Who names the policy sets `settings`, by their
    full names, unless they are set otherwise; `carma doctor` says what else is missing."""

    settings: Mapping[str, bool | float | str] = field(default_factory=dict)
    model: str = ""  # the trained model that the predictor among them needs
    of_jobs: tuple[Known, ...] = ()  # what the policy has to know of each job


API_VERSION = 1  # of what plugins may use: raised by one when something in it changes or goes


class Follower:
    """Follows what the core does, in its thread, which waits meanwhile: what takes long belongs in
    another. By default it ignores everything."""

    __slots__ = ()

    def hear(self, events: Sequence[Event]) -> None:
        """The core is about to handle these."""

    def on_timing(self, step: Step, core_s: float, commit_s: float) -> None:
        """How long it took the core to make this step, and the store to write it."""

    def on_commit(self, step: Step) -> None:
        """This step is on disk. If this raises, `on_reset` is called."""

    def on_failed_commit(self, error: CarmaError) -> None:
        """Events could not be committed, and will be retried: the disk is full."""

    def on_reset(self, jobs: Iterable[Job]) -> None:
        """Steps may be missing: the core was reset to what is on disk, with these jobs."""

    def on_happenings(self, happenings: Sequence[Happening], gpus: Mapping[GpuId, Gpu]) -> None:
        """What `carma status --follow` shows happened. `gpus`: all there are."""


class BackgroundService(Protocol):
    """Runs beside the daemon, in a thread or a process of its own. If it is a `Follower`, too, it
    gets each step."""

    def start(self) -> None:
        """All parts are built, and the core knows its jobs, but it does not answer before all
        services have started."""

    def stop(self) -> None:
        """The core has stopped; the store is open. Takes a few seconds at most."""


# Asked with the jobs that have not ended. Raises CarmaError to refuse the submission.
Condition = Callable[[Sequence[JobSpec]], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """A submission that a check lets pass. `condition`: unless other jobs are in the way, which is
    asked of one submission after the other, and should be quick."""

    spec: JobSpec  # with what the check has added
    condition: Condition | None = None


class SubmissionCheck:
    """Asked before a job or an array is stored; may refuse it, or complete it. It may take a while,
    as each submission waits for its own answer alone: several threads call it at once. By default
    it lets everything pass as it is."""

    __slots__ = ()

    def allocation(self, pid: int) -> Allocation | None:
        """Another resource manager's, that a user's process is part of, which is to run a job: then
        the job is part of it, too. Asked when that is submitted, and when the process begins it. By
        what the kernel says: users choose their processes' variables. None: of none that it knows.
        """
        return None

    def check(self, spec: JobSpec) -> Checked:
        """Raises CarmaError to refuse it: its message and its hint are for the submitter. `spec`:
        of an array, that of any task; with its complete environment."""
        return Checked(spec)


class Records(Protocol):
    """Reads the jobs on disk. Raises CarmaError."""

    def users(self) -> Sequence[str]: ...

    def history(
        self,
        *,
        user: str | None = None,
        states: Collection[JobState] | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
    ) -> Sequence[Job]:
        """Jobs that existed at some time in `since` ≤ t < `until` (Unix seconds), newest first."""


@dataclass(frozen=True, slots=True)
class Chore:
    """What is done again and again, in a thread of the daemon's; a failure is logged."""

    name: str
    do: Callable[[], object]
    trigger: str  # with `when`, as of APScheduler's `add_job`: "interval", {"minutes": 5}
    when: Mapping[str, object]
    at_start: bool = False  # also soon after the daemon has started
    at_stop: bool = False  # also when the daemon stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a daemon gives to each service, follower and check when it is built, before the core
    knows any job. The functions are for later, and for any thread but the core's."""

    settings: Callable[[], Settings]  # those in force
    state_dir: Path
    socket: str  # where its API listens
    has_units: bool  # systemd runs programs outside the daemon's sandbox
    records: Records
    clock: Callable[[], float]  # Unix seconds, as in all of the core's times; never goes back
    scene: Callable[[], Scene]  # as the core has it now; raises CarmaError if it does not answer
    explain: Callable[[Job], Iterable[str]]  # why a job waits, or what became of it: sentences
    add_chore: Callable[[Chore], None]  # when the service is built
