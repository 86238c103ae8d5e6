"""Castor as a policy: which jobs share GPUs, and split batches, by hand."""

import math
from dataclasses import replace

import pytest

from carma_testing import a_gpu, a_gpu_view, a_job, a_spec, a_view, changed, check_policy
from carmad.config import Collocation, Preconditions, Profiling, Settings
from carmad.core.jobs.attempt import Cause, ProfilingRun
from carmad.core.jobs.findings import Estimate, Indicator, Prediction, Profile, StepTime
from carmad.core.jobs.job import Retry
from carmad.core.jobs.recurrence import group
from carmad.learning.files import find_model
from carmad.learning.models import Boosted, Stage
from carmad.plugin import Loaded, Placement, Reason, Remember, Verdict
from policies.castor.interference import NAME, Predicted, ratios
from policies.castor.neighbours import OVERRUN, Pace, Paces, left_s
from policies.castor.pairing import FIXED_SHARE, StepModel
from policies.castor.policy import _obstacles, castor
from policies.profiling import set_aside
from policies.views import need_mib
from tests import planning
from tests.planning import gpu_views, half_free, placements, refused, running_on, where

LOOSE = Preconditions(min_free_mib=0)
SETTINGS = Settings(policies={"castor": LOOSE})
PROFILE = Profile(200.0, 10_000, (Indicator("gpu_utilization", 0.5, 0.01),))
MILD = (1.1, 1.1)


def queued(id, left_s=100.0, wants=1, **changes):
    """A profiled job with this duration."""
    known = {"profile": PROFILE, "prediction": left_s and Prediction(left_s, "history")}
    return planning.queued(id, wants, **{**known, **changes})


def running(id, *gpus, left_s=1000.0, **changes):
    return queued(id, left_s, len(gpus), **{**running_on(*gpus), **changes})


def view_of(gpus, queue, *residents, settings=SETTINGS, now=0.0, nodes="a" * 16, **looks):
    """`nodes` has a letter for each GPU."""
    cards = [a_gpu(n, node=nodes[n]) for n in range(gpus)]
    return a_view(gpu_views(cards, residents, half_free, **looks), queue, settings, now)


def with_ratios(pairs=None, settings=SETTINGS):
    """The policy, with given ratios for a running and a new job by their ids."""

    def told(one, new, memory_mib, view, passes=None):
        return (pairs or {}).get((one.id, new.id), MILD)

    policy = castor(settings)
    return replace(policy, sharing=replace(policy.sharing, interference=told))


def plan(view, pairs=None):
    return placements(with_ratios(pairs, view.settings), view)


# -- the line


def test_the_shortest_remaining_job_goes_first():
    order = castor(SETTINGS).order
    assert order(queued(1, 300.0)) == 300
    assert order(queued(1, 300.0, served_s=100.0)) == 200
    assert order(queued(1, None)) == math.inf
    assert order(queued(1, None, expected_s=50.0)) == 50


def test_what_a_running_job_has_left():
    job = running(7, 0, left_s=1000.0)
    assert left_s(job, 400.0) == 600
    late = left_s(job, 4000.0)
    assert late == OVERRUN * 4000 > 0, "who outlives a prediction goes on for a while"
    assert left_s(changed(job, stop=Cause.CANCELLED), 400.0) == 0
    slow = running(7, 0, batch_size=64, accumulation=4)
    assert left_s(slow, 400.0) == pytest.approx(1000 * (1 + 3 * FIXED_SHARE) - 400)


# -- progress


def memory_after(policy, view):
    (told,) = (each.memory for each in policy.plan(view) if isinstance(each, Remember))
    assert isinstance(told, Paces)
    return told


