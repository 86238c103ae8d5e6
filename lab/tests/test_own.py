"""The benchmark of `policy = "carma"`: its lower bound, and whose wait counts."""

import pytest

from carma_simulator.experiment import Load, Task, Trace
from carma_simulator.hardware import parse
from lab.own import bound
from lab.own.families import Case
from lab.own.runs import KNOWN, longest_wait, run


def task(submit_s, duration_s, gpus=1, mib=40_960, busy=1.0):
    load = Load(memory_mib=mib, sm_active=busy)
    return Task(name="t", submit_s=submit_s, duration_s=duration_s, gpus=gpus, load=load)


def case(*tasks, gpus="1xA100-40GB"):
    return Case(Trace("made", tasks), parse(gpus))


def test_the_least_work_first():
    """The second preempts the first after a second, and takes two: ends at 3 and 12."""
    assert bound.srpt_s([(task(0, 0), 10.0), (task(1, 0), 2.0)]) == pytest.approx((12 + 2) / 2)
    assert bound.srpt_s([(task(0, 0), 1.0), (task(5, 0), 1.0)]) == pytest.approx(1.0)


def test_memory_bounds_what_runs_at_once():
    """Two jobs that fill the GPU's memory run one after the other, however idle they leave it."""
    both = case(task(0, 100, busy=0.1), task(0, 100, busy=0.1))
    assert bound.mean_jct_s(both) == pytest.approx(150)


def test_small_and_light_jobs_are_bound_by_their_own_time_alone():
    both = case(task(0, 100, mib=1_000, busy=0.1), task(0, 300, mib=1_000, busy=0.1))
    assert bound.mean_jct_s(both) == pytest.approx(200)


@pytest.mark.parametrize("policy", ["carma", "sjf_ffs", "magm"])
def test_no_policy_beats_the_bound(policy):
    jobs = [task(60 * n, 500 + 400 * (n % 3), mib=15_000, busy=0.3 * (n % 4)) for n in range(12)]
    this = case(*jobs)
    assert run(this, policy, KNOWN).jct_s >= bound.mean_jct_s(this)


def test_on_several_kinds_a_job_may_be_as_quick_as_on_the_quickest():
    jobs = [
        Task(name="t", submit_s=60.0 * n, duration_s=900, load=Load(), speeds=(("H100-80GB", 3.0),))
        for n in range(4)
    ]
    this = case(*jobs, gpus="1xA100-40GB,1xH100-80GB")
    assert bound.mean_jct_s(this) == pytest.approx(300)
    assert run(this, "sjf_ffs", KNOWN).jct_s >= bound.mean_jct_s(this)


def test_the_user_who_waits_longest_counts():
    this = case(*(task(n, 1_000) for n in range(4)))
    ours = run(this, "carma", KNOWN)
    assert longest_wait(ours, ours) == pytest.approx(1.0)


def test_the_mean_time_at_which_work_is_done_is_least_if_the_smallest_goes_first() -> None:
    """The large one works from 0 to 1 and from 3 to 12, the small one from 1 to 3."""
    found = bound.mean_busy_s([(task(0, 0), 10.0), (task(1, 0), 2.0)])
    large_s = (1 * 0.5 + 9 * 7.5) / 10
    assert found == pytest.approx((large_s + 1.0) / 2)
    assert bound.mean_busy_s([(task(0, 0), 1.0), (task(5, 0), 1.0)]) == pytest.approx(0.5)
