"""What time slices give, where jobs keep their GPU busy and where not: as measured on an H100 and
on an RTX 3090; what it makes of the simulated headlines; and whether placement should know it.

An H100's pairs give the simulator's interference another coefficient than the RTX 3090's, which it
ships. Every simulation here is made with both. `risk.utilization` is tried on four workloads under
`magm`, in the order of the trace and in others: to be on by default, it would have to be no worse
with the one coefficient, and better with the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

from benchmarks import ROOT
from benchmarks.harness import Report, columns
from carma_simulator import metrics
from carma_simulator.experiment import Experiment, Physics, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carmad.config import Risk, Settings
from lab.carma import heavy60, paper
from lab.data import DATA
from lab.day import figures, workload
from lab.hardware.pairs_page import groups
from lab.hardware.visit import Visit
from lab.main import main
from lab.pairs import GUESSED, lucid_alone, lucid_pairs

H100 = Visit(ROOT / "lab/results/hardware/nvidia-h100-80gb-hbm3", "pairs", rehearse=False)
COEFFICIENTS = {"conserving": "0.711", "conserving:2.06": "2.06"}  # RTX 3090, H100
BUSY = 0.9  # NVML's utilisation: no run of the H100's pairs has one between 0.55 and 0.95
ORDERS = 5
LAB_DAY = ROOT / "examples" / "traces" / "lab_day.csv"
SETTINGS = {
    "magm": Settings(),
    f"magm, risk.utilization = {BUSY}": Settings(risk=Risk(utilization=BUSY)),
}


class Pair(NamedTuple):
    """Two training runs on one GPU, by time slices."""

    utilization: float  # of the one that leaves it idle for longer, alone, by NVML
    together: float  # the sum of their speeds; 1: as one after the other


def h100_pairs() -> list[Pair]:
    """Those whose runs' utilisation is known."""
    entries = H100.entries("loads").items()
    alone = {name: entry["utilization"] for name, entry in entries if entry.get("utilization")}
    return [
        Pair(min(alone[name] for name in group.names), sum(group.speeds))
        for group in groups(H100.entries().values())
        if len(group.names) == 2 and alone.keys() >= set(group.names)
    ]


def rtx3090_pairs() -> list[Pair]:
    """The sound ones of Lucid's artifact, without its models of guessed speeds."""
    alone = lucid_alone()
    return [
        Pair(min(float(alone[job]["gpu_util"]) / 100 for job in pair.jobs), sum(pair.speeds))
        for pair in lucid_pairs()
        if not pair.unsound and not any(alone[job]["model"] in GUESSED for job in pair.jobs)
    ]


def gains(gpu: str, pairs: Sequence[Pair]) -> Iterator[tuple[str, str, int, float, float, float]]:
    """GPU, kind of pair and how many; median, least and most of what they do together."""
    for which, is_busy in (("both keep it busy", True), ("one leaves it idle at times", False)):
        found = [pair.together for pair in pairs if (pair.utilization >= BUSY) is is_busy]
        yield gpu, which, len(found), median(found), min(found), max(found)


