"""The papers' baseline policies: orders and costs by hand, preemption in a core."""

import math
import random
from dataclasses import replace

import pytest

from carma_testing import FakeServer, a_gpu, a_gpu_view, a_job, a_spec, a_view, check_policy
from carmad.config import Collocation, Limits, Monitor, Preconditions, Settings
from carmad.core.gpus.gpu import ProcessUse, Score
from carmad.core.gpus.gpuview import NodeView
from carmad.core.jobs.attempt import Cause, Exit, Mode
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.job import Retry
from carmad.core.jobs.states import JobState
from carmad.core.messages import DrainRequested, Tick, Wake
from carmad.plugin import AskAgain, Placement, Preemption
from lab import baselines
from lab.preemptive import Preemptive, clients_of_others
from policies.views import without_jobs
from tests.planning import gpu_views, queued, running_on, where

S = JobState
PREEMPTING = Settings(limits=Limits(preemption=True, kill_grace_s=30.0))
GONE = Exit(Cause.FAILURE, None, 15)


def running(id, gpu, started_at=0.0, **changes):
    return queued(id, **{**running_on(gpu), "started_at": started_at, **changes})


def view_of(gpus, queue, residents=(), settings=None, now=0.0, **looks):
    cards = [a_gpu(n) for n in range(gpus)]
    return a_view(gpu_views(cards, residents, **looks), queue, settings, now)


def preempted(plan):
    return [p.job for p in plan if isinstance(p, Preemption)]


# -- orders


def line(policy, *jobs):
    server = FakeServer(gpus=0, policy=policy(Settings()))
    for spec in jobs:
        server.submit(**spec)
    return [job.id for job in server.scene.line]


JOBS = (
    {"gpus": 1, "expected_s": 900},
    {"gpus": 4, "expected_s": 300},
    {"gpus": 2},  # nobody knows how long
    {"gpus": 2, "expected_s": 400},
    {"gpus": 1},
)


def test_orders():
    assert line(baselines.fifo, *JOBS) == [1, 2, 3, 4, 5]
    assert line(baselines.sjf, *JOBS) == [2, 4, 1, 3, 5]
    assert line(baselines.ssf, *JOBS) == [4, 1, 2, 3, 5]  # 800, 900 and 1200 GPU-seconds
    assert line(baselines.srtf, *JOBS) == [2, 4, 1, 3, 5]
    assert line(baselines.sjf_ffs, *JOBS) == [2, 4, 1, 3, 5]
    assert line(baselines.tiresias, *JOBS) == [1, 2, 3, 4, 5]
    assert line(baselines.horus, *JOBS) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("make", [baselines.fifo, baselines.sjf, baselines.ssf])
def test_nobody_shares_and_the_first_that_must_wait_holds_the_line(make):
    wants_two = queued(1, wants=2, expected_s=10)
    wants_one = queued(2, wants=1, expected_s=50)
    view = view_of(2, [wants_two, wants_one], [running(9, 0, time_limit_s=20.0)])
    assert where(make(Settings()).plan(view))[2] == ()


# -- Castor's SJF-FFS


def test_jobs_share_only_where_too_few_gpus_are_idle():
    policy = baselines.sjf_ffs(Settings())
    view = view_of(3, [queued(1, wants=2), queued(2), queued(3)], [running(9, 0)])
    assert where(policy.plan(view)) == {1: (1, 2), 2: (0,), 3: ()}
    full = view_of(1, [queued(1)], [running(8, 0), running(9, 0)])
    assert where(policy.plan(full)) == {1: ()}  # never three on one


