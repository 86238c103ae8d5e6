"""The same question as `averted`, asked of the daemon: real processes on emulated GPUs whose memory
grows, whose allocations fail, and which the emulated driver suspends.

The trace's times are divided by `FASTER`, and what suspending costs by less; a helper process that
calls the driver takes as long as it takes. With and without suspension run at the same time, so
both find the same machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median

from benchmarks.harness import Report, columns
from carma_simulator import metrics
from carma_simulator.experiment import Outcome, Trace
from carma_simulator.traces.sources import load
from carmad.config import Collocation, Limits, Monitor, Settings, Suspending
from carmad.gpu.emulated_driver import SPEED
from carmad.metrics import exporter
from carmad.metrics.declared import SUSPENSIONS
from lab.carma.averted import AMPLE_MIB, TRACES, at_first
from lab.carma.paper import RR, in_orders
from lab.main import main
from lab.processes import in_processes
from lab.simulator.emulation import Emulation

FASTER = 120.0
SUSPENDS_FASTER = 10.0
PERIOD_S, WINDOW_S = 0.5, 3.0
RAMP_S, WARMUP_S = 2.5, 1.0
ORDERS = 5


@dataclass(frozen=True, slots=True)
class Averted:
    """One order of a trace, without suspension and with it."""

    trace: str
    crashes: int
    left: int
    at_first: int  # of those left: of a job that had just begun to allocate
    suspensions: int
    makespan: float
    jct: float
    unfinished: int


def measure() -> Report:
    found = [
        _compare(name, order)
        for name, (path, _) in TRACES.items()
        for order in in_orders(load(f"carma:{path}"), ORDERS)
    ]
    rows = [(name, [each for each in found if each.trace == name]) for name in TRACES]
    return Report(
        "Crashes averted by suspending jobs, on emulated GPUs",
        [
            columns(
                rows,
                ("trace", "{0[0]}"),
                ("crashes", lambda row: f"{_sum(row[1], 'crashes')}"),
                ("with suspension", lambda row: f"{_sum(row[1], 'left')}"),
                (
                    "averted",
                    lambda row: f"{1 - _sum(row[1], 'left') / _sum(row[1], 'crashes'):.0%}",
                ),
                (
                    "of those left, at the first allocation",
                    lambda row: f"{_sum(row[1], 'at_first')}",
                ),
                ("suspensions", lambda row: f"{_sum(row[1], 'suspensions')}"),
                ("unfinished", lambda row: f"{_sum(row[1], 'unfinished')}"),
                ("makespan", lambda row: f"{median(each.makespan for each in row[1]):.3f}"),
                ("mean JCT", lambda row: f"{median(each.jct for each in row[1]):.3f}"),
                text=(0,),
            ),
            "Most of what is left fails within .2 s of its start, on a GPU that is full already: rr"
            " does not look at memory, and no reading could have shown that job.",
        ],
        {"averted": [asdict(each) for each in found]},
        [
            f"{ORDERS} orders of each trace: sums, and medians of ratios; rr without"
            f" preconditions, no estimates, no MPS; the traces' times divided by {FASTER:g}, the"
            f" time to move memory by {SUSPENDS_FASTER:g}; a reading every {PERIOD_S:g} s, memory"
            f" grows for {RAMP_S:g} s"
        ],
    )


def _sum(found: Iterable[Averted], what: str) -> int:
    return sum(getattr(each, what) for each in found)


def _compare(name: str, trace: Trace) -> Averted:
    tasks = (
        replace(task, submit_s=task.submit_s / FASTER, duration_s=task.duration_s / FASTER)
        for task in trace.tasks
    )
    quick = replace(trace, tasks=tuple(tasks))
    replay = partial(_replay, quick, TRACES[name][1])
    without, with_it = in_processes(replay, (0, AMPLE_MIB), lambda _: f"{name}")
    before, after = metrics.figures(without[0]), metrics.figures(with_it[0])
    assert before.makespan_s and after.makespan_s and before.jct and after.jct
    return Averted(
        name,
        before.oom_crashes,
        after.oom_crashes,
        at_first(with_it[0]),
        with_it[1],
        after.makespan_s / before.makespan_s,
        after.jct.mean / before.jct.mean,
        after.unfinished,
    )


def _replay(trace: Trace, gpus: str, host_mib: int) -> tuple[Outcome, int]:
    """Also how often a job was suspended."""
    usual = Suspending()
    suspend = replace(
        usual,
        host_memory_mib=host_mib,
        moves=True,
        out_mib_s=usual.out_mib_s * SUSPENDS_FASTER,
        in_mib_s=usual.in_mib_s * SUSPENDS_FASTER,
    )
    settings = Settings(
        policy=RR.policy,
        estimator="declared",
        preconditions=RR.preconditions,
        collocation=Collocation(mps=False),
        monitor=Monitor(period_s=PERIOD_S, window_s=WINDOW_S),
        limits=Limits(kill_grace_s=1.0),
        suspend=suspend,
    )
    with Emulation(gpus, settings, WARMUP_S, ramp=RAMP_S) as emulation:
        gib_s = suspend.out_mib_s / 1024
        (emulation.directory / "emulated" / SPEED).write_text(f"{gib_s}")
        outcome = emulation.replay(trace, declared=False)
        return outcome, _suspensions(emulation)


def _suspensions(emulation: Emulation) -> int:
    page = exporter.Daemon(emulation.socket).read_page()
    found = re.search(rf"^{SUSPENSIONS.name}\S* (\S+)$", page, re.MULTILINE)
    return round(float(found[1])) if found else 0


if __name__ == "__main__":
    main("carma_averted_emulated", measure, TRACES["trace 1"][0])
