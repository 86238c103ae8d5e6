"""The simulated world, checked against times and energies worked out by hand.

Unless a test says otherwise a first kernel comes 10 s after the launch, and a GPU takes the next
job 30 s after that.
"""

import math
import pickle
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_simulator import interference
from carma_simulator.experiment import Experiment, Load, Physics, Task, Trace
from carma_simulator.hardware import Cluster, Node, parse
from carma_simulator.run import simulate
from carma_simulator.workload import Clock, Workload, not_before, submit_in_time
from carma_simulator.world import World
from carmad import registry
from carmad.config import Collocation, Limits, Risk, Settings
from carmad.core.jobs.attempt import Cause, JobId, Mode
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.layout import Layout, Stage
from carmad.core.jobs.states import JobState
from carmad.core.messages import Tick, Wake
from carmad.core.placing.decision import AskAgain, Placement, Preemption, Reason
from carmad.errors import CarmaError
from carmad.gpu.kinds import KINDS, GpuKind

FAST = GpuKind("fast", 40_960, 50.0, 400.0, 1.0)
SLOW = GpuKind("slow", 40_960, 30.0, 300.0, 0.5, speeds=(("vgg16", 0.25),))
LIGHT = Load("light", 32, 4_000, sm_active=0.4, sm_occupancy=0.2, dram_active=0.1)
QUIET = Load("quiet", 32, 4_000, sm_active=0.0, sm_occupancy=0.0, dram_active=0.0)
HEAVY = Load("heavy", 32, 4_000, sm_active=1.0, sm_occupancy=1.0, dram_active=0.0)


def a_task(submit_s=0.0, duration_s=100.0, **changes):
    base = Task(name="train", submit_s=submit_s, duration_s=duration_s, load=LIGHT)
    return replace(base, **changes)


def one_node(*kinds):
    return Cluster(tuple(Node(f"n{i}", kind, 1) for i, kind in enumerate(kinds)))


def run(*tasks, cluster=None, settings=None, physics=None, **changes):
    return simulate(
        Experiment(
            Trace("by hand", tasks),
            cluster or one_node(FAST),
            settings or Settings(),
            interference=changes.pop("interference", "none"),
            physics=physics or Physics(),
            **changes,
        )
    )


@pytest.fixture
def half_speed(monkeypatch):
    """Two jobs on a GPU train at half speed each, three at a third, and so on."""

    class Fair:
        name = "fair"

        def speeds(self, loads, mode):
            return (1 / len(loads),) * len(loads)

    monkeypatch.setattr(interference, "make", lambda name: Fair())


def spans(job):
    return [(a.launched_at, a.ready_at, a.ended_at, a.cause) for a in job.attempts]


@pytest.mark.parametrize(
    "stage, iteration_s", [(Stage(2, 0.1, 0.1), 0.0), (Stage(2), 0.5), (Stage(2), 0.0)]
)
def test_a_layout_of_which_half_is_told_slows_nobody_down(stage, iteration_s):
    two = Cluster((Node("n0", FAST, 2),))
    told = a_task(gpus=2, layout=Layout((stage,)), iteration_s=iteration_s)
    assert spans(run(told, cluster=two).jobs[0]) == spans(run(a_task(gpus=2), cluster=two).jobs[0])


def test_one_job_alone():
    outcome = run(a_task(submit_s=0.0))
    (job,), (gpu,) = outcome.jobs, outcome.gpus
    assert spans(job) == [(0.0, 10.0, 110.0, Cause.SUCCESS)]
    assert (job.state, job.alone_s, outcome.makespan_s) == (JobState.SUCCEEDED, 110.0, 110.0)
    assert job.attempts[0].gpus == (gpu.gpu,) and job.attempts[0].mode is Mode.STREAMS
    assert gpu.busy_s == 110.0
    assert gpu.memory_mib_s == 4_000 * 100
    assert gpu.sm_active_s == pytest.approx(40.0)
    assert gpu.sm_occupancy_s == pytest.approx(20.0)
    assert gpu.dram_active_s == pytest.approx(10.0)
    assert gpu.energy_j == pytest.approx(50.0 * 10 + FAST.power_w(0.4, 0.1) * 100)
    assert job.energy_j == pytest.approx(gpu.energy_j)


def test_the_core_is_told_what_changes_and_nothing_else():
    # the GPUs, their first reading; submitted; estimated; a reading at the first kernel; the end
    assert run(a_task()).events == 2 + 1 + 1 + 1 + 2


def test_a_job_without_kernels_keeps_others_away_and_computes_nothing():
    outcome = run(
        a_task(duration_s=70.0, has_kernels=False), a_task(submit_s=1.0), settings=Settings()
    )
    hung, other = outcome.jobs
    assert spans(hung) == [(0.0, None, 80.0, Cause.SUCCESS)]
    assert spans(other) == [(80.0, 90.0, 190.0, Cause.SUCCESS)], "the GPU was before a first kernel"
    (gpu,) = outcome.gpus
    assert gpu.memory_mib_s == 4_000 * (70 + 100) and gpu.sm_active_s == pytest.approx(40.0)