def test_idle_gpus_on_two_nodes_come_before_shared_ones_on_one():
    views = [
        a_gpu_view(n, gpu=a_gpu(n, node="ab"[n // 2]), residents=(running(8 + n, n),) * (n % 2))
        for n in range(4)
    ]
    plan = baselines.sjf_ffs(Settings()).plan(a_view(views, [queued(1, wants=2)]))
    assert where(plan) == {1: (0, 2)}


def test_a_job_too_wide_for_a_node_takes_those_with_most_gpus_first():
    views = [a_gpu_view(n, gpu=a_gpu(n, node=node)) for n, node in enumerate("abbcc")]
    plan = baselines.fifo(Settings()).plan(a_view(views, [queued(1, wants=4)]))
    assert where(plan) == {1: (1, 2, 3, 4)}


def test_gpus_are_kept_for_the_head_only_if_nobody_may_pass_it():
    for backfill, codes in ((0, ["holds_line"]), (2, [])):
        settings = Settings(limits=Limits(backfill=backfill))
        view = view_of(2, [queued(1, wants=2), queued(2)], [running(9, 0)], settings)
        (head,) = (each for each in baselines.fifo(settings).plan(view) if each.job == 1)
        assert [reason.code for reason in head.reasons] == codes


def test_without_a_job_its_memory_is_free_beside_those_that_stay():
    gone, stays = (running(n, 0, estimate=Estimate(5_000, "declared")) for n in (8, 9))
    view = without_jobs(view_of(1, [], [gone, stays], gpu0={"free_mib": 9_000}), gone.__eq__)
    assert [(gpu.residents, gpu.free_mib) for gpu in view.gpus] == [((stays,), 14_000)]


def test_a_gpu_that_others_use_is_not_idle():
    looks = {"gpu0": {"external_mib": 9_000, "free_mib": 31_960}}
    assert where(baselines.sjf_ffs(Settings()).plan(view_of(2, [queued(1)], **looks))) == {1: (1,)}


def test_first_fit_minds_memory_but_not_how_busy_a_gpu_is():
    policy = baselines.sjf_ffs(Settings())
    busy = Score(0.99, 0.9, 0.9, "sm_active", 0.99, 30)
    view = view_of(
        2,
        [queued(1, estimate=Estimate(9_000, "oracle"))],
        [running(8, 0), running(9, 1)],
        gpu0={"free_mib": 8_000},
        gpu1={"free_mib": 9_000, "score": busy},
    )
    assert where(policy.plan(view)) == {1: (1,)}


# -- Horus


def test_horus_shares_where_the_utilisation_adds_up_to_no_more_than_one():
    policy = baselines.horus(Settings())
    residents = [running(8, 0), running(9, 1)]

    def plan(*means):
        looks = {
            f"gpu{n}": {"score": Score(0.5, 0.1, 0.1, "sm_active", mean, 30)}
            for n, mean in enumerate(means)
        }
        return where(policy.plan(view_of(2, [queued(1)], residents, **looks)))

    assert plan(0.50, 0.48) == {1: (1,)}  # 0.51 is a newcomer's
    assert plan(0.50, 0.50) == {1: ()}


def test_horus_s_cost():
    """40 of 100 MiB are in use, 0.9 with the newcomer's 0.51, one neighbour."""
    score = Score(0.5, 0.1, 0.1, "sm_active", 0.39, 30)
    gpu = a_gpu(0, memory_mib=100)
    shared = a_gpu_view(gpu=gpu, free_mib=60, score=score, residents=(running(9, 0),))
    assert baselines.horus(Settings()).rank(shared) == pytest.approx(1.3 * 0.4 + 0.1 + 1)
    just_left = a_gpu_view(gpu=gpu, free_mib=100, score=score)
    assert baselines.horus(Settings()).rank(just_left) == pytest.approx(0.49)


def test_horus_counts_what_others_compute():
    """Processes outside CARMA keep a GPU as busy as jobs do."""
    busy = Score(0.9, 0.1, 0.1, "sm_active", 0.9, 30)
    view = view_of(1, [queued(1)], gpu0={"external_mib": 9_000, "score": busy})
    assert where(baselines.horus(Settings()).plan(view)) == {1: ()}


def test_horus_puts_at_most_three_jobs_on_a_gpu():
    policy = baselines.horus(Settings(preconditions=Preconditions(min_free_mib=0)))
    two, three = ([running(id, 0) for id in range(10, 10 + n)] for n in (2, 3))
    assert where(policy.plan(view_of(1, [queued(1)], two))) == {1: (0,)}
    assert where(policy.plan(view_of(1, [queued(1)], three))) == {1: ()}


# -- shortest remaining time first


def srtf(gpus=1, settings=PREEMPTING):
    return FakeServer(gpus=gpus, settings=settings, policy=baselines.srtf(settings))


def stopping(server):
    return sorted(id for id, _ in server.stopping)


def test_a_shorter_job_takes_the_gpu_and_the_longer_one_goes_on_where_it_was():
    server = srtf()
    long = server.submit(expected_s=1000)
    server.pass_time(100)
    short = server.submit(expected_s=200)
    assert server.job(long).stop is Cause.PREEMPTED
    assert server.scene.decisions[long].placement.reasons[0].detail == f"job {short} goes first"
    assert server.why(short)[1] == ["making_room"]
    server.pass_time(2)
    server.exit(long, GONE)
    assert server.job(short).state is S.STARTING
    assert (server.job(long).state, server.job(long).served_s) == (S.QUEUED, 102.0)
    server.pass_time(50)
    middle = server.submit(expected_s=899)  # 898 s are left of the long one
    assert [job.id for job in server.scene.line] == [long, middle]
    server.exit(short)
    assert server.job(long).attempt == 2
    assert stopping(server) == []


def test_what_is_left_counts_and_not_the_whole_duration():
    server = srtf()
    first = server.submit(expected_s=1000)
    server.pass_time(900)
    server.submit(expected_s=200)
    assert server.job(first).state is S.STARTING


@pytest.mark.parametrize(("expected_s", "preempts"), [(870, False), (869, True)])
def test_a_job_is_not_preempted_for_less_than_the_time_it_may_take_to_stop(expected_s, preempts):
    server = srtf()
    first = server.submit(expected_s=1000)
    server.pass_time(100)
    server.submit(expected_s=expected_s)
    assert stopping(server) == [first] * preempts


def test_jobs_of_unknown_duration_go_last_and_preempt_nobody():
    server = srtf()
    first = server.submit()
    second = server.submit()
    assert stopping(server) == []
    known = server.submit(expected_s=10_000)
    assert stopping(server) == [first]
    assert [job.id for job in server.scene.line] == [known, second]


def test_a_job_that_ends_while_it_is_stopped_is_not_lost():
    server = srtf()
    first = server.submit(expected_s=1000)
    second = server.submit(expected_s=10)
    server.exit(first)
    assert server.last(first).state is S.SUCCEEDED
    assert server.job(second).state is S.STARTING


def test_the_last_in_line_are_preempted_and_no_more_than_are_needed():
    server = srtf(gpus=4)
    jobs = [server.submit(expected_s=1000 * n) for n in (1, 4, 2, 3)]
    server.submit(expected_s=10, gpus=2)
    assert stopping(server) == [jobs[1], jobs[3]]
    server.sample(1.0)  # and they are not gone yet
    assert stopping(server) == [jobs[1], jobs[3]]


def served_by_one(gpus):
    """Their MPS server serves one user at a time."""
    collocation = Collocation(mps=True, mps_scope="node")
    return srtf(gpus, replace(PREEMPTING, collocation=collocation))


def test_for_another_user_all_clients_of_a_node_s_mps_server_make_room():
    server = served_by_one(3)
    first, second = server.submit(expected_s=1000), server.submit(expected_s=2000)
    theirs = server.submit(expected_s=10, user="bob", uid=1001)
    assert stopping(server) == [first, second]
    assert server.why(theirs)[1] == ["making_room"]
    server.exit(first, GONE)
    assert server.job(theirs).state is S.QUEUED
    server.exit(second, GONE)
    assert server.job(theirs).state is S.STARTING


def test_nobody_is_preempted_while_a_process_is_left_on_the_mps_server():
    server = served_by_one(2)
    first = server.submit(expected_s=1000)
    server.strangers = (ProcessUse(77, 300, 0.0, user="eve", mps_uid=1002),)
    server.sample(1.0)
    theirs = server.submit(expected_s=10, user="bob", uid=1001)
    assert stopping(server) == []
    server.strangers = ()
    server.sample(1.0)
    assert stopping(server) == [first]
    assert server.job(theirs).state is S.QUEUED


@pytest.mark.parametrize("scope", ["gpu", "node"])
def test_a_client_of_a_job_that_has_just_ended_causes_no_further_preemption(scope):
    """The last reading still shows it. On a node's server, the other job's must leave as well."""
    collocation = Collocation(mps=True, mps_scope=scope)
    server = srtf(2, replace(PREEMPTING, collocation=collocation))
    shown = server.reading

    def reading(gpu, at):
        seen = shown(gpu, at)
        return replace(seen, processes=tuple(replace(p, mps_uid=1000) for p in seen.processes))

    server.reading = reading
    first, second = server.submit(expected_s=1000), server.submit(expected_s=2000)
    for job in (first, second):
        server.run_kernel(job)
    server.sample(1.0)
    theirs = server.submit(expected_s=10, user="bob", uid=1001)
    left = [] if scope == "gpu" else [first]
    assert stopping(server) == [*left, second]
    server.exit(second, GONE)
    assert stopping(server) == left
    assert server.why(theirs)[1] == ["making_room"]
    (reason,) = server.scene.decisions[theirs].placement.reasons
    assert "pid" in reason.detail
    if scope == "node":
        server.exit(first, GONE)
        assert server.job(theirs).state is S.QUEUED
    server.sample(1.0)
    assert server.job(theirs).state is S.STARTING


def test_a_process_that_the_next_reading_still_shows_is_left_for_good():
    server = srtf(2, replace(PREEMPTING, collocation=Collocation(mps=True)))
    first, second = server.submit(expected_s=1000), server.submit(expected_s=2000)
    server.run_kernel(second)
    shown = server.reading
    hangs = ProcessUse(77, 1000, 0.0, second, "ada", mps_uid=1000)
    server.reading = lambda gpu, at: (
        replace(shown(gpu, at), processes=(hangs,)) if gpu.index == 1 else shown(gpu, at)
    )
    server.sample(1.0)
    server.submit(expected_s=10, user="bob", uid=1001)
    assert stopping(server) == [second]
    server.exit(second, GONE)
    assert stopping(server) == []
    server.sample(1.0)
    assert stopping(server) == [first]


def test_one_that_leaves_enough_spares_the_others():
    """The last in line has one GPU, the one before it three: the latter alone will do."""
    server = srtf(gpus=4)
    large = server.submit(expected_s=1000, gpus=3)
    server.submit(expected_s=5000)
    head = server.submit(expected_s=10, gpus=3)
    assert stopping(server) == [large]
    left = server.job(large).gpus
    server.exit(large, GONE)
    assert server.job(head).gpus == left


def test_nobody_is_preempted_for_a_job_that_could_not_start_even_so():
    server = srtf(gpus=2)
    server.submit(expected_s=5)
    server.submit(expected_s=1000)
    server.submit(expected_s=100, gpus=2)
    assert stopping(server) == []


def test_a_gpu_that_would_not_be_given_is_not_freed():
    server = srtf(gpus=2)
    drained, other = server.submit(expected_s=5000), server.submit(expected_s=1000)
    server.tell(DrainRequested(server.now, server.gpus[0].id, "fan swap", "root"))
    server.submit(expected_s=10)
    assert stopping(server) == [other]
    assert server.job(drained).state is S.STARTING


def test_gpus_that_a_job_waits_for_are_kept_for_it_and_others_are_not_held_up():
    """GPU 0 is idle, and kept for the job that waits for GPU 1, too; GPU 2 is left."""
    policy = baselines.srtf(PREEMPTING)
    pair = queued(1, wants=2, expected_s=10, retry=Retry("oom", avoid=(a_gpu(2).id,)))
    single, other = queued(2, expected_s=20), queued(3, expected_s=30)
    residents = [running(9, 1, expected_s=1000)]
    plan = policy.plan(view_of(3, [pair, single, other], residents, PREEMPTING))
    assert preempted(plan) == [9]
    assert where(plan) == {1: (), 2: (2,), 3: ()}


def test_what_one_job_leaves_is_for_as_many_as_it_lasts():
    large = queued(9, wants=2, expected_s=1000, state=S.RUNNING, gpus=(a_gpu(0).id, a_gpu(1).id))
    heads = [queued(n, expected_s=10) for n in (1, 2, 3)]
    plan = baselines.srtf(PREEMPTING).plan(view_of(2, heads, [large], PREEMPTING))
    assert preempted(plan) == [9]
    reasons = [[r.code for r in p.reasons] for p in plan if isinstance(p, Placement)]
    assert reasons == [["making_room"], ["making_room"], []]


@pytest.mark.parametrize(("backfill", "starts"), [(0, {1: ()}), (1, {1: (), 2: (0,)})])
def test_a_job_that_finds_no_room_holds_the_line(backfill, starts):
    settings = Settings(limits=Limits(preemption=True, backfill=backfill))
    queue = [queued(1, wants=2, expected_s=10), queued(2, expected_s=20), queued(3, expected_s=20)]
    view = view_of(2, queue, [running(9, 1, expected_s=5)], settings)
    assert where(baselines.srtf(settings).plan(view)) == starts


@pytest.mark.parametrize("its", [{"stop": Cause.CANCELLED}, {"state": S.SUSPENDING}])
def test_gpus_of_jobs_that_leave_anyway_are_waited_for(its):
    policy = baselines.srtf(PREEMPTING)
    cancelled = running(8, 0, **its)
    head, next_one = queued(1, expected_s=10), queued(2, expected_s=20)
    residents = [cancelled, running(9, 1, expected_s=1000)]
    plan = policy.plan(view_of(2, [head], residents, PREEMPTING))
    assert preempted(plan) == []
    plan = policy.plan(view_of(2, [head, next_one], residents, PREEMPTING))
    assert preempted(plan) == [9]


@pytest.mark.parametrize(
    ("settings", "victim", "head"),
    [
        (Settings(), {}, {}),
        (PREEMPTING, {"requeue": False}, {}),
        (PREEMPTING, {}, {"nice": 1}),
    ],
    ids=["off", "the job's no", "less nice"],
)
def test_who_is_never_preempted(settings, victim, head):
    server = srtf(settings=settings)
    first = server.submit(expected_s=1000, **victim)
    second = server.submit(expected_s=10, **head)
    assert (server.job(first).state, server.job(second).state) == (S.STARTING, S.QUEUED)
    assert first not in server.scene.decisions or not server.why(first)[1]


def test_a_recovering_job_gives_way_to_recovering_ones_only():
    """It would be requeued ahead of the job that it was stopped for."""
    policy = baselines.srtf(PREEMPTING)
    retry = Retry("oom")
    recovering = running(9, 0, expected_s=1000, retry=retry)
    plan = policy.plan(view_of(1, [queued(1, expected_s=10)], [recovering], PREEMPTING))
    assert preempted(plan) == []
    other = queued(1, expected_s=10, retry=retry)
    assert preempted(policy.plan(view_of(1, [other], [recovering], PREEMPTING))) == [9]


# -- Tiresias

LIMIT = baselines.FIRST_QUEUE_GPU_S


def tiresias(gpus=1, settings=PREEMPTING):
    return FakeServer(gpus=gpus, settings=settings, policy=baselines.tiresias(settings))


def at(server, now):
    """A tick at this instant, with fresh samples."""
    server.now = now
    server.sample()


def test_a_job_leaves_the_first_queue_when_its_service_reaches_the_limit():
    server = tiresias(gpus=2)
    first = server.submit(gpus=2)
    at(server, LIMIT / 2 - 1)
    second = server.submit()
    assert stopping(server) == []
    assert Wake(LIMIT / 2) in server.steps[-2].actions + server.steps[-1].actions
    at(server, LIMIT / 2)
    assert stopping(server) == [first]
    server.exit(first, GONE)
    assert server.job(second).state is S.STARTING
    assert server.job(first).state is S.QUEUED  # it wants two


def test_in_the_second_queue_jobs_go_by_arrival_and_preempt_nobody():
    server = tiresias()
    jobs = [server.submit() for _ in range(3)]
    for job, now in zip(jobs[:2], (LIMIT, 2 * LIMIT), strict=True):
        at(server, now)
        server.exit(job, GONE)
    assert server.job(jobs[2]).state is S.STARTING
    assert [job.id for job in server.scene.line] == jobs[:2]
    at(server, 3 * LIMIT)  # all are in the second queue now
    assert stopping(server) == []
    server.exit(jobs[2])
    assert server.job(jobs[0]).attempt == 2


def test_the_service_of_earlier_attempts_counts():
    first = running(1, 0, started_at=100.0)
    assert baselines.demotion_at(first) == 100.0 + LIMIT
    again = running(1, 0, started_at=100.0, served_s=3000.0)
    assert baselines.demotion_at(again) == 100.0 + LIMIT - 3000.0
    assert baselines.queue_number(queued(1, served_s=LIMIT), 0.0) == 1
    assert baselines.queue_number(queued(1, served_s=LIMIT - 1), 1e9) == 0


def test_it_asks_to_be_asked_when_a_job_comes_to_give_way():
    policy = baselines.tiresias(PREEMPTING)
    residents = [running(8, 0, started_at=5.0), running(9, 1, started_at=7.0)]
    plan = policy.plan(view_of(2, [queued(1)], residents, PREEMPTING, now=100.0))
    assert plan[-1] == AskAgain(5.0 + LIMIT)
    late = [running(8, 0, started_at=5.0, requeue=False), running(9, 1, started_at=7.0)]
    plan = policy.plan(view_of(2, [queued(1)], late, PREEMPTING, now=100.0))
    assert plan[-1] == AskAgain(7.0 + LIMIT)
    gone = [running(8, 0, started_at=5.0), running(9, 1, requeue=False)]
    wide = view_of(2, [queued(1, wants=2)], gone, PREEMPTING, now=LIMIT + 100)
    assert not any(isinstance(p, AskAgain) for p in policy.plan(wide)), "it has come already"
    demoted = queued(1, served_s=LIMIT)
    plan = policy.plan(view_of(2, [demoted], residents, PREEMPTING, now=100.0))
    assert not any(isinstance(p, AskAgain) for p in plan)
    plan = policy.plan(view_of(2, [queued(1)], residents, Settings(), now=100.0))
    assert not any(isinstance(p, AskAgain) for p in plan)


# -- whole runs


def drive(make, tasks, gpus, stop_s, kill_grace_s=30.0):
    """Runs tasks, (arrival, work in seconds, GPUs), to their end, and gives the jobs in order.

    A job that is told to stop works on for `stop_s`, and what it did by then is saved.
    """
    limits = Limits(preemption=True, kill_grace_s=kill_grace_s)
    settings = Settings(limits=limits, monitor=Monitor(stale_s=math.inf))
    server = FakeServer(gpus=gpus, settings=settings, policy=make(settings))
    todo = sorted(tasks, reverse=True)
    left_s, done_at, gone_at, told, ended = {}, {}, {}, set(), {}
    while todo or server.alive:
        wakes = {a.at for step in server.steps for a in step.actions if isinstance(a, Wake)}
        arrival = {at for at, _, _ in todo[-1:]}
        server.now = min({at for at in wakes if at > server.now} | arrival | {*gone_at.values()})
        for run in [run for run, at in gone_at.items() if at == server.now]:
            id = run[0]
            left_s[id] = done_at.pop(run) - gone_at.pop(run)
            server.exit(id, GONE if left_s[id] else None)
            if not left_s[id]:
                ended[id] = server.last(id)
        if server.now in arrival:
            _, work_s, wanted = todo.pop()
            left_s[server.next_id] = work_s
            server.submit(gpus=wanted, expected_s=work_s)
        server.tell(Tick(server.now))
        for run in server.alive.keys() - done_at.keys():
            done_at[run] = gone_at[run] = server.now + left_s[run[0]]
        for run in server.stopping - told:
            gone_at[run] = min(done_at[run], server.now + stop_s)
        told |= server.stopping
    stops = [
        (job.id, step.events[-1].at)
        for step in server.steps
        for job in step.jobs
        if job.state is S.STOPPING
    ]
    assert len(set(stops)) == len(stops), "started and stopped over and over at one instant"
    assert not server.scheduler.jobs, "somebody was forgotten"
    return [ended[id] for id in sorted(ended)]


def shortest_remaining_ends(tasks):
    """When the tasks end on one GPU, computed second by second."""
    left, ends, now = {}, [], 0
    while len(ends) < len(tasks):
        left |= {task: task[1] for task in tasks if task[0] == now}
        now += 1
        if left:
            shortest = min(left, key=lambda task: (left[task], task))
            left[shortest] -= 1
            if not left[shortest]:
                del left[shortest]
                ends.append(now)
    return ends


def some_tasks(seed, number, most_gpus):
    rng = random.Random(seed)
    return [
        (
            float(arrival),
            float(rng.choice((20, 100, 500, 4000)) + rng.randrange(20)),
            rng.randint(1, most_gpus),
        )
        for arrival in rng.sample(range(5000), number)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_on_one_gpu_and_at_no_cost_it_is_shortest_remaining_time_first(seed):
    tasks = some_tasks(seed, 15, 1)
    jobs = drive(baselines.srtf, tasks, gpus=1, stop_s=0.0, kill_grace_s=0.0)
    assert sorted(job.ended_at for job in jobs) == shortest_remaining_ends(tasks)


@pytest.mark.parametrize("stop_s", [0.0, 7.5])
@pytest.mark.parametrize("make", [baselines.srtf, baselines.tiresias])
def test_every_job_comes_to_its_end_and_no_work_is_done_twice(make, stop_s):
    tasks = some_tasks(1, 80, 4)
    jobs = drive(make, tasks, gpus=4, stop_s=stop_s)
    ran = [job.served_s + job.ended_at - job.started_at for job in jobs]
    assert ran == pytest.approx([work_s for _, work_s, _ in sorted(tasks)])
    assert sum(job.attempt - 1 for job in jobs) > 10, "nobody was preempted"


def test_plans_that_preempt_pass_the_checks():
    """Random servers and queues, with unrelated priorities."""
    settings = Settings(limits=Limits(preemption=True, backfill=2))
    unshared = baselines.fifo(settings)
    policy = Preemptive("any", unshared, lambda job, now: job.id * 7 % 13)
    check_policy(policy, settings)


def test_clients_of_any_other_user_must_end_before_a_server_of_the_node_serves_one():
    spec = {uid: a_spec(uid=uid) for uid in (1000, 1001, 1002)}
    there = tuple(
        a_job(n, spec=each, state=JobState.RUNNING, gpus=(a_gpu(0).id,), mode=Mode.MPS)
        for n, each in enumerate(spec.values())
    )
    node = NodeView("a", (a_gpu_view(0, residents=there, mps_user=(1000, "ada")),))
    assert clients_of_others(node, 1001) == {0, 2}
    assert clients_of_others(node, None) == set()
