"""Batch jobs that hold GPUs without using them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import FakeServer, a_job, a_spec
from carmad import configfile
from carmad.api.gpus import gpu_out
from carmad.api.job import Jobs
from carmad.api.why import why_out
from carmad.config import Idle, Settings, Suspending
from carmad.core.gpus import idling
from carmad.core.happenings import Kind, happenings, notices, words
from carmad.core.jobs.attempt import Cause, Exit, GpuId, JobId
from carmad.core.jobs.findings import Estimate
from carmad.core.jobs.spec import After, ArrayTask
from carmad.core.jobs.states import JobState
from carmad.core.messages import Reconfigured, UpdateRequested
from carmad.errors import CarmaError
from carmad.store.codec import notice_rows
from cli.overview import gpu_report, where
from tests.daemon import running, train
from tests.waiting import until

S = JobState
GIB = 1024


def test_the_setting_is_a_ladder() -> None:
    warn, suspend, end = idling.ladder("end 1d, warn 30m, suspend 1.5 h")
    assert (warn, suspend, end) == (
        idling.Rung("warn", 1800.0),
        idling.Rung("suspend", 5400.0),
        idling.Rung("end", 86_400.0),
    )
    assert idling.ladder("") == ()
    rungs = (warn, suspend, end)
    assert [idling.due(rungs, at) for at in (0.0, 1800.0, 6000.0)] == [None, warn, suspend]
    assert idling.following(rungs, warn) == suspend and idling.following(rungs, end) is None
    for wrong in ("warn", "kill 2h", "warn 30", "suspend 2h warn 1h", "warn -1h"):
        with pytest.raises(CarmaError, match="is none of warn, suspend, requeue and end"):
            idling.ladder(wrong)
        for name in ("batch", "hung"):
            with pytest.raises(CarmaError, match=rf"idle\.{name} cannot be read"):
                configfile.change(Settings(), [f"idle.{name}={wrong}"])
    assert configfile.change(Settings(), ["idle.batch=warn 30m"]).idle.batch == "warn 30m"


def test_what_a_job_keeps_from_others() -> None:
    gpu, other = GpuId("GPU-0"), GpuId("GPU-1")
    job = a_job(gpus=(gpu, other), state=S.RUNNING, started_at=1.0)
    assert idling.footprint_mib(job, {gpu: 1000, other: 500}) == 1500
    firm = replace(job, estimate=Estimate(4000, "declared", firm=True))
    assert idling.footprint_mib(firm, {gpu: 5000}) == 9000
    assert idling.footprint_mib(replace(job, spec=a_spec(exclusive=True)), {}) == float("inf")


def a_server(batch: str, floor_mib: int = 4096, **settings: Any) -> FakeServer:
    return FakeServer(gpus=1, settings=Settings(idle=Idle(batch, floor_mib), **settings))


def stand_still(server: FakeServer, mib: int = 8_000, **spec: Any) -> JobId:
    """A job that has run a kernel, and runs none any more."""
    id = server.submit(**spec)
    server.run_kernel(id, mib)
    server.pass_time(2)
    server.alive[server.attempt(id)].ran_kernel = False
    return id


def test_an_idle_job_is_warned_and_its_owner_told_unasked() -> None:
    server = a_server("warn 100s, end 200s")
    id = stand_still(server)
    server.pass_time(99)
    assert server.job(id).notes == ()
    server.pass_time(1)
    told = (
        "does not use its GPUs for 2 min: it will be ended once that lasts 3 min ([idle] batch);"
        f" if it has a reason: carma update {id} --idle-ok REASON"
    )
    assert server.job(id).notes == (told,)
    task = a_job(4, spec=a_spec(array=ArrayTask(JobId(1), 2)))
    assert "carma update 1_2 --idle-ok" in idling.warning(task, idling.Rung("warn", 1.0), None)
    (warned,) = [h for step in server.steps for h in happenings(step) if h.kind is Kind.IDLE]
    assert words(warned, {}) == told and notices(warned) == ("idle",)
    assert words(warned, {}, sees=False) == "does not use its GPUs"
    assert [row["what"] for step in server.steps for row in notice_rows(step)] == ["idle"]

    server.alive[server.attempt(id)].ran_kernel = True
    server.pass_time(1)
    assert not server.job(id).current.idle
    server.alive[server.attempt(id)].ran_kernel = False
    server.pass_time(199)
    assert server.job(id).current.idle, "it is warned anew"
    server.pass_time(1)
    assert server.job(id).stop is Cause.IDLE
    server.exit(id, Exit(Cause.FAILURE, signal=15))
    assert server.last(id).state is S.TIMED_OUT
    assert "was ended: it had not used its GPUs for 3 min" in server.last(id).notes[-1]


def hang(batch: str = "", **idle: Any) -> tuple[FakeServer, JobId, JobId]:
    """A job that loads its weights and runs no kernel, and one that waits for its GPU."""
    settings = Settings(policy="magm", idle=Idle(batch, **idle))
    server = FakeServer(gpus=1, settings=settings)
    hung = server.submit(name="hang")
    server.alive[server.attempt(hung)].memory_mib = 6_000
    server.sample(1.0)
    return server, hung, server.submit(name="small", memory_mib=4_000)


def asked_why(server: FakeServer, id: JobId) -> dict[str, Any]:
    scene = server.scene
    jobs = Jobs(scene, lambda job, ahead: ("out", "err"), (0, "root"), see_all=True)
    return dict(why_out(scene.live[id], scene, [], jobs))


def listed_gpus(server: FakeServer) -> list[str]:
    """The lines of `carma gpus` below its table."""
    scene = server.scene
    cards = [gpu_out(view, scene, (0, "root"), see_all=True) for view in scene.view.gpus]
    answer: Any = {"gpus": cards, "source": {}, "thresholds": {"risk": {"dram_active": 1.0}}}
    return [line for line in gpu_report(answer) if isinstance(line, str)]


def test_a_job_without_a_kernel_is_named_after_a_minute_to_all_whom_it_concerns() -> None:
    server, hung, small = hang()
    server.pass_time(58)
    assert server.job(hung).notes == ()
    assert asked_why(server, hung)["headline"] == "starting: no kernel of it has been seen yet"
    server.pass_time(12)
    told = (
        f"shows no sign of life for 60 s: others wait; see carma logs {hung} ([idle] hung);"
        f" if it has a reason: carma update {hung} --idle-ok REASON"
    )
    assert server.job(hung).notes == (told,)
    (warned,) = [h for step in server.steps for h in happenings(step) if h.kind is Kind.IDLE]
    assert words(warned, {}) == told and notices(warned) == ("idle",)
    answer = asked_why(server, hung)
    assert answer["headline"] == "starting: no kernel of it has been seen for 71 s"
    assert answer["remedies"] == [
        f"whether it hangs or reads data, its log may say: carma logs {hung};"
        " other jobs may start on its GPUs in 9 min"
    ]
    answer = asked_why(server, small)
    ((refused,),) = [verdict["refused"] for verdict in answer["verdicts"]]
    assert refused["text"] == (
        f"no kernel of job {hung} has been seen there for 71 s;"
        " the GPU is kept for it for up to 9 min more"
    )
    assert where(asked_why(server, hung)["job"]) == "0 (no kernel for 1:11)"
    assert f"GPU 0: job {hung} has run no kernel for 1:11: carma why {hung}" in listed_gpus(server)
    server.run_kernel(hung)
    server.pass_time(1)
    assert server.job(hung).state is S.RUNNING and not server.job(hung).current.idle
    assert where(asked_why(server, hung)["job"]) == "0"
    assert "no kernel" not in " ".join(listed_gpus(server))


def test_who_waits_behind_reads_it_of_the_job_before() -> None:
    server, hung, _ = hang()
    after = server.submit(memory_mib=4_000, after=(After(hung),))
    server.pass_time(70)
    assert asked_why(server, after)["ahead"][0]["text"] == "has run for 71 s without a kernel"


def test_nobody_is_warned_while_nobody_waits() -> None:
    server = FakeServer(gpus=1)
    id = server.submit()
    server.pass_time(120)
    assert server.job(id).notes == ()
    server.submit()
    server.pass_time(1)
    assert server.job(id).current.idle


def test_a_job_without_a_kernel_is_ended_where_the_settings_say_so() -> None:
    server, hung, small = hang(hung="warn 1m, end 10m")
    server.pass_time(61)
    assert "it will be ended once that lasts 10 min ([idle] hung)" in server.job(hung).notes[-1]
    server.pass_time(540)
    assert server.job(hung).stop is Cause.IDLE
    assert "it had shown no sign of life for 10 min ([idle] hung)" in server.job(hung).notes[-1]
    server.exit(hung, Exit(Cause.FAILURE, signal=15))
    assert server.job(small).state is S.STARTING


def test_who_is_left_alone_though_it_has_run_no_kernel() -> None:
    for spec in ({"idle_ok": "it reads a tape"}, {"interactive": True}):
        server = FakeServer(gpus=1, settings=Settings(idle=Idle(hung="warn 1m, end 10m")))
        id = server.submit(**spec)
        server.submit()
        server.pass_time(700, period=5.0)
        assert server.job(id).stop is None and not server.job(id).current.idle
    server, hung, _ = hang("end 2m", floor_mib=10_000, hung="")
    server.pass_time(200)
    assert server.job(hung).stop is None, "the floor is for jobs that are idle, in any way"


def test_an_idle_job_is_suspended_where_that_can_be() -> None:
    server = a_server("suspend 100s, end 300s", suspend=Suspending(host_memory_mib=20_000))
    id = stand_still(server)
    server.pass_time(100)
    job = server.job(id)
    assert job.state is S.SUSPENDED and job.held
    assert job.suspension and "had not used its GPUs" in job.suspension.why
    server.pass_time(500)
    assert server.job(id).state is S.SUSPENDED, "it holds no GPU any more"

    server = a_server("suspend 100s, end 300s")
    id = stand_still(server)
    server.pass_time(299)
    assert server.job(id).state is S.RUNNING and server.job(id).notes == ()
    server.pass_time(1)
    assert server.job(id).stop is Cause.IDLE


def test_an_idle_job_is_requeued_if_it_may_be() -> None:
    server = a_server("requeue 100s")
    id = stand_still(server)
    server.pass_time(100)
    assert server.job(id).stop is Cause.PREEMPTED
    server = a_server("requeue 100s")
    id = stand_still(server, requeue=False)
    server.pass_time(200)
    assert server.job(id).state is S.RUNNING


def test_who_is_left_alone() -> None:
    batch = "warn 100s, end 200s"
    for server, id in (
        (quiet := a_server(""), stand_still(quiet)),
        (small := a_server(batch), stand_still(small, 4_000)),
        (mine := a_server(batch), stand_still(mine, idle_ok="it waits for the robot")),
    ):
        server.pass_time(300)
        assert server.job(id).state is S.RUNNING and server.job(id).notes == ()
    server = a_server(batch)
    id = stand_still(server, 1_000, memory_mib=30 * GIB)
    server.pass_time(100)
    assert server.job(id).current.idle, "others cannot have what it was promised"
    spec = replace(server.job(id).spec, idle_ok="it waits for the robot")
    server.tell(UpdateRequested(server.now, id, spec, ("idle_ok",), "ada"))
    server.pass_time(300)
    assert server.job(id).state is S.RUNNING, "a reason may be given later"


def test_a_reload_changes_it() -> None:
    server = a_server("")
    id = stand_still(server)
    server.pass_time(100)
    server.tell(Reconfigured(server.now, Settings(idle=Idle("warn 50s"))))
    server.pass_time(1)
    assert server.job(id).current.idle


def test_idle_jobs_with_the_daemon_and_the_command(tmp_path: Path) -> None:
    words = ("--gpu-mem", "8G", "--", *train(memory_mib=8_000, seconds=1000, sm=0.0, warmup=1000))
    settings = {"CARMA_IDLE__BATCH": "warn 1s, end 4s"}
    with running(tmp_path, "2xA100-40GB", **settings) as daemon:
        reason = "it waits for the robot"
        daemon.carma("submit", "--idle-ok", "what", *words)
        daemon.carma("update", "1", "--idle-ok", reason)
        daemon.carma("submit", *words)
        until(lambda: "does not use its GPUs" in daemon.carma("show", "2"), "a warning")
        ended = daemon.ended(2)
        assert (ended["state"], ended["exit"]["cause"]) == ("timed_out", "idle")
        assert "was ended: it had not used its GPUs" in daemon.carma("why", "2")
        spared = daemon.carma("show", "1")
        assert reason in spared and "does not use" not in spared
        assert daemon.job(1)["state"] in ("starting", "running")
