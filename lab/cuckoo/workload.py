"""The jobs that `python -m lab.cuckoo` puts through the simulator, and the GPUs for them.

The Cuckoo paper (4.1) has 521 jobs of two GPUs each, of the models and batch sizes of its table 8,
on the 16 GPUs of its table 7. Neither its stage profiles nor its durations are published. Stages
are those that Muri's authors measured on two V100 (their artifact's traces: milliseconds of an
iteration spent loading, on the GPU, and on the network), with these additions:

- Forward to backward is 1 : 2, as it is for ResNet in the paper's table 3 (37 : 76 ms). What such
  a job takes alone then differs from Muri's iterations by 7 % in the mean, as their sum does.
- Other batch sizes than Muri's: loading and GPU time in proportion, communication as it is.
- ResNet50 is no job of Muri's: it is ResNet18 with 4.09 / 1.81 of its GPU time and 25.6 / 11.7 of
  its communication, as are the two networks' operations and parameters (torchvision's
  documentation).
- On other GPUs, GPU time goes by the speeds of `carmad.gpu.kinds`, those of ResNet-50 for the
  image networks and of BERT for the language models; loading and communication stay.

Muri's jobs load much more, and send much less, than the two that the paper's table 3 prints. So
there is a second set, nearer to these (`by_table_3`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Literal

from carma_simulator.catalogue import activity
from carma_simulator.experiment import Load, Task, Trace
from carma_simulator.traces.generators import cuckoo
from carmad.core.jobs.findings import StageTimes
from carmad.gpu.kinds import KINDS
from lab.data import DATA, read

# Table 7. An A800 is an A100 with slower links between servers, which no job here needs. The first
# kind is the one that the homogeneous variants take all GPUs for (4.6).
GPUS = "1x8xRTX4090-24GB,1x2xA100-80GB,3x2xA10-24GB"
KINDS_THERE = ("RTX4090-24GB", "A100-80GB", "A10-24GB")
REFERENCE = KINDS_THERE[0]
FASTEST = "A100-80GB"
MEASURED_ON = "V100-32GB"  # Muri's
FORWARD_SHARE = 1 / 3  # of the GPU time
# Durations are not published. They are log-normal with this σ, and with the mean (s, on the fastest
# kind) of each seed with which the variant that packs nothing has table 1's mean JCT. Muri's σ was
# that with which this variant meets table 1's share of deadlines. Table 3's σ, and `SLOWER`, are
# those with which Cuckoo meets table 9's share of deadlines, and this variant's JCT is as many
# times Cuckoo's as in table 12. Nothing else was looked at.
SIGMAS = {"Muri": 0.6, "table 3": 0.75}
MEANS_S: dict[str, tuple[float, ...]] = {
    "Muri": (484.0, 486.0, 506.0, 501.0, 471.0),
    "table 3": (380.0, 380.0, 394.0, 392.0, 370.0),
}
LONGER = "Muri, longer"  # so much that Cuckoo misses deadlines, too
SIGMAS[LONGER], MEANS_S[LONGER] = SIGMAS["Muri"], tuple(round(1.53 * s, 1) for s in MEANS_S["Muri"])
# How much slower an iteration is on a slower kind is not printed, but that some are "two or even
# three times" as fast (3.3.4): all of it by this power of the ratio of the kinds' speeds.
SLOWER = 0.6
SPAN_S = 1000  # of figure 8's bars
BUSY = (*range(1, 10), *range(20, 25))  # the spans in which many jobs come (4.2)
LOAD_S = 0.01  # table 3: of either job
# Table 3: 98 ms for the gradients of ResNet and 363 for BERT's, 3.8 and 3.3 for each million
# parameters if that is ResNet50.
MILLION_S = 0.0035
MILLIONS = {  # parameters, as published with the models
    "BERT": 110,
    "GPT-2": 124,
    "VGG16": 138.4,
    "VGG19": 143.7,
    "ResNet18": 11.7,
    "ResNet50": 25.6,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Which of Muri's jobs stands for a model, and whose speeds on other GPUs."""

    muri: str
    family: str = ""  # in `GpuKind.speeds`; "": the kind's mean
    sync: Literal["backward", "forward"] = (
        "forward"  # 3.2.1; the paper does not say it of A2C and DQN, which hardly send
    )
    gpu: float = 1.0  # times its GPU time
    network: float = 1.0


