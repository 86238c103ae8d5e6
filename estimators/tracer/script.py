"""Runs the job's script, unmodified, until its second optimizer step, and on as `rest` says.

With several optimizers (a GAN) it continues until each has stepped twice, but waits for an inactive
one only until another has stepped ENOUGH times, or half of the time has passed. With gradient
accumulation a step is one of the optimizer, not an iteration. Patches to the script's torch and
other libraries are in `device`, `tensors`, `shortcuts`, `ranks` and the files that `patching`
reads; its confinement is in `confine` and `scratch`, the processes that it starts in `following`.

Of a Jupyter notebook the code cells are run, without a kernel. Lines that begin with `%` or `!`
(magics, shell commands) are left out, as are cells in another language. `display` does nothing, and
`get_ipython()` returns an object that accepts any call.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import json
import os
import re
import runpy
import sys
import types
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, NoReturn

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import (
    checkpoints,
    device,
    following,
    foreign,
    imports,
    patching,
    ranks,
    sockets,
    substitutes,
    tensors,
)
from .answering import Answer, offline, one_line, what_went_wrong
from .attempts import STEPS, explore
from .blame import judge, stop
from .choices import Deceit, Plan
from .command import Options
from .explanation import with_explanation
from .modules import Attribution, Layers
from .recording import Recorder
from .replay import Replays
from .replay import report as report_of
from .report import LONGER, Report, Stop
from .rest import Ending, Phases
from .shortcuts import PASSES, Repeats
from .swallowed import Swallowed

_AFTER_FORK = "autograd's threading in combination with fork"  # PyTorch trains in no such process
PARTLY = "a process that was started after a backward pass counts as far as its own first one"
ENOUGH = 12
FOREIGN_S = 0.5  # of a processor, without imports, that another framework computes at least

SAME = re.compile(r"%%(time|timeit|capture|prun|memit)\b.*")  # the rest of the cell is Python
MAGIC = re.compile(r"^(\s*)(?:[%!].*|(?:[\w, ]+=\s*)[!%].*|\?.*|[\w.]+\?+\s*)$", re.MULTILINE)


class Steps:
    """Counts the steps of each optimizer."""

    def __init__(self) -> None:
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.by_hand = True  # there has been no optimizer
        make = torch.optim.Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._taken[optimizer] = 0
            self.by_hand = False

        torch.optim.Optimizer.__init__ = init

    def restart(self) -> None:
        """In a process that was forked: its parent's optimizers are not its own."""
        self._taken.clear()
        self.by_hand = True

    @property
    def rounds(self) -> int:
        """The number of steps of the optimizer with the fewest, among those that have stepped."""
        return min((n for n in self._taken.values() if n), default=0)

    def count(self, optimizer: Any, hurried: bool) -> bool:
        """Whether this step is the last that matters."""
        self._taken[optimizer] = self._taken.get(optimizer, 0) + 1
        self.by_hand = False
        taken = list(self._taken.values())
        if hurried and self.rounds >= STEPS:
            return True
        return min(taken) >= STEPS or max(taken) >= ENOUGH


