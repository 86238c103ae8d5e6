"""Turns a recording into the numbers of a report.

Imports PyTorch only where it is there already: the daemon asks `safe`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Iterable, Sequence

from .allocator import DEFAULTS, Allocator, Options, options
from .report import PARTS, Report
from .workspace import BLAS, autotuning, workspace

if TYPE_CHECKING:
    from .convolution import Conv
    from .layers import Layers
    from .recording import Recorder


@dataclass(frozen=True)
class Figures:
    """In bytes, as in `Report`."""

    floor: int
    reserved: int
    parts: dict[str, int]
    autotune: int
    faketensor: int


def replay(recorder: Recorder, layers: Layers, steps: int, seconds: float) -> Report:
    """The report on what `recorder` saw, under the allocator's options of this process."""
    import torch

    text = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF", "")
    chosen, notes = options(text)
    found = figures(
        recorder.events,
        recorder.convs,
        recorder.kinds,
        recorder.benchmark,
        chosen,
        recorder.memory,
    )
    if found.autotune:
        notes = (*notes, f"cudnn.benchmark may take {found.autotune >> 20} MiB more for a moment")
    return Report(
        torch=torch.__version__,
        steps=steps,
        floor=found.floor,
        reserved=found.reserved,
        parts=found.parts,
        autotune=found.autotune,
        faketensor=found.faketensor,
        batch=layers.batch,
        layers=tuple(layers.layers),
        notes=(*recorder.notes, *notes),
        seconds=seconds,
    )


def safe(report: Report) -> int:
    """Bytes for the allocator that should be free: 5 % and 512 MiB above the expected value, or
    what cudnn.benchmark takes if that is more, since it is done before the peak. Few of the timm
    runs exceed it; `benchmarks/memory/timm.py` shows how many do."""
    return report.reserved + max(report.reserved // 20 + (512 << 20), report.autotune)


def figures(
    events: Iterable[tuple[Any, Any]],
    convs: Sequence[Conv],
    kinds: dict[int, str],
    benchmark: bool = False,
    chosen: Options = DEFAULTS,
    memory: float = inf,
) -> Figures:
    """Replays (what, how) as `Recorder.events` describes them; `benchmark` is cudnn.benchmark's,
    `memory` the GPU's, in bytes."""
    run = _Replay(benchmark, Allocator(chosen), memory)
    for what, how in events:
        if what == "conv":
            run.convolve(convs[how])
        elif what == "blas":
            run.allocate(("blas", how), BLAS, "workspace")
        elif what == "empty":
            run.allocator.empty_cache()
        elif what == "mark":
            run.mark(how)
        elif how >= 0:
            run.allocate(what, how, kinds.get(what, "activations"))
        else:
            run.release(what)
    return run.figures()


class _Replay:
    """The allocator and what is in it, by part."""

    def __init__(self, benchmark: bool, allocator: Allocator, memory: float) -> None:
        self.allocator = allocator
        self._benchmark, self._memory = benchmark, memory
        self._tuned: set[Conv] = set()
        self._live: dict[Any, tuple[int, str]] = {}
        self._parts = dict.fromkeys(PARTS, 0)  # bytes now
        self._floor = self._tensors = 0
        self._faketensor: int | None = None
        self._searched = 0  # most that was reserved during a search for an algorithm
        self._fullest = 0, 0  # bytes reserved at most, and of these allocated at most
        self._at_peak = dict(self._parts)

    def allocate(self, name: Any, nbytes: int, part: str) -> None:
        self.allocator.allocate(name, nbytes)
        self._live[name] = nbytes, part
        self._parts[part] += nbytes
        if part != "workspace":
            self._tensors += nbytes
            self._floor = max(self._floor, self._tensors)
        fullness = self.allocator.reserved, self.allocator.allocated
        if fullness > self._fullest:
            self._fullest = fullness
            self._at_peak = dict(self._parts)

    def release(self, name: Any) -> None:
        self.allocator.release(name)
        nbytes, part = self._live.pop(name)
        self._parts[part] -= nbytes
        if part != "workspace":
            self._tensors -= nbytes

    def convolve(self, conv: Conv) -> None:
        if self._benchmark and conv not in self._tuned:
            self._tuned.add(conv)
            free = self._memory - self.allocator.allocated
            self.allocator.allocate("search", autotuning(conv, free))
            self._searched = max(self._searched, self.allocator.reserved)
            self.allocator.release("search")
            self.allocator.empty_cache()  # as PyTorch does after each search for an algorithm
        self.allocate("conv", workspace(conv), "workspace")
        self.release("conv")

    def mark(self, name: str) -> None:
        if name == "backward" and self._faketensor is None:
            self._faketensor = self._floor

    def figures(self) -> Figures:
        reserved, _ = self._fullest
        rest = reserved - sum(self._at_peak.values())
        return Figures(
            floor=self._floor,
            reserved=reserved,
            parts={**self._at_peak, "fragmentation": rest},
            autotune=max(0, self._searched - reserved),
            faketensor=self._floor if self._faketensor is None else self._faketensor,
        )
