"""How soon a node's carmad knows that Slurm ended a job."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import ClassVar

from benchmarks.harness import columns
from lab.slurm.ways import GPUS, SETTINGS, WithCarma
from tests.daemon import CARMA, OVER, Carmad, train
from tests.waiting import until

ROUNDS = 3
SLURMS = {"scancel": ("scancel",), "scontrol requeue": ("scontrol", "requeue")}


class AsUsual(WithCarma):
    """Unlike in the compressed trace."""

    settings: ClassVar[Mapping[str, str]] = {
        **SETTINGS,
        "CARMA_MONITOR__PERIOD_S": "1",
        "CARMA_MONITOR__WINDOW_S": "5",
    }


@dataclass(frozen=True, slots=True)
class End:
    how: str
    state: str  # the job's in CARMA, before
    after_s: float  # since Slurm's command was called


def measured(folder: Path) -> list[End]:
    """On every node, jobs have all GPUs for themselves, and as many wait; then Slurm ends them, one
    after the other."""
    way = AsUsual(folder)
    with way.runs():
        return [end for _ in range(ROUNDS) for how in SLURMS for end in _round(way, how)]


def _round(way: WithCarma, how: str) -> Iterator[End]:
    job = train(seconds=3600, warmup=0)
    command = shlex.join([*CARMA, "run", "--exclusive", "--gpu-mem=4G", "--", *job])
    every = GPUS * len(way.cluster.nodes)
    for state in ("running", "queued"):
        for node in way.cluster.nodes:
            for _ in range(GPUS):
                words = (f"--nodelist={node}", "--gres=gpumem:4", f"--wrap=exec {command}")
                way.cluster.sbatch(*words)
        until(partial(_jobs, way, state), f"all {state}", wanted=lambda jobs: len(jobs) == every)
    for state in ("queued", "running"):
        for daemon, id, number in _jobs(way, state):
            begun = time.monotonic()
            way.cluster.run(*SLURMS[how], str(number))
            until(partial(daemon.job, id), "its end", wanted=lambda job: job["state"] in OVER)
            yield End(how, state, time.monotonic() - begun)
            way.cluster.run("scancel", "-f", str(number))
    until(lambda: not way.cluster.run("squeue", "-h"), "the end of all")


def _jobs(way: WithCarma, state: str) -> list[tuple[Carmad, int, int]]:
    """Which daemon's, and the number in CARMA and in Slurm."""
    return [
        (daemon, job["id"], job["slurm_job"])
        for daemon in way.carmads.values()
        for job in daemon.get(f"/v1/jobs?states={state}")["jobs"]
    ]


def table(found: Iterable[End]) -> str:
    times: dict[tuple[str, str], list[float]] = {}
    for end in found:
        times.setdefault((end.how, end.state), []).append(end.after_s)
    return columns(
        times.items(),
        ("ended by", "{0[0][0]}"),
        ("the job was", "{0[0][1]}"),
        ("jobs", lambda row: str(len(row[1]))),
        ("known after, median", lambda row: f"{median(row[1]):.2f} s"),
        ("longest", lambda row: f"{max(row[1]):.2f} s"),
        text=(0, 1),
    )
