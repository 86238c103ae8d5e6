"""CARMA's own policy: its order, who joins whom, who is suspended, what is held, and guesses."""

from dataclasses import replace

import pytest

from carma_testing import FakeServer, a_gpu, a_view
from carma_testing.builders import changed
from carmad.api.job import Jobs
from carmad.api.outlook import start_out
from carmad.api.reasons import phrase
from carmad.api.why import why_out
from carmad.config import Collocation, Limits, Monitor, Settings, Suspending
from carmad.core.gpus.gpu import GpuSample, ProcessUse, Score
from carmad.core.jobs.attempt import Cause, Mode, Suspension
from carmad.core.jobs.findings import Estimate, Indicator, Profile, Usage
from carmad.core.jobs.job import Retry
from carmad.core.jobs.states import JobState
from carmad.plugin import LEAST_S, Placement, Preemption, Reason
from policies.carma.policy import EXPLAINED, SEEN, SHORTER_FIRST, TRIED, carma
from policies.carma.sizes import CLASS, FIRST_S, left_s
from tests.planning import gpu_views, half_free, placements, queued, refused, running_on, where

HOUR = 3600.0
POLICY = carma(Settings())
BUSY = Score(0.95, 0.9, 0.9, "sm_active", 0.95, 30)


def waits(id, hours, **changes):
    known = {"expected_s": hours * HOUR, "estimate": Estimate(4_000, "oracle")}
    return queued(id, **{**known, **changes})


def runs(id, hours, *gpus, **changes):
    """So many hours are left of it."""
    return waits(id, hours, wants=len(gpus), **{**running_on(*gpus), **changes})


def planned(queue, residents=(), gpus=1, policy=POLICY, **looks):
    views = gpu_views([a_gpu(n) for n in range(gpus)], residents, half_free, **looks)
    return placements(policy, a_view(views, queue))


# -- order


def line(*jobs):
    server = FakeServer(gpus=0, policy=POLICY)
    for spec in jobs:
        server.submit(memory_mib=4_000, **spec)
    return [job.id for job in server.scene.line]


def test_the_least_service_goes_first():
    jobs = ({"gpus": 1, "expected_s": 900}, {"gpus": 4, "expected_s": 300}, {"expected_s": 800})
    assert line(*jobs) == [3, 1, 2]  # 800, 900 and 1200 GPU-seconds


def test_nothing_submitted_later_than_twice_its_service_overtakes_a_job():
    long = waits(1, 1, wants=2, submitted_at=0.0)
    in_time = waits(2, 1 / 60, submitted_at=3.9 * HOUR)
    too_late = waits(3, 1 / 60, submitted_at=4 * HOUR)
    assert POLICY.order(in_time) < POLICY.order(long) < POLICY.order(too_late)


def test_a_job_of_unknown_duration_has_as_much_left_as_it_has_run():
    """In classes, so that a few minutes more do not change who goes first."""
    new, old, older = (queued(n, served_s=s) for n, s in ((1, 0.0), (2, 5 * HOUR), (3, 6 * HOUR)))
    assert left_s(new, 0.0) == FIRST_S
    assert left_s(old, 0.0) == left_s(older, 0.0) == CLASS * FIRST_S
    assert line({}, {"expected_s": 2 * HOUR}, {"expected_s": 60.0}) == [3, 1, 2]


def test_a_suspended_job_is_where_what_is_left_of_it_puts_it():
    gone = Suspension(9 * HOUR, "for job 1", ("GPU-0",), "A100", "local", 4_000, 4_000)
    job = runs(9, 10, 0)
    job = changed(job, state=JobState.SUSPENDED, submitted_at=0.0, suspension=gone)
    assert POLICY.order(job) == 2 * 2.25 * HOUR  # a quarter of 9 h: more than one hour


# -- place


def test_it_joins_where_most_memory_is_free():
    full, half = {"free_mib": 10_000}, {"free_mib": 20_000}
    residents = [runs(8, 10, 0), runs(9, 10, 1)]
    assert where(planned([waits(1, 1)], residents, gpus=3, gpu0=full, gpu1=half)) == {1: (2,)}
    assert where(planned([waits(1, 1)], residents, gpus=2, gpu0=full, gpu1=half)) == {1: (1,)}