def test_time_beside_another_counts_divided_by_its_ratio():
    """Alone for 100 s, then beside one that doubles its steps for 200 s, then alone again."""
    policy = with_ratios({(1, 2): (2.0, 4.0)})
    one, waits = running(1, 0), queued(3, left_s=None)
    two = changed(running(2, 0), started_at=100.0)
    told = memory_after(policy, view_of(1, [waits], one, now=60.0))
    for now, residents in ((150.0, (one, two)), (300.0, (one,)), (350.0, (one,))):
        view = replace(view_of(1, [waits], *residents, now=now), memory=told)
        told = memory_after(policy, view)
    assert told.work[1] == 100 + 200 / 2 + 50


def test_a_proposed_neighbour_slows_nobody_before_it_runs():
    """The core may refuse what is proposed; what it accepts counts from its start."""
    policy = with_ratios({(9, 1): (1.25, 1.5)})
    before = view_of(1, [queued(1), queued(2, left_s=None)], running(9, 0), now=40.0)
    assert where(placements(policy, before))[1] == (0,)
    told = memory_after(policy, before)
    assert told == Paces({9: Pace(1, 40.0, 40.0, 1.0)})
    new, waits = changed(running(1, 0), started_at=40.0), queued(2, left_s=None)
    for residents, worked in (
        ((running(9, 0),), {9: 90.0}),
        ((running(9, 0), new), {9: 40 + 50 / 1.25, 1: 50 / 1.5}),
    ):
        later = replace(view_of(1, [waits], *residents, now=90.0), memory=told)
        assert memory_after(policy, later).work == pytest.approx(worked)


def test_of_two_neighbours_the_one_that_slows_it_most_counts():
    policy = with_ratios({(1, 2): (1.25, 1.0), (1, 3): (2.0, 1.0)})
    two, three = (changed(running(n, n - 2), started_at=at) for n, at in ((2, 0.0), (3, 60.0)))
    view = view_of(2, [queued(4, left_s=None)], running(1, 0, 1), two, three, now=100.0)
    assert memory_after(policy, view).work == pytest.approx({1: 60 + 40 / 2, 2: 100, 3: 40})


def test_what_is_left_of_a_slowed_neighbour_decides():
    """By the clock it has 10 s left, by its work 505: only then is it worth joining."""

    def joins(memory):
        view = view_of(1, [queued(1, left_s=300.0)], running(9, 0), now=990.0)
        placed = with_ratios({(9, 1): (2.0, 1.5)}).plan(replace(view, memory=memory))
        return any(each.gpus for each in placed if isinstance(each, Placement))

    assert not joins(None)
    assert joins(Paces({9: Pace(1, 990.0, 495.0, 0.5)}))


def test_another_attempt_begins_anew():
    told = Paces({1: Pace(1, 0.0, 500.0, 1.0)})
    again = changed(running(1, 0), attempt=2, started_at=900.0)
    view = replace(view_of(1, [queued(2, wants=2)], again, now=1000.0), memory=told)
    assert memory_after(with_ratios(), view).work == {1: 100.0}


def test_those_behind_one_that_waits_have_their_turn():
    view = view_of(3, [queued(1, wants=4), queued(2, wants=2), queued(3)])
    assert where(plan(view)) == {1: (), 2: (0, 1), 3: (2,)}


# -- alone


def test_a_gpu_that_others_compute_on_is_not_idle():
    waits = plan(view_of(1, [queued(1)], gpu0={"external_mib": 9_000}))[1]
    assert waits.reasons == (Reason("no_room", 1, 0, "GPUs"),)
    assert refused(waits) == {0: ["external"]}


def test_idle_gpus_before_shared_ones_and_close_together():
    neighbour = running(9, 0)
    assert where(plan(view_of(2, [queued(1)], neighbour))) == {1: (1,)}
    view = view_of(6, [queued(1, wants=2)], neighbour, running(8, 2), nodes="aabbcc")
    assert where(plan(view)) == {1: (4, 5)}


def test_an_unknown_job_is_profiled_where_it_stays():
    job = queued(1, profile=None, cold_start_s=60.0)
    placement = plan(view_of(1, [job], now=50.0))[1]
    assert placement.profiling == ProfilingRun(50.0 + 200.0 + 60.0, evict=False)
    assert placement.explanation == (
        Reason("predicted", have=100.0, unit="s", detail="history"),
        Reason("profiled_there", 260.0, unit="s"),
    )
    known = plan(view_of(1, [queued(1)]))[1]
    assert known.profiling is None and len(known.explanation) == 1


