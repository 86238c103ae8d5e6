"""Guards call plugins so that one that raises, hangs or returns invalid answers does no harm.
Failures are logged, and kept in `trouble`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from carmad import beats
from carmad.core.gpus.gpu import Gpu
from carmad.core.happenings import Happening
from carmad.core.jobs.attempt import Exit, GpuId
from carmad.core.jobs.findings import Estimate, Prediction, Refusal
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import Allocation, JobSpec
from carmad.core.messages import Event, Step
from carmad.core.placing.decision import Proposal
from carmad.core.placing.view import Policy, View
from carmad.core.ports import Estimator, Predictor, Recovery
from carmad.edge import Checked, Condition, Follower, SubmissionCheck
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
    meanwhile. A thread cannot be killed: if it never returns, the daemon must be restarted.
    """

    kind: ClassVar[str]
    without: str = ""  # what becomes of jobs while it cannot answer

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

    def _ask(self, question: Callable[[N], T], what: str, valid: Callable[[T], bool]) -> T:
        """Raises what the plugin raises, TimeoutError, or TypeError for an invalid answer."""
        with self._one_at_a_time:
            try:
                answer = self._await_answer(question, what)
                if not valid(answer):
                    raise TypeError(f"it answered {answer!r:.200}")
            except Exception as error:
                self._fails(error, what)
                raise
            if self.trouble and not self.trouble.over and what == self._fails_at:
                self._works(self.trouble)
            return answer

    def _await_answer(self, question: Callable[[N], T], what: str) -> T:
        if self._late and not self._late.done():
            raise TimeoutError("it still has not answered an earlier question")
        if time.monotonic() < self._again_at:
            raise TimeoutError("it was late with an earlier answer, and is not asked for a while")
        self._late = None
        answer: Future[T] = Future()
        self._questions.put((question, answer))
        if not wait([answer], self._timeout_s).done:
            self._late, self._again_at = answer, time.monotonic() + REST * self._timeout_s
            raise TimeoutError(f"no {what} within {self._timeout_s:g} s")
        return answer.result()

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

    def _works(self, trouble: Trouble) -> None:
        self.trouble = replace(trouble, over=True)
        if self._logged:
            log.warning("the %s answers again; it failed %d times", self._label, trouble.times)


def _answer(answer: Future[Any], find: Callable[[], object]) -> None:
    """Call foreign code for it."""
    try:
        answer.set_result(find())
    except Exception as error:  # noqa: BLE001 - raised where it is waited for
        answer.set_exception(error)
    except BaseException as error:  # noqa: BLE001 - it may call sys.exit
        answer.set_exception(RuntimeError(f"it gave up: {error!r:.200}"))


class GuardedPolicy(_Guard[Policy]):
    kind = "policy"

    def __init__(
        self,
        policy: Policy,
        timeout_s: float = CORE_WAITS_S,
        deputy: str = "",
    ) -> None:
        """`deputy`: the policy that decides while this one fails."""
        super().__init__(policy, timeout_s)
        self.without = f"{deputy} decides meanwhile" if deputy else "no job is started meanwhile"

    def order(self, job: Job) -> float:
        return self._ask(
            lambda policy: float(policy.order(job)), "place in line", lambda at: not math.isnan(at)
        )

    def plan(self, view: View) -> tuple[Proposal, ...]:
        return self._ask(lambda policy: tuple(policy.plan(view)), "plan", _are_proposals)


def _are_proposals(plan: tuple[object, ...]) -> bool:
    for answer in plan:
        if not is_proposal(answer):
            raise TypeError(f"it answered {answer!r:.200}")  # only the invalid one
    return True


class GuardedPredictor(_Guard[Predictor]):
    kind = "predictor"
    without = "jobs are queued without a predicted duration"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return self._ask(
            lambda predictor: predictor.predict(job, history, models, now),
            "prediction",
            lambda answer: answer is None or is_prediction(answer),
        )


