"""An attempt's processes as a whole: who they are, frozen, and with more of the host's memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from carmad.attempt import launcher, members, supervisor
from carmad.attempt.callers import Process
from carmad.attempt.environment import job_environment
from carmad.attempt.evidence import Evidence
from carmad.attempt.launcher import Launcher
from carmad.attempt.proc import process_stat
from carmad.attempt.process_tree import VARIABLE, Tree
from carmad.config import Suspending
from carmad.core.jobs.attempt import GpuId, MemoryLimits
from carmad.core.jobs.job import Job
from carmad.core.messages import Launch, LimitMemory
from carmad.daemon.world import DaemonWorld
from carmad.engine.clock import boottime
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.cuda_state import Outcome, State, is_stopped
from carmad.gpu.emulated import EmulatedSource, create
from carmad.gpu.limits import NvmlLimiter
from tests.attempts import Bench, a_cgroup, in_a_unit
from tests.carmad.daemon.test_world import Inbox, declared, unmeasured
from tests.carmad.gpu.test_emulated_driver import work_s
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from tests.fake_nvml import FakeNvml

pytest_plugins = ("tests.fake_nvml",)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a cgroup")
COUNT = "while :; do echo $$; sleep 0.05; done"
SAVES = f"trap 'echo saved; exit 3' TERM; {COUNT}"
STUBBORN = f"trap '' TERM; {COUNT}"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def in_groups(bench: Bench) -> Iterator[Bench]:
    """Jobs have cgroups below a delegated one, as without systemd."""
    with a_cgroup() as group:
        bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=60.0, group=str(group))
        yield bench


def group_of(bench: Bench, job: Job) -> Path:
    found = members.find(bench.directory(job), job)
    assert found
    return Path(found)


def is_frozen(bench: Bench, job: Job) -> bool:
    return "frozen 1" in (group_of(bench, job) / "cgroup.events").read_text()


def freeze(bench: Bench, job: Job) -> None:
    assert bench.launcher.freeze(job) == ""
    assert bench.launcher.freeze(job) == "", "as often as you like"
    until(lambda: is_frozen(bench, job), "it to be frozen")


# Which they are.


def test_without_a_cgroup_they_are_the_supervisors_descendants(bench: Bench) -> None:
    job = bench.job("sh", "-c", "echo $$; setsid sh -c 'echo $$; exec sleep 600' & wait")
    assert bench.launcher.pids(job) == frozenset()
    bench.launch(job)
    pids = until(lambda: set(map(int, bench.lines())), "both", wanted=lambda found: len(found) == 2)
    assert bench.launcher.pids(job) == pids
    assert bench.launcher.freeze(job) == bench.launcher.thaw(job) == ""
    assert bench.launcher.allow(job, 1000) == ""
    bench.launcher.stop(job, 0.0)
    bench.ended(job)
    assert bench.launcher.pids(job) == frozenset()


def test_without_a_cgroup_a_process_of_the_owners_is_one_of_them(bench: Bench) -> None:
    process = subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    stat = process_stat(process.pid)
    assert stat
    job = bench.job("sh")
    bench.launcher.launch(job, job_environment(job, ()), Process(process.pid, stat[1]))
    bench.started(job)
    found = until(lambda: bench.launcher.pids(job), "both", wanted=lambda pids: len(pids) == 2)
    assert process.pid in found
    bench.launcher.stop(job, 0.0)
    process.wait()
    bench.ended(job)


@as_root
def test_those_in_its_cgroup_without_its_supervisor(in_groups: Bench) -> None:
    job = in_groups.launch(in_groups.job("sh", "-c", COUNT))
    pid = int(until(in_groups.lines, "the job to speak")[0])
    pids = in_groups.launcher.pids(job)
    assert pid in pids
    assert in_groups.started(job)["pid"] not in pids
    in_groups.launcher.stop(job, 0.0)
    in_groups.ended(job)


@as_root
def test_limits_are_those_of_its_cgroup_from_its_start_until_it_is_removed(
    in_groups: Bench, nvml: FakeNvml
) -> None:
    gpu = GpuId("GPU-aaaa")
    nvml.show(f"gpu {gpu}\nname NVIDIA H100\npci 0 81 0\nmemory 81920 500 0")
    world = DaemonWorld(
        state_dir=in_groups.state,
        inbox=Inbox(),  # type: ignore[arg-type]
        estimate=declared,
        measured=unmeasured,
        whole=lambda spec: spec,
        launcher=in_groups.launcher,
        evidence=Evidence(),
        mps=None,
        checkpoints=Checkpoints(""),
        limiter=NvmlLimiter(),
        suspending=Suspending,
        kill_grace_s=1.0,
        extra_env={},
    )
    job = in_groups.job("sh", "-c", COUNT).with_attempt(gpus=(gpu,))
    limited = job.with_attempt(memory_limits=(MemoryLimits(gpu, 12_288, 31_744),))
    limits = Path(f"{nvml.world}.limits")
    pynvml.nvmlInit()
    try:
        world.shepherd.start()
        world.perform(LimitMemory(limited))
        world.perform(Launch(job))
        until(lambda: limits.exists() and limits.read_text(), "its limits to be set")
        where = in_groups.launcher.cgroup(job)
        assert limits.read_text() == f"{gpu} {12_288 << 20} {31_744 << 20} {where}\n"
        assert where and Path(where) == group_of(in_groups, job)
        lifted = job.with_attempt(memory_limits=(MemoryLimits(gpu),))
        world.perform(LimitMemory(lifted))
        until(lambda: not limits.read_text(), "them to be lifted")
    finally:
        in_groups.launcher.stop(job, 0.0)
        in_groups.ended(job)
        world.close()
        pynvml.nvmlShutdown()


# Frozen.


@as_root
def test_a_frozen_job_does_not_run_until_it_is_thawed(in_groups: Bench) -> None:
    bench = in_groups
    job = bench.launch(bench.job("sh", "-c", COUNT))
    until(bench.lines, "the job to speak")
    freeze(bench, job)
    said = len(bench.lines())
    assert bench.launcher.pids(job), "they are still known"
    assert bench.launcher.thaw(job) == ""
    until(bench.lines, "it to go on", wanted=lambda lines: len(lines) > said)
    assert not is_frozen(bench, job)
    bench.launcher.stop(job, 0.0)
    bench.ended(job)
    assert "gone" in bench.launcher.freeze(job)
    assert bench.launcher.thaw(job) == ""


@as_root
def test_a_supervisor_that_does_not_answer_freezes_nothing(
    in_groups: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was asked meanwhile it does later, in that order."""
    job = in_groups.launch(in_groups.job("sh", "-c", COUNT))
    until(in_groups.lines, "the job to speak")
    pid = in_groups.started(job)["pid"]
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(launcher, "ANSWERS_WITHIN_S", 0.1)
    assert in_groups.launcher.freeze(job) == "its supervisor does not answer within 0.1 s"
    assert in_groups.launcher.thaw(job) == "", "nothing has frozen it yet"
    monkeypatch.undo()
    os.kill(pid, signal.SIGCONT)
    assert in_groups.launcher.thaw(job) == ""
    assert not is_frozen(in_groups, job)
    in_groups.launcher.stop(job, 0.0)
    in_groups.ended(job)


