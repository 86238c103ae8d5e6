"""What time slices give, where jobs keep their GPU busy and where not: as measured on an H100 and
on an RTX 3090; what it makes of the simulated headlines; and whether placement should know it.

An H100's pairs give the simulator's interference another coefficient than the RTX 3090's, which it
ships. Every simulation here is made with both. `risk.utilization` is tried on four workloads under
`magm`, in the order of the trace and in others: to be on by default, it would have to be no worse
with the one coefficient, and better with the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from statistics import fmean, median

from benchmarks import ROOT
from benchmarks.harness import Report, columns
from carma_simulator import metrics
from carma_simulator.experiment import Experiment, Physics, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carmad.config import Risk, Settings
from carmad.core.jobs.attempt import Mode
from lab.carma import heavy60, paper
from lab.data import DATA
from lab.day import figures, workload
from lab.hardware.pairs_page import groups
from lab.hardware.visit import Visit
from lab.main import main
from lab.pairs import GUESSED, lucid_alone, lucid_pairs

H100 = ROOT / "lab" / "results" / "hardware" / "nvidia-h100-80gb-hbm3"
COEFFICIENTS = {"conserving": "0.711", "conserving:2.06": "2.06"}  # RTX 3090, H100
BUSY = 0.9  # NVML's utilisation: no run of the H100's pairs has one between 0.55 and 0.95
LIMITS = (0.0, BUSY)  # of `risk.utilization`; 0: none
ORDERS = 5
LAB_DAY = ROOT / "examples" / "traces" / "lab_day.csv"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two training runs on one GPU, by time slices."""

    utilizations: tuple[float, ...]  # of each alone, by NVML
    together: float  # the sum of their speeds; 1: as one after the other


def h100_pairs() -> tuple[list[Pair], int]:
    """Those whose runs' utilisation is known, and the number of the others."""
    visit = Visit(H100, "pairs", rehearse=False)
    alone = {name: entry.get("utilization") for name, entry in visit.entries("loads").items()}
    found = [g for g in groups(visit.entries().values()) if len(g.names) == 2]
    known = [g for g in found if g.mode is Mode.STREAMS and all(map(alone.get, g.names))]
    pairs = [Pair(tuple(alone[name] for name in g.names), sum(g.speeds)) for g in known]
    return pairs, len(found) - len(known)


def rtx3090_pairs() -> list[Pair]:
    """The sound ones of Lucid's artifact, without its models of guessed speeds."""
    alone = lucid_alone()
    return [
        Pair(tuple(float(alone[job]["gpu_util"]) / 100 for job in pair.jobs), sum(pair.speeds))
        for pair in lucid_pairs()
        if not pair.unsound and not any(alone[job]["model"] in GUESSED for job in pair.jobs)
    ]


@dataclass(frozen=True, slots=True)
class Gain:
    gpu: str
    which: str
    pairs: int
    median: float
    least: float
    most: float


def gains(gpu: str, pairs: Iterable[Pair]) -> Iterator[Gain]:
    kinds: dict[str, list[float]] = {"both keep it busy": [], "one leaves it idle at times": []}
    busy, idle = kinds.values()
    for pair in pairs:
        (busy if min(pair.utilizations) >= BUSY else idle).append(pair.together)
    for which, found in kinds.items():
        yield Gain(gpu, which, len(found), median(found), min(found), max(found))


def errors_by_activity() -> list[float]:
    """How far off a group's mean speed is by SM activity (as `carma stats` has it where no steps
    are reported), together over the sum of each alone, from that by steps."""
    entries = Visit(H100, "pairs", rehearse=False).entries().values()
    sm: dict[tuple[str, ...], list[float]] = {}
    for entry in entries:
        if "failed" not in entry:
            sm.setdefault(tuple(entry["names"]), []).append(entry["sm_active"])
    return [
        fmean(sm[group.names]) / sum(fmean(sm[name,]) for name in group.names)
        - fmean(min(1.0, speed) for speed in group.speeds)
        for group in groups(entries)
    ]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    traces: tuple[Trace, ...]
    gpus: str
    is_day: bool = False  # played as the daemon does

    def run(self, trace: Trace, interference: str, settings: Settings) -> tuple[float, ...]:
        """Makespan in h, mean time from submission to end in min, attempts out of memory."""
        experiment = Experiment(trace, parse(self.gpus), settings, "none", interference)
        if self.is_day:
            up_s = workload.SETS_UP_S
            experiment = replace(
                experiment,
                estimator="history",
                physics=Physics(first_kernel_s=up_s, oom_s=up_s),
                as_daemon=True,
            )
        outcome = simulate(experiment)
        found = metrics.figures(outcome)
        assert found.jct
        return outcome.makespan_s / 3600, found.jct.mean / 60, float(found.oom_crashes)


