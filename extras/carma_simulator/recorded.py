"""Fetches a server's history from its API, and converts it to a trace that can be simulated, and
to the outcome that was recorded, in the form of a simulated run."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any

from carma_simulator import interference, past
from carma_simulator.experiment import (
    Attempt,
    Experiment,
    GpuTotals,
    JobOutcome,
    Load,
    Outcome,
    Physics,
    Task,
    Timeline,
    Trace,
)
from carma_simulator.hardware import Cluster, Node
from carma_simulator.past import Ran, Stretch
from carmad.api.wire import unix
from carmad.config import Settings
from carmad.configfile import from_tree
from carmad.core.jobs.attempt import Cause, GpuId, JobId, Mode
from carmad.core.jobs.states import JobState
from carmad.errors import CarmaError
from carmad.gpu.kinds import KINDS, GpuKind

if TYPE_CHECKING:
    from carmad.api.gpus import GpuOut
    from carmad.api.job import AttemptOut, JobOut

PAGE = 2000  # jobs requested at a time
ESTIMATE = "recorded"  # the column of the trace with the estimates that were used

_STAND_IN = "A100-40GB"  # for a GPU not in the table
_MODEL = "conserving"  # of the interference between jobs that shared
_UNKNOWN = Load()
_NOTHING = Load("", 0, 0, 0.0, 0.0, 0.0)
_OCCUPANCY = _UNKNOWN.sm_occupancy / _UNKNOWN.sm_active
_DRAM = _UNKNOWN.dram_active / _UNKNOWN.sm_active
_SHORTEST_S = 0.001
_STOPPED = (JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class History:
    """`experiment` simulates the recorded workload under the current settings; for others, use
    `dataclasses.replace`. `outcome` is the recorded one, in the form of a simulated run.

    Measured: submissions, launches, first kernels, ends, crashes, peak memory, and the energy
    of GPUs with jobs. Modelled: SM activity and duration alone, of jobs that shared
    (`carma_simulator.past`); SM occupancy and DRAM activity of all jobs, in proportion to the SM
    activity; the power of idle GPUs; and, in the timeline, how a job's usage was spread over its
    run time. A job counts as submitted when it could first have started: after its dependencies and
    its begin time. One that was cancelled or timed out ends with an error at that time.
    Jobs that ended without a first kernel, and sooner than others reach theirs, are left out:
    simulated jobs are never that short.
    """

    experiment: Experiment
    outcome: Outcome
    notes: tuple[str, ...]  # for people: what was left out or modelled


def from_history(
    get: Callable[..., Any],
    user: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> History:
    """The jobs that have ended, as a workload and a recorded outcome.

    `get(path, **query)` queries the daemon's API, like `cli.client.get`; `since` and `until` are
    times in the API's format. Users who are not administrators get only their own jobs. Raises
    CarmaError if no job has run yet, and whatever `get` raises.
    """
    ended: list[Any] = []
    query: dict[str, Any] = {"user": user, "since": since, "until": until, "attempts": True}
    while page := get("/v1/history", **query, limit=PAGE)["jobs"]:
        ended += page
        query["before"] = page[-1]["id"]
    config = get("/v1/config")
    settings = from_tree(config["settings"], config.get("origins", {}))
    live = get("/v1/jobs")["jobs"]
    return history(ended, live, get("/v1/gpus")["gpus"], settings)


def history(
    ended: Sequence[JobOut], live: Sequence[JobOut], gpus: Sequence[GpuOut], settings: Settings
) -> History:
    """`ended` jobs with their attempts; `live` ones only as neighbours. Jobs without GPUs are left
    out. Raises CarmaError if no job in `ended` ever held a GPU."""
    ended, live = ([job for job in jobs if job["gpus_wanted"]] for jobs in (ended, live))
    kinds = {GpuId(gpu["id"]): kind_of(gpu["name"], gpu["memory_mib"]) for gpu in gpus}
    submitted = _submission_times(ended)
    jobs, brief, physics = _split([job for job in ended if job["attempts"]])
    if not jobs:
        raise CarmaError(
            "there is no past job that could be simulated",
            "see `carma history`; jobs that end before they use a GPU do not count",
        )
    jobs.sort(key=lambda job: (submitted[job["id"]], job["id"]))
    begin = submitted[jobs[0]["id"]]
    ran = [_past_of(job, job["attempts"], begin) for job in jobs]
    last = max(job["attempts"][-1]["ended_at"] for job in jobs)
    beside = [(job, [_until(job, last)]) for job in live if job["started_at"] is not None]
    beside += [(job, job["attempts"]) for job in brief]
    everybody = [*ran, *(_past_of(job, attempts, begin) for job, attempts in beside)]
    met = past.stretches(everybody)
    own = past.activity(everybody, met)
    present = [*jobs, *(job for job, _ in beside)]
    whose = zip(present, everybody, own, strict=True)
    loads = [_load(job, one, sm, kinds) for job, one, sm in whose]
    work = past.alone_s(everybody, met, loads, interference.make(_MODEL))
    outcomes = tuple(
        _outcome(job, one, round(submitted[job["id"]] - begin, 3), load, seconds, physics, kinds)
        for job, one, load, seconds in zip(jobs, ran, loads, work, strict=False)
    )
    trace = Trace("history", tuple(outcome.task for outcome in outcomes))
    estimator = ESTIMATE if any(task.estimates for task in trace.tasks) else "none"
    experiment = Experiment(trace, _cluster(kinds), settings, estimator, _MODEL, physics)
    found = [stretch for stretches in met.values() for stretch in stretches]
    slowed = {n for s in found if len(s.training) > 1 for n, _ in s.training}
    return History(
        experiment,
        _run(experiment, outcomes, past.stretches(ran), kinds),
        tuple(_notes(ended, live, jobs, brief, loads, past.sharers(met), slowed)),
    )


def kind_of(name: str, memory_mib: int) -> GpuKind:
    """The GPU that the driver calls `name`, with the memory that it has here.

    One that is not in the table is modelled as an A100, under its own name.
    """
    words = re.findall("[a-z0-9]+", name.lower())
    runs = {"".join(words[i:j]) for j in range(len(words) + 1) for i in range(j)}
    known = [kind for kind in KINDS.values() if kind.name.lower().split("-")[0] in runs]
    if not known:
        return replace(KINDS[_STAND_IN], name="-".join(name.split()), memory_mib=memory_mib)
    nearest = min(known, key=lambda kind: abs(kind.memory_mib - memory_mib))
    return replace(nearest, memory_mib=memory_mib)


# -- jobs


def _seconds(text: str) -> float:
    return unix(text)


def _since(begin: float, text: str) -> float:
    return round(_seconds(text) - begin, 3)  # the resolution of times in the API


def _submission_times(jobs: Sequence[JobOut]) -> dict[int, float]:
    """When each job could first have started; its dependencies may have run again since."""
    ended = {job["id"]: _seconds(job["ended_at"]) for job in jobs if job["ended_at"]}
    found = {}
    for job in jobs:
        waits = [ended[after["job"]] for after in job["after"] if after["job"] in ended]
        if job["begin_at"]:
            waits.append(_seconds(job["begin_at"]))
        could = max([_seconds(job["submitted_at"]), *waits])
        did = [_seconds(attempt["started_at"]) for attempt in job["attempts"][:1]]
        found[job["id"]] = min([could, *did])
    return found


def _split(started: Sequence[JobOut]) -> tuple[list[JobOut], list[JobOut], Physics]:
    """Jobs to simulate, jobs too short for that, and the times of first kernels and crashes."""
    ran = [_past_of(job, job["attempts"], _seconds(job["submitted_at"])) for job in started]
    physics = _physics(ran)
    jobs: list[JobOut] = []
    brief: list[JobOut] = []
    for job, one in zip(started, ran, strict=True):
        held_s = one.attempts[-1].ended_at - one.attempts[-1].launched_at
        long_enough = _uses_gpus(one) or held_s > physics.first_kernel_s
        (jobs if long_enough else brief).append(job)
    return jobs, brief, physics


def _uses_gpus(ran: Ran) -> bool:
    """Whether it ran a kernel, or ran out of memory before that."""
    return any(a.ready_at is not None or a.cause is Cause.GPU_OOM for a in ran.attempts)


def _past_of(job: JobOut, attempts: Sequence[AttemptOut], begin: float) -> Ran:
    return Ran(tuple(_attempt(attempt, begin) for attempt in attempts), job.get("sm_active_mean"))


def _attempt(attempt: AttemptOut, begin: float) -> Attempt:
    launched_at = _since(begin, attempt["started_at"])
    kernel = attempt["first_kernel_at"]
    return Attempt(
        tuple(GpuId(gpu) for gpu in attempt["gpus"]),
        Mode(attempt["mode"] or Mode.STREAMS),  # not on record for earlier attempts
        launched_at,
        max(launched_at, _since(begin, kernel)) if kernel else None,
        max(launched_at, _since(begin, attempt["ended_at"])),
        Cause(attempt["cause"]),
    )


def _until(job: JobOut, last: str) -> AttemptOut:
    """The current attempt of a running job, up to the instant `last`."""
    assert job["started_at"] is not None
    kernels = [gpu["first_kernel_at"] for gpu in job["gpus"] if gpu["first_kernel_at"]]
    return {
        "gpus": [gpu["id"] for gpu in job["gpus"]],
        "mode": job.get("mode"),
        "started_at": job["started_at"],
        "first_kernel_at": min(kernels, default=None),
        "ended_at": last,
        "cause": Cause.LOST.value,
    }


def _load(job: JobOut, ran: Ran, sm_active: float | None, kinds: Mapping[GpuId, GpuKind]) -> Load:
    memory = job["memory"]
    if not memory["peak_mib"] and not _uses_gpus(ran):
        return _NOTHING
    peak = memory["peak_mib"] or memory["estimate_mib"] or memory["declared_mib"]
    mib = peak or _UNKNOWN.memory_mib
    if job["state"] == JobState.OUT_OF_MEMORY:
        mib = max(mib, _need_mib(job, mib, kinds))
    if sm_active is None:
        return replace(_UNKNOWN, memory_mib=mib)
    sm, occupancy, dram = (round(sm_active * share, 4) for share in (1.0, _OCCUPANCY, _DRAM))
    return Load("", 0, mib, sm, occupancy, dram)


def _need_mib(job: JobOut, peak_mib: int, kinds: Mapping[GpuId, GpuKind]) -> int:
    """A lower bound on the memory of a job that was given up after running out of memory."""
    tried = job["exit"]["tried_mib"] if job["exit"] else None
    if job["shared"]:
        return peak_mib + (tried or 0)
    gpus = [kinds[GpuId(gpu["id"])] for gpu in job["gpus"] if gpu["id"] in kinds]
    return max([peak_mib + (tried or 0), *(kind.memory_mib + 1 for kind in gpus)])


def _physics(jobs: Sequence[Ran]) -> Physics:
    """Medians of what was recorded; otherwise the simulator's defaults."""
    physics = Physics()
    attempts = [attempt for job in jobs for attempt in job.attempts]
    kernels = [a.ready_at - a.launched_at for a in attempts if a.ready_at is not None]
    if kernels:
        physics = replace(physics, first_kernel_s=median(kernels))
    crashes = [a.ended_at - a.launched_at for a in attempts if a.cause is Cause.GPU_OOM]
    if crashes:
        physics = replace(physics, oom_s=max(0.0, median(crashes) - physics.first_kernel_s))
    return physics


