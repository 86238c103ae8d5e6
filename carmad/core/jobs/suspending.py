"""Suspending a running job, and what comes of it: whether it can be, what that costs, and how its
attempt goes on.

A suspended job keeps its processes and its place on the host, and waits in line for GPUs like any
other job; policies place it, and the hard rules say where it can return (`admission`). It is held
while its owner wants it suspended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Literal

from carmad.config import Settings, Suspending
from carmad.core.gpus.fleet import Fleet
from carmad.core.jobs import control
from carmad.core.jobs.attempt import Cause, GpuId, Mode, Suspension
from carmad.core.jobs.job import Job, Retry, advance
from carmad.core.jobs.ledger import Ledger
from carmad.core.jobs.states import Active, JobState, Paused
from carmad.core.messages import (
    Action,
    DrainRequested,
    MoveRequested,
    Resumed,
    ResumeRequested,
    Suspend,
    Suspended,
    SuspendRequested,
)
from carmad.readable import duration, gib

QUANTUM = 30.0  # a job runs for so many times what suspending it costs, before the next suspension
AGAIN_AFTER_S, AGAIN_AFTER_AT_MOST_S = 10.0, 600.0  # a failure to resume
OVERSTAYED = "it was suspended for longer than suspend.parked_s"
MOST_HUNG = 2  # attempts to resume a job that the driver does not answer, before its owner decides


def cost_s(mib: int, settings: Suspending) -> float:
    """What it takes to move so much memory to the host and back."""
    return mib / settings.out_mib_s + mib / settings.in_mib_s + 2 * settings.fixed_s


def refusal(
    job: Job,
    mib: Mapping[GpuId, int],
    suspended: Iterable[Job],
    settings: Settings,
    now: float,
    asked: bool = False,
) -> str:
    """Why the job cannot be suspended now, for people, after its name; "" if it can. `mib`: what it
    holds on each of its GPUs that can be read; `suspended`: all jobs with a suspension; `asked`:
    until somebody resumes it, as it may be already, for others."""
    if asked and job.state in (JobState.SUSPENDING, JobState.SUSPENDED):
        return _over_share(job, _host_mib(job), suspended, settings)
    if why := unfit(job, mib, settings, now):
        return why
    suspended = tuple(suspended)
    holds_mib, all_mib = sum(mib.values()), settings.suspend.host_memory_mib
    room_mib = host_room_mib(suspended, settings)
    if holds_mib > room_mib:
        return (
            f"holds {gib(holds_mib)} on GPUs, and of the host's memory for suspended jobs"
            f" {gib(room_mib)} of {gib(all_mib)} are left ([suspend] host_memory_mib)"
        )
    return _over_share(job, holds_mib, suspended, settings) if asked else ""


def _over_share(job: Job, mib: int, suspended: Iterable[Job], settings: Settings) -> str:
    """Why its owner's suspended jobs may not take so much more of the host's memory; "": they
    may."""
    theirs = [each for each in suspended if each.held and each.spec.owner == job.spec.owner]
    all_mib = settings.suspend.host_memory_mib
    parked_mib = all_mib - host_room_mib(theirs, settings)
    most_mib = int(settings.suspend.per_user * all_mib)
    if parked_mib and parked_mib + mib > most_mib:
        return (
            f"takes {gib(mib)}, and its owner's suspended jobs have {gib(parked_mib)}"
            f" of the host's memory, of {gib(most_mib)} at most ([suspend] per_user)"
        )
    return ""


def unfit(job: Job, mib: Mapping[GpuId, int], settings: Settings, now: float) -> str:
    """As `refusal`, if the host had room."""
    its = job.current
    if its is None or job.state is not JobState.RUNNING:
        return f"is {job.state}: only a running job can be suspended"
    if why := never(job, settings):
        return why
    if len(its.suspended_lately(now)) >= settings.suspend.most_per_hour:
        return f"has been suspended {settings.suspend.most_per_hour} times within an hour"
    quantum_s = QUANTUM * cost_s(sum(mib.values()), settings.suspend)
    if its.resumed_at is not None and now - its.resumed_at < quantum_s:
        return f"has just resumed: it runs for {duration(quantum_s)} at least"
    if mib.keys() != set(job.gpus):
        return "has a GPU that cannot be read"
    return ""


def overstayed_s(job: Job, settings: Settings, now: float) -> float:
    """How long it has been suspended beyond the time for which it is left alone; 0: it has not, or
    nobody wants it to be suspended."""
    its = job.suspension
    if not its or not job.held or job.state is not JobState.SUSPENDED:
        return 0.0
    return max(0.0, its.has_parked_s(now) - settings.suspend.parked_s)


def host_room_mib(suspended: Iterable[Job], settings: Settings) -> int:
    """What the host can still take. `suspended`: all jobs with a suspension."""
    return max(0, settings.suspend.host_memory_mib - sum(map(_host_mib, suspended)))


def _host_mib(job: Job) -> int:
    return job.suspension.host_mib if job.suspension else 0


def never(job: Job, settings: Settings) -> str:
    """Why the job cannot be suspended at any time, as it runs; "" if it can."""
    if not settings.suspend.host_memory_mib:
        return "cannot be suspended: this server suspends no jobs ([suspend] host_memory_mib)"
    if not job.gpus:
        return "has no GPUs"
    if job.mode in (Mode.MPS, Mode.MIG, None):
        where = "on a MIG instance" if job.mode is Mode.MIG else "under MPS"
        return f"cannot be suspended: it runs {where}, where the driver cannot do that"
    if its := job.spec.allocation:
        return f"cannot be suspended: it is part of a job of {its.system}'s, whose time goes on"
    if job.unsuspendable:
        return f"cannot be suspended: {job.unsuspendable}"
    return ""


class Suspensions:
    """Begins suspensions and takes up what came of them."""

    def __init__(self, ledger: Ledger, fleet: Fleet, settings: Settings) -> None:
        self.ledger = ledger
        self._fleet = fleet
        self.settings = settings

    @property
    def host_room_mib(self) -> int:
        return host_room_mib(self.ledger.suspended.values(), self.settings)

    @property
    def largest(self) -> Job | None:
        """The suspended job that takes most of the host's memory."""
        return max(self.ledger.suspended.values(), key=_host_mib, default=None)

    def refusal(self, job: Job, now: float, asked: bool = False) -> str:
        """Why the job cannot be suspended now; "" if it can. `asked`: see above."""
        suspended = self.ledger.suspended.values()
        return refusal(job, self._fleet.memory_of(job), suspended, self.settings, now, asked)

    def suspend(
        self,
        job: Job,
        why: str,
        now: float,
        held: bool = False,
        after: Literal["", "elsewhere", "alone"] = "",
        to: tuple[GpuId, ...] = (),
    ) -> Action:
        """Begin to suspend a job for which there is no `refusal`. `held`: until somebody requests
        that it resumes; `after`, `to`: see `Suspension`."""
        its, holds = job.current, self._fleet.memory_of(job)
        assert its
        gpus = [self._fleet.gpus[gpu] for gpu in job.gpus]
        nodes = {gpu.node for gpu in gpus}
        node = nodes.pop() if len(nodes) == 1 else ""
        mib = max(holds.values()), sum(holds.values())
        its = replace(its, suspended_at=(*its.suspended_lately(now), now))
        gone = Suspension(now, why, job.gpus, gpus[0].name, node, *mib, after, to)
        changed = advance(job, Paused(JobState.SUSPENDING, its, gone), held=held)
        self.ledger.put(changed)
        return Suspend(changed)

    # -- for others

    def way_to_preempt(
        self, job: Job, now: float, room: bool = False
    ) -> Literal["suspend", "requeue"] | None:
        """How its GPUs can be taken back now, by `limits.preemption`; None: not at all. `room`: if
        the host had room."""
        preemption = self.settings.limits.preemption
        if preemption == "suspend":
            fit = room and not unfit(job, self._fleet.memory_of(job), self.settings, now)
            if fit or not self.refusal(job, now):
                return "suspend"
            begins = job.filler and job.state is JobState.STARTING  # nothing is lost yet
            if not begins and not (job.spec.requeue_ok and never(job, self.settings)):
                return None
        in_use = job.state in (JobState.STARTING, JobState.RUNNING)
        return "requeue" if preemption and in_use and job.spec.requeue else None

    def preempt(self, job: Job, why: str, now: float) -> list[Action]:
        """Take its GPUs back, if there is a way. It waits in line from then on."""
        match self.way_to_preempt(job, now):
            case "suspend":
                return [self.suspend(job, why, now)]
            case "requeue":
                return [self.ledger.stop(job, Cause.PREEMPTED)]
            case None:
                return []

    # -- those that stay suspended for long

    def expire(self, now: float) -> list[Action]:
        """Stop those that somebody has left suspended until their time limits have expired."""
        note = f"{OVERSTAYED}: its time limit went on"
        return [
            self.ledger.stop(job.with_note(note), Cause.TIME_LIMIT)
            for job in tuple(self.ledger.suspended.values())
            if (over_s := overstayed_s(job, self.settings, now))
            and job.attained_s(now) + over_s >= (job.spec.time_limit_s or inf)
        ]

    def make_room(self, mib: int, whose: str, now: float) -> list[Action]:
        """Requeue those that have been left suspended for too long, the longest first, until the
        host has room for so much; nobody if that is not enough."""
        suspended = self.ledger.suspended.values()
        going = [job for job in suspended if job.state is JobState.STOPPING]
        left_s = {job.id: overstayed_s(job, self.settings, now) for job in suspended}
        able = [job for job in suspended if left_s[job.id] and job.spec.requeue]
        able.sort(key=lambda job: -left_s[job.id])
        short_mib = mib - self.host_room_mib - sum(map(_host_mib, going))
        chosen: list[Job] = []
        while able and short_mib > 0:
            chosen.append(able.pop(0))
            short_mib -= _host_mib(chosen[-1])
        if short_mib > 0:
            return []
        note = f"{OVERSTAYED}, and {whose} needed the host's memory: `carma release` starts it anew"
        return [self.ledger.stop(job.with_note(note), Cause.PREEMPTED) for job in chosen]

    # -- what owners ask for

    def request(self, event: SuspendRequested) -> list[Action]:
        actions: list[Action] = []
        for job in self._parts(event):
            if not control.suspend(job, self.refusal(job, event.at, asked=True)).acts:
                continue
            if job.state is JobState.RUNNING:
                why = f"suspended by {event.by}"
                actions.append(self.suspend(job, why, event.at, held=True))
            else:
                self.ledger.put(_with_hold(job, True, event.at))
        return actions

    def request_return(self, event: ResumeRequested) -> None:
        for job in self._parts(event):
            if control.resume(job).acts:
                self.ledger.put(_with_hold(job, False, event.at))

    def move(self, event: MoveRequested) -> list[Action]:
        job = self.ledger.jobs.get(event.job)
        gpus = [self._fleet.gpus[gpu] for gpu in event.gpus if gpu in self._fleet.gpus]
        if job is None:
            return []
        refusal = self.refusal(job, event.at)
        if not control.move(job, gpus, refusal, self.settings).acts:
            return []
        return [self.suspend(job, f"moved by {event.by}", event.at, to=event.gpus)]

    def empty(self, event: DrainRequested) -> list[Action]:
        """Let the jobs on a drained GPU go elsewhere, as far as they can."""
        why = f"GPU {self._fleet.gpus[event.gpu].index} is drained: {event.reason}"
        return [
            self.suspend(job, why, event.at)
            for job in self.ledger.residents(event.gpu)
            if self.settings.suspend.moves and not self.refusal(job, event.at)
        ]

    def _parts(self, event: SuspendRequested | ResumeRequested) -> list[Job]:
        return self.ledger.jobs.parts(range(event.job, event.job + 1 + event.more))

    # -- what came of it

    def take_suspended(self, event: Suspended) -> list[Action]:
        job = self._find(event, JobState.SUSPENDING)
        if job is None:
            return []
        if event.lost:
            return [self._lose(job, event.why)]
        if event.why:
            self.ledger.put(
                replace(_on_gpus(job, event.at), held=False, unsuspendable=event.why).with_note(
                    f"cannot be suspended: {event.why}"
                )
            )
            return []
        retry = self._retry(job)
        self.ledger.put(replace(_suspended(job), retry=retry))
        return []

    def take_resumed(self, event: Resumed) -> list[Action]:
        job = self._find(event, JobState.RESUMING)
        if job is None:
            return []
        if event.lost:
            return [self._lose(job, event.why)]
        if event.why:
            self.ledger.put(_again_later(job, event))
            return []
        self.ledger.put(_on_gpus(job, event.at))
        return []

    def _retry(self, job: Job) -> Retry | None:
        its = job.suspension
        if not its or not its.after:
            return job.retry
        tied = not self.settings.suspend.moves or not its.node  # to the GPUs that it had
        if its.after == "alone" or tied:
            return Retry(its.why, exclusive=True)
        retry = Retry(its.why, avoid=its.gpus)
        return retry.placeable(job.spec.gpus, self._fleet.usable(job.spec))

    def _find(self, event: Suspended | Resumed, state: JobState) -> Job | None:
        job = self.ledger.holders.get(event.job)
        return job if job and job.attempt == event.attempt and job.state is state else None

    def _lose(self, job: Job, why: str) -> Action:
        note = f"its GPU memory could not be brought back: {why}"
        return self.ledger.stop(job.with_note(note), Cause.UNRESTORED)


