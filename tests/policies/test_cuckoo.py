"""Cuckoo as a policy: which jobs are packed, and when they run; by hand."""

import math
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import a_gpu, a_view, changed, check_policy
from carmad.config import Collocation, Limits, Links, Preconditions, Profiling, Settings
from carmad.core.gpus.gpu import ProcessUse
from carmad.core.jobs.attempt import Cause, ProfilingRun
from carmad.core.jobs.findings import Estimate, Indicator, Prediction, Profile, StepTime
from carmad.core.jobs.job import Retry
from carmad.core.jobs.states import JobState
from carmad.plugin import AskAgain, Reason, Remember, StageTimes
from lab.cuckoo.muri import Exclusive, earliest_deadline_first, first_in_first_out
from policies.cuckoo import CuckooSettings
from policies.cuckoo.groups import best_edges, matching, take_apart
from policies.cuckoo.interleaving import Asynchronous, ddl_values, total_values
from policies.cuckoo.joining import Memory
from policies.cuckoo.members import FORWARD, UNHEARD_S, Speeds, find_stage_times, left_s
from policies.cuckoo.planning import Groups, Slot, Slots, Window, costs, first_slots, min_cost
from policies.cuckoo.policy import TOLD, cuckoo
from tests import planning
from tests.planning import gpu_views, half_free, placements, refused, running_on, where

LOOSE = Preconditions(min_free_mib=0)
SETTINGS = Settings(policies={"cuckoo": LOOSE})
LOADS = (StageTimes(9.0, 0.3, 0.7),)  # two of a kind gain nothing, one of each much
COMPUTES = (StageTimes(1.0, 3.0, 6.0),)
NOTHING_LEFT = (StageTimes(0.0, 3.0, 7.0),)  # whoever is beside it gains little or nothing


def queued(id, left_s=100.0, wants=1, deadline=None, stages=COMPUTES, **changes):
    """A job with known stages and this duration."""
    told = {
        "deadline_at": deadline,
        "stage_times": stages,
        "prediction": left_s and Prediction(left_s, "history"),
        "estimate": Estimate(10_000, "trace"),
    }
    return planning.queued(id, wants, **{**told, **changes})


def running(id, *gpus, left_s=1000.0, **changes):
    return queued(id, left_s, len(gpus), **{**running_on(*gpus), **changes})


def view_of(gpus, queue, *residents, settings=SETTINGS, now=0.0, kinds="a" * 16, **looks):
    """`kinds` has a letter for each GPU. The queue is sorted."""
    cards = [a_gpu(n, name=kinds[n]) for n in range(gpus)]
    order = made(settings).order
    line = sorted(queue, key=lambda job: (not job.retry, job.spec.nice, order(job), job.id))
    return a_view(gpu_views(cards, residents, half_free, **looks), line, settings, now)


def made(settings):
    return cuckoo(settings, CuckooSettings(**settings.plugins.get("policies.cuckoo", {})))


def in_turns(settings, **variant):
    """Two jobs that compute at once take turns, as in the paper's example, and do not gain."""
    policy = made(settings)
    packer = replace(policy.packer, model=Asynchronous(gpu=2.0))
    return replace(policy, **{"packer": packer, **variant})


def plan(view, **variant):
    return placements(in_turns(view.settings, **variant), view)


def codes(reasons):
    return {reason.code: reason for reason in reasons}


# -- what a pair is worth


@pytest.mark.parametrize(
    ("one_s", "other_s", "value"),
    [
        (50.0, 200.0, 0.25),
        (200.0, 50.0, 0.25),
        (70.0, 70.0, 1.0),
        (math.inf, math.inf, 1.0),
        (math.inf, 70.0, 0.0),
        (-10.0, 70.0, 0.0),
        (-10.0, -5.0, 1.0),
        (-10.0, math.inf, 0.0),
    ],
)
def test_ddl_value(one_s, other_s, value):
    assert float(ddl_values(np.array(one_s), np.array(other_s))) == value


def test_total_value():
    assert float(total_values(np.array(1.5), np.array(0.25), 0.6)) == pytest.approx(0.6 * 1.5 + 0.1)


# -- the matching


def table(count, edges):
    weights = np.zeros((count, count))
    for one, other, weight in edges:
        weights[one, other] = weights[other, one] = weight
    return weights


def test_the_heaviest_matching_is_not_the_heaviest_edge():
    edges = [(0, 1, 1.2), (1, 2, 2.0), (2, 3, 1.1)]
    assert matching(edges) == [(0, 1), (2, 3)]
    assert matching(best_edges(table(4, edges))) == [(0, 1), (2, 3)]
    assert matching([]) == []


def test_a_job_that_all_would_like_to_have_leaves_the_others_theirs():
    """All jobs' best edges lead to the first ten; still no job is left without a partner."""
    rng = np.random.default_rng(0)
    liked = np.concatenate((np.full(10, 5.0), np.zeros(50)))
    weights = 1 + rng.random((60, 60)) / 10 + liked[:, None] + liked
    weights = np.triu(weights, 1) + np.triu(weights, 1).T
    edges = best_edges(weights)
    assert len(matching(edges)) == 30
    assert len(edges) < 60 * 59 / 2 / 2


@given(st.integers(0, 10_000))
def test_little_is_lost_with_the_edges_that_are_left_out(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 40))
    weights = np.triu(np.where(rng.random((count, count)) < 0.8, 1 + rng.random(), 0.0), 1)
    weights *= 1 + rng.random((count, count))
    weights += weights.T
    every = [(i, j, weights[i, j]) for i, j in zip(*np.nonzero(np.triu(weights)), strict=True)]
    full, pruned = (
        sum(weights[pair] for pair in matching((int(i), int(j), float(w)) for i, j, w in edges))
        for edges in (every, best_edges(weights))
    )
    assert 0.97 * full <= pruned <= full + 1e-4


# -- anti-overpacking


def test_a_hundred_jobs_on_seventy_gpus():
    """The paper's example: 50 groups, 20 of them taken apart."""
    efficiencies = [1 + n / 100 for n in range(50)]
    assert take_apart(efficiencies, [1] * 50, 70 - 50) == set(range(20))
    assert take_apart(efficiencies, [1] * 50, 0) == set()
    assert take_apart([1.1, 1.2, 1.3], [4, 1, 1], 2.5) == {1, 2}, "as many as find room"


# -- planning: table 6


def groups_of(time_s, deadline_s, windows=2, **changes):
    time_s, deadline_s = np.array(time_s, dtype=float), np.array(deadline_s, dtype=float)
    fits = np.ones((len(time_s), windows), dtype=bool)
    submitted_at = np.arange(len(time_s), dtype=float)
    groups = Groups(time_s, deadline_s[:, None] - time_s, fits, submitted_at, deadline_s)
    return replace(groups, **changes)


