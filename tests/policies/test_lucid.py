"""Lucid, rule by rule on views made for each rule."""

import math
import random
from dataclasses import replace

import pytest

from carma_testing import FakeServer, a_gpu, a_view, changed, check_policy
from carmad.config import Collocation, Limits, Preconditions, Profiling, Settings
from carmad.core.gpus.gpu import GpuSample, Score
from carmad.core.jobs.attempt import Cause, Exit, Mode
from carmad.core.jobs.findings import Estimate, Indicator, Prediction, Profile
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Retry
from carmad.core.jobs.states import JobState
from carmad.core.messages import Trained
from carmad.core.rules.limits import Reservation, slots
from carmad.learning.files import decode_model, find_model
from carmad.learning.models import Additive, Node, Tree
from carmad.plugin import AskAgain, Placement, Preemption, ProfilingRun, Reason
from carmad.store import codec
from policies.lucid import LucidSettings, traits
from policies.lucid.policy import REPORTED, VERDICTS, Lucid
from tests.planning import gpu_views, queued, running_on, where

S = JobState
# Tiny up to a utilisation of 0.4, Medium up to 0.8, else Jumbo.
TREE = Tree(
    "by hand",
    "nobody",
    ("gpu_utilization", "amp"),
    ("tiny", "medium", "jumbo"),
    (
        Node((9, 8, 7), 0, 0.4, 1, 2),
        Node((9, 0, 0)),
        Node((0, 8, 7), 0, 0.8, 3, 4),
        Node((0, 8, 0)),
        Node((0, 0, 7)),
    ),
    24,
    0.0,
)
TINY, MEDIUM, JUMBO = 0.3, 0.6, 0.9
NOW = 7 * 86_400.0


def profile(utilization, peak_mib=4_000, variance=0.0, **more):
    told = {"gpu_utilization": utilization, "memory_utilization": utilization / 2} | more
    return Profile(
        200.0, peak_mib, tuple(Indicator(name, mean, variance) for name, mean in told.items())
    )


def job(
    id=1, wants=1, utilization: float | None = MEDIUM, seconds: float | None = 1000.0, **changes
):
    known = {
        "profile": None if utilization is None else profile(utilization),
        "prediction": None if seconds is None else Prediction(seconds, "history"),
        "estimate": Estimate(4_000, "declared"),
    }
    return queued(id, wants, **(known | changes))


def running(id, *gpus, **changes):
    began = running_on(*gpus) | {"started_at": float(id)}
    return job(id, wants=changes.pop("wants", len(gpus)), **(began | changes))


def view_of(gpus, queue, residents=(), settings=None, models=None, history=None, **looks):
    """`gpus` GPUs, or as many on each node as a list says."""
    per_node = [gpus] if isinstance(gpus, int) else gpus
    nodes = [f"node{n}" for n, count in enumerate(per_node) for _ in range(count)]
    cards = [a_gpu(n, node=node) for n, node in enumerate(nodes)]
    views = gpu_views(cards, residents, lambda jobs: 40_960 - 4_000 * jobs, NOW, **looks)
    models = {"packing": TREE} if models is None else models
    return a_view(views, queue, settings, NOW, history, models)


def placements(plan):
    return [each for each in plan if isinstance(each, Placement)]


def plan(*args, policy=None, **kwargs):
    return (policy or Lucid()).plan(view_of(*args, **kwargs))


def refused(plan, id=1, gpu=0):
    """The reasons against one GPU for one job."""
    (placement,) = (p for p in placements(plan) if p.job == id)
    return next(v.refused for v in placement.verdicts if v.gpu == a_gpu(gpu).id)


def codes(reasons):
    return [reason.code for reason in reasons]


def test_a_job_does_not_join_one_that_is_being_stopped():
    neighbour = changed(running(9, 0), stop=Cause.CANCELLED)
    assert Reason("busy", 0, 1, "jobs", "job 9") in refused(plan(1, [job()], [neighbour]))


# -- what every policy must do


@pytest.mark.parametrize("sharing", ["affine", "naive", "off"])
@pytest.mark.parametrize(
    ("settings", "own"),
    [
        (Settings(), LucidSettings()),
        (
            Settings(profiling=Profiling(gpus=2, largest=1), limits=Limits(preemption=True)),
            LucidSettings(),
        ),
        (Settings(), LucidSettings(off_below=1.0)),
    ],
)
def test_conformance(settings, own, sharing):
    check_policy(Lucid(settings=own, sharing=sharing), settings, views=60)


def test_order_is_gpus_times_predicted_duration():
    policy = Lucid()
    assert policy.order(job(wants=4, seconds=100)) == 400
    assert policy.order(job(wants=4, seconds=None)) == math.inf
    assert policy.order(job(wants=2, seconds=None, expected_s=30)) == 60  # its owner's word
    assert Lucid(estimated=False).order(job(wants=4, seconds=100)) == 0


# -- sharing scores


def test_scores_are_told_from_the_profile():
    jobs = [job(utilization=each) for each in (TINY, MEDIUM, JUMBO)]
    assert [traits.sharing_score(TREE, each, 1) for each in jobs] == [0, 1, 2]


