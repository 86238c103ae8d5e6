"""Profiles, predictions and history: what the core learns about jobs, and how it is used."""

from dataclasses import dataclass, replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import FakeServer, a_gpu, a_job, a_spec, changed
from carmad.config import Limits, Monitor, Profiling, Settings
from carmad.core.gpus.gpu import GpuSample
from carmad.core.gpus.readings import UsageProfiler
from carmad.core.gpus.slowdown import beside, load, with_company
from carmad.core.jobs.attempt import Cause, Exit, JobId, Mode, ProfilingRun
from carmad.core.jobs.findings import (
    Estimate,
    Indicator,
    Prediction,
    Profile,
    StageTimes,
    StepTime,
)
from carmad.core.jobs.history import (
    BIN_S,
    BINS,
    ENOUGH_VOTERS,
    PER_KIND,
    RUNS,
    History,
    Past,
    past,
)
from carmad.core.jobs.knowledge import with_shared_profiles
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.states import JobState
from carmad.core.jobs.tasks import Outcome
from carmad.core.messages import CancelRequested, Discovered, HoldRequested, Stepped, Trained
from carmad.core.placing.decision import Placement
from carmad.guards import GuardedPolicy, GuardedPredictor
from carmad.models import Boosted
from carmad.store.codec import encode_job
from estimators import duration
from policies import builtin
from recovery import ladder

S = JobState
KIND = a_gpu(0).name
RUN_S = 60.0
SETTINGS = Settings(profiling=Profiling(run_s=RUN_S))


@dataclass
class Inquisitive:
    """Profiles unknown jobs on the last GPU; others go to the first with room."""

    evict: bool = True
    name = "profiling"

    def order(self, job):
        return 0.0

    def plan(self, view):
        for job in view.queue:
            unknown = job.profile is None
            run = ProfilingRun(view.now + RUN_S, self.evict) if unknown else None
            wanted = view.demand(job, profiling=unknown)
            gpus = reversed(view.gpus) if unknown else view.gpus[:1]
            fit = [gpu.id for gpu in gpus if not view.refusals(wanted, gpu)]
            yield Placement(job.id, tuple(fit[: job.spec.gpus]), profiling=run)
            return


def server(evict=True, settings=SETTINGS, **more):
    return FakeServer(gpus=2, settings=settings, policy=Inquisitive(evict), **more)


def trains(server, id, sm=0.5, mib=3000):
    server.run_kernel(id, mib)
    for gpu in server.job(id).gpus:
        server.sm_active[gpu] = sm
    server.sample(1)


def test_a_profiling_run_ends_with_a_profile_and_the_job_back_in_line():
    world = server()
    id = world.submit()
    last = world.gpus[1].id
    assert world.job(id).gpus == (last,)
    assert world.job(id).profiling == ProfilingRun(RUN_S, evict=True)
    trains(world, id)
    world.pass_time(RUN_S - 2)
    assert world.job(id).state is S.RUNNING
    assert world.job(id).profile is None
    world.pass_time(1)
    job = world.job(id)
    assert (job.state, job.stop) == (S.STOPPING, Cause.PROFILED)
    assert job.profile.mean("sm_active") == pytest.approx(0.5)
    assert job.profile.seconds == pytest.approx(RUN_S - 1)  # from its first kernel on
    assert job.profile.peak_mib == 3000
    assert job.profile.gpu == a_gpu(0).name
    world.exit(id, Exit(Cause.FAILURE, signal=15))
    job = world.job(id)
    assert job.state is S.STARTING  # it was in line, and had its turn at once
    assert (job.attempt, job.gpus, job.profiling) == (2, (world.gpus[0].id,), None)
    assert job.served_s == 0.0  # what it did is lost


def test_in_place_it_stays_and_others_may_join_it():
    world = server(evict=False)
    id = world.submit()
    trains(world, id)
    world.pass_time(RUN_S)
    job = world.job(id)
    assert (job.state, job.attempt, job.profiling) == (S.RUNNING, 1, None)
    assert job.mode is Mode.STREAMS  # launched as one who may be joined
    second = world.submit(argv=("other",))
    assert second != id and world.job(second).gpus == (world.gpus[0].id,)


