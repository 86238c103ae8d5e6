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
from typing import List, NoReturn, Tuple

from .answering import Answer, Message, Stop
from .choices import Plan
from .report import No, Report, loads, together

MOST = 8  # attempts
MOST_LATE = 3  # of them for a script that stopped after its two steps
MUCH = 1.1  # times the operators: it came further, although it stopped for the same reason
STEPS = 2
# By the clock: how long those that are left may take in silence once a process has answered; and to
# say what they have found out, when that is up. With two steps it is as long as these took.
GRACE_S, LAST_S = (1.0, 5.0), 2.0
MOST_PROCESSES = 16  # that are on a GPU
_fork = os.fork  # `following` replaces it


_Told = List[Tuple[Message, Report]]


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
    messages, all_ended = _listen(reads, control)
    os.close(reads)
    if not all_ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    answer.clock.set(max((one.own_s for one in messages), default=own_s))
    return _outcome(messages, status)


def _listen(reads: int, control: int) -> tuple[list[Message], bool]:
    """The answers, and whether all that might give one have ended. Closes `control` then, or when
    the time of those that have not is up."""
    answers: list[Message] = []
    began, left = time.monotonic(), b""
    grace_s, has_trained, has_failed = GRACE_S[1], False, False
    until: float | None = None  # by the clock, once there is an answer
    over: float | None = None
    while True:
        timeout = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([reads], [], [], timeout)[0]:
            if over is not None:
                return answers, False
            os.close(control)
            until = over = time.monotonic() + LAST_S
            continue
        more = os.read(reads, 1 << 16)
        if not more:
            if over is None:
                os.close(control)
            return answers, True
        *lines, left = (left + more).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # a process was killed while it wrote
                message = Message.loads(line)
                if message.answer:
                    if _steps(message) >= STEPS and not has_trained:
                        has_trained, grace_s = True, max(GRACE_S[0], message.said - began)
                        grace_s = min(grace_s, GRACE_S[1])
                    answers.append(message)
                    has_failed |= message.decides and message.stop is not None
                if message.answer or message.trains or not (has_trained or has_failed):
                    until = message.said + grace_s
        if over is not None or not any(one.decides for one in answers):
            until = over
        elif sum(bool(one.gpu) for one in answers) >= MOST_PROCESSES:
            until = 0.0


def _steps(message: Message) -> int:
    told = loads(message.answer.encode())
    return told.steps if isinstance(told, Report) else 0


def _outcome(messages: list[Message], status: int) -> Outcome:
    """Of all processes: reports, unless one has stopped before any was trained; else who stopped
    first. If the first process came to its end, nobody minds those that failed without a GPU."""
    messages = sorted(messages, key=lambda one: one.said)
    told = [(one, loads(one.answer.encode())) for one in messages]
    reports = [(one, report) for one, report in told if isinstance(report, Report)]
    is_over = any(one.is_first and one.stop is None for one, _ in reports)
    failed = [one for one, no in told if isinstance(no, No) and one.stop is not None]
    stops = [one for one in failed if one.decides or not is_over]
    if (
        len(messages) > 1
        and reports
        and (not stops or any(report.steps >= STEPS for _, report in reports))
    ):
        best = max(map(_at_once, _by_gpu(reports)), key=_reserved)
        stop = max(best, key=lambda pair: (pair[1].steps, pair[1].reserved))[0].stop
        report = together([report for _, report in best])
        lost = [no.why for one, no in told if isinstance(no, No) and one.gpu]
        notes = [f"another process is not counted: {why}" for why in dict.fromkeys(lost)]
        if len(reports) >= MOST_PROCESSES:
            notes.append(f"there may be more processes than these {len(reports)} on GPUs")
        report = replace(report, notes=(*report.notes, *notes))
        return Outcome(stop, report.dumps(), status)
    first = next(iter(stops), min(messages, key=lambda one: not one.gpu, default=None))
    if first is None:
        return Outcome(None, b"", status)
    return Outcome(first.stop, first.answer.encode(), status)


def _by_gpu(reports: _Told) -> list[_Told]:
    names = {one.gpu for one, _ in reports}
    return [[pair for pair in reports if pair[0].gpu == name] for name in names]


def _at_once(reports: _Told) -> _Told:
    """Those that hold most at once: all that lived when one of them was born."""
    groups = [
        [pair for pair in reports if pair[0].born <= last.born < pair[0].said]
        for last, _ in reports
    ]
    return max(groups, key=_reserved)


def _reserved(reports: _Told) -> int:
    return sum(report.reserved for _, report in reports)


def _pass_on(answer: Answer, outcome: Outcome) -> NoReturn:
    if outcome.answer:
        answer.give(outcome.answer)
    if os.WIFSIGNALED(outcome.status):
        number = os.WTERMSIG(outcome.status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(outcome.status))
