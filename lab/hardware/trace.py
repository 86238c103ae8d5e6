"""Stage `trace`: one job mix through the real daemon under several policies and estimators, and
through the simulator with the loads that were measured.

One GPU stands for one of CARMA's four A100s of 40 GB: a process of no job holds what it has beyond
40 GiB. So who shares with whom, what does not fit, and who recovers is real. Not to be seen on one
GPU: which of several a policy chooses, and jobs of several GPUs. Jobs take seconds instead of an
hour, so what does not shrink with them (imports, the first kernel, the window) weighs more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import ROOT
from benchmarks.daemon.carmad import Daemon
from carma_simulator.demo.sharing import argv
from carmad.api.wire import unix
from lab.hardware import loads, policies, trace_page, training
from lab.hardware.interference import EMULATED
from lab.hardware.machine import ballast, has_mps, its_gpu, refuse_beside_another, running
from lab.hardware.mix import HEAVY, Measured, Part, as_published, parts
from lab.hardware.policies import RUNS, Run
from lab.hardware.visit import Entry, Portion, Stage, Visit

PATIENCE_S = 400.0
GRACE_S = 20.0  # by which a run may outlast the visit's time for the stage
LOOK_S = 0.2
SPARE_MIN = 0.2  # a run is not begun if less than it takes is left
LEFT_MIB = 40 * 1024  # of the GPU: an A100 of the paper
MPS_MIB = 1024  # what an MPS server may take on top of the ballast
WARMUP_S = 0.2  # of an emulated job
SLACK_MIB = 1024  # what users declare beyond the measured peak: under MPS it is a limit


@dataclass(frozen=True, slots=True)
class Scale:
    """How far the trace is shrunk."""

    tasks: int
    mean_s: float  # of training alone
    window_s: float  # of the monitor: half a minute, if it shrank with the jobs, would be nothing
    runs: tuple[Run, ...]


VISITED = Scale(len(HEAVY), 4.0, 1.0, RUNS)
REHEARSED = Scale(3, 0.5, 0.2, (*RUNS[:2], Run("magm", "auto")))  # the last looks at scripts


def measure(visit: Visit) -> None:
    its = measured(visit)
    if not its:
        print("trace: stage `loads` has measured nothing yet", file=sys.stderr)
        return
    refuse_beside_another(visit)
    scale = REHEARSED if visit.rehearse else VISITED
    played = parts(its, scale.mean_s, scale.tasks)
    for run in visit.todo(scale.runs, lambda run: run.name, lambda run: 60 * run.minutes):
        print(f"trace: {run.name}", file=sys.stderr, flush=True)
        try:
            found = play(visit, run, played, scale.window_s)
        except Exception as error:  # noqa: BLE001 - the other runs go on
            found = {"failed": f"{type(error).__name__}: {error}"[:300]}
        visit.keep(run.name, found)


def measured(visit: Visit) -> dict[str, Measured]:
    if visit.rehearse:
        return as_published()
    entries, known = visit.entries("loads"), loads.loads(visit)
    return {
        name: Measured(load, entries[name]["step_s"])
        for name, load in known.items()
        if load.memory_mib
    }


def play(visit: Visit, run: Run, played: Sequence[Part], window_s: float) -> Entry:
    """Raises TimeoutError when it takes too long."""
    mps = has_mps(visit)
    end = min(time.monotonic() + PATIENCE_S, visit.until + GRACE_S)
    with (
        ballast(visit, LEFT_MIB) as held,
        running(
            visit,
            policies.settings(run, window_s, mps, held.held_mib + MPS_MIB, held.source),
        ) as daemon,
    ):
        ids = submitted_ahead(visit, daemon, run, played, end) if run.looks else []
        before_j, begun = its_gpu(visit, daemon)["energy_j"], time.time()
        for number, part in enumerate(played):
            in_time(end)
            time.sleep(max(0.0, begun + part.task.submit_s - time.time()))
            if run.looks:
                daemon.post("/v1/release", {"select": str(ids[number])})
            else:
                ids.append(submit(visit, daemon, run, number, part))
        await_end(daemon, end)
        gpu = its_gpu(visit, daemon)
        found = {job["id"]: job for job in daemon.get("/v1/history", attempts=True)["jobs"]}
        jobs = [entry(found[id], part, begun) for id, part in zip(ids, played, strict=True)]
    return {
        "gpu": gpu["name"],
        "memory_mib": gpu["memory_mib"] - held.held_mib,
        "mps": mps,
        "window_s": window_s,
        "interference": EMULATED if visit.rehearse else "",
        "energy_j": None if before_j is None else round(gpu["energy_j"] - before_j),
        "jobs": jobs,
    }


def submitted_ahead(
    visit: Visit, daemon: Daemon, run: Run, played: Sequence[Part], end: float
) -> list[int]:
    """Held, until all have their estimates: a look at a script takes as long as a job does here,
    and of a job of an hour it would not be seen. They are released when they are due."""
    ids = [submit(visit, daemon, run, *each, held=True) for each in enumerate(played)]
    while any(daemon.state(id) == "pending" for id in ids):
        in_time(end)
        time.sleep(LOOK_S)
    return ids


def submit(
    visit: Visit, daemon: Daemon, run: Run, number: int, part: Part, held: bool = False
) -> int:
    task = part.task
    if visit.rehearse:
        words = argv(task, number, WARMUP_S)
    else:
        words = training.command(task.name, steps=part.steps)
    said: dict[str, Any] = {}
    if run.estimator == "declared":
        said["memory_mib"] = task.load.memory_mib + SLACK_MIB
    logs = str(daemon.directory / "%j.out")
    return daemon.run(words, name=task.name, cwd=str(ROOT), stdout=logs, held=held, **said)


def await_end(daemon: Daemon, end: float) -> None:
    while daemon.get("/v1/jobs")["jobs"]:
        in_time(end)
        time.sleep(LOOK_S)


def in_time(end: float) -> None:
    """Raises TimeoutError after `end` (monotonic)."""
    if time.monotonic() > end:
        raise TimeoutError("the jobs did not end in the time that was left")


def entry(job: Any, part: Part, begun: float) -> Entry:
    """What the simulator needs to know of it, and what became of it, in seconds since `begun`."""

    def since(stamp: str | None) -> float | None:
        return round(unix(stamp) - begun, 3) if stamp else None

    return {
        "name": part.task.name,
        "submit_s": part.task.submit_s,
        "alone_s": round(part.task.duration_s, 3),
        "load": asdict(part.task.load),
        "estimate_mib": job["memory"]["estimate_high"] or job["memory"]["estimate_mib"],
        "state": job["state"],
        "evidence": (job["exit"] or {}).get("evidence", ""),
        "attempts": [
            {
                "launched_s": since(each["started_at"]),
                "kernel_s": since(each["first_kernel_at"]),
                "ended_s": since(each["ended_at"]),
                "cause": each["cause"],
                "mode": each["mode"],
            }
            for each in job["attempts"]
        ],
    }


STAGE = Stage(
    "trace",
    "One job mix under several policies and estimators, and in the simulator",
    tuple(Portion(run.name, round(run.minutes + SPARE_MIN, 1)) for run in RUNS),
    ("torch", "timm", "transformers"),
    measure,
    trace_page.blocks,
    needs=("loads",),
)
