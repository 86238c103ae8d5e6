"""A modelled server: the real core and engine, a world that carries out actions late, twice or not
at all, and an in-memory disk that may be full. Nothing may be lost or duplicated.

`STEPS` names what may happen; each takes dice, so that Hypothesis or a plain seed can drive them.
After each, `check` compares the core with the world; `settle` repairs everything, and then every
job must end.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from carma_testing import a_gpu, a_spec
from carmad import registry
from carmad.config import Collocation, Host, Limits, Monitor, Recovery, Settings, Suspending
from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.gpus.gpuview import GpuView
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId, MemoryLimits, Signs
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Job
from carmad.core.jobs.ledger import ENDED_REMEMBERED, Held, Place, place_in_line
from carmad.core.jobs.spec import After, AfterKind, ArrayTask, Owner, WarnSignal
from carmad.core.jobs.states import TRANSITIONS, JobState
from carmad.core.jobs.tasks import JobsById, Outcome, part
from carmad.core.messages import (
    Action,
    Began,
    CancelRequested,
    Discovered,
    DrainRequested,
    Estimated,
    EstimateMemory,
    Event,
    Exited,
    HoldRequested,
    Launch,
    LimitMemory,
    Noticed,
    Postponed,
    ReadLog,
    RequeueRequested,
    Reserved,
    Resume,
    Resumed,
    ResumeRequested,
    Sampled,
    Signal,
    Step,
    Stepped,
    Stop,
    Stumbled,
    Submitted,
    Suspend,
    Suspended,
    SuspendRequested,
    Tick,
    Unreserved,
)
from carmad.core.rules.limits import Reservation
from carmad.core.rules.share import Account
from carmad.core.scheduler import Scheduler
from carmad.engine.engine import Engine
from carmad.engine.inbox import Inbox
from carmad.store.database import StoreFull
from carmad.store.values import Restored

GPUS = tuple(a_gpu(n, guarantees=True) for n in range(3))
EXITS = (
    Exit(Cause.SUCCESS, 0),
    Exit(Cause.FAILURE, 1),
    Exit(Cause.FAILURE, None, 9),
    Exit(Cause.GPU_OOM, 1),
    Exit(Cause.HOST_OOM, None, 9),
    Exit(Cause.LOST),
)
PERIOD_S = 1.0
ROUNDS = 100  # of a world that is well again, until the last job must have ended
PATIENT = Monitor(window_s=3, stale_s=60, first_kernel_timeout_s=20)
HOST = Host(cpus=4)
SHARED = Settings(
    monitor=PATIENT,
    host=HOST,
    limits=Limits(backfill=1, gpus_per_user=5),
    suspend=Suspending(host_memory_mib=500, parked_s=30),
    recovery=Recovery(hung_s=2.0),
)
UNDER_MPS = Settings(
    monitor=PATIENT, host=HOST, collocation=Collocation(mps=True, max_jobs_per_gpu=2)
)
UNDER_ONE_SERVER = replace(UNDER_MPS, collocation=replace(UNDER_MPS.collocation, mps_scope="node"))
PREEMPTING = replace(SHARED, limits=Limits(preemption=True))
SUSPENDING = replace(
    SHARED,
    limits=Limits(preemption="suspend"),
    suspend=Suspending(host_memory_mib=1000, moves=True, most_per_hour=3, parked_s=15),
    collocation=Collocation(guarantee_memory=True),
)
SERVERS = tuple(
    product(
        registry.names("policies"),
        (SHARED, UNDER_MPS, UNDER_ONE_SERVER, PREEMPTING, SUSPENDING),
    )
)

Key = tuple[JobId, int]  # a job's attempt
Dice = random.Random


class Killed(BaseException):
    """The daemon, by kill -9."""


class Disk:
    """Like `SqlStore`. Rejects transitions that the state table does not allow."""

    def __init__(self) -> None:
        self.jobs = JobsById()
        self.drains: tuple[Any, ...] = ()
        self.accounts: dict[Owner, Account] = {}
        self.reservations: tuple[Reservation, ...] = ()
        self.refuses = 0  # so many changes, for want of room
        self.refused = 0
        self.killed_before = False  # the next commit

    def commit(self, step: Step) -> None:
        if self.killed_before:
            raise Killed
        others = step.drains is not None or step.reservations is not None
        if self.refuses and (step.jobs or others):
            self.refuses -= 1
            self.refused += 1
            raise StoreFull("the disk is full", "make room")
        self.accounts |= {account.owner: account for account in step.accounts}
        for job in step.jobs:
            before = self.jobs.get(job.id)
            if before is not None and before.state is not job.state:
                assert job.state in TRANSITIONS[before.state], (before, job)
            row = self.jobs.row(job.id)
            self.jobs.put(job)
            if row is not None and row.ended:  # only the store knows the tasks beside it
                for ids in (range(row.id, job.id), range(job.ids.stop, row.ids.stop)):
                    if ids:
                        self.jobs.put(part(row, ids))
        if step.drains is not None:
            self.drains = step.drains
        if step.reservations is not None:
            self.reservations = step.reservations

    def restore(self) -> Restored:
        rows = self.jobs.rows.values()
        ended = sorted((row for row in rows if row.ended), key=lambda row: row.ended_at)
        return Restored(
            tuple(row for row in rows if not row.ended),
            tuple(Outcome(row.id, row.state, row.tasks) for row in ended[-ENDED_REMEMBERED:]),
            self.drains,
            JobId(max(self.jobs, default=0) + 1),
            accounts=tuple(self.accounts.values()),
            reservations=self.reservations,
        )


class Hanging:
    """A guarded plugin: while it hangs, calls raise."""

    def __init__(self, plugin: Any, model: Model) -> None:
        self._plugin, self._model, self.name = plugin, model, plugin.name

    def order(self, job: Job) -> float:
        return float(self._plugin.order(job))

    def _asked(self, what: str) -> Callable[..., Any]:
        def ask(*given: Any) -> Any:
            if self.name in self._model.hanging:
                self._model.seen["plugin hung when asked"] += 1
                raise TimeoutError("no answer within 2 s")
            return getattr(self._plugin, what)(*given)

        return ask

    def __getattr__(self, what: str) -> Callable[..., Any]:
        return self._asked(what)


@dataclass
class Attempt:
    """An attempt that was really started, once."""

    job: Job
    exit: Exit | None = None  # None: its processes live
    ended_at: float = 0.0
    gpus: tuple[GpuId, ...] = ()  # none while it is suspended


class Model:
    def __init__(self, policy: str, settings: Settings) -> None:
        self.settings = settings
        self._policy = policy
        self.now = 1_000_000.0
        self.disk = Disk()
        # The world, which outlives every daemon:
        self.attempts: dict[Key, Attempt] = {}
        self.revoked: set[Key] = set()  # a supervisor that comes later starts nothing
        self.limits: dict[Key, tuple[MemoryLimits, ...]] = {}
        self.lost: set[GpuId] = set()
        # What was promised to users:
        self.acknowledged: set[JobId] = set()
        self.again: set[JobId] = set()  # that they had run again
        self.hanging: set[str] = set()
        self.fault: Exception | None = None  # of the core's
        self.seen: Counter[str] = Counter()  # the world's faults, as they struck
        self._boot()

    # -- the daemon's life

    def _boot(self) -> None:
        """Start a daemon on the existing state. Its predecessor's memory is lost."""
        self.hands: deque[Launch | Stop | Signal | Suspend | Resume | LimitMemory | ReadLog] = (
            deque()
        )
        self.unestimated: list[JobId] = []
        self.reports: list[Key] = []
        self.acts_left = 10**9  # then it is killed
        self.disk.killed_before = False
        self.scheduler = Scheduler(
            self.settings,
            Hanging(registry.bare_policy(replace(self.settings, policy=self._policy)), self),
            Hanging(registry.bare_recovery(self.settings), self),
            Hanging(registry.bare_predictor(self.settings), self),
        )
        self.scheduler.handle = self._noting_faults(self.scheduler.handle)
        self.inbox = Inbox(lambda: self.now, self.disk.restore().next_id)
        self.engine = Engine(self.inbox, self.scheduler, self.disk, self)
        self.engine.restore()
        for job in self.scheduler.jobs.rows.values():  # adopted: what ended meanwhile is reported
            attempt = self.attempts.get((job.id, job.attempt))
            if job.lives and attempt and attempt.exit:
                self.reports.append((job.id, job.attempt))
        self.tell(Discovered(self.now, GPUS))

    def perform(self, action: Action) -> None:
        """Nothing is done at once."""
        self.acts_left -= 1
        if self.acts_left < 0:
            return
        if isinstance(action, EstimateMemory):
            self.unestimated.append(action.job.id)
        elif isinstance(action, Launch | Stop | Signal | Suspend | Resume | LimitMemory | ReadLog):
            self.hands.append(action)

    def tell(self, *events: Event) -> None:
        """Send events, which must be handled sooner or later."""
        self.inbox.post(*events)
        self._turn()

    def ask(self, *events: Event) -> Future[None]:
        """A user's request: accepted, refused, or unanswered by a daemon that died."""
        done = self.inbox.request(*events)
        self._turn()
        return done

    def _turn(self) -> None:
        self.inbox.close()
        try:
            self.engine.run()
        except Killed:
            self.acts_left = -1
        if self.acts_left < 0:
            self.seen["daemon killed"] += 1
            self._boot()

    def _noting_faults(self, handle: Callable[..., Step]) -> Callable[..., Step]:
        """The engine survives whatever the core raises; here the core must not raise."""

        def noting(*events: Event) -> Step:
            try:
                return handle(*events)
            except Exception as error:
                self.fault = error
                raise

        return noting

    # -- what the daemon's other threads do

    def carry_out(self, dice: Dice) -> None:
        """Carry out some of the pending actions, some of them twice. A launch may take long, and
        is overtaken by stops then."""
        for _ in range(dice.randint(1, 4)):
            if self.hands:
                at = next((n for n, each in enumerate(self.hands) if isinstance(each, Stop)), 0)
                if at and dice.random() < 0.5:
                    self.seen["launch overtaken"] += 1
                else:
                    at = 0
                action = self.hands[at]
                del self.hands[at]
                if isinstance(action, Launch) and dice.random() < 0.1:
                    self.seen["launch postponed"] += 1
                    self.hands.append(action)
                    continue
                for again in range(dice.choice((1, 1, 1, 2))):
                    self.seen["action repeated"] += again
                    self._do(action, dice.random() < 0.05)

    def _do(
        self,
        action: Launch | Stop | Signal | Suspend | Resume | LimitMemory | ReadLog,
        fails: bool = False,
    ) -> None:
        job = action.job
        key = job.id, job.attempt
        match action:
            case Launch() if key in self.attempts or key in self.revoked:
                if not job.gpus:
                    self.tell(Began(self.now, *key))
                self._look_after(key, Exit(Cause.LOST))
            case Launch() if fails:
                self.revoked.add(key)
                self.tell(Exited(self.now, *key, Exit(Cause.LAUNCH_FAILED)))
            case Launch():
                self._start(job)
                if not job.gpus:
                    self.tell(Began(self.now, *key))
            case Stop():
                if key not in self.attempts:
                    self.revoked.add(key)
                self._look_after(key, Exit(Cause.LOST))
            case ReadLog():
                self.seen["error in a log"] += 1
                self.tell(Stumbled(self.now, *key, Exit(Cause.GPU_OOM, 1)))
            case LimitMemory():
                self.limits[key] = job.current.memory_limits
            case Suspend():
                self._suspend(key, fails)
            case Resume():
                self._resume(key, job.gpus, fails)

    def _suspend(self, key: Key, fails: bool) -> None:
        attempt = self.attempts[key]
        if attempt.exit:
            self.reports.append(key)
        elif fails:
            lost = key[0] % 2 == 0
            self.seen["suspension failed"] += 1
            self.tell(Suspended(self.now, *key, "its lock timed out", lost))
        else:
            self.seen["suspended"] += 1
            attempt.gpus = ()
            self.tell(Suspended(self.now, *key))

    def _resume(self, key: Key, gpus: tuple[GpuId, ...], fails: bool) -> None:
        attempt = self.attempts[key]
        if attempt.exit:
            self.reports.append(key)
        elif fails and not attempt.gpus:
            lost = key[0] % 2 == 0
            self.seen["return failed"] += 1
            hung = key[0] % 3 == 0
            self.seen["return hung"] += hung
            self.tell(Resumed(self.now, *key, "no room", lost, hung))
        else:
            self.seen["resumed"] += 1
            self._occupy(attempt, gpus)
            self.tell(Resumed(self.now, *key))

    def _occupy(self, attempt: Attempt, gpus: tuple[GpuId, ...]) -> None:
        for other in self.alive().values():
            if other is not attempt and set(other.gpus) & set(gpus):
                assert not (other.job.exclusive or attempt.job.exclusive), (attempt, other)
        attempt.gpus = gpus

    def _look_after(self, key: Key, unless_started: Exit) -> None:
        attempt = self.attempts.get(key)
        if attempt is None:
            self.tell(Exited(self.now, *key, unless_started))
        elif attempt.exit:
            self.reports.append(key)

    def _start(self, job: Job) -> None:
        key = job.id, job.attempt
        earlier = self.attempts.get((job.id, job.attempt - 1))
        if earlier:
            assert earlier.exit, f"{key} starts while the attempt before it lives"
            assert earlier.exit.cause is not Cause.SUCCESS or job.id in self.again, key
        self.attempts[key] = new = Attempt(job)
        self._occupy(new, job.gpus)
        assert sum(each.job.spec.cpus or 0 for each in self.alive().values()) <= (HOST.cpus or 0)

    def alive(self) -> dict[Key, Attempt]:
        return {key: it for key, it in self.attempts.items() if it.exit is None}

    def estimate(self, dice: Dice) -> None:
        if self.unestimated:
            job = dice.choice(self.unestimated)
            if dice.random() < 0.9:  # else: told again later
                self.unestimated.remove(job)
            mib = dice.choice((None, 500, 20_000, 50_000))
            # What is firm and fits no GPU is refused before it gets here.
            firm = dice.random() < 0.5 and mib != 50_000
            estimate = Estimate(mib, "t", firm=firm) if mib else None
            self.tell(Estimated(self.now, job, estimate))

    def report(self, dice: Dice) -> None:
        """Report ends, in any order, and late."""
        if self.reports:
            at = dice.randrange(len(self.reports))
            self.seen["report overtaken"] += at > 0
            self._report(self.reports.pop(at))

    def report_again(self, dice: Dice) -> None:
        if over := [key for key, attempt in self.attempts.items() if attempt.exit]:
            self.seen["report repeated"] += 1
            self._report(dice.choice(over))

    def _report(self, key: Key) -> None:
        attempt = self.attempts[key]
        assert attempt.exit
        self.tell(Exited(self.now, *key, attempt.exit, attempt.ended_at))

    def sample(self, dice: Dice) -> None:
        """A few periods; some readings are lost."""
        used = dice.choice((0, 0, 0, dice.randint(0, 40_000)))  # by others than jobs
        busy = dice.choice((None, 0.0, 0.5, 0.95))
        kernels = dice.random() < 0.7
        for _ in range(dice.randint(1, 8)):
            self.now += PERIOD_S
            if dice.random() < 0.9:
                self._sample(used, busy, kernels)
            else:
                self.seen["reading lost"] += 1

    def _sample(self, used: int, busy: float | None, kernels: bool) -> None:
        alive = self.alive()
        samples = []
        for gpu in GPUS:
            uses = tuple(
                ProcessUse(9000 + id, 100, float(kernels), id, attempt=attempt)
                for (id, attempt), its in alive.items()
                if gpu.id in its.gpus
            )
            free = gpu.memory_mib - used
            fault = "GPU is lost" if gpu.id in self.lost else None
            level = None if fault else busy
            samples.append(
                GpuSample(
                    gpu.id, self.now, used, free, level, level, level, processes=uses, fault=fault
                )
            )
        signs = tuple(Signs(*key, 0.0, (int(kernels),)) for key in alive)
        self.tell(Sampled(self.now, tuple(samples), signs))

    # -- what users and administrators do

    def submit(self, dice: Dice) -> None:
        after = ()
        if self.disk.jobs and dice.random() < 0.3:
            after = (After(dice.choice(list(self.disk.jobs)), dice.choice(list(AfterKind))),)
        limit = dice.choice((None, 5.0, 30.0))
        gpus = dice.choice((0, 1, 1, 1, 2, 3))
        user, uid = dice.choice((("ada", 1000), ("bob", 1001)))
        spec = a_spec(
            user=user,
            uid=uid,
            gpus=gpus,
            cpus=dice.choice((None, 1, 3) if gpus else (1, 4)),
            exclusive=gpus > 0 and dice.random() < 0.2,
            time_limit_s=limit,
            warn=WarnSignal(12, 4) if limit else None,
            begin_at=dice.choice((None, None, self.now + 10)),
            after=after,
            requeue=dice.random() < 0.8,
            nice=dice.choice((0, 0, 5)),
        )
        self._submit((spec,), dice.random() < 0.1)

    def submit_an_array(self, dice: Dice) -> None:
        """Its tasks wait as one job, or each as one, as those of a sweep do."""
        tasks, limit = dice.randint(2, 6), dice.choice((None, 1, 2))
        array, gpus = self.inbox.next_ids(0), dice.choice((0, 1, 1, 2))
        its = [ArrayTask(array, n, limit) for n in range(tasks)]
        if dice.random() < 0.8:
            its = [ArrayTask(array, 3, limit, more=tasks - 1, step=dice.randint(1, 3))]
        cpus = dice.choice((None, 1)) if gpus else 1
        self._submit(tuple(a_spec(array=task, gpus=gpus, cpus=cpus) for task in its), False)

    def _submit(self, specs: tuple[Any, ...], held: bool) -> None:
        tasks = sum(spec.tasks for spec in specs)
        first = self.inbox.next_ids(tasks)
        ids = {JobId(first + n) for n in range(tasks)}
        done = self.ask(Submitted(self.now, first, specs, held))
        if done.done() and done.exception() is None:
            self.acknowledged |= ids
        elif done.done():
            assert not ids & self.disk.jobs.keys(), "refused, and queued all the same"

    def _anyone(self, dice: Dice) -> JobId:
        return dice.choice([*self.disk.jobs, JobId(10**6)])

    def cancel(self, dice: Dice) -> None:
        more = dice.choice((0, 0, 2, 4))
        self.ask(CancelRequested(self.now, self._anyone(dice), "ada", more))

    def hold(self, dice: Dice) -> None:
        held, more = dice.random() < 0.4, dice.choice((0, 0, 2, 4))
        self.ask(HoldRequested(self.now, self._anyone(dice), held, "ada", more))

    def suspend(self, dice: Dice) -> None:
        job, more = self._anyone(dice), dice.choice((0, 0, 2, 4))
        running = [each.id for each in self.scheduler.view(self.now).running]
        if running and dice.random() < 0.9:
            job = dice.choice(running)
        self.ask(SuspendRequested(self.now, job, "ada", more))

    def resume(self, dice: Dice) -> None:
        job, more = self._anyone(dice), dice.choice((0, 0, 2, 4))
        suspended = [job.id for job in self.disk.jobs.rows.values() if job.suspension]
        if suspended and dice.random() < 0.9:
            job = dice.choice(suspended)
        self.ask(ResumeRequested(self.now, job, "ada", more))

    def run_again(self, dice: Dice) -> None:
        if ended := [job for job in self.disk.jobs.rows.values() if job.ended]:
            row = dice.choice(ended)
            first = dice.choice(row.ids)
            job = part(row, range(first, dice.randint(first, row.ids[-1]) + 1))
            self.again |= {JobId(id) for id in job.ids}
            self.ask(RequeueRequested(self.now, job, "ada"))

    def drain(self, dice: Dice) -> None:
        why = dice.choice((None, None, None, "fan"))
        self.ask(DrainRequested(self.now, dice.choice(GPUS).id, why, "root"))

    def reserve(self, dice: Dice) -> None:
        if dice.random() < 0.3:
            self.ask(Unreserved(self.now, dice.randint(1, 3), "root"))
            return
        gpus = tuple(gpu.id for gpu in GPUS if dice.random() < 0.5) or (GPUS[0].id,)
        users = ("ada",) if dice.random() < 0.5 else ()
        first, lasts_s = self.now + dice.uniform(0.0, 50.0), dice.uniform(1.0, 20.0)
        wish = Reservation(dice.randint(1, 3), gpus, users, (first, first + 30.0), lasts_s, "root")
        self.ask(Reserved(self.now, wish))

    def notice(self, dice: Dice) -> None:
        self.tell(Noticed(self.now, self._anyone(dice), "a note"))

    def postponed(self, dice: Dice) -> None:
        """Also for an attempt that ended long ago, or has started."""
        job, attempt = self._anyone(dice), dice.randint(1, 3)
        self.tell(Postponed(self.now, job, attempt, over=dice.random() < 0.5))

    def step_told(self, dice: Dice) -> None:
        self.tell(Stepped(self.now, self._anyone(dice), dice.uniform(0.01, 2.0)))

    # -- what happens to jobs, GPUs, the disk and the daemon

    def processes_end(self, dice: Dice) -> None:
        if alive := sorted(self.alive()):
            self._end(dice.choice(alive), dice.choice(EXITS))

    def _end(self, key: Key, exit: Exit) -> None:
        attempt = self.attempts[key]
        attempt.exit, attempt.ended_at = exit, self.now
        self.reports.append(key)

    def gpu_lost(self, dice: Dice) -> None:
        """Its jobs die, and the driver may or may not report an Xid."""
        gpu = dice.choice(GPUS).id
        if gpu in self.lost:
            self.lost.remove(gpu)
            return
        self.lost.add(gpu)
        self.seen["GPU lost"] += 1
        for key, its in self.alive().items():
            if gpu in its.gpus:
                self._end(key, Exit(Cause.FAILURE, 1))
        if dice.random() < 0.5:
            self.tell(DrainRequested(self.now, gpu, "Xid 79", "carmad"))

    def gpu_goes(self, dice: Dice) -> None:
        """A MIG instance disappears or comes back; its jobs keep running."""
        gone = dice.choice((None, None, *GPUS))
        self.tell(Discovered(self.now, tuple(gpu for gpu in GPUS if gpu is not gone)))

    def disk_full(self, dice: Dice) -> None:
        self.disk.refuses = dice.randint(1, 8)

    def plugin_hangs(self, dice: Dice) -> None:
        plugins = (self.scheduler.policy, self.scheduler.state.recovery)
        names = {plugin.name for plugin in plugins if dice.random() < 0.3}
        self.hanging = set() if self.hanging else names

    def time_passes(self, dice: Dice) -> None:
        self.now += dice.choice((1, 5, 20, 40, 3600))
        self.tell(Tick(self.now))

    def restart(self, dice: Dice) -> None:
        """The clock may have been changed meanwhile."""
        jump = dice.choice((0.0, 0.0, 3.0, 7200.0, -7200.0))
        self.seen["clock set by two hours"] += abs(jump) > 3
        self.seen["report lost with the daemon"] += len(self.reports)
        self.now += jump
        self._boot()

    def kill(self, dice: Dice) -> None:
        """Kill it before the next commit, or after it and some of its actions."""
        if dice.random() < 0.5:
            self.disk.killed_before = True
        else:
            self.acts_left = dice.randint(0, 3)

    def reboot(self, dice: Dice) -> None:
        self.seen["machine rebooted"] += 1
        for key in self.alive():
            self._end(key, Exit(Cause.LOST))
        self.restart(dice)

    # -- what must hold

    def check(self) -> None:
        if self.fault is not None:
            raise AssertionError("the core failed") from self.fault
        core = self.scheduler
        live = {id: job for id, job in self.disk.jobs.rows.items() if not job.ended}
        assert core.jobs.rows == live, "the core and the disk tell two stories"
        ids = [id for row in self.disk.jobs.rows.values() for id in row.ids]
        assert len(ids) == len(set(ids)), "a task is in two rows"
        assert self.acknowledged <= self.disk.jobs.keys(), "an accepted job is lost"
        for (id, number), started in self.alive().items():
            job = core.jobs.get(id)
            assert job is not None and job.lives, f"{id}.{number} runs unseen"
            assert job.attempt == number
            if not job.suspension:
                assert job.gpus == started.gpus
            if job.state is JobState.SUSPENDED:
                assert not started.gpus and not job.gpus
            if not self.hands:
                assert self.limits.get((id, number), ()) == job.current.memory_limits
        for gpu in GPUS:
            limits = [each for job in live.values() for each in job.current.memory_limits]
            its = sum(each.guaranteed_mib for each in limits if each.gpu == gpu.id)
            assert its <= gpu.memory_mib, "more is guaranteed than there is"

    def check_what_was_kept(self) -> None:
        """Views are valid until something changes; the ledger's indices match its jobs."""
        core = self.scheduler
        kept = [_facts(gpu) for gpu in core.view(self.now).gpus]
        core.state.fleet.look_again()
        assert kept == [_facts(gpu) for gpu in core.view(self.now).gpus]
        jobs, ledger = core.jobs.rows.values(), core.state.ledger
        queued = [job for job in jobs if job.waits]

        def place(job: Job) -> Place:
            order = core.policy.order(job) if job.spec.gpus else 0.0
            return place_in_line(job, order, core.state.standing(job))

        queued.sort(key=place)
        assert list(ledger.line()) == queued
        running = {job for job in jobs if job.holds_gpus}
        held = Held()
        for job in running:
            held.give(job)
        for job in jobs:
            if job.lives:
                held.begin(job)
        assert ledger.suspended == {job.id: job for job in jobs if job.suspension}
        assert ledger.held == held
        assert set(ledger.running()) == running
        assert set(core.view(self.now).running) == {job for job in running if job.gpus}
        assert all(job.spec.gpus for job in core.view(self.now).queue)
        holds: Counter[tuple[Owner, str]] = Counter()
        for job in running:
            whose = job.spec.owner, "GPUs"
            for gpu_id in job.gpus:
                holds[whose] += 1 / len(ledger.residents(gpu_id))  # type: ignore[assignment]
            if not job.spec.gpus:
                part = (job.spec.cpus or 0) / (HOST.cpus or 1)
                holds[job.spec.owner, "host"] += part * len(core.gpus)  # type: ignore[assignment]
        for user, account in core.state.shares.accounts.items():
            for rate, what in ((account.rate, "GPUs"), (account.host_rate, "host")):
                assert abs(rate - holds[user, what]) < 1e-9, "somebody pays for others"
        for gpu in GPUS:
            assert set(ledger.residents(gpu.id)) == {job for job in running if gpu.id in job.gpus}

    def settle(self) -> None:
        """Repair everything and wait: then every job ends, and its end is recorded."""
        self.disk.refuses, self.disk.killed_before, self.acts_left = 0, False, 10**9
        self.hanging, self.lost = set(), set()
        self.now += 100_000
        self.tell(Discovered(self.now, GPUS))
        for gpu in GPUS:
            self.ask(DrainRequested(self.now, gpu.id, None, "root"))
        for job in list(self.scheduler.jobs.rows.values()):
            self.ask(HoldRequested(self.now, job.id, False, "root", job.tasks - 1))
            self.ask(ResumeRequested(self.now, job.id, "root"))
        for _ in range(ROUNDS):
            if all(job.ended for job in self.disk.jobs.values()):
                break
            self._calm_round()
        left = {job.id: job.state.value for job in self.disk.jobs.values() if not job.ended}
        assert not left, f"never ended: {left}"
        assert not self.alive()
        assert all(job.exit and job.ended_at is not None for job in self.disk.jobs.values())

    def _calm_round(self) -> None:
        while self.unestimated:
            self.tell(Estimated(self.now, self.unestimated.pop(), None))
        while self.hands:
            self._do(self.hands.popleft())
        for _ in range(2):
            self.now += 2 * PERIOD_S
            self._sample(0, 0.0, True)
        for key in self.alive():
            self._end(key, Exit(Cause.SUCCESS, 0))
        while self.reports:
            self._report(self.reports.pop())
        self.check()


