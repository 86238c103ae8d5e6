"""Why a job was placed, or is waiting. Made by the code that decides, never re-derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from carmad.core.jobs.attempt import GpuId, JobId, ProfilingRun

T = TypeVar("T")
ORDER, PLAN, PREDICT, DECIDE = "order", "plan", "predict", "decide"
FALLBACK = "fallback's "  # before ORDER and PLAN


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a rule refused. `need` and `have` are in `unit`; both may be 0 for a yes/no rule.

    Codes are stable, for `--json`; `carma why` has a phrase for each.
    """

    code: str
    need: float = 0.0
    have: float = 0.0
    unit: str = ""
    detail: str = ""  # what numbers cannot say: a user's name, a fault's text


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one GPU for one job: refused, with all reasons, or ranked."""

    gpu: GpuId
    refused: tuple[Reason, ...] = ()
    rank: float | None = None  # the policy's own measure; of GPUs otherwise equal, the lowest wins


@dataclass(frozen=True, slots=True)
class Placement:
    """A policy's answer for one job. No GPUs: it waits."""

    job: JobId
    gpus: tuple[GpuId, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    reasons: tuple[Reason, ...] = ()  # why it waits, apart from any single GPU
    profiling: ProfilingRun | None = None  # with GPUs: run it alone there, to profile it
    accumulation: int = 1  # with GPUs: micro-batches per batch
    explanation: tuple[Reason, ...] = ()  # with GPUs: why those


@dataclass(frozen=True, slots=True)
class Preemption:
    """A policy's request to stop a running job and requeue it."""

    job: JobId
    reason: Reason


@dataclass(frozen=True, slots=True)
class AskAgain:
    """A policy's request to be called at this time, even if nothing happens until then. A later
    plan's request replaces it; within a plan, the earliest counts."""

    at: float


@dataclass(frozen=True, slots=True)
class Remember:
    """A frozen value that the policy gets in the next view's `memory`. It is lost when the daemon
    stops."""

    memory: object


Proposal = Placement | Preemption | AskAgain | Remember


@dataclass(frozen=True, slots=True)
class Decision:
    """A placement as decided. Recorded when its choice or its reasons change."""

    at: float
    policy: str
    placement: Placement

    def same_story(self, other: Decision) -> bool:
        """Whether choice and reasons are equal. Numbers are ignored, or a waiting job would write
        a row per second."""
        mine, its = self.placement, other.placement
        return (
            mine.gpus == its.gpus
            and _story(mine.reasons) == _story(its.reasons)
            and _story(mine.explanation) == _story(its.explanation)
            and len(mine.verdicts) == len(its.verdicts)
            and all(map(_same_verdict, mine.verdicts, its.verdicts))
        )


def _same_verdict(one: Verdict, other: Verdict) -> bool:
    if one is other:  # a GPU on which nothing changed
        return True
    return one.gpu == other.gpu and _story(one.refused) == _story(other.refused)


def _story(reasons: tuple[Reason, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((reason.code, reason.detail) for reason in reasons)


def refuse(placement: Placement, reason: Reason) -> Placement:
    """The placement turned into a wait, with this reason added."""
    return replace(placement, gpus=(), reasons=(*placement.reasons, reason))


@dataclass(frozen=True, slots=True)
class Failure:
    """A call to a plugin that failed."""

    question: str  # the kind of call: see `carmad.core.placing.deciders`
    number: int  # which call of this kind in the step, from 1
    error: str


class Calls:
    """The calls of one step: how many of each kind, and which failed."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._failures: list[Failure] = []

    def make(self, question: str, call: Callable[[], T]) -> T:
        """Make the call, count it, and record its failure, which is raised."""
        self._numbers[question] += 1
        try:
            return call()
        except Exception as error:
            self._failures.append(Failure(question, self._numbers[question], describe(error)))
            raise

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self._failures)

    def forget(self) -> None:
        self._numbers.clear()
        self._failures.clear()


def describe(error: Exception) -> str:
    return f"{error!r:.200}"
