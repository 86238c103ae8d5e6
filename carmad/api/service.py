"""What the HTTP API uses: the core's inbox, the store, and facts about this daemon."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from carmad.api.checks import CheckOut
from carmad.api.events import Events
from carmad.api.tally import Tally
from carmad.attempt.callers import Process, Taken
from carmad.attempt.environment import CPU, MEMORY
from carmad.config import Settings
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.core.messages import Event, Step
from carmad.core.ports import Server
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.edge import Follower, SubmissionCheck
from carmad.engine.inbox import Inbox
from carmad.estimates.asking import Guess
from carmad.estimates.experience import Experience
from carmad.explanation import ExplanationOut
from carmad.gpu.source import Capabilities
from carmad.guards import Trouble
from carmad.http.problems import Unavailable
from carmad.learning.trained import Models
from carmad.metrics.figures import Counts
from carmad.store.sql import SqlStore
from carmad.threads import run_in_threadpool
from carmad.timeline.recorder import Timeline

T = TypeVar("T")

ANSWER_WITHIN_S = 30.0
FRESH_S = 1.0  # the maximum age of a scene if there was no step since


class Terminals(Protocol):
    """Lets owners' own processes run jobs (`take`), and join running ones (`join`)."""

    def take(self, job: Job, process: Process) -> Future[Taken]: ...

    def has_begun(self, job: Job) -> bool: ...

    def join(self, job: Job, process: Process) -> Future[Taken]: ...

    def has_joined(self, job: Job, process: Process) -> bool: ...


@dataclass(slots=True, kw_only=True)
class Service(Follower):
    """One per daemon. Follows the core, so that it knows what is new."""

    inbox: Inbox
    store: SqlStore
    settings: Settings
    started_at: float
    capabilities: Callable[[], Capabilities]
    experience: Experience
    # Slow; called in a thread. With the time for a script (None: the usual).
    estimate: Callable[
        [JobSpec, float | None, Server], tuple[Sequence[Guess], ExplanationOut | None]
    ]
    doctor: Callable[[Scene], Sequence[CheckOut]]  # slow, too
    models: Models
    timeline: Timeline
    terminals: Terminals | None = None  # None: jobs are only pretended
    # By its name, and who sets it; slow. None: it cannot be changed here.
    set_policy: Callable[[str, str], None] | None = None
    # Settings that the file has and only a restart puts in force, with their values. Raises
    # CarmaError if the file is broken; slow.
    waiting_settings: Callable[[], Sequence[str]] = tuple
    # A mail to this user; why it was not taken, or "". Slow.
    send_test: Callable[[Owner], str] = lambda user: "this daemon only pretends"
    config_path: str | None = None
    troubles: Callable[[], Sequence[Trouble]] = tuple  # with plugins, including past ones
    limited_by: Collection[str] = (CPU, MEMORY)  # controllers: see `carmad.attempt.environment`
    checks: Sequence[SubmissionCheck] = ()
    uid: int = field(default_factory=os.geteuid)
    tally: Tally = field(default_factory=Tally)
    counts: Counts = field(default_factory=Counts)  # a follower of its own
    events: Events = field(init=False)

    slow: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    # Estimates: at a time, of them with more time for a script than usual, and of each user.
    estimating: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    lengthy: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    # Of submissions that a check lets pass unless other jobs are in the way, one at a time.
    admitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    booking: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Of each user, one submission `--unless-running` at a time.
    naming: defaultdict[Owner, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    turns: defaultdict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    listings: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))  # in memory
    _scene: Scene | None = None
    stopping: bool = False

    def __post_init__(self) -> None:
        self.events = Events(str(int(self.started_at * 1000)), self.settings.monitor.external_mib)
        self.events.listeners.append(self.counts)

    def on_commit(self, step: Step) -> None:
        self._scene = None
        self.tally.note(step)
        self.experience.on_commit(step)
        self.events.on_commit(step)

    def stop(self) -> None:
        """Called in any thread: answers waiters, since the core will not answer any more."""
        self.stopping = True
        self.events.wake()

    def now(self) -> float:
        return self.inbox.clock()

    async def ask(self, question: Callable[[Scheduler], T]) -> T:
        return await _wait_for(self.inbox.ask(question), "Try again in a moment.")

    async def request(self, *events: Event, user: int | None = None, weight: int = 1) -> None:
        """Returns once the events are handled and on disk. `user`: whose turn that takes."""
        hint = "It may have been done all the same: check with `carma queue`."
        await _wait_for(self.inbox.request(*events, user=user, weight=weight), hint)

    async def scene(self, settled: bool = False) -> Scene:
        """The scene of the last step, or of a moment ago, shared by all requests until the next.
        `settled`: with what is in the inbox now."""
        scene = self._scene
        if scene is None or settled or self.now() - scene.now > FRESH_S:
            scene = await self.ask(self._capture)
        return scene

    def _capture(self, core: Scheduler) -> Scene:
        """Called in the core's thread: captured once for simultaneous requests."""
        now = self.now()
        if self._scene is None or now - self._scene.now > FRESH_S:
            self._scene = core.snapshot(now)
        return self._scene

    async def await_tally(self) -> Tally:
        """Return the tally once it has begun."""
        if not self.tally.begun:
            await self.ask(self.tally.begin)
        return self.tally

    async def once(self, scene: Scene, what: Hashable, make: Callable[[], T]) -> T:
        """`make()`, called once per scene and `what`, and shared by all requests."""
        made = scene.memo.recall(what, lambda: asyncio.ensure_future(self.render(make)))
        return await asyncio.shield(made)

    async def render(self, make: Callable[[], T]) -> T:
        """`make()` in a thread, only a few at a time."""
        async with self.listings:
            return await run_in_threadpool(make)


async def _wait_for(future: Future[T], hint: str) -> T:
    """Wait without ever cancelling the future, which the core's thread is about to set."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await asyncio.shield(asyncio.wrap_future(future))
    except TimeoutError:
        raise Unavailable("carmad is too busy to answer", hint) from None