def _facts(gpu: GpuView) -> tuple[list[Any], object]:
    told = (field.name for field in fields(gpu) if field.name not in ("recent", "memo"))
    return [getattr(gpu, name) for name in told], gpu.score


# With how often each happens, beside the others.
WORK = {"submit": 6, "submit_an_array": 1, "estimate": 12, "carry_out": 14, "report": 8}
WORK |= {"sample": 14, "processes_end": 5, "time_passes": 3}
WISHES = {"cancel": 2, "hold": 1, "run_again": 1, "drain": 1, "reserve": 1, "notice": 1}
WISHES |= {"step_told": 1, "postponed": 1, "suspend": 8, "resume": 5}
FAULTS = {"report_again": 2, "restart": 1, "kill": 2, "reboot": 1, "disk_full": 2}
FAULTS |= {"plugin_hangs": 1, "gpu_lost": 1, "gpu_goes": 1}
STEPS = WORK | WISHES | FAULTS


def live_through(seed: int, steps: int = 100) -> Model:
    """One world from its first moment to its last. Raises whatever is found, with the seed and the
    steps that led there as a note."""
    dice = random.Random(seed)
    policy, settings = dice.choice(SERVERS)
    done: list[str] = []
    try:
        model = Model(policy, settings)
        for name in dice.choices(list(STEPS), list(STEPS.values()), k=steps):
            done.append(name)
            getattr(model, name)(dice)
            model.check()
            if len(done) % 10 == 0:
                model.check_what_was_kept()
        done.append("settle")
        model.settle()
    except Exception as error:
        error.add_note(f"seed {seed}, policy {policy}: {' '.join(done)}")
        raise
    model.seen["change refused by a full disk"] += model.disk.refused
    return model
