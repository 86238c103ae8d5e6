"""CARMA's own policy: its order, when jobs join others, which GPUs are held, what is not known."""

import math

import pytest

from carmad.api.phrases import phrase
from carmad.config import Collocation, Settings
from carmad.core.types import Cause, Estimate, Indicator, Mode, Profile, Retry
from carmad.core.window import Score
from carmad.plugin import Reason
from carmad.testing import FakeServer, a_gpu, a_view
from policies.carma import carma
from policies.carma.company import TIME_SLICED, Member, company, ends, joining, outlasting, speed
from policies.carma.policy import EXPLAINED, LEAST_S, TRIED, remaining_s
from tests.planning import gpu_views, half_free, placements, queued, refused, running_on, where

HOUR = 3600.0
POLICY = carma(Settings())
RISKY = Score(0.95, 0.9, 0.9, "sm_active", 0.95, 30)


def busy(activity):
    return Profile(600.0, 4_000, (Indicator("sm_active", activity, 0.0),))


def waits(id, hours, activity=0.9, **changes):
    known = {"profile": busy(activity), "estimate": Estimate(4_000, "oracle")}
    return queued(id, **{"expected_s": hours * HOUR, **known, **changes})


def runs(id, hours, *gpus, activity=0.9, **changes):
    """So many hours are left of it."""
    return waits(id, hours, activity, wants=len(gpus), **running_on(*gpus), **changes)


def planned(queue, residents=(), gpus=1, policy=POLICY, **looks):
    views = gpu_views([a_gpu(n) for n in range(gpus)], residents, half_free, **looks)
    return placements(policy, a_view(views, queue))


# -- order


def line(*jobs):
    server = FakeServer(gpus=0, policy=POLICY)
    for spec in jobs:
        server.submit(**spec)
    return [job.id for job in server.scene.line]


def test_the_least_service_goes_first():
    jobs = ({"gpus": 1, "expected_s": 900}, {"gpus": 4, "expected_s": 300}, {"expected_s": 800})
    assert line(*jobs) == [3, 1, 2]  # 800, 900 and 1200 GPU-seconds


def test_nothing_submitted_later_than_its_service_overtakes_a_job():
    long = queued(1, wants=2, expected_s=HOUR, submitted_at=0.0)
    in_time = queued(2, expected_s=60.0, submitted_at=2 * HOUR - 61)
    too_late = queued(3, expected_s=60.0, submitted_at=2 * HOUR)
    assert POLICY.order(in_time) < POLICY.order(long) < POLICY.order(too_late)


def test_jobs_of_unknown_duration_are_in_order_of_arrival():
    assert POLICY.order(queued(1, submitted_at=7.0)) == 7.0
    assert line({}, {"expected_s": HOUR}, {}) == [1, 3, 2]


# -- when jobs that share end


def test_two_busy_jobs_share_by_the_measured_cost():
    one = Member(1.0, HOUR)
    assert ends([one, one], TIME_SLICED) == pytest.approx((1.69 * HOUR, 1.69 * HOUR))
    assert ends([one, Member(0.0, HOUR)], TIME_SLICED) == (HOUR, HOUR)
    assert ends([], TIME_SLICED) == ()


def test_when_one_has_ended_the_others_go_on_faster():
    short, long = Member(1.0, HOUR), Member(1.0, 3 * HOUR)
    both_s = 1.69 * HOUR
    assert ends([short, long], TIME_SLICED) == pytest.approx((both_s, both_s + 2 * HOUR))


def test_what_is_asked_for_beyond_one_gpu_waits_in_full():
    pair, three = speed(1.0, 1.0, 0.69), speed(1.0, 2.0, 0.69)
    assert 1 / pair == pytest.approx(1.69)
    assert 1 / three == pytest.approx(1.69 + 1.0)


def test_joining_now_and_later():
    there = company([Member(1.0, HOUR)], TIME_SLICED)
    found = joining(there, Member(1.0, 2 * HOUR), TIME_SLICED)
    assert there.ends_s == (HOUR,)
    assert found.later == pytest.approx((HOUR, 3 * HOUR))
    assert found.now == pytest.approx((1.69 * HOUR, 2.69 * HOUR))


@pytest.mark.parametrize("left_s", [20 * HOUR, 2000 * HOUR])
def test_how_much_longer_a_newcomer_runs_makes_no_difference_to_the_others(left_s):
    there = company([Member(0.9, HOUR), Member(0.5, 3 * HOUR)], TIME_SLICED)
    short, long = (
        outlasting(there, 0.8, TIME_SLICED),
        joining(there, Member(0.8, left_s), TIME_SLICED),
    )
    for any_s, its_s in zip(short, long, strict=True):
        assert its_s == pytest.approx((*any_s[:-1], any_s[-1] + left_s))


# -- company