@as_root
def test_its_user_can_neither_thaw_it_nor_ask_for_that(in_groups: Bench) -> None:
    job = in_groups.launch(in_groups.job("sh", "-c", COUNT))
    until(in_groups.lines, "the job to speak")
    group, directory = group_of(in_groups, job), in_groups.directory(job)
    for path in (group / "cgroup.freeze", group / "cgroup.procs", directory / supervisor.CONTROL):
        its = path.stat()
        assert (its.st_uid, its.st_mode & 0o022) == (0, 0), path
    assert directory.stat().st_mode & 0o077 == 0
    in_groups.launcher.stop(job, 0.0)
    in_groups.ended(job)


@as_root
def test_a_frozen_job_still_gets_its_sigterm(in_groups: Bench) -> None:
    job = in_groups.launch(in_groups.job("sh", "-c", SAVES, stderr="/dev/null"))
    until(in_groups.lines, "the job to speak")
    freeze(in_groups, job)
    in_groups.launcher.stop(job, 60.0)
    end = in_groups.ended(job)
    assert (end["code"], end["stopped"]) == (3, True)
    assert in_groups.lines()[-1] == "saved"


@as_root
def test_a_frozen_job_is_killed_after_its_grace(in_groups: Bench) -> None:
    """Nobody can freeze it again meanwhile."""
    job = in_groups.launch(in_groups.job("sh", "-c", STUBBORN))
    until(in_groups.lines, "the job to speak")
    freeze(in_groups, job)
    in_groups.launcher.stop(job, 60.0)
    assert in_groups.launcher.freeze(job) == "it is ending"
    until(lambda: not is_frozen(in_groups, job), "it to be thawed")
    in_groups.launcher.stop(job, 0.2)
    assert in_groups.ended(job)["signal"] == signal.SIGKILL


