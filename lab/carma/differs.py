"""Where CARMA differs from its paper on purpose, with and without: the same tasks of the paper's
first trace in ten orders; and, as one user has all of these, ten made-up days of a laboratory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.harness import Report, columns
from carma_simulator.experiment import Experiment, Outcome, Trace
from carma_simulator.hardware import parse
from carma_simulator.metrics import Figures, figures
from carma_simulator.run import simulate
from carma_simulator.traces import sources
from carmad.config import Preconditions, Risk, Settings
from carmad.plugin import GpuId, View
from lab.carma.paper import DEFAULT, FREE_5GB, GPUS, NONE, ORDERS, TRACE, in_orders, spread
from lab.data import DATA
from lab.main import main
from lab.policies import simulate_with
from policies.builtin import in_order
from policies.filters import preconditions
from policies.ranked import Ranked, RoundRobin
from policies.rules import Fit

PRINTED = Risk(mean=2 / 7, median=0.0, p95=3 / 7, ema=2 / 7)  # .20, .30, .20: they add up to .70
Make = Callable[[Trace], Outcome]


class FixedCycle(RoundRobin):
    """The next GPU, whether it is idle or not."""

    def choose(self, fits: Sequence[Fit], gpus: int, view: View) -> tuple[GpuId, ...]:
        last = view.last_placed
        found = last is not None and last in view.node_of and self._next(fits, gpus, view, last)
        return found or Ranked.choose(self, fits, gpus, view)


@dataclass(frozen=True, slots=True)
class Difference:
    paper: str
    ours: str
    traces: str
    makespan: str
    jct: str
    crashes: str


def measure() -> Report:
    orders = in_orders(sources.load(f"carma:{TRACE}"))
    days = [sources.load(f"generate:lab?seed={seed}") for seed in range(ORDERS)]
    weights = "risk: the printed weights, scaled to add up to 1", "the artifact's, with the median"
    queue = "one queue, by arrival", "as the daemon: backfilling, fair share"
    rows = [
        compare("rr: a fixed cycle", "idle GPUs first", orders, _fixed, _made("rr", NONE)),
        compare(*weights, orders, _made("magm", FREE_5GB, risk=PRINTED), _made("magm", FREE_5GB)),
        compare(*queue, days, _made("magm", FREE_5GB), _made("magm", FREE_5GB, daemon=True)),
    ]
    table = columns(
        rows,
        ("paper", "{0.paper}"),
        ("CARMA", "{0.ours}"),
        ("traces", "{0.traces}"),
        ("makespan", "{0.makespan}"),
        ("mean JCT", "{0.jct}"),
        ("OOM crashes", "{0.crashes}"),
        text=range(6),
    )
    about = "CARMA's way against the paper's: median and range of the changes; sums of crashes."
    return Report("CARMA's differences from its paper", [about, table], {"differences": rows})


def compare(paper: str, ours: str, traces: Sequence[Trace], theirs: Make, own: Make) -> Difference:
    pairs = [(figures(theirs(trace)), figures(own(trace))) for trace in traces]

    def change(value: Callable[[Figures], float]) -> str:
        return spread(100 * (value(after) / value(before) - 1) for before, after in pairs)

    crashes = [sum(pair[n].oom_crashes for pair in pairs) for n in (0, 1)]
    return Difference(
        paper,
        ours,
        traces[0].name,
        change(lambda run: run.makespan_s or 0.0),
        change(lambda run: run.jct.mean if run.jct else 0.0),
        f"{crashes[0]} → {crashes[1]}",
    )


def _experiment(policy: str, required: Preconditions) -> Experiment:
    settings = Settings(policy=policy, preconditions=required)
    return Experiment(Trace("", ()), parse(GPUS), settings, "none", DEFAULT)


def _fixed(trace: Trace) -> Outcome:
    made = replace(_experiment("rr", NONE), trace=trace)
    return simulate_with(
        FixedCycle("rr", preconditions("rr", made.settings), in_order, idle_first=False), made
    )


def _made(
    policy: str, required: Preconditions, risk: Risk | None = None, daemon: bool = False
) -> Make:
    base = replace(_experiment(policy, required), as_daemon=daemon)
    settings = replace(base.settings, risk=risk or base.settings.risk)
    return lambda trace: simulate(replace(base, settings=settings, trace=trace))


if __name__ == "__main__":
    main("carma_differs", measure, DATA)