class Trace:
    """The patched torch, and what is recorded through it."""

    def __init__(self, options: Options, answer: Answer) -> None:
        """Raises Unfit."""
        self._options, self._answer = options, answer
        self._steps = Steps()
        imports.spare()
        substitutes.give_zeros()
        self.recorder = Recorder()
        self.layers = Layers(self.recorder)
        device.pretend(self.recorder, options.gpu, options.gpus)
        tensors.install(self.recorder)
        ranks.install(self.recorder, self._leave)
        self._phases = Phases(self.recorder)
        self._phases.install()
        self._swallowed = Swallowed(self.recorder)
        self._swallowed.install()
        sockets.install(self._refuse_network)
        kept = checkpoints.Checkpoints(self.recorder)
        kept.install()
        patching.install(options.patches, self.recorder, kept.has)
        self._repeats = Repeats(self.recorder, self._before_call, self._after_pass)
        self._repeats.install()
        register_optimizer_step_pre_hook(lambda *_: self.recorder.mark("optimizer"))
        register_optimizer_step_post_hook(self._after_step)
        following.install(self)
        self.attribution = Attribution(self.recorder) if options.explain else None
        self._rest = self._ending()
        answer.trace = self

    def _ending(self) -> Ending:
        return Ending(self.recorder, self._phases, self._answer, self._options.rest_s)

    def _refuse_network(self) -> None:
        self.recorder.deceive()
        self._swallowed.note_network()

    def run(self, words: list[str]) -> NoReturn:
        """`words`: the script or -m or -c, and its arguments."""
        explore(self._answer, lambda plan: self._attempt(words, plan))

    def _attempt(self, words: list[str], plan: Plan) -> NoReturn:
        recorder = self.recorder
        recorder.choices.plan, recorder.deceived = plan, Deceit()
        if plan.flipped:
            lines = sorted({place.rpartition("@")[2] for place in plan.flipped})
            places = ", ".join(line.rpartition(os.sep)[2] for line in lines)
            recorder.note(
                f"what is read from the GPU at {places} decides: taken so that it goes on"
            )
        with recorder, self.layers, self.attribution or contextlib.nullcontext():
            self.guard(lambda: _execute(words))
            self.finish()

    # -- processes that the script starts ----------------------------------------------------------

    @property
    def own_s(self) -> float:
        return self._answer.clock.own_s

    @property
    def steps(self) -> int:
        return self._steps.rounds

    def begin_process(self, own_s: float) -> None:
        """Call this in one that was just forked. `own_s`: the clock's before."""
        self._answer.begin_process(own_s)
        self._answer.conclude_when_told()
        self._restart()

    def _restart(self) -> None:
        """What was done so far is not this process's own."""
        self.recorder.restart()
        self._steps.restart()
        self._repeats.restart()
        self._rest = self._ending()

    def run_program(self, words: list[str], prepare: Callable[[], None]) -> NoReturn:
        """In place of what this process has done so far. `words`: the script or -m or -c, and its
        arguments."""
        self._restart()
        self.recorder.deceived = Deceit()  # it is nothing to the program

        def start() -> None:
            prepare()
            if following.stands_aside(self._options.gpus):
                self._leave()
            _execute(words)

        self.guard(start)
        following.flush()
        self.finish()

    def _leave(self) -> None:
        """A process for which another one stands."""
        if not self._answer.is_first:
            self._answer.leave()

    def finish_process(self) -> None:
        """It ends by itself. Returns if it has nothing to tell."""
        if self.recorder.has_allocated:
            self.finish()

    def judge_task(self, error: BaseException) -> None:
        """A task of a pool has failed."""

        def fail() -> NoReturn:
            raise error

        if not self._answer.is_first and self.recorder.has_allocated:
            self.guard(fail)

    def find_state(self) -> tuple[str, float, bool]:
        index, since = self.recorder.gpu or 0, self.recorder.since
        gpu = "" if since is None else following.name_of_gpu(index)
        return gpu, since or 0.0, not self._steps.by_hand

    def find_part(self, note: str = "") -> Report | None:
        """What is known when nobody waits for more, or `note` says why there is no more."""
        if not self.recorder.has_allocated:
            return None
        steps = self._steps.rounds
        self.recorder.note_first(
            note or f"a process had taken {steps} steps when the others were done"
        )
        return self._report()[0]

    # -- what the script does ----------------------------------------------------------------------

    def _before_call(self, module: Any) -> None:
        self._rest.pause()
        self._phases.note_call(module)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._rest.pause()
        self.recorder.mark("stepped")
        before = self._steps.rounds
        last = self._steps.count(optimizer, self._answer.is_half_over)
        self._repeats.note_step()
        self.recorder.label_optimizer(optimizer)
        if self._steps.rounds > before:
            self.recorder.mark(f"step{self._steps.rounds}")
        if last and not self._rest.begun:
            self._go_on()

    def _after_pass(self, passes: int) -> None:
        """Without an optimizer, the script updates its parameters by hand after each backward pass,
        or some."""
        if not self._steps.by_hand or self._rest.begun:
            return
        self.layers.label_gradients()
        if passes > PASSES and self.recorder.events:
            self.recorder.note_first(
                f"there is no optimizer: traced until its backward pass {passes}"
            )
            self._go_on()

    def find_reason(self) -> str:
        """Why to refuse a script that computes with another framework, and not with torch."""
        if self.recorder.events or self._answer.clock.own_s < FOREIGN_S:
            return ""
        return "" if foreign.is_torch_named() else _foreign()

    def finish(self) -> NoReturn:
        """Answer with the report: the script has come to its end."""
        if self._rest.begun:
            self._rest.end()
        recorder, steps, told = self.recorder, self._steps.rounds, self._swallowed
        if not (recorder.has_allocated or self._answer.is_first):
            self._answer.leave()
        if not steps and told.is_last:
            why = f"{told.note}; what follows is unknown"
            self._answer.stop(stop(why, recorder, self._rest))
        if not recorder.has_allocated:
            self._answer.refuse(": ".join(filter(None, ("it put nothing on a GPU", _foreign()))))
        if not steps:
            lacks = "" if self._repeats.passed else " or a backward pass"
            recorder.note_first(
                f"it ended by itself without an optimizer step{lacks}: traced to its end"
            )
            if told.note:
                recorder.note_first(told.note)
            elif recorder.refused is not None:
                recorder.note_first(f"it went on after {what_went_wrong(recorder.refused)}")
        elif steps < STEPS:
            recorder.note_first(
                "it ended by itself after one optimizer step: the second may take more"
            )
        early = steps < STEPS and not self._steps.by_hand
        ended = stop("it took no two steps", recorder, self._rest) if early else None
        self._answer.give(self._report()[0], ended)

    def _go_on(self) -> None:
        """All that is asked about training is known."""
        report, run = self._report()
        if not self._options.rest_s:
            self._answer.give(report)
        self._rest.begin(report, run)

    def _report(self) -> tuple[Report, Replays]:
        recorder = self.recorder
        recorder.benchmark = bool(torch.backends.cudnn.benchmark)
        run = Replays(recorder)
        run.follow()
        seconds = self._answer.clock.seconds
        report = report_of(run, recorder, self.layers, self._steps.rounds, seconds)
        report = device.within_memory(report, recorder)
        if self.attribution is not None:
            report = self._explain(report, self.attribution)
        return report, run

    def _end(self, how: Stop | None, why: str, status: int = 1) -> NoReturn:
        """The script can go no further. What was found out of the first two steps stands."""
        if self._rest.begun:
            self._rest.end(f"it stopped at {why}" if how and how.crash else why, how)
        if how is not None:
            self._answer.stop(how, status)
        self._answer.refuse(why)

    def guard(self, call: Callable[[], Any]) -> None:
        """Returns if the script ends by itself."""
        try:
            call()
        except SystemExit as error:
            if error.code not in (None, 0):
                self._exit(error)
        except KeyboardInterrupt:
            self._end(None, "it interrupted itself")
        except Exception as error:  # noqa: BLE001  the script's own
            text = what_went_wrong(error)
            if _AFTER_FORK in text:
                if self._rest.begun:  # the process that was waited for
                    self._rest.end(PARTLY)
                if part := self.find_part(PARTLY):
                    self._answer.give(part)
                self._answer.leave()
            if isinstance(error, MemoryError) or "can't allocate memory" in text:
                mib = self._options.host_memory_mib
                self._end(None, f"it needs more than {mib} MiB of host memory to start")
            if no_network := offline(error):
                self._end(None, text + no_network)
            self._end(judge(error, text, self.recorder, self._rest), text)

    def _exit(self, error: SystemExit) -> NoReturn:
        status, said = error.code, ""
        if not isinstance(status, int):
            status, said = 1, f": {one_line(error.code)}"
        if not (self._answer.is_first or self.recorder.has_allocated):
            self._answer.leave(status)
        when = "" if self._rest.begun else " before two optimizer steps"
        why = f"it left with status {status}{when}{said}"
        self._end(judge(error, why, self.recorder, self._rest), why, status & 0xFF)

    def _explain(self, report: Report, attribution: Attribution) -> Report:
        """An estimate without an explanation is better than none."""

        def add_note(note: str) -> Report:
            return replace(report, notes=(*report.notes, note))

        self._answer.keep(add_note(f"there was no time to explain it: {LONGER}"))
        try:
            return with_explanation(report, self.recorder, attribution)
        except Exception as error:  # noqa: BLE001 - else it would pass for the script's own
            return add_note(f"it cannot be explained: {error!r:.200}")