def _on_gpus(job: Job, now: float) -> Job:
    """The job runs again, or still."""
    its, gone = job.current, job.suspension
    assert its and gone
    return advance(job, Active(JobState.RUNNING, its.resumed(gone, now)))


def _suspended(job: Job) -> Job:
    its, gone = job.current, job.suspension
    assert its and gone
    return advance(job, Paused(JobState.SUSPENDED, replace(its, gpus=()), gone))


def _with_hold(job: Job, held: bool, now: float) -> Job:
    its = job.suspension
    return replace(job.with_suspension(its.parked(held, now)) if its else job, held=held)


def _again_later(job: Job, event: Resumed) -> Job:
    """Suspended as before, for a while that doubles with each failure."""
    its = job.suspension
    assert its
    wait_s = min(AGAIN_AFTER_S * 2**its.failures, AGAIN_AFTER_AT_MOST_S)
    hung = its.hung + event.hung
    later = replace(its, failures=its.failures + 1, again_at=event.at + wait_s, hung=hung)
    job = _suspended(job.with_suspension(later))
    note = f"could not resume: {event.why}"
    if event.hung and hung % MOST_HUNG == 0:  # it keeps GPUs and a thread from others
        note += f"; after {MOST_HUNG} such attempts it stays suspended until `carma resume`"
        job = _with_hold(job, True, event.at)
    return job.with_note(note)