def test_only_small_jobs_are_made_to_be_profiled():
    settings = replace(SETTINGS, profiling=Profiling(largest=1))
    jobs = [queued(1, profile=None, wants=2), queued(2, profile=None)]
    placements = plan(view_of(3, jobs, settings=settings))
    assert placements[1].gpus and placements[1].profiling is None
    assert placements[2].gpus and placements[2].profiling


ASIDE = replace(SETTINGS, profiling=Profiling(gpus=1))


def test_gpus_set_aside_are_for_profiling_and_nothing_else():
    jobs = [queued(1), queued(2, profile=None), queued(3, profile=None), queued(4), queued(5)]
    placements = plan(view_of(3, jobs, settings=ASIDE, now=50.0))
    assert where(placements) == {1: (0,), 2: (2,), 3: (), 4: (1,), 5: ()}
    assert placements[2].profiling == ProfilingRun(250.0, evict=True)
    assert placements[3].reasons == (Reason("profiling_gpus", 1, 0, "GPUs"),)
    assert Reason("profiled_there", 200.0, unit="s") in placements[2].explanation


def test_nobody_joins_one_that_is_profiled_aside():
    guest = running(9, 2, profiling=ProfilingRun(250.0, evict=True))
    view = view_of(
        3, [queued(1)], running(7, 0), running(8, 0), running(6, 1), guest, settings=ASIDE
    )
    assert where(plan(view)) == {1: (1,)}


def test_who_cannot_be_profiled_aside_is_profiled_in_place():
    large, once = queued(1, profile=None, wants=2), queued(2, profile=None, requeue=False)
    for job, found in ((large, (0, 1)), (once, (0,))):
        placement = plan(view_of(3, [job], settings=ASIDE))[job.id]
        assert where({job.id: placement}) == {job.id: found}
        assert placement.profiling == ProfilingRun(200.0, evict=False)


ONE_SERVER = replace(ASIDE, collocation=Collocation(mps=True, mps_scope="node"))


def test_a_job_profiled_aside_closes_its_node_s_server_to_other_users():
    jobs = [queued(1, profile=None), queued(2, uid=2000)]
    placements = plan(view_of(2, jobs, settings=ONE_SERVER))
    assert where(placements) == {1: (1,), 2: ()}
    assert refused(placements[2])[0] == ["mps_user"]


def test_a_server_that_serves_the_profiler_s_gpus_stays_its_user_s():
    """Job 1, outside of MPS, goes before job 2, which needs the server of job 9's user."""
    guest = running(9, 2, profiling=ProfilingRun(250.0, evict=True))
    jobs = [queued(1, exclusive=True, uid=2000), queued(2, 200.0, uid=2000)]
    placements = plan(view_of(3, jobs, guest, settings=ONE_SERVER))
    assert where(placements) == {1: (0,), 2: ()}
    assert "mps_user" in refused(placements[2])[1]


# -- beside others


def test_a_job_joins_the_neighbour_whose_pair_is_done_soonest():
    residents = running(8, 0, left_s=2000.0), running(9, 1, left_s=1000.0)
    placement = plan(view_of(2, [queued(1)], *residents))[1]
    assert where({1: placement}) == {1: (1,)}
    # Job 1 takes 110 s, in which job 9 gets 100 of its 1000 done: it ends at 1010.
    assert placement.explanation[1:] == (
        Reason("sharing_benefit", (1000 + 1100) / 2, (1010 + 110) / 2, "s", "job 9"),
    )
    assert placement.accumulation == 1 and placement.profiling is None
    assert [v.rank for v in placement.verdicts] == [(2010 + 110) / 2, (1010 + 110) / 2]


