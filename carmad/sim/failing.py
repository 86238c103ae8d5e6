"""Plugins that fail at exactly the calls that failed when a journal was recorded, and answer all
others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from carmad.core.deciders import DECIDE, FALLBACK, ORDER, PLAN, PREDICT
from carmad.core.decision import Proposal
from carmad.core.history import History
from carmad.core.messages import Failure
from carmad.core.ports import Policy, Predictor, Recovery
from carmad.core.types import Exit, Job, Prediction, Retry
from carmad.core.view import View
from carmad.models import Model

T = TypeVar("T")


class Again(Exception):
    """An error that a plugin raised, with its message."""

    def __repr__(self) -> str:
        return str(self)


class Script:
    """Which calls fail in the current step."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, int], str] = {}
        self._numbers: Counter[str] = Counter()

    def begin(self, failures: Sequence[Failure]) -> None:
        self._due = {(each.question, each.number): each.error for each in failures}
        self._numbers.clear()

    def ask(self, question: str, put: Callable[[], T]) -> T:
        self._numbers[question] += 1
        error = self._due.get((question, self._numbers[question]))
        if error is not None:
            raise Again(error)
        return put()


@dataclass(frozen=True, slots=True)
class FailingPolicy:
    policy: Policy
    script: Script
    whose: str = ""  # or FALLBACK

    @property
    def name(self) -> str:
        return self.policy.name

    def order(self, job: Job) -> float:
        return self.script.ask(self.whose + ORDER, lambda: self.policy.order(job))

    def plan(self, view: View) -> tuple[Proposal, ...]:
        return self.script.ask(self.whose + PLAN, lambda: self.policy.plan(view))


def fallback(policy: Policy | None, script: Script) -> FailingPolicy | None:
    return FailingPolicy(policy, script, FALLBACK) if policy else None


@dataclass(frozen=True, slots=True)
class FailingRecovery:
    recovery: Recovery
    script: Script
    name: str = "recorded"

    def decide(self, job: Job, exit: Exit) -> Retry | None:
        return self.script.ask(DECIDE, lambda: self.recovery.decide(job, exit))


@dataclass(frozen=True, slots=True)
class FailingPredictor:
    predictor: Predictor
    script: Script
    name: str = "recorded"

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        return self.script.ask(PREDICT, lambda: self.predictor.predict(job, history, models, now))