def test_as_the_daemon_a_job_says_no_duration_and_passes_one_that_cannot_start_before_its_end():
    two = Cluster((Node("n0", FAST, 2),))
    tasks = (
        a_task(duration_s=100.0, time_limit_s=200.0, exclusive=True),
        a_task(submit_s=1.0, gpus=2, exclusive=True, name="wide"),
        a_task(submit_s=2.0, duration_s=20.0, time_limit_s=60.0, exclusive=True, name="short"),
    )

    def starts(**changes):
        jobs = run(*tasks, cluster=two, **changes).jobs
        return [job.attempts[0].launched_at for job in jobs]

    assert starts() == [0.0, 110.0, 220.0]
    assert starts(as_daemon=True) == [0.0, 110.0, 2.0]
    fixed = Settings(limits=Limits(backfill=0))
    assert starts(as_daemon=True, settings=fixed) == starts(), "what is set is kept"


def test_the_estimator_history_knows_what_earlier_runs_used():
    """With 10 % for what the next one may use more, twice."""
    tasks = [a_task(submit_s=at) for at in (0.0, 1.0, 200.0)]
    workload = Workload(
        Experiment(Trace("by hand", tuple(tasks)), one_node(FAST), estimator="history")
    )
    assert workload.estimate(JobId(2)) is None
    workload.learn(JobId(1))
    known = workload.estimate(JobId(2))
    assert known and (known.mib, known.source) == (4_000, "history")
    assert known.mib * 1.3 < known.safe_mib < known.mib * 1.4


def test_the_timeline_has_a_row_per_change():
    timeline = run(a_task()).timeline
    assert list(timeline.at) == [0.0, 10.0, 110.0]
    assert list(timeline.queued) == [0, 0, 0]
    assert list(timeline.running) == [1, 1, 0]
    assert list(timeline.busy_gpus) == [1, 1, 0]
    assert list(timeline.memory) == [0, 4_000 / 40_960, 0]
    assert list(timeline.sm_active) == [0, 0.4, 0]
    assert list(timeline.power_w) == pytest.approx([50, FAST.power_w(0.4, 0.1), 50])


def test_an_instant_has_one_row():
    assert list(run(a_task(), physics=Physics(first_kernel_s=0.0)).timeline.at) == [0.0, 100.0]


def test_a_gpu_takes_the_second_job_when_it_has_settled_and_both_slow_down(half_speed):
    first, second = run(a_task(), a_task(duration_s=30.0)).jobs
    # The second is launched at 10 + 30, ready at 50, and takes 60 s for its 30. The first has
    # done 40 by 50 and 30 more by 110, and does the last 30 alone.
    assert spans(second) == [(40.0, 50.0, 110.0, Cause.SUCCESS)]
    assert spans(first) == [(0.0, 10.0, 140.0, Cause.SUCCESS)]
    assert (first.alone_s, second.alone_s) == (110.0, 40.0)


def test_a_slowed_job_asks_less_of_the_gpu_and_neighbours_share_its_energy(half_speed):
    outcome = run(a_task(), a_task(duration_s=30.0))
    (gpu,), (first, second) = outcome.gpus, outcome.jobs
    # 0.4 while alone (10–50, 110–140), and 2 × 0.4 × 0.5 while shared (50–110)
    assert gpu.sm_active_s == pytest.approx(0.4 * 130)
    assert gpu.memory_mib_s == 4_000 * (140 - 10) + 4_000 * (110 - 50)
    watts = FAST.power_w(0.4, 0.1)
    assert gpu.energy_j == pytest.approx(50 * 10 + watts * 130)
    assert second.energy_j == pytest.approx(watts * 70 / 2)  # from its launch at 40 on
    assert first.energy_j + second.energy_j == pytest.approx(gpu.energy_j)


def test_the_job_that_asks_last_runs_out_of_memory_and_is_tried_again_alone():
    big = replace(LIGHT, memory_mib=30_000)
    other = replace(LIGHT, memory_mib=20_000)
    first, second = run(a_task(load=big), a_task(duration_s=50.0, load=other)).jobs
    assert spans(first) == [(0.0, 10.0, 110.0, Cause.SUCCESS)]
    assert spans(second) == [
        (40.0, None, 55.0, Cause.GPU_OOM),
        (110.0, 120.0, 170.0, Cause.SUCCESS),
    ]
    assert [a.mode for a in second.attempts] == [Mode.STREAMS, Mode.EXCLUSIVE]


def test_who_leaves_at_that_instant_makes_room_for_who_comes():
    """Told to stop at 108, the first is gone at 110, when the second asks for its memory."""
    big = replace(LIGHT, memory_mib=30_000)
    other = replace(LIGHT, memory_mib=20_000)
    _, second = run(
        a_task(0.0, 200.0, load=big, time_limit_s=108.0), a_task(100.0, 50.0, load=other)
    ).jobs
    assert spans(second) == [(100.0, 110.0, 160.0, Cause.SUCCESS)]


def test_what_an_estimate_rules_out_is_not_tried():
    big = replace(LIGHT, memory_mib=30_000)
    other = replace(LIGHT, memory_mib=20_000)
    _, second = run(a_task(load=big), a_task(load=other), estimator="oracle").jobs
    assert spans(second) == [(110.0, 120.0, 220.0, Cause.SUCCESS)]