def test_nobody_joins_a_job_that_is_profiled():
    settings = replace(SETTINGS, monitor=Monitor(window_s=5.0))
    world = server(settings=settings)
    first = world.submit()
    trains(world, first)
    world.pass_time(20)  # long settled
    wanted = world.scheduler.view(world.now).demand(a_job(9))
    (refused,) = world.scheduler.view(world.now).refusals(wanted, _view(world, 1))
    assert (refused.code, refused.need, refused.detail) == ("profiling", RUN_S, "job 1")
    world.pass_time(RUN_S)
    assert not world.scheduler.view(world.now).refusals(wanted, _view(world, 0))


def _view(world, index):
    return world.scheduler.view(world.now).gpu(world.gpus[index].id)


def test_a_profiling_run_needs_its_gpus_empty():
    world = server()
    first, second = world.submit(), world.submit(argv=("other",))
    assert {world.job(first).gpus, world.job(second).gpus} == {(g.id,) for g in world.gpus}
    third = world.submit(argv=("third",))
    assert world.job(third).state is S.QUEUED


def test_a_job_that_may_not_be_requeued_is_not_evicted():
    world = server()
    id = world.submit(requeue=False)
    trains(world, id)
    world.pass_time(RUN_S)
    assert (world.job(id).state, world.job(id).profiling) == (S.RUNNING, None)


def test_one_that_ends_well_just_then_has_succeeded():
    world = server()
    id = world.submit()
    trains(world, id)
    world.pass_time(RUN_S)
    world.exit(id, Exit(Cause.SUCCESS, 0))
    assert world.last(id).state is S.SUCCEEDED


@pytest.mark.parametrize("by", ["cancel", "hold"])
def test_an_evicted_job_can_still_be_cancelled_and_held(by):
    world = server()
    id = world.submit()
    trains(world, id)
    world.pass_time(RUN_S)
    if by == "cancel":
        world.tell(CancelRequested(world.now, id, "ada"))
    else:
        world.tell(HoldRequested(world.now, id, True, "ada"))
    world.exit(id, Exit(Cause.FAILURE, signal=15))
    assert world.last(id).state is (S.CANCELLED if by == "cancel" else S.QUEUED)


def test_without_a_kernel_there_is_nothing_to_know():
    world = server()
    id = world.submit()
    world.pass_time(RUN_S)
    assert world.job(id).profile == Profile(0.0, gpu=a_gpu(0).name)
    world.exit(id, Exit(Cause.FAILURE, signal=15))
    assert world.scheduler.state.history.profile(group(a_spec())) is None


def test_what_shows_nothing_is_no_news_to_those_in_line():
    world = server()
    ids = [world.submit() for _ in range(4)]
    steps = len(world.steps)
    world.pass_time(RUN_S)
    world.exit(ids[0], Exit(Cause.FAILURE, signal=15))
    changed = {job.id for step in world.steps[steps:] for job in step.jobs}
    assert ids[3] not in changed


def test_the_next_run_of_the_same_job_is_known_already():
    world = server(evict=False)
    id = world.submit(argv=("python", "train.py", "--seed", "1"))
    trains(world, id)
    world.pass_time(RUN_S)
    world.exit(id)
    again = world.submit(argv=("python", "train.py", "--seed", "2"))
    assert world.job(again).group == world.last(id).group
    assert world.job(again).profile == replace(world.last(id).profile, of=id)
    assert world.job(again).profiling is None
    other = world.submit(argv=("python", "train.py", "--depth", "2"))
    assert world.job(other).profile is None


@pytest.mark.parametrize("evict", [True, False])
def test_like_jobs_in_line_are_known_as_soon_as_one_is(evict):
    world = server(evict)
    first, second, third = (world.submit() for _ in range(3))
    trains(world, first)
    trains(world, second)
    stranger = world.submit(argv=("other",))
    assert world.job(third).profile is None
    world.pass_time(RUN_S)
    assert world.job(third).profile == replace(world.job(first).profile, of=first)
    assert world.job(stranger).profile is None
    world.scheduler.restore(world.scheduler.jobs.values(), history=History())
    assert world.scheduler.state.history.profile(group(a_spec())) is not None  # of those that run


