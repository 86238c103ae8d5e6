"""What a GPU set aside for profiling costs a small server: hence `profiling.gpus = "auto"`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import fmean, median

from benchmarks.harness import Report, columns
from carma_simulator.experiment import Experiment, Trace
from carma_simulator.hardware import parse
from carma_simulator.run import simulate
from carma_simulator.traces.generators import lab, philly
from carmad.config import Profiling, Settings
from carmad.configfile import change
from lab.asrpt.workload import load
from lab.main import main

POLICIES = ("lucid", "castor", "cuckoo")
TRACES = ("lab", "philly")
SIZES = (2, 4, 8, 16)
SEEDS = range(5)
LAB_GPUS = 3  # that the generated day is for
JOBS_PER_GPU = 20
LOAD = 0.8  # of Philly's jobs


@dataclass(frozen=True, slots=True)
class Ran:
    """Mean JCT in hours, jobs profiled where they run and on a GPU set aside."""

    policy: str
    trace: str
    gpus: int
    seed: int
    in_place_h: float
    apart_h: float


def measure() -> Report:
    cases = product(POLICIES, TRACES, SIZES, SEEDS)
    runs = [run(*case) for case in cases]
    rows = [
        [each for each in runs if (each.policy, each.trace, each.gpus) == key]
        for key in product(POLICIES, TRACES, SIZES)
    ]
    return Report(
        "A GPU set aside for profiling, by the size of the server",
        [
            columns(
                rows,
                ("policy", "{0[0].policy}"),
                ("trace", "{0[0].trace}"),
                ("GPUs", "{0[0].gpus}"),
                ("in place: JCT, h", lambda row: f"{median(its.in_place_h for its in row):.2f}"),
                ("apart: JCT, h", lambda row: f"{median(its.apart_h for its in row):.2f}"),
                ("apart / in place", lambda row: f"{median(_ratios(row)):.2f}"),
                ("range", lambda row: f"{min(_ratios(row)):.2f}–{max(_ratios(row)):.2f}"),
                text=(0, 1),
            )
        ],
        {"runs": [asdict(each) for each in runs]},
        [
            f"medians of {len(SEEDS)} draws, {JOBS_PER_GPU} jobs per GPU; durations known",
            f"lab: `generate:lab`, as busy per GPU as on {LAB_GPUS}; hardly a job of minutes",
            f"philly: `generate:philly`, jobs of half the GPUs at most, at a load of {LOAD}",
            "the policies' systems are theirs, but for `profiling.gpus`: 0 or 1",
        ],
    )


def run(policy: str, trace: str, gpus: int, seed: int) -> Ran:
    made = _trace(trace, gpus, seed)
    system = change(Settings(), [f"policy={policy}"])

    def jct_h(aside: int) -> float:
        settings = replace(system, profiling=Profiling(gpus=aside))
        ended = simulate(Experiment(made, parse(f"{gpus}xA100-40GB"), settings)).jobs
        return fmean(job.ended_at - job.task.submit_s for job in ended) / 3600

    return Ran(policy, trace, gpus, seed, jct_h(0), jct_h(1))


def _trace(name: str, gpus: int, seed: int) -> Trace:
    if name == "lab":
        made, slower = lab(seed, JOBS_PER_GPU * gpus), LAB_GPUS / gpus
    else:
        whole = philly(seed, JOBS_PER_GPU * gpus)
        made = replace(whole, tasks=tuple(t for t in whole.tasks if t.gpus <= gpus // 2))
        slower = load(made, gpus) / LOAD
    tasks = (replace(task, submit_s=slower * task.submit_s) for task in made.tasks)
    return replace(made, tasks=tuple(tasks))


def _ratios(row: Sequence[Ran]) -> list[float]:
    return [its.apart_h / its.in_place_h for its in row]


if __name__ == "__main__":
    main("profiling_apart", measure)
