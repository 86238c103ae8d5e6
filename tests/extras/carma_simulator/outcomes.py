"""Builders of simulated runs for tests: by hand, or with many random jobs."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from carma_simulator.experiment import (
    Attempt,
    Experiment,
    GpuTotals,
    JobOutcome,
    Outcome,
    Rejected,
    Task,
    Timeline,
    Trace,
)
from carma_simulator.hardware import Cluster, parse
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause, GpuId, JobId, Mode
from carmad.core.jobs.states import JobState

FIELDS = tuple(field.name for field in fields(Timeline) if field.name != "at")
TOTALS = tuple(
    field.name for field in fields(GpuTotals) if field.name not in ("gpu", "node", "kind")
)


def attempt(
    launched_at: float,
    ended_at: float,
    *gpus: str,
    cause: Cause = Cause.SUCCESS,
    mode: Mode = Mode.STREAMS,
) -> Attempt:
    ready_at = None if cause is Cause.GPU_OOM else launched_at
    ids = tuple(GpuId(gpu) for gpu in gpus or ("g0",))
    return Attempt(ids, mode, float(launched_at), ready_at, float(ended_at), cause)


def job(
    submit_s: float,
    *attempts: Attempt,
    alone_s: float = 10.0,
    state: JobState = JobState.SUCCEEDED,
    id: int = 1,
    **task: Any,
) -> JobOutcome:
    what = {"name": "train", "duration_s": alone_s, **task}
    return JobOutcome(
        id=JobId(id),
        task=Task(submit_s=float(submit_s), **what),
        state=state,
        attempts=attempts,
        alone_s=alone_s,
        energy_j=0.0,
    )


def gpu(id: str, node: str = "node0", kind: str = "A100-40GB", **totals: float) -> GpuTotals:
    return GpuTotals(GpuId(id), node, kind, **{**dict.fromkeys(TOTALS, 0.0), **totals})


def timeline(rows: Iterable[Sequence[float]] = ((0.0, 0.0),), *fields: str) -> Timeline:
    """Rows with a time and the values of `fields` (`queued` first) from then on."""
    named = fields or ("queued",)
    columns = {name: array("d") for name in ("at", *FIELDS)}
    for at, *values in rows:
        given = dict(zip(named, values, strict=True))
        columns["at"].append(at)
        for name in FIELDS:
            columns[name].append(given.get(name, 0.0))
    return Timeline(**columns)


def outcome(*jobs: JobOutcome, **changed: Any) -> Outcome:
    """On one A100-40GB, unless told otherwise."""
    ends = [job.ended_at for job in jobs]
    usual: dict[str, Any] = {
        "trace": "by hand",
        "policy": "magm",
        "estimator": "none",
        "interference": "none",
        "seed": 0,
        "cluster": parse("1xA100-40GB"),
        "jobs": jobs,
        "gpus": (gpu("g0"),),
        "timeline": timeline(),
        "makespan_s": max(ends, default=0.0),
        "events": 0,
        "decisions": 0,
        "wall_s": 1.0,
    }
    return Outcome(**{**usual, **changed})


def experiment(
    made: Outcome, settings: Settings | None = None, rejected: tuple[Rejected, ...] = ()
) -> Experiment:
    """An experiment that could have had this outcome."""
    return Experiment(
        trace=Trace(made.trace, tuple(job.task for job in made.jobs), rejected),
        cluster=made.cluster,
        settings=settings or Settings(policy=made.policy),
        estimator=made.estimator,
        interference=made.interference,
        seed=made.seed,
    )


def made_up(jobs: int, gpus: str, seats: int = 1, seed: int = 0, **changed: Any) -> Outcome:
    """A first-come run of random jobs, at most `seats` on a GPU, which slow each other down.

    Some run out of memory once where they share. Not how CARMA schedules, but of its shape.
    """
    cluster = parse(gpus)
    rng = random.Random(seed)
    ids = [f"{node.name}-gpu{n}" for node in cluster.nodes for n in range(node.gpus)]
    seat_free_at = [(0.0, n % len(ids)) for n in range(seats * len(ids))]
    found: list[JobOutcome] = []
    submit_s = 0.0
    for number in range(1, jobs + 1):
        alone_s = rng.lognormvariate(7.0, 1.2)
        wanted = min(len(ids), rng.choice((1, 1, 1, 1, 2, 4)))
        stretch = 1.0 + 0.35 * (seats - 1) * rng.random()
        fails = rng.random() < 0.06 and seats > 1
        attempts: list[Attempt] = []
        for cause in (Cause.GPU_OOM, Cause.SUCCESS) if fails else (Cause.SUCCESS,):
            seat_free_at.sort()
            seats_taken = _on_different_gpus(seat_free_at, wanted)
            ready = attempts[-1].ended_at if attempts else submit_s
            begin = max(ready, *(at for at, _ in seats_taken))
            end = begin + (alone_s * stretch if cause is Cause.SUCCESS else 30.0)
            for seat in seats_taken:
                seat_free_at[seat_free_at.index(seat)] = (end, seat[1])
            on = (ids[n] for _, n in seats_taken)
            attempts.append(attempt(begin, end, *on, cause=cause))
        made = job(submit_s, *attempts, alone_s=alone_s, id=number, name=f"job {number}")
        found.append(made)
        submit_s += rng.expovariate(len(ids) / 3300.0)
    return _measured(found, cluster, [GpuId(id) for id in ids], changed)


def _on_different_gpus(seats: Sequence[tuple[float, int]], wanted: int) -> list[tuple[float, int]]:
    first: dict[int, tuple[float, int]] = {}
    for seat in seats:
        first.setdefault(seat[1], seat)
    return list(first.values())[:wanted]


def _measured(
    jobs: Sequence[JobOutcome], cluster: Cluster, ids: Sequence[GpuId], changed: dict[str, Any]
) -> Outcome:
    """The outcome of these jobs, with a timeline and totals that fit them."""
    nodes = [node for node in cluster.nodes for _ in range(node.gpus)]
    changes: list[tuple[float, int, int, tuple[GpuId, ...]]] = []
    for one in jobs:
        changes.append((one.task.submit_s, 1, 0, ()))
        for n, tried in enumerate(one.attempts, 1):
            changes.append((tried.launched_at, -1, 1, tried.gpus))
            changes.append((tried.ended_at, int(n < len(one.attempts)), -1, tried.gpus))
    residents = dict.fromkeys(ids, 0)
    busy_s, job_s = dict.fromkeys(ids, 0.0), dict.fromkeys(ids, 0.0)
    rows: list[tuple[float, ...]] = []
    queued = running = 0
    before = 0.0
    for at, more_queued, more_running, on in sorted(changes, key=lambda change: change[0]):
        for id, count in residents.items():
            busy_s[id] += (at - before) * (count > 0)
            job_s[id] += (at - before) * min(2, count)  # what two ask for is all there is
        before, queued, running = at, queued + more_queued, running + more_running
        for id in on:
            residents[id] += more_running
        active = sum(min(2, count) for count in residents.values()) / len(ids)
        busy = sum(count > 0 for count in residents.values())
        power = sum(node.kind.idle_w + (node.kind.max_w - 100) * active / 2 for node in nodes)
        of_memory = (active * share for share in (0.33, 0.45, 0.28, 0.2))
        rows.append((at, queued, running, busy, *of_memory, power))
    totals = tuple(
        gpu(
            id,
            node.name,
            node.kind.name,
            energy_j=node.kind.idle_w * before + 150 * job_s[id],
            busy_s=busy_s[id],
            memory_mib_s=0.33 * node.kind.memory_mib * job_s[id],
            sm_active_s=0.45 * job_s[id],
            sm_occupancy_s=0.28 * job_s[id],
            dram_active_s=0.2 * job_s[id],
        )
        for id, node in zip(ids, nodes, strict=True)
    )
    made = {
        "cluster": cluster,
        "gpus": totals,
        "timeline": timeline(rows, *FIELDS),
        "events": 10 * len(jobs),
        "decisions": 2 * len(jobs),
    }
    return outcome(*jobs, **made, **changed)
