"""CARMA's own policy: its order, when jobs join others, which GPUs are held, what is not known."""

import math
from dataclasses import replace

import pytest

from carmad.api.reasons import phrase
from carmad.config import Collocation, Limits, Settings
from carmad.core.types import Cause, Estimate, Mode, Retry
from carmad.core.window import Score
from carmad.plugin import Placement, Preemption, Reason
from carmad.testing import FakeServer, a_gpu, a_view
from policies.builtin import magm
from policies.carma.policy import EXPLAINED, SEEN, TRIED, carma, remaining_s
from policies.views import LEAST_S
from tests.planning import gpu_views, half_free, placements, queued, refused, running_on, where

HOUR = 3600.0
POLICY = carma(Settings())
RISKY = Score(0.95, 0.9, 0.9, "sm_active", 0.95, 30)


def waits(id, hours, **changes):
    known = {"expected_s": hours * HOUR, "estimate": Estimate(4_000, "oracle")}
    return queued(id, **{**known, **changes})


def runs(id, hours, *gpus, **changes):
    """So many hours are left of it."""
    return waits(id, hours, wants=len(gpus), **running_on(*gpus), **changes)


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


def test_nothing_submitted_later_than_its_service_overtakes_a_job():
    long = waits(1, 1, wants=2, submitted_at=0.0)
    in_time = waits(2, 1 / 60, submitted_at=2 * HOUR - 61)
    too_late = waits(3, 1 / 60, submitted_at=2 * HOUR)
    assert POLICY.order(in_time) < POLICY.order(long) < POLICY.order(too_late)


def test_jobs_of_unknown_duration_are_in_order_of_arrival():
    assert POLICY.order(queued(1, submitted_at=7.0)) == 7.0
    assert line({}, {"expected_s": HOUR}, {}) == [1, 3, 2]


def test_so_are_jobs_of_unknown_memory():
    assert POLICY.order(waits(1, 1, estimate=None, submitted_at=7.0)) == 7.0


# -- place


def test_it_joins_where_most_memory_is_free():
    full, half = {"free_mib": 10_000}, {"free_mib": 20_000}
    residents = [runs(8, 10, 0), runs(9, 10, 1)]
    assert where(planned([waits(1, 1)], residents, gpus=3, gpu0=full, gpu1=half)) == {1: (2,)}
    assert where(planned([waits(1, 1)], residents, gpus=2, gpu0=full, gpu1=half)) == {1: (1,)}


def test_it_joins_however_busy_the_gpu_is():
    assert where(planned([waits(1, 10)], [runs(9, 1, 0)], gpu0={"score": RISKY})) == {1: (0,)}


def test_later_placements_see_those_before():
    plan = planned([waits(1, 1), waits(2, 1)], gpus=1)
    assert where(plan)[1] == (0,)
    assert refused(plan[2]) == {0: ["first_kernel"]}


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
    return planned([wants_empty, waits(2, 50)], [runs(9, 2, 0)], **looks)


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
    assert plan[1].reasons == (Reason("promised", 2 * HOUR, 3, "s"),)
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


# -- preempt

PREEMPTS = Settings(limits=Limits(preemption=True))


def preempting(queue, residents, gpus=1, settings=PREEMPTS, **looks):
    """The jobs that are preempted, and the placements."""
    views = gpu_views([a_gpu(n) for n in range(gpus)], residents, half_free, **looks)
    plan = carma(settings).plan(a_view(views, queue, settings))
    stopped = [each.job for each in plan if isinstance(each, Preemption)]
    return stopped, {each.job: each for each in plan if isinstance(each, Placement)}


def too_large(id, hours=1, **changes):
    """To fit beside anybody."""
    return waits(id, hours, estimate=Estimate(30_000, "oracle"), **changes)


def test_the_longest_job_makes_room_for_one_that_is_much_shorter():
    residents = [runs(8, 9, 0), runs(9, 10, 1)]
    stopped, plan = preempting([too_large(1)], residents, gpus=2)
    assert stopped == [9]
    assert plan[1].reasons == (Reason("making_room", 1, 0, "GPUs", "job 9"),)


def test_nobody_is_preempted_unless_the_admin_allows_it():
    assert preempting([too_large(1)], [runs(9, 10, 0)], settings=Settings())[0] == []


def test_nor_for_a_job_that_is_not_much_shorter():
    assert preempting([too_large(1, hours=3)], [runs(9, 10, 0)])[0] == []


