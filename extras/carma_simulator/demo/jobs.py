"""The jobs that `carma demo` runs: the CARMA paper's, or those of a trace, in about a minute; and
which of them a scheduler would have lost that shares GPUs without looking at their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carma_simulator import hardware
from carma_simulator.experiment import Experiment, Task, Trace
from carma_simulator.run import simulate
from carma_simulator.traces import generators, sources
from carmad.config import Recovery, Settings
from carmad.core.jobs.states import JobState
from carmad.errors import CarmaError
from carmad.readable import clean
from cli import output
from cli.problems import Problem

GPUS = "3xDGX-Station-A100-40GB"  # the CARMA paper's
LASTS_S = 45.0  # with one job per GPU
SHORTEST_S = 0.2  # of a job: it has to be seen by the daemon
NAMED = 5  # jobs that are named


def demo_trace(seed: int = 11, jobs: int = 20, compress: float = 440.0) -> tuple[Task, ...]:
    """Jobs as in the first trace of the CARMA evaluation: `jobs` submissions in order of time,
    `compress` times as fast as the paper's.

    Durations, numbers of GPUs and memory are published. The load on the GPUs is read off the
    paper's figures for the larger models, and assumed for the light ones
    (`carma_simulator.catalogue`): do not quote the latter as measured.

    With the defaults and one job per GPU, the paper's three A100s take three quarters of a minute.
    Simulated with 120 seeds, magm saved 22 % of that in the median, as it does with the default
    seed, and 27 % of the mean time from submission to end (24 %). With that seed, some job runs
    out of memory however the delays are set. A replay shows how CARMA behaves, not how much it
    gains.
    """
    return hasten(generators.carma_1(seed, jobs).tasks, compress)


def own_jobs(source: str, jobs: int, gpus: str) -> tuple[Task, ...]:
    """The first `jobs` of a trace that fit these GPUs, as fast as they were. Raises CarmaError."""
    cluster = hardware.parse(gpus)
    trace = sources.load(source)
    if trace.rejected:
        first = trace.rejected[0]
        rows = f"rows of the trace that are left out: {len(trace.rejected):,}"
        output.note(f"{rows}; line {first.line}: {clean(first.why)}")
    most = sum(node.gpus for node in cluster.nodes)
    mib = max(unit.memory_mib for node in cluster.nodes for unit in node.units)
    fitting = [t for t in trace.tasks if t.gpus <= most and t.load.memory_mib <= mib]
    if len(fitting) < len(trace.tasks):
        output.note(f"{len(trace.tasks) - len(fitting):,} jobs do not fit {gpus}; see --gpus")
    if not fitting:
        raise Problem(f"{source} has no job that fits {gpus}", "choose others with --gpus")
    chosen = fitting[:jobs]
    begin_s = chosen[0].submit_s
    return tuple(replace(task, submit_s=task.submit_s - begin_s) for task in chosen)


def hasten(tasks: Sequence[Task], factor: float) -> tuple[Task, ...]:
    """The tasks, `factor` times as fast."""
    return tuple(
        replace(task, submit_s=task.submit_s / factor, duration_s=task.duration_s / factor)
        for task in tasks
    )


def in_a_minute(tasks: Sequence[Task], gpus: str) -> tuple[tuple[Task, ...], float]:
    """The tasks, so fast that they take `LASTS_S` with one job per GPU; and how fast that is."""
    lasts_s = simulate(_experiment(tasks, gpus, Settings(policy="exclusive"))).makespan_s
    factor = max(1.0, lasts_s / LASTS_S)
    faster = hasten(tasks, factor)
    return tuple(
        replace(task, duration_s=max(SHORTEST_S, task.duration_s)) for task in faster
    ), factor


def lost_without_looking(tasks: Sequence[Task], gpus: str) -> list[Task]:
    """Those that run out of GPU memory, simulated, when GPUs are shared in turn whatever is on
    them, and nobody runs a job again."""
    settings = Settings(policy="rr", recovery=Recovery(retries=0))
    outcome = simulate(_experiment(tasks, gpus, settings))
    return [job.task for job in outcome.jobs if job.state is JobState.OUT_OF_MEMORY]


def _experiment(tasks: Sequence[Task], gpus: str, settings: Settings) -> Experiment:
    return Experiment(Trace("demo", tuple(tasks)), hardware.parse(gpus), settings)


def loss(tasks: Sequence[Task], gpus: str) -> str:
    """In a sentence; "" if it cannot be simulated."""
    try:
        lost = lost_without_looking(tasks, gpus)
    except CarmaError:
        return ""
    how = "Shared in turn, without a look at their memory (simulated)"
    if not lost:
        return f"{how}, none of these jobs would have crashed."
    names = ", ".join(dict.fromkeys(clean(task.name) for task in lost[:NAMED]))
    more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    return f"{how}, {len(lost)} of the {len(tasks)} jobs would have crashed: {names}{more}."