A_AND_B = [Window(0), Window(1)]
TABLE_5 = groups_of([[2, 3], [3, 4]], [5, 5])
TABLE_6 = {  # cost by GPU and order
    (0, 1): (2, 3),
    (0, 2): (4.5, 6),
    (1, 1): (3, 4),
    (1, 2): (8, 10),
}


@given(st.integers(0, 10_000))
def test_the_slots_that_end_first_are_considered(seed):
    rng = np.random.default_rng(seed)
    groups = groups_of(rng.random((12, 3)) + 0.1, np.full(12, 99.0), windows=3)
    windows = [Window(kind, begin_s=float(rng.random())) for kind in range(3)]
    ends_s = sorted(
        window.begin_s + order * length_s
        for window, length_s in zip(windows, groups.average_s(), strict=True)
        for order in range(1, 13)
    )
    slots = first_slots(groups, windows)
    found_s = sorted(slots.begin_s + groups.average_s()[slots.window])
    assert found_s == pytest.approx(ends_s[: len(found_s)])


def test_table_6_and_its_optimum():
    slots = first_slots(TABLE_5, A_AND_B)
    found = [Slot(*each) for each in zip(*slots, strict=True)]
    assert found == [Slot(0, 1, 0), Slot(0, 2, 2.5), Slot(1, 1, 0), Slot(1, 2, 3.5)]
    cells = costs(TABLE_5, A_AND_B, slots)
    for column, slot in enumerate(found):
        assert tuple(cells[:, column]) == TABLE_6[slot.window, slot.order]
    assert [slot[:2] for slot in min_cost(TABLE_5, A_AND_B)] == [(0, 1), (1, 1)]


def test_a_busy_gpu_is_planned_from_when_it_is_free():
    busy = [Window(0, begin_s=1.5), Window(1)]
    assert [slot[:2] for slot in min_cost(TABLE_5, busy)] == [(1, 1), (0, 1)]


def test_who_fits_nowhere_is_not_planned():
    groups = groups_of([[2, 3], [3, 4]], [5, 5], fits=np.array([[False, False], [True, True]]))
    for planner in (min_cost, first_in_first_out, earliest_deadline_first):
        assert [slot and slot[:2] for slot in planner(groups, A_AND_B)] == [None, (0, 1)]


def test_by_arrival_and_by_deadline():
    groups = groups_of([[2.0], [3.0], [4.0]], [90, 20, 50], windows=1)
    assert [s.order for s in first_in_first_out(groups, [Window(0)])] == [1, 2, 3]
    assert [s.order for s in earliest_deadline_first(groups, [Window(0)])] == [3, 1, 2]
    assert [s.begin_s for s in earliest_deadline_first(groups, [Window(0)])] == [7, 0, 3]


def test_between_equals_it_is_who_is_before_in_line():
    groups = groups_of([[2.0], [9.0], [4.0]], [math.inf] * 3, windows=1)
    assert [slot.order for slot in min_cost(groups, [Window(0)])] == [1, 2, 3]


seconds = st.integers(1, 50)


@given(
    st.lists(st.tuples(seconds, seconds, st.integers(5, 150)), min_size=1, max_size=4),
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_no_other_assignment_costs_less(jobs, begins):
    groups = groups_of([job[:2] for job in jobs], [job[2] for job in jobs])
    windows = [Window(0, begins[0]), Window(1, begins[1])]
    average = groups.average_s()
    slots = [
        Slot(n, order, windows[n].begin_s + (order - 1) * average[n])
        for n, order in product((0, 1), range(1, len(jobs) + 1))
    ]
    cells = costs(groups, windows, Slots(*map(np.array, zip(*slots, strict=True))))
    least = min(
        sum(cells[row, column] for row, column in enumerate(chosen))
        for chosen in permutations(range(len(slots)), len(jobs))
    )
    chosen = [slots.index(slot) for slot in min_cost(groups, windows)]
    assert sum(cells[row, column] for row, column in enumerate(chosen)) <= least + 1e-2


@given(st.integers(1, 40), st.integers(1, 12), st.floats(0.0, 9.0))
def test_slots_are_as_many_as_groups_and_a_few_more(count, windows, time_s):
    """Also if all groups take no time at all, and all slots end at once."""
    groups = groups_of([[time_s]] * count, [9] * count, windows=windows)
    there = [Window(0, begin_s=n % 3) for n in range(windows)]
    slots = first_slots(groups, there)
    assert count <= len(slots.window) <= min(count * windows, 1.5 * count + 1 + 2 * windows)
    assert {(n, 1) for n in range(windows)} <= set(zip(slots.window, slots.order, strict=True))


# -- the stages of a job


def test_stages_as_told_for_the_kind_or_for_any():
    speeds = Speeds({})
    here, there = StageTimes(1, 2, 3, gpu="a"), StageTimes(4, 5, 6, gpu="b")
    assert speeds.on((here, there), "b") == there
    anywhere = StageTimes(7, 8, 9)
    assert speeds.on((here, anywhere), "b") == anywhere


def test_passes_are_scaled_as_other_jobs_have_it_and_nothing_else_is():
    told = [
        queued(1, stages=(StageTimes(1, 1, 1, gpu="a"), StageTimes(5, 2, 2, gpu="b"))),
        queued(2, stages=(StageTimes(1, 1, 1, gpu="a"), StageTimes(5, 3, 5, gpu="b"))),
        queued(3, stages=(StageTimes(1, 1, 1, gpu="a"),)),
    ]
    speeds = Speeds.compare(told)
    assert speeds.ratios == {("a", "b"): 3.0, ("b", "a"): (0.5 + 0.25) / 2}
    lone = StageTimes(1, 10, 20, 7, "backward", "a")
    assert speeds.on((lone,), "b") == StageTimes(1, 30, 60, 7, "backward", "b")
    assert speeds.on((lone,), "c") == replace(lone, gpu="c"), "nobody knows: as fast"


def test_one_owner_s_slip_moves_nobody_else_s_plan():
    """Job 1 claims to compute for ever, or never, on kind b; job 2 is known only on kind a."""
    known_on_a = (StageTimes(0.0, 1.0, 1.0, gpu="a"),)
    for slip in (StageTimes(1.0, 0.0, 0.0, gpu="b"), StageTimes(0.0, 0.0, 3e8, gpu="b")):
        jobs = [queued(1, stages=(*known_on_a, slip)), queued(2, stages=known_on_a)]
        for kinds in ("ab", "ba"):
            placements = where(plan(view_of(2, jobs, kinds=kinds), packs=False))
            assert sorted(placements.values()) == [(0,), (1,)]
    told = [queued(n, stages=(*known_on_a, StageTimes(0, n, n, gpu="b"))) for n in (2, 3, 50)]
    assert Speeds.compare(told).ratios["a", "b"] == 3.0


def test_an_iteration_of_next_to_no_time_is_not_known():
    assert find_stage_times(queued(1, stages=(StageTimes(1e-320, 0.0, 0.0),)), "a", Links()) == ()


def test_speeds_are_compared_by_times_under_a_second_too():
    told = [queued(1, stages=(StageTimes(0, 0.1, 0.2, gpu="a"), StageTimes(0, 0.2, 0.4, gpu="b")))]
    assert Speeds.compare(told).ratios == pytest.approx({("a", "b"): 2.0, ("b", "a"): 0.5})


def test_stages_from_utilisation():
    profile = Profile(200.0, 9_000, (Indicator("gpu_utilization", 0.6, 0.01),))
    job = queued(1, stages=(), profile=profile, steps=(StepTime(2, 9.0), StepTime(1, 5.0)))
    (found,) = find_stage_times(job, "a", Links())
    assert found == StageTimes(2.0, pytest.approx(1.0), pytest.approx(2.0), gpu="a")
    assert found.forward_s / (found.forward_s + found.backward_s) == pytest.approx(FORWARD)
    elsewhere = StepTime(1, 2.0, "b")
    assert find_stage_times(
        replace(job, steps=(StepTime(1, 5.0, "a"), elsewhere)), "a", Links()
    ) == (found,)
    (assumed,) = find_stage_times(replace(job, steps=()), "a", Links())
    assert assumed.load_s == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("sent", "wants", "forward_s", "backward_s", "communication_s"),
    [
        ({"nvlink_tx_mib_s": 100.0}, 2, 1.0, 2.0, 0.5),
        ({"pcie_tx_mib_s": 4.0}, 2, 1.0, 2.0, 0.5),
        ({"pcie_rx_mib_s": 40.0}, 2, 1.0, 2.0, 0.0),  # data
        ({"nvlink_tx_mib_s": 100.0}, 1, 1.0, 2.0, 0.0),  # whom should it send to?
        ({"nvlink_tx_mib_s": 500.0}, 2, 0.5, 1.0, 2.5),  # does not fit beside the backward pass
        ({"nvlink_tx_mib_s": 9e9}, 2, 0.0, 0.0, 3.0),
    ],
)
def test_communication_by_what_the_links_counted(
    sent, wants, forward_s, backward_s, communication_s
):
    """Of steps of 5 s, kernels run for 3 s, NCCL's among them."""
    told = {"gpu_utilization": 0.6, **sent}
    profile = Profile(
        200.0, 9_000, tuple(Indicator(name, mean, 0.0) for name, mean in told.items())
    )
    job = queued(1, wants=wants, stages=(), profile=profile, steps=(StepTime(1, 5.0),))
    (found,) = find_stage_times(job, "a", Links(within_mib_s=1000.0, between_mib_s=40.0))
    assert found.load_s == pytest.approx(2.0)
    times = found.forward_s, found.backward_s, found.communication_s
    assert times == pytest.approx((forward_s, backward_s, communication_s))