@pytest.mark.parametrize(("fragmentation_mib", "attempts"), [(960, 1), (961, 2)])
def test_fragmentation_takes_memory_from_newcomers(fragmentation_mib, attempts):
    big = replace(LIGHT, memory_mib=30_000)
    other = replace(LIGHT, memory_mib=10_000)
    physics = Physics(fragmentation_mib=fragmentation_mib)
    _, second = run(a_task(load=big), a_task(load=other), physics=physics).jobs
    assert len(second.attempts) == attempts


def test_a_job_that_no_gpu_can_hold_is_given_up():
    (job,) = run(a_task(load=replace(LIGHT, memory_mib=50_000))).jobs
    assert job.state is JobState.OUT_OF_MEMORY
    assert spans(job) == [(0.0, None, 15.0, Cause.GPU_OOM)]


def test_memory_taken_elsewhere_is_held_until_the_crash_is_over():
    """One GPU of the pair is full: what the crashing job took of the other is back at 15 s."""
    small = replace(FAST, name="small", memory_mib=3_000)
    outcome = run(a_task(gpus=2), cluster=one_node(FAST, small))
    roomy, full = outcome.gpus
    assert roomy.memory_mib_s == 4_000 * 5
    assert full.memory_mib_s == 0
    assert outcome.jobs[0].state is JobState.OUT_OF_MEMORY


def test_a_saturated_gpu_takes_the_next_job_when_the_risk_has_fallen_below_its_limit():
    tasks = a_task(load=QUIET, duration_s=1000.0), a_task(load=HEAVY), a_task()
    _, heavy, third = run(*tasks).jobs
    assert spans(heavy) == [(40.0, 50.0, 150.0, Cause.SUCCESS)]
    # x s after the end, with half of the window still full: 0.2·(1 − x/30) + 0.3 + 0.3 + 0.2·EMA,
    # EMA = (29/31)^x, falls below 0.8 where x/30 = (29/31)^x: x = 12.79.
    x = third.attempts[0].launched_at - 150.0
    assert x == pytest.approx(12.79, abs=0.1)
    assert x / 30 == pytest.approx((29 / 31) ** x, abs=5e-3)


def test_a_gpu_that_nobody_is_on_any_longer_is_no_risk():
    _, second = run(a_task(load=HEAVY), a_task(load=HEAVY)).jobs
    assert second.attempts[0].launched_at == 110.0


def test_the_risk_is_judged_by_the_time_each_level_stood():
    """The window is full of the load at 40 s, not before, however few readings there were."""
    long = a_task(duration_s=1000.0)
    _, second, third = run(long, a_task(submit_s=39.0, load=HEAVY), a_task(submit_s=75.0)).jobs
    assert second.attempts[0].launched_at == 40.0
    # Ready at 50 beside the light one, the heavy one saturates the GPU until it ends at 150.
    assert third.attempts[0].launched_at > 150.0


@pytest.mark.parametrize(("after_s", "gpu"), [(17.0, "n1/0"), (19.0, "n0/0")])
def test_a_job_that_comes_between_two_changes_finds_the_scores_of_that_instant(after_s, gpu):
    """x s after the heavy job the mean SMACT of its GPU is 1 − x/30, below 0.4 from 18 s on. A
    quiet one stays there: an idle GPU would come first whatever its score."""
    quiet, light = a_task(load=QUIET, duration_s=1000.0), a_task(duration_s=500.0)
    tasks = quiet, light, a_task(load=HEAVY, submit_s=50.0), a_task(submit_s=160.0 + after_s)
    jobs = run(*tasks, cluster=one_node(FAST, FAST), settings=Settings(policy="lug")).jobs
    assert [job.attempts[0].gpus for job in jobs] == [("n0/0",), ("n1/0",), ("n0/0",), (gpu,)]
    assert spans(jobs[2]) == [(50.0, 60.0, 160.0, Cause.SUCCESS)]
    assert jobs[3].attempts[0].launched_at == 160.0 + after_s


def test_a_time_limit():
    (job,) = run(a_task(time_limit_s=50.0)).jobs
    assert job.state is JobState.TIMED_OUT
    assert spans(job) == [(0.0, 10.0, 52.0, Cause.TIME_LIMIT)]


def test_a_time_limit_that_is_not_reached():
    assert spans(run(a_task(time_limit_s=111.0)).jobs[0]) == [(0.0, 10.0, 110.0, Cause.SUCCESS)]

    limited, free = (run(a_task(time_limit_s=limit)) for limit in (111.0, None))
    assert limited.events == free.events  # a limit that no longer matters is not looked at


def test_a_neighbour_that_ends_meanwhile_does_not_keep_a_job_from_being_stopped(half_speed):
    first, second = run(a_task(time_limit_s=109.0), a_task(duration_s=30.0)).jobs
    assert second.ended_at == 110.0
    assert spans(first) == [(0.0, 10.0, 111.0, Cause.TIME_LIMIT)]


