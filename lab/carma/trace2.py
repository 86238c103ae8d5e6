"""The CARMA paper's second trace, on which nothing here was tuned or tried before: paper and ours.

Of its figures (6, 11 and 12, bars without numbers) the text names one: LUG with Horus's estimates
shortens the makespan by 30 %, followed by MAGM with recovery only.
"""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.harness import Report, columns
from carma_simulator.traces.sources import load
from lab import compare
from lab.carma.paper import (
    BAND,
    DEFAULT,
    GPUS,
    LUG,
    MAGM,
    ORACLE,
    RR,
    SECOND,
    Assumed,
    Run,
    compared,
    in_orders,
    spread,
)
from lab.carma.paper import KNOWN as ESTIMATED
from lab.compare import Quote
from lab.main import main

BEST = Run("horus", "lug", "horus", ESTIMATED)
RUNS = (ORACLE, BEST, MAGM, LUG, RR)
PAPER = -30.0  # %


def measure() -> Report:
    trace = load(f"carma:{SECOND}")
    orders = in_orders(trace)
    under = {
        model: {
            run: [compared(order, run, Assumed(interference=model)) for order in orders]
            for run in RUNS
        }
        for model in BAND
    }
    found = {run: results[0] for run, results in under[DEFAULT].items()}
    changes = {
        model: [result.makespan_change for result in results[BEST]]
        for model, results in under.items()
    }
    ours = changes[DEFAULT]
    return Report(
        "The CARMA paper's second trace, simulated",
        [
            columns(
                found.items(),
                ("run", "{0[0].name}"),
                ("makespan", "{0[1].makespan_change:+.1f} %"),
                ("energy", "{0[1].energy_change:+.1f} %"),
                ("SMACT", "{0[1].smact_change:+.1f} %"),
                ("SM-busy seconds kept", "{0[1].busy_kept:.1f} %"),
                ("OOM", "{0[1].oom_crashes}"),
            ),
            compare.table([Quote(f"makespan, {BEST.name}", PAPER, ours[0], "%", spread(ours))]),
            f"Note: median and range with the same tasks in {len(orders)} orders.",
        ],
        {
            "paper": PAPER,
            "makespans": changes,
            "runs": {run.name: asdict(result) for run, result in found.items()},
        },
        [
            f"60 tasks, {GPUS}, MPS with one server for the node, interference `{DEFAULT}`;"
            " changes against exclusive GPUs"
        ],
    )


if __name__ == "__main__":
    main("carma_trace2", measure, SECOND)
