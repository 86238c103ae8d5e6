"""Runs a script again where something made up may have stopped it.

Each attempt is a process of its own, forked before the script begins. If the script stops, and was
told a value that nothing computed, or passes were left out, that may be why. So it runs again: with
all passes, then with the other answer at the place that asked last, and so on backwards. An answer
with which it comes further stays. If it goes on with one of them, that attempt is the answer; if it
stops whatever it is told, it stops by itself.

The processes of an attempt (`following`) answer with a message each, and `_listen` until all have
ended, or those that are left have nothing more to say. Of processes that are on a GPU at the same
time the memory adds up; the GPU with most is the answer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from .answering import Answer
from .choices import Plan
from .report import Message, No, Report, Stop, read, together

MOST = 8  # attempts
MOST_LATE = 3  # of them for a script that stopped after its two steps
MUCH = 1.1  # times the operators: it came further, although it stopped for the same reason
STEPS = 2
# By the clock: how long those that are left may take in silence once a process has answered (once
# one has taken two steps, as long as these took); and to say what they have found out then.
GRACE_S, LAST_S = (1.0, 5.0), 2.0
MOST_PROCESSES = 16  # that are on a GPU
_fork = os.fork  # `following` replaces it


@dataclass(frozen=True)
class Outcome:
    stop: Stop | None  # None: it took its two steps, or was refused for another reason
    answer: Report | No | None  # None: the process was ended
    status: int = 0  # of the process, as `wait` gives it

    @property
    def report(self) -> Report | None:
        """If the script stopped: on its two steps, with a rest; or on fewer, after which it ended
        by itself."""
        return self.answer if isinstance(self.answer, Report) else None

    @property
    def goes_on(self) -> bool:
        """At least through two steps."""
        return self.stop is None or (self.report is not None and self.report.rest is not None)


def explore(answer: Answer, run: Callable[[Plan], None]) -> NoReturn:
    """Give the answer of the best attempt. `run` makes one, and gives its answer."""
    plan = Plan()
    first = _attempt(answer, plan, run)
    if first.stop is None:
        _pass_on(answer, first)
    if first.report is not None and first.goes_on:
        _judge_rest(answer, run, first.report, first.stop)
    stop, reported = first.stop, first.report
    tried: set[str] = set()
    proved = True  # that it stops whatever it is told
    for _ in range(MOST - 1):
        changed = _change(plan, stop, tried)
        if changed is None:
            break
        _import_for_all()
        outcome = _attempt(answer, changed, run)
        if outcome.stop is None or outcome.goes_on:
            if outcome.report:
                _pass_on(answer, outcome)
            proved = False
            break  # its time is up, mostly
        is_same = outcome.stop.why == stop.why
        if outcome.report:
            reported = reported or outcome.report
        elif not is_same and any(map(stop.asked.get, changed.flipped - plan.flipped)):
            proved = False  # what is wrong shows the number that was made up
        further = outcome.stop.progress > (MUCH if is_same else 1) * stop.progress
        if changed.whole != plan.whole or further:
            plan, stop = changed, outcome.stop
    else:
        proved = False
    if reported:
        answer.give(reported)
    if stop.crash and (stop.certain or (proved and stop.provable)):
        answer.crash(stop.crash)
    doubt = f"; this may be due to the trace: {stop.assumed}" if stop.assumed else ""
    answer.refuse(f"{stop.why}{doubt}")


def _judge_rest(
    answer: Answer, run: Callable[[Plan], None], report: Report, stop: Stop
) -> NoReturn:
    """The script stopped after its two steps: of these, the first attempt's report stands. It stops
    by itself if it does so with all passes, with longer loops, and whatever it is told."""
    tried: set[str] = set()
    proved = bool(stop.crash) and stop.certain
    is_of_use = (bool(stop.crash) and stop.provable) or (report.rest and report.rest.missing)
    plan = Plan(whole=True, more=1) if is_of_use and not proved else None
    for _ in range(MOST_LATE):
        if plan is None:
            break
        outcome = _attempt(answer, plan, run)
        if outcome.stop is None and outcome.report:
            _pass_on(answer, outcome)  # it goes on
        if outcome.stop is None or not outcome.goes_on or outcome.stop.why != stop.why:
            break
        plan = _change(plan, outcome.stop, tried)
        proved = plan is None and bool(stop.crash) and stop.provable
    if proved:
        answer.crash_late(report, stop.crash)
    answer.give(report)


def _import_for_all() -> None:
    """What PyTorch's shape rules import when they are first asked, in each attempt."""
    for name in ("sympy", "torch.distributed.tensor"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _change(plan: Plan, stop: Stop, tried: set[str]) -> Plan | None:
    """What to do otherwise in the next attempt; None if there is nothing left."""
    if stop.certain:
        return None
    if stop.skipped and not plan.whole:
        return replace(plan, whole=True)
    for place in reversed(list(stop.asked)):
        if place not in tried:
            tried.add(place)
            return replace(plan, flipped=plan.flipped | {place})
    return None


def _attempt(answer: Answer, plan: Plan, run: Callable[[Plan], None]) -> Outcome:
    (reads, writes), (controlled, control) = os.pipe(), os.pipe()
    own_s = answer.clock.own_s
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is a thread, which waits for the deadline
        pid = _fork()
    if pid == 0:
        os.close(reads)
        os.close(control)
        answer.speak_for_attempt(writes, controlled, own_s)
        run(plan)
    os.close(writes)
    os.close(controlled)
    told, all_ended = _listen(reads, control)
    os.close(reads)
    if not all_ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    answer.clock.set(max((one.own_s for one in told), default=own_s))
    return replace(_outcome(told), status=status)


def _listen(reads: int, control: int) -> tuple[list[Message], bool]:
    """What processes have answered, and whether all that might have ended. Closes `control` then,
    or when the time of those that have not is up."""
    told: list[Message] = []
    left, grace_s, is_over = b"", GRACE_S[1], False
    began = time.monotonic()
    until: float | None = None  # by the clock, once there is an answer
    while True:
        timeout = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([reads], [], [], timeout)[0]:
            if is_over:
                return told, False
            os.close(control)
            until, is_over = time.monotonic() + LAST_S, True
            continue
        more = os.read(reads, 1 << 16)
        if not more:
            if not is_over:
                os.close(control)
            return told, True
        *lines, left = (left + more).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # a process was killed while it wrote
                one: Message = read(Message, line)
                has_answered = bool(one.report or one.no)
                told += [one] * has_answered
                if not is_over and any(each.decides for each in told):
                    trained = [each.said for each in told if each.steps >= STEPS]
                    if trained:
                        grace_s = min(max(GRACE_S[0], trained[0] - began), GRACE_S[1])
                    failed = any(each.decides and each.stop for each in told)
                    if has_answered or one.trains or not (trained or failed):
                        until = one.said + grace_s
        if not is_over and sum(bool(one.gpu) for one in told) >= MOST_PROCESSES:
            until = 0.0


def _outcome(told: list[Message]) -> Outcome:
    """Of all processes: reports, unless one has stopped before any was trained; else who stopped
    first. If the first process came to its end, nobody minds those that failed without a GPU."""
    told = sorted(told, key=lambda one: one.said)
    reports = [one for one in told if one.report]
    is_over = any(one.is_first and one.stop is None for one in reports)
    stops = [one for one in told if one.no and one.stop and (one.decides or not is_over)]
    has_trained = any(one.steps >= STEPS for one in reports)
    if len(told) > 1 and reports and (has_trained or not stops):
        gpus = {one.gpu for one in reports}
        best = max((_at_once(reports, gpu) for gpu in gpus), key=_sum_reserved)
        stop = max(best, key=lambda one: (one.steps, _sum_reserved([one]))).stop
        report = together([one.report for one in best if one.report])
        lost = dict.fromkeys(one.no.why for one in told if one.no and one.gpu)
        notes = [f"another process is not counted: {why}" for why in lost]
        if len(reports) >= MOST_PROCESSES:
            notes.append(f"there may be more processes than these {len(reports)} on GPUs")
        return Outcome(stop, replace(report, notes=(*report.notes, *notes)))
    if not told:
        return Outcome(None, None)
    first = next(iter(stops), min(told, key=lambda one: not one.gpu))
    return Outcome(first.stop, first.report or first.no)


def _at_once(reports: list[Message], gpu: str) -> list[Message]:
    """Those on a GPU that hold most at once: all that lived when one of them was born."""
    there = [one for one in reports if one.gpu == gpu]
    groups = [[one for one in there if one.born <= last.born < one.said] for last in there]
    return max(groups, key=_sum_reserved)


def _sum_reserved(reports: list[Message]) -> int:
    return sum(one.report.reserved for one in reports if one.report)


def _pass_on(answer: Answer, outcome: Outcome) -> NoReturn:
    if outcome.answer is not None:
        answer.give(outcome.answer)
    if os.WIFSIGNALED(outcome.status):
        number = os.WTERMSIG(outcome.status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(outcome.status))