ORIGINS: Mapping[str, Origin] = {
    "A2C": Origin("a2c"),
    "DQN": Origin("dqn"),
    "BERT": Origin("bert", "bertbase", "backward"),
    "GPT-2": Origin("gpt2", "bertbase", "backward"),
    "VGG19": Origin("vgg19", "resnet50"),
    "VGG16": Origin("vgg16", "resnet50"),
    "ResNet18": Origin("resnet18", "resnet50"),
    "ResNet50": Origin("resnet18", "resnet50", gpu=4.09 / 1.81, network=25.6 / 11.7),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A job of Muri's: seconds of an iteration, and what its stages take."""

    model: str
    batch_size: int
    gpus: int
    iteration_s: float
    load_s: float
    gpu_s: float
    network_s: float


@cache
def muri() -> tuple[Row, ...]:
    """Every configuration in the artifact's traces, once."""
    found: dict[Row, None] = {}
    for path in sorted((DATA / "muri").glob("trace*.csv")):
        found |= dict.fromkeys(map(_row, read(path)))
    return tuple(found)


def _row(cells: Mapping[str, str]) -> Row:
    named = ("iteration_time", "resource_time_0", "resource_time_1", "resource_time_2")
    seconds = (float(cells[name]) / 1000 for name in named)
    return Row(cells["model_name"], int(cells["batch_size"]), int(cells["num_gpu"]), *seconds)


def by_muri(model: str, batch_size: int, kind: str, gpus: int = 2) -> StageTimes:
    """One of the paper's models on one kind of GPU, as Muri has it."""
    origin = ORIGINS[model]
    [row] = [row for row in muri() if (row.model, row.gpus) == (origin.muri, gpus)]
    samples = batch_size / row.batch_size
    speed = _speed(kind, origin.family) / _speed(MEASURED_ON, origin.family)
    gpu_s = row.gpu_s * samples * origin.gpu / speed
    return StageTimes(
        row.load_s * samples,
        gpu_s * FORWARD_SHARE,
        gpu_s * (1 - FORWARD_SHARE),
        row.network_s * origin.network,
        origin.sync,
        kind,
    )


def by_table_3(model: str, batch_size: int, kind: str) -> StageTimes:
    """The same, with as little loading and as much communication as the paper prints, and on a
    slower kind all of it slower."""
    told = by_muri(model, batch_size, FASTEST)
    if model in MILLIONS:
        told = replace(told, load_s=LOAD_S, communication_s=MILLION_S * MILLIONS[model])
    family = ORIGINS[model].family
    slower = (_speed(FASTEST, family) / _speed(kind, family)) ** SLOWER
    return StageTimes(
        told.load_s * slower,
        told.forward_s * slower,
        told.backward_s * slower,
        told.communication_s * slower,
        told.sync,
        kind,
    )


STAGES = {"Muri": by_muri, LONGER: by_muri, "table 3": by_table_3}


def _speed(kind: str, family: str) -> float:
    return dict(KINDS[kind].speeds).get(family, KINDS[kind].speed)


def alone_s(job: StageTimes) -> float:
    """Of an iteration with nobody beside: gradients are sent while the backward pass goes on.

    Whoever needs them before the next forward pass only, loads meanwhile."""
    if job.sync == "backward":
        return job.load_s + job.forward_s + max(job.backward_s, job.communication_s)
    main_s = job.load_s + job.forward_s + job.backward_s
    return max(main_s, job.forward_s + job.communication_s)


def gpu_share(job: StageTimes) -> float:
    """Of an iteration alone, the time in which it keeps the GPU busy."""
    return (job.forward_s + job.backward_s) / alone_s(job)


@cache
def load(task: Task, kind: str) -> Load:
    """What the job asks of a GPU of this kind: the faster that is, the less of it."""
    [told] = [each for each in task.stages if each.gpu == kind]
    busy, occupied, _ = activity(gpu_share(told), 0.0)
    return replace(task.load, model=named(task, kind), sm_active=busy, sm_occupancy=occupied)


def named(task: Task, kind: str) -> str:
    """What it is there, for a model of interference that is not told of the GPU."""
    return f"{task.name} on {kind}"


def trace(source: str, seed: int, jobs: int = 521) -> Trace:
    """Models and deadlines as generated; stages and speeds told.

    Deadlines are eight times the duration on the fastest kind, in the mean."""
    made = _in_busy_spans(cuckoo(seed, jobs))
    tasks = _tasks(made, source, MEANS_S[source][seed])
    return replace(made, name=f"cuckoo-{seed}", tasks=tuple(tasks))


def _in_busy_spans(made: Trace) -> Trace:
    """The fullest of the generated spans where the paper's are."""
    spans = [min(int(task.submit_s // SPAN_S), 29) for task in made.tasks]
    count = Counter(spans)
    by_count = sorted(range(1, 30), key=lambda span: -count[span])
    calm = [span for span in range(1, 30) if span not in BUSY]
    full, empty = sorted(by_count[: len(BUSY)]), sorted(by_count[len(BUSY) :])
    to = {0: 0, **dict(zip((*full, *empty), (*BUSY, *calm), strict=True))}
    moved = (
        replace(task, submit_s=task.submit_s + SPAN_S * (to[span] - span))
        for task, span in zip(made.tasks, spans, strict=True)
    )
    return replace(made, tasks=tuple(sorted(moved, key=lambda task: task.submit_s)))


def _tasks(made: Trace, source: str, mean_s: float) -> Iterator[Task]:
    durations = _durations(made, mean_s, SIGMAS[source])
    for task, duration_s in zip(made.tasks, durations, strict=True):
        model, _, batch_size = task.name.rpartition("-b")
        told = tuple(STAGES[source](model, int(batch_size), kind) for kind in KINDS_THERE)
        first_s, best_s = alone_s(told[0]), min(map(alone_s, told))
        assert task.deadline_s is not None
        yield replace(
            task,
            duration_s=duration_s * first_s / best_s,
            deadline_s=task.deadline_s * duration_s / task.duration_s,
            reference=REFERENCE,
            stages=told,
            speeds=tuple((each.gpu, first_s / alone_s(each)) for each in told),
            load=replace(task.load, model=model, batch_size=int(batch_size)),
        )


def _durations(made: Trace, mean_s: float, sigma: float) -> list[float]:
    """The generator's, which have a σ of 1, with another spread and mean."""
    spread = [task.duration_s**sigma for task in made.tasks]
    return [mean_s * each / fmean(spread) for each in spread]