def test_a_first_kernel_that_is_long_in_coming_is_not_waited_for():
    """After `first_kernel_timeout_s`, 600 s by default."""
    _, second = run(a_task(), a_task(), physics=Physics(first_kernel_s=1_000.0)).jobs
    assert second.attempts[0].launched_at == 600.0


def test_a_job_that_fails_by_itself():
    (job,) = run(a_task(fails=True)).jobs
    assert job.state is JobState.FAILED
    assert spans(job) == [(0.0, 10.0, 110.0, Cause.FAILURE)]


class LatestFirst:
    """The latest job gets the GPU."""

    name = "latest_first"

    def order(self, job):
        return -job.id

    def plan(self, view):
        job, gpu = view.queue[0], view.gpus[0]
        if not gpu.residents:
            return (Placement(job.id, (gpu.id,)),)
        (holder,) = gpu.residents
        if holder.id > job.id or holder.stop:
            return (Placement(job.id, reasons=(Reason("busy"),)),)
        return (
            Preemption(holder.id, Reason("newer")),
            Placement(job.id, reasons=(Reason("busy"),)),
        )


def test_a_preempted_job_goes_on_where_it_was(monkeypatch):
    monkeypatch.setattr(registry, "bare_policy", lambda settings: LatestFirst())
    settings = Settings(limits=Limits(preemption=True))
    first, second = run(a_task(), a_task(submit_s=60.0, duration_s=20.0), settings=settings).jobs
    # Told to stop at 60 with 50 s done, gone at 62; 50 s are left and 10 s to load what was saved.
    assert spans(second) == [(62.0, 72.0, 92.0, Cause.SUCCESS)]
    assert spans(first) == [(0.0, 10.0, 62.0, Cause.PREEMPTED), (92.0, 102.0, 162.0, Cause.SUCCESS)]
    assert first.state is JobState.SUCCEEDED


def test_what_was_saved_before_stays_saved(monkeypatch):
    monkeypatch.setattr(registry, "bare_policy", lambda settings: LatestFirst())
    first, _, third = run(
        a_task(),
        a_task(submit_s=60.0, duration_s=20.0),
        a_task(submit_s=112.0, duration_s=20.0),
        settings=Settings(limits=Limits(preemption=True)),
        physics=Physics(checkpoint_s=50.0),
    ).jobs
    # Preempted again after 10 of the 50 s that loading takes: it has its 50 s of work left still.
    assert spans(third) == [(114.0, 124.0, 144.0, Cause.SUCCESS)]
    assert spans(first)[1:] == [
        (92.0, 102.0, 114.0, Cause.PREEMPTED),
        (144.0, 154.0, 254.0, Cause.SUCCESS),
    ]


def test_a_time_limit_counts_what_was_done_before_a_preemption(monkeypatch):
    """Run for 62 s until it is preempted, and stopped 38 s after it goes on."""
    monkeypatch.setattr(registry, "bare_policy", lambda settings: LatestFirst())
    settings = Settings(limits=Limits(preemption=True))
    first, _ = run(
        a_task(time_limit_s=100.0), a_task(submit_s=60.0, duration_s=20.0), settings=settings
    ).jobs
    assert spans(first)[1] == (92.0, 102.0, 92.0 + 38.0 + 2.0, Cause.TIME_LIMIT)


def test_a_job_preempted_before_its_first_kernel_begins_anew(monkeypatch):
    monkeypatch.setattr(registry, "bare_policy", lambda settings: LatestFirst())
    settings = Settings(limits=Limits(preemption=True))
    first, second = run(a_task(), a_task(submit_s=5.0, duration_s=20.0), settings=settings).jobs
    assert spans(second) == [(7.0, 17.0, 37.0, Cause.SUCCESS)]
    assert spans(first) == [(0.0, None, 7.0, Cause.PREEMPTED), (37.0, 47.0, 147.0, Cause.SUCCESS)]


def test_a_slower_gpu_takes_longer():
    fast, slow = run(a_task(), a_task(), cluster=one_node(FAST, SLOW)).jobs
    assert (fast.ended_at, slow.ended_at) == (110.0, 210.0)  # measured on the cluster's first
    assert (fast.alone_s, slow.alone_s) == (110.0, 210.0)


def test_the_gpu_that_a_duration_was_measured_on_counts():
    (job,) = run(a_task(reference="slow"), cluster=one_node(FAST, SLOW)).jobs
    assert job.ended_at == 10 + 50


def test_a_model_can_be_slower_still():
    load = replace(LIGHT, model="VGG-16")
    (job,) = run(a_task(load=load, gpus=2), cluster=one_node(FAST, SLOW)).jobs
    assert job.ended_at == 10 + 400


def test_a_job_of_several_gpus_goes_at_the_pace_of_the_slowest(half_speed):
    outcome = run(a_task(gpus=2), cluster=one_node(FAST, SLOW))
    assert outcome.jobs[0].ended_at == 210.0
    fast, slow = outcome.gpus
    assert slow.sm_active_s == pytest.approx(0.4 * 200)
    assert fast.sm_active_s == pytest.approx(0.4 * 200 / 2)  # it waits half of the time