def _outcome(
    job: JobOut,
    ran: Ran,
    submit_s: float,
    load: Load,
    work_s: float,
    physics: Physics,
    kinds: Mapping[GpuId, GpuKind],
) -> JobOutcome:
    last = ran.attempts[-1]
    if last.ready_at is None:  # it used no GPU, so nothing slowed it down
        work_s += last.ended_at - last.launched_at - physics.first_kernel_s
        until_ready_s = physics.first_kernel_s
    else:
        until_ready_s = last.ready_at - last.launched_at
    work_s = max(_SHORTEST_S, round(work_s, 3))
    state = JobState(job["state"])
    there = [kinds[gpu].name for gpu in last.gpus if gpu in kinds]
    references = [name if name in KINDS else _STAND_IN for name in there]
    estimate_mib = job["memory"]["estimate_mib"]
    crashed = any(attempt.cause is Cause.GPU_OOM for attempt in ran.attempts)
    task = Task(
        name=job["name"],
        submit_s=submit_s,
        duration_s=work_s,
        gpus=job["gpus_wanted"],
        user=job["user"],
        load=load,
        reference=references[0] if references else "",
        expected_s=job.get("expected_s"),
        time_limit_s=None if state is JobState.TIMED_OUT else job["time_limit_s"],
        declared_mib=job["memory"]["declared_mib"],
        exclusive=job["exclusive"] and not crashed,  # else the recovery may have set it
        fails=state in _STOPPED,
        estimates=((ESTIMATE, estimate_mib),) if estimate_mib else (),
    )
    return JobOutcome(
        JobId(job["id"]),
        task,
        JobState.FAILED if state in _STOPPED else state,
        ran.attempts,
        until_ready_s + work_s,
        job["energy_j"] or 0.0,
    )


