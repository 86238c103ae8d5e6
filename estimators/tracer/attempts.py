"""Runs a script again where something made up may have stopped it.

Each attempt is a process of its own, forked before the script begins. If the script stops, and was
told a value that nothing computed, or passes were left out, that may be why. So it runs again: with
all passes, then with the other answer at the place that asked last, and so on backwards. An answer
with which it comes further stays. If it goes on with one of them, that attempt is the answer; if it
stops whatever it is told, it stops by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from .answering import Answer, Stop
from .choices import Plan
from .report import Report, loads

MOST = 8  # attempts
MOST_LATE = 3  # of them for a script that stopped after its two steps
MUCH = 1.1  # times the operators: it came further, although it stopped for the same reason
_fork = os.fork  # `made_up` replaces it
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    stop: Stop | None  # None: it took its two steps, or was refused for another reason
    answer: bytes  # a report or a refusal; b"" if the process was ended
    status: int  # of the process, as `wait` gives it

    @property
    def refused(self) -> bool:
        return self.answer.startswith(b'{"refused"')


def explore(answer: Answer, run: Callable[[Plan], None]) -> NoReturn:
    """Give the answer of the best attempt. `run` makes one, and gives its answer."""
    answer.leave_to_attempts()
    plan = Plan()
    first = best = _attempt(answer, plan, run)
    if first.stop is not None and first.stop.late:
        _judge_rest(answer, run, first, first.stop)
    reported = first if first.stop is not None and first.stop.reported else None
    tried: set[str] = set()
    proved = True  # that it stops whatever it is told
    for _ in range(MOST - 1):
        stop = best.stop
        changed = _change(plan, stop, tried) if stop is not None and stop.doubtful else None
        if stop is None or changed is None:
            break
        _import_for_all()
        outcome = _attempt(answer, changed, run)
        if outcome.stop is None or outcome.stop.late:  # it went on, at least through two steps
            if outcome.answer and not outcome.refused:
                _pass_on(answer, outcome)
            proved = False
            break  # its time is up, mostly
        if outcome.stop.reported:
            reported = reported or outcome
        elif outcome.stop.why != stop.why and any(
            stop.asked.get(place) for place in changed.flipped - plan.flipped
        ):
            proved = False  # what is wrong shows the number that was made up
        much = MUCH if outcome.stop.why == stop.why else 1
        further = outcome.stop.progress > much * stop.progress
        if changed.whole != plan.whole or further:
            plan, best = changed, outcome
    else:
        proved = False
    if reported or best.stop is None or first.stop is None:
        _pass_on(answer, reported or first)
    stop = best.stop
    proved = proved and not stop.deceived and (stop.firm or not any(stop.asked.values()))
    if stop.crash and (stop.certain or proved):
        answer.crash(stop.crash)
    doubt = f"; this may be due to the trace: {stop.assumed}" if stop.assumed else ""
    answer.refuse(f"{stop.why}{doubt}")


def _judge_rest(
    answer: Answer, run: Callable[[Plan], None], first: Outcome, stop: Stop
) -> NoReturn:
    """The script stopped after its two steps: of these, the first attempt's report stands. It stops
    by itself if it does so with all passes, with longer loops, and whatever it is told."""
    proved, tried = bool(stop.crash) and stop.certain, set[str]()
    told = loads(first.answer)
    all_seen = isinstance(told, Report) and told.rest is not None and not told.rest.missing
    settled = proved or (all_seen and not (stop.crash and stop.firm))
    plan: Plan | None = None if settled else Plan(whole=True, more=1)
    for _ in range(MOST_LATE):
        if plan is None:
            break
        outcome = _attempt(answer, plan, run)
        if outcome.stop is None or not outcome.stop.late:
            if outcome.answer and not outcome.refused and outcome.stop is None:
                _pass_on(answer, outcome)  # it goes on
            break
        if outcome.stop.why != stop.why:
            break
        plan = _change(plan, outcome.stop, tried)
        proved = plan is None and bool(stop.crash) and stop.firm and not stop.deceived
    if proved:
        answer.crash_late(first.answer, stop.crash)
    _pass_on(answer, first)


def _import_for_all() -> None:
    """What PyTorch's shape rules import when they are first asked, in each attempt."""
    for name in ("sympy", "torch.distributed.tensor"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _change(plan: Plan, stop: Stop, tried: set[str]) -> Plan | None:
    """What to do otherwise in the next attempt; None if there is nothing left."""
    if stop.skipped and not plan.whole:
        return replace(plan, whole=True)
    for place in reversed(list(stop.asked)):
        if place not in tried:
            tried.add(place)
            return replace(plan, flipped=plan.flipped | {place})
    return None


def _attempt(answer: Answer, plan: Plan, run: Callable[[Plan], None]) -> Outcome:
    reads, writes = os.pipe()
    parent, own_s = os.getpid(), answer.clock.own_s
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is a thread, which waits for the deadline
        pid = _fork()
    if pid == 0:
        os.close(reads)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            answer.speak_for_attempt(writes, own_s)
            run(plan)
        os._exit(1)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        told, _, text = pipe.read().partition(b"\n")
    _, status = os.waitpid(pid, 0)
    fields = json.loads(told or b"{}")
    answer.clock.set(fields.get("own_s", own_s))
    stop = fields.get("stop")
    return Outcome(Stop(**stop) if stop else None, text, status)


def _pass_on(answer: Answer, outcome: Outcome) -> NoReturn:
    if outcome.answer:
        answer.give(outcome.answer)
    if os.WIFSIGNALED(outcome.status):
        number = os.WTERMSIG(outcome.status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(outcome.status))
