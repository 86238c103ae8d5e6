"""Batch jobs that hold GPUs without using them: what is done about them, and when. Pure.

A job is idle while no process of it runs a kernel on any of its GPUs. Time without readings does
not count (`readings.Idleness`). One that has run none since it started may hang, or read its data:
nobody can tell which, so that it is said how long that has lasted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from carmad.config import Idle
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.errors import CarmaError
from carmad.readable import duration

What = Literal["warn", "suspend", "requeue", "end"]
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_STEP = re.compile(r"(warn|suspend|requeue|end) (\d+(?:\.\d+)?)\s?([smhd])")
UNUSED = "does not use its GPUs"  # how the warning begins
KERNELLESS = "has run no kernel"  # the same of a job that has not used them yet
SAID_AFTER_S = 60.0  # most jobs have run one by then


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
    """What applies to a job that keeps so much from others, in order of time."""
    rungs = () if job.kernels else ladder(rules.hung, "hung")
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


def due(rungs: tuple[Rung, ...], idle_s: float) -> Rung | None:
    """The last that applies."""
    return next((rung for rung in reversed(rungs) if rung.after_s <= idle_s), None)


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
        lacks, follows = KERNELLESS, f"others wait; see carma logs {label(job)}"
        follows = "; ".join(filter(None, (follows, will)))
    else:
        lacks, follows = UNUSED, will or "others could use them"
    reason = f"if it has a reason: carma update {label(job)} --idle-ok REASON"
    return f"{lacks} for {duration(rung.after_s)}: {follows} ([idle] {rung.setting}); {reason}"


def farewell(rung: Rung) -> str:
    """Why an idle job leaves its GPUs."""
    return f"it had not used its GPUs for {duration(rung.after_s)} ([idle] {rung.setting})"