class GuardedRecovery(_Guard[Recovery]):
    kind = "recovery"
    without = "jobs that ran out of memory are retried alone"

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        return self._ask(
            lambda recovery: recovery.decide(job, exit),
            "decision",
            lambda answer: answer is None or is_retry(answer),
        )


class GuardedEstimator:
    """Its caller must be able to wait: an estimate may take long. There is one guard per call,
    which runs in a new thread."""

    def __init__(self, estimator: Estimator, timeout_s: float) -> None:
        self._estimator = estimator
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return self._estimator.name

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        """Raises what the estimator raises, TimeoutError, or TypeError for an invalid answer."""
        key = self.name, spec.uid
        room = _ROOM.setdefault(key, threading.Semaphore(MOST_UNANSWERED))
        if not room.acquire(blocking=False):
            raise TimeoutError(f"{self.name} still has not answered earlier questions")
        answer: Future[object] = Future()

        def find() -> None:
            with beats.beating(f"estimator-{self.name}", self._timeout_s):
                beats.at("an estimate")
                _answer(answer, lambda: self._estimator.estimate(spec))
                room.release()

        try:
            threading.Thread(target=find, name=f"estimator-{self.name}", daemon=True).start()
        except RuntimeError:  # no thread can be started
            room.release()
            raise
        if not wait([answer], self._timeout_s).done:
            raise TimeoutError(f"{self.name} gave no estimate within {self._timeout_s:g} s")
        found = answer.result()
        if isinstance(found, Estimate | Refusal) and is_answer(found):
            return found
        raise TypeError(f"it answered {found!r:.200}")


class GuardedFollower(Follower):
    """If it raises, that is logged, and the core goes on; after a step that it has missed, it is
    reset."""

    def __init__(self, name: str, follower: Follower) -> None:
        self._name = name
        self._follower = follower

    def hear(self, events: Sequence[Event]) -> None:
        with self._guard():
            self._follower.hear(events)

    def on_timing(self, step: Step, core_s: float, commit_s: float) -> None:
        with self._guard():
            self._follower.on_timing(step, core_s, commit_s)

    def on_commit(self, step: Step) -> None:
        try:
            self._follower.on_commit(step)
        except (Exception, SystemExit) as error:  # the engine logs it, and resets who raises
            raise RuntimeError(f"the follower {self._name} has failed") from error

    def on_failed_commit(self, error: CarmaError) -> None:
        with self._guard():
            self._follower.on_failed_commit(error)

    def on_reset(self, jobs: Iterable[Job]) -> None:
        with self._guard():
            self._follower.on_reset(jobs)

    def on_happenings(self, happenings: Sequence[Happening], gpus: Mapping[GpuId, Gpu]) -> None:
        with self._guard():
            self._follower.on_happenings(happenings, gpus)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit):  # foreign code may call sys.exit
            log.exception("the follower %s has failed", self._name)


class GuardedCheck(SubmissionCheck):
    """One that fails refuses the submission: what it is there to prevent must not happen. All of
    its methods raise CarmaError."""

    __slots__ = ("_check", "_name")

    def __init__(self, name: str, check: SubmissionCheck) -> None:
        self._name = name
        self._check = check

    def allocation(self, pid: int) -> Allocation | None:
        with self._guard():
            return self._check.allocation(pid)

    def check(self, spec: JobSpec) -> Checked:
        with self._guard():
            found = self._check.check(spec)
            if not isinstance(found, Checked) or found.spec.owner != spec.owner:
                raise TypeError(f"it answered {found!r:.200}")
        condition = found.condition
        return replace(found, condition=partial(self._require, condition) if condition else None)

    def _require(self, condition: Condition, others: Sequence[JobSpec]) -> None:
        with self._guard():
            condition(others)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except CarmaError:
            raise
        except (Exception, SystemExit) as error:
            log.exception("the check %s of submissions has failed", self._name)
            raise CarmaError(
                f"the check {self._name} of submissions fails: {error!r:.200}",
                "Ask your administrator; the daemon's log has more.",
            ) from error