def test_no_score_without_all_that_the_tree_asks_for():
    assert traits.sharing_score(TREE, job(utilization=None), 1) is None
    silent = job(profile=Profile(0.0, 4_000))
    assert traits.sharing_score(TREE, silent, 1) is None
    by_memory = replace(TREE, features=("memory_share", "amp"))
    assert traits.sharing_score(by_memory, job(profile=profile(TINY, peak_mib=0)), 40_960) is None
    assert traits.sharing_score(by_memory, silent, 40_960) == 0
    nodes = (*TREE.nodes[:2], replace(TREE.nodes[2], feature=1), *TREE.nodes[3:])
    bare = Profile(200.0, 0, (Indicator("gpu_utilization", MEDIUM, 0.0),))
    assert traits.sharing_score(replace(TREE, nodes=nodes), job(profile=bare, amp=True), 1) == 2


def test_memory_counts_as_a_share_of_the_card_and_amp_as_declared():
    by_memory = replace(TREE, features=("memory_share", "amp"))
    assert traits.sharing_score(by_memory, job(), 8_000) == 1  # 0.5
    assert traits.sharing_score(by_memory, job(), 4_500) == 2
    by_amp = replace(TREE, features=("amp", "gpu_utilization"))
    assert [traits.sharing_score(by_amp, job(amp=amp), 1) for amp in (False, True)] == [0, 2]


def test_the_shipped_tree_is_as_the_store_would_read_it_and_steps_back_for_a_learned_one():
    tree = find_model("packing", Tree, {})
    assert decode_model(codec.encode(tree)) == tree
    assert set(tree.classes) == set(traits.SCORES)
    assert find_model("packing", Tree, {"packing": TREE}) is TREE


# -- the binder, rule by rule


def test_an_affine_job_comes_before_an_idle_gpu():
    (placement,) = placements(plan(2, [job()], [running(7, 1)]))
    assert placement.gpus == (a_gpu(1).id,)
    affine, predicted = placement.explanation
    assert affine == Reason("affine", 2, 2, detail="job 7 is Medium, this one Medium")
    assert predicted == Reason("predicted", have=1000.0, unit="s", detail="history")
    assert [(v.rank, v.refused) for v in placement.verdicts] == [(1.0, ()), (0.0, ())]


@pytest.mark.parametrize(
    ("mine", "its", "together"),
    [
        (TINY, TINY, True),
        (TINY, JUMBO, True),
        (JUMBO, TINY, True),
        (MEDIUM, MEDIUM, True),
        (MEDIUM, JUMBO, False),
        (JUMBO, JUMBO, False),
    ],
)
def test_scores_add_up_to_the_capacity_at_most(mine, its, together):
    made = plan(1, [job(utilization=mine)], [running(7, 0, utilization=its)])
    assert where(made) == {1: (0,) if together else ()}


def test_why_two_do_not_match():
    made = plan(1, [job(utilization=JUMBO)], [running(7, 0)])
    detail = "job 7 is Medium, this one Jumbo"
    assert refused(made) == (
        Reason("sharing_score", 2, 3, detail=detail),
        Reason("busy_pair", 1.2, 1.5, detail="job 7"),
    )
    assert placements(made)[0].reasons == (Reason("no_room", 1, 0, "GPUs"),)


def test_the_capacity_is_a_knob():
    policy = Lucid(settings=LucidSettings(sharing_capacity=4, utilization_capacity=2.0))
    assert where(plan(1, [job(utilization=JUMBO)], [running(7, 0)], policy=policy)) == {1: (0,)}


def test_two_jobs_share_only_if_the_gpu_has_time_for_both():
    """Two Medium jobs, whatever the tree says of them."""
    residents = [running(7, 0)]  # 0.6 of the time
    assert where(plan(1, [job(utilization=0.6)], residents)) == {1: (0,)}
    made = plan(1, [job(utilization=0.61)], residents)
    assert refused(made) == (Reason("busy_pair", 1.2, 1.21, detail="job 7"),)
    spared = Lucid(settings=LucidSettings(utilization_capacity=1.0))
    assert where(plan(1, [job(utilization=0.5)], residents, policy=spared)) == {1: ()}


def test_it_joins_the_first_partner_that_leaves_the_gpu_enough_time():
    residents = [running(7, 0, utilization=0.7), running(8, 1, utilization=0.5)]
    made = plan(2, [job(1, utilization=0.7), job(2, utilization=0.5)], residents)
    assert where(made) == {1: (1,), 2: (0,)}


def test_a_job_whose_utilisation_is_not_known_stays_alone():
    """A tree that asks for something else classifies it, but the GPU's time is not known."""
    by_memory = {"packing": replace(TREE, features=("memory_utilization", "amp"))}
    told = Profile(200.0, 4_000, (Indicator("memory_utilization", 0.3, 0.0),))
    made = plan(1, [job(profile=told)], [running(7, 0)], models=by_memory)
    assert refused(made) == (Reason("unprofiled", detail="this job"),)


def test_rule_1_memory():
    residents = [running(7, 0, profile=profile(MEDIUM, peak_mib=20_000))]

    def made(mine_mib, settings=None, **changes):
        mine = job(profile=profile(MEDIUM, peak_mib=mine_mib), **changes)
        return plan(1, [mine], residents, settings)

    assert where(made(20_960)) == {1: (0,)}  # its peak is kept for it, used or not
    assert refused(made(20_961)) == (Reason("memory", 20_961, 20_960, "MiB"),)
    estimated = Estimate(20_961, "trace")
    assert codes(refused(made(1_000, estimate=estimated))) == ["memory"]
    margin = Settings(policies={"lucid": Preconditions(margin_mib=1)})
    assert codes(refused(made(20_960, margin))) == ["memory"]
    burnt = Retry("out of memory", margin_mib=4_096)
    assert refused(made(20_000, retry=burnt))[0].need == 24_096


