"""The rules for recoveries."""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import NamedTuple

from carmad.core.ports import Recovery
from carmad.core.types import Cause, Exit, JobState, Retry
from carmad.testing.builders import a_gpu, a_job
from carmad.validation import is_retry

EARLIER = (
    None,
    Retry("out of memory", margin_mib=4096),
    Retry("out of memory", exclusive=True),
)


class Trial(NamedTuple):
    answer: Retry | None
    again: Retry | None


class Trials:
    """Crashes of jobs, alone and beside others, at the first attempt and later."""

    def __init__(self, recovery: Recovery) -> None:
        self.recovery = recovery

    @cached_property
    def all(self) -> list[Trial]:
        decide = self.recovery.decide
        exit = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory", tried_mib=100, free_mib=10)
        found = []
        for shared, before in product((False, True), EARLIER):
            job = a_job(
                state=JobState.RUNNING,
                gpus=(a_gpu().id,),
                shared=shared,
                retry=before,
                failures=(exit,) if before else (),
            )
            found.append(Trial(decide(job, exit), decide(job, exit)))
        return found


def it_has_a_name(trials: Trials) -> None:
    assert trials.recovery.name, "a recovery has a name"


def the_answer_is_a_retry_or_none(trials: Trials) -> None:
    for answer, _ in trials.all:
        assert answer is None or is_retry(answer), "the answer is a Retry or None"


def the_same_crash_gives_the_same_answer(trials: Trials) -> None:
    for answer, again in trials.all:
        assert answer == again, "the same crash must give the same answer"


def a_retry_says_why(trials: Trials) -> None:
    for answer, _ in trials.all:
        assert answer is None or answer.why, "a retry says why"


CHECKS = (
    it_has_a_name,
    the_answer_is_a_retry_or_none,
    the_same_crash_gives_the_same_answer,
    a_retry_says_why,
)
