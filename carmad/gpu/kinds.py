"""The kinds of GPUs that can be simulated or emulated (`kinds.csv`): memory, power, and how fast
they train.

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
- CARMA: the paper; 279 W is where the fit ends, the highest reading was 280.
- Estimated, since none of them measured these: A30 as A100, A40 as A6000, L4 as A10 and L40S as
  RTX 6000 Ada, each times the ratio of memory bandwidths (data sheets); H200 as H100.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carmad.gpu import card

TABLE = Path(__file__).with_name("kinds.csv")


@dataclass(frozen=True, slots=True)
class GpuKind:
    """One GPU model, or a MIG instance of it."""

    name: str  # as in `--gpus 3xA100-40GB`
    memory_mib: int
    idle_w: float
    max_w: float
    speed: float  # of training relative to A100-40GB
    speeds: tuple[tuple[str, float], ...] = ()  # by model family, where measured
    sm_share: float = 1.0  # of the whole GPU's SMs; speeds are the whole GPU's
    dram_share: float = 1.0  # of its memory bandwidth
    peak: float = 0.85  # of the way from idle_w to max_w: what training at full activity takes
    product: str = ""  # as drivers call it, where that is known

    @property
    def busy_w(self) -> float:
        """Its power in training at full activity."""
        return self.idle_w + self.peak * (self.max_w - self.idle_w)

    def power_w(self, sm_active: float, dram_active: float) -> float:
        return card.power_w(self.idle_w, self.busy_w, sm_active, dram_active)


def _read() -> Iterator[GpuKind]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            speeds = (each.partition("=") for each in row["speeds"].split())
            yield GpuKind(
                row["name"],
                int(row["memory_mib"]),
                float(row["idle_w"]),
                float(row["max_w"]),
                float(row["speed"]),
                tuple((model, float(speed)) for model, _, speed in speeds),
                peak=float(row["peak"]),
                product=row["product"],
            )


KINDS = {kind.name: kind for kind in _read()}
