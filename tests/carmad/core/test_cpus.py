"""CPUs and memory of the host: jobs without GPUs, what is counted, who waits for whom."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from carma_testing import FakeServer, a_gpu, a_spec
from carmad import registry
from carmad.api.reasons import phrase
from carmad.attempt import environment
from carmad.attempt.launcher import Launcher
from carmad.config import Host, Limits, Settings
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import JobState
from carmad.core.messages import CancelRequested, Discovered, Reconfigured, Stepped
from carmad.core.placing.decision import Proposal
from carmad.core.placing.view import View
from carmad.gpu.driver import cpus_near
from tests.attempts import Bench
from tests.daemon import Carmad, running, until

S = JobState
HOST = Settings(host=Host(cpus=8, memory_mib=64 * 1024))


def states(server: FakeServer, *jobs: JobId) -> list[JobState]:
    return [server.last(job).state for job in jobs]


def why(server: FakeServer, job: JobId) -> str:
    reason = server.scene.gate.blocker(server.job(job))
    assert reason
    return phrase(reason)


# -- without GPUs


class Watchful:
    """The usual policy, which asserts that it is shown no job without GPUs."""

    name = "watchful"

    def __init__(self) -> None:
        self._own = registry.bare_policy(Settings())
        self.ordered: list[JobId] = []

    def order(self, job: Job) -> float:
        self.ordered.append(job.id)
        return self._own.order(job)

    def plan(self, view: View) -> Iterable[Proposal]:
        assert all(job.spec.gpus for job in (*view.queue, *view.running))
        return self._own.plan(view)


def test_a_job_without_gpus_starts_though_every_gpu_is_taken_and_policies_never_see_it() -> None:
    policy = Watchful()
    server = FakeServer(gpus=1, settings=HOST, policy=policy)
    first, second = server.submit(exclusive=True), server.submit()
    job = server.submit(gpus=0, cpus=1, time_limit_s=60.0)
    assert states(server, first, second, job) == [S.STARTING, S.QUEUED, S.RUNNING]
    assert (server.job(job).gpus, server.job(job).mode) == ((), None)
    assert job not in policy.ordered
    server.tell(Stepped(server.now, job, 0.1))
    server.submit()
    server.pass_time(30)
    assert not server.job(job).notes, "nobody waits for its first kernel"
    server.pass_time(31)
    assert server.job(job).stop is Cause.TIME_LIMIT
    server.exit(job, Exit(Cause.FAILURE, signal=15))
    assert server.last(job).state is S.TIMED_OUT
    assert not list(server.scheduler.state.history.runs)


def test_it_starts_while_the_gpus_cannot_be_read() -> None:
    server = FakeServer(settings=HOST)
    server.tell(Discovered(server.now, (), "no driver"))
    of_gpus, job = server.submit(cpus=8), server.submit(gpus=0, cpus=8)
    assert states(server, of_gpus, job) == [S.QUEUED, S.RUNNING]


def test_its_gpu_errors_are_not_retried() -> None:
    server = FakeServer(settings=HOST)
    job = server.submit(gpus=0, cpus=1)
    server.exit(job, Exit(Cause.GPU_OOM, 1))
    assert server.last(job).state is S.FAILED


def test_a_restart_repeats_a_launch_that_may_not_have_happened() -> None:
    server = FakeServer(settings=HOST)
    job = server.submit(gpus=0, cpus=1)
    starting = next(j for step in server.steps for j in step.jobs if j.state is S.STARTING)
    (owed,) = server.scheduler.restore([starting])
    assert (type(owed).__name__, owed.job.id) == ("Launch", job)
    assert server.scene.held.host["cpus"] == 1


def test_nice_counts_among_them() -> None:
    server = FakeServer(settings=HOST)
    first = server.submit(gpus=0, cpus=8)
    rude, kind = server.submit(gpus=0, cpus=8, nice=5), server.submit(gpus=0, cpus=8)
    assert [server.scene.place(job) for job in (rude, kind)] == [2, 1]
    server.exit(first)
    assert states(server, rude, kind) == [S.QUEUED, S.RUNNING]


# -- counted


def test_a_job_waits_for_cpus_and_is_told_how_many_are_free_and_who_has_the_rest() -> None:
    server = FakeServer(settings=HOST)
    first, second = server.submit(cpus=6), server.submit(gpus=0, cpus=4)
    assert states(server, first, second) == [S.STARTING, S.QUEUED]
    assert why(server, second) == "it wants 4 CPUs; 2 of 8 are free: job 1 has 6"
    server.exit(first)
    assert states(server, second) == [S.RUNNING]
    server.exit(second)
    assert not +server.scene.held.host and not server.scene.held.of_host


def test_a_job_waits_for_memory() -> None:
    server = FakeServer(settings=HOST)
    server.submit(host_memory_mib=48 * 1024)
    second = server.submit(host_memory_mib=32 * 1024)
    assert why(server, second) == (
        "it wants 32.0G of the host's memory; 16.0G of 64.0G is free: job 1 has 48.0G"
    )
    assert server.job(server.submit(host_memory_mib=16 * 1024)).state is S.QUEUED, "second is first"


def test_what_asks_for_nothing_neither_counts_nor_waits() -> None:
    server = FakeServer(gpus=2, settings=HOST)
    first, large = server.submit(cpus=8), server.submit(cpus=8)
    small = server.submit()
    assert states(server, first, large, small) == [S.STARTING, S.QUEUED, S.STARTING]


def test_the_first_in_line_is_not_starved_of_cpus_by_small_jobs() -> None:
    server = FakeServer(gpus=2, settings=HOST)
    small = [server.submit(gpus=0, cpus=2) for _ in range(4)]
    large = server.submit(cpus=8)
    late = server.submit(gpus=0, cpus=2)
    server.exit(small.pop())
    assert states(server, large, late) == [S.QUEUED, S.QUEUED]
    assert why(server, late).endswith(
        "job 3 has 2, job 2 has 2, job 1 has 2, job 5 is before it and wants 8"
    ) or ("job 5 is before it and wants 8" in why(server, late))
    for job in small:
        server.exit(job)
    assert states(server, large, late) == [S.STARTING, S.QUEUED]
    server.exit(large)
    assert states(server, late) == [S.RUNNING]


def test_the_first_of_the_gpu_line_keeps_its_cpus_while_it_waits_for_a_gpu() -> None:
    server = FakeServer(gpus=1, settings=HOST)
    holder = server.submit(exclusive=True)
    head = server.submit(cpus=6)
    fits, does_not = server.submit(gpus=0, cpus=2), server.submit(gpus=0, cpus=1)
    assert states(server, head, fits, does_not) == [S.QUEUED, S.RUNNING, S.QUEUED]
    server.tell(CancelRequested(server.now, head, "ada"))
    assert states(server, does_not) == [S.RUNNING]
    assert server.job(holder).holds_gpus


def test_a_job_that_may_not_start_yet_keeps_nothing() -> None:
    server = FakeServer(gpus=1, settings=HOST)
    server.submit(cpus=8, begin_at=1e9)
    assert server.job(server.submit(gpus=0, cpus=8)).state is S.RUNNING


def test_one_that_may_not_start_yet_hides_nobody_behind_it() -> None:
    server = FakeServer(settings=HOST)
    server.submit(gpus=0, cpus=8, begin_at=1e9)
    assert server.job(server.submit(gpus=0, cpus=8, nice=5)).state is S.RUNNING


def test_one_far_from_the_head_holds_nobody_up() -> None:
    server = FakeServer(gpus=3, settings=HOST)
    server.submit(cpus=4, exclusive=True)
    first, second = server.submit(cpus=2, gpus=3), server.submit(cpus=8)
    third = server.submit(cpus=2, gpus=0)
    assert states(server, first, second, third) == [S.QUEUED, S.QUEUED, S.RUNNING]


def test_a_quota_of_gpus_and_new_settings_leave_them_alone_or_count_at_once() -> None:
    settings = Settings(host=Host(cpus=1), limits=Limits(gpus_per_user=1))
    server = FakeServer(gpus=2, settings=settings)
    server.submit()
    one, two = server.submit(gpus=0, cpus=1), server.submit(gpus=0, cpus=1)
    assert states(server, one, two) == [S.RUNNING, S.QUEUED]
    server.tell(Reconfigured(server.now, Settings(host=Host(cpus=2))))
    assert states(server, two) == [S.RUNNING]


def test_ten_thousand_that_wait_for_cpus_are_refused_with_one_reason() -> None:
    server = FakeServer(settings=HOST)
    for _ in range(20):
        server.submit(gpus=0, cpus=4)
    waiting = [job for job in server.scheduler.jobs.values() if job.state is S.QUEUED]
    scene = server.scene
    behind = {id(scene.gate.blocker(job)) for job in waiting[1:]}
    assert (len(waiting), len(behind)) == (18, 1)


# -- through the daemon


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cpus")
    with running(folder, "1xA100-40GB", CARMA_HOST__CPUS="4", CARMA_HOST__MEMORY_MIB="8192") as it:
        yield it


def submitted(daemon: Carmad, *words: str) -> int:
    return int(daemon.carma("submit", "--parsable", *words))


def test_a_job_on_cpus_alone_runs_and_is_shown(daemon: Carmad) -> None:
    says = "echo [$CUDA_VISIBLE_DEVICES] $OMP_NUM_THREADS $CARMA_CPUS; sleep 30"
    job = submitted(daemon, "--gpus", "0", "-c", "3", "--mem", "1G", "--wrap", says)
    daemon.await_state(job, "running")
    daemon.await_output(job, "[] 3 3")
    shown = daemon.carma("show", str(job))
    assert "CPUs" in shown and "host memory" in shown
    row = daemon.carma("queue", "-o", "jobid,gpus,cpus,mem,where", "--noheader")
    assert row.split() == [str(job), "0", "3", "1.0G", "-"]
    status = daemon.carma("status")
    assert "1 of 4 CPUs free" in status and "CPUs" not in status.replace("CPUs free", "")
    assert str(job) in status

    header, used = (line.split() for line in daemon.carma("share").splitlines())
    assert dict(zip(header, used, strict=True))["HOST"] == "0.75", "3 of 4 CPUs, and one GPU"

    assert "start now" in daemon.carma("submit", "--dry-run", "--gpus", "0", "true")
    second = submitted(daemon, "--gpus", "0", "-c", "2", "true")
    daemon.await_state(second, "queued")
    told = daemon.carma("why", str(second))
    assert f"waits: it wants 2 CPUs; 1 of 4 is free: job {job} has 3" in told
    assert "CPUs: 1 free, need 2" in daemon.carma("queue")
    tried = daemon.carma("submit", "--dry-run", "--gpus", "0", "-c", "2", "true")
    assert "It would wait." in tried and "it wants 2 CPUs" in tried
    daemon.cancel(job)
    assert daemon.ended(second)["state"] == "succeeded"
    ended = daemon.ended(job)
    assert (ended["state"], ended["gpu_seconds"]) == ("cancelled", 0.0)
    assert daemon.get("/v1/stats")["total"]["gpu_hours"] == 0.0
    assert "cpus" not in daemon.get("/v1/status")["server"]


def test_an_array_of_them_counts_one_cpu_each_unless_it_says_otherwise(daemon: Carmad) -> None:
    first = submitted(daemon, "--gpus", "0", "-a", "0-5", "--wrap", "sleep 30")
    until(lambda: daemon.get("/v1/status")["counts"]["running"] == 4, "four tasks to run")
    assert daemon.get("/v1/status")["counts"]["queued"] == 2
    daemon.post("/v1/cancel", {"select": str(first)})
    until(lambda: not daemon.get("/v1/jobs")["jobs"], "all to be gone")


def test_a_set_number_of_threads_is_kept(daemon: Carmad) -> None:
    words = ["--gpus", "0", "--export", "OMP_NUM_THREADS=7", "--wrap", "echo $OMP_NUM_THREADS"]
    job = submitted(daemon, *words)
    daemon.ended(job)
    assert daemon.output(job) == "7\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-c", "5"], "wants 5 CPUs, and this server has 4 for jobs"),
        (["--mem", "9G"], "wants 9.0G of the host's memory, and this server has 8.0G for jobs"),
        (["--gpus", "0", "--gpu-mem", "4G"], "wants no GPU, so --gpu-mem has no meaning"),
        (["--gpus", "0", "--exclusive"], "wants no GPU, so --exclusive has no meaning"),
        (["--gpus", "0", "--urgent"], "wants no GPU, so --urgent has no meaning"),
    ],
)
def test_what_can_never_start_is_refused(daemon: Carmad, words: list[str], told: str) -> None:
    assert told in daemon.carma("submit", *words, "true", rc=None)


def test_an_update_cannot_say_what_a_submission_may_not(daemon: Carmad) -> None:
    job = submitted(daemon, "--gpus", "0", "--hold", "true")
    told = daemon.carma("update", str(job), "--gpu-mem", "4G", rc=1)
    assert "wants no GPU, so --gpu-mem has no meaning" in told


def test_the_host_keeps_room_for_urgent_jobs_first() -> None:
    """Also before a job without GPUs that came earlier."""
    server = FakeServer(gpus=1, settings=HOST)
    running = server.submit(gpus=0, cpus=6)
    without = server.submit(gpus=0, cpus=5)
    server.pass_time(1)
    urgent = server.submit(cpus=5, urgent=True)
    server.pass_time(1)
    assert f"job {urgent} is before it" in why(server, without)
    assert f"job {without}" not in why(server, urgent)
    assert f"job {running} has 6" in why(server, urgent)


def test_it_outlives_its_daemon(tmp_path: Path) -> None:
    with running(tmp_path, "1xA100-40GB", CARMA_HOST__CPUS="2") as daemon:
        says = "while [ ! -e go ]; do sleep 0.05; done"
        job = daemon.sh(says, gpus=0, cpus=2)
        daemon.await_state(job, "running")
        waiting = daemon.sh("true", gpus=0)
        daemon.kill()
        daemon.start()
        assert daemon.await_state(job, "running")["attempt"] == 1
        assert f"job {job} has 2" in json.dumps(daemon.why(waiting))
        (daemon.work / "go").touch()
        assert daemon.ended(job)["state"] == "succeeded"
        assert daemon.ended(waiting)["state"] == "succeeded"


# -- enforced


def test_limits_are_a_cgroups_files() -> None:
    spec = a_spec(cpus=3, host_memory_mib=1024)
    assert environment.limit_files(spec) == {
        "cpu.max": "300000 100000",
        "memory.max": str(1 << 30),
        "memory.swap.max": "0",
    }
    assert environment.limit_files(a_spec()) == {}


def test_without_systemd_a_job_has_a_cgroup_below_the_delegated_one(tmp_path: Path) -> None:
    """Here it is a directory, with files where the kernel's would be."""
    bench, group = Bench(tmp_path), tmp_path / "group"
    own = group / "carma-job-1-1"
    own.mkdir(parents=True)
    for name in ("cgroup.procs", "cpu.max", "memory.max", "memory.swap.max"):
        (own / name).touch()
    (own / "memory.events").write_text("low 0\nmax 0\noom 0\noom_kill 0\n")
    (own / "memory.stat").write_text("anon 4096\nshmem 50000000\n")
    bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=0.3, group=str(group))
    struck = f"printf 'low 0\\nmax 5\\noom 2\\noom_kill 1\\n' >{own}/memory.events; kill -9 $$"
    end = bench.run("sh", "-c", struck, cpus=2, host_memory_mib=64)
    assert (end["signal"], end["host_oom_kills"], end["over_limit"]) == (9, 1, 2)
    assert end["shared_bytes"] == 50_000_000
    assert (own / "cpu.max").read_text() == "200000 100000"
    assert (own / "memory.max").read_text() == str(64 << 20)
    assert (own / "cgroup.procs").read_text() == "0"