def _notes(
    ended: Sequence[JobOut],
    live: Sequence[JobOut],
    jobs: Sequence[JobOut],
    brief: Sequence[JobOut],
    loads: Sequence[Load],
    met_others: set[int],
    slowed: set[int],
) -> Iterator[str]:
    if never := len(ended) - len(jobs) - len(brief):
        yield f"{never} jobs ended before they started, and are left out"
    if brief:
        yield f"{len(brief)} jobs ended before they could have used a GPU, and are left out"
    if unused := sum(load == _NOTHING for load in loads[: len(jobs)]):
        yield f"{unused} jobs never used their GPUs: memory and activity of 0"
    if live:
        yield f"{len(live)} jobs that run or wait are left out"
    if modelled := sum(number < len(jobs) for number in slowed):
        yield f"{modelled} of {len(jobs)} jobs shared GPUs: their duration alone is modelled"
    if unseen := sum(job["shared"] and n not in met_others for n, job in enumerate(jobs)):
        yield f"{unseen} jobs shared with jobs that are not on record here, and count as alone"


# -- GPUs


def _cluster(kinds: Mapping[GpuId, GpuKind]) -> Cluster:
    """One node per kind of GPU, since nodes are homogeneous."""
    alike: dict[GpuKind, int] = defaultdict(int)
    for kind in kinds.values():
        alike[kind] += 1
    return Cluster(tuple(Node(f"node{n}", *each) for n, each in enumerate(alike.items())))


