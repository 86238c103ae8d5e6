"""The Castor paper's tables 5 and 6, and whether they mean what they seem to.

Table 4 is of a testbed of 32 GPUs with 30 or 60 jobs of minutes, "sampled and scaled down": which
jobs, how far apart, is not said, so that it cannot be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The workloads by the samples that stand for them. Sia's Saturn is not the paper's Venus.
PAPERS = {"philly": "Philly", "saturn": "Venus (ours: Sia's Saturn)"}
Hours = tuple[float, float, float]  # of all jobs; what large and what small ones contribute


@dataclass(frozen=True, slots=True)
class Told:
    """A row of the paper's tables 5 and 6."""

    jct: Hours
    wait: Hours


# Simulated, hours (tables 5 and 6).
SIMULATED: Mapping[str, Mapping[str, Told]] = {
    "philly": {
        "fifo": Told((2.64, 1.04, 1.60), (1.86, 0.94, 0.92)),
        "sjf": Told((1.88, 0.36, 1.51), (1.09, 0.26, 0.83)),
        "tiresias": Told((2.57, 1.31, 1.26), (1.75, 1.19, 0.55)),
        "pollux": Told((2.17, 1.09, 1.08), (1.00, 1.21, 0.97)),
        "lucid": Told((2.10, 1.32, 0.78), (1.26, 1.21, 0.05)),
        "castor": Told((1.54, 0.45, 1.09), (0.41, 0.28, 0.12)),
    },
    "saturn": {
        "fifo": Told((4.73, 1.94, 2.79), (3.51, 1.77, 1.74)),
        "sjf": Told((3.35, 0.72, 2.64), (2.14, 0.55, 1.59)),
        "tiresias": Told((3.94, 1.76, 2.18), (2.68, 1.58, 1.10)),
        "lucid": Told((3.35, 1.14, 2.21), (2.07, 2.05, 0.02)),
        "castor": Told((2.89, 1.13, 1.76), (0.93, 0.76, 0.17)),
    },
}
ROUNDED = 0.015  # by which the sum of two figures of two digits may be off


def sums() -> str:
    off = []
    rows = 0
    for family, told in SIMULATED.items():
        for policy, row in told.items():
            for what, (whole, large, small) in (("JCT", row.jct), ("queueing", row.wait)):
                rows += 1
                if abs(large + small - whole) > ROUNDED:
                    off.append(f"{PAPERS[family]}, {policy}, {what}: {large} + {small} ≠ {whole}")
    return (
        f"In {rows - len(off)} of the {rows} rows the figures of large (> 8 GPUs) and of small jobs"
        " add up to that of all jobs: they are what each class contributes to the mean over all,"
        " not means over the class. So they are here, with the means beside them. The exception:"
        f" {'; '.join(off)}."
    )
