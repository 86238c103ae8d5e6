"""Who may join a GPU before it has settled: jobs of which, and beside which, all is known."""

from dataclasses import replace

import pytest

from carma_testing import FakeServer
from carma_testing.builders import a_job
from carmad.api import why as whys
from carmad.api.reasons import phrase
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.findings import Estimate, Indicator, Profile
from carmad.core.jobs.states import JobState
from carmad.core.placing.view import demand, refusals
from carmad.readable import gib

STARTED = JobState.STARTING


def own(name, **spec):
    """Of a group of its own."""
    return {"argv": ("python", name), **spec}


def a_server(gpus=1, load=0.3, **settings):
    server = FakeServer(gpus, replace(Settings(), **settings))
    for gpu in server.gpus:
        server.sm_active[gpu.id] = load
    return server


def runs(server, mib=5_000, load=0.3, **spec):
    """A job that computes, and holds what it needs."""
    id = server.submit(**own("first.py", **({"memory_mib": mib} | spec)))
    server.run_kernel(id, mib)
    server.sample(1)
    return id


def why(server, id):
    (verdict, *_) = server.scene.decisions[id].placement.verdicts
    return [phrase(reason) for reason in verdict.refused]


def test_what_is_known_waits_some_seconds_for_the_first_kernel_to_show():
    server = a_server()
    server.submit(**own("first.py", memory_mib=5_000))
    second = server.submit(**own("second.py", memory_mib=5_000))
    server.pass_time(60)
    assert server.why(second)[0] == {0: ["first_kernel"]}
    server.run_kernel(1, 5_000)
    server.pass_time(5)
    assert why(server, second) == [
        "job 1 started computing 4 s ago; the GPU's load is known after 5 s"
    ]
    server.sample(1)
    assert server.job(second).state is STARTED


@pytest.mark.parametrize(
    "first, second, missing",
    [
        ({}, {"memory_mib": None}, "the memory of this job is not known"),
        ({"memory_mib": None}, {}, "the memory of job 1 is not known"),
    ],
)
def test_while_anything_is_unknown_the_window_stands_and_why_says_what(first, second, missing):
    server = a_server()
    runs(server, **first)
    second = server.submit(**own("second.py", **({"memory_mib": 5_000} | second)))
    server.pass_time(29)
    assert why(server, second) == [
        "job 1 started computing 29 s ago; the GPU's load is known after 30 s; this job cannot"
        f" join earlier: {missing}"
    ]
    server.sample(1)
    assert server.job(second).state is STARTED


def test_a_job_that_ran_out_of_memory_is_not_known():
    server = a_server(recovery=replace(Settings().recovery, name="adaptive"))
    runs(server)
    second = server.submit(**own("second.py", memory_mib=5_000))
    server.pass_time(6)
    server.run_kernel(second, 5_000)
    server.exit(second, Exit(Cause.GPU_OOM, 1))
    retry = server.job(second).retry
    assert retry
    assert judge(server, {}, {"retry": replace(retry, exclusive=False, avoid=())}) == [
        "job 1; the memory of this job is not known"
    ]


def judge(server, resident, newcomer):
    """What keeps a job that differs in this from one beside another that differs in that."""
    job = server.job(1)
    there = replace(job, **resident)
    view = server.scheduler.view(server.now).gpus[0]
    gpu = replace(view, residents=(there,), free_mib=view.free_mib + view.counted_mib(job))
    gpu = replace(gpu, free_mib=gpu.free_mib - gpu.counted_mib(there))
    known = Estimate(5_000, "declared", firm=True)
    waits = a_job(1, spec=job.spec, estimate=known, group="another")
    wanted = demand(replace(waits, **newcomer), Settings())
    return [reason.detail for reason in refusals(wanted, gpu, Settings())]


TRACED, DECLARED = Estimate(20_000, "trace"), Estimate(25_000, "declared", firm=True)


@pytest.mark.parametrize(
    "resident, newcomer, joins",
    [
        ({"estimate": TRACED}, {"estimate": DECLARED}, False),
        ({"estimate": None, "profile": Profile(60.0, 20_000)}, {"estimate": DECLARED}, False),
        ({"estimate": None, "profile": Profile(60.0, 20_000)}, {}, True),
        ({"estimate": None}, {"estimate": DECLARED}, None),
        ({"estimate": None}, {"estimate": None, "group": "own"}, True),
        ({}, {"estimate": None, "profile": Profile(60.0, 40_500)}, False),
    ],
)
def test_all_that_they_may_need_counts_though_they_do_not_hold_it_yet(resident, newcomer, joins):
    server = a_server()
    runs(server, mib=1_000)
    server.pass_time(5)
    missing = "there may be too little memory for this job"
    if joins is None:
        missing = "the memory of job 1 is not known"
    found = judge(server, {"group": "own"} | resident, newcomer)
    assert found == ([] if joins else [f"job 1; {missing}"])
    server.pass_time(25)
    assert not judge(server, {"group": "own"} | resident, newcomer)  # the paper's window is over


