"""A-SRPT as a policy: virtual machine, queue, patience and placement, by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carma_testing import a_gpu, a_view, changed, check_policy
from carmad import registry
from carmad.config import Limits, Links, Settings
from carmad.core.jobs.findings import Prediction
from carmad.core.jobs.job import Retry
from carmad.plugin import AskAgain, Layout, Reason, Remember, Stage
from policies.asrpt import REASONS
from policies.asrpt.machine import Machine, rebuild
from policies.rules import least_service, shortest
from tests import planning
from tests.planning import gpu_views, placements, running_on, where

LINKS = Links(within_mib_s=10_000.0, between_mib_s=1_000.0)
RESERVING = Settings(links=LINKS)
HURRIED = {"reserve": False, "patience": 0.0}
SETTINGS = replace(RESERVING, plugins={"policies.asrpt": {"reserve": False}})
# Over two servers of four: 0.3 + 500/(2/4 · 1000) = 1.3 s, 4.3 times as long as on one.
HEAVY = Layout((Stage(2, 0.1, 0.2, weights_mib=500.0),))
LIGHT = Layout((Stage(2, 0.1, 0.2, weights_mib=5.0),))


def queued(id, seconds=None, wants=1, **changes):
    """A job with this predicted duration."""
    told = None if seconds is None else Prediction(seconds, "forest")
    return planning.queued(id, wants, **{"prediction": told, **changes})


def running(id, *gpus):
    return queued(id, wants=len(gpus), **running_on(*gpus))


def view_of(gpus, queue, *residents, settings=SETTINGS, now=0.0, memory=None, islands="", **looks):
    """`islands` has a letter for each GPU."""
    cards = [a_gpu(n, island=islands[n : n + 1]) for n in range(gpus)]
    return a_view(gpu_views(cards, residents, **looks), queue, settings, now, memory=memory)


def made(settings):
    return registry.bare_policy(replace(settings, policy="asrpt"))


def plan(view, **changes):
    return placements(replace(made(view.settings), **changes), view)


def remembered(view, **changes):
    """The memory of the next view."""
    policy = replace(made(view.settings), **changes)
    told = [p.memory for p in policy.plan(view) if isinstance(p, Remember)]
    return told[0] if told else view.memory


def asked_at(view):
    return [p.at for p in made(view.settings).plan(view) if isinstance(p, AskAgain)]


def why(placement):
    return [reason.code for reason in placement.reasons]


# -- the virtual machine


def done(machine):
    return {each.id: each.done_at for each in machine.done}


def left(machine):
    return {each.id: each.left for each in machine.served}


def test_the_least_is_served_first_and_preempts():
    long, short = queued(1, 100.0), queued(2, 30.0)
    machine = Machine().follow((long,), 0.0, 2.0)
    assert left(machine) == {1: 100.0}
    machine = machine.follow((long, short), 20.0, 2.0)
    assert left(machine) == {2: 30.0, 1: 60.0}, "40 GPU-seconds in 20 s on two GPUs"
    machine = machine.follow((long, short), 40.0, 2.0)
    assert done(machine) == {2: 35.0}
    assert machine.ends_at(9) == [65.0]


def test_work_is_gpus_times_seconds_and_unknown_work_is_none():
    jobs = (queued(1, 10.0, wants=4), queued(2, 30.0), queued(3), queued(4, expected_s=5.0))
    machine = Machine().follow(jobs, 7.0, 8.0)
    assert left(machine) == {4: 5.0, 2: 30.0, 1: 40.0}
    assert done(machine) == {3: 7.0}


def test_nothing_that_changes_nothing_makes_another_machine():
    jobs = (queued(1, 100.0),)
    machine = Machine().follow(jobs, 0.0, 2.0)
    assert machine.follow(jobs, 49.0, 2.0) is machine
    assert done(machine.follow(jobs, 50.0, 2.0)) == {1: 50.0}


def test_who_leaves_is_forgotten_and_a_new_prediction_counts():
    jobs = (queued(1, 100.0), queued(2, 200.0), queued(3))
    machine = Machine().follow(jobs, 0.0, 1.0)
    machine = machine.follow(jobs[1:], 10.0, 1.0)
    assert left(machine) == {2: 190.0}, "the first left when the machine was last looked at"
    machine = machine.follow((queued(2, 50.0), jobs[2]), 10.0, 1.0)
    assert left(machine) == {2: 40.0}
    assert done(machine.follow((queued(2, 5.0),), 11.0, 1.0)) == {2: 11.0}


def test_gpus_that_come_and_go_make_it_faster_and_slower():
    jobs = (queued(1, 100.0),)
    machine = Machine().follow(jobs, 0.0, 1.0).follow(jobs, 10.0, 3.0)
    assert left(machine) == {1: 90.0}
    assert machine.ends_at(1) == [40.0]
    assert machine.follow(jobs, 20.0, 0.0).ends_at(1) == [math.inf]


def test_niceness_comes_before_work_and_recovery_before_all():
    again = changed(queued(4, 900.0), attempt=1, retry=Retry("out of memory"))
    jobs = (queued(1, 10.0, nice=5), queued(2, 50.0), queued(3, 20.0, nice=5), again)
    machine = Machine().follow(jobs, 0.0, 1.0)
    assert list(left(machine)) == [2, 1, 3]
    machine = machine.follow(jobs, 100.0, 1.0)
    assert [each.id for each in machine.done] == [4, 2, 1, 3]


def test_after_a_restart_it_is_made_of_those_in_line():
    jobs = (queued(1, 100.0, submitted_at=0.0), queued(2, 30.0, submitted_at=20.0), queued(3))
    machine = rebuild(jobs, 60.0, 1.0)
    assert done(machine) == {3: 3.0, 2: 50.0}
    assert left(machine) == {1: 70.0}


def settled(machine, now):
    """With what is left at `now`; it is worked out as from then on the speed differs."""
    return machine.follow(machine.queue, now, machine.speed + 1)


STORIES = st.lists(  # arrival, work, whether it leaves, after how long
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.booleans(), st.integers(0, 20)),
    min_size=1,
    max_size=12,
)


def by_steps(story, until):
    """Brute force: serves the smallest job unit by unit. Returns what is left and done."""
    work, done = {}, {}
    for now in range(until + 1):
        for id, (arrival, units, leaves, after) in enumerate(story, 1):
            if arrival == now:
                work[id] = units
            if leaves and arrival + after == now:
                work.pop(id, None)
                done.pop(id, None)
        if work and now < until:
            id = min(work, key=lambda id: (work[id], story[id - 1][0], id))
            work[id] -= 1
            if not work[id]:
                done[id] = now + 1
                del work[id]
    return work, done


@given(STORIES, st.lists(st.integers(0, 60)), st.integers(0, 60))
def test_it_is_what_stepping_from_zero_comes_to(story, looks, until):
    """However often it is updated meanwhile."""
    jobs = {id: queued(id, float(told[1])) for id, told in enumerate(story, 1)}
    ends = {id: a + after if leaves else 999 for id, (a, _, leaves, after) in enumerate(story, 1)}
    instants = {a for a, *_ in story} | set(ends.values()) | set(looks) | {until}
    machine = Machine()
    for now in sorted(t for t in instants if t <= until):
        there = [id for id in jobs if story[id - 1][0] <= now <= ends[id]]
        queue = tuple(jobs[id] for id in there if now < ends[id])
        if len(queue) < len(there):  # they were served until now
            before = tuple(jobs[id] for id in there if story[id - 1][0] < now)
            machine = settled(machine.follow(before, now, 1.0), now)
        machine = machine.follow(queue, now, 1.0)
    work, ended = by_steps(story, until)
    machine = settled(machine, until)
    assert left(machine) == work
    assert done(machine) == ended


# -- the line


def test_gpus_are_kept_for_shorter_jobs_if_the_admin_wants_it():
    jobs = [queued(1, 100.0), queued(2, 300.0)]
    view = view_of(2, jobs, settings=RESERVING)
    waiting = plan(view)
    assert where(waiting) == {1: (), 2: ()}
    assert waiting[1].reasons == (Reason("reserved", 50.0, unit="s"),)
    assert waiting[2].reasons == (Reason("reserved", 200.0, unit="s"),)
    assert asked_at(view) == [50.0]
    later = view_of(2, jobs, settings=RESERVING, now=50.0, memory=remembered(view))
    assert where(plan(later)) == {1: (0,), 2: ()}
    assert where(plan(view_of(2, jobs))) == {1: (0,), 2: (1,)}, "by default they are not"


def test_no_gpus_are_said_to_be_kept_where_too_few_are_idle():
    jobs = [queued(1, 100.0, wants=2)]
    busy = plan(view_of(2, jobs, running(9, 0), settings=RESERVING))
    assert busy[1].reasons == (Reason("few_idle", 2, 1, "GPUs"),)
    out = plan(view_of(1, [queued(1, 100.0)], settings=RESERVING, gpu0={"drained": "maintenance"}))
    assert out[1].reasons == (Reason("few_idle", 1, 0, "GPUs"),), "the machine stands, for ever"


def test_a_job_of_which_nothing_is_known_starts_at_once():
    assert where(plan(view_of(2, [queued(1, 100.0), queued(2)], settings=RESERVING))) == {
        2: (0,),
        1: (),
    }


def test_nobody_is_asked_for_what_cannot_start():
    assert asked_at(view_of(1, [queued(1, 100.0)], running(9, 0), settings=RESERVING)) == []
    assert asked_at(view_of(1, [queued(1, 100.0), queued(2)], settings=RESERVING)) == []
    held = [queued(1, wants=2), queued(2, 100.0)]
    assert asked_at(view_of(2, held, running(9, 0), settings=RESERVING)) == []


def test_the_first_that_finds_too_few_gpus_holds_the_line():
    jobs = [queued(1, 10.0, wants=2), queued(2, 100.0), queued(3, 1.0)]
    placements = plan(view_of(3, jobs, running(9, 0)))
    assert where(placements) == {3: (1,), 1: (), 2: ()}
    assert placements[1].reasons == (Reason("few_idle", 2, 1, "GPUs"),)
    assert [bool(v.refused) for v in placements[1].verdicts] == [True, True, False]
    assert placements[2].reasons == (Reason("line_held", detail="job 1"),)
    assert placements[2].verdicts == ()


def test_a_job_that_wants_more_gpus_than_are_in_service_holds_up_nobody():
    jobs = [queued(1, 1.0, wants=3), queued(2, 100.0)]
    assert where(plan(view_of(3, jobs, gpu0={"drained": "maintenance"}))) == {1: (), 2: (1,)}
    assert where(plan(view_of(3, jobs, running(9, 0)))) == {1: (), 2: ()}


def test_only_the_first_that_wait_are_told():
    jobs = [queued(id, 10.0) for id in range(1, 10)]
    assert list(plan(view_of(1, jobs, running(99, 0)))) == [1, 2, 3, 4]


def test_of_thousands_of_gpus_nobody_is_told_one_by_one():
    jobs = [queued(1, 10.0), queued(2, 20.0, wants=99)]
    told = plan(view_of(64, jobs)), plan(view_of(65, jobs))
    assert [[len(p.verdicts) for p in each.values()] for each in told] == [[64, 64], [0, 0]]
    assert told[1][1].gpus and why(told[1][2]) == ["few_idle"]


def test_only_idle_gpus_serve_who_may_start_early():
    """The second GPU is kept for the pair, which is served by it until a single one comes; that one
    takes it, and from then on nobody is served."""
    pair, single = queued(1, 100.0, 2), queued(2, 190.0)
    first = view_of(2, (pair,), running(9, 0))
    assert where(plan(first)) == {1: ()}
    second = view_of(2, (pair, single), running(9, 0), now=20.0, memory=remembered(first))
    assert where(plan(second)) == {1: (), 2: ()}, "180 GPU-seconds are left of the pair"
    shorter = queued(2, 170.0)
    second = view_of(2, (pair, shorter), running(9, 0), now=20.0, memory=remembered(first))
    assert where(plan(second)) == {2: (1,), 1: ()}
    memory = remembered(second)
    third = view_of(2, (pair,), running(9, 0), running(2, 1), now=90.0, memory=memory)
    assert left(settled(remembered(third).machine, 90.0)) == {1: 180.0}


def test_all_gpus_serve_where_they_are_kept_for_shorter_jobs():
    jobs = (queued(1, 100.0), queued(2, 300.0))
    full = view_of(1, jobs, running(9, 0), settings=RESERVING)
    assert left(settled(remembered(full).machine, 30.0)) == {1: 70.0, 2: 300.0}


def test_drained_gpus_do_not_count():
    view = view_of(4, [queued(1, 100.0)], settings=RESERVING, gpu3={"drained": "maintenance"})
    assert asked_at(view) == [34.0], "100 s on three GPUs, rounded up"


def test_backfill_lets_a_few_pass_who_waits_for_gpus():
    jobs = [queued(1, 1.0, 3), queued(2, 20.0), queued(3, 30.0), queued(4, 40.0)]
    for backfill, overtaken, found in ((1, 0, [2]), (1, 1, []), (2, 0, [2, 3]), (3, 1, [2, 3])):
        settings = replace(SETTINGS, limits=Limits(backfill=backfill))
        line = [replace(jobs[0], overtaken=overtaken), *jobs[1:]]
        placements = plan(view_of(3, line, running(9, 0), settings=settings))
        assert [id for id, placement in placements.items() if placement.gpus] == found


def test_the_papers_baselines():
    """With their own order, with and without blocking the queue."""
    jobs = [queued(1, 10.0, wants=3), queued(2, 20.0), queued(3, 25.0, wants=1)]
    by_length = view_of(3, jobs, running(9, 2))
    assert where(plan(by_length, by=shortest)) == {1: (), 2: (), 3: ()}
    assert where(plan(by_length, by=shortest, conserving=True)) == {1: (), 2: (0,), 3: (1,)}
    policy = replace(made(SETTINGS), by=least_service)
    assert [policy.order(job) for job in jobs] == [30.0, 20.0, 25.0]
    assert [made(SETTINGS).order(job) for job in [*jobs, queued(4)]] == [30.0, 20.0, 25.0, 0.0]


# -- the place


def test_much_talk_goes_where_most_is_free_and_little_where_least_is():
    """Islands a, b and c have 2, 1 and 3 idle GPUs."""
    residents = running(8, 0, 1), running(9, 4, 5, 6), running(10, 8)
    busy = {"islands": "aaaabbbbcccc"}
    much = queued(1, 10.0, 2, layout=HEAVY)
    assert where(plan(view_of(12, [much], *residents, **busy))) == {1: (9, 10)}
    little = queued(1, 10.0, 2, layout=LIGHT)
    placement = plan(view_of(12, [little], *residents, **busy))
    assert where(placement) == {1: (7, 2)}, "it is spread rather than that a large place is cut"
    assert placement[1].explanation[0] == Reason("predicted", have=10.0, unit="s", detail="forest")
    mapped = placement[1].explanation[1]
    assert (mapped.code, mapped.detail) == ("mapped", "communication-light")
    assert (mapped.need, mapped.have) == pytest.approx((0.3 + 5 / 10_000, 0.3 + 5 / 250))


def test_who_says_nothing_of_its_parts_is_kept_together_in_the_smallest_place():
    residents = running(8, 0), running(9, 4, 5), running(10, 8, 9, 10)
    islands = "aaaabbbbcccc"
    close = where(plan(view_of(12, [queued(1, wants=2)], *residents, islands=islands)))
    assert close == {1: (6, 7)}
    spread = where(plan(view_of(12, [queued(1, wants=4)], *residents, islands=islands)))
    assert spread == {1: (1, 2, 3, 6)}


def test_gpus_are_given_in_the_order_of_the_slots():
    """The second stage communicates much, so it gets the island with two GPUs."""
    layout = Layout((Stage(1, out_mib=1.0), Stage(2, in_mib=0.5, weights_mib=50.0)))
    job = queued(1, 10.0, 3, layout=layout)
    view = view_of(4, [job], running(9, 3), islands="baab")
    assert where(plan(view)) == {1: (0, 1, 2)}
    turned = replace(job, spec=replace(job.spec, layout=Layout(layout.stages[::-1])))
    assert where(plan(view_of(4, [turned], running(9, 3), islands="baab"))) == {1: (1, 2, 0)}


def test_slices_wait_for_a_server_that_holds_them():
    layout = Layout((Stage(2, 0.1, 0.1, tensor=2, tensor_mib=10.0),))
    job = queued(1, 10.0, 4, layout=layout)
    apart = view_of(
        8, [job, queued(2, 1000.0)], running(9, 0), running(10, 4, 5, 6), islands="a" * 4 + "b" * 4
    )
    placements = plan(apart)
    assert where(placements) == {1: (), 2: ()}
    assert placements[1].reasons == (Reason("slices_apart", 2, 3, "GPUs"),)
    fits = view_of(8, [job], running(9, 0), running(10, 4, 5), islands="a" * 4 + "b" * 4)
    assert where(plan(fits)) == {1: (6, 7, 1, 2)}


def test_slices_leave_a_gpu_that_they_cannot_use():
    layout = Layout((Stage(2, 0.1, 0.1, tensor=2, tensor_mib=10.0),))
    job = queued(1, 10.0, 4, layout=layout)
    view = view_of(8, [job], running(9, 0), running(10, 4), islands="aaaabbbb")
    assert where(plan(view)) == {1: (1, 2, 5, 6)}


def test_slices_and_others_start_on_a_server_that_holds_them_all():
    layout = Layout((Stage(1, 0.1, 0.2, out_mib=9.0, tensor=3), Stage(1, 0.1, 0.2, in_mib=9.0)))
    assert where(plan(view_of(4, [queued(1, 10.0, 4, layout=layout)]))) == {1: (0, 1, 2, 3)}


def test_slices_of_several_widths_wait_until_they_can_be_packed():
    """3, 3, 2 and 2 fill servers of six, but not three of three."""
    layout = Layout((Stage(2, tensor=3), Stage(2, tensor=2)))
    job = queued(1, 10.0, 10, layout=layout)
    free = plan(view_of(12, [job], islands="a" * 6 + "b" * 6))
    assert where(free) == {1: (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)}
    halves = [running(90 + n, n, n + 1, n + 2) for n in (0, 6, 12, 18)]
    islands = "".join(6 * island for island in "abcd")
    assert why(plan(view_of(24, [job], *halves, islands=islands))[1]) == ["slices_apart"]


def test_slices_that_no_server_holds_are_torn_apart():
    job = queued(1, 10.0, 4, layout=Layout((Stage(1, 0.1, 0.1, tensor=4),)))
    assert where(plan(view_of(4, [job], islands="aabb"))) == {1: (0, 1, 2, 3)}


# -- patience


def scattered(*queue, now=0.0, memory=None, free="037", settings=SETTINGS):
    """Two servers of four; only these GPUs are idle."""
    busy = [n for n in range(8) if str(n) not in free]
    residents = [running(90 + n, n) for n in busy]
    return view_of(
        8, queue, *residents, settings=settings, now=now, memory=memory, islands="aaaabbbb"
    )


HASTY, LONG = queued(2, 50.0), queued(3, 4_000.0)
CHOOSY = queued(1, 400.0, 3, layout=Layout((Stage(3, 0.1, 0.2, weights_mib=500.0),)))


def test_a_job_that_would_be_slow_steps_aside():
    """Patience: 0.5 · 3/8 · 400 s."""
    view = scattered(CHOOSY, HASTY)
    placements = plan(view)
    assert where(placements) == {2: (7,), 1: ()}
    alone = scattered(CHOOSY)
    (reason,) = plan(alone)[1].reasons
    assert (reason.code, reason.need) == ("better_gpus", 75.0)
    slow, best = 0.3 + 4 / 3 * 500 / 250, 0.3 + 4 / 3 * 500 / 10_000
    assert reason.have == pytest.approx(slow / best)
    assert asked_at(alone) == [75.0]


def test_it_does_not_hold_the_line():
    assert where(plan(scattered(CHOOSY, LONG))) == {1: (), 3: (7,)}
    memory = remembered(scattered(CHOOSY))
    assert where(plan(scattered(CHOOSY, LONG, now=10.0, memory=memory, free="7"))) == {
        1: (),
        3: (7,),
    }


def test_it_starts_where_it_is_faster_than_at_the_first_try():
    memory = remembered(scattered(CHOOSY))
    assert where(plan(scattered(CHOOSY, now=10.0, memory=memory))) == {1: ()}
    placement = plan(scattered(CHOOSY, now=10.0, memory=memory, free="0137"))
    assert where(placement) == {1: (0, 1, 3)}
    assert remembered(scattered(CHOOSY, now=10.0, memory=memory, free="0137")).aside == ()
    assert placement[1].explanation[1].detail == "communication-heavy"


def test_when_its_patience_ends_it_takes_what_there_is():
    memory = remembered(scattered(CHOOSY))
    assert where(plan(scattered(CHOOSY, now=74.0, memory=memory))) == {1: ()}
    for late in (75.0, 80.0):
        assert where(plan(scattered(CHOOSY, now=late, memory=memory))) == {1: (0, 3, 7)}
    held = plan(scattered(CHOOSY, LONG, now=75.0, memory=memory, free="7"))
    assert why(held[1]) == ["few_idle"], "and holds the line until there is enough"
    assert why(held[3]) == ["line_held"]


def test_it_waits_neither_without_patience_nor_without_a_prediction():
    hurried = replace(SETTINGS, plugins={"policies.asrpt": HURRIED})
    assert where(plan(scattered(CHOOSY, settings=hurried))) == {1: (0, 3, 7)}
    unknown = replace(CHOOSY, prediction=None)
    assert where(plan(scattered(unknown))) == {1: (0, 3, 7)}


def test_only_news_is_remembered():
    policy, view = replace(made(SETTINGS), by=shortest), scattered(CHOOSY)
    again = scattered(CHOOSY, memory=remembered(view, by=shortest))
    assert any(isinstance(each, Remember) for each in policy.plan(view))
    assert not any(isinstance(each, Remember) for each in policy.plan(again))


@pytest.mark.parametrize("by", [None, shortest])
def test_who_is_gone_is_forgotten(by):
    memory = remembered(scattered(CHOOSY), by=by)
    assert [id for id, _ in memory.aside] == [1]
    assert remembered(scattered(HASTY, now=1.0, memory=memory), by=by).aside == ()


@pytest.mark.parametrize(("wants", "words"), [(1, "no GPU that it"), (3, "0 of the 3 GPUs")])
def test_how_many_gpus_are_idle_is_said_to_who_wants_several(wants, words):
    assert words in REASONS["few_idle"].sentence(Reason("few_idle", wants, 0, "GPUs"))


# -- as a whole


@pytest.mark.parametrize("settings", [SETTINGS, RESERVING])
def test_it_is_a_policy(settings):
    check_policy(made(settings), settings)