def test_it_waits_where_waiting_is_better_and_is_told_of_the_closest():
    harsh = {(8, 1): (9.0, 9.0), (9, 1): (3.0, 3.0)}
    view = view_of(2, [queued(1, 1000.0), queued(2, 10.0)], running(8, 0), running(9, 1))
    waits, joins = plan(view, harsh).values()
    assert not waits.gpus and joins.gpus
    # Three times as slow, both take until 3000 s; one after the other, until 1000 and 2000.
    assert waits.reasons == (
        Reason("no_benefit", 1500.0, 3000.0, "s", "job 9"),
        Reason("no_room", 1, 0, "GPUs"),
    )
    assert refused(waits) == {0: ["no_benefit"], 1: ["no_benefit"]}


def test_waiting_is_for_the_remaining_time_and_not_for_all_of_it():
    harsh = {(9, 1): (1.9, 1.9)}
    resident = running(9, 0, left_s=1000.0)
    assert where(plan(view_of(1, [queued(1, 100.0)], resident, now=0.0), harsh)) == {1: (0,)}
    assert where(plan(view_of(1, [queued(1, 100.0)], resident, now=950.0), harsh)) == {1: ()}


def test_two_on_a_gpu_at_most():
    waits = plan(view_of(1, [queued(1)], running(8, 0), running(9, 0)))[1]
    assert waits.verdicts[0].refused == (Reason("jobs_per_gpu", 2, 2, "jobs"),)
    two = replace(SETTINGS, collocation=Collocation(max_jobs_per_gpu=2))
    waits = plan(view_of(1, [queued(1)], running(8, 0), running(9, 0), settings=two))[1]
    assert refused(waits) == {0: ["jobs_per_gpu"]}, "said once"
    both = plan(view_of(1, [queued(1), queued(2)], running(9, 0)))
    assert where(both) == {1: (0,), 2: ()}, "the second finds two there"


@pytest.mark.parametrize("profile", [None, Profile(0.0, 9_000), Profile(200.0, 0)])
def test_nobody_shares_with_one_that_is_not_known(profile):
    waits = plan(view_of(1, [queued(1)], running(9, 0, profile=profile)))[1]
    assert waits.verdicts[0].refused == (Reason("unprofiled", detail="job 9"),)
    waits = plan(view_of(1, [queued(1, profile=profile)], running(9, 0)))[1]
    assert waits.reasons[0] == Reason("unprofiled", detail="this job") and not waits.gpus
    assert refused(waits) == {0: ["busy"]}, "it would have to be alone"


def test_nobody_shares_with_one_of_which_nobody_knows_how_long_it_takes():
    waits = plan(view_of(1, [queued(1)], running(9, 0, left_s=None)))[1]
    assert waits.verdicts[0].refused == (Reason("unpredicted", detail="job 9"),)
    waits = plan(view_of(1, [queued(1, None)], running(9, 0)))[1]
    assert waits.reasons[0] == Reason("unpredicted", detail="this job") and not waits.gpus


def test_who_must_be_alone_does_not_share():
    resident, other = running(8, 0, exclusive=True), running(9, 0)
    assert where(plan(view_of(1, [queued(1)], resident))) == {1: ()}
    assert where(plan(view_of(1, [queued(1, exclusive=True)], other))) == {1: ()}
    again = queued(1, retry=Retry("oom", exclusive=True))
    assert where(plan(view_of(1, [again], other))) == {1: ()}
    profiled = changed(other, profiling=ProfilingRun(99.0, evict=False))
    assert where(plan(view_of(1, [queued(1)], profiled))) == {1: ()}


@pytest.mark.parametrize("scope", [None, "gpu", "node"])
def test_jobs_of_several_gpus_share_with_mps_and_without(scope):
    shared = Collocation(mps=True, mps_scope=scope) if scope else Collocation()
    settings = replace(SETTINGS, collocation=shared)
    view = view_of(2, [queued(1, wants=2)], running(9, 0, 1), settings=settings)
    assert where(plan(view)) == {1: (0, 1)}