@as_root
def test_a_frozen_job_ends_when_its_time_is_over(in_groups: Bench) -> None:
    job = in_groups.launch(in_groups.job("sh", "-c", SAVES, stderr="/dev/null"))
    until(in_groups.lines, "the job to speak")
    freeze(in_groups, job)
    assert in_groups.launcher.keep_time(job, boottime())
    end = in_groups.ended(job)
    assert (end["code"], end["cause"]) == (3, "time_limit")


@as_root
def test_in_a_unit_of_its_own_its_supervisor_is_not_frozen(bench: Bench) -> None:
    with in_a_unit(bench, "sh", "-c", SAVES, stderr="/dev/null") as (job, unit):
        until(bench.lines, "the job to speak")
        freeze(bench, job)
        assert group_of(bench, job) == unit / "job"
        assert bench.launcher.pids(job)
        assert bench.started(job)["pid"] not in bench.launcher.pids(job)
        bench.launcher.stop(job, 60.0)
        assert bench.ended(job)["code"] == 3


@as_root
def test_a_job_is_suspended_frozen_and_resumed(in_groups: Bench, tmp_path: Path) -> None:
    """In the order in which that works: a frozen process cannot be suspended or resumed."""
    bench, cards = in_groups, tmp_path / "cards"
    create(cards, "1xT4-16GB")
    source, checkpoints = EmulatedSource(cards), Checkpoints(str(cards))
    (gpu,) = source.discover()
    program = f"{sys.executable} -m carmad.gpu.emulated_job --seconds 600 --warmup 0 & wait"
    job, began = bench.job("sh", "-c", program), time.monotonic()
    env = job_environment(job, (GpuId(gpu.id),)) | {"CARMA_EMULATED_DIR": str(cards)}
    bench.launcher.launch(job, env | {"PYTHONPATH": str(Path(__file__).parents[3])})
    until(lambda: source.sample(0.0)[0].sm_active, "it to compute")

    def find_pids() -> frozenset[int]:
        return bench.launcher.pids(job)

    freeze(bench, job)
    assert all(map(is_stopped, find_pids()))
    assert "frozen" in checkpoints.suspend(find_pids, 1.0, PATIENCE_S).why
    assert bench.launcher.thaw(job) == ""
    assert checkpoints.suspend(find_pids, 1.0, PATIENCE_S) == Outcome(True)
    freeze(bench, job)
    worked_s = time.monotonic() - began  # at most
    assert source.sample(0.0)[0].memory_used_mib == 0
    assert State.CHECKPOINTED in checkpoints.states(find_pids()).values()
    time.sleep(2.0)
    assert "frozen" in checkpoints.resume(find_pids(), (), PATIENCE_S).why
    assert bench.launcher.thaw(job) == ""
    resumed, said = time.monotonic(), len(bench.lines())
    assert checkpoints.resume(find_pids(), (), PATIENCE_S) == Outcome(True)
    lines = until(bench.lines, "it to go on", wanted=lambda lines: len(lines) > said)
    assert work_s(lines[-1]) <= worked_s + time.monotonic() - resumed
    bench.launcher.stop(job, 0.0)
    bench.ended(job)
    source.close()