def test_rule_1_memory_that_is_used_already():
    made = plan(1, [job()], [running(7, 0)], gpu0={"free_mib": 3_999})
    assert refused(made) == (Reason("memory", 4_000, 3_999, "MiB"),)
    made = plan(1, [job()], [running(7, 0)], gpu0={"external_mib": 32_961})
    assert refused(made) == (Reason("memory", 4_000, 3_999, "MiB"),)


def test_without_any_word_on_its_memory_a_job_is_not_packed():
    unknown = {"estimate": None, "profile": profile(MEDIUM, peak_mib=0)}
    made = plan(1, [job(**unknown)], [running(7, 0)])
    assert codes(refused(made)) == ["unprofiled"]


def test_rule_2_equal_demands_and_the_same_gpus():
    residents = [running(6, 0), running(7, 1, 2), running(8, 3)]
    made = plan(4, [job(wants=2)], residents)
    assert where(made) == {1: (1, 2)}
    made = plan(1, [job(wants=1)], [running(7, 0, wants=2, gpus=(a_gpu(0).id, "GPU-gone"))])
    assert Reason("gpu_demand", 1, 2, "GPUs", "job 7") in refused(made)


def test_rule_2_not_one_of_a_partner_s_gpus_may_be_closed():
    residents = [running(7, 0, 1)]
    made = plan(2, [job(wants=2)], residents, gpu1={"drained": "maintenance"})
    assert where(made) == {1: ()}
    assert codes(refused(made, gpu=1)) == ["drained"]


def test_rule_3_no_more_than_two():
    pair = [running(7, 0, utilization=TINY), running(8, 0, utilization=TINY)]
    made = plan(1, [job(utilization=TINY)], pair)
    assert refused(made) == (Reason("jobs_per_gpu", 2, 2, "jobs"),)


def test_a_job_is_joined_once_in_a_plan():
    made = plan(2, [job(1), job(2), job(3)], [running(7, 0), running(8, 1)])
    assert where(made) == {1: (0,), 2: (1,), 3: ()}


def test_rule_4_unstable_jobs_stay_alone():
    swinging = profile(MEDIUM, variance=0.0901)
    made = plan(1, [job(profile=swinging)], [running(7, 0)])
    assert refused(made) == (Reason("unstable", 0.09, 0.0901, detail="this job"),)
    made = plan(1, [job()], [running(7, 0, profile=swinging)])
    assert refused(made) == (Reason("unstable", 0.09, 0.0901, detail="job 7"),)
    assert where(plan(1, [job(profile=profile(MEDIUM, variance=0.09))], [running(7, 0)])) == {
        1: (0,)
    }
    assert codes(refused(plan(1, [job(served_s=5.0)], [running(7, 0)]))) == ["unstable"]


def test_rule_5_distributed_jobs_are_not_joined():
    made = plan([1, 1], [job(wants=2)], [running(7, 0, 1)])
    assert refused(made) == (Reason("distributed", detail="job 7"),)


def test_a_job_does_not_hold_up_one_that_ends_long_before_it():
    made = plan(1, [job(seconds=2000)], [running(7, 0)])
    assert where(made) == {1: (0,)}
    made = plan(1, [job(seconds=2001)], [running(7, 0)])
    assert refused(made) == (Reason("outlasts", 2000, 2001, "GPU-s", "job 7"),)
    made = plan(1, [job(seconds=None)], [running(7, 0)])
    assert refused(made) == (Reason("outlasts", 2000, 0, "GPU-s", "job 7"),)  # JSON has no ∞
    assert where(plan(1, [job(seconds=None)], [running(7, 0, seconds=None)])) == {1: (0,)}


def test_without_profiles_nobody_shares():
    made = plan(1, [job(utilization=None)], [running(7, 0)])
    assert refused(made) == (Reason("unprofiled", detail="this job"),)
    made = plan(1, [job()], [running(7, 0, utilization=None)])
    assert refused(made) == (Reason("unprofiled", detail="job 7"),)


@pytest.mark.parametrize(
    ("resident", "code"),
    [
        ({"exclusive": True}, "exclusive"),
        ({"profiling": ProfilingRun(NOW + 9, evict=False)}, "profiling"),
        ({"state": S.STOPPING, "stop": Cause.CANCELLED}, "busy"),
    ],
)
def test_partners_that_are_none(resident, code):
    assert codes(refused(plan(1, [job()], [running(7, 0, **resident)]))) == [code]


def test_who_must_be_alone_joins_nobody():
    made = plan(2, [job(exclusive=True)], [running(7, 0)])
    assert where(made) == {1: (1,)}
    assert codes(refused(made)) == ["busy"]


def test_of_several_it_joins_the_one_that_has_run_for_longest():
    residents = [
        running(7, 0, started_at=30.0, utilization=TINY),
        running(8, 1, started_at=20.0),
        running(9, 2, started_at=10.0, utilization=JUMBO),
    ]
    assert where(plan(3, [job()], residents)) == {1: (1,)}


def test_others_are_looked_at_where_the_first_has_no_room():
    residents = [running(7, 0), running(8, 1), running(9, 2)]
    full = {"free_mib": 100}
    assert where(plan(3, [job()], residents, gpu0=full, gpu1=full)) == {1: (2,)}


def needing(id, mib, **changes):
    return job(id, profile=profile(MEDIUM, peak_mib=mib), **changes)