def profiled(sm):
    return {"profile": Profile(300.0, 4_000, (Indicator("sm_active", sm, 0.0),))}


def test_it_joins_a_gpu_that_has_something_left():
    half = Score(0.5, 0.2, 0.2, "sm_active", 0.5, 30)
    assert where(planned([waits(1, 10)], [runs(9, 1, 0)], gpu0={"score": half})) == {1: (0,)}


def test_it_does_not_join_a_busy_gpu():
    """Together, they would only take turns, and the one there has less left."""
    plan = planned([waits(1, 10)], [runs(9, 1, 0)], gpu0={"score": BUSY})
    assert refused(plan[1]) == {0: ["saturated"]}
    assert plan[1].verdicts[0].refused[0].detail == "job 9"


def test_unless_it_is_short_beside_all_there():
    there = [runs(8, 10, 0), runs(9, 2, 0)]
    for hours, gpus in ((1, (0,)), (1.1, ())):
        assert where(planned([waits(1, hours)], there, gpu0={"score": BUSY})) == {1: gpus}


def test_or_hardly_adds_to_it():
    light, heavy = waits(1, 10, **profiled(0.1)), waits(1, 10, **profiled(0.5))
    for job, gpus in ((light, (0,)), (heavy, ())):
        assert where(planned([job], [runs(9, 1, 0)], gpu0={"score": BUSY})) == {1: gpus}


def test_later_placements_see_those_before():
    plan = planned([waits(1, 1), waits(2, 1)], gpus=1)
    assert where(plan)[1] == (0,)
    assert refused(plan[2]) == {0: ["first_kernel"]}


def test_a_job_that_was_told_to_stop_is_nearly_gone():
    leaving = runs(9, 100, 0, stop=Cause.CANCELLED)
    assert left_s(leaving, 0.0) == LEAST_S


def test_what_has_outlived_its_prediction_is_not_about_to_end():
    assert left_s(runs(9, 1, 0), 4 * HOUR) == HOUR
    assert left_s(runs(9, 5, 0), 4 * HOUR) == HOUR


# -- hold


def wide_and_another(hours):
    """A job of two GPUs waits for one that runs alone for two more hours, and somebody after it."""
    lonely = runs(9, 2, 0, exclusive=True)
    return planned([waits(1, 1, wants=2), waits(2, hours)], [lonely], gpus=2)


def test_gpus_are_held_for_a_wide_job_but_not_idle_meanwhile():
    assert where(wide_and_another(hours=1.9)) == {1: (), 2: (1,)}
    plan = wide_and_another(hours=2.1)
    assert where(plan) == {1: (), 2: ()}
    assert refused(plan[2]) == {0: ["exclusive"], 1: ["held_for"]}
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 2, "s", SHORTER_FIRST),)


def test_nothing_is_held_for_a_job_that_could_never_start():
    queue = [waits(1, 1, wants=3), waits(2, 50)]
    assert where(planned(queue, gpus=2)) == {1: (), 2: (0,)}


def one_and_another(wants_empty, **looks):
    """This job of one GPU waits for the only one, where a job has two hours left, and a long but
    light job could join that one."""
    return planned([wants_empty, waits(2, 50)], [runs(9, 2, 0)], **looks)


def test_a_gpu_is_held_for_an_exclusive_job_of_one_gpu():
    plan = one_and_another(waits(1, 1, exclusive=True))
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 1, "s", SHORTER_FIRST),)
    assert refused(plan[2]) == {0: ["held_for"]}


def test_a_gpu_is_held_for_a_large_job_that_small_ones_would_keep_out():
    plan = one_and_another(waits(1, 1, estimate=Estimate(30_000, "oracle")))
    assert refused(plan[1]) == {0: ["memory"]}
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 1, "s", SHORTER_FIRST),)
    assert refused(plan[2]) == {0: ["held_for"]}


