"""What the daemon remembers about ended jobs is bounded in bytes, not only in number."""

from __future__ import annotations

import tracemalloc

import pytest

from carma_testing import a_job, a_spec
from carmad.config import Settings
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.recurrence import group, template
from carmad.core.placing.view import demand

MIB = 1 << 20


@pytest.fixture
def grown() -> object:
    """The growth of Python's allocations, in bytes."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


def test_long_commands_are_not_kept(grown) -> None:
    """They may have 1 MiB each, and a user may submit and cancel any number of them."""
    for n in range(300):
        argv = ("python", f"{n}.py", *(f"--{'x' * 1000}{m}={n}" for m in range(100)))
        assert len(group(a_spec(argv=argv))) > 0
        assert template(argv).words == ("python", f"{n}.py")
    assert grown() < 2 * MIB


def test_what_an_ordinary_command_is_a_run_of_is_found_once() -> None:
    ordinary, long = ("python", "train.py", "--seed", "3"), ("python", "train.py", "x" * 2000)
    assert template(ordinary) is template(ordinary)
    assert template(long) == template(long)
    assert template(long) is not template(long)


def test_what_estimators_said_of_ended_jobs_is_not_kept_for_long(grown) -> None:
    for n in range(3000):
        estimate = Estimate(1000 + n, "auto", notes=(f"{n} {'because ' * 500}",))
        demand(a_job(estimate=estimate), Settings())
    assert grown() < 7 * MIB
