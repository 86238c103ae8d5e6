"""The kinds of GPUs that can be simulated or emulated: memory, power, and how fast they train.

Memory and idle power are as nvidia-smi prints them (driver R510 or later, ECC on where it is the
default, published listings); the maximum power is the board's limit in its data sheet.

Power rises with the activity to the power of 0.6 (`carmad.gpu.card.power_w`): low activity already
raises the clocks and costs the most. This exponent, and all of the DGX Station's power, is fitted
to 6,600 readings of SMACT and power in the CARMA artifact's figures (RMSE 13 W;
`python -m lab.carma.catalogue`). For the other kinds it is assumed that full activity takes
85 % of the way from idle to the board's limit, since heavy training stays below it
(arXiv:2506.14551: 76 % of a node's). Twelve public training runs on L4 and A10G (DCGM averages,
SMACT 0.18–0.56) suggest an exponent of 0.5, with an RMSE of 11 % of the range.

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
"""

from __future__ import annotations

from dataclasses import dataclass, field

from carmad.gpu import card


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
    peak: float = 0.85  # of the way from idle_w to max_w: what training at full activity takes

    @property
    def busy_w(self) -> float:
        """Its power in training at full activity."""
        return self.idle_w + self.peak * (self.max_w - self.idle_w)

    def power_w(self, sm_active: float, dram_active: float) -> float:
        return card.power_w(self.idle_w, self.busy_w, sm_active, dram_active)


def _speeds(**speeds: float) -> tuple[tuple[str, float], ...]:
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
    # The CARMA paper; 279 W is where the fit ends, the highest reading was 280
    GpuKind("DGX-Station-A100-40GB", 40_960, 52, 279, 1.0, peak=1.0),
    # Sia
    GpuKind(
        "T4-16GB",
        15_360,
        10,
        70,
        0.21,
        _speeds(bert=0.18, cifar10=0.17, imagenet=0.29, deepspeech2=0.59, ncf=0.50, yolov3=0.92),
    ),
    GpuKind(
        "RTX2080Ti-11GB",
        11_264,
        15,
        250,
        0.44,
        _speeds(bert=0.36, cifar10=0.39, imagenet=0.59, deepspeech2=0.98, ncf=0.53, yolov3=0.51),
    ),
    GpuKind(
        "RTX6000-24GB",
        24_576,
        15,
        260,
        0.47,
        _speeds(bert=0.44, cifar10=0.44, imagenet=0.54, deepspeech2=1.16, ncf=0.66, yolov3=1.31),
    ),
    # Gavel
    GpuKind(
        "P100-16GB",
        16_384,
        28,
        250,
        0.20,
        _speeds(resnet50=0.28, transformer=0.22, lm=0.25, cyclegan=0.23),
    ),
    GpuKind(
        "K80-12GB",
        11_441,
        29,
        150,
        0.06,
        _speeds(resnet50=0.07, transformer=0.08, lm=0.08, cyclegan=0.05),
    ),
)
KINDS = {kind.name: kind for kind in _MEASURED}


def _estimate(
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
    _estimate("H200-141GB", 143_771, 75, 700, "H100-80GB"),
    _estimate("A30-24GB", 24_576, 30, 165, "A100-40GB", 933 / 1555),  # GB/s
    _estimate("A40-48GB", 46_068, 30, 300, "A6000-48GB", 696 / 768),
    _estimate("L4-24GB", 23_034, 14, 72, "A10-24GB", 300 / 600),
    _estimate("L40S-48GB", 46_068, 25, 350, "RTX6000Ada-48GB", 864 / 960),
)
KINDS |= {kind.name: kind for kind in _ESTIMATED}
