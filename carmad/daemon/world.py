"""Carries out the core's actions on this machine, and reports the outcomes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Timer

from carmad import beats
from carmad.accounts import NoAccount
from carmad.attempt import environment
from carmad.attempt.callers import Process, Taken
from carmad.attempt.environment import at_a_terminal, command, in_an_allocation, job_environment
from carmad.attempt.evidence import Evidence, FullGpu
from carmad.attempt.exits import ExitFacts, exit_of, launch_failure
from carmad.attempt.launcher import Launcher, NotNow, Stopped
from carmad.attempt.proc import pid_in_container
from carmad.attempt.shepherd import Shepherd
from carmad.attempt.signs import READ_WITHIN_S, read_logs
from carmad.config import Suspending
from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import FOR_GOOD, Cause, Exit, GpuId, JobId, Mode
from carmad.core.jobs.findings import Estimate, Refusal
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.messages import (
    UNESTIMATED,
    Action,
    Began,
    Discovered,
    Estimated,
    EstimateMemory,
    Exited,
    Launch,
    LimitMemory,
    Noticed,
    Postponed,
    ReadLog,
    Resume,
    Signal,
    Step,
    Stop,
    Stumbled,
    Suspend,
    Wake,
)
from carmad.daemon.suspender import Suspender
from carmad.edge import Follower
from carmad.engine.clock import boottime
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError
from carmad.estimates.asking import Estimates
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.limits import Limiter
from carmad.gpu.mps import Mps
from carmad.readable import gib
from carmad.store.database import StoreFull
from carmad.threads import Threads

log = logging.getLogger(__name__)

# Delay before a postponed launch is retried: at first, and at most.
AGAIN_AFTER_S, AGAIN_AFTER_AT_MOST_S = 1.0, 60.0


LEFT = (
    "its processes were killed, but some are still there: they wait in the kernel, for a file"
    " system that does not answer, for instance; so it is not tried again"
)
BACKGROUND = (
    "it left {} in the background, which CARMA ended: to wait for such work, end the script with"
    " the command wait"
)
NOT_STARTED = "it had not started yet"
UNWARNED = "the signal before its time limit did not reach it"
NO_SUPERVISOR = "it has no supervisor, yet or any more, that would pass it on"
HANDS_LATE_S = 60.0  # systemd and an MPS daemon may each take half of that
SIGNALS_LATE_S = 10.0
CLOSE_WITHIN_S = 10.0  # for a launch that hangs: the next daemon repeats it
BEGINS_S = 0.05  # between two looks whether a supervisor has begun
OVERTIME_S = 5.0  # after the end of its time, a job's supervisor ends it, if we have not
BEFORE_THE_KILL_S = 1.0  # an MPS client leaves its server this long before it is killed


class DaemonWorld(Follower):
    """Launches, and the memory limits of jobs, go to the thread "hands", stops and signals to the
    thread "signals": a launch may wait for systemd, and nobody's stop waits behind it. A stop that
    overtakes its own launch leaves word in the attempt's directory, so nothing starts. Estimates,
    which may take long, go to other threads.

    Suspensions have threads of their own, too (`suspender`).

    `estimate` answers for one job, patiently or not, until the event is set, and `measured` only by
    its earlier runs; `whole` adds the job's
    complete environment; `suspending` has the present settings; `extra_env` goes to every job (the
    directory of the emulated GPUs); `take_s`: how long GPUs wait for a job's owner at a terminal;
    `cuda_indices`: as in `Monitor`.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        inbox: Inbox,
        estimate: Callable[[JobSpec, bool, Event], Estimate | Refusal],
        measured: Callable[[JobSpec], Estimate | Refusal],
        whole: Callable[[JobSpec], JobSpec],
        launcher: Launcher,
        evidence: Evidence,
        mps: Mps | None,
        checkpoints: Checkpoints,
        limiter: Limiter,
        suspending: Callable[[], Suspending],
        kill_grace_s: float,
        extra_env: dict[str, str],
        take_s: float = 30.0,
        cuda_indices: Callable[[], Mapping[GpuId, int]] = dict,
    ) -> None:
        self._inbox = inbox
        self._take_s = take_s
        self._cuda_indices = cuda_indices
        self._measured = measured
        self._whole = whole
        self._launcher = launcher
        self._evidence = evidence
        self._mps = mps
        self._kill_grace_s = kill_grace_s
        self._extra_env = extra_env
        self._gpus: dict[GpuId, Gpu] = {}  # replaced as a whole, as "hands" reads it
        self._hands = Threads(1, "hands", HANDS_LATE_S)
        self._signals = Threads(1, "signals", SIGNALS_LATE_S)
        self._logs = Threads(1, "logs", 2 * READ_WITHIN_S)
        self._estimates = Estimates(estimate, self._deliver_estimate)
        self._unlaunched: set[tuple[JobId, int]] = set()  # attempts: nobody watches them yet
        self._unread: set[tuple[JobId, int]] = set()  # attempts whose logs are to be read
        self._timed: dict[JobId, Job] = {}  # that live: what their supervisors are told
        # Launches to retry, and what prevents them. Set only by the thread "hands".
        self._postponed: OrderedDict[JobId, Job] = OrderedDict()
        self.outage: CarmaError | None = None
        self._offers: dict[JobId, Job] = {}  # jobs whose owner is to take their GPUs; likewise
        self._limiter = limiter
        self._limited: dict[JobId, Job] = {}  # with their latest memory limits; likewise
        self._again_after_s = AGAIN_AFTER_S
        self._pauses = Threads(1, "pauses", 2 * AGAIN_AFTER_AT_MOST_S)
        self._closed = Event()
        self._suspender = Suspender(launcher, checkpoints, suspending, inbox.clock, inbox.post)
        self.shepherd = Shepherd(state_dir, launcher, evidence, self._report_exit, inbox.clock)

    def perform(self, action: Action) -> None:
        """Never raises: failures come back as events."""
        if isinstance(action, EstimateMemory):
            if action.again:
                job = action.job
                self._estimates.do_aside(job, partial(self._measure, job))
            elif action.job.spec.gpus:
                self._estimates.put(action.job)
            else:  # it needs none
                its = Estimated(self._inbox.clock(), action.job.id, None)
                self._inbox.post(its, user=action.job.spec.uid)
        elif not isinstance(action, Wake):  # the engine handles an event every second or two anyway
            if isinstance(action, Launch):
                self._estimates.note_launch(action.job.id)
                self._unlaunched.add((action.job.id, action.job.attempt))
                self._hands.submit(self._do, action)
            elif isinstance(action, Suspend | Resume):
                self.adopt(action.job)  # whose GPUs may be others now
                self._suspender.perform(action)
            elif isinstance(action, LimitMemory):
                self._hands.submit(self._do, action)
            elif isinstance(action, ReadLog):
                key = action.job.id, action.job.attempt
                if key not in self._unread:  # dead file servers must not make the line ever longer
                    self._unread.add(key)
                    self._logs.submit(self._read_log, action)
            else:
                self._signals.submit(self._do, action)

    def on_commit(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, Discovered):
                self._gpus = {gpu.id: gpu for gpu in event.gpus}
        for job in step.jobs:
            self._keep_time(job)
            if job.attempts and job.attempts[-1].memory_limits and not job.lives:
                self._later(partial(self._forget_limits, job))
            if job.ended:
                self._estimates.end(job.id)
                if job.attempt:
                    self.release(job.id)

    def release(self, job: JobId) -> None:
        """Clean up after an ended job that was launched: when whatever was to be done for it has
        been done, by either thread."""
        self._signals.submit(self._later, partial(self._launcher.release, job))

    def adopt(self, job: Job) -> None:
        """Watch an attempt that an earlier daemon launched."""
        self.shepherd.watch(job)
        self._timed.setdefault(job.id, job)
        self._signals.submit(self._tell_time, job.id)

    def compare(self, jobs: Sequence[Job]) -> None:
        """Have those that were adopted run, or not, as the database has it."""
        self._suspender.adopt([job for job in jobs if job.spec.gpus])

    def close(self) -> None:
        """Finish what was begun, unless it hangs. Jobs keep running, and the next daemon requests
        the estimates."""
        self._closed.set()
        self._estimates.close()
        self._suspender.close()
        self._signals.shutdown()
        self._logs.shutdown(wait=False)
        self._hands.shutdown(within_s=CLOSE_WITHIN_S)
        self._pauses.shutdown()
        self.shepherd.close()

    def _keep_time(self, job: Job) -> None:
        """Have its supervisor end it when its time is over, should we not be there."""
        before = self._timed.get(job.id)
        if not job.lives:
            self._timed.pop(job.id, None)
            return
        self._timed[job.id] = job  # "signals" may look for it at any time
        if before and (before.attempt, before.due_at) != (job.attempt, job.due_at):
            self._signals.submit(self._tell_time, job.id)

    def _tell_time(self, id: JobId) -> None:
        job = self._timed.get(id)
        if job is None or self._launcher.keep_time(job, self._until(job)):
            return
        # Before it was launched, `_start` sees to it; after it has begun and cannot be told, it has
        # ended.
        if (id, job.attempt) not in self._unlaunched and not self._launcher.has_begun(job):
            _after(BEGINS_S, partial(self._tell_time_again, id))

    def _tell_time_again(self, id: JobId) -> None:
        with contextlib.suppress(RuntimeError):  # closed: the next daemon does it
            self._signals.submit(self._tell_time, id)

    def _until(self, job: Job) -> float:
        """When its supervisor is to end it, in seconds since boot."""
        return boottime() + job.due_at - self._inbox.clock() + OVERTIME_S

    def _measure(self, job: Job) -> None:
        if isinstance(answer := self._measured(job.spec), Estimate):
            event = Estimated(self._inbox.clock(), job.id, answer, again=True)
            self._inbox.post(event, user=job.spec.uid)

    def _deliver_estimate(self, job: Job, answer: Estimate | Refusal) -> None:
        if isinstance(answer, Estimate):
            event = Estimated(self._inbox.clock(), job.id, answer, crash=answer.crash)
        else:
            note = "" if answer.crash else f"{UNESTIMATED}: {answer.why}"
            now = self._inbox.clock()
            event = Estimated(now, job.id, None, note, answer.crash, answer.late)
        self._inbox.post(event, user=job.spec.uid)

    def _do(self, action: Launch | Signal | Stop | LimitMemory) -> None:
        beats.at(f"{type(action).__name__.lower()} job {action.job.id}")
        try:
            match action:
                case Launch(job):
                    self._launch(job)
                case Signal(job, signum):
                    if not self._launcher.signal(job, signum):
                        self._refuse(job.id, f"{UNWARNED}: {NO_SUPERVISOR}")
                case LimitMemory(job):
                    self._limit(job)
                case Stop(job):
                    self._stop(job)
        except Exception as error:
            # Not the action itself: it contains the job's command.
            what = type(action).__name__.lower()
            log.exception("could not %s job %d", what, action.job.id)
            if not isinstance(action, Launch):  # of which the shepherd tells
                why = getattr(error, "strerror", None) or type(error).__name__
                self._notice(action.job.id, f"carmad could not {what} it: {why}")
            if isinstance(action, Launch | Stop):
                self.shepherd.watch(action.job)  # it reports an attempt that never started

    # -- jobs at a terminal

    def take(self, job: Job, process: Process) -> Future[Taken]:
        """Let a process of the owner's run the job, which has been offered its GPUs.

        Raises CarmaError in the future."""
        return self._hands.submit(self._take, job, process)

    def has_begun(self, job: Job) -> bool:
        """Whether the job's current attempt is supervised, so that it may begin."""
        return self._launcher.has_begun(job)

    def join(self, job: Job, process: Process) -> Future[Taken]:
        """Let a process of the owner's join the running job. Raises CarmaError in the future."""
        return self._signals.submit(self._join, job, process)

    def has_joined(self, job: Job, process: Process) -> bool:
        return self._launcher.has_joined(job, process)

    def _join(self, job: Job, process: Process) -> Taken:
        env = self._launcher.mark(job, self._environment(self._with_all(job), process))
        if not self._launcher.join(job, process):
            raise CarmaError(
                f"job {label(job)} has not begun, or is ending", "Try again in a moment."
            )
        return Taken(job, job.spec.argv, env)

    def _take(self, asked: Job, process: Process) -> Taken:
        job = self._offers.get(asked.id)
        if job is None and self._launcher.owner_pid(asked) == process.pid:
            job = asked  # it asks again: a daemon died before it answered
        if job is None:
            hint = "They were taken, or go to others."
            raise CarmaError(f"job {label(asked)} has no GPUs to take", hint)
        env = self._start(job, process)
        self._offers.pop(job.id, None)
        chosen = in_an_allocation(env) if job.spec.allocation else at_a_terminal(env)
        return Taken(job, command(job), chosen)

    def _offer(self, job: Job) -> None:
        """Hold the GPUs for its owner's process, for a while."""
        if job.id not in self._offers:
            self._inbox.post(Postponed(self._inbox.clock(), job.id, job.attempt))
            _after(self._take_s, partial(self._later, partial(self._lapse, job)))
        self._offers[job.id] = job

    def _lapse(self, job: Job) -> None:
        if self._offers.get(job.id) == job:
            del self._offers[job.id]
            why = f"nobody at its terminal took its GPUs within {self._take_s:g} s"
            exit = Exit(Cause.CANCELLED, evidence=why)
            self._report(job, exit, stop=Cause.CANCELLED)

    # -- launches

    def _launch(self, job: Job) -> None:
        adopted = Process(*job.spec.process) if job.spec.process else None
        if job.spec.interactive and not adopted and not self._launcher.has_begun(job):
            self._offer(job)
            return
        if self.outage:  # a try may take half a minute
            self._postpone(job, self.outage)
            return
        try:
            self._start(job, adopted)
        except Stopped as stopped:  # by an earlier daemon, maybe, which did not report it
            self._report(job, Exit(Cause.UNSTARTED, evidence=NOT_STARTED), stop=stopped.cause)
        except (NotNow, StoreFull) as error:
            self._begin_outage(error)
            self._postpone(job, error)
        except NoAccount as error:
            log.error("job %d is held: %s; %s", job.id, error, error.hint)
            self._report(job, Exit(Cause.NO_ACCOUNT, evidence=error.message))
        except CarmaError as error:
            self._report(job, launch_failure(error.message, error.hint))

    def _start(self, job: Job, process: Process | None = None) -> Mapping[str, str]:
        """Start the attempt's supervisor; returns the attempt's environment. Raises CarmaError."""
        under_mps = True
        # Launches are repeated after a restart: what has begun keeps the daemon that it was given.
        if job.mode is Mode.MPS and self._mps and not self._launcher.has_begun(job):
            try:
                self._mps.start(*job.gpus)
            except CarmaError as error:
                under_mps = False
                self._notice(job.id, f"runs without MPS: {error}")
        whole = self._with_all(job)
        near = environment.cpus_near(
            job.spec, [self._gpus[gpu] for gpu in job.gpus if gpu in self._gpus]
        )
        if whole.spec.lacking:
            self._notice(job.id, environment.lacking_note(whole.spec.lacking))
        env = self._environment(whole, process, under_mps)
        begun, timed = self._launcher.has_begun(job), self._timed.get(job.id, job)
        complete = self._launcher.launch(whole, env, process, near, self._until(timed))
        self._unlaunched.discard((job.id, job.attempt))
        if begun or self._timed.get(job.id, timed).due_at != timed.due_at:
            self._tell_time_again(job.id)
        self._set_limits(job.id)
        if job.id in self._offers or job.id in self._postponed or job.started_at is None:
            self._inbox.post(Postponed(self._inbox.clock(), job.id, job.attempt, over=True))
        if not job.gpus:
            self._inbox.post(Began(self._inbox.clock(), job.id, job.attempt))
        self.shepherd.watch(job)
        return complete

    def _limit(self, job: Job) -> None:
        self._limited[job.id] = job
        if not self._limiter.by_cgroup or self._launcher.has_begun(job):
            self._set_limits(job.id)

    def _set_limits(self, id: JobId) -> None:
        """The latest, if it has any: where they are those of a cgroup, once the attempt has one."""
        job = self._limited.get(id)
        if job is None:
            return
        if self._limiter.by_cgroup and not self._launcher.has_begun(job):
            _after(BEGINS_S, partial(self._later, partial(self._set_limits, id)))
            return
        cgroup = self._launcher.cgroup(job) if self._limiter.by_cgroup else None
        if why := self._limiter.limit(self._launcher.name(job), cgroup, job.current.memory_limits):
            self._refuse(job.id, f"its GPU memory is not guaranteed: {why}")

    def _forget_limits(self, job: Job) -> None:
        limited = self._limited.get(job.id)
        if limited and limited.attempt == job.attempt:
            del self._limited[job.id]
        self._limiter.forget(self._launcher.name(job))

    def _with_all(self, job: Job) -> Job:
        """With its environment and the text of its script."""
        return replace(job, spec=self._whole(job.spec))

    def _environment(
        self, job: Job, process: Process | None = None, under_mps: bool = True
    ) -> dict[str, str]:
        """The complete environment of the current attempt of a job that has all of its spec.
        `process`: its owner's own, that gets it. One in a container may have only some GPUs."""
        pipe = logs = None
        if job.mode is Mode.MPS and self._mps and under_mps:
            daemon = self._mps.daemon(job.gpus[0])
            pipe, logs = daemon.pipe, daemon.log
        gpus = self._gpus
        sees_all = process is None or pid_in_container(process.pid) is None
        env = job_environment(
            job,
            job.gpus,
            indices=[gpus[gpu].index for gpu in job.gpus if gpu in gpus],
            cuda_indices=self._cuda_indices() if sees_all else {},
            mps_pipe=pipe,
            mps_log=logs,
        )
        return env | self._extra_env

    def _postpone(self, job: Job, error: CarmaError) -> None:
        """Failing the job instead would fail the whole queue, one job after the other."""
        if job.id not in self._postponed:
            self._inbox.post(Postponed(self._inbox.clock(), job.id, job.attempt))
            self._notice(job.id, f"could not start at once: {error}; it will be retried")
        self._postponed[job.id] = job

    def _begin_outage(self, error: CarmaError) -> None:
        if not self._postponed:
            log.error("launches are postponed: %s; %s", error, error.hint)
        self.outage = error
        self._pauses.submit(self._pause, self._again_after_s)
        self._again_after_s = min(2 * self._again_after_s, AGAIN_AFTER_AT_MOST_S)

    def _pause(self, seconds: float) -> None:
        """Runs in a thread that exists from the start: a new one may be impossible to start."""
        over = time.monotonic() + seconds
        while (left := over - time.monotonic()) > 0:
            if self._closed.wait(min(left, AGAIN_AFTER_S)):
                return
            self._later(self._find_begun)
        self._later(self._try_again)

    def _find_begun(self) -> None:
        """A launch that failed may have begun all the same, and then end any time."""
        for job in [job for job in self._postponed.values() if self._launcher.has_begun(job)]:
            with contextlib.suppress(NotNow, StoreFull):
                self._start(job)
                del self._postponed[job.id]

    def _try_again(self) -> None:
        """Retry one launch, to find out whether the outage is over. If it fails, the next try is
        another job's, in case only this one cannot start."""
        self.outage = None
        if not self._postponed:
            self._again_after_s = AGAIN_AFTER_S
            return
        id, job = next(reversed(self._postponed.items()))
        self._do(Launch(job))
        if self.outage:
            self._postponed.move_to_end(id, last=False)
        else:
            self._again_after_s = AGAIN_AFTER_S
            del self._postponed[id]
            if not self._postponed:
                log.info("jobs can be launched again")
            self._later(self._go_on)

    def _go_on(self) -> None:
        """Retry the next one, unless another outage has begun, whose end triggers that."""
        if not self.outage:
            self._try_again()

    def _later(self, do: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # closed: the next daemon does it
            self._hands.submit(do)

    def _stop(self, job: Job) -> None:
        if job.spec.process and (job.id, job.attempt) in self._unlaunched:
            # It runs already, and only a supervisor can end it.
            self._later(partial(self._stop_late, job))
        else:
            self._stop_now(job)

    def _stop_now(self, job: Job) -> None:
        unlaunched = (job.id, job.attempt) in self._unlaunched
        try:
            self._launcher.stop(job, self._kill_grace_s)
        except OSError:
            if not unlaunched:
                raise
            self._later(partial(self._stop_late, job))  # there is no room to leave word
            return
        self._later(partial(self._forget, job))
        if unlaunched and not self._launcher.has_begun(job):
            self._report_unstarted(job)
            return
        self.shepherd.watch(job)
        if job.mode is Mode.MPS and self._mps:
            # A kill in the middle of a kernel could take the other clients down with it.
            when = max(0.0, self._kill_grace_s - BEFORE_THE_KILL_S)
            _after(when, partial(self._leave_mps, job, self._mps))

    def _forget(self, job: Job) -> bool:
        """Whether its launch was to be tried again."""
        return bool(self._postponed.pop(job.id, None)) | bool(self._offers.pop(job.id, None))

    def _stop_late(self, job: Job) -> None:
        """After its launch was tried."""
        if self._forget(job) and not self._launcher.has_begun(job):
            self._report_unstarted(job)
        else:
            self._stop_now(job)

    def _report_unstarted(self, job: Job) -> None:
        stop = job.stop if job.stop in FOR_GOOD else None
        self._report(job, Exit(Cause.UNSTARTED, evidence=NOT_STARTED), stop=stop)

    def _leave_mps(self, job: Job, mps: Mps) -> None:
        gpu = job.gpus[0]  # all its GPUs have the same server
        for pid in mps.daemon(gpu).clients():
            # Not of a later attempt: a preempted job may be running again by now.
            if self._evidence.attempt_of(pid) == (job.id, job.attempt):
                mps.daemon(gpu).terminate(pid)

    def _report_exit(self, job: Job, facts: ExitFacts) -> None:
        if facts.memory_held:
            log.warning("the GPU memory of job %d was not seen to be freed after its end", job.id)
            note = "its processes ended, but nobody saw its GPU memory being freed"
            self._notice(job.id, note)
        if facts.left:
            log.warning("processes of job %d cannot be killed: they wait in the kernel", job.id)
            self._notice(job.id, LEFT)
        if facts.background:
            some = "1 process" if facts.background == 1 else f"{facts.background} processes"
            self._notice(job.id, BACKGROUND.format(some))
        self._report(job, self._exit_of(job, facts), facts.ended_at, facts.cause)

    def _read_log(self, action: ReadLog) -> None:
        """Would the job fail if it ended now, and for lack of GPU memory?"""
        job, now = action.job, self._inbox.clock()
        self._unread.discard((job.id, job.attempt))
        tail = read_logs(self._launcher.name(job), action.begins)
        exit = self._exit_of(job, ExitFacts(code=1, ended_at=now, log_tail=tail))
        if exit.cause is Cause.GPU_OOM:
            self._inbox.post(Stumbled(self._inbox.clock(), job.id, job.attempt, exit))

    def _exit_of(self, job: Job, facts: ExitFacts) -> Exit:
        until = facts.main_ended_at or facts.ended_at
        limits = limited.current.memory_limits if (limited := self._limited.get(job.id)) else ()
        full = self._evidence.full_gpu((job.id, job.attempt), until, limits)
        return exit_of(job, facts, self._describe(full) if full else "")

    def _describe(self, full: FullGpu) -> str:
        gpu = f"GPU {self._gpus[full.gpu].index}" if full.gpu in self._gpus else "its GPU"
        share = f"{full.share:.0%}".replace("%", " %")
        if full.limit_mib:
            return f"it had {share} of its {gib(full.limit_mib)} on {gpu}"
        return f"{gpu} was {share} full"

    def _report(
        self,
        job: Job,
        exit: Exit,
        at: float | None = None,
        stop: Cause | None = None,
    ) -> None:
        now = self._inbox.clock()
        self._unlaunched.discard((job.id, job.attempt))
        self._inbox.post(Exited(now, job.id, job.attempt, exit, at, stop))

    def _refuse(self, job: JobId, note: str) -> None:
        log.warning("job %d: %s", job, note)
        self._notice(job, note)

    def _notice(self, job: JobId, note: str) -> None:
        self._inbox.post(Noticed(self._inbox.clock(), job, note))


def _after(seconds: float, do: Callable[[], object]) -> None:
    timer = Timer(seconds, do)
    timer.daemon = True
    timer.start()
