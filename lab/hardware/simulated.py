"""The runs of stage `trace` in the simulator, from what was kept of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from unittest import mock

from carma_simulator import interference
from carma_simulator.experiment import Experiment, Load, Outcome, Physics, Task, Trace
from carma_simulator.hardware import Cluster, Node
from carma_simulator.recorded import kind_of
from carma_simulator.run import simulate
from carmad.core.jobs.attempt import Cause
from carmad.core.jobs.states import JobState
from lab.hardware import policies
from lab.hardware.interference import Chosen
from lab.hardware.policies import Run
from lab.hardware.visit import Entry
from lab.simulator.emulation import Overheads

CHOSEN = "chosen"  # the interference
SAID = "as said"  # the estimates that the daemon's estimator gave of these very jobs


@dataclass(frozen=True, slots=True)
class Attempt:
    """Of a job, in the daemon; seconds since the begin."""

    launched_s: float
    kernel_s: float | None
    ended_s: float
    cause: str
    mode: str | None


def attempts(job: Entry) -> list[Attempt]:
    return [Attempt(**each) for each in job["attempts"]]


def overheads(alone: Entry, runs: Iterable[Entry]) -> Overheads:
    """Of jobs that nobody shared a GPU with: `alone` is the exclusive run. The time that one takes
    to run out of memory is from all runs. Raises ValueError if no job of `alone` ended well."""
    one_each = [
        (job, attempts(job)[0])
        for job in alone["jobs"]
        if len(job["attempts"]) == 1 and job["state"] == JobState.SUCCEEDED
    ]
    kernels = [a.kernel_s - a.launched_s for _, a in one_each if a.kernel_s is not None]
    first_kernel_s = median(kernels) if kernels else 0.0
    end_s = median(
        a.ended_s - a.launched_s - first_kernel_s - job["alone_s"] for job, a in one_each
    )
    crashed = [
        a.ended_s - a.launched_s - first_kernel_s
        for run in runs
        for job in run["jobs"]
        for a in attempts(job)
        if a.cause == Cause.GPU_OOM
    ]
    return Overheads(first_kernel_s, end_s, max(0.0, median(crashed)) if crashed else 0.0)


def simulated(run: Run, kept: Entry, measured: Overheads, chosen: Chosen) -> Outcome:
    """Each job trains for the time that its steps take alone, as stage `loads` measured them."""
    kind = replace(kind_of(kept["gpu"], kept["memory_mib"]), memory_mib=kept["memory_mib"])
    trace = Trace("heavy", tuple(_task(job, measured.end_s) for job in kept["jobs"]))
    said = any(task.estimates for task in trace.tasks)
    experiment = Experiment(
        trace,
        Cluster((Node("node0", kind, 1),)),
        policies.settings(run, kept["window_s"], kept["mps"]),
        SAID if said else "none",
        CHOSEN,
        physics=Physics(first_kernel_s=measured.first_kernel_s, oom_s=measured.oom_s),
    )
    with mock.patch.dict(interference.MODELS, {CHOSEN: lambda: chosen.model}):
        return simulate(experiment)


def _task(job: Entry, end_s: float) -> Task:
    mib = job["estimate_mib"]
    return Task(
        name=job["name"],
        submit_s=job["submit_s"],
        duration_s=max(0.01, job["alone_s"] + end_s),
        load=Load(**{**job["load"], "model": job["name"]}),  # by which interference knows it
        estimates=((SAID, mib),) if mib else (),
    )
