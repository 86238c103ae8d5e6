"""The rules for memory estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from carmad.config import Settings
from carmad.core.ports import Estimator, Run, Server, Trial
from carmad.core.types import Estimate, JobSpec, Refusal
from carmad.testing.builders import a_server, histories, outcomes, specs
from carmad.validation import is_answer

Answer = Estimate | Refusal


class Asked(NamedTuple):
    outcome: Trial
    runs: tuple[Run, ...]
    spec: JobSpec
    answer: Answer


class Trials:
    """Jobs of many kinds, on servers where running a program fails in every way."""

    def __init__(self, make: Callable[[Settings, Server], Estimator], settings: Settings) -> None:
        self._make = make
        self._settings = settings

    def make(self, server: Server) -> Estimator:
        return self._make(self._settings, server)

    @cached_property
    def all(self) -> list[Asked]:
        return [
            Asked(outcome, runs, spec, self.ask(a_server(outcome, runs), spec))
            for outcome, runs, spec in product(outcomes(), histories(), specs())
        ]

    def ask(self, server: Server, spec: JobSpec) -> Answer:
        try:
            return self.make(server).estimate(spec)
        except Exception as error:  # foreign code
            raise AssertionError(f"an estimator refuses, it does not raise: {error!r}") from error


def it_has_a_name(trials: Trials) -> None:
    assert trials.make(a_server()).name, "an estimator has a name"


def it_never_raises(trials: Trials) -> None:
    for outcome, runs, spec, _ in trials.all:
        trials.ask(a_server(outcome, runs, gpu="", driver=""), spec)


def the_answer_is_an_estimate_or_a_refusal(trials: Trials) -> None:
    for asked in trials.all:
        valid = is_answer(asked.answer)
        assert valid, "the answer is an Estimate with low ≤ mib ≤ high, or a Refusal"


def an_answer_says_whose_it_is(trials: Trials) -> None:
    for asked in trials.all:
        assert asked.answer.source, "an answer says whose it is"


def a_refusal_says_why(trials: Trials) -> None:
    for asked in trials.all:
        assert not isinstance(asked.answer, Refusal) or asked.answer.why, "a refusal says why"


def parts_add_up(trials: Trials) -> None:
    for asked in trials.all:
        answer = asked.answer
        if isinstance(answer, Estimate) and answer.parts:
            total_mib = sum(mib for _, mib in answer.parts)
            assert total_mib == answer.mib, "the parts of an estimate add up to it"


def the_same_question_gets_the_same_answer(trials: Trials) -> None:
    for outcome, runs, spec, answer in trials.all:
        again = trials.ask(a_server(outcome, runs), spec)
        assert _timeless(again) == _timeless(answer), "the same question gets the same answer"


def _timeless(answer: Answer) -> Answer:
    if isinstance(answer, Refusal):
        return replace(answer, seconds=0.0)
    others = tuple(replace(other, seconds=0.0) for other in answer.others)
    return replace(answer, seconds=0.0, others=others)


CHECKS = (
    it_has_a_name,
    it_never_raises,
    the_answer_is_an_estimate_or_a_refusal,
    an_answer_says_whose_it_is,
    a_refusal_says_why,
    parts_add_up,
    the_same_question_gets_the_same_answer,
)