def test_a_short_job_joins_a_long_one_but_a_long_one_waits_for_a_short_one():
    assert where(planned([waits(1, 1)], [runs(9, 10, 0)])) == {1: (0,)}
    plan = planned([waits(1, 10)], [runs(9, 1, 0)])
    assert where(plan) == {1: ()}
    assert refused(plan[1]) == {0: ["later_together"]}


def test_how_much_later_is_told():
    """Both busy with 0.9, 1 h and 10 h: together, each is slowed by 1.56 for 1.56 h."""
    slower = 1 + 0.9 * TIME_SLICED * 0.9
    [verdict] = planned([waits(1, 10)], [runs(9, 1, 0)])[1].verdicts
    [reason] = verdict.refused
    assert reason.need == pytest.approx((1 + 11) * HOUR)
    assert reason.have == pytest.approx((slower + slower + 9) * HOUR)
    assert reason.detail == "job 9"


def test_light_jobs_join_whoever_is_there():
    assert where(planned([waits(1, 10, activity=0.1)], [runs(9, 1, 0)])) == {1: (0,)}


def test_an_idle_gpu_is_best_and_then_the_one_where_all_lose_least():
    residents = [runs(8, 10, 0), runs(9, 10, 1, activity=0.2)]
    assert where(planned([waits(1, 1)], residents, gpus=3)) == {1: (2,)}
    assert where(planned([waits(1, 1)], residents, gpus=2)) == {1: (1,)}


def test_a_wide_neighbour_is_delayed_once():
    """Beside one job on both of its GPUs, a job of two GPUs delays that one, not two."""
    long = runs(9, 10, 0, 1)
    assert where(planned([waits(1, 1, wants=2)], [long], gpus=2)) == {1: (0, 1)}


def test_the_newcomer_s_end_counts_with_those_placed_before_it():
    plan = planned([waits(1, 1), waits(2, 1)], gpus=1)
    assert where(plan)[1] == (0,)
    assert refused(plan[2]) == {0: ["first_kernel"]}  # the hard rules see the first one, too


def test_a_job_that_was_told_to_stop_is_nearly_gone():
    leaving = runs(9, 100, 0, stop=Cause.CANCELLED)
    assert remaining_s(leaving, 0.0) == LEAST_S


def test_what_has_outlived_its_prediction_is_not_about_to_end():
    assert remaining_s(runs(9, 1, 0), 4 * HOUR) == HOUR
    assert remaining_s(runs(9, 5, 0), 4 * HOUR) == HOUR
    assert remaining_s(queued(1), 0.0) == math.inf


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
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 2, "s"),)


def test_nothing_is_held_for_a_job_that_could_never_start():
    queue = [waits(1, 1, wants=3), waits(2, 50)]
    assert where(planned(queue, gpus=2)) == {1: (), 2: (0,)}


def one_and_another(wants_empty, **looks):
    """This job of one GPU waits for the only one, where a job has two hours left, and a long but
    light job could join that one."""
    return planned([wants_empty, waits(2, 50, activity=0.1)], [runs(9, 2, 0)], **looks)


def test_a_gpu_is_held_for_an_exclusive_job_of_one_gpu():
    plan = one_and_another(waits(1, 1, exclusive=True))
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 1, "s"),)
    assert refused(plan[2]) == {0: ["held_for"]}


def test_a_gpu_is_held_for_a_large_job_that_small_ones_would_keep_out():
    plan = one_and_another(waits(1, 1, estimate=Estimate(30_000, "oracle")))
    assert refused(plan[1]) == {0: ["memory"]}
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 1, "s"),)
    assert refused(plan[2]) == {0: ["held_for"]}


@pytest.mark.parametrize("scope", ["gpu", "node"])
def test_gpus_are_held_for_a_user_kept_out_by_another_user_s_mps_server(scope):
    settings = Settings(collocation=Collocation(mps=True, mps_scope=scope))
    resident = runs(9, 2, 0, mode=Mode.MPS, uid=1000)
    views = gpu_views([a_gpu(0)], [resident], half_free)
    own, other = waits(2, 50, activity=0.1, uid=1000), waits(1, 1, uid=2000)
    plan = placements(carma(settings), a_view(views, [other, own], settings))
    assert refused(plan[1]) == {0: ["mps_user"]}
    assert refused(plan[2]) == {0: ["held_for"]}


def test_another_user_s_mps_server_is_gone_when_its_node_is_empty():
    settings = Settings(collocation=Collocation(mps=True, mps_scope="node"))
    residents = [runs(8, 1, 0, mode=Mode.MPS, uid=1000), runs(9, 2, 1, mode=Mode.MPS, uid=1000)]
    views = gpu_views([a_gpu(n) for n in range(3)], residents, half_free)
    queue = [waits(1, 1, uid=2000), waits(2, 1.9, uid=1000), waits(3, 50, activity=0.1, uid=1000)]
    plan = placements(carma(settings), a_view(views, queue, settings))
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 3, "s"),)
    assert where(plan) == {1: (), 2: (2,), 3: ()}