def workloads() -> Iterator[Workload]:
    orders = partial(paper.in_orders, count=ORDERS)
    yield Workload("trace 1", tuple(orders(load(f"carma:{paper.TRACE}"))), paper.GPUS)
    yield Workload("heavy-60", tuple(orders(load(f"carma:{heavy60.TRACE}"))), heavy60.GPUS)
    yield Workload("lab_day.csv", tuple(orders(load(str(LAB_DAY)))), "3xA100-40GB")
    days = (workload.draw_day(workload.SEED + n) for n in range(ORDERS))
    gpus = f"{figures.GPUS}xA100-40GB"
    yield Workload("lab.day", tuple(map(workload.as_trace, days)), gpus, is_day=True)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the orders, in the order of `Workload.run`; `own` is the trace's own order."""

    workload: str
    coefficient: str
    what: str
    makespan_h: float
    jct_min: float
    ooms: float
    own: tuple[float, ...]


def rows(one: Workload) -> Iterator[Row]:
    def row(interference: str, what: str, settings: Settings) -> Row:
        runs = [one.run(trace, interference, settings) for trace in one.traces]
        medians = map(median, zip(*runs, strict=True))
        return Row(one.name, COEFFICIENTS.get(interference, ""), what, *medians, own=runs[0])

    yield row("none", "one job per GPU", Settings(policy="exclusive"))
    for interference in COEFFICIENTS:
        for limit in LIMITS:
            what = f"magm, risk.utilization = {limit:g}" if limit else "magm"
            yield row(interference, what, Settings(risk=Risk(utilization=limit)))


def headline() -> Iterator[tuple[str, str, float]]:
    """The paper's first trace as `lab.carma` has it, memory known, in hours: makespans."""
    trace = load(f"carma:{paper.TRACE}")
    yield "one job per GPU", "", paper.simulated(trace, paper.EXCLUSIVE).makespan_s / 3600
    for interference, name in COEFFICIENTS.items():
        found = paper.simulated(trace, paper.ORACLE, paper.Assumed(interference=interference))
        yield "magm", name, found.makespan_s / 3600


def measure() -> Report:
    h100, unknown = h100_pairs()
    gained = [*gains("H100", h100), *gains("RTX 3090 (Lucid)", rtx3090_pairs())]
    errors = errors_by_activity()
    first, found = list(headline()), [row for one in workloads() for row in rows(one)]
    return Report(
        "Time slices: what two GPUs measured, and what it makes of the simulations",
        [
            "Speeds together of pairs of training runs, by time slices: 1 is as much as one after"
            f" the other. Busy: NVML's utilisation alone is {BUSY:g} or more.",
            columns(
                gained,
                ("GPU", "{0.gpu}"),
                ("of the two runs", "{0.which}"),
                ("pairs", "{0.pairs}"),
                ("together, median", "{0.median:.2f}"),
                ("least", "{0.least:.2f}"),
                ("most", "{0.most:.2f}"),
                text=(0, 1),
            ),
            f"{unknown} more pairs of the H100 have a run whose utilisation was not read. No run"
            " there had a data loader: those that leave the GPU idle are small networks.",
            f"The mean speed in the H100's {len(errors)} groups by SM activity, together over the"
            f" sum of each alone, is {fmean(errors):+.3f} off that by steps (RMSE"
            f" {sqrt(fmean(error**2 for error in errors)):.3f}).",
            "## The CARMA paper's first trace, memory known: time until the last job ends",
            columns(
                first,
                ("", "{0[0]}"),
                ("coefficient", "{0[1]}"),
                ("makespan h", "{0[2]:.2f}"),
            ),
            "As in the paper, under MPS, of which the simulator knows no other coefficient. The"
            " H100 measured time slices.",
            "## A job that keeps its GPU busy does not join another such",
            f"`magm` by time slices, as CARMA ships it; medians of {ORDERS} orders (`lab.day`: of"
            f" {ORDERS} days drawn), in parentheses the trace's own order. No estimates, but for"
            " `lab.day`: of earlier runs.",
            columns(
                found,
                ("workload", "{0.workload}"),
                ("coefficient", "{0.coefficient}"),
                ("", "{0.what}"),
                ("makespan h", "{0.makespan_h:.2f} ({0.own[0]:.2f})"),
                ("mean JCT min", "{0.jct_min:.1f} ({0.own[1]:.1f})"),
                ("OOM", "{0.ooms:g}"),
                text=(0, 1, 2),
            ),
        ],
        {
            "pairs": gained,
            "unknown": unknown,
            "errors by activity": errors,
            "trace 1": first,
            "rows": found,
        },
    )


if __name__ == "__main__":
    main("time_slices", measure, DATA)
