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
import re
import runpy
import sys
import traceback
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
from .answering import Answer, Clock, Stop, offline, one_line, what_went_wrong
from .attempts import explore
from .blame import is_of_shortness, own_crash
from .choices import Plan
from .command import Options
from .explanation import with_explanation
from .made_up import Deceit
from .modules import Attribution, Layers
from .recording import Recorder
from .replay import Replays
from .replay import report as report_of
from .report import LONGER, Report
from .rest import Ending, Phases
from .shortcuts import PASSES, Repeats
from .swallowed import Swallowed

STEPS = 2
# What a script hardly raises itself.
_FIRM = (TypeError, AttributeError, NameError, ImportError, FileNotFoundError)
_AFTER_FORK = "autograd's threading in combination with fork"  # PyTorch trains in no such process
PARTLY = "a process that was started after a backward pass counts as far as its own first one"
ENOUGH = 12
_OF_SHAPES = re.compile("IndexError: (invalid index of a 0-dim|too many indices for) tensor")
_TORCH = f"{Path(torch.__file__).parent}/"
ASSUMED = " taken to "  # in notes
FOREIGN_S = 0.5  # of a processor, without imports, that another framework computes at least

SAME = re.compile(r"%%(time|timeit|capture|prun|memit)\b.*")  # the rest of the cell is Python
MAGIC = re.compile(r"^(\s*)(?:[%!].*|(?:[\w, ]+=\s*)[!%].*|\?.*|[\w.]+\?+\s*)$", re.MULTILINE)


