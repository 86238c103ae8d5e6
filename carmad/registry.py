"""Finds plugins by name among the installed entry points, and keeps them from doing harm."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from carmad.config import Settings
from carmad.core.decision import Placement
from carmad.core.ports import Estimator, Policy, Recovery
from carmad.core.view import View
from carmad.errors import CarmaError

PLAN_TIMEOUT_S = 2.0


def policy(settings: Settings) -> Policy:
    found = cast(Policy, _load("policies", settings.policy, settings))
    if not isinstance(getattr(found, "name", None), str):
        raise CarmaError(f"the policy {settings.policy!r} has no name", "see carmad.plugin.Policy")
    return Guarded(found)


def recovery(settings: Settings) -> Recovery:
    return cast(Recovery, _load("recoveries", settings.recovery.name, settings))


def estimator(settings: Settings) -> Estimator:
    return cast(Estimator, _load("estimators", settings.estimator, settings))


def names(kind: str) -> list[str]:
    """The installed plugins of a kind: policies, recoveries or estimators."""
    return sorted({point.name for point in entry_points(group=f"carma.{kind}")})


def _load(kind: str, name: str, settings: Settings) -> object:
    found = entry_points(group=f"carma.{kind}", name=name)
    if not found:
        raise CarmaError(
            f"there is no {name!r} among the installed {kind}",
            f"choose one of {', '.join(names(kind))}, or install the package that has it",
        )
    try:
        factory: Callable[[Settings], object] = next(iter(found)).load()
        return factory(settings)
    except Exception as error:  # foreign code
        raise CarmaError(
            f"{name!r} of {kind} cannot be loaded: {error}",
            "is everything that it needs installed?",
        ) from error


class Guarded:
    """A policy that may raise or hang without stopping the daemon.

    It plans in a thread of its own. A plan that is not there in time is refused; until that
    thread comes back, so is every later one.
    """

    def __init__(self, policy: Policy, timeout_s: float = PLAN_TIMEOUT_S) -> None:
        self._policy = policy
        self._timeout_s = timeout_s
        self._asked: View | None = None
        self._answer: tuple[Placement, ...] | Exception = ()
        self._ask = threading.Semaphore(0)
        self._answered = threading.Semaphore(0)
        threading.Thread(target=self._serve, name=f"policy-{policy.name}", daemon=True).start()

    @property
    def name(self) -> str:
        return self._policy.name

    def plan(self, view: View) -> tuple[Placement, ...]:
        if self._asked is not None and not self._answered.acquire(blocking=False):
            raise TimeoutError("it still has not answered an earlier question")
        self._asked = view
        self._ask.release()
        if not self._answered.acquire(timeout=self._timeout_s):
            raise TimeoutError(f"no plan within {self._timeout_s:g} s")
        self._asked = None
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def _serve(self) -> None:
        while True:
            self._ask.acquire()
            assert self._asked is not None
            try:
                self._answer = tuple(self._policy.plan(self._asked))
            except Exception as error:  # noqa: BLE001 - foreign code
                self._answer = error
            self._answered.release()