def test_that_one_asked_in_vain_stops_only_those_who_ask_for_as_much():
    margin = Settings(policies={"lucid": Preconditions(margin_mib=1_000)})
    residents = [running(7, 0)]  # leaves 36,960 MiB
    made = plan(1, [needing(1, 36_000), needing(2, 36_001), needing(3, 35_960)], residents, margin)
    assert where(made) == {1: (), 2: (), 3: (0,)}
    burnt = Retry("out of memory", margin_mib=4_096)
    made = plan(1, [needing(1, 36_000, retry=burnt), needing(2, 36_000)], residents)
    assert where(made) == {1: (), 2: (0,)}
    # Who has the memory ends soon.
    residents = [running(7, 0), running(8, 1, seconds=500)]
    line = [needing(1, 36_000, seconds=1_001), needing(2, 36_000), needing(3, 36_000)]
    made = plan(2, line, residents, gpu0={"free_mib": 9_000})
    assert where(made) == {1: (), 2: (1,), 3: ()}


def test_whom_a_job_cannot_join_for_reasons_of_its_own():
    burnt = Retry("out of memory", avoid=(a_gpu(0).id,))
    residents = [running(7, 0), running(8, 1)]
    assert where(plan(2, [job(retry=burnt)], residents)) == {1: (1,)}
    mps = Settings(collocation=Collocation(mps=True))
    grace = job(2, user="grace", uid=1001)
    assert where(plan(1, [grace, job(1)], [running(7, 0)], mps)) == {2: (), 1: (0,)}


def test_a_pair_is_judged_by_the_card_that_it_would_be_on():
    by_memory = replace(TREE, features=("memory_share", "amp"))
    small = {"gpu": a_gpu(0, memory_mib=8_100, node="node0"), "free_mib": 4_100}
    residents = [running(7, 0), running(8, 1, started_at=9.0)]
    made = plan(2, [job()], residents, models={"packing": by_memory}, gpu0=small)
    assert where(made) == {1: (0,)}  # 0.49 each: Medium and Medium
    smaller = {"gpu": a_gpu(0, memory_mib=4_800, node="node0"), "free_mib": 4_100}
    made = plan(2, [job()], residents, models={"packing": by_memory}, gpu0=smaller)
    assert where(made) == {1: (1,)}


# -- the order of things


def test_one_behind_a_job_that_does_not_fit_has_its_turn():
    made = plan(
        2, [job(1, wants=2), job(2, utilization=JUMBO), job(3)], [running(7, 0, utilization=JUMBO)]
    )
    assert where(made) == {1: (), 2: (1,), 3: ()}


def test_with_sharing_off_it_does_not():
    policy = Lucid(sharing="off")
    made = plan(3, [job(1), job(2, wants=2), job(3)], [running(7, 0)], policy=policy)
    assert where(made) == {1: (1,), 2: ()}
    assert codes(placements(made)[1].reasons) == ["no_room", "sharing_off"]
    assert refused(made, 2) == (Reason("sharing_off"),)


def test_idle_gpus_are_taken_on_the_node_that_has_the_fewest_that_suffice():
    residents = [running(7, 3, utilization=JUMBO), running(8, 4, utilization=JUMBO)]
    made = plan([3, 4, 4], [job(1, wants=2, utilization=JUMBO)], residents)
    assert where(made) == {1: (5, 6)}
    made = plan([3, 4, 4], [job(1, wants=3, utilization=JUMBO)], residents)
    assert where(made) == {1: (0, 1, 2)}


@pytest.mark.parametrize(
    ("line", "residents", "where_to"),
    [
        # The first joins a job outside MPS, and its server closes the idle GPU beside it.
        ([1000, 2000], {0: MEDIUM}, {1: (0,), 2: ()}),
        # It closes the other partner, too.
        ([1000, 2000], {0: MEDIUM, 1: MEDIUM}, {1: (0,), 2: ()}),
        # The first finds no partner and takes the idle GPU: that closes the partner.
        ([1000, 2000], {0: JUMBO}, {1: (1,), 2: ()}),
        # The same user's jobs share the server.
        ([1000, 1000], {0: MEDIUM}, {1: (0,), 2: (1,)}),
    ],
)
def test_within_a_plan_a_node_s_server_is_one_user_s(line, residents, where_to):
    settings = Settings(collocation=Collocation(mps=True, mps_scope="node"))
    jobs = [job(n + 1, uid=uid, utilization=MEDIUM - 0.4 * n) for n, uid in enumerate(line)]
    outside = [
        running(7 + gpu, gpu, utilization=load, mode=Mode.STREAMS)
        for gpu, load in residents.items()
    ]
    assert where(plan(2, jobs, outside, settings=settings)) == where_to


def test_a_job_on_the_profiler_s_gpus_leaves_the_rest_of_the_room():
    settings = Settings(profiling=Profiling(gpus=2, largest=1))
    line = [job(1, 7, utilization=JUMBO), job(2, utilization=JUMBO, seconds=9_000)]
    assert len(where(plan([2, 6], line, settings=settings))[2]) == 1


def test_a_job_that_fits_on_a_node_waits_for_one():
    """Algorithm 2 consolidates. Scattered, it would also be joined by nobody (rule 5)."""
    residents = [running(7, 0, utilization=JUMBO), running(8, 2, utilization=JUMBO)]
    line = [job(1, wants=2, utilization=JUMBO), job(2, utilization=JUMBO)]
    made = plan([2, 2], line, residents)
    assert where(made) == {1: (), 2: (1,)}
    assert placements(made)[0].reasons == (Reason("no_room", 2, 1, "GPUs"),)
    assert where(plan([2, 2], line, residents[:1])) == {1: (2, 3), 2: (1,)}


