"""Runs the job's script, unmodified, until its second optimizer step, or to its end.

With several optimizers (a GAN) it continues until each has stepped twice, but waits for an inactive
one only until another has stepped ENOUGH times, or half of the time has passed. With gradient
accumulation a step is one of the optimizer, not an iteration. Patches to the script's torch and
other libraries are in `device`, `samples`, `moving`, `ranks`, `libraries` and `repeats`; its
confinement is in `confine` and `scratch`.
"""

from __future__ import annotations

import builtins
import contextlib
import runpy
import sys
import types
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import (
    compiler,
    device,
    libraries,
    moving,
    notebook,
    out_of_memory,
    outside,
    ranks,
    samples,
    torchvision_ops,
)
from .answering import Answer, first_line, offline, what_went_wrong
from .attribution import Attribution
from .blame import own_crash
from .clock import Clock
from .explaining import explained
from .fakecuda import Unfit
from .layers import Layers
from .options import Options
from .recording import Recorder
from .repeats import Repeats
from .replay import replay
from .report import LONGER, Report

STEPS = 2
ENOUGH = 12
OTHERS = {"jax": "JAX", "tensorflow": "TensorFlow", "cupy": "CuPy", "paddle": "Paddle"}


class Steps:
    """Counts the steps of each optimizer."""

    def __init__(self, clock: Clock) -> None:
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        make = torch.optim.Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            clock.works()
            make(optimizer, *args, **kwargs)
            self._taken[optimizer] = 0

        torch.optim.Optimizer.__init__ = init

    @property
    def rounds(self) -> int:
        """The number of steps of the optimizer with the fewest, among those that have stepped."""
        return min((n for n in self._taken.values() if n), default=0)

    def count(self, optimizer: Any, hurried: bool) -> bool:
        """Whether this step is the last that matters."""
        self._taken[optimizer] = self._taken.get(optimizer, 0) + 1
        taken = list(self._taken.values())
        if hurried and self.rounds >= STEPS:
            return True
        return min(taken) >= STEPS or max(taken) >= ENOUGH


class Trace:
    def __init__(self, options: Options, answer: Answer) -> None:
        self._answer = answer
        self._steps = Steps(answer.clock)
        compiler.spare()
        self.recorder = Recorder()
        self.layers = Layers(self.recorder)
        device.pretend(self.recorder, options.gpu, options.gpus, answer.refuse)
        ranks.install(self.recorder)
        samples.install()
        moving.install()
        outside.watch(self.recorder.deceived)
        libraries.install()
        self.attribution = Attribution(self.recorder) if options.explain else None
        self._repeats = Repeats(self.recorder)
        self._repeats.install()
        register_optimizer_step_pre_hook(lambda *_: self.recorder.mark("optimizer"))
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self.recorder.mark("stepped")
        before = self._steps.rounds
        last = self._steps.count(optimizer, self._answer.hurried)
        self._repeats.stepped()
        self.recorder.label_optimizer(optimizer)
        self._answer.steps = self._steps.rounds
        if self._steps.rounds > before:
            self.recorder.mark(f"step{self._steps.rounds}")
        if last:
            self.finish()

    def finish(self) -> None:
        """Answer with the report. Does not return."""
        recorder, steps = self.recorder, self._steps.rounds
        if not any(isinstance(id_, int) for id_, _ in recorder.events):
            self._answer.refuse(f"it put nothing on a GPU{_without_torch()}")
        if not steps:
            recorder.note("it ended by itself without an optimizer step: traced to its end")
        elif steps < STEPS:
            recorder.note("it ended by itself after one optimizer step: the second may take more")
        recorder.benchmark = bool(torch.backends.cudnn.benchmark)
        report = replay(recorder, self.layers, steps, self._answer.clock.seconds)
        report = out_of_memory.within(report, recorder)
        if self.attribution is not None:
            report = self._explained(report, self.attribution)
        self._answer.report(report)

    def _explained(self, report: Report, attribution: Attribution) -> Report:
        """An estimate without an explanation is better than none."""
        self._answer.keep(_with_note(report, f"there was no time to explain it: {LONGER}"))
        try:
            return explained(report, self.recorder, attribution)
        except Exception as error:  # noqa: BLE001 - else it would pass for the script's own
            return _with_note(report, f"it cannot be explained: {error!r:.200}")


def _with_note(report: Report, note: str) -> Report:
    return replace(report, notes=(*report.notes, note))


def _without_torch() -> str:
    used = [name for module, name in OTHERS.items() if module in sys.modules]
    return f": it uses {used[0]}, and only PyTorch is traced" if used else ""


def run(words: list[str], options: Options, answer: Answer) -> None:
    """`words`: the script or -m or -c, and its arguments. Does not return."""
    if options.processes:
        ranks.launched(options.processes)
    try:
        torchvision_ops.declare()
        trace = Trace(options, answer)
    except Unfit as error:
        answer.refuse(str(error))
    try:
        with trace.recorder, trace.layers, trace.attribution or contextlib.nullcontext():
            _execute(words)
    except SystemExit as error:
        if error.code not in (None, 0):
            _blame(error, trace.recorder, answer)
            status, said = error.code, ""
            if not isinstance(status, int):
                status, said = 1, f": {first_line(error.code)}"
            answer.refuse(f"it left with status {status} before two optimizer steps{said}")
    except KeyboardInterrupt:
        answer.refuse("it interrupted itself")
    except MemoryError:
        answer.refuse(_short_of_memory(options))
    except Exception as error:  # noqa: BLE001  the script's own
        text = what_went_wrong(error)
        if "can't allocate memory" in text:
            answer.refuse(_short_of_memory(options))
        if no_network := offline(error):
            answer.refuse(text + no_network)
        _blame(error, trace.recorder, answer)
        answer.refuse(text)
    trace.finish()


def _blame(error: BaseException, recorder: Recorder, answer: Answer) -> None:
    """Does not return if the script would fail on a GPU, too."""
    try:
        # Frameworks that clean up after an error may read values then.
        how = own_crash(error, recorder.made_up and error is not recorder.failed)
    except Exception:  # noqa: BLE001  its exceptions may be of its own making
        return
    if how:
        answer.crash(how)


def _short_of_memory(options: Options) -> str:
    return f"it needs more than {options.host_memory_mib} MiB of host memory to start"


def _execute(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        if words[0].endswith(".ipynb"):
            sys.path.insert(0, "")
            notebook.run(Path(words[0]))
        else:
            runpy.run_path(words[0], run_name="__main__")
