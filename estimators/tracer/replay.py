"""Turns a recording into the numbers of a report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .allocator import DEFAULTS, Allocator, Options, options
from .convolution import BLAS, autotuning, images, workspace
from .report import CONTEXT_MIB, PARTS, Report

if TYPE_CHECKING:
    from .convolution import Conv
    from .modules import Layers
    from .recording import Recorder, Recording


LAYOUTS = range(5)  # of the allocator's segments, in which a recording is replayed


@dataclass(frozen=True)
class Figures:
    """In bytes, as in `Report`."""

    floor: int
    reserved: int
    parts: dict[str, int]
    autotune: int
    faketensor: int


def options_here() -> tuple[Options, tuple[str, ...]]:
    """The allocator's options in this process's environment, and notes on those not modelled."""
    text = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF", "")
    return options(text)


def replay(recorder: Recorder, layers: Layers, steps: int, seconds: float) -> Report:
    """The report on what `recorder` saw, under the allocator's options of this process."""
    replays = Replays(recorder)
    replays.follow()
    return report(replays, recorder, layers, steps, seconds)


def report(
    replays: Replays, recorder: Recorder, layers: Layers, steps: int, seconds: float
) -> Report:
    _, notes = options_here()
    found = replays.typical
    if found.autotune:
        notes = (*notes, f"cudnn.benchmark may take {found.autotune >> 20} MiB more for a moment")
    return Report(
        torch=torch.__version__,
        steps=steps,
        floor=found.floor,
        reserved=found.reserved,
        most=replays.most,
        parts=found.parts,
        autotune=found.autotune,
        faketensor=found.faketensor,
        batch=layers.batch,
        layers=tuple(layers.layers),
        notes=(*recorder.notes, *notes),
        seconds=seconds,
    )


def figures(recording: Recording, chosen: Options = DEFAULTS, layout: int = 0) -> Figures:
    run = Replay(recording, Allocator(chosen, layout=layout))
    for what, how in recording.events:
        run.take(what, how)
    return run.figures()


class Replay:
    """The allocator, and what is in it, by part. Takes events one by one."""

    def __init__(self, recording: Recording, allocator: Allocator) -> None:
        self.allocator = allocator
        self.parts = dict.fromkeys(PARTS, 0)  # bytes in use now
        self.in_use = 0  # their sum
        self.most_in_use = 0
        self._recording = recording
        self._rest = "activations"  # what storages without a kind are for
        self._tuned: set[Conv] = set()
        self._live: dict[Any, tuple[int, str]] = {}
        self._floor = self._reserved = 0
        self._faketensor: int | None = None
        self._searched = 0  # most that was reserved during a search for an algorithm
        self._at_peak = dict(self.parts)
        self.phases = {"training": 0}  # the most in use in each
        self.phase = "training"
        self._most_in_phase = 0

    def take(self, what: Any, how: Any) -> None:
        if what == "conv":
            self._convolve(self._recording.convs[how])
        elif what == "blas":
            self.allocate(("blas", how), BLAS, "workspace")
        elif what == "empty":
            self.allocator.empty_cache()
        elif what == "mark":
            self._mark(how)
        elif what == "phase":
            self.begin_phase(how)
        elif what in ("enter", "exit"):
            pass
        elif how >= 0:
            self.allocate(what, how, self._recording.kinds.get(what, self._rest))
        else:
            self._release(what)

    def figures(self) -> Figures:
        cached = self._reserved - sum(self._at_peak.values())
        return Figures(
            floor=self._floor,
            reserved=self._reserved,
            parts={**self._at_peak, "cached": cached},
            autotune=max(0, self._searched - self._reserved),
            faketensor=self._floor if self._faketensor is None else self._faketensor,
        )

    def allocate(self, name: Any, nbytes: int, part: str) -> None:
        self.allocator.allocate(name, nbytes)
        self._live[name] = nbytes, part
        self.parts[part] += nbytes
        self.in_use += nbytes
        self._floor = max(self._floor, self.in_use - self.parts["workspace"])
        self._reserved = max(self._reserved, self.allocator.reserved)
        self._most_in_phase = max(self._most_in_phase, self.in_use)
        if self.in_use > self.most_in_use:
            self.most_in_use = self.in_use
            self._at_peak = dict(self.parts)

    def begin_phase(self, following: str) -> None:
        most = max(self.phases.get(self.phase, 0), self._most_in_phase)
        self.phases[self.phase] = most
        self.phase, self._most_in_phase = following, self.in_use

    def _release(self, name: Any) -> None:
        self.allocator.release(name)
        nbytes, part = self._live.pop(name)
        self.parts[part] -= nbytes
        self.in_use -= nbytes

    def _convolve(self, conv: Conv) -> None:
        if self._recording.benchmark and conv not in self._tuned:
            self._tuned.add(conv)
            free = self._recording.memory - (CONTEXT_MIB << 20) - self.allocator.reserved
            self.allocator.allocate("search", autotuning(conv, free))
            self._searched = max(self._searched, self.allocator.reserved)
            self.allocator.release("search")
            self.allocator.empty_cache()  # as PyTorch does after each search for an algorithm
        self._pad(images(conv))
        self.allocate("conv", workspace(conv), "workspace")
        self._release("conv")

    def _pad(self, nbytes: int) -> None:
        held, _ = self._live.get("images", (0, ""))
        if nbytes > held:
            if held:
                self._release("images")
            self.allocate("images", nbytes, "workspace")

    def _mark(self, name: str) -> None:
        if name == "backward" and self._faketensor is None:
            self._faketensor = self._floor
        if name in ("optimizer", "stepped"):  # what its step takes for a while is the optimizer's
            self._rest = "optimizer" if name == "optimizer" else "activations"


class Replays:
    """Of what a recorder sees, in all LAYOUTS, under the allocator's options of this process."""

    def __init__(self, recorder: Recorder) -> None:
        chosen, _ = options_here()
        self._events = recorder.events
        self._every = [
            Replay(recorder.recording, Allocator(chosen, layout=layout)) for layout in LAYOUTS
        ]
        self._taken = 0  # events

    def follow(self) -> None:
        """Take the events that have come since the last time."""
        new = self._events[self._taken :]
        self._taken += len(new)
        for one in self._every:
            for what, how in new:
                one.take(what, how)

    @property
    def layout(self) -> int:
        """The one with the median of what is reserved, which is what to expect."""
        ranked = sorted(LAYOUTS, key=lambda one: self._every[one].figures().reserved)
        return ranked[len(ranked) // 2]

    @property
    def typical(self) -> Figures:
        return self._every[self.layout].figures()

    @property
    def most(self) -> int:
        """Bytes reserved in the worst layout."""
        return max(one.figures().reserved for one in self._every)

    @property
    def phases(self) -> dict[str, int]:
        """The most bytes in use in each phase until now: equal in all layouts."""
        one = self._every[0]
        one.begin_phase(one.phase)
        return one.phases