def test_a_neighbour_on_one_gpu_slows_the_whole_job(half_speed):
    cluster = one_node(FAST, FAST)
    outcome = run(a_task(gpus=2), a_task(duration_s=20.0), cluster=cluster)
    pair, single = outcome.jobs
    # The second comes at 40, trains from 50 to 90 at half speed; so does the pair, on both GPUs.
    assert single.ended_at == 90.0
    assert pair.ended_at == 130.0
    _, other = outcome.gpus  # the one without a neighbour
    assert other.sm_active_s == pytest.approx(0.4 * (40 + 20 + 40))
    assert other.energy_j == pytest.approx(
        50 * 10 + FAST.power_w(0.4, 0.1) * 80 + FAST.power_w(0.2, 0.05) * 40
    )


def test_an_unknown_reference_is_the_users_error():
    with pytest.raises(CarmaError, match="abacus"):
        run(a_task(reference="abacus"))


def test_a_job_that_arrives_as_another_ends_takes_its_place():
    _, second = run(a_task(), a_task(submit_s=110.0), settings=Settings(policy="exclusive")).jobs
    assert second.attempts[0].launched_at == 110.0


def test_a_job_that_can_never_start_is_left_in_the_queue():
    outcome = run(a_task(gpus=2), a_task())
    assert [job.state for job in outcome.jobs] == [JobState.QUEUED, JobState.QUEUED]
    assert outcome.jobs[0].attempts == () and outcome.makespan_s == 0.0
    assert outcome.timeline.queued[-1] == 2


def test_a_stuck_job_does_not_stop_the_clock_of_those_that_run():
    outcome = run(a_task(), a_task(submit_s=5.0, gpus=2))
    assert [job.state for job in outcome.jobs] == [JobState.SUCCEEDED, JobState.QUEUED]
    assert outcome.makespan_s == 110.0


def test_an_empty_trace():
    outcome = run()
    assert (outcome.jobs, outcome.makespan_s) == ((), 0.0)


class Failing(LatestFirst):
    name = "failing"

    def plan(self, view):
        raise ZeroDivisionError("no GPU is that good")


def test_a_policy_that_fails_ends_the_simulation(monkeypatch):
    monkeypatch.setattr(registry, "bare_policy", lambda settings: Failing())
    with pytest.raises(CarmaError, match="no GPU is that good"):
        run(a_task())


class Restless(LatestFirst):
    """Always prefers the waiting job."""

    name = "restless"

    def plan(self, view):
        job, gpu = view.queue[0], view.gpus[0]
        if not gpu.residents:
            return (Placement(job.id, (gpu.id,)),)
        return tuple(Preemption(other.id, Reason("restless")) for other in gpu.residents)


def test_a_policy_that_gets_nowhere_ends_the_simulation(monkeypatch):
    monkeypatch.setattr(registry, "bare_policy", lambda settings: Restless())
    monkeypatch.setattr("carma_simulator.world.MOST_ATTEMPTS", 50)
    settings = Settings(limits=Limits(preemption=True))
    with pytest.raises(CarmaError, match="over and over"):
        run(a_task(), a_task(), settings=settings, physics=Physics(checkpoint_s=1e9))


class Patient(LatestFirst):
    """Starts the first job at 100 s, the second at 300 s, and no other; asks every few seconds."""

    name = "patient"

    def __init__(self, every_s):
        self.every_s = every_s
        self.asked_at = []

    def plan(self, view):
        self.asked_at.append(view.now)
        job, gpu = view.queue[-1], view.gpus[0]
        if view.now >= {1: 100.0, 2: 300.0}.get(job.id, math.inf):
            return (Placement(job.id, (gpu.id,)), AskAgain(view.now + self.every_s))
        waits = Placement(job.id, reasons=(Reason("waits"),))
        return (waits, AskAgain(view.now + self.every_s))


def test_a_policy_is_asked_again_when_it_wants_to_be(monkeypatch):
    """As often as it likes while a job runs; not more than so often in a row while none does."""
    monkeypatch.setattr(registry, "bare_policy", lambda settings: Patient(10.0))
    monkeypatch.setattr("carma_simulator.world.MOST_WAKES", 15)
    jobs = run(a_task(), a_task()).jobs
    assert [job.attempts[0].launched_at for job in jobs] == [100.0, 300.0]


def test_a_policy_that_asks_for_ever_does_not_keep_the_simulation_from_its_end(monkeypatch):
    policy = Patient(0.0)
    monkeypatch.setattr(registry, "bare_policy", lambda settings: policy)
    monkeypatch.setattr("carma_simulator.world.MOST_WAKES", 15)
    assert run(a_task()).jobs[0].state is JobState.QUEUED
    assert policy.asked_at == [float(at) for at in range(16)]  # once per period of the monitor


class Diary(Clock):
    """Records when it was asked to call."""

    def __init__(self):
        super().__init__()
        self.calls_at = []

    def call_at(self, at, order, act, *subject):
        self.calls_at.append(at)
        super().call_at(at, order, act, *subject)