def test_a_profile_is_of_the_kind_that_it_was_taken_on():
    profile = Profile(200.0, 9_000, (Indicator("gpu_utilization", 0.6, 0.01),), gpu="b")
    (found,) = find_stage_times(queued(1, stages=(), profile=profile), "a", Links())
    assert found.gpu == "b"
    (found,) = find_stage_times(
        queued(1, stages=(), profile=replace(profile, gpu="")), "a", Links()
    )
    assert found.gpu == "a", "released ones do not say"


@pytest.mark.parametrize(
    "changes",
    [{}, {"profile": Profile(200.0, 9_000)}, {"stages": (StageTimes(0, 0, 0),)}],
)
def test_of_others_nothing_is_known(changes):
    assert find_stage_times(queued(1, **{"stages": (), **changes}), "a", Links()) == ()


# -- how long a job has left


def test_what_a_job_has_left():
    assert left_s(queued(1, served_s=100.0), 5.0, 600.0) == 500
    job = running(7, 0)
    assert left_s(job, 400.0, 1000.0) == 600
    assert left_s(job, 4000.0, 1000.0) == 400, "it outlived its prediction"
    assert left_s(changed(job, stop=Cause.CANCELLED), 400.0, 1000.0) == 0


def test_on_another_kind_it_takes_as_much_longer_as_its_iterations():
    stages = (StageTimes(1, 3, 6, gpu="a"), StageTimes(1, 13, 26, gpu="b"))
    job = queued(1, 100.0, deadline=150.0, stages=stages)
    found = plan(view_of(1, [job], kinds="b"))[1]
    assert "planned_end" in codes(found.explanation), "predicted for the only kind that there is"
    slow = plan(view_of(2, [job], running(9, 0, exclusive=True), kinds="ab"))[1]
    assert codes(slow.explanation)["deadline"] == Reason("deadline", 150.0, 400.0, "s")


# -- packing


def remembering(view, *pairs):
    return replace(view, memory=Memory(pairs))


def beside(*residents, queue=None, **changes):
    """Which jobs join, with one GPU each; job 1 is the partner of the last."""
    view = view_of(len(residents), queue or [queued(1, stages=LOADS)], *residents, **changes)
    return plan(remembering(view, (residents[-1].id, 1)))


def test_a_job_that_joins_is_told_with_whom_and_what_it_gains():
    placement = beside(running(9, 0))[1]
    assert where({1: placement}) == {1: (0,)}
    reason = codes(placement.explanation)["packed"]
    assert (reason.detail, reason.need) == ("job 9", 1.0) and reason.have > 1.5
    assert "close_deadlines" not in codes(placement.explanation), "neither has one"
    assert codes(placement.explanation)["predicted"].have == 100
    close = beside(running(9, 0, deadline=1000.0), queue=[queued(1, stages=LOADS, deadline=2000.0)])
    assert codes(close[1].explanation)["close_deadlines"].have == 0.5


def test_who_has_no_partner_waits_and_is_told_when_its_turn_is():
    view = view_of(1, [queued(1, stages=NOTHING_LEFT)], running(9, 0, stages=NOTHING_LEFT))
    placement = plan(view)[1]
    assert placement.gpus == ()
    assert placement.reasons == (
        Reason("planned_start", 1, 1000.0, "s", "job 9"),
        Reason("no_partner"),
    )
    assert refused(placement) == {0: ["busy"]}


