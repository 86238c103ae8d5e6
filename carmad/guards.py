"""Guards call plugins so that one that raises, hangs or returns invalid answers does no harm.
Failures are logged, and kept in `trouble`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Generic, Protocol, TypeVar

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
from carmad.threads import Threads
from carmad.validation import ANSWER, PROPOSAL, is_valid

T = TypeVar("T")

log = logging.getLogger(__name__)

CORE_WAITS_S = 2.0  # for a policy, a predictor or a recovery: nothing else is decided meanwhile
REST = 30  # times that: for so long a plugin that was late is not called
LOG_EVERY_S = 60.0
LATE_S = 10.0  # for a plugin's heartbeat: what is asked of it has failed before
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
    question: str = ""  # with which it began: it is over once that is answered
    over: bool = False
    is_logged: bool = False


class _Plugin(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Plugin)


class _Guard(Generic[N]):
    """Calls a plugin that may raise or hang, without stopping the daemon.

    The plugin has a thread of its own. A call that takes too long fails, and so does every later
    call until the thread returns, and for a while after that; what stands in for the plugin decides
    meanwhile. A thread cannot be killed: if it never returns, the daemon must be restarted, and its
    watchdog says where it is.
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
        self._thread = Threads(1, self._label.replace(" ", "-"), LATE_S)
        self._call: Future[Any] | None = None  # the latest
        self._again_at = -math.inf  # monotonic, as is the next
        self._logged_at = -math.inf

    def close(self) -> None:
        """It is not asked any more."""
        self._thread.shutdown(wait=False)

    def _ask(self, what: str, question: Callable[[N], T]) -> T:
        """`question` checks the answer. Raises what it raises, or TimeoutError."""
        with self._one_at_a_time:
            try:
                answer = self._await_answer(what, question)
            except Exception as error:
                self._note_failure(what, error)
                raise
            self._note_answer(what)
            return answer

    def _await_answer(self, what: str, question: Callable[[N], T]) -> T:
        if self._call and not self._call.done():
            raise TimeoutError("it still has not answered an earlier question")
        if time.monotonic() < self._again_at:
            raise TimeoutError("it was late with an earlier answer, and is not asked for a while")
        self._call = call = self._thread.submit(question, self._plugin)
        try:
            return _wait(call, self._timeout_s, f"no {what}")
        finally:
            if not call.done():
                self._again_at = time.monotonic() + REST * self._timeout_s

    def _note_failure(self, what: str, error: Exception) -> None:
        now, text = time.time(), f"{error!r:.200}"
        its = self.trouble
        if its is None or its.over:
            its = Trouble(self._label, text, now, now, 0, self.without, what)
        self.trouble = its = replace(its, error=text, until=now, times=its.times + 1)
        if not its.is_logged and time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at, self.trouble = time.monotonic(), replace(its, is_logged=True)
            log.error("the %s fails: %s", self._label, self.without, exc_info=error)

    def _note_answer(self, what: str) -> None:
        its = self.trouble
        if its and not its.over and what == its.question:
            self.trouble = replace(its, over=True)
            if its.is_logged:
                log.warning("the %s answers again; it failed %d times", self._label, its.times)


def _wait(call: Future[T], timeout_s: float, lacking: str) -> T:
    try:
        error = call.exception(timeout_s)
    except TimeoutError:
        raise TimeoutError(f"{lacking} within {timeout_s:g} s") from None
    if error is not None and not isinstance(error, Exception):  # it may call sys.exit
        raise RuntimeError(f"it gave up: {error!r:.200}") from error
    return call.result()


def _expect(answer: T, *kinds: type) -> T:
    """The answer, if it is valid. Raises TypeError."""
    if is_valid(answer, *kinds):
        return answer
    raise TypeError(f"it answered {answer!r:.200}")


def _expect_place(answer: float) -> float:
    if math.isnan(place := float(answer)):
        raise TypeError("it answered nan")
    return place


class GuardedPolicy(_Guard[Policy]):
    kind = "policy"

    def __init__(self, policy: Policy, timeout_s: float = CORE_WAITS_S, deputy: str = "") -> None:
        """`deputy`: the policy that decides while this one fails."""
        super().__init__(policy, timeout_s)
        self.without = f"{deputy} decides meanwhile" if deputy else "no job is started meanwhile"

    def order(self, job: Job) -> float:
        return self._ask("place in line", lambda policy: _expect_place(policy.order(job)))

    def plan(self, view: View) -> tuple[Proposal, ...]:
        return self._ask(
            "plan", lambda policy: tuple(_expect(each, *PROPOSAL) for each in policy.plan(view))
        )


class GuardedPredictor(_Guard[Predictor]):
    kind = "predictor"
    without = "jobs are queued without a predicted duration"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return self._ask(
            "prediction",
            lambda its: _expect(its.predict(job, history, models, now), Prediction, NoneType),
        )


class GuardedRecovery(_Guard[Recovery]):
    kind = "recovery"
    without = "jobs that ran out of memory are retried alone"

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        return self._ask("decision", lambda its: _expect(its.decide(job, exit), Retry, NoneType))


class GuardedEstimator:
    """Its caller must be able to wait: an estimate may take long. Each call has a new thread."""

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
        try:
            thread = Threads(1, f"estimator-{self.name}", self._timeout_s)
        except RuntimeError:  # no thread can be started
            room.release()
            raise
        call = thread.submit(self._estimator.estimate, spec)
        call.add_done_callback(lambda _: room.release())
        thread.shutdown(wait=False)
        return _expect(_wait(call, self._timeout_s, f"{self.name} gave no estimate"), *ANSWER)


@contextmanager
def log_failures_of(follower: object) -> Iterator[None]:
    """If it raises, that is logged, and the core goes on."""
    try:
        yield
    except (Exception, SystemExit):  # foreign code may call sys.exit
        log.exception("the follower %s has failed", _name(follower))


@contextmanager
def refuse_on_failure_of(check: object) -> Iterator[None]:
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