def test_gpus_that_others_use_are_not_held():
    """Its memory is known from an earlier run only, and somebody outside CARMA has most of it."""
    large = Profile(600.0, 30_000, (Indicator("sm_active", 0.9, 0.0),))
    wide = waits(1, 1, wants=2, estimate=None, profile=large)
    used = {"external_mib": 20_000, "free_mib": 20_960}
    plan = planned([wide], gpus=2, gpu0=used, gpu1=used)
    assert plan[1].reasons == ()


def test_jobs_wider_than_what_is_in_service_do_not_hide_the_others():
    too_wide = [waits(n, 1, wants=2) for n in range(1, TRIED + 1)]
    drained = {"gpu1": {"drained": "repair"}}
    assert where(planned([*too_wide, waits(99, 1)], gpus=2, **drained))[99] == (0,)


def test_the_first_that_wait_are_told_why_even_if_they_are_alike():
    plan = planned([waits(1, 10), waits(2, 10), waits(3, 11)], [runs(9, 1, 0)])
    assert [refused(plan[n]) for n in (1, 2, 3)] == [{0: ["later_together"]}] * 3


# -- what is not known


def test_without_a_duration_it_is_magm():
    risky = {"gpu0": {"free_mib": 30_000, "score": RISKY}}
    plan = planned([waits(1, 1, expected_s=None)], [runs(7, 1, 0), runs(8, 1, 1)], gpus=2, **risky)
    assert refused(plan[1]) == {0: ["risk"], 1: []}
    free = {"gpu0": {"free_mib": 9_000}, "gpu1": {"free_mib": 10_000}}
    plan = planned([waits(1, 1, expected_s=None)], [runs(7, 1, 0), runs(8, 1, 1)], gpus=2, **free)
    assert where(plan) == {1: (1,)}


def test_without_its_memory_it_is_magm_too():
    stranger = waits(1, 1, estimate=None, profile=None)
    risky = {"gpu0": {"score": RISKY}}
    assert refused(planned([stranger], [runs(9, 10, 0)], **risky)[1]) == {0: ["risk"]}
    assert where(planned([stranger], [runs(9, 10, 0)])) == {1: (0,)}


def test_beside_a_job_of_unknown_duration_the_risk_counts():
    unknown, risky = runs(9, 0, 0, expected_s=None), {"gpu0": {"score": RISKY}}
    assert refused(planned([waits(1, 1)], [unknown], **risky)[1]) == {0: ["risk"]}


def test_memory_measured_in_an_earlier_run_is_certain():
    known = waits(1, 1, estimate=None)
    little = {"gpu0": {"free_mib": 3_900}}
    assert refused(planned([known], [runs(9, 10, 0)], **little)[1]) == {0: ["memory"]}
    enough = {"gpu0": {"free_mib": 4_000, "score": RISKY}}
    assert where(planned([known], [runs(9, 10, 0)], **enough)) == {1: (0,)}


def test_a_job_without_a_profile_shows_in_what_the_gpu_does():
    """Beside an idle-looking GPU a long job joins; beside a busy one it waits for the short one."""
    resident = runs(9, 1, 0, profile=None)
    calm = {"gpu0": {"score": Score(0.1, 0.1, 0.1, "sm_active", 0.1, 30)}}
    assert where(planned([waits(1, 10)], [resident], **calm)) == {1: (0,)}
    assert where(planned([waits(1, 10)], [resident], gpu0={"score": RISKY})) == {1: ()}


# -- telling


def test_a_long_line_is_not_judged_to_its_end():
    """Each is of another kind; the residents' ends would make all of them wait."""
    queue = [waits(n, 10, activity=0.9 + n / 50_000) for n in range(1, 2049)]
    judged = []
    policy = carma(Settings())
    order = [job.id for job in queue]
    plan = planned(queue, [runs(9_999, 1, 0)], policy=policy)
    judged = [order.index(id) for id in plan]
    assert judged == list(range(EXPLAINED)) and EXPLAINED < TRIED


def test_a_retry_keeps_its_rules():
    again = waits(1, 1, retry=Retry("oom", exclusive=True))
    assert refused(planned([again], [runs(9, 10, 0)])[1]) == {0: ["busy"]}


def test_why_it_is_where_it_is():
    told = planned([waits(1, 1)], [runs(9, 10, 0)])[1].explanation
    assert [reason.code for reason in told] == ["predicted", "sooner_together"]
    assert phrase(told[1]) == "beside job 9: so they all end sooner, in sum, than if it waited"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            Reason("later_together", 2 * HOUR, 3 * HOUR, "s", "job 9"),
            "if it joined job 9 now, jobs would end 60 min later, in sum, than if it waits",
        ),
        (
            Reason("held_for", HOUR, unit="s", detail="job 9"),
            "is kept for job 9, which needs it in 60 min, before this job would end",
        ),
        (
            Reason("promised", HOUR, 2, "s"),
            "2 GPUs are kept for it, expected to be free in 60 min",
        ),
    ],
)
def test_words(reason, words):
    assert phrase(reason) == words