def test_a_large_job_takes_as_few_nodes_as_can_be():
    made = plan([1, 3, 2], [job(wants=5)])
    assert where(made) == {1: (1, 2, 3, 4, 5)}
    assert where(plan([3, 1, 1], [job(wants=5)])) == {1: (0, 1, 2, 3, 4)}  # nodes are unlike
    busy = [running(7, 3, utilization=JUMBO)]
    assert where(plan([2, 2, 2], [job(wants=3, utilization=JUMBO)], busy)) == {1: (0, 1, 4)}
    busy += [running(8, 1, utilization=JUMBO), running(9, 5, utilization=JUMBO)]
    assert where(plan([2, 2, 2], [job(wants=3, utilization=JUMBO)], busy)) == {1: ()}


def test_nobody_waits_for_gpus_that_are_out_of_use():
    out = {"drained": "maintenance"}
    assert where(plan([2, 2], [job(wants=2)], gpu0=out, gpu2=out)) == {1: (1, 3)}


def test_gpus_that_somebody_else_uses_are_not_idle():
    made = plan(1, [job()], gpu0={"external_mib": 501})
    assert where(made) == {1: ()}
    assert codes(refused(made)) == ["external"]


def test_who_has_reserved_a_gpu_may_use_it_idle_or_beside_another_job():
    booked = Reservation(1, (a_gpu(0).id,), ("ada",), (NOW - 1,), 100.0, "root")
    looks = {"reserved": slots([booked], a_gpu(0).id, NOW)}
    line = [job(1, user="grace", uid=1001), job(2)]
    for residents in ([], [running(7, 0)]):
        view = replace(view_of(1, line, residents, gpu0=looks), reserved=True)
        assert where(Lucid().plan(view)) == {1: (), 2: (0,)}


def test_where_a_job_ran_out_of_memory_it_is_not_put_again():
    made = plan(2, [job(retry=Retry("out of memory", avoid=(a_gpu(0).id,)))])
    assert where(made) == {1: (1,)}


def test_a_mig_instance_is_a_gpu_for_one_job():
    mig = {"gpu": a_gpu(0, parent=a_gpu(9).id)}
    assert where(plan(1, [job()], gpu0=mig)) == {1: (0,)}
    assert codes(refused(plan(1, [job()], [running(7, 0)], gpu0=mig))) == ["busy"]


def test_a_promise_that_no_gpu_can_keep():
    made = plan(1, [job(estimate=Estimate(50_000, "declared", firm=True))])
    assert codes(refused(made)) == ["memory"]


# -- modes


def history(*gpus_per_interval):
    """The last count is for the interval that has just ended."""
    made = History()
    for n, gpus in enumerate(gpus_per_interval):
        made.note_submission(NOW - 600 * (len(gpus_per_interval) - n), gpus)
    return made


def forecasting(gpus):
    return Additive("by hand", "nobody", float(gpus), (), (), "identity", 1, 0.0)


def sharing(knobs, past=None, forecast=None, utilization=MEDIUM):
    models = {"packing": TREE} | ({"throughput": forecasting(forecast)} if forecast else {})
    queue, residents = [job(utilization=utilization)], [running(7, 0, utilization=TINY)]
    past = past or history(0)
    return plan(2, queue, residents, None, models, past, policy=Lucid(settings=knobs))


def test_modes_by_the_last_hour():
    knobs = LucidSettings(apathetic_below=6.0, off_below=3.0)
    quiet, some, many = history(0, 0, 0, 0, 0, 17), history(*[3] * 6), history(*[6] * 6)
    assert where(sharing(knobs, quiet)) == {1: (1,)}
    assert where(sharing(knobs, some)) == {1: (0,)}  # Tiny and Medium add up to 1
    assert where(sharing(knobs, some, utilization=JUMBO)) == {1: (1,)}
    assert where(sharing(knobs, many, utilization=JUMBO)) == {1: (0,)}
    assert where(sharing(knobs, history(99, 0, 0, 0, 0, 0, 0))) == {1: (1,)}  # over an hour ago


def test_either_knob_will_do():
    assert where(sharing(LucidSettings(off_below=0.5))) == {1: (1,)}
    assert where(sharing(LucidSettings(apathetic_below=0.5), utilization=JUMBO)) == {1: (1,)}
    assert where(sharing(LucidSettings(apathetic_below=0.5))) == {1: (0,)}


def test_where_nothing_was_ever_asked_for_it_is_quiet():
    assert where(sharing(LucidSettings(off_below=0.5), History())) == {1: (1,)}


def test_modes_by_forecast():
    knobs = LucidSettings(apathetic_below=6.0, off_below=3.0)
    assert where(sharing(knobs, forecast=2.9)) == {1: (1,)}
    assert where(sharing(knobs, forecast=3.0)) == {1: (0,)}
    assert where(sharing(knobs, forecast=5.9, utilization=JUMBO)) == {1: (1,)}
    assert where(sharing(knobs, forecast=6.0, utilization=JUMBO)) == {1: (0,)}
    busy_now = history(*[9] * 6)
    assert where(sharing(knobs, busy_now, forecast=0.1)) == {1: (0,)}


def test_off_is_explained_and_thought_over_when_the_forecast_may_change():
    made = sharing(LucidSettings(off_below=3.0), forecast=2.0)
    assert refused(made) == (Reason("sharing_off", 3.0, 2.0, "GPUs"),)
    assert made[-1] == AskAgain(NOW + 600)
    assert not any(isinstance(each, AskAgain) for each in sharing(LucidSettings()))


