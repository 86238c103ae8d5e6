"""The load of well-known training jobs on a GPU, for traces that only name a model.

The table is `coefficients/catalogue.csv`: memory (MiB, of the whole process) and durations (alone)
as published, and utilisation on NVML's scale, each row with its source. Where a row also has SMACT,
SMOCC and DRAMA, these count. Some are measured with GPM (`python -m lab.hardware loads`).
- Lucid's artifact measured it alone on an RTX 3090 (no mixed precision).
- CARMA's larger tasks: SMACT as the artifact's figures show it on an A100, with the durations of
  the paper's Table 4 (`python -m lab.carma.catalogue` derives the rows). SMOCC and DRAMA,
  which no figure shows, are derived from it; memory utilisation has the ratio to that of the GPU
  that Lucid measured for the family.
- Muri's is the share of an iteration that its GPU stage takes, Sia's the rate on a DGX A100 over
  that at the best batch size.
- "assumed" is only a guess by analogy. CARMA's light tasks (CIFAR-100) are assumed to be low: they
  feed 32-pixel images to networks made for 224, so that kernels are tiny and launches dominate. The
  one light task in the figures, MNIST, has a SMACT of 0.07.

`activity` converts utilisation to SMACT, SMOCC and DRAMA. Expect errors of ±0.05 in SMACT where it
was measured, ±0.1 where utilisation was, and more where neither was: the guesses that the figures
replaced were wrong by up to 0.32. Expect ±0.2 in DRAMA.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, cast

from carma_simulator.experiment import Load
from carmad.gpu.source import MOST_DRAM, SM_EXPONENT

Size = Literal["light", "medium", "heavy"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One training job from the literature."""

    load: Load
    dataset: str  # that it trains on; "": any
    gpus: int
    size: Size
    duration_s: float | None  # of the whole job alone, if published
    source: str


def find(model: str, batch_size: int = 0, dataset: str = "") -> Load | None:
    """The load of `model` at the nearest batch size known; None for an unknown model.

    Names are compared without case and punctuation: ResNet-18 is resnet18. If no row is for
    `dataset`, all are considered. Without a batch size, and between equals, the first row wins.
    """
    rows = _BY_MODEL.get(key(model), [])
    rows = [row for row in rows if key(row.dataset) == key(dataset)] or rows
    if not rows:
        return None
    if not batch_size:
        return rows[0].load
    return min(rows, key=lambda row: abs(row.load.batch_size - batch_size)).load


def load_of(model: str, batch_size: int = 0, dataset: str = "") -> Load:
    """As `find`; an unknown model gets the defaults of `Load`: a GPU that is half busy."""
    return find(model, batch_size, dataset) or Load(model, batch_size)


def key(name: str) -> str:
    """`name` in the form used for comparison: lower-case letters and digits only."""
    return "".join(char for char in name.lower() if char.isalnum())


def activity(gpu_util: float, gmem_util: float) -> tuple[float, float, float]:
    """SMACT, SMOCC and DRAMA for NVML's utilisation of the GPU and its memory, all 0–1.

    NVML counts the time in which any kernel runs, however small; DCGM the SMs that have work. The
    exponents are fitted to 2,146 MLP training runs on an A100 that GPUMemNet (no licence stated)
    measured both ways: RMSE 0.07 for SMACT, 0.03 for SMOCC; a look at its few CNN runs agrees. For
    DRAMA no such pairs are available: 0.8 is the most that can be reached in practice according to
    DCGM's manual.
    """
    sm_active = gpu_util**SM_EXPONENT
    return sm_active, 0.47 * sm_active**1.44, MOST_DRAM * gmem_util


def _profiles() -> tuple[Profile, ...]:
    text = files("carma_simulator").joinpath("coefficients/catalogue.csv").read_text()
    return tuple(_profile(row) for row in csv.DictReader(text.splitlines()))


def _profile(row: dict[str, str]) -> Profile:
    sm, occupancy, dram = _activity(row)
    load = Load(
        model=row["model"],
        batch_size=int(row["batch_size"]),
        memory_mib=int(row["memory_mib"]),
        sm_active=round(sm, 3),
        sm_occupancy=round(occupancy, 3),
        dram_active=round(dram, 3),
    )
    return Profile(
        load=load,
        dataset=row["dataset"],
        gpus=int(row["gpus"]),
        size=cast(Size, row["size"]),
        duration_s=float(row["duration_s"]) if row["duration_s"] else None,
        source=row["source"],
    )


def _activity(row: dict[str, str]) -> tuple[float, float, float]:
    if row["sm_active"]:
        return float(row["sm_active"]), float(row["sm_occupancy"]), float(row["dram_active"])
    return activity(float(row["gpu_util"]), float(row["gmem_util"]))


def _by_model(profiles: tuple[Profile, ...]) -> dict[str, list[Profile]]:
    grouped: dict[str, list[Profile]] = {}
    for profile in profiles:
        grouped.setdefault(key(profile.load.model), []).append(profile)
    return grouped


PROFILES = _profiles()
_BY_MODEL = _by_model(PROFILES)