def test_every_job_that_is_alone_is_profiled_on_the_fly():
    world = FakeServer(gpus=1, settings=SETTINGS)
    id = world.submit()
    trains(world, id, sm=0.25)
    world.pass_time(RUN_S - 2)
    assert world.job(id).profile is None
    world.pass_time(3)
    assert world.job(id).profile.mean("sm_active") == pytest.approx(0.25)


FAILED = Exit(Cause.FAILURE, 1)


@pytest.mark.parametrize(
    ("seconds", "exit", "known"),
    [(3, None, False), (10, None, True), (40, FAILED, False), (RUN_S + 1, FAILED, True)],
)
def test_a_job_that_ends_sooner_leaves_what_was_seen_of_it(seconds, exit, known):
    """One that failed may have ended before it used its memory."""
    world = FakeServer(gpus=1, settings=SETTINGS)
    id = world.submit()
    trains(world, id)
    world.pass_time(seconds)
    world.exit(id, exit)
    assert (world.last(id).profile is not None) == known


def test_after_a_long_absence_nobody_is_evicted():
    """A job's work while no daemon was running is not lost."""
    world = server()
    id = world.submit()
    trains(world, id)
    world.sample(RUN_S * 50)
    assert (world.job(id).state, world.job(id).profiling) == (S.RUNNING, None)
    world.pass_time(RUN_S + 5)
    assert world.job(id).profile.seconds >= RUN_S  # it is watched on


def test_a_job_is_evicted_for_its_profile_once():
    world = server()
    world.scheduler.policy.plan = lambda view: [
        Placement(job.id, (view.gpus[0].id,), profiling=ProfilingRun(view.now + 5, True))
        for job in view.queue
    ]
    id = world.submit()
    world.pass_time(6)  # no kernel
    world.exit(id, Exit(Cause.FAILURE, signal=15))
    assert world.job(id).attempt == 2
    world.pass_time(10)
    assert (world.job(id).state, world.job(id).attempt) == (S.STARTING, 2)