@pytest.mark.parametrize("scope", ["gpu", "node"])
def test_gpus_are_held_for_a_user_kept_out_by_another_user_s_mps_server(scope):
    settings = Settings(collocation=Collocation(mps=True, mps_scope=scope))
    resident = runs(9, 2, 0, mode=Mode.MPS, uid=1000)
    views = gpu_views([a_gpu(0)], [resident], half_free)
    own, other = waits(2, 50, uid=1000), waits(1, 1, uid=2000)
    plan = placements(carma(settings), a_view(views, [other, own], settings))
    assert refused(plan[1]) == {0: ["mps_user"]}
    assert refused(plan[2]) == {0: ["held_for"]}


def test_another_user_s_mps_server_is_gone_when_its_node_is_empty():
    settings = Settings(collocation=Collocation(mps=True, mps_scope="node"))
    residents = [runs(8, 1, 0, mode=Mode.MPS, uid=1000), runs(9, 2, 1, mode=Mode.MPS, uid=1000)]
    views = gpu_views([a_gpu(n) for n in range(3)], residents, half_free)
    queue = [waits(1, 1, uid=2000), waits(2, 1.9, uid=1000), waits(3, 50, uid=1000)]
    plan = placements(carma(settings), a_view(views, queue, settings))
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 3, "s", SHORTER_FIRST),)
    assert where(plan) == {1: (), 2: (2,), 3: ()}


def test_gpus_that_others_use_are_not_held():
    """Somebody outside CARMA has most of their memory."""
    wide = waits(1, 1, wants=2, estimate=Estimate(30_000, "oracle"))
    used = {"external_mib": 20_000, "free_mib": 20_960}
    plan = planned([wide], gpus=2, gpu0=used, gpu1=used)
    assert plan[1].reasons == ()


def test_jobs_wider_than_what_is_in_service_do_not_hide_the_others():
    too_wide = [waits(n, 1, wants=2) for n in range(1, SEEN + 1)]
    drained = {"gpu1": {"drained": "repair"}}
    assert where(planned([*too_wide, waits(99, 1)], gpus=2, **drained))[99] == (0,)


def test_the_first_that_wait_are_told_why_even_if_they_are_alike():
    plan = planned([too_large(1), too_large(2), too_large(3)], [runs(9, 1, 0)])
    assert [refused(plan[n]) for n in (1, 2, 3)] == [{0: ["memory"]}] * 3


def test_the_first_four_that_wait_are_told_why_and_no_others():
    plan = planned([too_large(n) for n in range(1, 8)], [runs(9, 1, 0)])
    assert sorted(plan) == [1, 2, 3, 4]


# -- overdue


def at(now, queue, residents=(), **looks):
    views = gpu_views([a_gpu(0)], residents, half_free, at=now, **looks)
    return placements(POLICY, a_view(views, queue, Settings(), now))


@pytest.mark.parametrize(("hours", "due_s"), [(1, 2 * HOUR), (None, Limits().overtaken_s)])
def test_a_job_that_has_waited_for_twice_its_time_or_is_a_guess_goes_first(hours, due_s):
    old = waits(1, 1, submitted_at=0.0, **({} if hours else {"expected_s": None}))
    for now, first in ((due_s - 1, 2), (due_s, 1)):
        assert where(at(now, [waits(2, 1 / 60, submitted_at=now), old]))[first] == (0,)


def test_a_gpu_is_kept_for_it():
    """Else light jobs would keep it busy for ever."""
    light = waits(2, 50, **profiled(0.1))
    for now, kept in ((5 * HOUR, False), (6 * HOUR, True)):
        plan = at(
            now, [light, waits(1, 3, submitted_at=0.0)], [runs(9, 8, 0)], gpu0={"score": BUSY}
        )
        assert (refused(plan[2]) == {0: ["held_for"]}) == kept


def test_a_nicer_job_goes_first_never():
    old, new = waits(1, 1, submitted_at=0.0, nice=5), waits(2, 1 / 60, submitted_at=9 * HOUR)
    assert where(at(9 * HOUR, [new, old]))[2] == (0,)
    assert where(at(9 * HOUR, [replace(new, spec=replace(new.spec, nice=5)), old]))[1] == (0,)