def _run(
    experiment: Experiment,
    jobs: tuple[JobOutcome, ...],
    met: Mapping[GpuId, Sequence[Stretch]],
    kinds: Mapping[GpuId, GpuKind],
) -> Outcome:
    """The history in the form of a simulated run, without GPUs that no longer exist."""
    makespan_s = max(job.ended_at for job in jobs)
    watts = [_watts(job) for job in jobs]
    nodes = {node.kind: node.name for node in experiment.cluster.nodes}
    uses = {gpu: [_use(s, jobs, watts) for s in met.get(gpu, ())] for gpu in kinds}
    return Outcome(
        trace=experiment.trace.name,
        policy="recorded",
        estimator=experiment.settings.estimator,
        interference="measured",
        seed=0,
        cluster=experiment.cluster,
        jobs=jobs,
        gpus=tuple(
            _totals(gpu, nodes[kind], kind, uses[gpu], makespan_s) for gpu, kind in kinds.items()
        ),
        timeline=_timeline(jobs, uses, kinds),
        makespan_s=makespan_s,
        events=0,
        decisions=0,
        wall_s=0.0,
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """Usage of a GPU during a stretch with jobs."""

    begin: float
    end: float
    memory_mib: float
    sm_active: float
    sm_occupancy: float
    dram_active: float
    power_w: float


def _watts(job: JobOutcome) -> float:
    """Its mean power per GPU, over all its time there."""
    seconds = sum((a.ended_at - a.launched_at) * len(a.gpus) for a in job.attempts)
    return job.energy_j / seconds if seconds else 0.0


def _use(stretch: Stretch, jobs: Sequence[JobOutcome], watts: Sequence[float]) -> _Use:
    loads = [jobs[number].task.load for number, _ in stretch.training]
    return _Use(
        stretch.begin,
        stretch.end,
        sum(load.memory_mib for load in loads),
        min(1.0, sum(load.sm_active for load in loads)),
        min(1.0, sum(load.sm_occupancy for load in loads)),
        min(1.0, sum(load.dram_active for load in loads)),
        sum(watts[number] for number, _ in stretch.present),
    )


def _totals(
    gpu: GpuId, node: str, kind: GpuKind, uses: Sequence[_Use], makespan_s: float
) -> GpuTotals:
    busy_s = sum(use.end - use.begin for use in uses)

    def over_time(level: Callable[[_Use], float]) -> float:
        return sum(level(use) * (use.end - use.begin) for use in uses)

    return GpuTotals(
        gpu,
        node,
        kind.name,
        over_time(attrgetter("power_w")) + kind.idle_w * (makespan_s - busy_s),
        busy_s,
        over_time(attrgetter("memory_mib")),
        over_time(attrgetter("sm_active")),
        over_time(attrgetter("sm_occupancy")),
        over_time(attrgetter("dram_active")),
    )


def _timeline(
    jobs: Sequence[JobOutcome],
    uses: Mapping[GpuId, Sequence[_Use]],
    kinds: Mapping[GpuId, GpuKind],
) -> Timeline:
    """A timeline from intervals, each with what it adds to the columns."""
    memory_mib, gpus = sum(kind.memory_mib for kind in kinds.values()), len(kinds)
    spans: list[tuple[float, float, tuple[float, ...]]] = []
    for job in jobs:
        waits_from = job.task.submit_s
        for attempt in job.attempts:
            spans.append((waits_from, attempt.launched_at, (1, 0, 0, 0, 0, 0, 0, 0)))
            spans.append((attempt.launched_at, attempt.ended_at, (0, 1, 0, 0, 0, 0, 0, 0)))
            waits_from = attempt.ended_at
    for gpu, found in uses.items():
        for use in found:
            active = (use.sm_active / gpus, use.sm_occupancy / gpus, use.dram_active / gpus)
            power_w = use.power_w - kinds[gpu].idle_w
            spans.append(
                (use.begin, use.end, (0, 0, 1, use.memory_mib / memory_mib, *active, power_w))
            )
    changes = [(begin, levels, 1) for begin, _, levels in spans]
    changes += [(end, levels, -1) for _, end, levels in spans]
    changes.sort(key=itemgetter(0))
    columns = tuple(array("d") for _ in range(9))
    now = [0.0] * 7 + [sum(kind.idle_w for kind in kinds.values())]
    for at, group in groupby(changes, itemgetter(0)):
        for _, levels, sign in group:
            now = [level + sign * change for level, change in zip(now, levels, strict=True)]
        for column, value in zip(columns, (at, *now), strict=True):
            column.append(value)
    return Timeline(*columns)