@pytest.mark.parametrize(
    "shown, known, joins", [(0.1, 0.9, False), (0.5, 0.1, False), (0.3, 0.3, True)]
)
def test_a_load_that_does_not_show_yet_counts(shown, known, joins):
    server = a_server(load=shown)
    runs(server)
    server.pass_time(5)
    profile = Profile(60.0, 5_000, (Indicator("sm_active", known, 0.0),))
    missing = "it may be too busy with this job"
    assert judge(server, {"profile": profile}, {}) == ([] if joins else [f"job 1; {missing}"])


def test_of_two_that_come_at_once_the_second_waits_for_the_first_one_s_kernel():
    server = a_server(load=0.1)
    runs(server)
    both = [server.submit(**own(name, memory_mib=5_000)) for name in ("a.py", "b.py")]
    server.pass_time(5)
    assert [server.job(id).state for id in both] == [STARTED, JobState.QUEUED]
    assert server.why(both[1])[0] == {0: ["first_kernel"]}
    server.run_kernel(both[0], 5_000)
    server.pass_time(6)
    assert server.job(both[1]).state is STARTED


def test_a_job_of_two_gpus_joins_where_both_are_known():
    server = a_server(gpus=2)
    runs(server)
    server.pass_time(3)
    runs(server)
    wide = server.submit(**own("wide.py", memory_mib=5_000, gpus=2))
    server.pass_time(4)
    assert server.why(wide)[0] == {0: [], 1: ["settling"]}
    server.sample(1)
    assert server.job(wide).state is STARTED


def advice(server, id):
    placement = server.scene.decisions[id].placement
    return whys._remedies(
        server.job(id), server.scene, placement.reasons, server.scene.decisions[id], None
    )


def test_why_says_first_what_lasts_longer_than_settling():
    server = a_server(policy="exclusive")
    runs(server)
    waits = server.submit(**own("second.py"))
    assert server.why(waits)[0] == {0: ["busy"]}
    assert advice(server, waits) == ["GPU 0 can take it when job 1 ends"]


def test_a_load_is_no_reason_while_it_is_not_known():
    server = a_server(load=1.0)
    server.dram_active = dict.fromkeys(server.dram_active, 1.0)
    runs(server)
    waits = server.submit(**own("second.py"))
    assert server.why(waits)[0] == {0: ["settling"]}
    assert advice(server, waits) == ["with --gpu-mem, it may join jobs that have just started"]
    server.pass_time(30)
    assert server.why(waits)[0] == {0: ["risk"]}


@pytest.mark.parametrize(
    "free_mib, peak_mib, found",
    [
        (20_480, 0, []),
        (20_480, 14_336, ["fits GPU 0 now with --gpu-mem 20G"]),
        (14_500, 14_400, ["fits GPU 0 now with --gpu-mem 14500M"]),
        (665, 14_336, []),
        (-26_000, 14_336, []),
    ],
)
def test_no_size_is_proposed_below_what_the_job_is_known_to_use(free_mib, peak_mib, found):
    server = a_server()
    server.used_mib[server.gpus[0].id] = 40_960 - free_mib
    server.sample(1)
    job = server.job(server.submit(**own("first.py", memory_mib=30_000)))
    waits = replace(job, profile=Profile(60.0, peak_mib) if peak_mib else None)
    verdict = server.scene.decisions[job.id].placement.verdicts[0]
    assert whys._gpu_remedies(waits, verdict, server.scene) == found
    reason, *_ = verdict.refused  # and too little is free for anybody
    room = "0.0G" if free_mib < 0 else gib(free_mib)
    assert f"only {room} is neither used nor promised" in phrase(reason)


def test_a_size_that_a_running_job_of_the_group_has_exceeded_is_not_proposed():
    server = a_server()
    runs(server, mib=20_000)
    server.pass_time(31)
    job = server.job(server.submit(**own("first.py", memory_mib=30_000)))
    waits = replace(job, profile=Profile(60.0, 14_336))
    verdict = server.scene.decisions[job.id].placement.verdicts[0]
    assert whys._gpu_remedies(waits, verdict, server.scene) == [
        "fits GPU 0 now with --gpu-mem 20G",
        "GPU 0 can take it when job 1 ends",
    ]
    server.run_kernel(1, 20_900)
    server.sample(1)
    verdict = server.scene.decisions[job.id].placement.verdicts[0]
    assert whys._gpu_remedies(waits, verdict, server.scene) == ["GPU 0 can take it when job 1 ends"]


def test_why_names_a_known_end_where_that_would_help():
    server = a_server(gpus=2)
    server.submit(**own("long.py", expected_s=600.0, exclusive=True))
    server.submit(**own("wide.py", gpus=2, exclusive=True))
    waits = server.submit(**own("short.py"))
    assert "may start on GPU 1 if it is known to end in 10 min: --time, --expect" in advice(
        server, waits
    )
    short = server.submit(**own("short.py", time_limit_s=60.0))
    assert server.job(short).gpus == (server.gpus[1].id,)
