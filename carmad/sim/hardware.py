"""The GPUs of a simulated cluster: their kinds, how many on which node, and how MIG divides
them. The speed of a job on a MIG instance is in `carmad.sim.workload`.

Memory and idle power are as nvidia-smi prints them (driver R510 or later, ECC on where it is the
default, published listings); the maximum power is the board's limit in its data sheet.

Speeds, all relative to an A100 of 40 GB in 32-bit training (TF32 where the GPU has it):
- Lambda: github.com/lambdal/deeplearning-benchmark, pytorch-train-throughput-fp32.csv, against its
  A100 40GB PCIe; `speed` is the geometric mean of its ten workloads. Each GPU ran the largest batch
  that fits it, which favours those with more memory.
- Sia: the artifact's step times on one GPU, against its DGX A100, at the largest batch size that
  both measured (T4, Quadro RTX 6000, RTX 2080 Ti).
- Gavel: the artifact's throughputs of P100 and K80 against its V100 (geometric mean over batch
  sizes), times Lambda's V100 for the nearest workload.
- Estimated, since none of them measured these: A30 as A100, A40 as A6000, L4 as A10 and L40S as
  RTX 6000 Ada, each times the ratio of memory bandwidths (data sheets); H200 as H100.

MIG profiles: memory as `nvidia-smi mig -lgip` prints it, in GiB (published listings: H200 in issue
120 of NVIDIA/mig-parted; another driver may have 1/8 GiB more or less); slices by the MIG User
Guide, "Supported MIG Profiles".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import sqrt

from carmad.errors import CarmaError


@dataclass(frozen=True, slots=True)
class GpuKind:
    """One GPU model, or a MIG instance of it."""

    name: str  # as in `--gpus 3xA100-40GB`
    memory_mib: int
    idle_w: float
    max_w: float
    speed: float  # of training relative to A100-40GB
    speeds: tuple[tuple[str, float], ...] = field(default=())  # by model family, where measured
    sm_share: float = 1.0  # of the whole GPU's SMs; speeds are the whole GPU's
    dram_share: float = 1.0  # of its memory bandwidth


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: GpuKind
    gpus: int
    instances: tuple[GpuKind, ...] = ()  # into which MIG divides each GPU; (): not divided

    @property
    def units(self) -> tuple[GpuKind, ...]:
        """What jobs can be given: the whole GPU, or its instances."""
        return self.instances or (self.kind,)


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[Node, ...]


def _measured(**speeds: float) -> tuple[tuple[str, float], ...]:
    return tuple(speeds.items())


def _lambda(resnet50: float, bert_base: float, bert_large: float) -> tuple[tuple[str, float], ...]:
    return (("resnet50", resnet50), ("bertbase", bert_base), ("bertlarge", bert_large))


_MEASURED = (
    # Lambda
    GpuKind("A100-40GB", 40_960, 50, 400, 1.0),
    GpuKind("A100-80GB", 81_920, 55, 400, 1.28, _lambda(1.21, 1.34, 1.42)),
    GpuKind("H100-80GB", 81_559, 69, 700, 2.12, _lambda(1.99, 2.28, 2.66)),
    GpuKind("A10-24GB", 23_028, 15, 150, 0.38, _lambda(0.40, 0.39, 0.36)),
    GpuKind("A6000-48GB", 49_140, 25, 300, 0.60, _lambda(0.58, 0.56, 0.62)),
    GpuKind("RTX6000Ada-48GB", 49_140, 24, 300, 0.79, _lambda(0.73, 0.76, 0.83)),
    GpuKind("RTX3090-24GB", 24_576, 25, 350, 0.52, _lambda(0.58, 0.47, 0.45)),
    GpuKind("RTX4090-24GB", 24_564, 17, 450, 0.83, _lambda(0.82, 0.77, 0.83)),
    GpuKind("V100-16GB", 16_384, 40, 300, 0.29, _lambda(0.42, 0.23, 0.23)),
    GpuKind("V100-32GB", 32_768, 40, 300, 0.29, _lambda(0.42, 0.23, 0.23)),
    # Sia
    GpuKind(
        "T4-16GB",
        15_360,
        10,
        70,
        0.21,
        _measured(bert=0.18, cifar10=0.17, imagenet=0.29, deepspeech2=0.59, ncf=0.50, yolov3=0.92),
    ),
    GpuKind(
        "RTX2080Ti-11GB",
        11_264,
        15,
        250,
        0.44,
        _measured(bert=0.36, cifar10=0.39, imagenet=0.59, deepspeech2=0.98, ncf=0.53, yolov3=0.51),
    ),
    GpuKind(
        "RTX6000-24GB",
        24_576,
        15,
        260,
        0.47,
        _measured(bert=0.44, cifar10=0.44, imagenet=0.54, deepspeech2=1.16, ncf=0.66, yolov3=1.31),
    ),
    # Gavel
    GpuKind(
        "P100-16GB",
        16_384,
        28,
        250,
        0.20,
        _measured(resnet50=0.28, transformer=0.22, lm=0.25, cyclegan=0.23),
    ),
    GpuKind(
        "K80-12GB",
        11_441,
        29,
        150,
        0.06,
        _measured(resnet50=0.07, transformer=0.08, lm=0.08, cyclegan=0.05),
    ),
)
KINDS = {kind.name: kind for kind in _MEASURED}


def _estimated(
    name: str, memory_mib: int, idle_w: float, max_w: float, like: str, ratio: float = 1.0
) -> GpuKind:
    """A kind that trains every model `ratio` times as fast as the kind `like`."""
    measured = KINDS[like]
    return GpuKind(
        name,
        memory_mib,
        idle_w,
        max_w,
        round(measured.speed * ratio, 2),
        tuple((model, round(speed * ratio, 2)) for model, speed in measured.speeds),
    )


_ESTIMATED = (
    _estimated("H200-141GB", 143_771, 75, 700, "H100-80GB"),
    _estimated("A30-24GB", 24_576, 30, 165, "A100-40GB", 933 / 1555),  # GB/s
    _estimated("A40-48GB", 46_068, 30, 300, "A6000-48GB", 696 / 768),
    _estimated("L4-24GB", 23_034, 14, 72, "A10-24GB", 300 / 600),
    _estimated("L40S-48GB", 46_068, 25, 350, "RTX6000Ada-48GB", 864 / 960),
)
KINDS |= {kind.name: kind for kind in _ESTIMATED}

# Memory slices: their name in GB, and their size in MiB; the largest is the whole GPU.
_MIG_SIZES = {
    "A100-40GB": {1: (5, 4_864), 2: (10, 9_984), 4: (20, 20_096), 8: (40, 40_320)},
    "A100-80GB": {1: (10, 9_728), 2: (20, 19_968), 4: (40, 40_192), 8: (80, 80_896)},
    "H100-80GB": {1: (10, 9_984), 2: (20, 20_096), 4: (40, 40_320), 8: (80, 81_024)},
    "H200-141GB": {1: (18, 16_384), 2: (35, 33_024), 4: (71, 71_168), 8: (141, 143_104)},
    "A30-24GB": {1: (6, 5_952), 2: (12, 11_968), 4: (24, 24_000)},
}
# Compute and memory slices of each profile, by the GPU's number of memory slices.
_MIG_SLICES = {
    8: ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8)),
    4: ((1, 1), (2, 2), (4, 4)),
}
# Compute slices, memory slices and MiB; the last profile is the whole GPU. Profiles whose slices
# do not exceed it in total can be placed together.
_MIG_PROFILES = {
    name: {f"{c}g.{sizes[m][0]}gb": (c, m, sizes[m][1]) for c, m in _MIG_SLICES[max(sizes)]}
    for name, sizes in _MIG_SIZES.items()
}

_BY_LOWER_NAME = {name.lower(): kind for name, kind in KINDS.items()}
_PART = re.compile(r"(?:(\d{1,5})x)?(\d{1,3})x([^/]+)(?:/(.*))?", re.IGNORECASE)
_INSTANCES = re.compile(r"(?:([1-9])x)?(.+)")
_TRAINING_PEAK = 0.85


def parse(text: str) -> Cluster:
    """`3xA100-40GB` is one node with three GPUs, `250x8xV100-32GB` is 250 nodes with eight each.

    Commas separate different parts. In `2xA100-40GB/3g.20gb+2x2g.10gb` each GPU is divided
    into those MIG instances. Raises CarmaError for any other form, or an impossible division.
    """
    shapes = [shape for part in text.split(",") for shape in _nodes(part.strip(), text)]
    return Cluster(tuple(Node(f"node{i}", *shape) for i, shape in enumerate(shapes)))


def _nodes(part: str, text: str) -> list[tuple[GpuKind, int, tuple[GpuKind, ...]]]:
    match = _PART.fullmatch(part)
    kind = _BY_LOWER_NAME.get(match[3].lower()) if match else None
    if match and kind is None:
        raise _unknown(match[3])
    nodes, gpus = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if kind is None or not nodes or not gpus:
        raise CarmaError(
            f"{part!r} in {text!r} does not name GPUs that can be simulated",
            "write 3xA100-40GB, for many nodes 250x8xV100-32GB, for MIG 1xA100-40GB/7x1g.5gb; "
            f"kinds: {', '.join(KINDS)}",
        )
    instances = () if not match or match[4] is None else _instances(kind, match[4])
    return [(kind, gpus, instances)] * nodes


def _unknown(name: str) -> CarmaError:
    """Suggests kinds that begin alike, ignoring dashes; otherwise those spelt similarly."""
    plain = {lower.replace("-", ""): kind.name for lower, kind in _BY_LOWER_NAME.items()}
    asked = name.lower().replace("-", "")
    meant = [kind for lower, kind in plain.items() if lower.startswith(asked)]
    meant = meant or [plain[near] for near in get_close_matches(asked, plain, n=2)]
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    return CarmaError(f"no GPU is called {name!r}", f"{hint}kinds: {', '.join(KINDS)}")


def _instances(kind: GpuKind, text: str) -> tuple[GpuKind, ...]:
    """The instances in a text like `3g.20gb+2x2g.10gb`, for one GPU."""
    profiles = _MIG_PROFILES.get(kind.name)
    if profiles is None:
        kinds = ", ".join(_MIG_PROFILES)
        raise CarmaError(f"{kind.name} does not support MIG", f"kinds that do: {kinds}")
    names: list[str] = []
    for some in text.lower().split("+"):
        match = _INSTANCES.fullmatch(some.strip())
        names += [match[2]] * int(match[1] or 1) if match else [some]
    *_, (all_compute, all_memory, _) = profiles.values()
    known = [profiles[name] for name in names if name in profiles]
    compute, memory = (sum(slices[i] for slices in known) for i in (0, 1))
    if len(known) < len(names) or compute > all_compute or memory > all_memory:
        each = ", ".join(f"{name} ({c}, {m})" for name, (c, m, _) in profiles.items())
        raise CarmaError(
            f"{kind.name} cannot be divided into {text!r}",
            f"its profiles take, of {all_compute} compute and {all_memory} memory slices: {each}",
        )
    return tuple(
        _instance(kind, name, c / compute, c / all_compute, m / all_memory, mib)
        for name, (c, m, mib) in zip(names, known, strict=True)
    )


def _instance(
    kind: GpuKind, profile: str, idle_share: float, sm_share: float, dram_share: float, mib: int
) -> GpuKind:
    """Idle power is shared by the instances, including that of unused slices.

    Power beyond that is split by SMs, as if it were proportional to activity. In reality
    the first job costs the most (`power_w`): a divided GPU with few busy instances draws more.
    """
    idle_w = kind.idle_w * idle_share
    return replace(
        kind,
        name=f"{kind.name}/{profile}",
        memory_mib=mib,
        idle_w=idle_w,
        max_w=idle_w + (kind.max_w - kind.idle_w) * sm_share,
        sm_share=sm_share,
        dram_share=dram_share,
    )


def power_w(kind: GpuKind, sm_active: float, dram_active: float) -> float:
    """Power of one GPU, from `idle_w` at rest to 85 % of the way to `max_w` at full activity.

    It rises with the square root of the busier of SM and DRAM (0–1), since low activity already
    raises the clocks and costs the most; the CARMA paper, 4.6, also finds that power is not
    proportional to load. On DCGM averages of twelve public training runs on L4 and A10G
    (SMACT 0.18–0.56) the RMSE is 11 % of the range; the best straight line from idle
    has 19 %. Heavy training stays below the rated power (arXiv:2506.14551: 76 % of a node's).
    """
    busy = min(1.0, max(sm_active, dram_active))
    return kind.idle_w + _TRAINING_PEAK * (kind.max_w - kind.idle_w) * sqrt(busy)