def _foreign() -> str:
    """Which other framework it uses; "" if none."""
    used = foreign.find_imported()
    return f"it uses {used}, and {foreign.ADVICE}" if used else ""


def _execute(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), _main())
    else:
        sys.argv[:] = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        if words[0].endswith(".ipynb"):
            sys.path.insert(0, "")
            run_notebook(Path(words[0]))
        else:
            runpy.run_path(words[0], run_name="__main__")


def _main(**names: Any) -> dict[str, Any]:
    """The contents of a new module `__main__`."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    found = vars(sys.modules["__main__"])
    found.update(__builtins__=builtins, **names)
    return found


class _Shell:
    """What a script that was exported from a notebook calls for its magics."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Shell()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return None


def run_notebook(path: Path) -> None:
    """One cell after the other."""
    main = _main(__file__=str(path), get_ipython=_Shell, display=lambda *_, **__: None)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            source = cell["source"]
            text = python(source if isinstance(source, str) else "".join(source))
            name, flags = f"{path.name}, cell {number}", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            waits = eval(compile(text, name, "exec", flags), main)
            if waits is not None:
                asyncio.run(waits)


def python(cell: str) -> str:
    """The cell's Python, on the same lines; "" if it is in another language."""
    text = cell.lstrip()
    if text.startswith("%%"):
        first, _, rest = text.partition("\n")
        return f"\n{python(rest)}" if SAME.fullmatch(first) else ""
    return MAGIC.sub(r"\1pass", cell)