def test_nor_if_the_job_would_go_first_again():
    """What has waited for as long as the other takes is not behind it."""
    late = too_large(1, submitted_at=9 * HOUR)
    assert preempting([late], [runs(9, 10, 0)])[0] == []


def test_nor_if_all_that_keeps_it_off_is_soon_over():
    settles = {"settling": Reason("first_kernel")}
    stopped, plan = preempting([waits(1, 1)], [runs(9, 10, 0)], gpu0=settles)
    assert stopped == [] and refused(plan[1]) == {0: ["first_kernel"]}


def test_no_more_are_preempted_than_it_takes():
    """Two of 10 GB each leave 20 GB free; without one of them, 30 GB are."""
    ten = {"estimate": Estimate(10_000, "oracle")}
    crowd = [runs(8, 9, 0, **ten), runs(9, 10, 0, **ten)]
    assert preempting([waits(1, 1, estimate=Estimate(25_000, "oracle"))], crowd)[0] == [9]


def test_one_job_at_a_time_is_made_room_for():
    residents = [runs(8, 9, 0), runs(9, 10, 1)]
    assert preempting([too_large(1), too_large(2)], residents, gpus=2)[0] == [9]
    leaving = [runs(8, 9, 0), runs(9, 10, 1, stop=Cause.PREEMPTED)]
    assert preempting([too_large(1), too_large(2)], leaving, gpus=2)[0] == []


def test_a_wide_job_takes_as_many_gpus_as_it_needs():
    residents = [runs(8, 30, 0), runs(9, 30, 1)]
    assert sorted(preempting([too_large(1, wants=2)], residents, gpus=2)[0]) == [8, 9]


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


@pytest.mark.parametrize("unknown", [{"estimate": None}, {"expected_s": None}])
def test_strangers_are_where_magm_has_them(unknown):
    queue = [waits(n, 9 - n, **unknown, submitted_at=float(n)) for n in range(1, 6)]
    residents = [runs(8, 1, 0), runs(9, 1, 1)]
    looks = {"gpu0": {"score": RISKY}, "gpu1": {"free_mib": 15_000}, "gpu2": {"free_mib": 9_000}}
    own, magms = (
        where(planned(queue, residents, gpus=4, policy=policy, **looks))
        for policy in (POLICY, magm(Settings()))
    )
    assert own == magms
    assert [POLICY.order(job) for job in queue] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_strangers_are_in_order_of_arrival():
    """As under MAGM, none overtakes another."""
    both = {"expected_s": None, "profile": None}
    large = waits(1, 1, estimate=Estimate(30_000, "oracle"), **both)
    small, known = waits(2, 1, estimate=None, **both), waits(3, 1)
    assert where(planned([large, small, known], [runs(9, 10, 0)])) == {1: (), 3: (0,)}


def test_a_stranger_wider_than_what_is_in_service_does_not_keep_others_waiting():
    strangers = [waits(n, 1, expected_s=None, wants=wants) for n, wants in ((1, 2), (2, 1))]
    drained = {"gpu1": {"drained": "repair"}}
    assert where(planned(strangers, gpus=2, **drained)) == {1: (), 2: (0,)}


def test_a_stranger_takes_an_idle_gpu_first():
    """As under MAGM, although the other has more memory free."""
    stranger = waits(1, 1, expected_s=None)
    less = {"gpu0": {"free_mib": 9_000}, "gpu1": {"free_mib": 10_000}}
    assert where(planned([stranger], [runs(9, 10, 1)], gpus=2, **less)) == {1: (0,)}


# -- telling


def considered(queue, hold=2):
    """Of these jobs, those for which GPUs are looked for while a job of the user's runs alone."""
    asked = []
    policy = carma(Settings())
    refuse = policy.rules.known.filters[0]

    def counting(wanted, gpu):
        asked.append(wanted)
        return refuse(wanted, gpu)

    known = replace(policy.rules.known, filters=(counting,))
    policy = replace(policy, rules=policy.rules._replace(known=known), hold=hold)
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
            "is kept for job 9, which needs it in 60 min, before this job would end",
        ),
        (
            Reason("promised", HOUR, 2, "s"),
            "GPUs kept for it: 2, expected to be free in 60 min",
        ),
    ],
)
def test_words(reason, words):
    assert phrase(reason) == words