def test_a_job_that_cannot_enter_its_cgroup_does_not_begin(tmp_path: Path) -> None:
    """Nobody could find it there."""
    bench, group = Bench(tmp_path), tmp_path / "group"
    (group / "carma-job-1-1").mkdir(parents=True)  # without `cgroup.procs`
    bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=0.3, group=str(group))
    assert "cannot enter the job's cgroup" in bench.run("touch", "ran")["error"]
    assert not (bench.cwd / "ran").exists()


def test_a_job_runs_where_no_cgroup_can_be_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    group = str(tmp_path / "none")
    bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=0.3, group=group)
    end = bench.run("true", cpus=2)
    assert (end["code"], end["host_oom_kills"], end["over_limit"]) == (0, None, None)
    assert bench.launcher.limited_by == frozenset()


def test_it_is_told_that_limits_are_only_counted(daemon: Carmad) -> None:
    submission = daemon.submission("true", cpus=1, host_memory_mib=64, held=True)
    answer = daemon.post("/v1/jobs", submission)
    daemon.cancel(answer["id"])
    assert answer["warnings"] == [
        "--cpus is counted, but this server cannot enforce it",
        "--mem is counted, but this server cannot enforce it",
    ]
    assert daemon.post("/v1/jobs", daemon.submission("true"))["warnings"] == []


