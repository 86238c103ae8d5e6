"""The states of a job have one table, for the daemon and for its commands."""

from __future__ import annotations

import pytest

from carmad import states
from carmad.api.wire import parse_states
from carmad.core.jobs.states import ENDED, HOLDING, WAITING, JobState
from carmad.errors import CarmaError
from cli.options import states_of


def test_each_state_has_a_code_and_is_either_waiting_on_gpus_or_over() -> None:
    assert list(states.CODES) == [state.value for state in JobState]
    assert set(JobState) == WAITING | HOLDING | ENDED
    assert len(WAITING) + len(HOLDING) + len(ENDED) == len(JobState)


@pytest.mark.parametrize("state", JobState)
def test_a_state_is_found_by_its_name_and_by_its_code(state: JobState) -> None:
    code = states.CODES[state]
    assert parse_states(state.value) == {state}
    assert state in (parse_states(code) or ())
    assert states_of(state.value)[0] == state.value
    assert code in states_of(state.value)[1]
    assert state.value in (states_of(code)[0] or "").split(",")
    assert states_of(code.lower())[1] == {code}


def test_jobs_that_wait_have_two_more_codes() -> None:
    new = ",".join(sorted(states.NEW))
    assert states_of("queued") == ("queued", {"PD", "H", "RQ"})
    assert states_of("h") == (new, {"H"})
    assert states_of("rq,r") == ("pending,queued,running", {"RQ", "R"})
    assert states_of("all") == (",".join(JobState), frozenset())
    assert states_of(None) == (None, frozenset())
    for word in ("h", "rq"):  # the daemon's rows do not tell these apart
        with pytest.raises(CarmaError, match="is not a job state"):
            parse_states(word)
    with pytest.raises(CarmaError, match="'gone' is not a state"):
        states_of("gone")
