"""The calls of CUDA's process checkpoint, and the helpers that make them, on a fake driver that
checks what it is given, fails, hangs and dies (fake_cuda)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from carmad import units
from carmad.gpu import checkpoint, cuda_state, libcuda
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.cuda_state import Outcome, State, is_stopped
from carmad.gpu.libcuda import GpuPair, LockArgs, NoArgs, RestoreArgs
from carmad.selftest.bench import Probe
from tests import fake_gpu
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine",)

DONE = Outcome(True)
LATE_S = 2.0
LATE = f"the driver did not answer within {LATE_S:g} s"


class Bench:
    """Processes with 1,000 MiB on a GPU, beside their contexts."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.probes: list[Probe] = []
        self.checkpoints = Checkpoints()

    def start(self, gpu: int = 0) -> Probe:
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": fake_gpu.uuid(gpu)}
        env["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"
        probe = Probe(units.program("carmad.selftest.probe"), env)
        self.probes.append(probe)
        probe.ask("context")
        probe.ask("allocate", mib=1000)
        return probe

    def plan(self, *words: str) -> None:
        """What goes wrong from now on."""
        fake_gpu.deviate(self.machine.folder, *words)

    def calls(self) -> list[str]:
        path = self.machine.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def suspend(self, *probes: Probe, within_s: float = PATIENCE_S) -> Outcome:
        return self.checkpoints.suspend(lambda: [each.pid for each in probes], 1.5, within_s)

    def resume(
        self, *probes: Probe, moves: tuple[tuple[str, str], ...] = (), within_s: float = PATIENCE_S
    ) -> Outcome:
        return self.checkpoints.resume([each.pid for each in probes], moves, within_s)

    def states(self, *probes: Probe) -> list[State | None]:
        found = self.checkpoints.states([each.pid for each in probes])
        return [found.get(each.pid) for each in probes]

    def gpu_of(self, probe: Probe) -> str:
        return (self.machine.folder / f"processes/{probe.pid}").read_text().split()[0]


@pytest.fixture
def bench(machine: Machine) -> Iterator[Bench]:
    machine.have(gpus=2)
    its = Bench(machine)
    yield its
    for probe in its.probes:
        probe.kill()


def test_the_structures_are_those_of_cuda_h() -> None:
    for kind in (LockArgs, RestoreArgs, NoArgs):
        assert ctypes.sizeof(kind) == 64
    assert ctypes.sizeof(GpuPair) == 32
    assert (RestoreArgs.count.offset, RestoreArgs.reserved1.offset) == (8, 56)
    assert LockArgs.reserved1.offset == 8


def test_a_process_is_suspended_and_resumed(bench: Bench) -> None:
    probe = bench.start()
    assert bench.states(probe) == [State.RUNNING]
    assert bench.suspend(probe) == DONE
    assert bench.calls() == [f"lock {probe.pid} 1500", f"checkpoint {probe.pid}"]
    assert (bench.machine.pids(), bench.states(probe)) == ([], [State.CHECKPOINTED])
    probe.begin("allocate", mib=10)
    time.sleep(0.2)
    assert bench.suspend(probe) == DONE, "it is already"
    assert bench.resume(probe) == DONE
    assert bench.calls() == [f"restore {probe.pid}", f"unlock {probe.pid}"]
    assert (bench.machine.pids(), bench.states(probe)) == ([probe.pid], [State.RUNNING])
    probe.answer()


def test_where_persistence_mode_is_off_the_helper_wakes_the_gpus(bench: Bench) -> None:
    bench.plan("no_persistence")
    probe = bench.start()
    assert bench.suspend(probe) == bench.resume(probe) == DONE


def test_what_the_environment_would_change_about_the_driver_is_kept_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LD_PRELOAD", "LD_AUDIT", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.setenv(name, "/elsewhere")
    found = checkpoint._environment()
    assert {value for name, value in found.items() if name.startswith(("LD_P", "CUDA_"))} == {
        "/nonexistent/carma-without-mps"
    }
    assert "LD_AUDIT" not in found


def test_a_process_without_cuda_and_one_that_is_gone_are_left_alone(bench: Bench) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    ended = subprocess.Popen(["true"])
    pids = [sleeper.pid, ended.pid]  # the latter a zombie
    until(lambda: cuda_state.is_gone(ended.pid), "it to end")
    assert bench.checkpoints.states(pids) == dict.fromkeys(pids, State.NONE)
    assert bench.checkpoints.suspend(lambda: pids, 1.0, PATIENCE_S) == DONE
    assert bench.calls() == []
    sleeper.kill()
    for each in (sleeper, ended):
        each.wait()


# What fails.


@pytest.mark.parametrize(
    ("code", "words"),
    [(600, "its kernels did not end in time"), (801, "a client of MPS"), (305, "CUDA error 305")],
)
def test_what_cannot_be_locked_runs_on(bench: Bench, code: int, words: str) -> None:
    first, second = bench.start(), bench.start()
    bench.plan(f"lock={code} {max(first.pid, second.pid)}")
    outcome = bench.suspend(first, second)
    assert (outcome.done, outcome.lost) == (False, False)
    assert words in outcome.why
    assert bench.states(first, second) == [State.RUNNING] * 2


def test_a_client_of_mps_cannot_be_locked(bench: Bench) -> None:
    probe = bench.start()
    its = bench.machine.folder / f"processes/{probe.pid}"
    its.write_text(its.read_text().replace("compute", "mps"))
    assert "a client of MPS" in bench.suspend(probe).why
    assert bench.states(probe) == [State.RUNNING]


def test_without_room_it_stays_suspended(bench: Bench) -> None:
    probe, other = bench.start(), bench.start()
    assert bench.suspend(probe) == DONE
    other.ask("allocate", mib=79_000)
    outcome = bench.resume(probe)
    assert (outcome.done, outcome.lost) == (False, False)
    assert "not enough free memory" in outcome.why
    other.end()
    assert bench.resume(probe) == DONE


def test_a_process_that_fails_is_lost(bench: Bench) -> None:
    probe = bench.start()
    bench.plan("checkpoint=fails")
    assert bench.suspend(probe) == Outcome(False, f"process {probe.pid}: CUDA error 999", lost=True)


def test_who_is_not_root_changes_nothing(bench: Bench) -> None:
    probe = bench.start()
    bench.plan("not_root")
    outcome = bench.suspend(probe)
    assert (outcome.done, outcome.lost) == (False, False)
    assert "only root may" in outcome.why


def test_what_is_stopped_is_not_touched(bench: Bench) -> None:
    probe = bench.start()
    os.kill(probe.pid, signal.SIGSTOP)
    until(lambda: is_stopped(probe.pid), "it to stop")
    assert "is stopped (SIGSTOP)" in bench.suspend(probe).why
    assert bench.calls() == []


# Moves.


def test_a_process_moves_to_another_gpu(bench: Bench) -> None:
    probe = bench.start()
    assert bench.suspend(probe) == DONE
    pair = fake_gpu.uuid(0), fake_gpu.uuid(1)
    assert bench.resume(probe, moves=(pair,)) == DONE
    assert f"restore {probe.pid} {pair[0]}={pair[1]}" in bench.calls()
    assert bench.gpu_of(probe) == pair[1]
    probe.ask("allocate", mib=10)
    assert bench.gpu_of(probe) == pair[1]


def test_it_stays_suspended_if_it_cannot_move(bench: Bench) -> None:
    probe, one, other = bench.start(), fake_gpu.uuid(0), fake_gpu.uuid(1)
    assert bench.suspend(probe) == DONE
    bench.calls()
    assert "no job can move" in bench.resume(probe, moves=((one, f"MIG-{one}"),)).why
    bench.plan("driver_570")
    assert "needs driver 580" in bench.resume(probe, moves=((one, other),)).why
    assert bench.calls() == []
    assert bench.states(probe) == [State.CHECKPOINTED]
    assert bench.resume(probe) == DONE


# Other drivers.


def test_without_a_driver_it_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    outcome = bench.checkpoints.suspend(lambda: [os.getpid()], 1.0, PATIENCE_S)
    assert (outcome.done, outcome.lost) == (False, False)
    assert outcome.why.startswith("there is no NVIDIA driver")


def test_an_older_driver_cannot_do_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned flags) { return flags; }\n")
    fake_gpu.compile_library(source, tmp_path / "libcuda.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    outcome = bench.checkpoints.suspend(lambda: [os.getpid()], 1.0, PATIENCE_S)
    assert outcome == Outcome(False, "suspending jobs needs driver 570 or newer")


def test_a_newer_driver_may_be_in_the_middle_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that was killed has begun it."""
    codes = [libcuda._UNDER_WAY[0], libcuda._UNDER_WAY[0], 2]

    def call(_self: object, _name: str, _pid: int, argument: ctypes.c_int) -> None:
        argument.value = codes.pop(0)

    monkeypatch.setattr(libcuda.LibCuda, "__init__", lambda _: None)
    monkeypatch.setattr(libcuda.LibCuda, "_call", call)
    assert libcuda.LibCuda().state(1) is State.CHECKPOINTED


# A driver that hangs or dies.


@pytest.mark.parametrize("call", ["lock", "checkpoint"])
def test_a_suspension_that_hangs_with_one_process_is_undone(bench: Bench, call: str) -> None:
    first, second = bench.start(), bench.start()
    bench.plan(f"{call}=hangs {max(first.pid, second.pid)}")
    assert bench.suspend(first, second, within_s=LATE_S) == Outcome(False, LATE, hung=True)
    assert bench.states(first, second) == [State.RUNNING] * 2


@pytest.mark.parametrize("call", ["restore", "unlock"])
def test_a_resume_that_hangs_with_one_process_is_undone(bench: Bench, call: str) -> None:
    first, second = bench.start(), bench.start()
    assert bench.suspend(first, second) == DONE
    bench.plan(f"{call}=hangs {max(first.pid, second.pid)}")
    assert bench.resume(first, second, within_s=LATE_S) == Outcome(False, LATE, hung=True)
    assert bench.states(first, second) == [State.CHECKPOINTED] * 2


def test_what_was_done_when_the_helper_died_is_done(bench: Bench) -> None:
    probe = bench.start()
    assert bench.suspend(probe) == DONE
    bench.plan(f"unlock=dies {probe.pid}")
    outcome = bench.resume(probe)
    why = f"the helper that calls the driver ended with {-signal.SIGABRT}"
    assert outcome == Outcome(False, why, hung=True)
    assert bench.states(probe) == [State.CHECKPOINTED]
    assert bench.suspend(probe) == DONE


def test_a_process_of_which_the_driver_never_says_anything_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "STATE_WITHIN_S", LATE_S)
    first, second = bench.start(), bench.start()
    bench.plan(f"state=hangs {second.pid}")
    outcome = bench.suspend(first, second, within_s=LATE_S)
    assert outcome == Outcome(
        False, f"{LATE}, and its processes could not be brought back", lost=True
    )
    assert bench.states(first, second) == [State.RUNNING, None]


def test_where_no_helper_can_be_started_nothing_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "program", lambda _: ["/nonexistent"])
    outcome = bench.checkpoints.suspend(lambda: [os.getpid()], 1.0, PATIENCE_S)
    assert outcome == Outcome(False, "no helper can be started: No such file or directory")


def test_the_daemon_loads_no_driver() -> None:
    """Nor does the helper load more than it needs."""
    loads = "import sys, carmad.gpu.checkpoint; print(*sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    found = set(said.stdout.split())
    assert not found & {"pynvml", "pydantic", "carmad.core", "carmad.gpu.libcuda", "asyncio"}