# -- the profiler

DEDICATED = Settings(profiling=Profiling(gpus=2))


def new(id, wants=1, **changes):
    return job(id, wants, utilization=None, **changes)


def test_in_place_a_new_job_is_alone_until_it_is_known():
    made = plan(2, [new(1, cold_start_s=50.0), job(2)], [running(7, 0)])
    placement, other = placements(made)
    assert placement.gpus == (a_gpu(1).id,)
    assert placement.profiling == ProfilingRun(NOW + 250, evict=False)
    assert placement.explanation[-1] == Reason("profiled_there", 250, unit="s")
    assert other.profiling is None
    for wants, profiled in ((2, True), (3, False)):  # N_prof
        settings = Settings(profiling=Profiling(largest=2))
        made = placements(plan(3, [new(1, wants=wants)], settings=settings))[0]
        assert (made.profiling is not None) is profiled


def test_the_profiler_has_the_last_gpus_and_sends_jobs_back():
    made = plan([2, 2], [new(1), job(2, utilization=JUMBO)], settings=DEDICATED)
    one, other = placements(made)
    assert where(made) == {1: (2,), 2: (0,)}
    assert one.profiling == ProfilingRun(NOW + 200, evict=True)
    assert {verdict.gpu for verdict in one.verdicts} == {a_gpu(2).id, a_gpu(3).id}
    assert codes(refused(made, 2, gpu=1)) == []
    assert codes(refused(made, 2, gpu=3)) == ["kept_for_profiling"]
    assert len(other.verdicts) == 4


def test_known_jobs_stay_off_the_profiler_and_new_ones_off_the_rest():
    full = [running(7, 0, utilization=JUMBO), running(8, 1, utilization=JUMBO)]
    made = plan(4, [job(1)], full, DEDICATED)
    assert where(made) == {1: ()}
    profiled = [changed(running(n, n), profiling=ProfilingRun(NOW + 9, True)) for n in (2, 3)]
    made = plan(4, [new(1)], profiled, DEDICATED)
    assert where(made) == {1: ()}
    assert placements(made)[0].reasons == (Reason("profiling_gpus", 1, 0, "GPUs"),)
    assert codes(refused(made, 1, gpu=2)) == ["busy"]
    left_over = running(9, 3)  # from before these GPUs were the profiler's
    assert where(plan(4, [job(1)], [*full, left_over], DEDICATED)) == {1: ()}


def test_least_gpus_first_and_the_first_that_does_not_fit_ends_it():
    line = [new(1, wants=2), new(2), new(3, wants=2), new(4)]
    made = plan([4, 2], line, settings=DEDICATED)
    assert where(made) == {2: (4,), 4: (5,), 1: (), 3: ()}
    made = plan([4, 2], line, settings=DEDICATED, policy=Lucid(space_aware=False))
    assert where(made) == {1: (4, 5), 2: (), 3: (), 4: ()}
    made = plan(
        [4, 2],
        [new(1, wants=2), new(2)],
        [changed(running(7, 5), profiling=ProfilingRun(NOW + 9, True))],
        DEDICATED,
        policy=Lucid(space_aware=False),
    )
    assert where(made) == {1: (), 2: ()}


def test_who_is_profiled_in_place_all_the_same():
    wary = placements(plan(4, [new(1, requeue=False)], settings=DEDICATED))[0]
    assert wary.gpus == (a_gpu(0).id,)
    assert wary.profiling == ProfilingRun(NOW + 200, evict=False)
    wide = placements(plan([3, 1, 1], [new(1, wants=2)], settings=DEDICATED))[0]
    assert set(wide.gpus) == {a_gpu(0).id, a_gpu(1).id}  # the profiler's two are on two nodes
    limited = Settings(profiling=Profiling(gpus=2, largest=1))
    made = placements(plan(4, [new(1, wants=2)], settings=limited))[0]
    assert made.gpus == (a_gpu(0).id, a_gpu(1).id)
    assert made.profiling is None


def test_one_gpu_is_never_the_profiler_s():
    settings = Settings(profiling=Profiling(gpus=9))
    assert where(plan(2, [job(1), new(2)], settings=settings)) == {2: (1,), 1: (0,)}
    assert placements(plan(1, [new(1)], settings=settings))[0].profiling.evict is False


def test_another_gpu_stands_in_for_one_that_is_drained():
    made = plan(4, [new(1), new(2)], settings=DEDICATED, gpu3={"drained": "maintenance"})
    assert where(made) == {1: (1,), 2: (2,)}
    lost = {"sample": GpuSample(a_gpu(2).id, NOW, fault="fell off the bus")}
    made = plan(4, [new(1), new(2)], settings=DEDICATED, gpu2=lost)
    assert where(made) == {1: (1,), 2: (3,)}


def test_who_is_profiled_is_profiled_on_one_node():
    run = ProfilingRun(NOW + 9, evict=True)
    there = [changed(running(60 + n, n), profiling=run) for n in (2, 4)]
    settings = Settings(profiling=Profiling(gpus=4))
    assert where(plan([2, 2, 2], [new(1, wants=2)], there, settings)) == {1: ()}
    assert where(plan([2, 2, 2], [new(1, wants=2)], there[:1], settings)) == {1: (4, 5)}


def test_a_long_line_for_the_profiler_is_told_in_part():
    line = [new(id) for id in range(1, 31)]
    made = placements(plan(4, line, settings=DEDICATED, policy=Lucid(time_aware=False)))
    assert [p.job for p in made] == list(range(1, 3 + REPORTED))