# -- beside several


def test_neighbours_gpus_come_first_and_idle_ones_make_up_the_rest():
    view = view_of(3, [queued(1, wants=3)], running(9, 1, left_s=500), running(8, 2, left_s=900))
    assert where(plan(view)) == {1: (1, 2, 0)}
    assert where(plan(view_of(2, [queued(1, wants=2)], running(9, 0)))) == {1: (0, 1)}
    alone = view_of(2, [queued(1, wants=2)], running(9, 0, exclusive=True))
    assert where(plan(alone)) == {1: ()}, "without a neighbour it waits for idle ones"


def test_a_neighbour_of_more_gpus_gives_as_many_as_are_wanted():
    view = view_of(4, [queued(1, wants=2)], running(9, 0, 1, 2), running(8, 3, left_s=9e4))
    assert where(plan(view)) == {1: (0, 1)}


def test_all_must_gain_by_the_worst_of_the_ratios():
    """Alone with either, job 1 gains; but job 8 would slow it so much that 9 suffers for longer
    than waiting would take."""
    residents = running(8, 0, left_s=9000.0), running(9, 1, left_s=1000.0)
    view = view_of(2, [queued(1, 100.0, wants=2)], *residents)
    pairs = {(8, 1): (1.0, 30.0), (9, 1): (5.0, 1.0)}
    assert where(plan(view, pairs)) == {1: ()}
    assert where(plan(view, {**pairs, (8, 1): (1.0, 3.0)})) == {1: (1, 0)}
    assert where(plan(view, {**pairs, (9, 1): (1.0, 1.0)})) == {1: (1, 0)}


# -- memory


def test_what_a_job_needs():
    estimate = Estimate(8_000, "trace", high=9_000, batch_mib=6_400)
    assert need_mib(queued(1, estimate=estimate)) == 10_000, "it was measured to take more"
    small = replace(PROFILE, peak_mib=1_000)
    assert need_mib(queued(1, estimate=estimate, profile=small)) == 9_000
    assert need_mib(queued(1, estimate=estimate, profile=small), 4) == 9_000 - 4_800
    assert need_mib(queued(1, estimate=estimate), 4) == 10_000 - 4_800
    assert need_mib(queued(1), 4) == 10_000, "nobody knows what the batch takes of it"


def test_without_enough_memory_nobody_joins():
    tight = {"gpu0": {"free_mib": 9_999}}
    waits = plan(view_of(1, [queued(1)], running(9, 0), **tight))[1]
    assert waits.verdicts[0].refused == (Reason("memory", 10_000, 9_999, "MiB"),)
    assert plan(view_of(1, [queued(1)], running(9, 0), gpu0={"free_mib": 10_000}))[1].gpus
    again = queued(1, retry=Retry("oom", margin_mib=500))
    assert not plan(view_of(1, [again], running(9, 0), gpu0={"free_mib": 10_499}))[1].gpus


def test_the_admin_s_margins_count():
    margin = Settings(policies={"castor": Preconditions(min_free_mib=0, margin_mib=11_000)})
    waits = plan(view_of(1, [queued(1)], running(9, 0), settings=margin))[1]
    assert waits.verdicts[0].refused == (Reason("memory", 21_000, 20_000, "MiB"),)
    free = Settings(policies={"castor": Preconditions(min_free_mib=20_001)})
    waits = plan(view_of(1, [queued(1)], running(9, 0), settings=free))[1]
    assert refused(waits) == {0: ["min_free"]}
    just = Settings(policies={"castor": Preconditions(min_free_mib=20_000)})
    assert where(plan(view_of(1, [queued(1)], running(9, 0), settings=just))) == {1: (0,)}


def test_a_step_is_fitted_on_the_kind_with_the_widest_range_of_parts():
    narrow = StepTime(3, 5.0, "a"), StepTime(4, 5.5, "a")
    wide = StepTime(1, 2.0, "b"), StepTime(4, 5.0, "b")
    assert StepModel.fit((*narrow, *wide), 10) == StepModel.fit(wide, 10)


