"""The workload of `carma demo`: the published task list, and traces drawn from it.

Facts. TABLE restates Table 4 of the CARMA paper (Yousefzadeh-Asl-Miandoab et al., "CARMA:
Collocation-Aware Resource Manager"): model, dataset, batch size, GPUs, minutes per epoch, epochs
and GPU memory. The paper's GB are thousands of nvidia-smi's MiB, so 7.11 GB stand here as 7110 MiB.
The two CIFAR-100 rows whose printed memory cannot be right (efficientnet_b0 at batch 128, 8.67 GB,
and resnet34 at batch 128, 2.08 GB) carry what the authors' artifact measured, 0.87 and 1.07 GB. The
mix and the gaps between submissions are those printed for the first trace (section 4.1).

Assumptions. The paper does not print how busy each task keeps a GPU, nor how long it loads data
before its first kernel. Both are made up here, plausibly and by class: small images leave most of a
GPU idle (SM activity 0.2–0.45), ImageNet CNNs use half to most of it, and use more with a larger
batch (0.5–0.85), transformers saturate it (0.85–0.95). Do not quote them as measurements.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class Size(StrEnum):
    LIGHT = "light"
    MEDIUM = "medium"  # the paper's medium and heavy on one GPU
    HEAVY = "heavy"  # on two GPUs


@dataclass(frozen=True, slots=True)
class Task:
    """A row of Table 4, with assumed demands (shares of one GPU) and time to the first kernel."""

    model: str
    dataset: str
    batch: int
    gpus: int
    epoch_minutes: float
    epochs: tuple[int, ...]  # one of these
    memory_mib: int
    sm: float
    occupancy: float
    dram: float
    warmup_s: float

    @property
    def size(self) -> Size:
        if self.gpus > 1:
            return Size.HEAVY
        return Size.LIGHT if self.dataset == "cifar100" else Size.MEDIUM


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One submission: when, and what the emulated job is told. All times are compressed."""

    at_s: float
    name: str
    gpus: int
    memory_mib: int
    sm: float
    occupancy: float
    dram: float
    seconds: float  # of work when alone
    warmup_s: float
    seed: int

    def argv(self, python: str) -> tuple[str, ...]:
        """The command to submit; `python` is an interpreter that can import carmad."""
        arguments = {
            "model": self.name,
            "memory-mib": str(self.memory_mib),
            "sm": f"{self.sm:.2f}",
            "occupancy": f"{self.occupancy:.2f}",
            "dram": f"{self.dram:.2f}",
            "seconds": f"{self.seconds:.2f}",
            "warmup": f"{self.warmup_s:.2f}",
            "seed": str(self.seed),
        }
        flags = [word for name, value in arguments.items() for word in (f"--{name}", value)]
        return (python, "-m", "carmad.gpu.emulated_job", *flags)


def _wiki(
    model: str, batch: int, gpus: int, minutes: float, epochs: int, mib: int, sm: float, dram: float
) -> Task:
    return Task(model, "wikitext2", batch, gpus, minutes, (epochs,), mib, sm, 0.45, dram, 40.0)


def _large(
    model: str,
    dataset: str,
    batch: int,
    minutes: float,
    epochs: int,
    mib: int,
    sm: float,
    occupancy: float,
    dram: float,
) -> Task:
    return Task(model, dataset, batch, 1, minutes, (epochs,), mib, sm, occupancy, dram, 30.0)


def _cifar(
    model: str, batch: int, minutes: float, mib: int, sm: float, occupancy: float, dram: float
) -> Task:
    return Task(model, "cifar100", batch, 1, minutes, (20, 50), mib, sm, occupancy, dram, 10.0)


