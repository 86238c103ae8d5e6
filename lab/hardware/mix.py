"""The job mix of stage `trace`: a fifth of CARMA's heavy-60 trace, played by measured workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carma_simulator.experiment import Load, Task

GPUS = 4  # of the machine that the trace was recorded on, A100 of 40 GB
WORK_S, SPAN_S = 144_179.0, 8_966.0  # of all 60 tasks: GPU seconds alone, first to last submission
LOAD = WORK_S / GPUS / SPAN_S  # work that arrives in the time in which a GPU can do one
GB_MIB = 1e9 / 2**20


@dataclass(frozen=True, slots=True)
class Paper:
    """One submission of the trace, as measured alone (`carma/heavy60_tasks.csv`)."""

    at_s: float
    name: str
    sm_active: float
    duration_s: float
    memory_gb: float


# Every fifth submission of a task of one GPU (`carma/heavy60.csv`).
HEAVY = (
    Paper(0, "Inception3", 0.62, 3057, 14.35),
    Paper(1000, "mobilenet3", 0.36, 2172, 11.45),
    Paper(1767, "mnist_train", 0.07, 132, 2.26),
    Paper(2684, "vgg2", 0.885, 2678, 9.83),
    Paper(3102, "resnet3", 0.583, 2330, 12.74),
    Paper(4167, "mnist_train", 0.07, 132, 2.26),
    Paper(5170, "efficientNet", 0.47, 2243, 4.58),
    Paper(5469, "BERT_base", 0.913, 891, 19.84),
    Paper(5966, "Inception2", 0.7, 2915, 8.23),
    Paper(7167, "Xception3", 0.837, 2709, 18.7),
    Paper(7766, "mobilenet", 0.345, 2211, 4.27),
    Paper(8955, "efficientNet3", 0.49, 2116, 12.68),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload alone on this GPU, as stage `loads` has it."""

    load: Load
    step_s: float


@dataclass(frozen=True, slots=True)
class Part:
    """What plays one of the paper's tasks."""

    task: Task  # its duration is what its steps take alone
    steps: int


def parts(measured: Mapping[str, Measured], mean_s: float, count: int) -> tuple[Part, ...]:
    """The first `count` of `HEAVY`, training `mean_s` on average, their durations in proportion.

    Gaps are in proportion, too, and such that work arrives as fast as in the whole trace: all of
    it is offered to one GPU as a quarter of the trace is to each of its four."""
    chosen = HEAVY[:count]
    scale = mean_s * len(chosen) / sum(each.duration_s for each in chosen)
    gaps = mean_s * len(chosen) / LOAD / chosen[-1].at_s
    return tuple(
        _part(each, measured, each.at_s * gaps, each.duration_s * scale) for each in chosen
    )


def _part(paper: Paper, measured: Mapping[str, Measured], at_s: float, seconds: float) -> Part:
    name = nearest(paper, measured)
    its = measured[name]
    steps = max(1, round(seconds / its.step_s))
    task = Task(name=name, submit_s=round(at_s, 2), duration_s=steps * its.step_s, load=its.load)
    return Part(task, steps)


def nearest(paper: Paper, measured: Mapping[str, Measured]) -> str:
    """The workload whose load is most like the task's: a tenth of the SMs counts as 4 GB."""

    def apart(name: str) -> float:
        load = measured[name].load
        memory_gb = load.memory_mib / GB_MIB
        return abs(load.sm_active - paper.sm_active) + abs(memory_gb - paper.memory_gb) / 40

    return min(sorted(measured), key=apart)


def as_published() -> dict[str, Measured]:
    """The tasks themselves, for a rehearsal on emulated cards."""
    return {
        each.name: Measured(
            Load(
                model=each.name,
                memory_mib=round(each.memory_gb * GB_MIB),
                sm_active=each.sm_active,
                sm_occupancy=each.sm_active / 2,
                dram_active=each.sm_active / 3,
            ),
            step_s=0.05,
        )
        for each in HEAVY
    }