SPLITTABLE = {
    "batch_size": 48,
    "estimate": Estimate(30_000, "trace", batch_mib=24_000),
    "profile": replace(PROFILE, peak_mib=30_000),
}


def test_a_batch_is_split_as_far_as_memory_asks_and_no_further():
    """Whole 30,000 MiB, in two parts 18,000, in four 12,000, in eight 9,000, in sixteen 7,500."""
    for free_mib, passes in ((30_000, 1), (29_999, 2), (18_000, 2), (12_345, 4), (7_500, 16)):
        view = view_of(1, [queued(1, **SPLITTABLE)], running(9, 0), gpu0={"free_mib": free_mib})
        placement = plan(view)[1]
        assert (bool(placement.gpus), placement.accumulation) == (True, passes)
        parts = Reason("split_batch", 48, 48 // passes, detail=f"{passes} parts")
        assert (parts in placement.explanation) == (passes > 1)
    waits = plan(view_of(1, [queued(1, **SPLITTABLE)], running(9, 0), gpu0={"free_mib": 7_499}))[1]
    assert waits.verdicts[0].refused == (Reason("memory", 7_500, 7_499, "MiB"),)


def test_who_did_not_opt_in_is_never_split():
    job = queued(1, **{**SPLITTABLE, "batch_size": None})
    assert not plan(view_of(1, [job], running(9, 0), gpu0={"free_mib": 29_999}))[1].gpus


def test_a_batch_in_parts_takes_longer_and_may_not_be_worth_it():
    """Sixteen passes take 1 + 15/4 times as long, for all of which the neighbour is slowed."""
    job, harsh = queued(1, **SPLITTABLE), {(9, 1): (1.5, 1.5)}
    for free_mib, found in ((30_000, (0,)), (7_500, ())):
        view = view_of(1, [job], running(9, 0, left_s=300), gpu0={"free_mib": free_mib})
        placements = plan(view, harsh)
        assert where(placements) == {1: found}
    (lost,) = placements[1].verdicts[0].refused
    assert lost.code == "no_benefit" and lost.have > lost.need == 350


def test_beside_two_it_is_split_as_the_fuller_gpu_asks():
    looks = {"gpu0": {"free_mib": 30_000}, "gpu1": {"free_mib": 12_000}}
    job = queued(1, wants=2, **SPLITTABLE)
    placement = plan(view_of(2, [job], running(8, 0), running(9, 1), **looks))[1]
    assert (len(placement.gpus), placement.accumulation) == (2, 4)


def test_of_a_neighbour_s_gpus_those_with_most_memory():
    looks = {
        "gpu0": {"free_mib": 9_000},
        "gpu1": {"free_mib": 15_000},
        "gpu2": {"free_mib": 30_000},
    }
    view = view_of(3, [queued(1)], running(9, 0, 1, 2), **looks)
    assert where(plan(view)) == {1: (2,)}
    assert where(plan(view_of(3, [queued(1, wants=2)], running(9, 0, 1, 2), **looks))) == {
        1: (2, 1)
    }


# -- what is said


def test_a_long_line_is_explained_in_front_and_ends_where_nothing_is_to_be_had():
    waiting = [queued(n, 1000.0) for n in range(1, 21)]
    full = plan(view_of(1, waiting, running(98, 0), running(99, 0)))
    assert list(full) == [1, 2, 3, 4] and all(p.verdicts for p in full.values())
    harsh = {(99, n): (9.0, 9.0) for n in range(1, 21)}
    tried = plan(view_of(1, waiting, running(99, 0)), harsh)
    assert list(tried) == [1, 2, 3, 4] and all(p.verdicts and p.reasons for p in tried.values())
    large = [queued(n, wants=2) for n in range(1, 6)]
    assert where(plan(view_of(1, [*large, queued(6)])))[6] == (0,), "there is an idle one"
    harsh.pop((99, 20))
    assert where(plan(view_of(1, waiting, running(99, 0)), harsh))[20] == (0,)


def test_of_neighbours_without_a_gain_the_closest_to_one_is_told():
    far, near = Reason("no_benefit", 3.0, 3.5), Reason("no_benefit", 0.2, 0.5)
    verdicts = tuple(Verdict(a_gpu(n).id, (one,)) for n, one in enumerate((far, near)))
    assert _obstacles(queued(1), verdicts) == (near,)


# -- the ratios


def model(feature, below, above, threshold=0.5):
    """One split; a missing feature counts as above."""
    stage = Stage(
        (0, -1, -1),
        (threshold, 0.0, 0.0),
        (1, 0, 0),
        (2, 0, 0),
        (2, 0, 0),
        (0.0, below, above),
        (1.0, 0, 0),
    )
    return Boosted("", "", (feature,), 1.0, (stage,), 1, 0.0)


def profile(mean, variance=0.0, peak_mib=4_000):
    return Profile(200.0, peak_mib, (Indicator("gpu_utilization", mean, variance),))


def load(mean, variance=0.0, memory_share=0.1):
    return Loaded((Indicator("gpu_utilization", mean, variance),), memory_share)


def seeing(**models):
    return replace(view_of(1, []), models=models)


def predicting(shipped):
    """By this model, unless the view has one."""
    told = Predicted()

    def ask(running, new, memory_mib, view, **more):
        view = replace(view, models={NAME: shipped, **view.models})
        return told(running, new, memory_mib, view, **more)

    return ask


def test_each_is_told_by_its_own_and_the_other_s_profile():
    busy, calm = load(0.9), load(0.1)
    other = model("other.gpu_utilization.mean", 0.0, 0.8)
    assert ratios(other, busy, calm, False) == (1.0, 1.8)
    own = model("own.gpu_utilization.mean", 0.0, 0.8)
    assert ratios(own, busy, calm, False) == (1.8, 1.0)
    variance = model("own.gpu_utilization.variance", 0.0, 0.8, threshold=0.1)
    assert ratios(variance, load(0.5, 0.2), calm, False) == (1.8, 1.0)
    share = model("own.memory.share", 0.0, 0.8, threshold=0.2)
    assert ratios(share, load(0.5, memory_share=0.4), calm, False) == (1.8, 1.0)
    assert ratios(model("own.memory.share", -0.5, -0.5), busy, calm, False) == (1.0, 1.0)
    by_mode = model("mode.mps", 0.8, 0.2)
    assert ratios(by_mode, busy, calm, mps=False) == (1.8, 1.8)
    assert ratios(by_mode, busy, calm, mps=True) == (1.2, 1.2)


def test_the_ratio_is_that_of_the_way_they_will_share():
    told = predicting(model("mode.mps", 0.1, 0.9))
    one, wide = running(1, 0), running(2, 0, 1)
    for scope, of_wide in (("gpu", 1.1), ("node", 1.9)):
        settings = Settings(collocation=Collocation(mps=True, mps_scope=scope))
        view = view_of(2, [], settings=settings)
        assert told(one, queued(3), 40_000, view) == (1.9, 1.9)
        assert told(one, wide, 40_000, view) == (of_wide, of_wide)


def test_what_was_learned_here_goes_before_what_is_shipped():
    told = predicting(model("own.memory.share", 0.2, 0.2))
    one, two = running(1, 0), queued(2)
    assert told(one, two, 40_000, seeing()) == (1.2, 1.2)
    learned = seeing(interference=model("own.memory.share", 0.7, 0.7))
    assert told(one, two, 40_000, learned) == (1.7, 1.7)
    assert told(one, two, 40_000, seeing()) == (1.2, 1.2), "nothing of it sticks"


def test_a_split_batch_slows_its_neighbour_by_less_memory():
    told = predicting(model("other.memory.share", 0.1, 0.9, threshold=0.2))
    known = {"estimate": Estimate(10_000, "by hand", batch_mib=8_000), "batch_size": 64}
    one, two = running(1, 0), queued(2, **known)
    assert told(one, two, 40_000, seeing(), passes=1)[0] == 1.9
    assert told(one, two, 40_000, seeing(), passes=4)[0] == 1.1


def test_a_pair_is_worked_out_once_and_another_one_anew(monkeypatch):
    asked = []
    counted = lambda self, values: asked.append(values) or 1.5  # noqa: E731
    monkeypatch.setattr(Boosted, "predict", counted)
    told = predicting(model("own.memory.share", 0.0, 0.0))
    one, two = running(1, 0, profile=profile(0.1)), queued(2, profile=profile(0.2))
    for _ in range(3):
        assert told(one, two, 40_000, seeing()) == (1.5, 1.5)
    assert len(asked) == 2
    told(one, two, 20_000, seeing())
    told(two, one, 40_000, seeing())
    told(one, queued(3, profile=profile(0.3)), 40_000, seeing())
    assert len(asked) == 8
    again = replace(two.profile, of=7)
    told(one, replace(two, profile=again), 40_000, seeing())
    assert len(asked) == 8, "another run of the same job"
    told(one, replace(two, profile=replace(again, peak_mib=1)), 40_000, seeing())
    assert len(asked) == 10


def test_what_the_shipped_model_says():
    shipped, busy = find_model(NAME, Boosted, {}), load(0.95, 0.0, 0.375)
    two_busy = ratios(shipped, busy, busy, mps=False)
    assert min(two_busy) > 1.2, "two that fill a GPU are slow together"


# -- as a plugin


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(profiling=Profiling(gpus=1), collocation=Collocation(mps=True, mps_scope="node")),
    ],
)
def test_it_is_a_sound_policy(settings):
    check_policy(with_ratios(settings=settings), settings)


