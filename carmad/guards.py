"""Guards call plugins so that one that raises, hangs or returns invalid answers does no harm.
Failures are logged, and kept in `trouble`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from carmad import beats
from carmad.core.jobs.attempt import Exit
from carmad.core.jobs.findings import Estimate, Prediction, Refusal
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import JobSpec
from carmad.core.placing.decision import Proposal
from carmad.core.placing.view import Policy, View
from carmad.core.ports import Estimator, Predictor, Recovery
from carmad.errors import CarmaError
from carmad.learning.models import Model
from carmad.validation import is_answer, is_prediction, is_proposal, is_retry

T = TypeVar("T")

log = logging.getLogger(__name__)

CORE_WAITS_S = 2.0  # for a policy, a predictor or a recovery: nothing else is decided meanwhile
REST = 30  # times that: for so long a plugin that was late is not called
LOG_EVERY_S = 60.0
LATE_S = 60.0  # for a plugin's heartbeat: what is asked of it has failed long before
MOST_UNANSWERED = 8  # calls per user: an estimator that hangs must not take every thread

_ROOM: dict[tuple[str, int], threading.Semaphore] = {}  # by estimator and user


@dataclass(frozen=True, slots=True)
class Trouble:
    """A plugin that fails, or failed recently."""

    plugin: str  # "policy lucid"
    error: str  # the latest
    since: float  # Unix s
    until: float  # the latest failure, likewise
    times: int
    without: str  # what happens to jobs meanwhile
    over: bool = False  # it has worked since


class _Plugin(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Plugin)


class _Guard(Generic[N]):
    """Calls a plugin that may raise or hang, without stopping the daemon.

    The plugin runs in its own thread. A call that takes too long fails, and so does every later
    call until the thread returns, and for a while after that; what stands in for the plugin decides
    meanwhile. A thread cannot be killed: if it never returns, the daemon must be restarted. It is
    no executor's, as Python waits for those when it exits.
    """

    kind = ""
    without = ""  # what becomes of jobs while it cannot answer

    def __init__(self, plugin: N, timeout_s: float = CORE_WAITS_S) -> None:
        self.name = plugin.name
        self.trouble: Trouble | None = None
        self._plugin = plugin
        self._label = f"{self.kind} {plugin.name}"
        self._timeout_s = timeout_s
        self._one_at_a_time = threading.Lock()
        self._questions: SimpleQueue[tuple[Callable[[N], object], Future[Any]]] = SimpleQueue()
        self._thread = beats.thread(self._label.replace(" ", "-"), LATE_S, self._serve)
        self._thread.start()
        self._late: Future[Any] | None = None  # the call that took too long
        self._again_at = -math.inf  # monotonic, as is the next
        self._logged_at = -math.inf
        self._logged = False  # the current trouble was logged
        self._fails_at = ""  # the kind of call it began with: it is over once that succeeds

    def _serve(self) -> None:
        """The plugin's thread: one call after the other."""
        while True:
            question, answer = self._questions.get()
            beats.at("a question")
            _answer(answer, partial(question, self._plugin))
            beats.idle()
            del question, answer  # otherwise they would be kept until the next call

    def _ask(self, what: str, question: Callable[[N], T], check: Callable[[T], object]) -> T:
        """Raises what the plugin raises, TimeoutError, or what `check` raises."""
        with self._one_at_a_time:
            try:
                answer = self._await_answer(question, what)
                check(answer)
            except Exception as error:
                self._fails(error, what)
                raise
            if self.trouble and not self.trouble.over and what == self._fails_at:
                self.trouble = replace(self.trouble, over=True)
                if self._logged:
                    times = self.trouble.times
                    log.warning("the %s answers again; it failed %d times", self._label, times)
            return answer

    def _await_answer(self, question: Callable[[N], T], what: str) -> T:
        if self._late and not self._late.done():
            raise TimeoutError("it still has not answered an earlier question")
        if time.monotonic() < self._again_at:
            raise TimeoutError("it was late with an earlier answer, and is not asked for a while")
        self._late = None
        answer: Future[T] = Future()
        self._questions.put((question, answer))
        try:
            return _wait(answer, self._timeout_s, f"no {what}")
        except _Late:
            self._late, self._again_at = answer, time.monotonic() + REST * self._timeout_s
            raise

    def _fails(self, error: Exception, what: str) -> None:
        now, text = time.time(), f"{error!r:.200}"
        old = self.trouble
        if old is None or old.over:
            self._logged, self._fails_at = False, what
            self.trouble = Trouble(self._label, text, now, now, 1, self.without)
        else:
            self.trouble = replace(old, error=text, until=now, times=old.times + 1)
        if not self._logged and time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged, self._logged_at = True, time.monotonic()
            hangs = self._late is not None
            where = f"; it is at\n{beats.stack(self._thread.ident or 0)}" if hangs else ""
            shown = None if hangs else error
            log.error("the %s fails: %s%s", self._label, self.without, where, exc_info=shown)


