"""What the HTTP API stands on: the core's inbox, the store, and facts about this daemon.

The API itself is in `server` and `routes`; here is how it asks the core and hears from it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from carmad.api.render import Scene
from carmad.config import Settings
from carmad.core.messages import Discovered, Event, Step
from carmad.core.scheduler import Scheduler
from carmad.core.types import Gpu, Job, JobId, JobSpec
from carmad.daemon.doctor import Check
from carmad.daemon.estimates import Guess
from carmad.daemon.experience import Experience
from carmad.daemon.inbox import Inbox
from carmad.daemon.models import Models
from carmad.errors import CarmaError
from carmad.gpu.source import Capabilities
from carmad.store.sql import SqlStore

T = TypeVar("T")

ANSWER_WITHIN_S = 30.0


class Unavailable(CarmaError):
    """The daemon cannot do it now; it may later."""


class Tally:
    """What submissions are checked against without a question to the core.

    The core's thread tells it of every step, the API's of what it is about to submit.
    """

    def __init__(self) -> None:
        self.begun = False
        self.gpus: tuple[Gpu, ...] = ()
        self.unread = ""  # why they are not known yet
        self._waiting: dict[JobId, int] = {}  # to their users
        self._by_user: Counter[int] = Counter()
        self._lock = threading.Lock()

    def begin(self, core: Scheduler) -> None:
        """In the core's thread, between two steps: from here on `note` keeps it right."""
        if not self.begun:
            self.gpus, self.unread = tuple(core.gpus.values()), core.unread
            self.begun = True
            self._count(core.jobs.values())

    def note(self, step: Step) -> None:
        if self.begun:
            for event in step.events:
                if isinstance(event, Discovered):
                    self.gpus, self.unread = event.gpus, event.unread
            self._count(step.jobs)

    def waiting(self, uid: int) -> int:
        """How many jobs of a user wait, with those that are being submitted."""
        with self._lock:
            return self._by_user[uid]

    def expect(self, uid: int, ids: range) -> None:
        """These are being submitted."""
        with self._lock:
            for id in ids:
                self._add(JobId(id), uid)

    def give_up(self, ids: range) -> None:
        """They were not taken in after all."""
        with self._lock:
            for id in ids:
                self._drop(JobId(id))

    def _count(self, jobs: Iterable[Job]) -> None:
        with self._lock:
            for job in jobs:
                if job.ended or job.holds_gpus:
                    self._drop(job.id)
                else:
                    self._add(job.id, job.spec.uid)

    def _add(self, job: JobId, uid: int) -> None:
        if job not in self._waiting:
            self._waiting[job] = uid
            self._by_user[uid] += 1

    def _drop(self, job: JobId) -> None:
        uid = self._waiting.pop(job, None)
        if uid is not None:
            self._by_user[uid] -= 1


class Endings:
    """Lets requests wait for the ends of jobs without a thread each."""

    def __init__(self) -> None:
        self._waiters: dict[JobId, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, step: Step) -> None:
        """From the core's thread. A waiter registers before it asks the core about its job."""
        ended = [job.id for job in step.jobs if job.ended and job.id in self._waiters]
        self._call(ended)

    def release(self) -> None:
        """From any thread, when the daemon stops: everybody is answered as things stand."""
        self._call(list(self._waiters))

    def expect(self, job: JobId) -> asyncio.Event:
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._waiters.setdefault(job, set()).add(event)
        return event

    def forget(self, job: JobId, event: asyncio.Event) -> None:
        waiters = self._waiters.get(job, set())
        waiters.discard(event)
        if not waiters:
            self._waiters.pop(job, None)

    def _call(self, jobs: list[JobId]) -> None:
        loop = self._loop
        if jobs and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, jobs)

    def _wake(self, jobs: list[JobId]) -> None:
        for job in jobs:
            for event in self._waiters.get(job, ()):
                event.set()


@dataclass(slots=True)
class Service:
    """One per daemon. The engine is to call `committed` with every step, in the core's thread."""

    inbox: Inbox
    store: SqlStore
    settings: Settings
    started_at: float
    capabilities: Callable[[], Capabilities]
    experience: Experience
    estimate: Callable[[JobSpec], Sequence[Guess]]  # slow; asked in a thread
    doctor: Callable[[Scene], Sequence[Check]]  # slow, too
    models: Models
    config_path: str | None = None
    config_toml: str | None = None
    uid: int = field(default_factory=os.geteuid)
    tally: Tally = field(default_factory=Tally)
    endings: Endings = field(default_factory=Endings)

    slow: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    estimating: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    turns: defaultdict[int, asyncio.Lock] = field(  # a user's estimates come one by one
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    listings: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))  # in memory
    stopping: bool = False

    def committed(self, step: Step) -> None:
        self.tally.note(step)
        self.experience.committed(step)
        self.endings.note(step)

    def stop(self) -> None:
        """From any thread: who waits is answered, as the core will not answer any more."""
        self.stopping = True
        self.endings.release()

    def now(self) -> float:
        return self.inbox.clock()

    async def ask(self, question: Callable[[Scheduler], T]) -> T:
        self._require_running()
        return await _answered(self.inbox.ask(question), "Try again in a moment.")

    async def request(self, *events: Event) -> None:
        """Returns once the events are handled and on disk."""
        self._require_running()
        hint = "It may have been done all the same: look with `carma queue`."
        await _answered(self.inbox.request(*events), hint)

    async def scene(self) -> Scene:
        now = self.now()
        return await self.ask(lambda core: capture(core, now))

    async def ready(self) -> None:
        """Makes sure that the tally has been begun."""
        if not self.tally.begun:
            await self.ask(self.tally.begin)

    async def room(self, uid: int, count: int) -> tuple[int, bool]:
        """How many jobs of a user wait, and whether so many more may.

        From its return to the caller's next `await`, no other request can take the room.
        """
        await self.ready()
        limit = self.settings.limits.queued_per_user
        if self.tally.waiting(uid) + count > limit:
            # The steps that made room may be done without the tally knowing: they are by then.
            await self.ask(lambda core: None)
        waiting = self.tally.waiting(uid)
        return waiting, waiting + count <= limit

    def _require_running(self) -> None:
        if self.stopping:
            raise Unavailable("carmad is stopping", "Running jobs go on; try again later.")


def capture(core: Scheduler, now: float) -> Scene:
    """Runs in the core's thread: references are taken, nothing is rendered."""
    view = core.view(now)
    line = core.line()
    ready = {job.id for job in view.queue}
    return Scene(
        view=view,
        gpus=dict(core.gpus),
        live=dict(core.jobs),
        usage=dict(core.usage),
        line=tuple(job.id for job in line),
        decisions=dict(core.decisions),
        barriers={
            job.id: reason
            for job in line
            if job.id not in ready and (reason := core.barrier(job, now)) is not None
        },
        unread=core.unread,
    )


async def _answered(future: Future[T], hint: str) -> T:
    """Never cancels the future: the core's thread is about to set it."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await asyncio.shield(asyncio.wrap_future(future))
    except TimeoutError:
        raise Unavailable("carmad is too busy to answer", hint) from None