def test_only_jobs_of_as_many_gpus_are_packed():
    for wants, packed in ((1, True), (2, False)):
        jobs = [queued(1), queued(2, wants=wants, stages=LOADS)]
        view = view_of(2, jobs, running(9, 0, exclusive=True), running(8, 1, exclusive=True))
        assert ("packed" in codes(plan(view)[1].reasons)) == packed


@pytest.mark.parametrize("scope", ["gpu", "node"])
def test_under_mps_jobs_of_several_gpus_share_and_two_users_do_not(scope):
    mps = replace(SETTINGS, collocation=Collocation(mps=True, mps_scope=scope))
    wide = view_of(2, [queued(1, wants=2, stages=LOADS)], running(9, 0, 1), settings=mps)
    assert where(plan(remembering(wide, (9, 1)))) == {1: (0, 1)}
    for uid, found in ((1000, (0,)), (1001, ())):
        queue = [queued(1, stages=LOADS, uid=uid)]
        assert where(beside(running(9, 0), queue=queue, settings=mps)) == {1: found}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"stages": ()}, "unprofiled"),
        ({"estimate": None}, "unprofiled"),
        ({"prediction": None}, "unpredicted"),
    ],
)
def test_nobody_is_packed_with_one_that_is_not_known(changes, code):
    assert where(beside(running(9, 0, **changes))) == {1: ()}
    placement = beside(running(9, 0), queue=[queued(1, **changes)])[1]
    assert codes(placement.reasons)[code].detail == "this job" and not placement.gpus


def test_who_must_be_alone_is_not_packed():
    assert where(beside(running(9, 0, exclusive=True))) == {1: ()}
    assert where(beside(running(9, 0), queue=[queued(1, stages=LOADS, exclusive=True)])) == {1: ()}
    jobs = [queued(1, exclusive=True), queued(2, stages=LOADS)]
    assert "partner" not in codes(plan(view_of(1, jobs))[2].reasons)
    profiled = running(9, 0, profiling=ProfilingRun(99.0, evict=False))
    assert where(beside(profiled)) == {1: ()}
    assert where(beside(running(9, 0, stop=Cause.CANCELLED))) == {1: ()}
    one_each = replace(SETTINGS, collocation=Collocation(max_jobs_per_gpu=1))
    assert where(beside(running(9, 0), settings=one_each)) == {1: ()}
    assert where(plan(view_of(1, [queued(1, stages=LOADS)], running(9, 0)), packs=False)) == {1: ()}


def test_two_on_a_gpu_at_most():
    view = view_of(1, [queued(1, stages=LOADS)], running(8, 0), running(9, 0, stages=LOADS))
    assert where(plan(remembering(view, (9, 1)))) == {1: ()}


def test_memory_must_be_enough_for_both_and_the_admin_s_margin():
    for free_mib, found in ((10_000, (0,)), (9_999, ())):
        assert where(beside(running(9, 0), gpu0={"free_mib": free_mib})) == {1: found}
    for margin_mib, found in ((10_000, (0,)), (10_001, ())):
        wanted = Preconditions(min_free_mib=0, margin_mib=margin_mib)
        settings = Settings(policies={"cuckoo": wanted})
        assert where(beside(running(9, 0), settings=settings)) == {1: found}
    full = Settings(policies={"cuckoo": Preconditions(min_free_mib=20_001)})
    assert where(beside(running(9, 0), settings=full)) == {1: ()}
    again = queued(1, stages=LOADS, retry=Retry("oom", margin_mib=500))
    for free_mib, found in ((10_500, (0,)), (10_499, ())):
        view = beside(running(9, 0), queue=[again], gpu0={"free_mib": free_mib})
        assert where(view) == {1: found}


def test_two_in_line_are_packed_only_for_a_gpu_that_has_room_for_both():
    for need_mib, partner in ((20_480, True), (20_481, False)):
        estimate = Estimate(need_mib, "trace")
        jobs = [queued(1, estimate=estimate), queued(2, stages=LOADS, estimate=estimate)]
        view = view_of(1, jobs, gpu0={"gpu": a_gpu(0, 40_960)})
        assert ("partner" in codes(plan(view)[2].reasons)) == partner


# -- pairs in line


def test_of_a_pair_in_line_the_one_with_the_earlier_deadline_starts_and_the_other_joins():
    jobs = [queued(1, stages=LOADS, deadline=5000.0), queued(2, deadline=4000.0)]
    first = plan(view_of(1, jobs))
    assert where(first) == {2: (0,), 1: ()}
    assert codes(first[2].explanation)["packed"].detail == "job 1"
    assert codes(first[1].reasons)["partner"].detail == "job 2"
    fresh = changed(jobs[1], state=JobState.STARTING, gpus=(a_gpu(0).id,), started_at=0.0)
    settling = Reason("settling", 30, 10, "s", "job 2")
    then = view_of(1, jobs[:1], fresh, now=10.0, gpu0={"settling": settling})
    then = remembering(then, (2, 1))
    waits = plan(then)[1]
    assert waits.gpus == () and refused(waits) == {0: ["settling"]}
    assert codes(waits.reasons)["partner"].detail == "job 2"
    later = remembering(view_of(1, jobs[:1], fresh, now=40.0), (2, 1))
    assert where(plan(later)) == {1: (0,)}


def after(view, **changes):
    """The view with what the policy remembers of its plan."""
    told = [each for each in in_turns(view.settings).plan(view) if isinstance(each, Remember)]
    return replace(view, memory=told[-1].memory if told else view.memory, **changes)


def joining(view):
    """Who is to join whom by the next plan."""
    return dict(after(view).memory.joining)


def test_only_the_partner_joins():
    """Job 3 would gain as much, and is ahead of job 1 in the queue."""
    jobs = [queued(n, stages=LOADS, deadline=5000.0 - n) for n in (1, 3)]
    resident = running(9, 0, deadline=9000.0)
    view = view_of(1, jobs, resident)
    assert where(plan(view)) == {3: (), 1: ()}, "nobody was packed with it"
    view = replace(view, memory=Memory(((9, 1),)))
    assert where(plan(view)) == {1: (0,), 3: ()}
    assert codes(plan(view)[1].explanation)["packed"].detail == "job 9"