def errors_by_activity() -> list[float]:
    """How far off a group's mean speed is by SM activity (as `carma stats` has it where no steps
    are reported), together over the sum of each alone, from that by steps."""
    entries = [entry for entry in H100.entries().values() if "failed" not in entry]
    sm = {tuple(entry["names"]): entry["sm_active"] for entry in entries}
    return [
        sm[group.names] / sum(sm[name,] for name in group.names)
        - fmean(min(1.0, speed) for speed in group.speeds)
        for group in groups(entries)
    ]


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the orders; `own`: of the trace's own order. Makespan in h, mean time from
    submission to end in min, attempts that ran out of memory."""

    workload: str
    coefficient: str
    what: str
    medians: tuple[float, ...]
    own: tuple[float, ...]


def rows(
    name: str, traces: Sequence[Trace], gpus: str, estimator: str = "none", setup_s: float = 0.0
) -> Iterator[Row]:
    """`setup_s`: as the daemon plays it, with jobs that take so long to begin."""

    def run(trace: Trace, settings: Settings, interference: str) -> tuple[float, ...]:
        physics = Physics(first_kernel_s=setup_s, oom_s=setup_s) if setup_s else Physics()
        outcome = simulate(
            Experiment(
                trace,
                parse(gpus),
                settings,
                estimator,
                interference,
                physics=physics,
                as_daemon=bool(setup_s),
            )
        )
        found = metrics.figures(outcome)
        assert found.jct
        return outcome.makespan_s / 3600, found.jct.mean / 60, float(found.oom_crashes)

    def row(what: str, settings: Settings, interference: str) -> Row:
        runs = [run(trace, settings, interference) for trace in traces]
        medians = tuple(map(median, zip(*runs, strict=True)))
        return Row(name, COEFFICIENTS.get(interference, ""), what, medians, runs[0])

    yield row("one job per GPU", Settings(policy="exclusive"), "none")
    for interference in COEFFICIENTS:
        for what, settings in SETTINGS.items():
            yield row(what, settings, interference)


def workloads() -> Iterator[Row]:
    for name, source, gpus in (
        ("trace 1", f"carma:{paper.TRACE}", paper.GPUS),
        ("heavy-60", f"carma:{heavy60.TRACE}", heavy60.GPUS),
        (LAB_DAY.name, str(LAB_DAY), "3xA100-40GB"),
    ):
        yield from rows(name, paper.in_orders(load(source), ORDERS), gpus)
    days = [workload.as_trace(workload.draw_day(workload.SEED + n)) for n in range(ORDERS)]
    yield from rows("lab.day", days, f"{figures.GPUS}xA100-40GB", "history", workload.SETS_UP_S)


def headline() -> Iterator[tuple[str, float]]:
    """Hours until the last job of the paper's first trace ends, as in `lab.carma`."""
    trace = load(f"carma:{paper.TRACE}")
    yield "one job per GPU", paper.simulated(trace, paper.EXCLUSIVE).makespan_s / 3600
    for interference, name in COEFFICIENTS.items():
        found = paper.simulated(trace, paper.ORACLE, paper.Assumed(interference=interference))
        yield f"magm, coefficient {name}", found.makespan_s / 3600


def measure() -> Report:
    h100, errors = h100_pairs(), errors_by_activity()
    gained = [*gains("H100", h100), *gains("RTX 3090 (Lucid)", rtx3090_pairs())]
    first, found = list(headline()), list(workloads())
    return Report(
        "Time slices: what two GPUs measured, and what it makes of the simulations",
        [
            "Speeds together of pairs of training runs, by time slices: 1 is as much as one after"
            f" the other. Busy: NVML's utilisation alone is {BUSY} or more.",
            columns(
                gained,
                ("GPU", "{0[0]}"),
                ("of the two runs", "{0[1]}"),
                ("pairs", "{0[2]}"),
                ("together, median", "{0[3]:.2f}"),
                ("least", "{0[4]:.2f}"),
                ("most", "{0[5]:.2f}"),
                text=(0, 1),
            ),
            f"The H100's {len(h100)} pairs are those whose utilisation was read. No run there had a"
            " data loader: those that leave the GPU idle are small networks.",
            f"The mean speed in the H100's {len(errors)} groups by SM activity, together over the"
            f" sum of each alone, is {fmean(errors):+.3f} off that by steps (RMSE"
            f" {sqrt(fmean(error**2 for error in errors)):.3f}).",
            "## The CARMA paper's first trace, memory known, under MPS: time until the last ends",
            columns(first, ("", "{0[0]}"), ("makespan h", "{0[1]:.2f}")),
            "## A job that keeps its GPU busy does not join another such",
            f"`magm` by time slices, as CARMA ships it; medians of {ORDERS} orders (`lab.day`: of"
            f" {ORDERS} days drawn), in parentheses the first, for a trace its own. No estimates,"
            " but for `lab.day`: of earlier runs.",
            columns(
                found,
                ("workload", "{0.workload}"),
                ("coefficient", "{0.coefficient}"),
                ("", "{0.what}"),
                ("makespan h", "{0.medians[0]:.2f} ({0.own[0]:.2f})"),
                ("mean JCT min", "{0.medians[1]:.1f} ({0.own[1]:.1f})"),
                ("OOM", "{0.medians[2]:g} ({0.own[2]:g})"),
                text=(0, 1, 2),
            ),
        ],
        {"pairs": gained, "errors by activity": errors, "trace 1": first, "rows": found},
    )


if __name__ == "__main__":
    main("time_slices", measure, DATA)