def test_nobody_makes_the_gpus_settle_anew_that_it_waits_for():
    settles = {"settling": Reason("settling", 30.0, 10.0, unit="s")}
    queue = [waits(2, 1 / 60, submitted_at=6 * HOUR), waits(1, 1, wants=2, submitted_at=0.0)]
    residents = [runs(8, 9, 0, **profiled(0.1)), runs(9, 9, 1, **profiled(0.1))]
    views = gpu_views([a_gpu(0), a_gpu(1)], residents, half_free, at=6 * HOUR, gpu1=settles)
    plan = placements(POLICY, a_view(views, queue, Settings(), 6 * HOUR))
    assert where(plan) == {1: (), 2: ()}
    assert refused(plan[2]) == {0: ["held_for"], 1: ["settling"]}


# -- suspend

SUSPENDS = Settings(
    limits=Limits(preemption="suspend"), suspend=Suspending(host_memory_mib=100_000, moves=True)
)


def there(id, hours, *gpus, **changes):
    """So many hours are left of it, and it can be suspended."""
    return runs(id, hours, *gpus, **{"mode": Mode.STREAMS, **changes})


def suspending(queue, residents, gpus=1, settings=SUSPENDS, now=0.0, **looks):
    """The jobs that are suspended, and the placements. Each holds 4,000 MiB."""
    for n in range(gpus):
        held = [ProcessUse(job.id, 4_000, 1.0, job.id) for job in residents]
        sample = GpuSample(a_gpu(n).id, now, 4_000, 36_960, 0.5, 0.2, 0.2, processes=tuple(held))
        looks[f"gpu{n}"] = {"sample": sample, **looks.get(f"gpu{n}", {})}
    views = gpu_views([a_gpu(n) for n in range(gpus)], residents, half_free, at=now, **looks)
    plan = carma(settings).plan(a_view(views, queue, settings, now))
    preemptions = [each for each in plan if isinstance(each, Preemption)]
    placed = {each.job: each for each in plan if isinstance(each, Placement)}
    return [each.job for each in preemptions], placed, [each.reason for each in preemptions]


def too_large(id, hours=1, **changes):
    """To fit beside anybody."""
    return waits(id, hours, estimate=Estimate(30_000, "oracle"), **changes)


def test_the_longest_job_makes_room_for_one_that_is_much_shorter():
    residents = [there(8, 9, 0), there(9, 10, 1)]
    gone, plan, why = suspending([too_large(1)], residents, gpus=2)
    assert gone == [9]
    assert plan[1].reasons == (Reason("making_room", 1, 0, "GPUs", "job 9"),)
    assert why == [Reason("preempted", detail="job 1 (60 min left against its 10.0 h)")]


def test_rather_than_crowd_a_busy_gpu():
    looks = {"gpu0": {"score": BUSY}}
    gone, plan, _ = suspending([waits(1, 1)], [there(9, 10, 0)], **looks)
    assert gone == [9] and where(plan) == {1: ()}


def test_where_nobody_can_be_suspended_the_short_one_joins():
    served = there(9, 10, 0, mode=Mode.MPS)
    gone, plan, _ = suspending([waits(1, 1)], [served], gpu0={"score": BUSY})
    assert gone == [] and where(plan) == {1: (0,)}


@pytest.mark.parametrize("preemption", [False, True])
def test_nobody_is_suspended_unless_the_admin_allows_it(preemption):
    settings = replace(SUSPENDS, limits=Limits(preemption=preemption))
    assert suspending([too_large(1)], [there(9, 10, 0)], settings=settings)[0] == []


def test_nor_for_a_job_that_is_not_much_shorter():
    assert suspending([too_large(1, hours=3)], [there(9, 9, 0)])[0] == []
    assert suspending([too_large(1, hours=3)], [there(9, 10, 0)])[0] == [9]


def test_nor_if_the_job_would_go_first_again():
    """What has waited for so long is behind nobody who came so much later."""
    old = there(9, 10, 0, submitted_at=0.0, started_at=100 * HOUR)
    for came, gone in ((17, [9]), (19, [])):
        late = too_large(1, submitted_at=came * HOUR)
        assert suspending([late], [old], now=100 * HOUR)[0] == gone