class _Late(TimeoutError):
    """The guard's own, not one that a plugin raises."""


def _wait(answer: Future[T], timeout_s: float, lacking: str) -> T:
    try:
        return answer.result(timeout_s)
    except TimeoutError:
        if answer.done():  # it is the plugin's own
            raise
        raise _Late(f"{lacking} within {timeout_s:g} s") from None


def _answer(answer: Future[Any], find: Callable[[], object]) -> None:
    """Call foreign code for it."""
    try:
        answer.set_result(find())
    except Exception as error:  # noqa: BLE001 - raised where it is waited for
        answer.set_exception(error)
    except BaseException as error:  # noqa: BLE001 - it may call sys.exit
        answer.set_exception(RuntimeError(f"it gave up: {error!r:.200}"))


def _each(is_valid: Callable[[Any], bool]) -> Callable[[Sequence[object]], None]:
    """A check of answers; its error names only the one that is invalid."""

    def check(answers: Sequence[object]) -> None:
        for answer in answers:
            if not is_valid(answer):
                raise TypeError(f"it answered {answer!r:.200}")

    return check


def _or_none(is_valid: Callable[[Any], bool]) -> Callable[[object], None]:
    return lambda answer: _each(is_valid)([] if answer is None else [answer])


class GuardedPolicy(_Guard[Policy]):
    kind = "policy"

    def __init__(self, policy: Policy, timeout_s: float = CORE_WAITS_S, deputy: str = "") -> None:
        """`deputy`: the policy that decides while this one fails."""
        super().__init__(policy, timeout_s)
        self.without = f"{deputy} decides meanwhile" if deputy else "no job is started meanwhile"

    def order(self, job: Job) -> float:
        check = _or_none(lambda place: not math.isnan(place))
        return self._ask("place in line", lambda policy: float(policy.order(job)), check)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        return self._ask("plan", lambda policy: tuple(policy.plan(view)), _each(is_proposal))


class GuardedPredictor(_Guard[Predictor]):
    kind = "predictor"
    without = "jobs are queued without a predicted duration"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return self._ask(
            "prediction",
            lambda predictor: predictor.predict(job, history, models, now),
            _or_none(is_prediction),
        )


class GuardedRecovery(_Guard[Recovery]):
    kind = "recovery"
    without = "jobs that ran out of memory are retried alone"

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        return self._ask("decision", lambda its: its.decide(job, exit), _or_none(is_retry))


class GuardedEstimator:
    """Its caller must be able to wait: an estimate may take long. There is one guard per call,
    which runs in a new thread."""

    def __init__(self, estimator: Estimator, timeout_s: float) -> None:
        self.name = estimator.name
        self._estimator = estimator
        self._timeout_s = timeout_s

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        """Raises what the estimator raises, TimeoutError, or TypeError for an invalid answer."""
        key = self.name, spec.uid
        room = _ROOM.setdefault(key, threading.Semaphore(MOST_UNANSWERED))
        if not room.acquire(blocking=False):
            raise TimeoutError(f"{self.name} still has not answered earlier questions")
        answer: Future[Estimate | Refusal] = Future()

        def find() -> None:
            beats.at("an estimate")
            _answer(answer, lambda: self._estimator.estimate(spec))
            room.release()

        try:
            beats.thread(f"estimator-{self.name}", self._timeout_s, find).start()
        except RuntimeError:  # no thread can be started
            room.release()
            raise
        found = _wait(answer, self._timeout_s, f"{self.name} gave no estimate")
        _each(is_answer)([found])
        return found


@contextmanager
def heard_by(follower: object) -> Iterator[None]:
    """If it raises, that is logged, and the core goes on."""
    try:
        yield
    except (Exception, SystemExit):  # foreign code may call sys.exit
        log.exception("the follower %s has failed", _name(follower))


@contextmanager
def refused_by(check: object) -> Iterator[None]:
    """A check of submissions that fails refuses: what it is there to prevent must not happen.
    Raises CarmaError."""
    try:
        yield
    except CarmaError:
        raise
    except (Exception, SystemExit) as error:
        log.exception("the check %s of submissions has failed", _name(check))
        raise CarmaError(
            f"the check {_name(check)} of submissions fails: {error!r:.200}",
            "Ask your administrator; the daemon's log has more.",
        ) from error


def _name(plugged: object) -> str:
    return f"{type(plugged).__module__}.{type(plugged).__qualname__}"