def test_partners_are_remembered_until_one_has_joined_or_cannot_any_more():
    jobs = [queued(1, stages=LOADS, deadline=5000.0), queued(2, deadline=4000.0)]

    promised = Memory(((2, 1),))
    assert joining(view_of(1, jobs)) == {2: 1}
    first = changed(jobs[1], state=JobState.RUNNING, gpus=(a_gpu(0).id,), started_at=0.0)
    settling = {"settling": Reason("settling", 30, 10, "s", "job 2")}
    waits = view_of(1, [jobs[0], queued(3)], first, gpu0=settling)
    waits = replace(waits, memory=promised)
    assert joining(waits) == {2: 1}, "nothing has changed"
    assert codes(plan(waits)[1].reasons)["partner"].detail == "job 2"
    assert "packed" not in codes(plan(waits)[3].reasons), "job 1 has a partner"
    joins = replace(view_of(1, jobs[:1], first), memory=promised)
    assert joining(joins) == {}
    over = replace(view_of(1, jobs[:1]), memory=promised)
    assert where(plan(over)) == {1: (0,)} and joining(over) == {}


@pytest.mark.parametrize(
    ("first", "second"), [({}, {"stages": ()}), ({}, {"prediction": None}), ({"stages": ()}, {})]
)
def test_a_partner_is_let_go_once_too_little_is_known_of_either(first, second):
    """It could only wait for the other's end, although GPU 1 is idle."""
    view = view_of(2, [queued(1, **second)], running(9, 0, **first))
    view = replace(view, memory=Memory(((9, 1),)))
    assert where(plan(view)) == {1: (1,)}
    assert joining(view) == {}


def test_a_partner_whose_memory_no_longer_fits_is_let_go():
    """Job 9 takes more than expected, so that job 1 could only wait for its end."""
    jobs, full = [queued(1)], {"free_mib": 9_000}
    view = view_of(2, jobs, running(9, 0), gpu0=full)
    view = replace(view, memory=Memory(((9, 1),)))
    assert joining(view) == {}
    assert where(plan(after(view))) == {1: (1,)}
    settling = full | {"settling": Reason("settling", 30, 10, "s", "job 9")}
    early = view_of(2, jobs, running(9, 0), gpu0=settling)
    early = replace(early, memory=Memory(((9, 1),)))
    assert joining(early) == {9: 1}


def test_a_partner_is_let_go_while_no_gpu_is_in_service():
    view = remembering(view_of(1, [queued(1)], running(9, 0), gpu0={"drained": "x"}), (9, 1))
    assert where(plan(view)) == {1: ()}
    assert joining(view) == {}


def test_the_next_turn_is_when_both_partners_are_done():
    """Two of a kind that only compute gain nothing: together they take longer than 1400 s."""
    second, later = queued(1, 400.0, stages=NOTHING_LEFT), queued(3, stages=NOTHING_LEFT)
    resident = running(9, 0, stages=NOTHING_LEFT)
    settling = {"settling": Reason("settling", 30, 10, "s", "job 9")}
    view = view_of(1, [second, later], resident, gpu0=settling)
    planned = codes(plan(replace(view, memory=Memory(((9, 1),))))[3].reasons)["planned_start"]
    assert planned.need == 1 and planned.have > 1400
    assert codes(plan(replace(view, queue=(later,)))[3].reasons)["planned_start"].have == 1000


def test_lambda_is_the_admin_s():
    told = CuckooSettings(lambda_gpu=1.7, lambda_network=1.2)
    assert cuckoo(SETTINGS, told).packer.model == Asynchronous(gpu=1.7, network=1.2)
    assert made(SETTINGS).packer.model == Asynchronous()


def test_close_deadlines_weigh_as_much_as_the_admin_wants():
    """Job 2 is the more efficient partner for job 1; job 3 has the same deadline."""
    mixed = (StageTimes(5.0, 1.6, 3.4),)
    jobs = [
        queued(1, stages=LOADS, deadline=5000.0),
        queued(2, deadline=100_000.0),
        queued(3, stages=mixed, deadline=5000.0),
    ]
    for weight, partner in ((1.0, "job 2"), (0.6, "job 3")):
        settings = replace(SETTINGS, plugins={"policies.cuckoo": {"weight": weight}})
        placements = plan(view_of(1, jobs, settings=settings))
        told = (*placements[1].explanation, *placements[1].reasons)
        assert codes(told)["packed"].detail == partner


def test_of_a_pair_the_one_that_does_not_yield_starts():
    loader = queued(2, nice=5, deadline=10.0, stages=LOADS)
    assert where(plan(view_of(1, [queued(1), loader]))) == {1: (0,), 2: ()}
    again = queued(1, retry=Retry("oom"))
    assert where(plan(view_of(1, [again, queued(2, deadline=10.0, stages=LOADS)])))[1] == (0,)


def test_jobs_that_can_never_start_do_not_keep_others_packed():
    large = [queued(n, estimate=Estimate(60_000, "x", firm=True)) for n in (5, 6)]
    placements = plan(view_of(2, [queued(1), queued(2, stages=LOADS), *large]))
    assert where(placements) == {1: (0,), 2: (1,), 5: (), 6: ()}


def test_a_pair_takes_a_gpu_that_holds_one_of_them():
    """The other one may join elsewhere. Four jobs of 10 GB, and GPUs of 40 and 16 GB."""
    cards = {f"gpu{n}": {"gpu": a_gpu(n, mib)} for n, mib in enumerate((40_960, 16_384))}
    jobs = [queued(n, stages=LOADS if n % 2 else COMPUTES) for n in range(1, 5)]
    placements = where(plan(view_of(2, jobs, **cards)))
    assert sorted(filter(None, placements.values())) == [(0,), (1,)]


def test_nobody_is_packed_where_nobody_can_join():
    mig = {"gpu0": {"gpu": a_gpu(0, parent="card")}}
    placements = plan(view_of(1, [queued(1), queued(2, stages=LOADS)], **mig))
    assert "no_partner" in codes(placements[2].reasons)


def test_nobody_is_packed_while_there_are_gpus_for_all():
    jobs = [queued(1), queued(2, stages=LOADS)]
    assert where(plan(view_of(2, jobs))) == {1: (0,), 2: (1,)}
    assert where(plan(view_of(2, [queued(1, stages=LOADS)], running(9, 0)))) == {1: (1,)}


def test_the_least_efficient_pair_is_taken_apart():
    mixed = (StageTimes(4.0, 2.0, 4.0),)
    jobs = [queued(1, stages=LOADS), queued(2), queued(3, stages=mixed), queued(4, stages=mixed)]
    placements = plan(view_of(3, jobs))
    assert sorted(where(placements).values()) == [(), (0,), (1,), (2,)]
    assert codes(placements[2].reasons)["partner"].detail == "job 1"