def a_world(cluster, *tasks, clock=None):
    experiment = Experiment(Trace("by hand", tasks), cluster)
    workload, clock = Workload(experiment), clock or Clock()
    world = World(experiment, Settings(), workload, interference.make("none"), clock)
    submit_in_time(workload.tasks, clock, world.submit)
    return world


def test_to_be_woken_at_one_instant_is_to_be_woken_once():
    clock = Diary()
    world = a_world(one_node(FAST), a_task(), clock=clock)
    clock.advance()  # to 0 s
    for at in (50.0, 50.0, 0.2, 0.3, 50.0):  # a monitor's next look is at 1 s
        world.perform(Wake(at))
    assert clock.calls_at == [0.0, 50.0, 1.0, 50.0]


@pytest.mark.parametrize("later, ticks", [(70.0, [70.0]), (30.0, [30.0]), (math.inf, [])])
def test_only_the_last_wake_counts(later, ticks):
    clock = Clock()
    world = a_world(one_node(FAST), a_task(), clock=clock)
    clock.advance()
    world.news(waiting=True)
    for at in (50.0, later):
        world.perform(Wake(at))
    told = [event for _ in iter(clock.advance, False) for event in world.news(waiting=True)]
    assert [event.at for event in told if isinstance(event, Tick)] == ticks


def test_under_mps_jobs_share_in_that_mode():
    settings = Settings(collocation=Collocation(mps=True))
    modes = [job.attempts[0].mode for job in run(a_task(), a_task(), settings=settings).jobs]
    assert modes == [Mode.MPS, Mode.MPS]


@pytest.mark.parametrize(("scope", "wide"), [("gpu", Mode.STREAMS), ("node", Mode.MPS)])
def test_under_mps_a_job_of_two_gpus_shares_as_the_scope_says(scope, wide):
    settings = Settings(collocation=Collocation(mps=True, mps_scope=scope))
    tasks = a_task(), a_task(gpus=2)
    outcome = run(*tasks, settings=settings, cluster=parse("2xA100-40GB"))
    (narrow,), (other,) = (job.attempts for job in outcome.jobs)
    assert (narrow.mode, other.mode) == (Mode.MPS, wide)
    assert other.launched_at < narrow.ended_at


def test_mig_instances_belong_to_their_gpu():
    cluster = parse("1xA100-40GB,2xA30-24GB/2x2g.12gb")
    discovered, _ = a_world(cluster).opening()
    assert [(g.id, g.index, g.name, g.memory_mib, g.parent) for g in discovered.gpus] == [
        ("node0/0", 0, "A100-40GB", 40_960, None),
        ("node1/0/0", 1, "A30-24GB/2g.12gb", 11_968, "node1/0"),
        ("node1/0/1", 2, "A30-24GB/2g.12gb", 11_968, "node1/0"),
        ("node1/1/0", 3, "A30-24GB/2g.12gb", 11_968, "node1/1"),
        ("node1/1/1", 4, "A30-24GB/2g.12gb", 11_968, "node1/1"),
    ]


def test_a_mig_instance_is_as_fast_as_its_share_allows():
    outcome = run(a_task(), cluster=parse("1xA100-40GB/7x1g.5gb"))
    (job,), gpu = outcome.jobs, outcome.gpus[0]
    # It wants 0.4 of the SMs and has 1/7: 2.8 times as long. Of the bandwidth it has enough, 1/8.
    assert spans(job) == [(0.0, 10.0, pytest.approx(290.0), Cause.SUCCESS)]
    assert job.attempts[0].mode is Mode.MIG
    assert job.alone_s == pytest.approx(290.0)
    assert gpu.sm_active_s == pytest.approx(1.0 * 280)
    assert gpu.sm_occupancy_s == pytest.approx(0.2 / 0.4 * 280)
    assert gpu.dram_active_s == pytest.approx(0.1 * 8 / 2.8 * 280)
    # 50 W at rest, and 0.85 · 350 W more at full activity, for seven
    assert gpu.energy_j == pytest.approx(50 / 7 * 290 + 297.5 / 7 * 280)
    assert [idle.energy_j for idle in outcome.gpus[1:]] == pytest.approx([50 / 7 * 290] * 6)
    assert outcome.timeline.memory[1] == pytest.approx(4_000 / (7 * 4_864))


@pytest.mark.parametrize(
    ("partition", "dram_active", "seconds"),
    [
        ("3g.20gb", 0.5, 100),  # 0.4 of 3/7 of the SMs, 0.5 of 4/8 of the bandwidth: enough
        ("3g.20gb", 0.8, 160),
        ("2g.10gb", 0.1, 140),  # 0.4 of 2/7 of the SMs
        ("2g.10gb", 0.5, 200),  # 0.5 of 2/8 of the bandwidth
        ("1g.10gb", 0.5, 280),  # twice the bandwidth of a 1g.5gb, and its SMs
        ("7g.40gb", 1.0, 100),
    ],
)
def test_the_scarcer_of_sms_and_bandwidth_decides(partition, dram_active, seconds):
    load = replace(LIGHT, dram_active=dram_active)
    outcome = run(a_task(load=load), cluster=parse(f"1xA100-40GB/{partition}"))
    (job,), (gpu,) = outcome.jobs, outcome.gpus
    assert job.ended_at == pytest.approx(10 + seconds)
    share = {"3": 4 / 8, "2": 2 / 8, "1": 2 / 8, "7": 1.0}[partition[0]]
    assert gpu.dram_active_s == pytest.approx(dram_active / share * 100)  # the same work in all