TABLE: tuple[Task, ...] = (
    # (a) transformers: batch, GPUs, minutes per epoch, epochs, MiB | SM activity, DRAM activity
    _wiki("xlnet_base", 8, 2, 7.38, 8, 9_200, 0.86, 0.40),
    _wiki("BERT_base", 32, 1, 14.92, 1, 19_830, 0.92, 0.45),
    _wiki("xlnet_large", 4, 2, 19.58, 3, 19_330, 0.90, 0.45),
    _wiki("BERT_large", 8, 1, 44.93, 1, 12_630, 0.88, 0.45),
    _wiki("gpt2_large", 8, 2, 65.72, 1, 28_360, 0.95, 0.50),
    # (b) large CNNs, segmentation, detection, recommendation | SM activity, occupancy, DRAM
    _large("efficientnet_b0", "imagenet", 32, 41.96, 1, 3_750, 0.50, 0.22, 0.20),
    _large("efficientnet_b0", "imagenet", 64, 28.48, 1, 6_700, 0.58, 0.26, 0.25),
    _large("efficientnet_b0", "imagenet", 128, 27.52, 1, 12_670, 0.64, 0.30, 0.30),
    _large("resnet50", "imagenet", 32, 34.96, 1, 3_940, 0.56, 0.24, 0.20),
    _large("resnet50", "imagenet", 64, 32.58, 1, 7_110, 0.64, 0.28, 0.25),
    _large("resnet50", "imagenet", 128, 31.27, 1, 13_240, 0.70, 0.32, 0.30),
    _large("mobilenet_v2", "imagenet", 32, 29.47, 1, 3_360, 0.50, 0.22, 0.20),
    _large("mobilenet_v2", "imagenet", 64, 25.70, 1, 6_040, 0.55, 0.26, 0.25),
    _large("mobilenet_v2", "imagenet", 128, 25.44, 1, 11_340, 0.60, 0.30, 0.30),
    _large("vgg16", "imagenet", 32, 50.77, 1, 6_690, 0.74, 0.28, 0.25),
    _large("vgg16", "imagenet", 64, 46.70, 1, 11_770, 0.80, 0.32, 0.28),
    _large("vgg16", "imagenet", 128, 44.60, 1, 21_870, 0.85, 0.36, 0.32),
    _large("xception", "imagenet", 32, 49.86, 1, 5_920, 0.64, 0.28, 0.25),
    _large("xception", "imagenet", 64, 48.82, 1, 11_200, 0.70, 0.32, 0.30),
    _large("xception", "imagenet", 128, 47.57, 1, 21_240, 0.76, 0.36, 0.34),
    _large("inception", "imagenet", 32, 58.75, 1, 5_230, 0.55, 0.24, 0.20),
    _large("inception", "imagenet", 64, 51.27, 1, 9_340, 0.62, 0.28, 0.25),
    _large("inception", "imagenet", 128, 49.80, 1, 17_840, 0.70, 0.32, 0.30),
    _large("unet", "voc", 8, 0.35, 90, 9_910, 0.66, 0.30, 0.30),
    _large("maskrcnn", "coco", 8, 112.07, 1, 28_610, 0.58, 0.24, 0.26),
    _large("dlrm", "criteo", 8, 25.24, 1, 1_470, 0.50, 0.20, 0.38),  # stopped early in the epoch
    # (c) small images | SM activity, occupancy, DRAM
    _cifar("efficientnet_b0", 32, 1.06, 670, 0.25, 0.10, 0.06),
    _cifar("efficientnet_b0", 64, 1.09, 720, 0.30, 0.12, 0.08),
    _cifar("efficientnet_b0", 128, 1.14, 870, 0.36, 0.14, 0.10),
    _cifar("resnet18", 32, 0.49, 790, 0.28, 0.11, 0.07),
    _cifar("resnet18", 64, 0.23, 800, 0.34, 0.14, 0.09),
    _cifar("resnet18", 128, 0.17, 860, 0.42, 0.17, 0.12),
    _cifar("resnet34", 32, 0.83, 1_010, 0.30, 0.12, 0.08),
    _cifar("resnet34", 64, 0.44, 1_020, 0.38, 0.15, 0.10),
    _cifar("resnet34", 128, 0.22, 1_070, 0.45, 0.18, 0.13),
    _cifar("mobilenetv3_small", 32, 0.95, 590, 0.20, 0.08, 0.05),
    _cifar("mobilenetv3_small", 64, 0.50, 600, 0.24, 0.10, 0.06),
    _cifar("mobilenetv3_small", 128, 0.31, 640, 0.28, 0.12, 0.08),
)

LIGHT_SHARE, HEAVY_SHARE = 0.3, 0.1
# The gaps between submissions, in seconds: points of their quantile function. Printed are the
# min 1, median 182.5, p95 599, max 600 and mean 229.45; the two quartiles are chosen to meet it.
GAPS = ((0.0, 1.0), (0.25, 60.0), (0.5, 182.5), (0.75, 350.33), (0.95, 599.0), (1.0, 600.0))
SHORTEST_WARMUP_S = 0.3  # so that the first kernel stays apart from the launch in any compression


def demo_trace(seed: int = 20, jobs: int = 20, compress: float = 280.0) -> tuple[DemoJob, ...]:
    """`jobs` submissions in order of time, `compress` times as fast as the paper's.

    By default three A100-40GB take a little over a minute, one job per GPU. In a rough model of
    MAGM over 120 seeds, sharing took about a sixth off that in the median and met no to four
    running-out-of-memory errors; the default seed is a middling one that met at least one however
    the delays were set. Such a replay shows how CARMA behaves, not how much it gains.
    """
    dice = random.Random(seed)
    tasks = _tasks(dice, jobs)
    at_s = 0.0
    trace: list[DemoJob] = []
    for number, (task, gap) in enumerate(zip(tasks, [0.0, *_gaps(dice, jobs - 1)], strict=True)):
        at_s += gap / compress
        trace.append(
            DemoJob(
                at_s=at_s,
                name=f"{task.model}-b{task.batch}",
                gpus=task.gpus,
                memory_mib=task.memory_mib,
                sm=task.sm,
                occupancy=task.occupancy,
                dram=task.dram,
                seconds=task.epoch_minutes * 60 * dice.choice(task.epochs) / compress,
                warmup_s=max(SHORTEST_WARMUP_S, task.warmup_s / compress),
                seed=number,
            )
        )
    return tuple(trace)


def _tasks(dice: random.Random, jobs: int) -> list[Task]:
    """The published mix, in random order."""
    light, heavy = round(LIGHT_SHARE * jobs), round(HEAVY_SHARE * jobs)
    counts = {Size.LIGHT: light, Size.MEDIUM: jobs - light - heavy, Size.HEAVY: heavy}
    tasks = [
        dice.choice([task for task in TABLE if task.size is size])
        for size, count in counts.items()
        for _ in range(count)
    ]
    dice.shuffle(tasks)
    return tasks


def _gaps(dice: random.Random, count: int) -> list[float]:
    """Draw one gap from each of `count` equal shares of the distribution, in random order."""
    gaps = [_quantile((number + dice.random()) / count) for number in range(count)]
    dice.shuffle(gaps)
    return gaps


def _quantile(share: float) -> float:
    for (low, shortest), (high, longest) in pairwise(GAPS):
        if share <= high:
            return shortest + (longest - shortest) * (share - low) / (high - low)
    raise ValueError(f"no share of a distribution: {share}")
