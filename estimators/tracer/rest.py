"""The rest of a run: what a script does after its first two steps.

It goes on, with its loops over data shortened (`loaders`), and so comes to its evaluation
and to the code that saves. Loops over epochs cannot be shortened. So it may take about as long as
the two steps took, or a third of that once evaluation and saving were seen; then it is left.

**Phases.** Evaluation is a forward pass of a model that is trained, in evaluation mode or without
gradients after a loop over data has ended. Saving is a call of `torch.save` or of
safetensors. "largest batch" is a training step with it. All else is training.

What happens here never changes what is known of the first two steps.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, NoReturn

import torch

from . import device
from .answering import Answer
from .loaders import Loaders
from .recording import Recorder
from .replay import Replays
from .report import PHASES, TIME_UP, Report, Rest, Stop

TRAINING, EVALUATION, LARGEST = "training", "evaluation", "largest batch"
OWN_S, WALL_S = 10.0, 20.0  # at most: of a processor, by the clock; unless more is allowed
SLOW = 7  # by the clock, so many times as long may be allowed
SEEN = 3  # so many times less, once all phases were seen


class Phases:
    """Notices what a program does."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.seen: set[str] = set()
        self._trained: set[int] = set()  # modules that were called in training mode
        self._kinds: set[type] = set()  # theirs: a moving average is of one, too
        self.loaders = Loaders(self._start_largest)

    def install(self) -> None:
        self.loaders.install()
        evaluate = torch.nn.Module.eval

        def eval_(module: Any) -> Any:
            if id(module) in self._trained:
                self.enter(EVALUATION)
            return evaluate(module)

        torch.nn.Module.eval = eval_

    def enter(self, phase: str) -> None:
        self.seen.add(phase)
        self._recorder.enter(phase)

    def note_call(self, module: Any) -> None:
        """Call this before a model is called."""
        trains = torch.is_grad_enabled()
        if trains:
            evaluates = not module.training and id(module) in self._trained
        else:  # else it is a teacher, or a measure
            is_trained = any(parameter.requires_grad for parameter in module.parameters())
            evaluates = not module.training or self.loaders.ended > 0
            evaluates = evaluates and (type(module) in self._kinds or is_trained)
        if evaluates:
            self.enter(EVALUATION)
        elif module.training and trains:
            self._trained.add(id(module))
            self._kinds.add(type(module))
            self.enter(LARGEST if self.loaders.largest else TRAINING)

    def _start_largest(self) -> None:
        if self._recorder.phase == TRAINING:
            self.enter(LARGEST)


class Ending:
    """Gives the answer once the rest is over, or its time is up."""

    def __init__(self, recorder: Recorder, phases: Phases, answer: Answer, rest_s: float) -> None:
        self._recorder, self._phases, self._answer = recorder, phases, answer
        self._rest_s = rest_s
        self._report: Report | None = None
        self._asked: set[str] = set()  # before
        self._lock = threading.Lock()

    @property
    def begun(self) -> bool:
        return self._report is not None

    @property
    def asked(self) -> dict[str, bool]:
        """The places that asked for values, as in `Choices`; in the rest, only what asked there."""
        asked = self._recorder.choices.asked
        known = self._asked if self.begun else ()
        return {place: is_number for place, is_number in asked.items() if place not in known}

    def begin(self, report: Report, run: Replays) -> None:
        """`report`: of the two steps; `run` has taken their events."""
        unseen = Rest({TRAINING: run.phases[TRAINING]}, TIME_UP)
        self._report, self._run = report, run
        self._answer.keep(replace(report, rest=unseen))
        loaders = self._phases.loaders
        loaders.short, loaders.more = True, self._recorder.choices.plan.more
        self._asked = set(self._recorder.choices.asked)
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        clock, began = self._answer.clock, time.monotonic()
        own_s, steps_s, rest_s = clock.own_s, clock.seconds, self._rest_s
        most_s = max(rest_s, min(own_s, OWN_S)), max(SLOW * rest_s, min(steps_s, WALL_S))
        left_s = 1.0
        while left_s > 0:
            time.sleep(min(left_s, most_s[0] / SEEN))
            share = SEEN if self._phases.seen.issuperset(PHASES) else 1
            spent_s = clock.own_s - own_s, time.monotonic() - began
            left_s = min(most / share - spent for most, spent in zip(most_s, spent_s))
        self.end(TIME_UP)

    def pause(self) -> None:
        """The script goes on only while there is no end."""
        if self._lock.locked():
            self._lock.acquire()

    def end(self, why: str = "", stop: Stop | None = None) -> NoReturn:
        """`why`: the script has more to do, and is left; `stop`: it has failed."""
        self._lock.acquire()  # never released
        assert self._report is not None
        recorder, run = self._recorder, self._run
        run.follow()
        found = run.typical
        phases = {name: most for name, most in run.phases.items() if most}
        report = replace(
            self._report,
            floor=found.floor,
            reserved=found.reserved,
            most=run.most,
            parts=found.parts,
            notes=tuple(dict.fromkeys((*self._report.notes, *recorder.notes))),
            seconds=self._answer.clock.seconds,
            rest=Rest(phases, why),
        )
        self._answer.give(device.within_memory(report, recorder), stop)
