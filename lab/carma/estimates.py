"""What each memory estimator is worth to the scheduler.

The CARMA paper's first trace in the simulator, magm and lug, with what the paper's estimators said
of its tasks, with our trace estimator's safe numbers (`lab.memory.carma` writes them), with
the truth, and with nothing. The order of the same tasks is then shuffled, as one trace is chance.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.harness import Report, markdown_table
from carma_simulator import metrics
from carma_simulator.experiment import Trace
from carma_simulator.traces.sources import load
from lab import RESULTS
from lab.carma.paper import FREE_5GB, GPUS, KNOWN, TRACE, in_orders, simulated
from lab.carma.paper import Run as Simulated
from lab.main import main

ORDERS = 20


@dataclass(frozen=True, slots=True)
class Run:
    policy: str
    estimator: str
    risk_test: bool = True

    @property
    def name(self) -> str:
        return f"{self.policy} {self.estimator}{'' if self.risk_test else ', no test of risk'}"


@dataclass(frozen=True, slots=True)
class Result:
    makespan_s: float
    oom_crashes: int


DECLARED = "trace, rest declared"
ESTIMATORS = ("none", "horus", "faketensor", "gpumemnet", "trace", DECLARED, "oracle")
ALONE = Run("exclusive", "none")
RUNS = tuple(
    Run(policy, estimator, risk_test)
    for risk_test in (True, False)
    for policy in ("magm", "lug")
    for estimator in ESTIMATORS
)


def measure() -> Report:
    first = with_our_estimates(load(f"carma:{TRACE}"), our_estimates())
    orders = in_orders(first, ORDERS)
    return Report(
        "Memory estimators in the scheduler",
        [
            "## The trace as it is",
            _table(orders[:1]),
            f"## The same tasks in {ORDERS} orders: means",
            _table(orders),
        ],
        {"runs": {run.name: [outcome(order, run) for order in orders] for run in (ALONE, *RUNS)}},
        NOTES,
    )


NOTES = (
    f"the CARMA paper's first trace, 60 tasks, {GPUS}, MPS with one server for the node,"
    " interference `conserving`",
    "estimates of horus, faketensor and gpumemnet are the paper's own; none: 5 GB must"
    " be free; with an estimate: 2 GB beyond it (the paper's 4.2 to 4.4)",
    "gain: how much shorter the makespan is than with exclusive GPUs; kept: of the"
    " oracle's gain. A job that an estimator has no number for is placed wherever the"
    " test of risk lets it be",
    f"{DECLARED}: of what could not be traced (Mask R-CNN, U-Net, DLRM, XLNet: see"
    " memory_carma.md) the owner states the true need, as he would have to",
    "with the test of risk, busy GPUs take no second job whatever is free; without"
    " it, memory alone decides",
)


def our_estimates() -> dict[str, int]:
    """The trace estimator's safe number of each of the paper's tasks that it has one for."""
    tasks = json.loads((RESULTS / "memory_carma.json").read_text())["tasks"]
    return {task["task"]: task["safe_mib"] for task in tasks}


def with_our_estimates(trace: Trace, ours: Mapping[str, int]) -> Trace:
    """What could not be traced is declared rightly by its owner under one of the two names."""
    tasks = []
    for task in trace.tasks:
        mib = ours.get(task.name)
        traced = () if mib is None else (("trace", mib),)
        declared = (DECLARED, task.load.memory_mib if mib is None else mib)
        tasks.append(replace(task, estimates=(*task.estimates, *traced, declared)))
    return replace(trace, tasks=tuple(tasks))


@cache
def outcome(trace: Trace, run: Run) -> Result:
    conditions = FREE_5GB if run.estimator == "none" else KNOWN
    conditions = replace(conditions, utilization=run.risk_test)
    made = simulated(trace, Simulated("", run.policy, run.estimator, conditions))
    return Result(made.makespan_s, metrics.figures(made).oom_crashes)


def _table(orders: Sequence[Trace]) -> str:
    rows = []
    for run in RUNS:
        results = [outcome(order, run) for order in orders]
        gain, oracle = _gain(orders, run), _gain(orders, replace(run, estimator="oracle"))
        rows.append(
            (
                *("yes" if run.risk_test else "no", run.policy, run.estimator),
                f"{statistics.mean(result.makespan_s for result in results) / 3600:.2f}",
                f"{100 * gain:.1f} %",
                f"{100 * gain / oracle:.0f} %",
                f"{statistics.mean(result.oom_crashes for result in results):.2g}",
            )
        )
    headings = (
        *("test of risk", "policy", "estimator", "makespan h", "gain"),
        *("of the oracle's", "OOM crashes"),
    )
    return markdown_table(headings, rows, numbers=range(3, 7))


def _gain(orders: Sequence[Trace], run: Run) -> float:
    return statistics.mean(
        1 - outcome(order, run).makespan_s / outcome(order, ALONE).makespan_s for order in orders
    )


if __name__ == "__main__":
    main("estimates", measure, TRACE)