def test_what_a_batch_of_another_size_took_teaches_nothing():
    """Neither profile nor duration: it is a different job, with the same command."""
    command = ("train", "--batch={batch_size}")
    groups = {group(a_spec(argv=command, batch_size=size)) for size in (None, 32, 64, 64)}
    assert len(groups) == 3


# -- GPUs that are set aside for profiling


def one_aside(gpus, jobs):
    return a_view(gpus, jobs, Settings(profiling=Profiling(gpus=1)))


def test_a_job_that_wants_more_than_the_other_gpus_may_have_all():
    gpus = [a_gpu_view(n) for n in range(4)]
    wide = queued(1, wants=4)
    view = one_aside(gpus, [wide])
    placement, _ = castor(view.settings).plan(view)
    assert len(placement.gpus) == 4


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        ({"estimate": Estimate(50_000, "declared", firm=True)}, False),
        ({"estimate": Estimate(50_000, "trace")}, True),  # a guess keeps nobody off an empty GPU
        ({"retry": Retry("oom", avoid=(a_gpu(3).id,))}, False),
        ({"spec": a_spec(cold_start_s=1e6)}, False),
        ({"spec": a_spec(requeue=False)}, False),
        ({"spec": a_spec(gpus=2)}, False),
    ],
)
def test_who_could_never_be_profiled_there_or_would_block_it_stays_in_the_main_line(changes, taken):
    job = replace(a_job(1), **changes)
    view = one_aside([a_gpu_view(n) for n in range(4)], [job])
    assert set_aside(view).takes(job) == taken
    placement, _ = castor(view.settings).plan(view)
    assert (placement.gpus == (a_gpu(3).id,)) == taken


@pytest.mark.parametrize(
    "trouble",
    [{"drained": "fan"}, {"external_mib": 3000}, {"stale": Reason("stale", 5, 99, "s")}],
)
def test_the_profiler_takes_the_last_gpus_that_are_fit_for_use(trouble):
    gpus = [a_gpu_view(0), a_gpu_view(1), a_gpu_view(2, **trouble)]
    assert set_aside(one_aside(gpus, [])).own == {a_gpu(1).id}