def test_a_faster_kind_counts_for_more():
    """A is three times as fast, so it is worth three GPUs: the two jobs are not packed, and both
    run there, one after the other."""
    stages = lambda load: (  # noqa: E731
        StageTimes(0.0, 10.0 - load, load, gpu="a"),
        StageTimes(0.0, 3 * (10.0 - load), 3 * load, gpu="b"),
    )
    jobs = [queued(1, 20.0, stages=stages(4.0)), queued(2, 30.0, stages=stages(5.0))]
    placements = plan(view_of(2, jobs, kinds="ab"))
    assert where(placements) == {1: (0,), 2: ()}
    assert codes(placements[2].reasons)["planned_start"].need == 2
    assert where(plan(view_of(2, jobs, kinds="ab"), heterogeneous=False)) == {1: (0,), 2: (1,)}


def test_a_pair_is_for_the_kind_that_is_free_or_else_for_the_best_one():
    """On kind b both only compute."""
    first = (StageTimes(9.0, 0.5, 0.5, gpu="a"), StageTimes(0.0, 5.0, 5.0, gpu="b"))
    second = (StageTimes(0.0, 5.0, 5.0, gpu="a"), StageTimes(0.0, 5.0, 5.0, gpu="b"))
    jobs = [queued(1, stages=first), queued(2, stages=second)]
    rigid = {"exclusive": True}
    for on, packed in ((1, True), (0, False)):  # the GPU that is busy
        view = view_of(2, jobs, running(9, on, **rigid), kinds="ab")
        waits = next(p for p in plan(view).values() if not p.gpus)
        assert ("partner" in codes(waits.reasons)) == packed
    both_busy = view_of(2, jobs, running(8, 0, **rigid), running(9, 1, **rigid), kinds="ab")
    assert "packed" in codes(plan(both_busy)[1].reasons)


# -- turns


def test_a_deadline_goes_before_a_longer_wait():
    jobs = [queued(1, 500.0), queued(2, 500.0, deadline=600.0)]
    view = view_of(1, jobs, settings=replace(SETTINGS, collocation=Collocation(max_jobs_per_gpu=1)))
    assert where(plan(view)) == {2: (0,), 1: ()}
    assert where(plan(view, planner=first_in_first_out)) == {2: (), 1: (0,)}
    kept = codes(plan(view)[2].explanation)
    assert kept["planned_end"] == Reason("planned_end", 600.0, 500.0, "s")
    lost = codes(plan(view, planner=first_in_first_out)[2].reasons)
    assert lost["deadline"] == Reason("deadline", 600.0, 1000.0, "s")


def test_a_wait_is_until_the_predicted_end_of_those_who_are_there():
    view = view_of(1, [queued(1)], running(9, 0, exclusive=True), now=400.0)
    assert codes(plan(view)[1].reasons)["planned_start"] == Reason(
        "planned_start", 1, 600.0, "s", "job 9"
    )
    late = view_of(1, [queued(1)], running(9, 0, exclusive=True), now=1500.0)
    assert codes(plan(late)[1].reasons)["planned_start"].have == pytest.approx(150.0)


def test_it_asks_to_be_asked_when_a_job_should_have_ended():
    view = view_of(2, [queued(1)], running(8, 0, exclusive=True), running(9, 1, left_s=700.0))
    view = replace(view, queue=(queued(1, exclusive=True),))
    assert [p.at for p in made(SETTINGS).plan(view) if isinstance(p, AskAgain)] == [700.0]
    idle = view_of(1, [queued(1)])
    assert not any(isinstance(p, AskAgain) for p in made(SETTINGS).plan(idle))


def test_while_no_job_can_start_turns_are_told_once_a_minute():
    view = view_of(1, [queued(1, exclusive=True)], running(9, 0, exclusive=True))
    assert where(plan(view)) == {1: ()}
    told = after(view)
    soon = replace(told, now=30.0)
    assert plan(soon) == {}, "it has been told"
    assert [p.at for p in made(SETTINGS).plan(soon) if isinstance(p, AskAgain)] == [1000.0]
    assert where(plan(replace(told, now=60.0))) == {1: ()}
    more = replace(soon, queue=(*view.queue, queued(2, exclusive=True)))
    assert where(plan(more)) == {1: (), 2: ()}, "job 2 has not"
    free = replace(soon, nodes=view_of(1, ()).nodes, running=())
    assert where(plan(free)) == {1: (0,)}


def test_a_large_job_s_gpus_are_kept_for_it():
    """Job 1 is first in line and wants both GPUs, of which one is busy for 1000 s."""
    large, busy = queued(1, 500.0, wants=2, deadline=2000.0), running(9, 1, exclusive=True)
    placements = plan(view_of(2, [large, queued(2, 1001.0, deadline=9000.0)], busy))
    assert where(placements) == {1: (), 2: ()}
    assert codes(placements[1].reasons)["planned_start"].have == 1000
    assert codes(placements[2].reasons)["planned_start"].have == 1500
    first = [large, queued(2, 1100.0, deadline=1000.0)]
    assert where(plan(view_of(2, first, busy))) == {2: (0,), 1: ()}


def test_gpus_kept_for_a_large_job_are_lent_to_those_that_end_before():
    """Job 1 wants all three GPUs, one of which is busy for 1000 s."""
    large, busy = queued(1, 500.0, wants=3, deadline=2000.0), running(9, 2, exclusive=True)
    long = queued(2, 1001.0, stages=NOTHING_LEFT, deadline=8000.0)
    short = queued(3, 1000.0, stages=NOTHING_LEFT, deadline=9000.0)
    placements = plan(view_of(3, [large, long, short], busy))
    assert where(placements) == {3: (0,), 1: (), 2: ()}
    assert codes(placements[1].reasons)["planned_start"].have == 1000
    two = queued(4, 900.0, wants=2, stages=NOTHING_LEFT, deadline=9500.0)
    assert where(plan(view_of(3, [large, two], busy))) == {4: (0, 1), 1: ()}
    for each_s, found in ((500.0, [(0,), (1,)]), (990.0, [])):
        pairs = [queued(n, each_s, stages=LOADS if n % 2 else COMPUTES) for n in range(4, 8)]
        placements = plan(view_of(3, [large, *pairs], busy))
        assert sorted(filter(None, where(placements).values())) == found, "both end in time"


