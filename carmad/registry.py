"""Finds plugins by name among the installed entry points, and keeps them from doing harm."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar, cast

from carmad.config import Settings
from carmad.core.decision import Proposal
from carmad.core.history import History
from carmad.core.ports import Estimator, Policy, Predictor, Recovery, Server
from carmad.core.types import Estimate, Exit, Job, JobSpec, Prediction, Refusal, Retry
from carmad.core.view import View
from carmad.errors import CarmaError
from carmad.models import Model
from carmad.sound import is_answer, is_prediction, is_proposal, is_retry

T = TypeVar("T")

CORE_WAITS_S = 2.0  # for a policy or a recovery: nothing else is decided meanwhile
ESTIMATE_SPARE_S = 10.0  # for an estimator, on top of the time that a script may take
MOST_UNANSWERED = 8  # questions of a user: an estimator that hangs is not to take every thread

_ROOM: dict[tuple[str, int], threading.Semaphore] = {}  # by estimator and user


def policy(settings: Settings) -> Policy:
    return GuardedPolicy(bare_policy(settings))


def bare_policy(settings: Settings) -> Policy:
    """Unguarded: for a simulation, which may fail with its policy."""
    return cast(Policy, _load("policies", settings.policy, settings))


def predictor(settings: Settings) -> Predictor:
    return GuardedPredictor(bare_predictor(settings))


def bare_predictor(settings: Settings) -> Predictor:
    return cast(Predictor, _load("predictors", settings.predictor, settings))


def recovery(settings: Settings) -> Recovery:
    return GuardedRecovery(bare_recovery(settings))


def bare_recovery(settings: Settings) -> Recovery:
    return cast(Recovery, _load("recoveries", settings.recovery.name, settings))


def estimator(name: str, settings: Settings, server: Server) -> Estimator:
    plugin = cast(Estimator, _load("estimators", name, settings, server))
    return GuardedEstimator(plugin, settings.estimation.within_s + ESTIMATE_SPARE_S)


def names(kind: str) -> list[str]:
    """The installed plugins of a kind: policies, recoveries, estimators or predictors."""
    return sorted({point.name for point in entry_points(group=f"carma.{kind}")})


def _load(kind: str, name: str, *given: object) -> object:
    try:
        plugin = _factory(kind, name)(*given)
    except CarmaError:
        raise
    except Exception as error:  # foreign code
        raise CarmaError(
            f"{name!r} of {kind} cannot be loaded: {error}",
            "is everything that it needs installed? For CARMA's own that is carma[policies] or "
            "carma[estimators]",
        ) from error
    if not isinstance(getattr(plugin, "name", None), str):
        raise CarmaError(f"{name!r} of {kind} has no name", "see the protocols in carmad.plugin")
    return plugin


@cache  # looking through all that is installed takes long, and estimators are made for every job
def _factory(kind: str, name: str) -> Callable[..., object]:
    found = entry_points(group=f"carma.{kind}", name=name)
    if not found:
        raise CarmaError(
            f"there is no {name!r} among the installed {kind}",
            f"choose one of {', '.join(names(kind))}, or install the package that has it",
        )
    factory: Callable[..., object] = next(iter(found)).load()
    return factory


class _Guard:
    """Asks a plugin that may raise or hang without stopping the daemon.

    It answers in a thread of its own. An answer that is not there in time is refused; until that
    thread comes back, so is every later one.
    """

    def __init__(self, plugin: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._one_at_a_time = threading.Lock()
        self._question: Callable[[], object] | None = None
        self._answer: object = None
        self._error: BaseException | None = None
        self._ask = threading.Semaphore(0)
        self._answered = threading.Semaphore(0)
        threading.Thread(target=self._serve, name=plugin, daemon=True).start()

    def ask(self, question: Callable[[], T], what: str) -> T:
        with self._one_at_a_time:
            if self._question is not None and not self._answered.acquire(blocking=False):
                raise TimeoutError("it still has not answered an earlier question")
            self._question = question
            self._ask.release()
            if not self._answered.acquire(timeout=self._timeout_s):
                raise TimeoutError(f"no {what} within {self._timeout_s:g} s")
            self._question = None
            if self._error is not None:
                raise _as_exception(self._error)
            return cast(T, self._answer)

    def _serve(self) -> None:
        while True:
            self._ask.acquire()
            assert self._question is not None
            try:
                self._answer, self._error = self._question(), None
            except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
                self._error = error
            self._answered.release()


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(f"it gave up: {error!r:.200}")


class GuardedPolicy:
    def __init__(self, policy: Policy, timeout_s: float = CORE_WAITS_S) -> None:
        self._policy = policy
        self._guard = _Guard(f"policy-{policy.name}", timeout_s)

    @property
    def name(self) -> str:
        return self._policy.name

    def order(self, job: Job) -> float:
        """Last, while the policy cannot say."""
        try:
            order = self._guard.ask(lambda: float(self._policy.order(job)), "place in line")
        except Exception:  # noqa: BLE001 - foreign code
            return math.inf
        return math.inf if math.isnan(order) else order

    def plan(self, view: View) -> tuple[Proposal, ...]:
        """Raises what the policy raises, TimeoutError, or TypeError for nonsense."""
        plan = self._guard.ask(lambda: tuple(self._policy.plan(view)), "plan")
        for answer in plan:
            if not is_proposal(answer):
                raise TypeError(f"it answered {answer!r:.200}")
        return plan


class GuardedPredictor:
    def __init__(self, predictor: Predictor, timeout_s: float = CORE_WAITS_S) -> None:
        self._predictor = predictor
        self._guard = _Guard(f"predictor-{predictor.name}", timeout_s)

    @property
    def name(self) -> str:
        return self._predictor.name

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        """Raises what the predictor raises, TimeoutError, or TypeError for nonsense."""
        answer = self._guard.ask(
            lambda: self._predictor.predict(job, history, models, now), "prediction"
        )
        if answer is None or is_prediction(answer):
            return answer
        raise TypeError(f"it answered {answer!r:.200}")


class GuardedRecovery:
    def __init__(self, recovery: Recovery, timeout_s: float = CORE_WAITS_S) -> None:
        self._recovery = recovery
        self._guard = _Guard(f"recovery-{recovery.name}", timeout_s)

    @property
    def name(self) -> str:
        return self._recovery.name

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        """Raises what the recovery raises, TimeoutError, or TypeError for nonsense."""
        answer = self._guard.ask(lambda: self._recovery.decide(job, exit), "decision")
        if answer is None or is_retry(answer):
            return answer
        raise TypeError(f"it answered {answer!r:.200}")


class GuardedEstimator:
    """Its caller must be able to wait: an estimate may take long. One is made for each question,
    which is answered in a thread of its own."""

    def __init__(self, estimator: Estimator, timeout_s: float) -> None:
        self._estimator = estimator
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return self._estimator.name

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        """Raises what the estimator raises, TimeoutError, or TypeError for nonsense."""
        key = self.name, spec.uid
        room = _ROOM.setdefault(key, threading.Semaphore(MOST_UNANSWERED))
        if not room.acquire(blocking=False):
            raise TimeoutError(f"{self.name} still has not answered earlier questions")
        answer: Future[object] = Future()

        def find() -> None:
            try:
                answer.set_result(self._estimator.estimate(spec))
            except BaseException as error:  # noqa: BLE001 - foreign code, which may call sys.exit
                answer.set_exception(_as_exception(error))
            finally:
                room.release()

        try:
            threading.Thread(target=find, name=f"estimator-{self.name}", daemon=True).start()
        except RuntimeError:  # there are too many
            room.release()
            raise
        if not wait([answer], self._timeout_s).done:
            raise TimeoutError(f"{self.name} gave no estimate within {self._timeout_s:g} s")
        found = answer.result()
        if isinstance(found, Estimate | Refusal) and is_answer(found):
            return found
        raise TypeError(f"it answered {found!r:.200}")
