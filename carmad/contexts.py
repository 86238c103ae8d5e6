"""What CUDA and its libraries take of a GPU's memory per process: `contexts.csv`, as measured, with
the source of each row. `carma doctor --gpu` prints the row of the GPU at hand.

Only stacks with known versions are in it. The A100 behind `lab.memory` is not: its processes took
1,429 MiB (MLPs) and 1,737 MiB (timm), but its versions of torch and CUDA are not published.
"""

from __future__ import annotations

import csv
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("contexts.csv")


@dataclass(frozen=True, slots=True)
class Context:
    """In MiB, beside what PyTorch's allocator has reserved."""

    gpu: str  # as the driver names it
    torch: str  # torch.__version__
    context_mib: int  # once a first kernel has run
    cublas_mib: int  # more once a matrix product has run
    cudnn_mib: int  # more once a convolution has run
    source: str

    @property
    def mib(self) -> int:
        return self.context_mib + self.cublas_mib + self.cudnn_mib

    @property
    def row(self) -> str:
        """As in the table."""
        return ",".join(str(value) for value in astuple(self))


def find_context(gpu: str, torch: str) -> Context | None:
    """Of this GPU with this torch, or else with the nearest one: built for the same CUDA, or any.
    None if the GPU is not in the table."""

    def likeness(one: Context) -> tuple[bool, bool]:
        return one.torch == torch, _cuda(one.torch) == _cuda(torch)

    return max((one for one in _table() if one.gpu == gpu), key=likeness, default=None)


def _cuda(torch: str) -> str:
    return torch.partition("+")[2]


@cache
def _table() -> tuple[Context, ...]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(
            Context(
                line["gpu"],
                line["torch"],
                int(line["context_mib"]),
                int(line["cublas_mib"]),
                int(line["cudnn_mib"]),
                line["source"],
            )
            for line in csv.DictReader(file)
        )
