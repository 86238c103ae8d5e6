"""How much sharing slowed a job, against running alone: from the best that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from carmad.core.attempt import Cause, JobId, Mode
from carmad.core.company import beside, loaded
from carmad.core.findings import Loaded, Profile
from carmad.core.history import ENOUGH_RUNS
from carmad.core.ran import Ran
from carmad.core.sharing import Stayed
from carmad.core.types import JobState
from carmad.models import Boosted

MODEL = "interference"  # the name of the trained model
ERROR = "MAE"  # that it was trained with
COVERED = 0.5  # of the shared time that must be known, to speak for all of it
STEADY = 1.25  # the longest run alone over the shortest: beyond it, they tell little

Source = Literal["steps", "runs", "model", "simulation"]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """`ratio`: the time that its work took beside others, over that alone; at least 1, as less is
    noise. It is between `low` and `high` as far as the source can tell."""

    ratio: float
    low: float
    high: float
    source: Source
    known_from: int  # neighbours measured, runs alone, or pairs predicted


@dataclass(frozen=True, slots=True)
class Known:
    """What slow-downs are found from, besides the job itself."""

    jobs: Mapping[JobId, Ran]  # its neighbours
    since: float  # from when on all neighbours are known
    runs_s: Callable[[Ran], Sequence[float]]  # how long runs of the same job took that never shared
    memory_mib: Callable[[Ran], int | None]  # of a job's GPUs
    model: Boosted | None = None  # trained here, on what jobs reported
    profiles: Mapping[JobId, Profile] = field(default_factory=dict)  # for the model


def slowdown(job: Ran, stays: Sequence[Stayed], known: Known) -> Slowdown | None:
    """None: unknown. Only for a job that shared."""
    if job.alone_s is not None:
        return _against(stays, [job.alone_s], "simulation")
    return _by_steps(job, stays) or _by_runs(job, stays, known) or _by_model(job, stays, known)


def taken_s(stays: Sequence[Stayed]) -> float:
    """How long the work of a job that has ended took, in the attempts that were not lost."""
    return sum(each.run_s for each in _continued(stays))


def _continued(stays: Sequence[Stayed]) -> Iterable[Stayed]:
    for each in stays:
        exit = each.stay.exit
        if each is stays[-1] or (exit is not None and exit.cause is Cause.PREEMPTED):
            yield each


def _by_runs(job: Ran, stays: Sequence[Stayed], known: Known) -> Slowdown | None:
    began_at = job.first_started_at
    if job.state is not JobState.SUCCEEDED or began_at is None or began_at < known.since:
        return None
    runs = known.runs_s(job)
    if len(runs) < ENOUGH_RUNS or max(runs) > STEADY * min(runs):
        return None
    return _against(stays, runs, "runs")


def _against(stays: Sequence[Stayed], runs: Sequence[float], source: Source) -> Slowdown | None:
    """Against how long it takes alone. None: that is less than what it ran for alone."""
    whole_s = taken_s(stays)
    shared_s = sum(each.shared_s for each in _continued(stays))
    left = [alone_s - (whole_s - shared_s) for alone_s in (median(runs), max(runs), min(runs))]
    if min(left) <= 0 or shared_s <= 0:
        return None
    ratio, low, high = (max(1.0, shared_s / each) for each in left)
    return Slowdown(ratio, low, high, source, len(runs))


def _by_steps(job: Ran, stays: Sequence[Stayed]) -> Slowdown | None:
    ratios = {each.neighbour: max(1.0, each.ratio) for each in job.company}
    return _over(stays, ratios, "steps", error=0.0)


def _by_model(job: Ran, stays: Sequence[Stayed], known: Known) -> Slowdown | None:
    model = known.model
    if model is None:
        return None
    own = _load(job, known)
    error = next((value for name, value in model.errors if name == ERROR), None)
    if own is None or error is None:
        return None
    mps = any(each.stay.mode is Mode.MPS for each in stays)
    ratios = {}
    for id in {id for each in stays for id in each.beside or ()}:
        neighbour = known.jobs.get(id)
        if neighbour and (other := _load(neighbour, known)):
            ratios[id] = max(1.0, model.predict(beside(own, other, mps)))
    return _over(stays, ratios, "model", error)


def _load(job: Ran, known: Known) -> Loaded | None:
    memory_mib, profile = known.memory_mib(job), known.profiles.get(job.id)
    return loaded(profile, memory_mib) if memory_mib else None


def _over(
    stays: Sequence[Stayed], ratios: Mapping[JobId, float], source: Source, error: float
) -> Slowdown | None:
    """Over the time beside each neighbour: the work done there is that time over its ratio."""
    beside_s: dict[JobId, float] = {}
    for each in stays:
        for id, seconds in (each.beside or {}).items():
            if id in ratios:
                beside_s[id] = beside_s.get(id, 0.0) + seconds
    covered_s, shared_s = sum(beside_s.values()), sum(each.shared_s for each in stays)
    if covered_s <= 0 or covered_s < COVERED * shared_s:
        return None
    ratio = covered_s / sum(seconds / ratios[id] for id, seconds in beside_s.items())
    found = [ratios[id] for id in beside_s]
    low, high = max(1.0, min(found) - error), max(found) + error
    return Slowdown(ratio, low, high, source, len(found))