def test_a_job_too_large_for_the_rest_may_have_the_profiler_s_gpus():
    made = plan(4, [job(1, wants=3)], settings=DEDICATED)
    assert where(made) == {1: (0, 1, 2)}
    made = plan(4, [job(1, wants=3), job(2, wants=1), job(3)], settings=DEDICATED)
    assert where(made) == {1: (0, 1, 2), 2: (), 3: ()}
    made = plan(4, [job(1, wants=2), job(2, wants=1)], settings=DEDICATED)
    assert where(made) == {1: (0, 1), 2: ()}


# -- time-aware scaling


def burst(count, gpus=8, residents=(), policy=None, **looks):
    line = [new(id) for id in range(1, count + 1)]
    made = plan(gpus, line, residents, DEDICATED, policy=policy, **looks)
    return {p.job: p for p in placements(made) if p.gpus}


def test_more_than_ten_waiting_are_lent_as_many_gpus_again():
    assert set(where(burst(12).values()).values()) == {(6,), (7,)}
    lent = burst(13)
    assert set(where(lent.values()).values()) == {(4,), (5,), (6,), (7,)}
    assert {p.profiling.until - NOW for p in lent.values()} == {100.0}
    assert {p.profiling.evict for p in lent.values()} == {True}
    assert len(burst(13, policy=Lucid(time_aware=False))) == 2


def test_in_a_cluster_it_is_the_last_of_the_other_nodes():
    lent = where(burst(20, gpus=[3, 3, 2, 2]).values())
    assert set(lent.values()) == {(6,), (7,), (8,), (9,)}


def test_only_idle_gpus_are_lent():
    busy = running(50, 5, utilization=JUMBO)
    assert set(where(burst(13, residents=[busy]).values()).values()) == {(4,), (6,), (7,)}


def test_n_prof_grows_with_what_is_lent():
    line = [new(id) for id in range(1, 14)] + [new(99, wants=3)]
    made = plan(8, line, settings=DEDICATED)
    assert placements(made)[0].profiling.evict
    assert 99 not in where(made)  # it stands at the end of the profiler's line
    limited = Settings(profiling=Profiling(gpus=2, largest=2))
    assert 99 in where(plan(8, line, settings=limited))  # beyond `profiling.largest`
    few = plan(8, [new(99, wants=3)], settings=DEDICATED)
    assert placements(few)[0].profiling == ProfilingRun(NOW + 200, evict=False)


def loan(count, forecast=None, lent=5, evict=True):
    """How many more are lent, while jobs are profiled on the profiler's two and on `lent`."""
    there = [
        changed(
            running(60 + n, n, utilization=None),
            profiling=ProfilingRun(NOW + 60, evict=evict or n > 5),
        )
        for n in (*([] if lent is None else [lent]), 6, 7)
    ]
    models = {"packing": TREE} | ({"throughput": forecasting(forecast)} if forecast else {})
    line = [new(id) for id in range(1, count + 1)]
    made = plan(8, line, there, DEDICATED, models)
    return len([p for p in placements(made) if p.gpus])


def test_a_loan_lasts_until_few_wait_and_few_are_to_come():
    assert loan(5) == 1
    assert loan(4) == 0
    assert loan(4, forecast=6.0) == 0  # what two GPUs take in: 200 s each in ten minutes
    assert loan(4, forecast=6.1) == 1
    assert loan(5, lent=None) == loan(5, evict=False) == 0  # nothing is on loan


# -- evictions

PREEMPTING = Settings(limits=Limits(preemption=True))


def evicted(mean, settings=PREEMPTING, source="sm_active", first=None, second=None, **looks):
    told = {"sm_active": 0.3}
    pair = [
        running(7, 0, **({"profile": profile(TINY, **told), "started_at": 20.0} | (first or {}))),
        running(8, 0, **({"profile": profile(TINY, **told), "started_at": 10.0} | (second or {}))),
    ]
    score = Score(mean, mean, mean, source, mean, 30)
    made = plan(2, [job(1, wants=3)], pair, settings, gpu0={"score": score, **looks})
    return {p.job: p.reason for p in made if isinstance(p, Preemption)}


def test_a_pair_that_is_busier_than_foretold_is_parted():
    found = evicted(0.91)
    assert set(found) == {7}  # it came later
    reason = found[7]
    assert (reason.code, reason.need, reason.detail) == ("unstable", 0.09, "job 7")
    assert reason.have == pytest.approx(0.31**2)


def test_who_is_not_evicted():
    assert not evicted(0.89)
    assert not evicted(0.01)  # jobs that slow each other are less busy
    assert not evicted(0.91, settings=Settings())
    assert not evicted(0.91, settling=Reason("settling", 30, 5, "s", "job 7"))
    assert not evicted(0.91, second={"state": S.STOPPING, "stop": Cause.CANCELLED})
    assert set(evicted(0.91, first={"requeue": False})) == {8}
    assert not evicted(0.91, source=None)
    assert not evicted(0.91, second={"profile": None})
    alone = {"residents": (running(7, 0, profile=profile(TINY, sm_active=0.1)),)}
    score = Score(0.9, 0.9, 0.9, "sm_active", 0.9, 30)
    made = plan(1, [job(1, wants=3)], settings=PREEMPTING, gpu0={"score": score, **alone})
    assert not any(isinstance(each, Preemption) for each in made)


def test_utilisation_stands_in_where_the_gpu_has_no_smact():
    assert set(evicted(0.91, source="utilization")) == {7}


