"""The tally of each user's waiting jobs, and their size in bytes."""

from __future__ import annotations

from carma_testing import a_job, a_spec
from carma_testing.builders import changed
from carmad.api.tally import Tally, Waiting, weight
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Environment, JobSpec, Script
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step, Tick
from tests.owners import who

SHARED = Environment("shared", 10_000)
NOTHING = Waiting(0, 0)


def spec(**changes: object) -> JobSpec:
    return a_spec(**{"environment": SHARED, **changes})


def tally() -> Tally:
    made = Tally()
    made.begun = True
    return made


def note(made: Tally, *jobs: Job) -> None:
    made.note(Step((Tick(0.0),), jobs, (), ()))


def test_an_environment_counts_once_however_many_have_it() -> None:
    made, specs = tally(), [spec()] * 100
    made.expect(JobId(1), specs)
    size = 100 * weight(specs[0]) + 10_000
    assert made.waiting(who("ada")) == Waiting(100, size)
    other = spec(environment=Environment("other", 5))
    more = Waiting(103, size + 3 * weight(other) + 5)
    assert made.waiting(who("ada"), [other, other, spec()]) == more
    assert made.waiting(who("eve")) == NOTHING


def test_what_starts_or_ends_makes_room() -> None:
    made = tally()
    jobs = [a_job(n, spec=spec()) for n in (1, 2, 3)]
    made.expect(JobId(1), [each.spec for each in jobs])
    note(made, *jobs)  # the core has them, too: they count once
    assert made.waiting(who("ada")).jobs == 3
    note(made, changed(jobs[0], state=JobState.STARTING), changed(jobs[1], state=JobState.FAILED))
    assert made.waiting(who("ada")) == Waiting(1, weight(spec()) + 10_000)
    made.give_up(JobId(3), [jobs[2].spec])
    assert made.waiting(who("ada")) == NOTHING


def test_a_command_weighs_what_its_words_take() -> None:
    long = a_spec(argv=("x" * 100_000,))
    many = a_spec(argv=("xy",) * 10_000)
    assert 100_000 < weight(long) < 101_000
    assert weight(many) > 400_000
    assert weight(a_spec(env=(("VIRTUAL_ENV", "/" * 4000),))) > 4000


def test_a_script_counts_once_too() -> None:
    made, specs = tally(), [spec(script=Script("shared", 500, 1))] * 10
    made.expect(JobId(1), specs)
    assert made.waiting(who("ada"), specs).bytes == 20 * weight(specs[0]) + 10_500