# -- near


def test_the_cpus_near_a_gpu_are_those_of_its_numa_node(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:81:00.0"
    cpus = tmp_path / "devices/system/cpu"
    folder.mkdir(parents=True)
    cpus.mkdir(parents=True)
    (folder / "local_cpulist").write_text("2-3,6\n")
    (cpus / "online").write_text("0-7\n")
    assert cpus_near(0, 0x81, 0, tmp_path) == (2, 3, 6)
    (cpus / "online").write_text("2-3,6\n")
    assert cpus_near(0, 0x81, 0, tmp_path) == (), "there is one node"
    (folder / "local_cpulist").write_text("\n")
    assert cpus_near(0, 0x81, 0, tmp_path) == cpus_near(0, 0x82, 0, tmp_path) == ()


def test_only_a_job_that_asks_for_cpus_stays_near_and_only_if_they_are_enough() -> None:
    one, other, unknown = a_gpu(0, cpus=(0, 1)), a_gpu(1, cpus=(2, 3)), a_gpu(2)
    assert environment.cpus_near(a_spec(cpus=2), [one]) == (0, 1)
    assert environment.cpus_near(a_spec(cpus=3), [one, other]) == (0, 1, 2, 3)
    assert environment.cpus_near(a_spec(cpus=3), [one]) == ()
    assert (
        environment.cpus_near(a_spec(), [one])
        == environment.cpus_near(a_spec(cpus=1), [one, unknown])
        == ()
    )
    assert environment.cpus_near(a_spec(cpus=1), []) == ()


def test_a_job_starts_on_those_that_there_are(tmp_path: Path) -> None:
    bench, mine = Bench(tmp_path), os.sched_getaffinity(0)
    for number, (near, stays) in enumerate([((min(mine),), {min(mine)}), ((8000,), mine)], 1):
        says = "import os; print(*os.sched_getaffinity(0))"
        job = bench.job(sys.executable, "-c", says, attempt=number)
        bench.launcher.launch(job, {}, cpus=near)
        assert bench.ended(job)["code"] == 0
        assert set(map(int, bench.lines()[-1].split())) == stays