@pytest.mark.parametrize("until", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_profiling_run_ends_some_time_later(until):
    policy = Inquisitive()
    policy.plan = lambda view: [
        Placement(job.id, (view.gpus[0].id,), profiling=ProfilingRun(until, True))
        for job in view.queue
    ]
    for guarded in (policy, GuardedPolicy(policy)):
        world = FakeServer(gpus=1, policy=guarded)
        id = world.submit()
        assert world.job(id).state is S.QUEUED
        assert world.why(id)[1] == ["policy_failed"]


def test_an_early_crash_teaches_no_profile_and_the_peak_of_a_whole_run_counts():
    world = FakeServer(gpus=1, settings=SETTINGS)
    crashed = world.submit()
    trains(world, crashed, mib=900)
    world.pass_time(40)
    world.exit(crashed, Exit(Cause.FAILURE, 1))
    assert world.last(crashed).profile is None
    whole = world.submit()
    trains(world, whole, mib=900)
    world.pass_time(RUN_S + 5)
    assert world.job(whole).profile.peak_mib == 900
    world.run_kernel(whole, 30_000)
    world.sample(1)
    world.exit(whole)
    again = world.submit()
    assert (world.job(again).profile.peak_mib, world.job(again).profile.of) == (30_000, whole)


def test_longer_runs_and_more_gpus_are_other_jobs():
    short, long = (a_spec(argv=("a", "--epochs", n)) for n in ("1", "300"))
    assert group(short) != group(long) != group(replace(long, gpus=2))
    assert group(replace(long, argv=("a", "--seed", "7", "--epochs", "300"))) == group(long)


def test_mean_and_variance_are_weighted_by_time_and_only_of_training():
    profiler = UsageProfiler()
    gpu = a_gpu()
    job = a_job(state=S.RUNNING, gpus=(gpu.id,), kernels=((gpu.id, 10.0),))

    def reading(at, value):
        return GpuSample(gpu.id, at, sm_active=value, more=(("tensor_active", 0.5),))

    readings = [reading(at, value) for at, value in ((8, 1.0), (10, 1.0), (13, 0.2), (14, 0.6))]
    for before, after in zip([None, *readings], readings, strict=False):
        profiler.add((job,), before, after, gap_s=5.0)
    profiler.add((job, a_job(2)), readings[-1], reading(15.0, 1.0), gap_s=5.0)  # in company
    profiler.add((job,), readings[-1], reading(30.0, 1.0), gap_s=5.0)  # after a gap
    assert profiler.seconds(job) == 4.0
    profile = profiler.profile(job, 7)
    mean = (3 * 0.2 + 0.6) / 4
    sm = next(each for each in profile.indicators if each.name == "sm_active")
    assert sm.mean == pytest.approx(mean)
    assert sm.variance == pytest.approx((3 * (0.2 - mean) ** 2 + (0.6 - mean) ** 2) / 4)
    assert profile.mean("tensor_active") == 0.5
    assert profile.mean("dram_active") is None
    profiler.forget(job.id)
    assert profiler.seconds(job) == 0.0


def test_predictions_come_when_a_job_joins_the_line_and_when_it_is_known():
    asked = []

    class Predictor:
        name = "test"

        def predict(self, job, history, models, now):
            asked.append((job.id, job.profile is not None, now))
            return Prediction(100.0 + len(asked), "test")

    world = server(predictor=Predictor())
    id = world.submit(expected_s=7.0)
    assert world.job(id).expected_s == 101.0
    trains(world, id)
    world.pass_time(RUN_S)
    assert asked == [(id, False, 0.0), (id, True, RUN_S)]
    assert world.job(id).expected_s == 102.0


class Broken:
    name = "broken"

    def __init__(self, answer=None):
        self.answer = answer

    def predict(self, job, history, models, now):
        if self.answer is None:
            raise RuntimeError("no")
        return self.answer


@pytest.mark.parametrize(
    "answer", [None, 3.0, Prediction(float("nan"), "x"), Prediction(-1.0, "x"), Prediction(1.0, 2)]
)
def test_a_predictor_that_fails_leaves_the_owners_word(answer):
    world = server(predictor=GuardedPredictor(Broken(answer)))
    assert world.job(world.submit(expected_s=7.0)).expected_s == 7.0


def test_a_job_says_that_its_prediction_failed_until_one_succeeds():
    predictor = Broken()
    world = server(predictor=predictor)
    id = world.submit(expected_s=7.0)
    note = "its duration could not be predicted: the predictor broken failed"
    assert world.job(id).notes == (note,)
    trains(world, id)
    predictor.answer = Prediction(5.0, "broken")
    world.pass_time(RUN_S)
    assert world.job(id).expected_s == 5.0
    assert note not in world.job(id).notes


def test_history_predicts_recurring_jobs_then_the_users_then_equal_demands():
    history = History()
    recurring = duration.history(Settings())

    def ran(user, gpus, seconds, number, argv=("a",)):
        spec = a_spec(user=user, gpus=gpus, argv=argv)
        job = a_job(number, spec=spec, group=group(spec), state=S.SUCCEEDED)
        return past(changed(job, gpus=(a_gpu().id,), started_at=0.0, ended_at=seconds))

    def asked(user, gpus, argv=("a",), **more):
        spec = a_spec(user=user, gpus=gpus, argv=argv, **more)
        found = recurring.predict(a_job(99, spec=spec, group=group(spec)), history, {}, 0.0)
        return found and found.seconds

    assert asked("ada", 1) is None
    for number, seconds in enumerate((10.0, 20.0, 60.0), 1):
        history.remember(ran("ada", 1, seconds, number))
    history.remember(ran("bob", 1, 400.0, 9, argv=("b",)))
    assert asked("ada", 1) == 20.0  # the median of its runs
    assert asked("ada", 1, argv=("new",)) == 30.0  # the mean of the user's
    assert asked("eve", 1) is None  # two others are no crowd
    history.remember(ran("cyd", 1, 500.0, 10, argv=("c",)))
    assert asked("eve", 1) == 400.0  # the median of what users' jobs on as many GPUs take
    assert asked("eve", 2) is None
    assert asked("ada", 1, expected_s=5.0) == 5.0  # her own word


honest = st.dictionaries(
    st.sampled_from("abcdef"),
    st.lists(st.floats(60, 9_000), min_size=1, max_size=5),
    min_size=2,
)


@given(honest, st.lists(st.floats(0, 1e9), max_size=200))
def test_one_user_among_several_does_not_decide_what_newcomers_are_told(users, lies):
    """However many jobs they run, and however long these take."""
    history = History()
    runs = [(user, seconds) for user, times in users.items() for seconds in times]
    for number, (user, seconds) in enumerate([*runs, *(("eve", lie) for lie in lies)], 1):
        history.remember(
            Past(JobId(number), 1, "g", user, "n", 1, 0.0, seconds, S.SUCCEEDED, None, ())
        )
    told = history.by_gpus.median(1)
    means = [fmean(times) for times in users.values()]
    if told is None:
        assert len(users) + bool(lies) < ENOUGH_VOTERS
    else:
        assert min(means) <= told <= max(means)


def test_history_is_bounded_and_counts_each_attempt_once():
    history = History()
    run = Past(JobId(1), 1, "g", "ada", "n", 1, 0.0, 5.0, S.SUCCEEDED, None, ())
    for _ in range(2):
        history.remember(run)
    history.remember(replace(run, attempt=2, duration_s=7.0))  # it was requeued
    assert history.by_group.of("g") == (5.0, 7.0)
    for number in range(2, RUNS + 10):
        history.remember(replace(run, job=JobId(number), duration_s=float(number)))
    assert len(history.runs) == RUNS
    assert len(history.by_user.of(run.owner)) == PER_KIND
    assert history.by_user.of(run.owner)[-1] == RUNS + 9


def test_traffic_is_of_whole_bins_with_the_empty_ones():
    history = History()
    assert history.traffic(0.0) == ()
    for at, gpus in ((1.0, 2), (BIN_S - 1, 1), (3 * BIN_S, 8)):
        history.note_submission(at, gpus)
    assert history.traffic(3 * BIN_S + 1) == [(2, 3), (0, 0), (0, 0)]
    assert history.traffic(4 * BIN_S) == [(2, 3), (0, 0), (0, 0), (1, 8)]
    assert len(history.traffic(10 * BINS * BIN_S)) == BINS


def test_jobs_that_never_ran_are_no_past():
    assert past(a_job(state=S.CANCELLED, ended_at=5.0)) is None
    assert past(a_job(state=S.RUNNING, started_at=1.0)) is None
    waited = a_job(state=S.CANCELLED, started_at=1.0, ended_at=9e9)  # in line after a first run
    assert past(waited) is None
    lost = a_job(gpus=(a_gpu().id,), state=S.FAILED, started_at=10.0, ended_at=25.0, served_s=30.0)
    assert past(lost).duration_s == 45.0


def test_models_reach_the_view_and_replace_their_like():
    one, other = (Boosted(about, "", (), 0.0, (), 0, 0.0) for about in ("one", "other"))
    world = server()
    world.tell(Trained(0.0, (("a", one), ("b", one))))
    world.tell(Trained(1.0, (("a", other),)))
    assert dict(world.scheduler.view(1.0).models) == {"a": other, "b": one}


def test_history_and_models_outlive_a_commit_that_failed():
    world = FakeServer(gpus=1, settings=SETTINGS)
    id = world.submit()
    world.exit(id)
    world.scheduler.restore([], [Outcome(id, S.SUCCEEDED)])
    assert [run.job for run in world.scheduler.state.history.runs] == [id]
    world.scheduler.restore([], history=History())
    assert not world.scheduler.view(0.0).history.runs


# -- what a job says of its steps


def test_step_times_are_kept_per_number_of_parts_and_for_the_next_run():
    world = FakeServer(gpus=1, policy=Splitting(2))
    id = world.submit(batch_size=64)
    for seconds in (0.5, 0.502, 0.6):
        steps = len(world.steps)
        world.tell(Stepped(world.now, id, seconds))
        news = [job for step in world.steps[steps:] for job in step.jobs]
        assert bool(news) == (seconds != 0.502)  # a hundredth is no news
    assert world.job(id).steps == (StepTime(2, 0.6, KIND),)
    world.exit(id)
    world.scheduler.policy.parts = 1
    again = world.submit(batch_size=64)
    assert world.job(again).steps == (StepTime(2, 0.6, KIND),)
    world.tell(Stepped(world.now, again, 0.4))
    assert world.job(again).steps == (StepTime(1, 0.4, KIND), StepTime(2, 0.6, KIND))


def test_step_times_are_kept_per_kind_of_gpu():
    world = FakeServer(gpus=1)
    id = world.submit()
    elsewhere = StepTime(1, 0.9, "another kind")
    world.scheduler.state.ledger.put(replace(world.job(id), steps=(elsewhere, StepTime(1, 0.2))))
    world.tell(Stepped(world.now, id, 0.5))
    assert set(world.job(id).steps) == {elsewhere, StepTime(1, 0.5, KIND)}, "and of unknown ones"


def test_stage_times_are_kept_per_kind_of_gpu_and_for_the_next_run():
    world = FakeServer(gpus=1)
    id = world.submit()
    kind = world.scheduler.gpus[world.job(id).gpus[0]].name
    for load_s in (0.2, 0.1):
        world.tell(Stepped(world.now, id, 0.5, StageTimes(load_s, 0.1, 0.2)))
    assert world.job(id).stage_times == (StageTimes(0.1, 0.1, 0.2, gpu=kind),)
    world.exit(id)
    elsewhere = StageTimes(0.3, 0.3, 0.3, gpu="another kind")
    again = world.submit()
    world.scheduler.state.history.learn(replace(world.job(again), stage_times=(elsewhere,)))
    third = world.submit()
    assert world.job(third).stage_times == (elsewhere,)
    world.exit(again)
    world.tell(Stepped(world.now, third, 0.5, StageTimes(0.1, 0.1, 0.2)))
    assert world.job(third).stage_times == (elsewhere, StageTimes(0.1, 0.1, 0.2, gpu=kind))


def test_runs_of_the_job_that_wait_learn_its_stage_times_once():
    world = FakeServer(gpus=1)
    first, waiting = world.submit(exclusive=True), world.submit(exclusive=True)
    other = world.submit(argv=("other",))
    assert world.job(waiting).state is S.QUEUED
    for load_s in (0.1, 0.2):
        world.tell(Stepped(world.now, first, 0.5, StageTimes(load_s, 0.1, 0.2)))
    kind = world.scheduler.gpus[world.job(first).gpus[0]].name
    assert world.job(waiting).stage_times == (StageTimes(0.1, 0.1, 0.2, gpu=kind),)
    assert world.job(other).stage_times == ()


def test_stage_times_that_are_no_news_change_nothing():
    """A job may report them at every step, and each change is a row on disk."""
    world = FakeServer(gpus=1)
    id = world.submit()
    known = None
    for load_s, news in ((0.2, True), (0.2, False), (0.201, False), (0.21, True), (0.0, True)):
        world.tell(Stepped(world.now, id, 0.5, StageTimes(load_s, 0.1, 0.2)))
        assert (world.job(id) is not known) == news
        known = world.job(id)
    world.tell(Stepped(world.now, id, 0.5, StageTimes(0.0, 0.1, 0.2, sync="backward")))
    assert world.job(id).stage_times[0].sync == "backward"


def test_what_a_job_tells_of_a_gpu_that_is_gone_is_not_heard():
    world = FakeServer(gpus=2)
    id = world.submit()
    (gone,) = world.job(id).gpus
    world.tell(Discovered(world.now, tuple(gpu for gpu in world.gpus if gpu.id != gone)))
    world.tell(Stepped(world.now, id, 0.5, StageTimes(0.1, 0.1, 0.2)))
    assert world.job(id).stage_times == () and world.job(id).steps == ()


def test_its_owner_knows_the_stage_times_better_than_the_job():
    world = FakeServer(gpus=1)
    declared = (StageTimes(0.1, 0.1, 0.2),)
    id = world.submit(stage_times=declared)
    world.tell(Stepped(world.now, id, 0.5, StageTimes(0.9, 0.9, 0.9)))
    assert world.job(id).stage_times == declared


def test_step_times_in_company_or_of_the_dead_are_not_believed():
    world = FakeServer(gpus=1)
    first = world.submit()
    trains(world, first)
    world.pass_time(40)
    second = world.submit()
    assert world.job(second).gpus == world.job(first).gpus
    world.tell(Stepped(world.now, first, 1.0))
    world.tell(Stepped(world.now, 99, 1.0))
    assert world.job(first).steps == ()


# -- batches in parts


def two_together(world):
    """Two jobs that were profiled, and reported a step of 0.2 s, in earlier runs."""
    for name in ("a", "b"):
        id = world.submit(argv=(name,))
        trains(world, id, mib=4096)
        world.pass_time(RUN_S)
        world.tell(Stepped(world.now, id, 0.2))
        world.exit(id)
    ids = []
    for name in ("a", "b"):
        ids.append(world.submit(argv=(name,)))
        trains(world, ids[-1], mib=4096)
        world.pass_time(RUN_S)
    assert {world.job(id).state for id in ids} == {S.RUNNING}
    return ids


def test_a_step_beside_another_is_kept_as_a_ratio_with_both_profiles():
    world = FakeServer(gpus=1, settings=SETTINGS, policy=Inquisitive(evict=False))
    one, two = two_together(world)
    world.tell(Stepped(world.now, one, 0.3))
    (met,) = world.job(one).company
    assert (met.neighbour, met.ratio, met.mps) == (two, pytest.approx(1.5), False)
    assert met.other == load(world.job(two).profile, 40_960)
    assert met.own.memory_share == 4096 / 40_960
    assert world.job(one).steps == (StepTime(1, 0.2, KIND),), "that is still the time alone"
    before = world.job(one)
    world.tell(Stepped(world.now, one, 0.301))
    assert world.job(one) is before, "a hundredth is no news"
    world.tell(Stepped(world.now, one, 0.4))
    assert [met.ratio for met in world.job(one).company] == [pytest.approx(2.0)]
    assert beside(met.own, met.other, mps=True)["mode.mps"] == 1.0


def test_what_a_job_keeps_of_its_neighbours_stays_small():
    """It is written with every change of the job."""
    world = FakeServer(gpus=1, settings=SETTINGS, policy=Inquisitive(evict=False))
    one, two = (world.job(id) for id in two_together(world))
    names = [f"indicator_{n}" for n in range(10)]
    told = Profile(200.0, 4096, tuple(Indicator(name, 1 / 3, 1 / 7) for name in names))
    one = met = replace(one, profile=told)
    for n in range(50):
        neighbour = replace(two, id=JobId(100 + n), profile=told)
        met = with_company(met, 0.3, neighbour, world.gpus[0])
    assert [each.neighbour for each in met.company] == [146, 147, 148, 149]
    assert len(encode_job(met)) - len(encode_job(one)) < 8_000


def test_no_ratio_is_kept_of_steps_on_two_kinds_of_gpu():
    world = FakeServer(gpus=1, settings=SETTINGS, policy=Inquisitive(evict=False))
    one, _ = two_together(world)
    (step,) = world.job(one).steps
    for kind in ("another", ""):  # "": not recorded
        elsewhere = replace(world.job(one), steps=(replace(step, gpu=kind),))
        world.scheduler.state.ledger.put(elsewhere)
        world.tell(Stepped(world.now, one, 0.3))
        assert world.job(one).company == ()


def test_a_step_on_another_kind_of_gpu_is_news_even_if_it_takes_as_long():
    world = FakeServer(gpus=1)
    id = world.submit()
    trains(world, id)
    world.scheduler.state.ledger.put(replace(world.job(id), steps=(StepTime(1, 0.2),)))
    world.tell(Stepped(world.now, id, 0.2))
    assert world.job(id).steps == (StepTime(1, 0.2, KIND),)


def test_no_ratio_is_kept_without_a_step_alone():
    world = FakeServer(gpus=1, settings=SETTINGS, policy=Inquisitive(evict=False))
    one, two = two_together(world)
    for id in (one, two):
        world.scheduler.state.ledger.put(replace(world.job(id), steps=()))
        world.tell(Stepped(world.now, id, 0.3))
        assert world.job(id).company == ()


@dataclass
class Splitting:
    parts: int
    name = "splitting"

    def order(self, job):
        return 0.0

    def plan(self, view):
        for job in view.queue:
            yield Placement(job.id, (view.gpus[0].id,), accumulation=self.parts)
            return


@pytest.mark.parametrize(
    ("batch", "parts", "starts"),
    [
        *[(64, 4, True), (64, 1, True), (None, 1, True), (None, 2, False), (64, 3, False)],
        *[(64, 0, False), (64, -4, False), (4, 8, False)],
    ],
)
def test_only_batches_that_may_be_split_evenly_are(batch, parts, starts):
    world = FakeServer(gpus=1, policy=GuardedPolicy(Splitting(parts)))
    id = world.submit(batch_size=batch)
    assert (world.job(id).state is S.STARTING) == starts
    if starts:
        assert world.job(id).accumulation == parts
    else:
        assert world.why(id)[1] == ["policy_failed"]


def test_a_split_batch_is_promised_less_memory():
    whole = Estimate(10_000, "trace", low=9_000, high=12_000, batch_mib=8_000)
    part = whole.accumulating(4)
    assert (part.mib, part.low, part.high, part.batch_mib) == (4_000, 3_000, 6_000, 0)
    assert whole.accumulating(1) is whole
    fixed = replace(whole, batch_mib=0)
    assert fixed.accumulating(4) is fixed
    job = a_job(estimate=whole, accumulation=4)
    assert job.need.safe_mib == 6_000
    world = FakeServer(gpus=1, policy=Splitting(4))
    id = world.submit(batch_size=64, memory_mib=8_000)
    assert world.job(id).need.mib == 8_000  # its owner's word says nothing of batches
    free = _view(world, 0).free_mib
    assert free == world.gpus[0].memory_mib - 8_000


def test_a_preempted_job_starts_unsplit_in_the_line():
    settings = Settings(limits=Limits(preemption=True))
    world = FakeServer(gpus=1, settings=settings, policy=Splitting(4))
    id = world.submit(batch_size=64)
    world.exit(id, Exit(Cause.LOST))
    again = world.last(id)
    assert again.attempt == 2 and again.accumulation == 4  # started anew, by the same policy
    queued = [job for step in world.steps for job in step.jobs if job.state is S.QUEUED]
    assert all(job.accumulation == 1 for job in queued)


def test_policies_that_never_ask_are_as_before():
    world = FakeServer(
        gpus=1, policy=builtin.exclusive(SETTINGS), recovery=ladder.exclusive(SETTINGS)
    )
    id = world.submit()
    assert (world.job(id).profiling, world.job(id).accumulation) == (None, 1)


def test_a_restart_shares_equal_profiles_and_keeps_other_jobs_as_they_are():
    """Policies remember what they worked out for a version of a job, by identity."""
    first, again, other = (Profile(60.0, mib) for mib in (1_000, 1_000, 2_000))
    jobs = [a_job(1, profile=first), a_job(2, profile=again), a_job(3, profile=other), a_job(4)]
    shared = list(with_shared_profiles(jobs))
    assert shared == jobs
    assert shared[1].profile is first
    assert [new is old for new, old in zip(shared, jobs, strict=True)] == [True, False, True, True]
