"""Metrics of runs, checked against hand-computed numbers and bounds that must hold."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from carma_simulator.hardware import parse
from carma_simulator.metrics import (
    Bounds,
    Spread,
    Times,
    Use,
    bounds,
    crashes,
    figures,
    jain,
    spread,
    times,
)
from carmad.core.jobs.attempt import Cause
from carmad.core.jobs.states import JobState
from tests.extras.carma_simulator.outcomes import attempt, gpu, job, made_up, outcome, timeline

PLAIN = job(0, attempt(0, 120), alone_s=100.0)
CRASHED = job(10, attempt(20, 30, cause=Cause.GPU_OOM), attempt(50, 150), alone_s=80.0)
PREEMPTED = job(20, attempt(100, 140, cause=Cause.PREEMPTED), attempt(160, 220), alone_s=80.0)
OOM = job(
    30,
    attempt(30, 35, cause=Cause.GPU_OOM),
    attempt(60, 75, cause=Cause.GPU_OOM),
    state=JobState.OUT_OF_MEMORY,
)
NEVER = job(40, state=JobState.QUEUED)


def test_times_of_a_job_that_crashed_and_ran_again() -> None:
    assert times(CRASHED) == Times(
        first_wait_s=10.0, wait_s=30.0, lost_s=10.0, execution_s=100.0, jct_s=140.0, alone_s=80.0
    )


def test_what_a_preempted_job_did_is_not_lost() -> None:
    assert times(PREEMPTED) == Times(
        first_wait_s=80.0, wait_s=100.0, lost_s=0.0, execution_s=100.0, jct_s=200.0, alone_s=80.0
    )


def test_nothing_goes_on_from_an_attempt_that_was_preempted_before_its_first_kernel() -> None:
    idle = replace(attempt(100, 107, cause=Cause.PREEMPTED), ready_at=None)
    found = times(job(20, idle, attempt(160, 220), alone_s=60.0))
    assert found == Times(
        first_wait_s=80.0, wait_s=133.0, lost_s=7.0, execution_s=60.0, jct_s=200.0, alone_s=60.0
    )
    assert found.slowdown == 1.0


def test_slowdown_leaves_the_wait_out_and_the_finish_ratio_does_not() -> None:
    found = times(PREEMPTED)
    assert found is not None
    assert (found.slowdown, found.finish_ratio) == (1.25, 2.5)


def test_a_job_that_takes_no_time_alone_has_no_slowdown() -> None:
    found = times(job(0, attempt(0, 1), alone_s=0.0))
    assert found is not None
    assert (found.slowdown, found.finish_ratio) == (None, None)


def test_a_job_that_was_never_launched_has_no_times() -> None:
    assert times(NEVER) is None


def test_times_are_of_finished_jobs_and_the_others_are_counted() -> None:
    error = job(0, attempt(0, 60), alone_s=50.0, state=JobState.FAILED, fails=True)
    broken = job(0, attempt(0, 5), state=JobState.FAILED)  # not what the trace says of it
    late = job(0, attempt(0, 7), state=JobState.TIMED_OUT)
    found = figures(outcome(PLAIN, CRASHED, PREEMPTED, OOM, NEVER, error, broken, late))
    assert (found.jobs, found.finished, found.errors) == (8, 4, 1)
    assert (found.oom_lost, found.timed_out, found.unfinished) == (1, 1, 2)
    assert found.jct is not None
    assert found.jct.mean == (120 + 140 + 200 + 60) / 4
    assert found.jct.median == (120 + 140) / 2
    assert found.wait is not None
    assert found.wait.mean == (0 + 30 + 100 + 0) / 4
    assert found.first_wait is not None
    assert found.first_wait.mean == (0 + 10 + 80 + 0) / 4
    assert found.execution is not None
    assert found.execution.mean == (120 + 100 + 100 + 60) / 4
    assert found.lost is not None
    assert found.lost.mean == 10 / 4


def test_crashes_and_preemptions_are_counted_by_attempt() -> None:
    found = figures(outcome(PLAIN, CRASHED, PREEMPTED, OOM))
    assert (found.oom_crashes, found.preemptions) == (3, 1)
    assert crashes(OOM) == 2


def test_percentiles_interpolate_linearly() -> None:
    found = spread(range(11))  # the k-th value is the 10·k-th percentile
    assert found is not None
    assert found == Spread(mean=5.0, median=5.0, p95=9.5, p99=9.9, p999=9.99, worst=10)


def test_one_value_is_all_of_its_percentiles() -> None:
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert spread([]) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [([2.0, 2.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 2.0, 3.0], 36 / 42), ([], None)],
)
def test_jains_index(values: list[float], expected: float | None) -> None:
    assert jain(values) == expected


def test_fairness_is_of_the_finish_ratios() -> None:
    found = figures(outcome(PLAIN, PREEMPTED))  # ρ = 1.2 and 2.5
    assert found.finish_ratio is not None
    assert found.finish_ratio.mean == pytest.approx(1.85)
    assert found.finish_ratio.worst == 2.5
    assert found.jain == pytest.approx(3.7**2 / (2 * (1.2**2 + 2.5**2)))
    assert found.slowdown is not None
    assert found.slowdown.mean == pytest.approx((1.2 + 1.25) / 2)


def test_the_queue_is_weighted_by_time_up_to_the_last_end() -> None:
    line = timeline([(0.0, 0.0), (10.0, 4.0), (30.0, 1.0), (100.0, 9.0), (140.0, 0.0)])
    found = figures(outcome(PLAIN, timeline=line, makespan_s=120.0))
    assert found.queue_mean == pytest.approx((4 * 20 + 1 * 70 + 9 * 20) / 120)
    assert found.queue_max == 9


def test_use_of_gpus_over_the_makespan_and_while_they_are_busy() -> None:
    small = gpu("a", "node0", busy_s=50.0, memory_mib_s=50 * 20_480.0, sm_active_s=40.0)
    large = gpu(
        "b", "node1", "A100-80GB", busy_s=100.0, memory_mib_s=100 * 81_920.0, dram_active_s=30.0
    )
    found = figures(
        outcome(
            PLAIN,
            cluster=parse("1xA100-40GB,1xA100-80GB"),
            gpus=(small, large),
            makespan_s=200.0,
        )
    )
    used_mib_s = 50 * 20_480 + 100 * 81_920
    assert found.gpus_busy == 150 / 400
    assert found.over_makespan == Use(
        memory=used_mib_s / (200 * (40_960 + 81_920)),
        sm_active=40 / 400,
        sm_occupancy=0.0,
        dram_active=30 / 400,
    )
    assert found.while_busy == Use(
        memory=used_mib_s / (50 * 40_960 + 100 * 81_920),
        sm_active=40 / 150,
        sm_occupancy=0.0,
        dram_active=30 / 150,
    )


def test_energy_is_of_all_gpus() -> None:
    found = figures(outcome(PLAIN, gpus=(gpu("a", energy_j=2.5e6), gpu("b", energy_j=5e5))))
    assert found.energy_mj == 3.0


def test_a_deadline_is_kept_by_finishing_in_time() -> None:
    kept = job(10, attempt(20, 60), deadline_s=50.0)
    missed = job(10, attempt(20, 61), deadline_s=50.0)
    lost = job(10, attempt(20, 25), deadline_s=50.0, state=JobState.OUT_OF_MEMORY)
    found = figures(outcome(kept, missed, lost, NEVER, PLAIN))
    assert (found.deadlines, found.deadlines_met) == (3, 1 / 3)
    assert figures(outcome(PLAIN)).deadlines_met is None


def test_rates() -> None:
    found = figures(outcome(PLAIN, makespan_s=1800.0, events=500, decisions=40, wall_s=0.25))
    assert (found.events_per_s, found.decisions_per_s) == (2000.0, 160.0)
    assert found.jobs_per_hour == 2.0


def test_nothing_to_measure_is_none_and_no_error() -> None:
    found = figures(outcome(NEVER, wall_s=0.0, makespan_s=0.0))
    assert bounds(outcome(NEVER)) == bounds(outcome(OOM)) == Bounds(None, None, None)
    assert (found.jct, found.wait, found.slowdown, found.jain) == (None, None, None, None)
    assert (found.over_makespan, found.while_busy, found.queue_mean) == (None, None, None)
    assert (found.jobs_per_hour, found.events_per_s) == (None, None)
    assert figures(outcome()).jobs == 0


def test_bounds_by_hand() -> None:
    """Two GPUs: 100 s on both, and then, from second 90 on, 60 s on one and 90 s on one."""
    both = job(0, attempt(0, 100, "g0", "g1"), alone_s=100.0)
    one = job(90, attempt(100, 160, "g0"), alone_s=60.0)
    other = job(90, attempt(100, 190, "g1"), alone_s=90.0)
    found = bounds(outcome(both, one, other, gpus=(gpu("g0"), gpu("g1"))))
    assert found.jct_mean_s == (100 + 60 + 90) / 3
    assert found.makespan_s == 180.0  # the last arrival and its duration
    assert found.unshared_makespan_s == 175.0  # (2 · 100 + 60 + 90) / 2, more than 90 + 150 / 2


def test_work_that_comes_late_bounds_the_makespan_from_when_it_comes() -> None:
    late = [job(1000, attempt(1000, 1100), alone_s=100.0) for _ in range(3)]
    found = bounds(outcome(job(0, attempt(0, 1), alone_s=1.0), *late))
    assert found.unshared_makespan_s == 1300.0
    assert found.makespan_s == 1100.0


def test_bounds_count_from_where_the_makespan_does() -> None:
    run = outcome(job(10, attempt(10, 110), alone_s=100.0))
    found = bounds(run)
    assert found.makespan_s == found.unshared_makespan_s == figures(run).makespan_s == 110.0


def test_lost_jobs_are_no_work() -> None:
    assert bounds(outcome(PLAIN, OOM)) == bounds(outcome(PLAIN))


def test_where_a_job_never_ends_nothing_is_told_of_the_end_of_all() -> None:
    """The first runs for 120 s; the other waits from 40 on for ever, not for the 80 s till then."""
    line = timeline([(0.0, 0.0), (40.0, 1.0)])
    run = outcome(PLAIN, NEVER, timeline=line, gpus=(gpu("g0", busy_s=90.0),))
    found = figures(run)
    assert (found.makespan_s, found.jobs_per_hour, found.queue_mean) == (None, None, None)
    assert (found.queue_max, found.gpus_busy) == (1, 90 / 120)
    assert bounds(run) == Bounds(100.0, None, None)
    found = figures(outcome(PLAIN, OOM, timeline=line))
    assert (found.makespan_s, found.queue_mean) == (120.0, 80 / 120)


@pytest.mark.parametrize("seed", range(20))
def test_no_run_without_sharing_beats_its_bounds(seed: int) -> None:
    run = made_up(40, "2x2xA100-40GB", seats=1, seed=seed)
    found, least = figures(run), bounds(run)
    assert found.jct is not None
    assert least.jct_mean_s is not None
    assert found.jct.mean >= least.jct_mean_s - 1e-6
    assert found.makespan_s >= least.makespan_s - 1e-6
    assert found.makespan_s >= least.unshared_makespan_s - 1e-6


def test_a_run_that_shares_may_beat_work_over_capacity() -> None:
    """Two jobs of 100 s that together take 120 s on one GPU."""
    pair = [job(0, attempt(0, 120), alone_s=100.0) for _ in range(2)]
    run = outcome(*pair)
    assert bounds(run).unshared_makespan_s == 200.0 > figures(run).makespan_s
    assert bounds(run).makespan_s == 100.0


def test_the_parts_of_the_jct_add_up() -> None:
    found = figures(made_up(60, "3xA100-40GB", seats=3))
    assert found.jct is not None
    parts = (found.wait, found.lost, found.execution)
    assert math.isclose(found.jct.mean, sum(part.mean for part in parts if part is not None))
    assert found.oom_crashes > 0