def test_a_mig_instance_of_a_faster_gpu_is_faster():
    (job,) = run(a_task(reference="A100-40GB"), cluster=parse("1xH100-80GB/7x1g.10gb")).jobs
    assert job.ended_at == pytest.approx(10 + 280 / KINDS["H100-80GB"].speed)


def test_mig_instances_take_one_job_each_and_do_not_disturb_each_other(half_speed):
    task = a_task(load=replace(LIGHT, sm_active=0.3))  # leaves no instance risky behind it
    jobs = run(task, task, task, cluster=parse("1xA100-40GB/2x3g.20gb")).jobs
    assert [spans(job) for job in jobs] == [
        [(0.0, 10.0, 110.0, Cause.SUCCESS)],
        [(0.0, 10.0, 110.0, Cause.SUCCESS)],
        [(110.0, 120.0, 220.0, Cause.SUCCESS)],
    ]
    assert len({job.attempts[0].gpus for job in jobs[:2]}) == 2


@pytest.mark.parametrize(
    ("memory_mib", "state"), [(4_864, JobState.SUCCEEDED), (4_865, JobState.OUT_OF_MEMORY)]
)
def test_a_mig_instance_has_its_own_memory(memory_mib, state):
    load = replace(LIGHT, memory_mib=memory_mib)
    (job,) = run(a_task(load=load), cluster=parse("1xA100-40GB/1g.5gb")).jobs
    assert job.state is state


def test_a_job_of_several_gpus_gets_no_mig_instances():
    cluster = parse("1xA100-40GB/7x1g.5gb,2xA100-40GB")
    (job,) = run(a_task(gpus=2), cluster=cluster).jobs
    assert job.attempts[0].gpus == ("node1/0", "node1/1")
    assert job.attempts[0].mode is Mode.STREAMS


def a_workload(estimator="none", physics=None, seed=0):
    tasks = (
        a_task(estimates=(("horus", 5_000),)),
        a_task(duration_s=200.0, expected_s=150.0),
    )
    trace, cluster = Trace("by hand", tasks), one_node(FAST)
    physics = physics or Physics()
    return Workload(Experiment(trace, cluster, estimator=estimator, physics=physics, seed=seed))


def test_estimates():
    first, second = JobId(1), JobId(2)
    assert a_workload("none").estimate(first) is None
    assert a_workload("oracle").estimate(second) == Estimate(4_000, "oracle")
    assert a_workload("horus").estimate(first) == Estimate(5_000, "horus")
    assert a_workload("horus").estimate(second) is None


def test_a_user_s_own_word_is_an_estimate_too():
    task = a_task(declared_mib=3_000, estimates=(("horus", 5_000),))
    for estimator in ("none", "horus"):
        workload = Workload(Experiment(Trace("", (task,)), one_node(FAST), estimator=estimator))
        assert workload.estimate(JobId(1)) == Estimate(3_000, "declared", firm=True)


@pytest.mark.parametrize(
    ("mps", "word", "state"),
    [
        (True, {"declared_mib": 3_999}, JobState.OUT_OF_MEMORY),
        (True, {"declared_mib": 4_000}, JobState.SUCCEEDED),
        (True, {"estimates": (("horus", 3_999),)}, JobState.SUCCEEDED),
        (False, {"declared_mib": 3_999}, JobState.SUCCEEDED),
    ],
)
def test_under_mps_a_user_s_own_word_is_a_limit_and_a_guess_is_none(mps, word, state):
    settings = Settings(collocation=Collocation(mps=mps))
    (job,) = run(a_task(**word), settings=settings, estimator="horus").jobs
    assert (job.state, len(job.attempts)) == (state, 1)


def test_beside_others_one_that_passes_its_limit_is_tried_again_without_it():
    settings = Settings(collocation=Collocation(mps=True))
    tasks = a_task(), a_task(50.0, declared_mib=3_999)
    _, job = run(*tasks, settings=settings).jobs
    assert [(a.mode, a.cause) for a in job.attempts] == [
        (Mode.MPS, Cause.GPU_OOM),
        (Mode.EXCLUSIVE, Cause.SUCCESS),
    ]


def test_expected_durations():
    expected = [a_workload().spec(JobId(id)).expected_s for id in (1, 2)]
    assert expected == [100.0, 150.0]


def test_errors_are_the_tasks_own_whatever_is_asked_before():
    physics = Physics(estimate_error=0.5, duration_error=0.5)
    one, other = (a_workload("oracle", physics, seed=3) for _ in range(2))
    one.estimate(JobId(1)), one.spec(JobId(1))
    assert one.estimate(JobId(2)) == other.estimate(JobId(2)) != Estimate(4_000, "oracle")
    assert one.spec(JobId(2)).expected_s == other.spec(JobId(2)).expected_s != 150.0
    assert one.estimate(JobId(1)) != one.estimate(JobId(2))
    reseeded = a_workload("oracle", physics, seed=4)
    assert reseeded.estimate(JobId(2)) != other.estimate(JobId(2))