def test_nor_if_what_it_costs_is_not_repaid():
    slow = replace(SUSPENDS, suspend=replace(SUSPENDS.suspend, fixed_s=3_600.0))
    assert suspending([too_large(1)], [there(9, 10, 0)], settings=slow)[0] == []


def test_nor_somebody_at_a_terminal():
    assert suspending([too_large(1)], [there(9, 10, 0, interactive=True)])[0] == []


def test_nor_a_job_that_has_just_resumed():
    """It runs for thirty times what that costs."""
    again = there(9, 10, 0, resumed_at=100.0)
    assert suspending([too_large(1)], [again], now=110.0)[0] == []
    assert suspending([too_large(1)], [again], now=300.0)[0] == [9]


def test_nor_if_all_that_keeps_it_off_is_soon_over():
    settles = {"settling": Reason("first_kernel")}
    gone, plan, _ = suspending([waits(1, 1)], [there(9, 10, 0)], gpu0=settles)
    assert gone == [] and refused(plan[1]) == {0: ["first_kernel"]}


def test_no_more_are_suspended_than_it_takes():
    """Two of 10 GB each leave 20 GB free; without one of them, 30 GB are."""
    ten = {"estimate": Estimate(10_000, "oracle")}
    crowd = [there(8, 9, 0, **ten), there(9, 10, 0, **ten)]
    assert suspending([waits(1, 1, estimate=Estimate(25_000, "oracle"))], crowd)[0] == [9]


def test_room_that_is_being_made_is_made_once():
    residents = [there(8, 30, 0), there(9, 30, 1)]
    assert sorted(suspending([too_large(1), too_large(2)], residents, gpus=2)[0]) == [8, 9]
    leaving = [there(8, 30, 0), there(9, 30, 1, state=JobState.SUSPENDING)]
    assert suspending([too_large(1)], leaving, gpus=2)[0] == []
    assert suspending([too_large(1), too_large(2)], leaving, gpus=2)[0] == [8]


def test_a_wide_job_takes_as_many_gpus_as_it_needs():
    residents = [there(8, 30, 0), there(9, 30, 1)]
    assert sorted(suspending([too_large(1, wants=2)], residents, gpus=2)[0]) == [8, 9]


def test_who_was_suspended_is_told_for_whom_and_when_it_may_be_back():
    settings = replace(SUSPENDS, monitor=Monitor(window_s=5.0))
    server = FakeServer(1, settings, carma(settings))
    long = server.submit(memory_mib=30_000, expected_s=9 * HOUR)
    server.run_kernel(long, 30_000)
    server.pass_time(10)
    short = server.submit(memory_mib=20_000, expected_s=240.0)
    server.pass_time(2)
    assert server.job(long).state is JobState.SUSPENDED and server.job(short).gpus
    jobs = Jobs(server.scene, lambda job, ahead: ("", ""), server.job(long).spec.owner, True)
    told = why_out(server.job(long), server.scene, (), jobs)
    assert told["headline"].startswith(
        f"suspended for job {short} (4 min left against your 9.0 h); back by "
    )
    assert start_out(server.job(long), server.scene)["expected_at"] is not None
    server.exit(short)
    server.pass_time(2)
    assert server.job(long).state is JobState.RUNNING and server.job(long).attempt == 1


# -- what is not known


def stranger(id=1, **changes):
    return queued(id, expected_s=None, estimate=None, profile=None, **changes)


def test_strangers_block_nobody():
    """Under MAGM, the first would keep the second waiting."""
    large, small = too_large(1, expected_s=None), waits(2, 1, expected_s=None)
    assert where(planned([large, small], [runs(9, 10, 0, expected_s=None)])) == {1: (), 2: (0,)}


def test_a_stranger_joins_where_min_free_mib_is_free_however_busy_the_gpu_was():
    """Where it waited for less load, jobs of 9 s waited for 20 h on A-SRPT's traces."""
    resident = runs(9, 10, 0, usage=Usage(peak_mib=30_000))
    bursts = {"score": replace(BUSY, sm_mean=0.3)}
    for free_mib, gpus in ((2_100, (0,)), (2_000, ())):
        looks = {**bursts, "free_mib": free_mib}
        assert where(planned([stranger()], [resident], gpu0=looks)) == {1: gpus}