# -- what is told


def test_a_long_line_is_told_in_part():
    line = [job(id, utilization=JUMBO) for id in range(1, 101)]
    made = plan(8, line, [running(200 + n, n) for n in range(8)])
    assert [p.job for p in placements(made)] == list(range(1, REPORTED + 1))
    assert all(len(p.verdicts) == 8 for p in placements(made))


def test_many_gpus_are_told_of_to_a_few():
    line = [job(id, utilization=JUMBO) for id in range(1, 10)]
    count = VERDICTS // 2
    made = placements(plan(count, line, [running(200 + n, n) for n in range(count)]))
    assert [len(p.verdicts) for p in made] == [count, count, *[0] * (REPORTED - 2)]
    assert all(codes(p.reasons) == ["no_room"] for p in made)


def test_of_a_line_behind_full_gpus_nothing_is_missed():
    """The quick and the careful check agree: every waiting job has an objection on every GPU."""
    rng = random.Random(5)
    for _ in range(200):
        residents, n = [], 0
        while n < 6:
            wide = min(rng.choice((1, 1, 2)), 6 - n)
            at = range(n, n + wide)
            n += wide
            if rng.random() < 0.8:
                load, seconds = rng.choice((TINY, MEDIUM, JUMBO)), rng.choice((10, 1000, None))
                residents.append(running(50 + n, *at, utilization=load, seconds=seconds))
        line = [
            job(
                id,
                rng.choice((1, 2)),
                utilization=rng.choice((TINY, MEDIUM, JUMBO, None)),
                seconds=rng.choice((15, 25, 3000, None)),
                estimate=Estimate(rng.choice((1_000, 36_960, 37_000)), "oracle"),
            )
            for id in range(1, 9)
        ]
        made = placements(plan([3, 3], line, residents))
        for placement in made:
            free = [v for v in placement.verdicts if not v.refused]
            wanted = line[placement.job - 1].spec.gpus
            if placement.gpus:
                assert set(placement.gpus) <= {v.gpu for v in free}
            elif wanted == 1:
                assert not free
            else:  # its two GPUs have to be on one of the nodes
                first = sum(v.gpu in {a_gpu(n).id for n in range(3)} for v in free if v.rank)
                assert max(first, sum(v.rank == 1.0 for v in free) - first) < wanted


# -- ablations


def test_naive_packing_minds_memory_and_demand_alone():
    policy = Lucid(sharing="naive")
    jumbos = [running(7, 0, utilization=JUMBO, seconds=1)]
    assert where(plan(1, [job(utilization=JUMBO)], jumbos, policy=policy)) == {1: (0,)}
    assert where(plan(2, [job(wants=2)], jumbos, policy=policy)) == {1: ()}
    large = job(profile=profile(TINY, peak_mib=37_000))
    assert where(plan(1, [large], jumbos, policy=policy)) == {1: ()}


def test_without_the_estimator_no_duration_keeps_a_pair_apart():
    made = plan(1, [job(seconds=9_999)], [running(7, 0)], policy=Lucid(estimated=False))
    assert where(made) == {1: (0,)}


# -- from end to end


class UtilizedServer(FakeServer):
    """NVML's utilisation is as high as SMACT."""

    def reading(self, gpu, at):
        return replace(super().reading(gpu, at), utilization=self.sm_active[gpu.id])


def test_a_job_whose_memory_is_known_need_not_wait_until_the_gpu_has_settled():
    """In a core: it joins as soon as under any policy, not after `monitor.window_s`."""
    server = UtilizedServer(gpus=1, settings=Settings(), policy=Lucid())
    server.tell(Trained(server.now, (("packing", TREE),)))

    def starts():
        id = server.submit(expected_s=1000.0)
        server.pass_time(1)
        server.run_kernel(id)
        server.sm_active[server.gpus[0].id] = 0.2
        return id

    first = starts()
    server.pass_time(300)
    server.exit(first)  # it leaves its profile to the next ones
    starts()
    third = server.submit(expected_s=1000.0)
    server.pass_time(3)
    assert server.job(third).gpus == ()
    server.pass_time(7)
    assert server.job(third).gpus == (server.gpus[0].id,)


def test_a_pair_that_changes_is_parted_and_stays_parted():
    """In a core: three runs of a program that is calm in its first run and busy later."""
    server = UtilizedServer(gpus=1, settings=PREEMPTING, policy=Lucid())
    server.tell(Trained(server.now, (("packing", TREE),)))
    (gpu,) = server.gpus

    def starts(sm_active):
        id = server.submit(expected_s=1000.0)
        server.pass_time(1)
        server.run_kernel(id)
        server.sm_active[gpu.id] = sm_active
        server.pass_time(40)
        return id

    first = starts(0.2)
    server.pass_time(200)
    server.exit(first)
    second, third = starts(0.2), starts(0.4)
    assert server.job(third).state is S.RUNNING
    assert server.job(third).shared
    fourth = server.submit(expected_s=1000.0)
    server.pass_time(5)
    assert server.why(fourth)[0] == {0: ["jobs_per_gpu"]}
    server.sm_active[gpu.id] = 0.95
    server.pass_time(40)
    assert server.stopping == {(third, 1)}
    server.exit(third, Exit(Cause.FAILURE, None, 15))
    server.sm_active[gpu.id] = 0.4
    server.pass_time(40)
    assert (server.job(second).state, server.job(third).state) == (S.RUNNING, S.QUEUED)
    assert server.job(fourth).gpus == (gpu.id,)  # it may join, where the other may not
