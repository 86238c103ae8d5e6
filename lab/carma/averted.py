"""How many out-of-memory crashes suspending a job in time averts (`core.placing.relief`), on the
CARMA paper's traces without estimates, time-sliced: under MPS, the driver cannot suspend.

How fast memory grows after the first kernel is assumed: a quarter is there at once, the rest comes
evenly. So each result is given for several lengths of that. Suspending costs what it does by
default, as measured on an H100.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median

from benchmarks.harness import Report, columns
from carma_simulator import metrics
from carma_simulator.experiment import Experiment, Outcome, Physics, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carmad.config import Collocation, Settings, Suspending
from lab.carma.paper import DEFAULT, GPUS, MAGM, ORDERS, RR, TRACE, Run, in_orders
from lab.data import DATA
from lab.main import main

TRACES = {
    "trace 1": (TRACE, GPUS),
    "heavy-60": (DATA / "carma" / "heavy60.csv", "4xDGX-Station-A100-40GB"),
}
GROWTH_S = (0.0, 2.0, 5.0, 10.0, 30.0)
AMPLE_MIB = 500_000  # of the host's memory: a DGX Station has 512 GB


@dataclass(frozen=True, slots=True)
class Averted:
    """Sums over the orders of a trace, and medians of the ratios to the same run without."""

    trace: str
    policy: str
    growth_s: float
    crashes: int
    left: int
    at_first: int  # of those left: of a job that had just begun to allocate
    suspensions: int
    makespan: float
    jct: float

    @property
    def share(self) -> float:
        return 1 - self.left / self.crashes if self.crashes else 0.0


def measure() -> Report:
    found = [
        _averted(name, run, growth_s)
        for name, run, growth_s in product(TRACES, (RR, MAGM), GROWTH_S)
    ]
    return Report(
        "Crashes averted by suspending jobs, simulated",
        [
            columns(
                found,
                ("trace", "{0.trace}"),
                ("policy", "{0.policy}"),
                ("grows for", "{0.growth_s:.0f} s"),
                ("crashes", "{0.crashes}"),
                ("with suspension", "{0.left}"),
                ("averted", lambda each: f"{each.share:.0%}" if each.crashes else "-"),
                ("of those left, at the first allocation", "{0.at_first}"),
                ("suspensions", "{0.suspensions}"),
                ("makespan", "{0.makespan:.3f}"),
                ("mean JCT", "{0.jct:.3f}"),
                text=(0, 1),
            ),
            "A job whose memory is there at once cannot be suspended in time, and neither can one"
            " that comes to a GPU whose memory is full: its first allocation fails.",
        ],
        {"averted": [asdict(each) for each in found]},
        [
            f"{ORDERS} orders of each trace: sums, and medians of ratios; no estimates, no MPS;"
            f" interference `{DEFAULT}`; rr without preconditions, magm with 5 GB free"
        ],
    )


def _averted(name: str, run: Run, growth_s: float) -> Averted:
    path, gpus = TRACES[name]
    orders = in_orders(load(f"carma:{path}"))
    without = [_simulated(order, gpus, run, growth_s, 0) for order in orders]
    with_it = [_simulated(order, gpus, run, growth_s, AMPLE_MIB) for order in orders]
    figures = [
        (metrics.figures(a), metrics.figures(b)) for a, b in zip(without, with_it, strict=True)
    ]
    return Averted(
        name,
        run.policy,
        growth_s,
        sum(a.oom_crashes for a, _ in figures),
        sum(b.oom_crashes for _, b in figures),
        sum(at_first(outcome) for outcome in with_it),
        sum(outcome.suspensions for outcome in with_it),
        median(b.makespan_s / a.makespan_s for a, b in figures if a.makespan_s and b.makespan_s),
        median(b.jct.mean / a.jct.mean for a, b in figures if a.jct and b.jct),
    )


def _simulated(trace: Trace, gpus: str, run: Run, growth_s: float, host_mib: int) -> Outcome:
    settings = Settings(
        policy=run.policy,
        preconditions=run.preconditions,
        collocation=Collocation(mps=False),
        suspend=replace(Suspending(), host_memory_mib=host_mib, moves=True),
    )
    physics = Physics(growth_s=growth_s)
    return simulate(
        Experiment(trace, parse(gpus), settings, run.estimator, DEFAULT, physics=physics)
    )


def at_first(outcome: Outcome) -> int:
    """Attempts that ran out of memory before they had trained."""
    return sum(
        attempt.cause == "gpu_oom" and attempt.ready_at is None
        for job in outcome.jobs
        for attempt in job.attempts
    )


if __name__ == "__main__":
    main("carma_averted", measure, TRACE)