# Its limit of the host's memory. The kernel's memory controller is not everywhere: files stand in.


@pytest.fixture
def limited(bench: Bench, tmp_path: Path) -> Iterator[tuple[Bench, Job, Path]]:
    group = tmp_path / "group"
    own = group / "carma-job-1-1"
    own.mkdir(parents=True)
    for name in ("cgroup.procs", "memory.max", "memory.swap.max"):
        (own / name).touch()
    (own / "memory.current").write_text(str(50 << 20))
    (own / "memory.stat").write_text("anon 10000000\nactive_file 5000\n")
    bench.launcher = Launcher(bench.state, systemd=False, kill_grace_s=0.3, group=str(group))
    job = bench.launch(bench.job("sh", "-c", COUNT, host_memory_mib=64))
    until(bench.lines, "the job to speak")
    yield bench, job, own
    bench.launcher.stop(job, 0.0)
    bench.ended(job)


def test_it_may_have_more_than_its_limit_for_a_while(limited: tuple[Bench, Job, Path]) -> None:
    bench, job, own = limited
    most, swap = own / "memory.max", own / "memory.swap.max"
    assert most.read_text() == str(64 << 20)
    assert bench.launcher.allow(job, 1000) == ""
    assert most.read_text() == str(1064 << 20)
    most.write_text("")  # the kernel replaces it
    assert bench.launcher.allow(job, 0) == ""
    assert (most.read_text(), swap.read_text()) == (str(64 << 20), "0")


def test_its_limit_is_not_lowered_below_what_it_uses(limited: tuple[Bench, Job, Path]) -> None:
    """The kernel would end it; but it can take back what is cached of files."""
    bench, job, own = limited
    assert bench.launcher.allow(job, 1000) == ""
    (own / "memory.current").write_text(str(900 << 20))
    assert bench.launcher.allow(job, 0) == "it uses more than that now"
    assert (own / "memory.max").read_text() == str(1064 << 20)
    (own / "memory.stat").write_text(f"inactive_file {800 << 20}\nslab_reclaimable {50 << 20}\n")
    (own / "memory.max").write_text("")
    assert bench.launcher.allow(job, 0) == ""
    assert (own / "memory.max").read_text() == str(64 << 20)


def test_what_the_kernel_refuses_is_told(limited: tuple[Bench, Job, Path]) -> None:
    bench, job, own = limited
    (own / "memory.max").unlink()
    (own / "memory.max").mkdir()
    assert bench.launcher.allow(job, 1000) == "the kernel refuses: Is a directory"


def test_without_a_limit_there_is_nothing_to_do(limited: tuple[Bench, Job, Path]) -> None:
    bench, job, own = limited
    (own / "memory.max").unlink()
    assert bench.launcher.allow(job, 1000) == ""
    assert not (own / "memory.max").exists()


def test_what_its_parent_has_not_reaped_is_not_waited_for() -> None:
    """On a system without cgroups, of a job at a terminal: its shell reaps the program last."""
    (shell, start), mark = (os.getpid(), (process_stat(os.getpid()) or (0, 0))[1]), b"/attempt"
    tree = Tree(shell, None, uid=os.getuid(), mark=mark)
    tree.follow(shell, start)
    env = {VARIABLE.decode(): mark.decode(), "PATH": os.defpath}
    with subprocess.Popen(["sleep", "1000"], env=env) as program:
        until(lambda: program.pid in tree.find_marked(), "the program to begin")
        program.kill()
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert program.pid not in tree.find_marked()
