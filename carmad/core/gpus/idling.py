"""Jobs that hold GPUs without using them: for how long, what is done about them, and when. Pure.

A job is idle while no process of it runs a kernel on any of its GPUs. It is stalled while it
also prints nothing and takes no processor time: then it hangs, or waits for something.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, cast

from carmad.config import Idle
from carmad.core.gpus.gpu import GpuSample, uses_gpu
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import Exit, GpuId, JobId, Signs
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.errors import CarmaError
from carmad.readable import duration

What = Literal["warn", "suspend", "requeue", "end"]
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_STEP = re.compile(r"(warn|suspend|requeue|end) (\d+(?:\.\d+)?)\s?([smhd])")
UNUSED = "does not use its GPUs"  # how the warning begins
STALLED = "shows no sign of life"  # the same of one that is stalled
SAID_AFTER_S = 60.0  # most jobs have run a kernel by then, and few pause for so long


@dataclass(frozen=True, slots=True)
class Rung:
    """What is done to a job once it has been idle for so long."""

    what: What
    after_s: float
    setting: str = "batch"


@lru_cache(maxsize=16)
def ladder(text: str, setting: str = "batch") -> tuple[Rung, ...]:
    """A setting of `idle`, such as "warn 30m, suspend 2h", in order of time. Raises CarmaError if
    it is no such list."""
    rungs = []
    for part in text.split(",") if text.strip() else ():
        step = _STEP.fullmatch(part.strip())
        if step is None:
            raise CarmaError(
                f"{part.strip()!r} is none of warn, suspend, requeue and end with a time",
                'such as "warn 30m, suspend 2h"',
            )
        rungs.append(Rung(cast(What, step[1]), float(step[2]) * UNIT_S[step[3]], setting))
    return tuple(sorted(rungs, key=lambda rung: rung.after_s))


def rungs_of(job: Job, rules: Idle, kept_mib: float) -> tuple[Rung, ...]:
    """What applies to a job that keeps so much from others, in order of time. That it is stalled
    is no news by itself, unless it keeps others off its GPUs, as it has run no kernel yet."""
    rungs = ladder(rules.hung, "hung")
    if job.kernels and all(rung.what == "warn" for rung in rungs):
        rungs = ()
    if kept_mib >= rules.floor_mib:
        rungs += ladder(rules.batch)
    return tuple(sorted(rungs, key=lambda rung: rung.after_s))


def first_s(rules: Idle) -> float:
    """After how many idle seconds the first step applies to any job; infinite: never."""
    rungs = (*ladder(rules.hung, "hung"), *ladder(rules.batch))
    return min((rung.after_s for rung in rungs), default=math.inf)


def kernelless_s(job: Job, now: float) -> float:
    """For how long the job has held its GPUs without a kernel on any of them; 0: not for so long
    that it should be said."""
    if job.state is not JobState.STARTING or not job.gpus or job.started_at is None:
        return 0.0
    waited_s = now - job.started_at
    return waited_s if waited_s >= SAID_AFTER_S else 0.0


def due(rungs: tuple[Rung, ...], idle_s: float, stalled_s: float = 0.0) -> Rung | None:
    """The last that applies."""
    lasted_s = {"batch": idle_s, "hung": stalled_s}
    return next((each for each in reversed(rungs) if each.after_s <= lasted_s[each.setting]), None)


def following(rungs: tuple[Rung, ...], rung: Rung) -> Rung | None:
    """What comes after this one, and is no warning."""
    later = (each for each in rungs if each.after_s > rung.after_s and each.what != "warn")
    return next(later, None)


def footprint_mib(job: Job, held: Mapping[GpuId, int]) -> float:
    """MiB that nobody else can have for as long as the job is there, on all of its GPUs together.
    `held`: what it holds on each, by the last readings."""
    if job.exclusive:
        return math.inf
    promised = job.need.safe_mib if job.need and job.need.firm else 0
    return sum(max(held.get(gpu, 0), promised) for gpu in job.gpus)


def is_spared(job: Job) -> bool:
    """Whether its idleness is nobody's business: its owner has a reason, or is at its terminal; or
    it is on its way anyway."""
    spec = job.spec
    waits = job.state not in (JobState.STARTING, JobState.RUNNING) or job.profiling is not None
    return bool(spec.idle_ok or spec.interactive or spec.process or waits)


def warning(job: Job, rung: Rung, then: Rung | None) -> str:
    """The note for the owner of an idle job. `then`: what comes next, if anything does."""
    done = {"suspend": "suspended", "requeue": "requeued", "end": "ended"}
    will = f"it will be {done[then.what]} once that lasts {duration(then.after_s)}" if then else ""
    if rung.setting == "hung":
        lacks, follows = STALLED, f"others wait; see carma logs {label(job)}"
        follows = "; ".join(filter(None, (follows, will)))
    else:
        lacks, follows = UNUSED, will or "others could use them"
    reason = f"if it has a reason: carma update {label(job)} --idle-ok REASON"
    return f"{lacks} for {duration(rung.after_s)}: {follows} ([idle] {rung.setting}); {reason}"


def farewell(rung: Rung) -> str:
    """Why an idle job leaves its GPUs."""
    did = "shown no sign of life" if rung.setting == "hung" else "not used its GPUs"
    return f"it had {did} for {duration(rung.after_s)} ([idle] {rung.setting})"


# -- for how long

IDLE_WARNING_S = 600.0  # before the end of an idle job, or half of the limit if that is less
COMPUTES = 0.05  # of a processor: what only waits takes less, such as idle workers and watchdogs
YOUNG_S = 60.0  # of an attempt: what it has printed by then was not seen before


@dataclass(frozen=True, slots=True)
class _Life:
    """Of an attempt on GPUs. A *round* is the time between two signs of it."""

    signs: Signs  # the latest
    stalled_s: float = 0.0  # without a kernel, output or processor time
    quiet_s: float = 0.0  # without output, and not at work on all GPUs that it had worked on
    printed_before: tuple[int, ...] = ()  # by the signs before
    # What it had printed a round before one in which it was at work: no error in it was the end.
    outlived: tuple[int, ...] = ()
    asked_s: float = 0.0  # `quiet_s` when its log was last to be read
    error: Exit | None = None  # that was found in it


class Idleness:
    """For how long jobs have been idle, and stalled. Only time with readings counts: nobody is to
    blame for a driver that hangs. A restart begins anew.

    The driver may not tell whose kernels a GPU runs (MPS). A stalled job is found all the same:
    nothing counts that may be a neighbour's, as who launches kernels takes processor time.
    """

    def __init__(self) -> None:
        self._idle_s: dict[JobId, float] = {}
        self._at: float | None = None
        self._lives: dict[tuple[JobId, int], _Life] = {}  # by job and attempt
        # Of the present round: its seconds; who ran kernels, and on which GPUs this is not known.
        self._round_s = 0.0
        self._ran: set[tuple[JobId, GpuId]] = set()
        self._unknown: set[tuple[JobId, GpuId]] = set()

    def add(
        self,
        at: float,
        seen: Iterable[tuple[GpuSample, tuple[Job, ...]]],
        gap_s: float,
        signs: tuple[Signs, ...] = (),
    ) -> None:
        """Readings, with the jobs on each GPU; the previous ones count for `gap_s` at most."""
        passed_s = 0.0 if self._at is None else min(at - self._at, gap_s)
        self._at = at
        self._round_s += passed_s
        idle_s: dict[JobId, float] = {}
        there: dict[JobId, Job] = {}
        for sample, residents in seen:
            for job in residents:
                if job.spec.process:
                    continue
                here_s = 0.0
                if not uses_gpu(job.id, sample):
                    here_s = self._idle_s.get(job.id, 0.0) + passed_s
                idle_s[job.id] = min(here_s, idle_s.get(job.id, here_s))
                there[job.id] = job
                self._note_kernels(job, sample, len(residents) == 1)
        self._idle_s = idle_s
        if signs:
            lives = (self._follow(each, there.get(each.job), at) for each in signs)
            self._lives = {(its.signs.job, its.signs.attempt): its for its in lives}
            self._round_s = 0.0
            self._ran.clear()
            self._unknown.clear()

    def _note_kernels(self, job: Job, sample: GpuSample, alone: bool) -> None:
        used = [each.sm_util for each in sample.processes if each.job == job.id]
        if any(used) or (alone and used and uses_gpu(job.id, sample)):
            self._ran.add((job.id, sample.gpu))
        elif None in used:
            self._unknown.add((job.id, sample.gpu))

    def _follow(self, signs: Signs, job: Job | None, at: float) -> _Life:
        was = self._lives.get((signs.job, signs.attempt))
        if was is None:
            young = job and job.started_at is not None and at - job.started_at <= YOUNG_S
            return _Life(signs, outlived=() if young else signs.printed)
        if job is None:  # it is suspended
            return _Life(signs, outlived=was.outlived)
        computed = abs(signs.cpu_s - was.signs.cpu_s) > COMPUTES * self._round_s
        its = {(job.id, gpu) for gpu, _ in job.kernels}
        working = bool(its) and its <= self._ran | (self._unknown if computed else set())
        prints = signs.printed != was.signs.printed
        lives = prints or computed or any(id == job.id for id, _ in self._ran)
        goes_on = prints or working
        return _Life(
            signs,
            stalled_s=0.0 if lives else was.stalled_s + self._round_s,
            quiet_s=0.0 if goes_on else was.quiet_s + self._round_s,
            printed_before=was.signs.printed,
            outlived=was.printed_before if working else was.outlived,
            asked_s=0.0 if goes_on else was.asked_s,
            error=None if goes_on else was.error,
        )

    def of(self, job: JobId) -> float:
        return self._idle_s.get(job, 0.0)

    def stalled_for(self, job: Job) -> float:
        life = self._lives.get((job.id, job.attempt))
        return life.stalled_s if life else 0.0

    def lasting(self, seconds: float) -> list[JobId]:
        """The jobs that have been idle, or stalled, for so long."""
        idle = (job for job, its in self._idle_s.items() if its >= seconds)
        stalled = (id for (id, _), life in self._lives.items() if life.stalled_s >= seconds)
        return list(dict.fromkeys((*idle, *stalled)))

    def ask_logs(self, seconds: float) -> Iterator[tuple[JobId, tuple[int, ...]]]:
        """The jobs that have been quiet for so long, or once more for so long, with what of their
        output they outlived."""
        for key, life in self._lives.items():
            if life.quiet_s - life.asked_s >= seconds and life.signs.printed and not life.error:
                self._lives[key] = replace(life, asked_s=life.quiet_s)
                yield life.signs.job, life.outlived

    def note_error(self, job: JobId, attempt: int, error: Exit) -> None:
        """Of a job whose log was asked for: it may have gone on since."""
        life = self._lives.get((job, attempt))
        if life and life.asked_s:
            self._lives[job, attempt] = replace(life, error=error)

    def error_of(self, job: Job) -> Exit | None:
        """After which it has been quiet."""
        life = self._lives.get((job.id, job.attempt))
        return life.error if life else None

    def judge(self, job: Job, limit_s: float, suspends: bool) -> tuple[bool, str]:
        """Whether it is to leave its GPUs, and what its owner is to know; "" for nothing.
        `suspends`: it is suspended then, and not ended."""
        idle_s = self._idle_s.get(job.id, 0.0)
        if not limit_s or idle_s < limit_s - min(IDLE_WARNING_S, limit_s / 2):
            return False, ""
        limit = f"{duration(limit_s)} (interactive.idle_s)"
        what = "suspended" if suspends else "ended"
        if idle_s < limit_s:
            return False, f"does not use its GPUs: it will be {what} once that lasts {limit}"
        return True, f"was {what} because it had not used its GPUs for {limit}"