def test_errors_are_log_normal():
    draws = []
    for seed in range(400):
        estimate = a_workload("oracle", Physics(estimate_error=0.5), seed).estimate(JobId(1))
        draws.append(math.log(estimate.mib / 4_000))
    mean = sum(draws) / len(draws)
    sigma = math.sqrt(sum((x - mean) ** 2 for x in draws) / len(draws))
    assert mean == pytest.approx(0.0, abs=0.1)
    assert sigma == pytest.approx(0.5, abs=0.07)


@given(st.floats(-30, 1e9), st.floats(0, 1e6))
def test_not_before_is_the_first_instant_at_which_the_span_is_over(since, span_s):
    at = not_before(since, span_s)
    assert at - since >= span_s
    assert at == since or at == since + span_s or math.nextafter(at, -math.inf) - since < span_s


def a_busy_trace(jobs=60, seed=1):
    rng = random.Random(seed)
    at, tasks = 0.0, []
    for number in range(jobs):
        load = Load(
            memory_mib=rng.randrange(2_000, 20_000),
            sm_active=rng.uniform(0.2, 1.0),
            sm_occupancy=rng.uniform(0.1, 0.6),
            dram_active=rng.uniform(0.1, 0.5),
        )
        tasks.append(a_task(at, rng.uniform(20, 300), gpus=rng.choice((1, 1, 1, 2)), load=load))
        at += rng.choice((0.0, rng.expovariate(1 / 30))) if number else 0.0
    return tuple(tasks)


CLUSTER = Cluster((Node("n0", FAST, 2), Node("n1", SLOW, 2)))


@pytest.mark.parametrize("policy", ["magm", "lug", "rr", "exclusive"])
def test_every_job_ends_and_the_books_balance(policy, half_speed):
    outcome = run(*a_busy_trace(), cluster=CLUSTER, settings=Settings(policy=policy))
    assert {job.state for job in outcome.jobs} == {JobState.SUCCEEDED}
    timeline, end = outcome.timeline, outcome.makespan_s
    stretches = [b - a for a, b in pairwise([*timeline.at, end])]

    def whole(column):
        return sum(value * seconds for value, seconds in zip(column, stretches, strict=True))

    def total(name):
        return sum(getattr(gpu, name) for gpu in outcome.gpus)

    assert all(a < b for a, b in pairwise(timeline.at)) and timeline.at[-1] == end
    assert whole(timeline.power_w) == pytest.approx(total("energy_j"))
    assert whole(timeline.busy_gpus) == pytest.approx(total("busy_s"))
    assert whole(timeline.memory) * 4 * 40_960 == pytest.approx(total("memory_mib_s"))
    assert whole(timeline.sm_active) * 4 == pytest.approx(total("sm_active_s"))
    assert whole(timeline.dram_active) * 4 == pytest.approx(total("dram_active_s"))
    idle_j = sum(node.kind.idle_w for node in CLUSTER.nodes for _ in range(node.gpus)) * end
    assert sum(job.energy_j for job in outcome.jobs) > total("energy_j") - idle_j
    for job in outcome.jobs:
        last = job.attempts[-1]
        assert last.ended_at - last.launched_at >= job.alone_s - 1e-6
        assert all(a.launched_at >= job.task.submit_s for a in job.attempts)


def test_the_same_experiment_has_the_same_outcome():
    physics = Physics(estimate_error=0.3, duration_error=0.3, fragmentation_mib=300)
    settings = Settings(policy="lug")

    def once(seed):
        outcome = run(
            *a_busy_trace(),
            cluster=CLUSTER,
            settings=settings,
            estimator="oracle",
            interference="additive",
            physics=physics,
            seed=seed,
        )
        return pickle.dumps(replace(outcome, wall_s=0.0))

    assert once(5) == once(5)
    assert once(5) != once(6)


def test_a_busy_gpu_is_joined_once_its_utilisation_has_fallen():
    """By time slices, with `risk.utilization`: the second busy job waits for the first one's end,
    and for the window; not for that of the light job, which is there before and after."""
    light, busy = (Load(sm_active=sm, sm_occupancy=0.1, dram_active=0.1) for sm in (0.05, 0.87))
    tasks = tuple(
        Task(name=f"t{n}", submit_s=float(n), duration_s=seconds, load=load)
        for n, (seconds, load) in enumerate(((1000.0, light), (200.0, busy), (200.0, busy)))
    )

    def starts(limit):
        settings = Settings(risk=Risk(utilization=limit))
        jobs = simulate(Experiment(Trace("t", tasks), parse("1xA100-40GB"), settings)).jobs
        return [job.attempts[0].launched_at for job in jobs], jobs[1].ended_at

    (_, first_s, second_s), ended_s = starts(0.9)
    assert ended_s < second_s < ended_s + Settings().monitor.window_s
    (_, _, second_s), ended_s = starts(0.0)
    assert first_s < second_s < ended_s