class Steps:
    """Counts the steps of each optimizer."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.by_hand = True  # there has been no optimizer
        make = torch.optim.Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            if self.clock is not None:
                self.clock.works()
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
    """The patched torch, and what is recorded through it once a trial has begun."""

    def __init__(self, options: Options) -> None:
        """Raises Unfit."""
        self._answer: Answer  # this and the next two from `begin` on
        self.rest: Ending
        self._options: Options
        self.attribution: Attribution | None = None
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
        self._swallowed = Swallowed(lambda: self.recorder.operators)
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

    def _refuse_network(self) -> None:
        self.recorder.deceive()
        self._swallowed.note_network()

    def begin(self, answer: Answer, options: Options) -> None:
        self._answer, self._steps.clock, self._options = answer, answer.clock, options
        answer.find_reason, answer.find_state = self._find_foreign, self._find_state
        answer.find_part = self._find_part
        self.attribution = Attribution(self.recorder) if options.explain else None
        self.rest = Ending(self.recorder, self._phases, answer, options.rest_s)

    # -- processes that the script starts ----------------------------------------------------------

    @property
    def own_s(self) -> float:
        return self._answer.clock.own_s

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
        self.rest = Ending(self.recorder, self._phases, self._answer, self._options.rest_s)

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

    def _find_state(self) -> tuple[str, float, bool]:
        index, since = self.recorder.gpu or 0, self.recorder.since
        gpu = "" if since is None else following.name_of_gpu(index)
        return gpu, since or 0.0, not self._steps.by_hand

    def _find_part(self, note: str = "") -> Report | None:
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
        self.rest.pause()
        self._phases.note_call(module)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self.rest.pause()
        self.recorder.mark("stepped")
        before = self._steps.rounds
        last = self._steps.count(optimizer, self._answer.is_half_over)
        self._repeats.note_step()
        self.recorder.label_optimizer(optimizer)
        self._answer.steps = self._steps.rounds
        if self._steps.rounds > before:
            self.recorder.mark(f"step{self._steps.rounds}")
        if last and not self.rest.begun:
            self._go_on()

    def _after_pass(self, passes: int) -> None:
        """Without an optimizer, the script updates its parameters by hand after each backward pass,
        or some."""
        if not self._steps.by_hand or self.rest.begun:
            return
        self.layers.label_gradients()
        if passes > PASSES and self.recorder.events:
            self.recorder.note_first(
                f"there is no optimizer: traced until its backward pass {passes}"
            )
            self._go_on()

    def _find_foreign(self) -> str:
        """Why to refuse a script that computes with another framework, and not with torch."""
        if self.recorder.events or self._answer.clock.own_s < FOREIGN_S:
            return ""
        used = foreign.find_imported()
        return (
            "" if not used or foreign.is_torch_named() else f"it uses {used}, and {foreign.ADVICE}"
        )

    def finish(self) -> NoReturn:
        """Answer with the report: the script has come to its end."""
        if self.rest.begun:
            self.rest.end()
        recorder, steps, swallowed = self.recorder, self._steps.rounds, self._swallowed
        if not (recorder.has_allocated or self._answer.is_first):
            self._answer.leave()
        if not steps and (why := swallowed.refusal):
            self._answer.stop(self.stop(why))
        if not recorder.has_allocated:
            self._answer.refuse(f"it put nothing on a GPU{_without_torch()}")
        if not steps:
            lacks = "" if self._repeats.passed else " or a backward pass"
            recorder.note_first(
                f"it ended by itself without an optimizer step{lacks}: traced to its end"
            )
        elif steps < STEPS:
            recorder.note_first(
                "it ended by itself after one optimizer step: the second may take more"
            )
        if not steps and swallowed.note:
            recorder.note_first(swallowed.note)
        elif not steps and recorder.refused is not None:
            recorder.note_first(f"it went on after {what_went_wrong(recorder.refused)}")
        early = steps < STEPS and not self._steps.by_hand
        stop = self.stop("it took no two steps", reported=True) if early else None
        self._answer.report(self._report()[0], stop)

    def _go_on(self) -> None:
        """All that is asked about training is known."""
        report, run = self._report()
        if not self._options.rest_s:
            self._answer.report(report)
        self.rest.begin(report, run)

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

    def refuse(self, why: str) -> NoReturn:
        """What was found out of the first two steps stands."""
        if self.rest.begun:
            self.rest.end(why)
        self._answer.refuse(why)

    def fail(self, stop: Stop) -> NoReturn:
        if self.rest.begun:
            self.rest.end(f"it stopped at {stop.why}" if stop.crash else stop.why, stop)
        self._answer.stop(stop)

    def guard(self, call: Callable[[], Any]) -> None:
        """Returns if the script ends by itself."""
        try:
            call()
        except SystemExit as error:
            if error.code not in (None, 0):
                self._exit(error)
        except KeyboardInterrupt:
            self.refuse("it interrupted itself")
        except MemoryError:
            self.refuse(_short_of_memory(self._options))
        except Exception as error:  # noqa: BLE001  the script's own
            text = what_went_wrong(error)
            if _AFTER_FORK in text:
                if self.rest.begun:  # the process that was waited for
                    self.rest.end(PARTLY)
                if part := self._find_part(PARTLY):
                    self._answer.report(part)
                self._answer.leave()
            if "can't allocate memory" in text:
                self.refuse(_short_of_memory(self._options))
            if no_network := offline(error):
                self.refuse(text + no_network)
            self.fail(_judge(error, text, self))

    def _exit(self, error: SystemExit) -> NoReturn:
        status, said = error.code, ""
        if not isinstance(status, int):
            status, said = 1, f": {one_line(error.code)}"
        if not (self._answer.is_first or self.recorder.has_allocated):
            self._answer.leave(status)
        when = "" if self.rest.begun else " before two optimizer steps"
        stop = _judge(error, f"it left with status {status}{when}{said}", self)
        self.fail(replace(stop, status=status & 0xFF))

    def stop(self, why: str, **fields: Any) -> Stop:
        recorder = self.recorder
        return Stop(
            why,
            asked=self.rest.asked,
            skipped=recorder.skipped,
            deceived=bool(recorder.deceived),
            progress=recorder.operators,
            late=self.rest.begun,
            assumed="; ".join(note for note in recorder.notes if ASSUMED in note),
            **fields,
        )

    def _explain(self, report: Report, attribution: Attribution) -> Report:
        """An estimate without an explanation is better than none."""
        self._answer.keep(_with_note(report, f"there was no time to explain it: {LONGER}"))
        try:
            return with_explanation(report, self.recorder, attribution)
        except Exception as error:  # noqa: BLE001 - else it would pass for the script's own
            return _with_note(report, f"it cannot be explained: {error!r:.200}")


def _with_note(report: Report, note: str) -> Report:
    return replace(report, notes=(*report.notes, note))


def _without_torch() -> str:
    used = foreign.find_imported()
    return f": it uses {used}, and {foreign.ADVICE}" if used else ""


def run(words: list[str], options: Options, answer: Answer, trace: Trace) -> NoReturn:
    """`words`: the script or -m or -c, and its arguments."""
    trace.begin(answer, options)
    explore(answer, lambda plan: _attempt(words, trace, plan))


def _attempt(words: list[str], trace: Trace, plan: Plan) -> NoReturn:
    trace.recorder.choices.plan = plan
    if plan.flipped:
        places = ", ".join(map(_short, sorted(plan.flipped)))
        trace.recorder.note(
            f"what is read from the GPU at {places} decides: taken so that it goes on"
        )
    with trace.recorder, trace.layers, trace.attribution or contextlib.nullcontext():
        trace.guard(lambda: _execute(words))
        trace.finish()


def _judge(error: BaseException, why: str, trace: Trace) -> Stop:
    """Whether the script would stop on a GPU, too."""
    # Frameworks that clean up after an error may read values then.
    made_up = trace.recorder.made_up and error is not trace.recorder.failed
    try:
        crash = own_crash(error, made_up=False)
        certain = not made_up or bool(own_crash(error, made_up=True))
    except Exception:  # noqa: BLE001  its exceptions may be of its own making
        crash, certain = "", not made_up
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    by_torch = bool(frames) and frames[-1].startswith((_TORCH, checkpoints.__file__))
    by_torch = by_torch or bool(_OF_SHAPES.search(why))
    firm = error is trace.recorder.refused or by_torch or isinstance(error, _FIRM)
    if trace.rest.begun and is_of_shortness(error):  # its loops were cut short
        firm = certain = False
    return trace.stop(why, crash=crash, certain=certain, firm=firm)


def _short(place: str) -> str:
    path, colon, line = place.rpartition(":")
    return f"{Path(path).name}{colon}{line}"


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
            run_notebook(Path(words[0]))
        else:
            runpy.run_path(words[0], run_name="__main__")


class _Shell:
    """What a script that was exported from a notebook calls for its magics."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Shell()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return None


def run_notebook(path: Path) -> None:
    """In a module `__main__` of its own, one cell after the other."""
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins,
        __file__=str(path),
        get_ipython=_Shell,
        display=lambda *_, **__: None,
    )
    sys.modules["__main__"] = main
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells, 1):
        if cell["cell_type"] == "code":
            source = cell["source"]
            text = python(source if isinstance(source, str) else "".join(source))
            name, flags = f"{path.name}, cell {number}", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            waits = eval(compile(text, name, "exec", flags), main.__dict__)
            if waits is not None:
                asyncio.run(waits)


def python(cell: str) -> str:
    """The cell's Python, on the same lines; "" if it is in another language."""
    text = cell.lstrip()
    if text.startswith("%%"):
        first, _, rest = text.partition("\n")
        return f"\n{python(rest)}" if SAME.fullmatch(first) else ""
    return MAGIC.sub(r"\1pass", cell)
