"""Jobs that show no sign of life: no kernel, no output and no processor time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carma_testing import FakeServer
from carma_testing.fake_server import FakeProcess
from carmad.api.job import Jobs
from carmad.api.why import why_out
from carmad.config import Idle, Recovery, Settings, Suspending
from carmad.core.gpus.gpu import ProcessUse
from carmad.core.happenings import Kind, happenings, notices, words
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.states import JobState
from carmad.core.messages import ReadLog, ResumeRequested, Stumbled, SuspendRequested
from tests.daemon import NO_KERNELS, running, train
from tests.waiting import until

S = JobState
OOM = Exit(Cause.GPU_OOM, 1, evidence="torch.OutOfMemoryError: CUDA out of memory.", tried_mib=90)
TERMINATED = Exit(Cause.FAILURE, signal=15, evidence="Terminated")


def a_server(hung: str = "", gpus: int = 2, **settings: Any) -> FakeServer:
    return FakeServer(gpus=gpus, settings=Settings(idle=Idle(hung=hung), **settings))


def process_of(server: FakeServer, id: JobId) -> FakeProcess:
    return server.alive[server.attempt(id)]


def at_work(server: FakeServer, **spec: Any) -> JobId:
    """A job that has trained for two minutes, and has printed something."""
    id = server.submit(**spec)
    server.run_kernel(id)
    process_of(server, id).printed = (1000, 0)
    live(server, id, 120, works)
    return id


def live(server: FakeServer, id: JobId, seconds: int, *do: Callable[[FakeProcess], None]) -> None:
    for _ in range(seconds):
        for each in do:
            each(process_of(server, id))
        server.pass_time(1)


def works(process: FakeProcess) -> None:
    process.ran_kernel, process.cpu_s = True, process.cpu_s + 1.0


def computes(process: FakeProcess) -> None:
    process.cpu_s += 0.2


def prints(process: FakeProcess) -> None:
    process.printed = (process.printed[0] + 80, 0)


def idles(process: FakeProcess) -> None:
    """As with threads that wake now and then."""
    process.ran_kernel, process.cpu_s = False, process.cpu_s + 0.01


def logs_read(server: FakeServer) -> list[ReadLog]:
    return [its for step in server.steps for its in step.actions if isinstance(its, ReadLog)]


def stumble(server: FakeServer, id: JobId) -> None:
    server.tell(Stumbled(server.now, *server.attempt(id), OOM))


# -- the clock


def test_a_job_that_shows_no_sign_of_life_is_dealt_with_as_declared() -> None:
    server = a_server("warn 2m, requeue 5m")
    id = at_work(server)
    server.submit(gpus=2, exclusive=True)  # which waits
    live(server, id, 125, idles)
    assert "shows no sign of life for 2 min" in server.job(id).notes[-1]
    assert "it will be requeued once that lasts 5 min ([idle] hung)" in server.job(id).notes[-1]
    live(server, id, 180, idles)
    assert server.job(id).stop is Cause.PREEMPTED
    assert "it had shown no sign of life for 5 min ([idle] hung)" in server.job(id).notes[-1]


def test_the_next_attempt_is_not_dealt_with_for_the_last_one() -> None:
    """Readings come more often than signs of life."""
    server = a_server("requeue 5m")
    id = at_work(server)
    live(server, id, 301, idles)
    assert server.job(id).stop is Cause.PREEMPTED
    server.exit(id, TERMINATED)
    assert (server.job(id).state, server.job(id).attempt) == (S.STARTING, 2)
    server.tell(replace(server.read_gpus(), signs=()))
    assert server.job(id).state is S.STARTING


@pytest.mark.parametrize("sign", [works, computes, prints])
def test_any_sign_of_life_restarts_the_clock(sign: Callable[[FakeProcess], None]) -> None:
    server = a_server("end 5m")
    id = at_work(server)
    live(server, id, 290, idles)
    live(server, id, 1, sign)
    live(server, id, 290, idles)
    assert server.job(id).state is S.RUNNING
    live(server, id, 15, idles)
    assert server.job(id).stop is Cause.IDLE


def test_who_only_might_be_warned_is_left_alone_once_it_has_run_kernels() -> None:
    """It keeps nobody off its GPUs."""
    server = a_server("warn 1m")
    id = at_work(server)
    server.submit(gpus=2, exclusive=True)
    live(server, id, 600, idles)
    assert server.job(id).notes == ()


def test_a_job_that_reads_its_data_does_not_hang() -> None:
    server = a_server("end 1m")
    id = server.submit()
    live(server, id, 100, computes)
    assert server.job(id).stop is None
    live(server, id, 70, idles)
    assert server.job(id).stop is Cause.IDLE


def test_under_mps_a_neighbours_kernels_are_no_sign_of_life() -> None:
    """The driver tells nothing of its clients there."""
    server = a_server("end 5m", gpus=1)
    id = at_work(server)
    server.sm_active = dict.fromkeys(server.sm_active, 0.9)
    process_of(server, id).memory_mib = 0
    neighbour = server.submit(memory_mib=1000)
    assert server.job(neighbour).gpus == server.job(id).gpus
    server.strangers = tuple(
        ProcessUse(each, 2000, None, job=each, attempt=1) for each in (id, neighbour)
    )
    live(server, id, 60, idles, computes)
    assert server.job(id).state is S.RUNNING
    live(server, id, 330, idles)
    assert server.job(id).stop is Cause.IDLE


def test_time_without_readings_does_not_count() -> None:
    server = a_server("end 5m")
    id = at_work(server)
    live(server, id, 200, idles)
    server.now += 3600.0
    live(server, id, 50, idles)
    assert server.job(id).state is S.RUNNING


def test_a_suspended_job_is_not_stalled() -> None:
    server = a_server("end 5m", suspend=Suspending(host_memory_mib=20_000))
    id = at_work(server)
    live(server, id, 200, idles)
    server.tell(SuspendRequested(server.now, id, "ada"))
    server.pass_time(600)
    server.tell(ResumeRequested(server.now, id, "ada"))
    server.pass_time(290)
    assert server.job(id).state is S.RUNNING
    server.pass_time(15)
    assert server.job(id).stop is Cause.IDLE


@pytest.mark.parametrize("spec", [{"interactive": True}, {"idle_ok": "it serves"}])
def test_who_is_left_alone(spec: dict[str, Any]) -> None:
    server = a_server("end 5m")
    id = at_work(server, **spec)
    live(server, id, 900, idles)
    job = server.job(id)
    assert job.stop is None and job.current.stalled_since is None and logs_read(server) == []


def test_that_a_job_is_stalled_is_on_record_and_said() -> None:
    server = a_server()
    id = at_work(server)
    live(server, id, 62, idles)
    scene = server.scene
    jobs = Jobs(scene, lambda job, ahead: ("out", "err"), (0, "root"), see_all=True)
    answer = why_out(scene.live[id], scene, [], jobs)
    assert answer["headline"] == "running: no sign of life for 62 s"
    assert answer["remedies"] == [
        f"it hangs, or waits for something: its log may say which, carma logs {id}"
    ]
    live(server, id, 2, works)
    live(server, id, 70, idles)
    found = [h for step in server.steps for h in happenings(step) if h.kind is Kind.STALLED]
    assert [words(each, {}) for each in found] == ["shows no sign of life"] * 2
    assert notices(found[0]) == ()
    live(server, id, 2, works)
    assert server.job(id).current.stalled_since is None


# -- after an out-of-memory error


def test_a_job_that_hangs_after_an_out_of_memory_error_is_recovered() -> None:
    server = a_server()
    id = at_work(server)
    process_of(server, id).printed = (1500, 0)  # the error
    live(server, id, 299, idles)
    assert logs_read(server) == []
    live(server, id, 2, idles)
    (read,) = logs_read(server)
    assert (read.job.id, read.begins) == (id, (1000, 0))
    stumble(server, id)
    server.pass_time(1)
    job = server.job(id)
    assert job.stop is Cause.GPU_OOM
    assert job.notes[-1] == (
        "was ended: it had shown no sign of life for 5 min ([recovery] hung_s) after an"
        " out-of-memory error: torch.OutOfMemoryError: CUDA out of memory."
    )
    server.scheduler.state.ledger.put(job.with_attempt(shared=True))  # it was not alone
    server.exit(id, TERMINATED)
    job = server.job(id)
    assert (job.attempt, job.exclusive) == (2, True)
    assert [exit.cause for exit in job.failures] == [Cause.GPU_OOM]
    assert job.failures[0].evidence == "it was ended, as it hung after an out-of-memory error"


def test_it_counts_as_any_out_of_memory_error_does() -> None:
    server = a_server(recovery=Recovery(retries=1))
    id = at_work(server)
    for at in (1500, 3000):
        process_of(server, id).printed = (at, 0)
        live(server, id, 302, idles)
        stumble(server, id)
        server.pass_time(1)
        assert server.job(id).stop is Cause.GPU_OOM
        server.scheduler.state.ledger.put(server.job(id).with_attempt(shared=True))
        server.exit(id, OOM)
    assert server.last(id).state is S.OUT_OF_MEMORY


def test_who_ends_well_before_it_is_ended_has_succeeded() -> None:
    server = a_server()
    id = at_work(server)
    process_of(server, id).printed = (1500, 0)
    live(server, id, 302, idles)
    stumble(server, id)
    server.pass_time(1)
    server.exit(id)
    assert server.last(id).state is S.SUCCEEDED


def test_a_job_that_goes_on_after_the_error_is_left_alone() -> None:
    """It has caught the error, and made its batches smaller."""
    server = a_server()
    id = at_work(server)
    process_of(server, id).printed = (1500, 0)
    live(server, id, 10, idles)
    live(server, id, 600, works)
    assert logs_read(server) == []
    live(server, id, 620, idles)
    first, again = logs_read(server)  # a file server may not have answered
    assert first.begins == again.begins == (1500, 0), "what came before its last work is over"
    assert server.job(id).state is S.RUNNING and server.job(id).notes == ()


def test_an_error_that_was_found_does_not_count_once_the_job_goes_on() -> None:
    server = a_server()
    id = at_work(server)
    process_of(server, id).printed = (1500, 0)
    live(server, id, 299, idles)
    live(server, id, 3, computes)  # it is quiet, not stalled
    stumble(server, id)
    live(server, id, 30, works)
    live(server, id, 400, idles)
    assert server.job(id).state is S.RUNNING


def test_what_was_printed_before_carmad_started_counts_as_overcome() -> None:
    server = a_server()
    id = server.submit()
    server.run_kernel(id)
    server.now += 3600.0
    process_of(server, id).printed = (1500, 0)
    server.scheduler.state.idleness.__init__()  # type: ignore[misc]
    live(server, id, 310, idles)
    assert [read.begins for read in logs_read(server)] == [(1500, 0)]


def test_of_a_job_that_is_at_work_in_part_its_owner_is_told() -> None:
    """The process on its other GPU is gone. Whether those that are left wait for it, spinning, or
    do what they are there for, looks the same from outside."""
    server = a_server()
    id = at_work(server, gpus=2)
    process = process_of(server, id)
    process.printed, process.gpus = (1500, 0), process.gpus[:1]
    live(server, id, 302, works)
    stumble(server, id)
    live(server, id, 600, works)
    job = server.job(id)
    assert job.state is S.RUNNING
    assert job.notes[-1].startswith("has printed nothing since an out-of-memory error")
    live(server, id, 301, idles)
    assert server.job(id).stop is Cause.GPU_OOM


def test_it_can_be_switched_off() -> None:
    server = a_server(recovery=Recovery(hung_s=0.0))
    id = at_work(server)
    live(server, id, 900, idles)
    assert logs_read(server) == []


# -- with the daemon


def test_a_job_that_hangs_after_an_error_with_the_daemon_and_the_command(tmp_path: Path) -> None:
    says = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.' >&2"
    trains = " ".join(map(str, train(memory_mib=4_000, seconds=1000, sm=0.1, warmup=0.1)))
    settings = {"CARMA_RECOVERY__HUNG_S": "3", **NO_KERNELS}
    with running(tmp_path, "1xA100-40GB", **settings) as daemon:
        catches = daemon.sh(f"{says}; {trains} > /dev/null; true", memory_mib=5_000)
        daemon.await_state(catches, "running")
        hangs = daemon.sh(f"{says}; exec sleep 1000", memory_mib=5_000)
        until(lambda: daemon.job(hangs)["failures"], "the recovery")
        assert daemon.job(hangs)["state"] == "queued"
        (failure,) = daemon.job(hangs)["failures"]
        assert (failure["cause"], failure["tried_mib"]) == ("gpu_oom", 20)
        why = "no sign of life for 3 s ([recovery] hung_s) after an out-of-memory error"
        assert why in daemon.carma("show", str(hangs))
        its = daemon.job(catches)
        assert its["state"] == "running"
        assert not any("out-of-memory" in note for note in its["notes"])


def test_a_job_that_hangs_with_the_daemon_and_the_command(tmp_path: Path) -> None:
    with running(tmp_path, CARMA_IDLE__HUNG="end 4s") as daemon:
        prints = daemon.sh("while sleep 0.2; do echo waiting; done")
        hangs = daemon.sh("exec sleep 1000")
        assert daemon.ended(hangs)["exit"]["cause"] == "idle"
        assert "it had shown no sign of life for 4 s" in daemon.carma("why", str(hangs))
        assert daemon.job(prints)["state"] == "starting"
