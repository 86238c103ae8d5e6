"""Where CARMA differs from the five papers on purpose, simulated both ways: the first trace of the
CARMA paper in ten orders, and made-up traces on one busy server of eight GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.harness import Report, markdown_table
from carma_simulator.experiment import Experiment, Outcome, Trace
from carma_simulator.hardware import parse
from carma_simulator.metrics import Figures, figures
from carma_simulator.run import simulate
from carma_simulator.traces import sources
from carmad.config import Monitor, Preconditions, Profiling, Risk, Settings
from carmad.plugin import GpuId, Policy, View
from lab.carma.paper import DEFAULT, FREE_5GB, GPUS, NONE, TRACE, in_orders, spread
from lab.data import DATA
from lab.main import main
from lab.policies import simulate_with
from policies.builtin import in_order
from policies.filters import preconditions
from policies.lucid.policy import Lucid
from policies.ranked import Ranked, RoundRobin
from policies.rules import Fit

SERVER, WIDEST = "8xA100-40GB", 8
DAYS = SEEDS = 5
LOAD = 0.9  # of the server's GPU time until the last submission
PRINTED = Risk(mean=2 / 7, median=0.0, p95=3 / 7, ema=2 / 7)  # .20, .30, .20: they add up to .70
APART = Profiling(gpus=1)
HEADINGS = ("policy", "the paper's", "CARMA's", "traces", "makespan", "mean JCT", "OOM crashes")
Make = Callable[[Trace], Outcome]


class FixedCycle(RoundRobin):
    """The next GPU, whether it is idle or not."""

    def choose(self, fits: Sequence[Fit], gpus: int, view: View) -> tuple[GpuId, ...]:
        last = view.last_placed
        found = last is not None and last in view.node_of and self._next(fits, gpus, view, last)
        return found or Ranked.choose(self, fits, gpus, view)


def measure() -> Report:
    rows = [*_of_carma(), *_of_others()]
    about = "From the paper's way to CARMA's: median and range of the changes; sums of crashes."
    blocks = [about, markdown_table(HEADINGS, rows, numbers=())]
    return Report("CARMA's differences from the papers", blocks, {"differences": rows})


def _of_carma() -> Iterator[list[str]]:
    orders = in_orders(sources.load(f"carma:{TRACE}"))
    rr, magm = way("rr", GPUS, required=NONE), way("magm", GPUS, required=FREE_5GB)
    cycle = FixedCycle("rr", preconditions("rr", Settings(preconditions=NONE)), in_order)
    fixed = way("rr", GPUS, required=NONE, policy=cycle)
    yield compare("rr", "a fixed cycle", "idle GPUs first", orders, fixed, rr)
    printed = way("magm", GPUS, required=FREE_5GB, risk=PRINTED)
    yield compare("magm", "printed weights, scaled to 1", "the artifact's", orders, printed, magm)
    days = [sources.load(f"generate:lab?seed={seed}") for seed in range(DAYS)]
    daemon = way("magm", GPUS, required=FREE_5GB, as_daemon=True)
    yield compare("magm", "one queue, by arrival", "backfilling, fair share", days, magm, daemon)


def _of_others() -> Iterator[list[str]]:
    made = {"lucid": "philly?tasks=150", "castor": "philly?tasks=150", "cuckoo": "cuckoo?tasks=120"}
    traces = {name: [_busy(f"{of}&seed={n}") for n in range(SEEDS)] for name, of in made.items()}
    for name, each in traces.items():
        apart = way(name, profiling=APART)
        yield compare(name, "profiled on a GPU apart", "in place", each, apart, way(name))
        at_once = way(name, monitor=Monitor(window_s=1.0))
        yield compare(name, "a pair at once", "once settled", each, at_once, way(name))
    fixed = way("lucid", profiling=APART, policy=Lucid(time_aware=False))
    lent = way("lucid", profiling=APART)
    yield compare("lucid", "a fixed profiler", "idle GPUs are lent", traces["lucid"], fixed, lent)


def _busy(source: str) -> Trace:
    """Without jobs too wide for the server, and so close together that they ask for LOAD of it."""
    trace = sources.load(f"generate:{source}")
    tasks = [task for task in trace.tasks if task.gpus <= WIDEST]
    gpu_s = sum(task.gpus * task.duration_s for task in tasks)
    closer = gpu_s / WIDEST / LOAD / tasks[-1].submit_s
    moved = tuple(replace(task, submit_s=closer * task.submit_s) for task in tasks)
    return replace(trace, tasks=moved)


def way(
    name: str,
    gpus: str = SERVER,
    *,
    required: Preconditions | None = None,
    policy: Policy | None = None,
    as_daemon: bool = False,
    **settings: Any,
) -> Make:
    """Simulates a trace. `settings`: those that are not the default."""
    chosen = Settings(policy=name, preconditions=required, **settings)
    base = Experiment(Trace("", ()), parse(gpus), chosen, "none", DEFAULT)
    base = replace(base, as_daemon=as_daemon)

    def make(trace: Trace) -> Outcome:
        made = replace(base, trace=trace)
        return simulate_with(policy, made) if policy else simulate(made)

    return make


def compare(
    policy: str, paper: str, ours: str, traces: Sequence[Trace], theirs: Make, own: Make
) -> list[str]:
    pairs = [(figures(theirs(trace)), figures(own(trace))) for trace in traces]

    def change(value: Callable[[Figures], float]) -> str:
        return spread(100 * (value(after) / value(before) - 1) for before, after in pairs)

    crashes = " → ".join(str(sum(pair[n].oom_crashes for pair in pairs)) for n in (0, 1))
    like = f"{len(traces)} like {traces[0].name}"
    makespan = change(lambda run: run.makespan_s or 0.0)
    jct = change(lambda run: run.jct.mean if run.jct else 0.0)
    return [policy, paper, ours, like, makespan, jct, crashes]


if __name__ == "__main__":
    main("differs", measure, DATA)
