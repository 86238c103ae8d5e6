"""Watches every supervisor, launched by this daemon or an earlier one, and reports how its attempt
ended.

A supervisor lives for as long as it holds the lock in its attempt's directory: the kernel lets go
of that when it ends, however it ends, and everybody sees the same, in whatever container, and after
a restart or a reboot.

One thread, a pidfd per supervisor. It starts nothing, and kills only what a killed supervisor left
running. Nothing here waits for a process of a user's.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL

from carmad import beats
from carmad.attempt import cgroup, exits, process_tree, supervisor
from carmad.attempt.evidence import Evidence
from carmad.attempt.exits import ExitFacts, for_good
from carmad.attempt.launcher import Launcher, attempt_dir
from carmad.attempt.proc import process_stat, send, unkillable
from carmad.attempt.starting import program
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.engine.clock import boot_id, boottime

START_WITHIN_S = 10.0  # a supervisor that has not started by then is given up
CLEAR_WITHIN_S = 10.0  # for the driver to free memory, and for what was killed to be gone
ENDING_S = 1.0  # between letting go of the lock and the end, which are some microseconds
PAUSE_S = 0.05
LATE_S = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    job: Job
    directory: Path
    since: float  # monotonic
    started: exits.StartRecord | None = None
    cgroup: str | None = None  # of all its processes; None: it has none, or none is known
    pidfd: int | None = None
    sweep: subprocess.Popen[bytes] | None = None  # of what the supervisor left, without a cgroup
    swept: bool = False
    facts: ExitFacts | None = None  # of its end, once it has ended
    clear_by: float = 0.0  # monotonic
    stumbled: bool = False  # an error with it was logged
    unseen: bool = False  # that its supervisor is not to be seen was logged


class Shepherd:
    """Calls `on_exit(job, facts)` in its own thread, once the driver has freed the attempt's GPU
    memory, or ten seconds after its end. `clock` is the daemon's.
    """

    def __init__(
        self,
        state_dir: Path,
        launcher: Launcher,
        evidence: Evidence,
        on_exit: Callable[[Job, ExitFacts], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state_dir = state_dir.absolute()
        self._launcher = launcher
        self._evidence = evidence
        self._on_exit = on_exit
        self._clock = clock
        self._arrivals: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._attempts: dict[tuple[JobId, int], _Attempt] = {}
        self._poller = select.poll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poller.register(self._wake, select.POLLIN)
        self._closing = False
        self._thread = beats.thread("shepherd", LATE_S, self._run)

    def start(self) -> None:
        """When this returns, the processes of all attempts watched so far are known."""
        os.eventfd_write(self._wake, 1)
        self._turn()
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Jobs keep running."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for attempt in self._attempts.values():
            if attempt.pidfd is not None:
                os.close(attempt.pidfd)
        os.close(self._wake)

    def watch(self, job: Job) -> None:
        """Report the end of the job's current attempt, even if it ended while no daemon ran.

        Watching twice changes nothing but the job's GPUs, which may be others now; watching an
        attempt again after its report repeats the report.
        """
        if self._closing:  # the next daemon does
            return
        self._arrivals.put(job)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception:
                log.exception("the shepherd failed and continues")
                time.sleep(1.0)

    def _turn(self) -> None:
        restless = any(attempt.pidfd is None for attempt in self._attempts.values())
        beats.idle()
        ready = {fd for fd, _ in self._poller.poll(PAUSE_S * 1000 if restless else None)}
        if self._wake in ready:
            os.eventfd_read(self._wake)
        while not self._arrivals.empty():
            job = self._arrivals.get()
            directory = attempt_dir(self._state_dir, job.id, job.attempt)
            new = _Attempt(job, directory, time.monotonic())
            self._attempts.setdefault((job.id, job.attempt), new).job = job
        stumbled = False
        for attempt in list(self._attempts.values()):
            beats.at(f"the attempt of job {attempt.job.id}")
            try:
                self._follow(attempt, attempt.pidfd in ready)
            except Exception:  # must not affect the others
                if not attempt.stumbled:
                    log.exception("the shepherd failed on job %d", attempt.job.id)
                attempt.stumbled = stumbled = True
        if stumbled:
            time.sleep(1.0)

    def _follow(self, attempt: _Attempt, supervisor_ended: bool) -> None:
        if supervisor_ended:
            self._close(attempt)
        if attempt.facts is None and attempt.pidfd is None:
            self._find_supervisor(attempt)
        if attempt.facts is not None:
            self._report_when_clear(attempt)

    def _find_supervisor(self, attempt: _Attempt) -> None:
        """Open a pidfd of the attempt's supervisor, or find that it has ended."""
        revoked = supervisor.why_stopped(attempt.directory) == supervisor.REVOKED
        started, why = None, ""
        try:
            started = exits.read_start(attempt.directory)
        except ValueError as error:
            why = f"the record of its start cannot be read: {error}"
        if started is None and not why:
            # A supervisor that starts after the attempt was revoked runs nothing.
            if revoked or time.monotonic() > attempt.since + START_WITHIN_S:
                self._give_up(attempt)
            return
        attempt.started = started
        if started is not None:
            attempt.cgroup = _cgroup(started, attempt.job)
            attempt.pidfd = _open_pidfd(started)
        if not exits.is_alive(attempt.directory):
            if attempt.pidfd is not None:  # it is just ending, or that process is another one
                ending = select.poll()
                ending.register(attempt.pidfd, select.POLLIN)
                ending.poll(ENDING_S * 1000)
                os.close(attempt.pidfd)
                attempt.pidfd = None
            self._end(attempt, self._read_end(attempt))
        elif attempt.pidfd is not None and started is not None:
            self._poller.register(attempt.pidfd, select.POLLIN)
            pids = filter(None, (started.pid, started.follows))
            mark = attempt.job.spec.uid, os.fsencode(attempt.directory)
            key = attempt.job.id, attempt.job.attempt
            self._evidence.add_supervisor(key, *pids, cgroup=attempt.cgroup, marked=mark)
        elif not attempt.unseen:  # its lock will show its end
            attempt.unseen = True
            why = why or f"there is no process {started.pid if started else 0}"
            log.error("job %d: its supervisor cannot be followed: %s", attempt.job.id, why)

    def _give_up(self, attempt: _Attempt) -> None:
        """Report that no supervisor started, unless one has started just now. If the attempt's
        folder has gone, as after its database was restored from a backup, it may have run."""
        if self._launcher.revoke(attempt.job):
            cause = for_good(supervisor.why_stopped(attempt.directory))
            launched = (attempt.directory / supervisor.LAUNCH).exists()
            facts = ExitFacts(
                never_started=launched, lost=not launched, cause=cause, ended_at=self._clock()
            )
            self._end(attempt, facts)

    def _close(self, attempt: _Attempt) -> None:
        """The supervisor has ended: close its pidfd, and read its records."""
        assert attempt.pidfd is not None
        self._poller.unregister(attempt.pidfd)
        os.close(attempt.pidfd)
        attempt.pidfd = None
        self._evidence.remove_supervisor((attempt.job.id, attempt.job.attempt))
        self._end(attempt, self._read_end(attempt))

    def _end(self, attempt: _Attempt, facts: ExitFacts) -> None:
        attempt.facts = facts
        attempt.clear_by = time.monotonic() + CLEAR_WITHIN_S

    def _report_when_clear(self, attempt: _Attempt) -> None:
        """Report the end once nothing of the attempt is left, or the deadline has passed: but never
        while a process of it may still run, as the job could be started a second time."""
        assert attempt.facts is not None
        late = time.monotonic() >= attempt.clear_by
        if attempt.facts.lost and not self._sweep(attempt, late):
            return
        try:
            held = not self._evidence.memory_gone(attempt.job)
        except Exception:
            if not late:
                raise
            held = True
        if late or not held:
            self._on_exit(attempt.job, replace(attempt.facts, memory_held=held))
            del self._attempts[attempt.job.id, attempt.job.attempt]

    def _sweep(self, attempt: _Attempt, late: bool) -> bool:
        """Kill what a killed supervisor left running. True when nothing is left, or, if `late`,
        nothing that runs."""
        assert attempt.facts is not None
        if attempt.cgroup is None:
            if attempt.swept:
                return True
            attempt.sweep = attempt.sweep or _sweep(attempt.directory, attempt.job.spec.uid)
            code = attempt.sweep.poll()
            if code is None:
                return False
            attempt.sweep = None
            if code not in (process_tree.GONE, process_tree.LEFT):  # killed, or without memory
                raise RuntimeError(f"the sweep of job {attempt.job.id} failed")
            attempt.facts = replace(attempt.facts, left=code == process_tree.LEFT)
            attempt.swept = True
            return True
        left = cgroup.members(attempt.cgroup)
        for pid, start in left.items():
            send(pid, start, SIGKILL)
        if late and left and all(map(unkillable, left)):
            attempt.facts = replace(attempt.facts, left=True)
            return True
        return not left and cgroup.is_empty(attempt.cgroup)

    def _read_end(self, attempt: _Attempt) -> ExitFacts:
        started = attempt.started
        if self._launcher.has_later(attempt.job):  # which it was stopped for: it goes on as that
            return ExitFacts(lost=True, ended_at=self._clock())
        try:
            record = exits.read_exit(attempt.directory)
        except ValueError as error:
            log.error("job %d: the record of its end cannot be read: %s", attempt.job.id, error)
            record = None
        if record is None:
            started_at = started.at if started else None
            return ExitFacts(lost=True, started_at=started_at, ended_at=self._clock())
        if record.cause == supervisor.REVOKED:
            return ExitFacts(never_started=True, ended_at=self._clock())
        this_boot = started is not None and started.boot_id == boot_id()
        tail = exits.tail(attempt.directory)
        return ExitFacts.of(record, tail, lambda boot_s: self._at(boot_s if this_boot else None))

    def _at(self, boot_s: float | None) -> float | None:
        """A time in seconds since boot, on the daemon's clock."""
        return None if boot_s is None else self._clock() - max(0.0, boottime() - boot_s)


def _sweep(directory: Path, uid: int) -> subprocess.Popen[bytes]:
    """A process of its own, as finding it can take long."""
    words = [*program("carmad.attempt.process_tree", "sweep"), str(directory), str(uid)]
    return subprocess.Popen(words, env={}, cwd="/", start_new_session=True)


def _open_pidfd(started: exits.StartRecord) -> int | None:
    """A pidfd of that process; None if it has ended. Raises OSError if that is unknown."""
    try:
        pidfd = os.pidfd_open(started.pid)
    except OSError as error:
        if error.errno in exits.SHORTAGES:
            raise
        return None
    # Looked at after opening: from then on, the pidfd cannot refer to another process.
    found = process_stat(started.pid)
    if found is None or found[1] != started.start_ticks:
        os.close(pidfd)
        return None
    return pidfd


def _cgroup(started: exits.StartRecord, job: Job) -> str | None:
    found = started.cgroup
    return found if found and cgroup.is_of(found, job.id, job.attempt) else None