def test_nothing_is_lent_for_long_while_nobody_knows_when_the_large_job_can_start():
    """Job 9 has outlived its prediction, or has none. Short jobs, of which each may do the same,
    must not keep job 1 out for good."""
    large, short = queued(1, 500.0, wants=2), queued(2, 5.0, stages=NOTHING_LEFT)
    for each in (running(9, 1, left_s=10.0), running(9, 1, left_s=None)):
        assert where(plan(view_of(2, [large, short], each, now=59.0)))[2] == (0,)
        assert where(plan(view_of(2, [large, short], each, now=600.0))) == {1: (), 2: ()}
    late = running(9, 1, left_s=700.0)
    assert where(plan(view_of(2, [large, short], late, now=600.0)))[2] == (0,), "as predicted"
    leaves = running(9, 1, left_s=10.0, stop=Cause.CANCELLED, state=JobState.STOPPING)
    assert where(plan(view_of(2, [large, short], leaves, now=600.0))) == {1: (), 2: ()}, "at once"


def test_gpus_are_lent_to_those_who_suit_them():
    large, busy = queued(1, 500.0, wants=3, deadline=2000.0), running(9, 2, exclusive=True)
    needs = queued(2, estimate=Estimate(30_000, "x", firm=True))
    view = view_of(3, [large, needs], busy, gpu0={"gpu": a_gpu(0, 24_000)})
    assert where(plan(view)) == {2: (1,), 1: ()}


def test_those_who_yield_have_their_turn_after_the_others():
    jobs = [queued(1, nice=5, deadline=10.0, exclusive=True), queued(2, exclusive=True)]
    assert where(plan(view_of(1, jobs))) == {2: (0,), 1: ()}
    again = [queued(1, exclusive=True), queued(2, retry=Retry("oom", exclusive=True))]
    assert where(plan(view_of(1, again))) == {2: (0,), 1: ()}


def test_who_is_to_avoid_a_gpu_gets_another():
    again = queued(1, retry=Retry("oom", avoid=(a_gpu(0).id,)))
    assert where(plan(view_of(2, [again]))) == {1: (1,)}
    assert where(plan(view_of(1, [again]))) == {1: ()}


def test_a_user_s_own_word_on_memory_counts_and_a_guess_does_not_on_an_empty_gpu():
    for firm, found in ((True, ()), (False, (0,))):
        job = queued(1, estimate=Estimate(50_000, "x", firm=firm))
        assert where(plan(view_of(1, [job]))) == {1: found}


def test_of_several_gpus_each_must_suit():
    again = queued(1, wants=2, retry=Retry("oom", avoid=(a_gpu(0).id,)))
    assert where(plan(view_of(3, [again]))) == {1: (1, 2)}
    large = queued(1, wants=2, estimate=Estimate(30_000, "x", firm=True))
    small = {f"gpu{n}": {"gpu": a_gpu(n, 24_000, name="a")} for n in (0, 1)}
    assert where(plan(view_of(4, [large], kinds="aabc", **small))) == {1: (2, 3)}


def test_gpus_of_one_kind_on_one_node_if_there_are_any():
    assert where(plan(view_of(3, [queued(1, wants=2)], kinds="abb"))) == {1: (1, 2)}
    assert where(plan(view_of(2, [queued(1, wants=2)], kinds="ab"))) == {1: (0, 1)}
    nodes = {f"gpu{n}": {"gpu": a_gpu(n, node=name)} for n, name in enumerate("xyy")}
    assert where(plan(view_of(3, [queued(1, wants=2)], **nodes))) == {1: (1, 2)}
    assert where(plan(view_of(3, [queued(1, wants=3)], **nodes))) == {1: (0, 1, 2)}


def test_jobs_of_unknown_duration_are_planned_with_the_mean_of_the_others():
    jobs = [queued(1, None, exclusive=True), queued(2, 300.0, exclusive=True)]
    placements = plan(view_of(1, jobs))
    assert where(placements) == {1: (0,), 2: ()}
    assert codes(placements[2].reasons)["planned_start"].have == 300
    jobs = [queued(1, None, exclusive=True), queued(2, None, exclusive=True)]
    assert codes(plan(view_of(1, jobs))[2].reasons)["planned_start"].have == UNHEARD_S


# -- profiling


NEW = {"stages": (), "profile": None}


def test_an_unknown_job_is_profiled_where_it_stays_and_one_that_was_told_of_is_not():
    placement = plan(view_of(1, [queued(1, **NEW)], now=50.0))[1]
    assert placement.profiling == ProfilingRun(250.0, evict=False)
    assert placement.explanation[-1] == Reason("profiled_there", 200.0, unit="s")
    assert plan(view_of(1, [queued(1)]))[1].profiling is None
    settings = replace(SETTINGS, profiling=Profiling(largest=1))
    wide = plan(view_of(2, [queued(1, wants=2, **NEW)], settings=settings))[1]
    assert wide.gpus and wide.profiling is None


def test_a_job_profiled_aside_closes_its_node_s_server_to_other_users():
    settings = replace(
        SETTINGS, profiling=Profiling(gpus=1), collocation=Collocation(mps=True, mps_scope="node")
    )
    jobs = [queued(1, stages=(), uid=1000), queued(2, uid=2000)]
    placements = plan(view_of(2, jobs, settings=settings))
    assert where(placements) == {1: (1,), 2: ()}
    assert refused(placements[2])[0] == ["mps_user"]


def test_gpus_set_aside_are_for_profiling_and_nothing_else():
    aside = replace(SETTINGS, profiling=Profiling(gpus=1))
    jobs = [queued(1), queued(2, **NEW), queued(3, **NEW), queued(4, exclusive=True)]
    placements = plan(view_of(2, jobs, settings=aside, now=50.0))
    assert where(placements) == {1: (0,), 2: (1,), 3: (), 4: ()}
    assert placements[2].profiling == ProfilingRun(250.0, evict=True)
    assert placements[3].reasons == (Reason("profiling_gpus", 1, 0, "GPUs"),)
    wide = view_of(2, [queued(1, wants=2)], settings=aside)
    assert where(plan(wide)) == {1: (0, 1)}, "or it could never start"
    drained = view_of(3, [queued(1, wants=2)], settings=aside, gpu0={"drained": "x"})
    assert where(plan(drained)) == {1: (1, 2)}
    never = view_of(2, [queued(1, wants=3), queued(2)], settings=aside, gpu0={"drained": "x"})
    assert where(plan(never)) == {1: (), 2: (1,)}, "who can never start keeps nobody off them"
    nodes = {f"gpu{n}": {"gpu": a_gpu(n, node=name)} for n, name in enumerate("xabb")}
    pool, two = replace(SETTINGS, profiling=Profiling(gpus=3)), [queued(2, wants=2, **NEW)]
    assert where(plan(view_of(4, two, settings=pool, **nodes))) == {2: (2, 3)}, "not on two nodes"
    assert where(plan(view_of(4, two, running(9, 3), settings=pool, **nodes))) == {2: ()}
    behind = view_of(3, [queued(1, wants=3), queued(2, 1001.0)], running(9, 0), settings=aside)
    assert where(plan(behind)) == {1: (), 2: ()}, "all are kept for job 1 until job 9 has ended"


