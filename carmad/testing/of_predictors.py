"""The rules for predictors of durations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

from carmad.core.history import History, Past
from carmad.core.ports import Predictor
from carmad.core.types import Indicator, Job, JobId, JobState, Prediction, Profile
from carmad.testing.builders import a_job, a_spec
from carmad.validation import is_prediction

NOW = 1e6
PROFILE = Profile(200.0, 8_000, (Indicator("gpu_utilization", 0.5, 0.01),))
GROUPS = ("", "known", "new")


class Asked(NamedTuple):
    job: Job
    runs: tuple[Past, ...]
    answer: Prediction | None


class Trials:
    """Jobs that the history knows and others, with and without a profile and an owner's word. No
    model was trained yet."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    @cached_property
    def all(self) -> list[Asked]:
        return [
            Asked(job, runs, self.ask(job, History(runs)))
            for job, runs in product(jobs(), ((), tuple(_runs())))
        ]

    def ask(self, job: Job, history: History) -> Prediction | None:
        try:
            return self.predictor.predict(job, history, {}, NOW)
        except Exception as error:  # foreign code
            raise AssertionError(f"a predictor says None, it does not raise: {error!r}") from error


def jobs() -> Iterator[Job]:
    for expected_s, user, gpus in product((None, 60.0), ("ada", "eve"), (1, 8)):
        spec = a_spec(expected_s=expected_s, user=user, gpus=gpus)
        for group, profile in product(GROUPS, (None, PROFILE)):
            yield a_job(100, spec=spec, group=group, profile=profile, submitted_at=NOW - 10)


def _runs() -> Iterator[Past]:
    """Runs of two users that last from 0 s to days."""
    for n, seconds in enumerate((0.0, 30.0, 3600.0, 3700.0, 400_000.0)):
        user, state = ("ada", "bob")[n % 2], (JobState.SUCCEEDED, JobState.FAILED)[n // 4]
        begun = 1000.0 * n
        yield Past(JobId(n + 1), 1, "known", user, "train", 1, begun, seconds, state, PROFILE, ())


def it_has_a_name(trials: Trials) -> None:
    assert trials.predictor.name, "a predictor has a name"


def it_never_raises(trials: Trials) -> None:
    assert trials.all


def the_answer_is_a_prediction_or_none(trials: Trials) -> None:
    for asked in trials.all:
        valid = asked.answer is None or is_prediction(asked.answer)
        assert valid, "the answer is None, or a Prediction of 0 s or more"


def a_prediction_says_whose_it_is(trials: Trials) -> None:
    for asked in trials.all:
        assert asked.answer is None or asked.answer.source, "a prediction says whose it is"


def the_same_question_gets_the_same_answer(trials: Trials) -> None:
    for job, runs, answer in reversed(trials.all):
        again = trials.ask(job, History(runs))
        assert again == answer, "the same question gets the same answer"


def the_history_is_left_as_it_is(trials: Trials) -> None:
    history = History(_runs())
    for job in jobs():
        trials.ask(job, history)
    same = _shown(history) == _shown(History(_runs()))
    assert same, "a predictor does not change the history"


def _shown(history: History) -> list[object]:
    users = ("ada", "bob", "eve")
    of_users = [tuple(history.by_user.of(user)) for user in users]
    of_groups = [tuple(history.by_group.of(group)) for group in GROUPS]
    return [*of_users, *of_groups, *history.runs]


CHECKS = (
    it_has_a_name,
    it_never_raises,
    the_answer_is_a_prediction_or_none,
    a_prediction_says_whose_it_is,
    the_same_question_gets_the_same_answer,
    the_history_is_left_as_it_is,
)
