"""Batch jobs that hold GPUs without using them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carmad import configfile
from carmad.config import Idle, Settings, Suspending
from carmad.core import idling
from carmad.core.happenings import Kind, happenings, notices, words
from carmad.core.messages import Reconfigured, UpdateRequested
from carmad.core.types import Cause, Estimate, Exit, GpuId, JobId, JobState
from carmad.errors import CarmaError
from carmad.store.codec import notice_rows
from carmad.testing import FakeServer, a_job, a_spec
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
        with pytest.raises(CarmaError, match=r"idle\.batch cannot be read"):
            configfile.change(Settings(), [f"idle.batch={wrong}"])
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
    (warned,) = [h for step in server.steps for h in happenings(step) if h.kind is Kind.IDLE]
    assert words(warned, {}) == told and notices(warned) == ("idle",)
    assert words(warned, {}, sees=False) == "does not use its GPUs"
    assert [row["what"] for step in server.steps for row in notice_rows(step)] == ["idle"]

    server.alive[server.attempt(id)].ran_kernel = True
    server.pass_time(1)
    assert not server.job(id).idle
    server.alive[server.attempt(id)].ran_kernel = False
    server.pass_time(199)
    assert server.job(id).idle, "it is warned anew"
    server.pass_time(1)
    assert server.job(id).stop is Cause.IDLE
    server.exit(id, Exit(Cause.FAILURE, signal=15))
    assert server.last(id).state is S.TIMED_OUT
    assert "was ended: it had not used its GPUs for 3 min" in server.last(id).notes[-1]


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
    assert server.job(id).idle, "others cannot have what it was promised"
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
    assert server.job(id).idle


def test_idle_jobs_with_the_daemon_and_the_command(tmp_path: Path) -> None:
    words = ("--gpu-mem", "8G", "--", *train(memory_mib=8_000, seconds=1000, sm=0.0, warmup=1000))
    settings = {"CARMA_IDLE__BATCH": "warn 2s, end 20s"}
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