# -- one MPS server per node, which serves one user at a time

NODE = replace(SETTINGS, collocation=Collocation(mps=True, mps_scope="node"))


def nodes_of(queue, *residents, **looks):
    """Two nodes with two GPUs each; the first one's server is the user's of job 9."""
    cards = [a_gpu(n, node=f"node{n // 2}") for n in range(4)]
    served = {f"gpu{n}": {"mps_user": (1000, "ada")} for n in (0, 1)} if residents else {}
    return a_view(gpu_views(cards, residents, half_free, **{**served, **looks}), queue, NODE, 0.0)


def test_a_node_is_for_the_user_of_its_mps_server_and_the_other_for_anyone():
    """Jobs 1 and 2 may not start beside job 9, so they do not take the place of job 3."""
    jobs = [queued(n, uid=2000, stages=NOTHING_LEFT) for n in (1, 2)]
    own = queued(3, uid=1000, stages=NOTHING_LEFT)
    resident = running(9, 0, uid=1000, stages=NOTHING_LEFT)
    assert where(plan(nodes_of([*jobs, own], resident))) == {1: (2,), 2: (3,), 3: (1,)}
    exclusive = [replace(job, spec=replace(job.spec, exclusive=True)) for job in jobs]
    assert where(plan(nodes_of(exclusive[:1], resident))) == {1: (1,)}, "it is no client"


def test_on_an_idle_node_the_first_job_s_user_has_the_server():
    """Jobs 1 and 2 of different users would otherwise both be planned for the first node, where the
    core refuses the second one."""
    jobs = [queued(n, uid=1000 * n, stages=NOTHING_LEFT) for n in (1, 2)]
    assert where(plan(nodes_of(jobs))) == {1: (0,), 2: (2,)}


def test_another_user_waits_for_the_last_client_and_the_next_one_for_that():
    resident = running(9, 0, left_s=500.0, uid=1000, stages=NOTHING_LEFT)
    broken = {f"gpu{n}": {"drained": "x"} for n in (2, 3)}
    first = queued(1, uid=2000, stages=NOTHING_LEFT)
    then = queued(2, 400.0, uid=1000, stages=NOTHING_LEFT)
    told = plan(nodes_of([first, then], resident, **broken))
    assert where(told) == {1: (), 2: ()}
    planned = codes(told[1].reasons)["planned_start"]
    assert (planned.have, planned.detail) == (500.0, "job 9")
    planned = codes(told[2].reasons)["planned_start"]
    assert (planned.have, planned.detail) == (600.0, "job 1")


@pytest.mark.parametrize("scope", ["gpu", "node"])
def test_a_client_left_on_an_mps_server_takes_no_turn_from_others(scope):
    """Job 1 may not start there, so its turn is on another GPU, or job 2 has it."""
    settings = replace(SETTINGS, collocation=Collocation(mps=True, mps_scope=scope))
    left = ProcessUse(77, 300, 0.0, user="ada", mps_uid=1000)
    first = queued(1, uid=1001, stages=NOTHING_LEFT)
    second = queued(2, uid=1000, stages=NOTHING_LEFT)
    shown = a_view(gpu_views([a_gpu(0)]), [], settings).gpus[0].sample
    found = {"gpu0": {"sample": replace(shown, processes=(left,))}}
    for gpus, expected in (
        (1, {1: (), 2: (0,)}),
        (2, {1: (1,), 2: (0,)} if scope == "gpu" else {1: (), 2: (0,)}),
    ):
        assert where(plan(view_of(gpus, [first, second], settings=settings, **found))) == expected
    waits = view_of(1, [first], settings=settings, **found)
    gone = view_of(1, [first], settings=settings)
    assert where(plan(replace(after(waits), nodes=gone.nodes))) == {1: (0,)}


# -- what is said, and how much


def test_a_long_line_is_told_in_front():
    jobs = [queued(n, exclusive=True) for n in range(1, 151)]
    placements = plan(view_of(1, jobs))
    assert len(placements) == 1 + TOLD and placements[1].gpus
    assert sum(bool(p.verdicts) for p in placements.values()) == 5
    assert all(p.reasons for p in placements.values() if not p.gpus)


@pytest.mark.parametrize("length", [100, 400])
def test_a_line_of_thousands_is_not_gone_through_to_its_end(length, monkeypatch):
    """What a plan weighs depends on the number of GPUs, not on how many jobs wait."""
    weighed = []

    def counted(groups, windows):
        weighed.append(len(groups.time_s))
        return min_cost(groups, windows)

    wide = [queued(n, wants=2, exclusive=True) for n in range(1, length)]
    jobs = [queued(n, exclusive=True) for n in range(length, 2 * length)]
    never = [queued(n, wants=8) for n in range(2 * length, 3 * length)]
    placements = plan(view_of(3, [*never, *wide, *jobs]), planner=counted)
    assert weighed == [64, 64], "and who can never start is no turn"
    assert where(placements)[1] == (0, 1) and where(placements)[length] == (2,)
    assert len(placements) == 2 + TOLD


# -- variants that the benchmark compares


def test_muri_s_model_and_jobs_kept_in_step():
    """In step, ten short iterations are not done beside one long one: there is little to gain.

    AM: 0.9; 1; 3; 6, for the other order has both compute at once. Muri: 1; 9; 0.1.
    """
    short = (StageTimes(0.9, 0.03, 0.07),)
    view = view_of(1, [queued(1, stages=short)], running(9, 0, left_s=9000.0))
    view = remembering(view, (9, 1))
    packer = in_turns(SETTINGS).packer
    free = codes(plan(view)[1].explanation)["packed"].have
    in_step = codes(plan(view, packer=replace(packer, in_step=True))[1].explanation)["packed"].have
    assert in_step == pytest.approx(11 / 10.9) and free > 1.5
    muri = replace(packer, model=Exclusive(), in_step=True)
    assert codes(plan(view, packer=muri)[1].explanation)["packed"].have == pytest.approx(11 / 10.1)


# -- as a plugin


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(collocation=Collocation(mps=True)),
        Settings(limits=Limits(preemption=True)),
        Settings(profiling=Profiling(gpus=2)),
        SETTINGS,
    ],
)
def test_it_is_a_sound_policy(settings):
    check_policy(made(settings), settings, views=50)
    for planner in (first_in_first_out, earliest_deadline_first):
        check_policy(replace(made(settings), planner=planner), settings, views=25)