def test_what_an_earlier_run_needed_is_known():
    again = replace(stranger(), profile=Profile(300.0, 5_000))
    assert where(planned([again], [runs(9, 10, 0, usage=Usage(peak_mib=30_000))])) == {1: (0,)}


def test_a_new_job_of_unknown_duration_makes_those_yield_that_have_run_for_long():
    old, young = (there(9, 0, 0, expected_s=None, started_at=at) for at in (0.0, 3 * HOUR))
    new = too_large(1, expected_s=None)
    assert suspending([new], [old], now=5 * HOUR)[0] == [9]
    assert suspending([new], [young], now=5 * HOUR)[0] == []


# -- telling


def considered(queue, hold=2):
    """Of these jobs, those for which GPUs are looked for while a job of the user's runs alone."""
    asked = []
    rules = POLICY.rules
    refuse = rules.fits.filters[0]

    def counting(wanted, gpu):
        asked.append(wanted)
        return refuse(wanted, gpu)

    fits = replace(rules.fits, filters=(counting,))
    policy = replace(POLICY, rules=replace(rules, fits=fits, hold=hold))
    planned(queue, [runs(9_999, 1, 0)], policy=policy)
    return len(set(asked))


def test_a_long_line_is_not_judged_to_its_end():
    """Each needs less memory than the one before, for a longer time, and none fits."""
    queue = [waits(n, 1 + n / 10, estimate=Estimate(30_000 - n, "oracle")) for n in range(1, 2049)]
    assert considered(queue) == EXPLAINED, "a GPU is held for the first: they are too large"
    assert considered(queue, hold=0) == TRIED


def test_what_needs_no_less_than_a_job_that_was_refused_is_not_tried():
    alike = [waits(n, n, estimate=Estimate(30_000 + n, "oracle")) for n in range(1, 20)]
    assert considered(alike) <= EXPLAINED + 1  # and the one for which a GPU is held


def test_a_small_job_behind_many_large_ones_is_tried():
    large = [waits(n, 30 - n, estimate=Estimate(30_000 + n, "oracle")) for n in range(1, SEEN - 1)]
    assert where(planned([*large, waits(99, 0.5)], [runs(9, 1, 0)]))[99] == (0,)


def test_no_more_of_the_line_is_seen_than_that():
    large = [waits(n, 99, estimate=Estimate(30_000, "oracle")) for n in range(100, 100 + SEEN)]
    small = waits(1, 0.5)
    assert where(planned([*large[1:], small], [runs(9, 1, 0)]))[1] == (0,)
    assert 1 not in planned([*large, small], [runs(9, 1, 0)])


def test_a_retry_keeps_its_rules():
    again = waits(1, 1, retry=Retry("oom", exclusive=True))
    assert refused(planned([again], [runs(9, 10, 0)])[1]) == {0: ["busy"]}


def test_why_it_is_where_it_is():
    told = planned([waits(1, 1)], [runs(9, 10, 0)])[1].explanation
    assert [reason.code for reason in told] == ["predicted"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            Reason("held_for", HOUR, unit="s", detail="job 9"),
            "is kept for job 9: only a job that is known to end in 60 min may use it",
        ),
        (Reason("held_for", 0.0, unit="s", detail="job 9"), "is kept for job 9"),
        (
            Reason("promised", HOUR, 2, "s"),
            "GPUs kept for it: 2, expected to be free within 60 min",
        ),
        (
            Reason("promised", HOUR, 2, "s", SHORTER_FIRST),
            "GPUs kept for it: 2; shorter jobs may go first",
        ),
        (
            Reason("saturated", 0.85, 0.95, detail="job 9"),
            "is busy enough (SM activity 0.95, limit 0.85), and job 9 there has not much more left"
            " than this job",
        ),
    ],
)
def test_words(reason, words):
    assert phrase(reason) == words
