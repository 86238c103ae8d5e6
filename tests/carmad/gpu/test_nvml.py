"""NvmlSource, GPM and the choice of a source, run against a fake libnvidia-ml.so.1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pynvml
import pytest

from carmad.core.gpus.gpu import GpuSample, ProcessUse
from carmad.core.jobs.attempt import GpuId, MemoryLimits
from carmad.errors import CarmaError
from carmad.gpu import driver as lanes
from carmad.gpu import events
from carmad.gpu import nvml as choosing
from carmad.gpu.driver import disconnect
from carmad.gpu.gpm import GpmProfiler
from carmad.gpu.health import CORRECTED_PER_HOUR, EVERY_S, SLOWED_FOR_S
from carmad.gpu.limits import NvmlLimiter
from carmad.gpu.nvml import NvmlSource, choose
from carmad.gpu.source import ActivityReader, Health, TelemetrySource, Unprofiled
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from tests.fake_nvml import FakeNvml

pytest_plugins = ("tests.fake_nvml",)

A, B, MIG1, MIG2 = "GPU-aaaa", "GPU-bbbb", "MIG-1111", "MIG-2222"
XID, RECOVERY = "8", "8000"
ME = os.getpid()
T = 1000.0  # any `at`


def gpu(uuid: str, *lines: str, bus: str = "81") -> str:
    """A healthy GPU of 80 GiB; a later line overrides."""
    basics = f"""
        gpu {uuid}
        name NVIDIA H100 80GB HBM3
        pci 0 {bus} 0
        memory 81920 500 1000
        util 37 12
        power 250500
        energy 123456
        temperature 55
    """
    return "\n".join([basics, *lines])


def mig(*instances: str, bus: str = "81") -> str:
    return gpu(A, "mig", "fail nvmlDeviceGetUtilizationRates 3", *instances, bus=bus)


def instance(uuid: str, gi: int, *lines: str, used: int = 100) -> str:
    return "\n".join(
        [f"slot {gi} 0 {uuid}", "name H100 MIG 1g.10gb", f"memory 10240 0 {used}", *lines]
    )


@contextmanager
def opened(profiler: ActivityReader | None = None) -> Iterator[NvmlSource]:
    source = NvmlSource(profiler or Unprofiled("not asked for"))
    source.discover()
    try:
        yield source
    finally:
        source.close()


def by_gpu(samples: tuple[GpuSample, ...]) -> dict[str, GpuSample]:
    return {sample.gpu: sample for sample in samples}


def only(source: NvmlSource, at: float = T) -> GpuSample:
    [sample] = source.sample(at)
    return sample


def processes(sample: GpuSample) -> dict[int, ProcessUse]:
    return {process.pid: process for process in sample.processes}


# --- discovery ---


def test_gpus_come_in_pci_order_whatever_their_index(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, bus="C1"), gpu(B, bus="41"))
    with opened() as source:
        found = source.discover()
    assert [(g.id, g.index) for g in found] == [(B, 0), (A, 1)]


@pytest.mark.parametrize(
    ("gpus", "in_kernel", "known"),
    [
        ((gpu(A, bus="C1"), gpu(B, bus="41")), 2, True),
        ((gpu(A, bus="C1"),), 2, False),  # one was lost at start, and NVML counts it no more
        ((gpu(A, "fail nvmlDeviceGetHandleByIndex_v2 15"), gpu(B, bus="41")), 2, False),
        ((gpu(A, bus="C1"), gpu(B, bus="41")), 4, False),  # a cgroup hides the others
        ((mig(instance(MIG1, 1)), gpu(B, bus="41")), 2, False),
        ((mig(), gpu(B, bus="41")), 2, False),
        ((gpu(A),), None, False),  # no such folder, as in WSL
    ],
)
def test_an_index_is_cudas_only_if_no_gpu_can_be_missing_there(
    nvml: FakeNvml,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[str, ...],
    in_kernel: int | None,
    known: bool,
) -> None:
    folder = tmp_path / "gpus"
    monkeypatch.setattr(lanes, "IN_KERNEL", folder)
    for at in range(in_kernel or 0):
        (folder / f"0000:{at}1:00.0").mkdir(parents=True)
    nvml.show(*gpus)
    with opened() as source:
        found = source.discover()
    assert [g.cuda_index for g in found] == [g.index if known else None for g in found]


@pytest.mark.parametrize(
    ("lines", "islands"),
    [
        ({}, ["", "", "", ""]),  # all below one NUMA node
        ({"d": ["node 1"]}, ["0", "0", "0", "1"]),
        ({"c": ["node 1"], "d": ["node 1"]}, ["0", "0", "1", "1"]),
        # Bridges in pairs count more than the node.
        ({"a": ["nvlink GPU-c"], "b": ["nvlink GPU-d"]}, ["0", "1", "0", "1"]),
        # A mesh need not link every pair.
        ({"a": ["nvlink GPU-b", "node 1"], "c": ["nvlink GPU-b", "nvlink GPU-d"]}, [""] * 4),
        # Those that have no link are near each other all the same.
        ({"a": ["nvlink GPU-b"]}, ["0", "0", "1", "1"]),
        (
            {"b": ["node 1", "fail nvmlDeviceGetTopologyCommonAncestor 3"], "c": ["node 1"]},
            [""] * 4,
        ),
        ({"a": ["fail nvmlDeviceGetP2PStatus 3"], "d": ["node 1"]}, [""] * 4),
    ],
)
def test_gpus_that_are_near_each_other_are_an_island(
    nvml: FakeNvml, lines: dict[str, list[str]], islands: list[str]
) -> None:
    nvml.show(*(gpu(f"GPU-{n}", *lines.get(n, ()), bus=f"4{n}") for n in "abcd"))
    with opened() as source:
        found = source.discover()
    assert [each.island for each in found] == islands
    assert len(nvml.calls("nvmlDeviceGetP2PStatus")) <= 6, "asked again, though nothing changed"


def test_a_mig_instance_is_where_its_gpu_is(nvml: FakeNvml) -> None:
    nvml.show(mig(instance(MIG1, 1), bus="41"), gpu(B, "node 1", bus="C1"))
    with opened() as source:
        assert [(each.id, each.island) for each in source.discover()] == [(MIG1, "0"), (B, "1")]


def test_jobs_may_use_all_memory_but_the_reserved(nvml: FakeNvml) -> None:
    nvml.show(gpu(A))
    with opened() as source:
        [found] = source.discover()
    assert (found.memory_mib, found.name) == (81420, "NVIDIA H100 80GB HBM3")
    assert not found.is_mig


def test_a_gpu_with_mig_on_gives_its_instances_and_skips_holes(nvml: FakeNvml) -> None:
    nvml.show(gpu(B, bus="C1"), mig("hole", instance(MIG1, 3), "hole", instance(MIG2, 5), bus="41"))
    with opened() as source:
        found = source.discover()
    assert [(g.id, g.parent, g.index) for g in found] == [(MIG1, A, 0), (MIG2, A, 1), (B, None, 2)]
    assert found[0].memory_mib == 10240


def test_mig_without_instances_is_left_out_with_a_note(nvml: FakeNvml) -> None:
    nvml.show(mig())
    with opened() as source:
        assert source.discover() == ()
        assert "no instance" in source.capabilities().notes[0]


@pytest.mark.parametrize("code", [4, 15, 999])
def test_a_gpu_that_never_could_be_opened_is_left_out_with_a_note(
    nvml: FakeNvml, code: int
) -> None:
    nvml.show(gpu(A, f"fail nvmlDeviceGetHandleByIndex_v2 {code}"), gpu(B))
    with opened() as source:
        assert [g.id for g in source.discover()] == [B]
        assert "GPU 0 cannot be opened" in source.capabilities().notes[0]


def test_looking_again_without_change_keeps_everything_going(nvml: FakeNvml) -> None:
    nvml.show(gpu(A), gpu(B))
    with opened() as source:
        found = source.discover()
        nvml.show(gpu(A, f"event 1 {XID} 79 -"), gpu(B))
        assert source.discover() == found
        assert until(source.health)
        assert nvml.references == 1
        assert len(nvml.calls("nvmlEventSetCreate")) == 2, "one for Xids, one for the others"


def test_looking_again_finds_a_new_mig_layout(nvml: FakeNvml) -> None:
    nvml.show(mig(instance(MIG1, 3)))
    with opened(GpmProfiler()) as source:
        nvml.show(mig("gpm 1 1 1", "hole", instance(MIG2, 5, "gpm 10 20 30")))
        assert [g.id for g in source.discover()] == [MIG2]
        assert [s.fault for s in source.sample(T)] == [None]
        until(lambda: only(source).sm_active)


def test_a_known_gpu_that_cannot_be_opened_now_is_at_fault_not_gone(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, bus="41"), gpu(B, bus="81"))
    with opened() as source:
        found = source.discover()
        nvml.show(gpu(A, "fail * 15", bus="41"), gpu(B, bus="81"))
        assert source.discover() == found
        assert [bool(s.fault) for s in source.sample(T)] == [True, False]
        nvml.show(gpu(B, bus="81"))
        assert [g.id for g in source.discover()] == [B]


NO_MEMORY = "fail nvmlDeviceGetMemoryInfo_v2 3"


def test_a_gpu_that_uses_the_host_s_memory_has_that(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, NO_MEMORY, "addressing 2", f"compute {ME} 700"))
    host_mib = psutil.virtual_memory().total >> 20
    with opened() as source:
        (found,) = source.discover()
        assert found.memory_mib == host_mib
        sample = only(source, T)
        assert sample.memory_used_mib and sample.memory_free_mib
        assert abs(sample.memory_used_mib + sample.memory_free_mib - host_mib) <= 1
        assert [each.memory_mib for each in sample.processes] == [700]
        assert source.capabilities().notes == ()


def test_a_gpu_whose_memory_nobody_tells_is_left_out_for_good(nvml: FakeNvml) -> None:
    """It was waited for, with the advice to make nvidia-smi work, which worked."""
    nvml.show(gpu(A, NO_MEMORY, "addressing 1"))
    with opened() as source:
        assert source.discover() == ()
        (note,) = source.capabilities().notes
        assert note.startswith(
            f"{A} takes no job: its memory cannot be read: the driver answers Not"
        )
        nvml.show(gpu(A, NO_MEMORY, bus="41"), gpu(B, bus="81"))
        assert [g.id for g in source.discover()] == [B]
        assert only(source).fault is None


def test_looking_again_while_the_driver_is_gone_does_not_stop_the_retries(nvml: FakeNvml) -> None:
    nvml.show(gpu(A))
    with opened() as source:
        nvml.show("gone 9", gpu(A))
        with pytest.raises(CarmaError, match="not loaded"):
            source.discover()
        assert only(source, T).fault == "the NVIDIA driver is not loaded"
        with pytest.raises(CarmaError, match="not loaded"):
            source.discover()
        nvml.show("epoch 1", gpu(A))
        assert only(source, T + 10).fault is None


def test_a_failed_look_lets_go_of_what_it_took_and_no_more(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    nvml.show(gpu(A))
    with opened() as source:
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", fails)
        with pytest.raises(CarmaError):
            source.discover()
        assert only(source).fault is None
    with pytest.raises(CarmaError):
        source.discover()
    assert nvml.references == 0


def test_no_library_is_a_user_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_name: str) -> None:
        raise OSError

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    with pytest.raises(CarmaError, match="not installed") as caught:
        NvmlSource(Unprofiled("")).discover()
    assert caught.value.hint


def test_no_driver_is_a_user_error_with_a_hint(nvml: FakeNvml) -> None:
    nvml.show("init 9")
    with pytest.raises(CarmaError, match="not loaded") as caught:
        NvmlSource(Unprofiled("")).discover()
    assert "nvidia-smi" in caught.value.hint


# --- one sample ---


def test_a_sample_has_units(nvml: FakeNvml) -> None:
    nvml.show(gpu(A))
    with opened() as source:
        assert only(source) == GpuSample(
            GpuId(A),
            T,
            memory_used_mib=1000,  # the old call would say 1500
            memory_free_mib=80420,
            utilization=0.37,
            memory_utilization=0.12,
            power_w=250.5,
            energy_mj=123456,
            temperature_c=55,
        )


def test_energy_that_goes_backwards_is_passed_on(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "energy 5000"))
    with opened() as source:
        assert only(source).energy_mj == 5000
        nvml.show(gpu(A, "energy 10"))
        assert only(source).energy_mj == 10


def test_what_is_not_supported_is_none_and_asked_once(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "fail nvmlDeviceGetTotalEnergyConsumption 3"), gpu(B))
    with opened() as source:
        for _ in range(3):
            samples = by_gpu(source.sample(T))
        assert samples[A].energy_mj is None
        assert samples[A].fault is None
        assert samples[B].energy_mj == 123456
        assert nvml.calls("nvmlDeviceGetTotalEnergyConsumption").count(A) == 1
        assert ("energy", f"{A}: Not Supported") in source.capabilities().missing


def test_a_passing_error_of_one_metric_is_asked_again(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "fail nvmlDeviceGetPowerUsage 999"))
    with opened() as source:
        assert (only(source).power_w, only(source).fault) == (None, None)
        nvml.show(gpu(A))
        assert only(source).power_w == 250.5


# --- processes ---


def test_processes_are_the_union_of_both_lists_and_never_summed(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 300", "compute 12 none", "mps 11 300", "mps 12 40", "mps 13 50"))
    with opened() as source:
        assert [(p.pid, p.memory_mib) for p in only(source).processes] == [
            (11, 300),
            (12, 40),
            (13, 50),
        ]
        assert source.pids(GpuId(A)) == {11, 12, 13}


def test_unknown_process_memory_stays_unknown(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 none"))
    with opened() as source:
        assert only(source).processes[0].memory_mib is None


def test_more_process_memory_than_the_gpu_has_is_not_believed(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 17000000"))
    with opened() as source:
        assert only(source).processes[0].memory_mib is None


def test_processes_are_named(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, f"compute {ME} 300", "compute 4194999 10"))
    with opened() as source:
        mine, gone = only(source).processes
    assert mine.user and mine.command
    assert (gone.user, gone.command) == ("", "")


def test_a_pid_that_is_used_again_is_named_anew(nvml: FakeNvml) -> None:
    sleeper = subprocess.Popen(["sleep", "100"])
    until(lambda: Path(f"/proc/{sleeper.pid}/comm").read_text() == "sleep\n")
    nvml.show(gpu(A, f"compute {sleeper.pid} 10"))
    with opened() as source:
        assert only(source).processes[0].command == "sleep"
        nvml.show(gpu(A))
        only(source)
        sleeper.kill()
        sleeper.wait()
        nvml.show(gpu(A, f"compute {sleeper.pid} 10"))
        assert only(source).processes[0].command == ""


def test_pids_cannot_be_told_of_a_gpu_that_does_not_answer(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "fail nvmlDeviceGetComputeRunningProcesses_v3 15"), gpu(B))
    with opened() as source:
        assert source.pids(GpuId(A)) is None
        assert source.pids(GpuId(B)) == frozenset()
        assert source.pids(GpuId("GPU-none")) is None


# --- per-process utilisation ---


def us(ago_s: float) -> int:
    return int((time.time() - ago_s) * 1e6)


def test_a_process_without_a_sample_ran_no_kernel(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 9", "compute 12 9", f"sample 11 {us(0.1)} 40"))
    with opened() as source:
        found = processes(only(source))
    assert (found[11].sm_util, found[12].sm_util) == (0.4, 0.0)


def test_an_mps_client_without_a_sample_may_be_busy(nvml: FakeNvml) -> None:
    """The driver may blame the server: 0 would be a claim that the client ran no kernel."""
    nvml.show(gpu(A, "compute 11 30", "mps 12 9", "mps 13 9", f"sample 12 {us(0.1)} 40"))
    with opened() as source:
        found = processes(only(source))
    assert (found[11].sm_util, found[12].sm_util, found[13].sm_util) == (0.0, 0.4, None)


def test_a_client_of_an_mps_server_has_its_user(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    nvml.show(gpu(A, f"compute {own} 30", "mps 99999999 9"))
    with opened() as source:
        assert {p.mps_uid for p in only(source).processes} == {None}
        nvml.show(gpu(A, f"mps {own} 30"))
        assert [p.mps_uid for p in only(source).processes] == [os.getuid()]
    monkeypatch.setattr("carmad.gpu.nvml.MPS_SERVER", Path("/proc/self/comm").read_text().strip())
    with opened() as source:
        assert [p.mps_uid for p in only(source).processes] == [None]


def test_junk_samples_are_dropped(nvml: FakeNvml) -> None:
    nvml.show(
        gpu(
            A,
            "compute 11 9",
            "compute 12 9",
            *[f"sample 0 {us(0.1)} {7 + i}" for i in range(50)],
            f"sample 11 {us(0.2)} 4294967295",
            f"sample 12 {us(0.2)} 101",
            f"sample 99 {us(0.2)} 50",  # on no list
            f"sample 11 {us(0.1)} 30",
        )
    )
    with opened() as source:
        assert {pid: p.sm_util for pid, p in processes(only(source)).items()} == {11: 0.3, 12: 0.0}


def test_a_junk_time_does_not_deafen_the_source(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 9", f"sample 11 {us(-3600)} 10"))
    with opened() as source:
        only(source)
        nvml.show(gpu(A, "compute 11 9", f"sample 11 {us(-0.5)} 20"))
        assert only(source).processes[0].sm_util == 0.2


@pytest.mark.parametrize("driver", ["", "stale_samples"])
def test_a_sample_counts_once(nvml: FakeNvml, driver: str) -> None:
    nvml.show(gpu(A, "compute 11 9", f"sample 11 {us(0.1)} 40", driver))
    with opened() as source:
        assert [only(source).processes[0].sm_util for _ in range(2)] == [0.4, 0.0]


def test_the_drivers_old_samples_are_not_news(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 9", f"sample 11 {us(60)} 40"))
    with opened() as source:
        assert only(source).processes[0].sm_util == 0.0


def test_an_empty_success_means_idle(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 9", "fail nvmlDeviceGetProcessUtilization 0"))
    with opened() as source:
        assert only(source).processes[0].sm_util == 0.0


def test_process_utilization_may_be_unsupported(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "compute 11 9", "fail nvmlDeviceGetProcessUtilization 3"))
    with opened() as source:
        for _ in range(2):
            [process] = only(source).processes
        assert process.sm_util is None
        assert len(nvml.calls("nvmlDeviceGetProcessUtilization")) == 1


# --- MIG ---


def test_a_mig_instance_has_its_own_memory_and_processes(nvml: FakeNvml) -> None:
    nvml.show(mig(instance(MIG1, 3, "compute 11 60", used=70), instance(MIG2, 5, "compute 12 10")))
    with opened() as source:
        first, second = source.sample(T)
    assert (first.memory_used_mib, second.memory_used_mib) == (70, 100)
    assert [(p.pid, p.sm_util) for p in first.processes] == [(11, None)]
    assert (first.utilization, first.power_w, first.fault) == (None, None, None)


def test_a_reused_mig_handle_is_not_taken_for_the_old_instance(nvml: FakeNvml) -> None:
    nvml.show(mig(instance(MIG1, 3, used=1)), gpu(B))
    with opened() as source:
        assert by_gpu(source.sample(T))[MIG1].memory_used_mib == 1
        nvml.show(mig(instance("MIG-new", 3, used=2)), gpu(B))
        sample = by_gpu(source.sample(T))[MIG1]
    assert sample.memory_used_mib is None
    assert sample.fault == "the driver no longer knows the GPU or MIG instance"


# --- faults ---


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("*", 15, "fallen off the bus"),
        ("*", 16, "must be reset"),
        ("*", 999, "unknown error"),
        ("nvmlDeviceGetMemoryInfo_v2", 999, "unknown error"),
        ("nvmlDeviceGetMemoryInfo_v2", 17, "operating system"),
        ("nvmlDeviceGetTemperature", 15, "fallen off the bus"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 20, "Insufficient Memory"),
    ],
)
def test_a_gpu_lost_mid_run_faults_alone_and_may_return(
    nvml: FakeNvml, function: str, code: int, words: str
) -> None:
    nvml.show(gpu(A), gpu(B))
    with opened() as source:
        assert not any(s.fault for s in source.sample(T))
        nvml.show(gpu(A), gpu(B, f"fail {function} {code}"))
        samples = by_gpu(source.sample(T))
        assert words in (samples[B].fault or "")
        assert samples[B].memory_used_mib is None
        assert (samples[A].fault, samples[A].memory_used_mib) == (None, 1000)
        nvml.show(gpu(A), gpu(B))
        assert not any(s.fault for s in source.sample(T))


def test_a_stale_handle_is_a_fault_not_a_missing_reading(nvml: FakeNvml) -> None:
    nvml.show(gpu(A), gpu(B))
    with opened() as source:
        nvml.show(gpu(A, "fail nvmlDeviceGetMemoryInfo_v2 2"), gpu(B))
        source.sample(T)
        asked = len(nvml.calls("nvmlDeviceGetHandleByUUID"))
        assert by_gpu(source.sample(T))[A].fault
        assert len(nvml.calls("nvmlDeviceGetHandleByUUID")) == asked + 1
        nvml.show(gpu(A), gpu(B))
        assert by_gpu(source.sample(T))[A].memory_used_mib == 1000


def test_the_driver_goes_and_comes_back(nvml: FakeNvml) -> None:
    here = gpu(A), gpu(B)
    nvml.show(*here)
    with opened() as source:
        source.sample(T)
        nvml.show("gone 9", *here)
        assert [s.fault for s in source.sample(T)] == ["the NVIDIA driver is not loaded"] * 2
        assert nvml.references == 0, "the old driver is held, so it cannot be replaced"
        nvml.show("epoch 1", *here)
        tries = len(nvml.calls("nvmlInitWithFlags"))
        assert all(s.fault for s in source.sample(T + 1)), "tried again too soon"
        assert len(nvml.calls("nvmlInitWithFlags")) == tries
        assert source.pids(GpuId(A)) is None
        samples = source.sample(T + 10)
        assert [(s.fault, s.memory_used_mib) for s in samples] == [(None, 1000)] * 2
        assert source.pids(GpuId(A)) == frozenset()


def test_another_driver_is_asked_anew_for_what_the_old_one_lacked(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "fail nvmlDeviceGetPowerUsage 3"))
    with opened() as source:
        assert only(source).power_w is None
        nvml.show("gone 9", gpu(A))
        assert only(source).fault
        nvml.show("epoch 1", gpu(A))
        assert only(source, T + 10).power_w == 250.5


def test_a_driver_restarted_unseen_is_reconnected_to(nvml: FakeNvml) -> None:
    nvml.show(gpu(A))
    with opened() as source:
        source.sample(T)
        nvml.show("epoch 1", gpu(A))
        assert only(source, T + 1).fault == "the NVIDIA driver was restarted"
        assert only(source, T + 10).fault is None
        nvml.show("epoch 1", gpu(A, f"event 1 {XID} 79 -"))
        assert until(source.health), "the new session hears no events"


def test_a_clock_set_back_does_not_put_off_the_next_try(nvml: FakeNvml) -> None:
    nvml.show(gpu(A))
    with opened() as source:
        nvml.show("gone 9", gpu(A))
        assert only(source, T).fault
        nvml.show(gpu(A))
        assert only(source, T - 3600).fault is None


def test_an_upgraded_driver_asks_for_a_restart(nvml: FakeNvml) -> None:
    nvml.show(gpu(A))
    with opened() as source:
        nvml.show("gone 18", gpu(A))
        assert "restart carmad" in (only(source, T).fault or "")
        assert "restart carmad" in (only(source, T + 10).fault or "")


# --- health ---


def drain_of(number: int) -> bool:
    return events.describe_xid(number)[1]


def test_xids_drain_as_nvidias_catalog_has_it() -> None:
    for harmless in (13, 31, 32, 39, 40, 41, 43, 45, 63, 69, 92, 94, 999):
        assert not drain_of(harmless), harmless
    for grave in (46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143):
        assert drain_of(grave), grave


def test_news_come_once_and_earlier_events_are_not_news(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, f"event 1 {XID} 48 -"), gpu(B))
    with opened() as source:
        nvml.show(
            gpu(A, f"event 1 {XID} 48 -"),
            gpu(B, f"event 2 {XID} 45 -", f"event 3 {XID} 79 -"),
        )
        news: list[Health] = []
        until(lambda: news.extend(source.health()) or len(news) >= 2)
        assert [(h.gpu, h.drain) for h in news] == [(B, False), (B, True)]
        assert news[1].message == "Xid 79: the GPU has fallen off the bus; reboot the machine"
        assert source.health() == ()


def test_events_are_masked_by_what_the_gpu_supports(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "event_types 8"))
    with opened() as source:
        nvml.show(gpu(A, "event_types 8", f"event 1 {XID} 79 -"))
        assert until(source.health)


def test_a_lost_gpu_still_tells_its_xid(nvml: FakeNvml) -> None:
    nvml.show(gpu(A), gpu(B))
    with opened() as source:
        nvml.show(gpu(A), gpu(B, "fail * 15", f"event 1 {XID} 79 -"))
        [news] = until(source.health)
        assert news.gpu == B


@pytest.mark.parametrize(
    ("line", "drain", "words"),
    [
        ("event 1 2 0 -", True, "double-bit"),
        ("event 1 4000 0 -", True, "unavailable"),
        (f"recovery 1\nevent 1 {RECOVERY} 0 -", True, "reset the GPU"),
        (f"recovery 0\nevent 1 {RECOVERY} 0 -", False, "none is needed"),
        (f"recovery 2\nevent 1 {XID} 154 -", True, "reboot"),
    ],
)
def test_other_events(nvml: FakeNvml, line: str, drain: bool, words: str) -> None:
    nvml.show(gpu(A))
    with opened() as source:
        nvml.show(gpu(A, line))
        [news] = until(source.health)
        assert (news.drain, words in news.message) == (drain, True)


def test_an_xid_is_told_of_its_mig_instance_and_a_grave_one_of_all(nvml: FakeNvml) -> None:
    instances = instance(MIG1, 3), instance(MIG2, 5)
    nvml.show(mig(*instances))
    with opened() as source:
        event = f"event 1 {XID} 13 5"
        nvml.show(mig(event, *instances))
        [news] = until(source.health)
        assert (news.gpu, news.drain) == (MIG2, False)
        nvml.show(mig(event, f"event 2 {XID} 48 5", *instances))
        news = until(source.health, wanted=lambda news: len(news) == 2)
        assert {(h.gpu, h.drain) for h in news} == {(MIG1, True), (MIG2, True)}


def test_a_gpu_without_events_is_no_trouble(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "fail nvmlDeviceGetSupportedEventTypes 3"))
    with opened() as source:
        assert only(source).fault is None
        assert ("health", f"{A}: Not Supported") in source.capabilities().missing


# --- conditions ---


@pytest.mark.parametrize(
    ("line", "kind", "drains"),
    [
        ("ails row_pending", "repair_pending", False),
        ("ails page", "repair_pending", False),
        ("ails spare", "repair_pending", False),
        ("ails row_failed", "remapping_failed", True),
        ("ails sram", "sram_errors", True),
        ("ails fabric", "fabric", False),
        ("ecc 5 2", "memory_errors", False),
        ("recovery 2", "recovery", True),
        ("recovery 6", "recovery", True),
    ],
)
def test_what_is_wrong_with_a_gpu_that_works(
    nvml: FakeNvml, line: str, kind: str, drains: bool
) -> None:
    nvml.show(gpu(A, line), gpu(B))
    with opened() as source:
        ill, well = source.sample(T)
        assert [(each.kind, each.drains) for each in ill.conditions] == [(kind, drains)]
        assert (ill.fault, well.conditions) == (None, ())


def test_a_condition_is_of_each_mig_instance_and_ends_with_its_cause(nvml: FakeNvml) -> None:
    instances = instance(MIG1, 3), instance(MIG2, 5)
    nvml.show(mig("ails row_pending", *instances))
    with opened() as source:
        assert [len(each.conditions) for each in source.sample(T)] == [1, 1]
        nvml.show(mig(*instances))
        assert [len(each.conditions) for each in source.sample(T + 1)] == [1, 1], "read too often"
        assert [len(each.conditions) for each in source.sample(T + EVERY_S)] == [0, 0]


def conditions(source: NvmlSource, at: float) -> list[str]:
    return [each.kind for each in only(source, at).conditions]


def test_a_gpu_that_is_slowed_down_is_told_after_a_while(nvml: FakeNvml) -> None:
    power_limit, hot = "slowed 4", "slowed 40"
    with_it = partial(gpu, A)
    nvml.show(with_it(hot))
    with opened() as source:
        assert conditions(source, T) == []
        assert conditions(source, T + SLOWED_FOR_S) == ["slowed"]
        nvml.show(with_it(power_limit))
        assert conditions(source, T + 2 * SLOWED_FOR_S) == []
        nvml.show(with_it(hot))
        assert conditions(source, T + 3 * SLOWED_FOR_S) == [], "it lasts since a moment ago"


def test_a_high_rate_of_corrected_errors_is_told_while_it_lasts(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "ecc 9000 0"))  # in years, perhaps
    with opened() as source:
        assert conditions(source, T) == []
        nvml.show(gpu(A, f"ecc {9000 + CORRECTED_PER_HOUR} 0"))
        assert conditions(source, T + 600) == ["corrected_errors"]
        assert conditions(source, T + 700) == ["corrected_errors"]
        assert conditions(source, T + 600 + 3601) == []
        nvml.show(gpu(A, "ecc 0 0"))
        assert conditions(source, T + 8000) == [], "the counter was reset"


def test_a_gpu_or_a_driver_that_tells_no_condition_is_no_trouble(nvml: FakeNvml) -> None:
    silent = (
        "fail nvmlDeviceGetRemappedRows 3",
        "fail nvmlDeviceGetFieldValues 13",
        "fail nvmlDeviceGetCurrentClocksEventReasons 999",
    )
    nvml.show(gpu(A, "ails sram", *silent))
    with opened() as source:
        assert conditions(source, T) == ["sram_errors"]
        assert conditions(source, T + EVERY_S) == ["sram_errors"]
        assert nvml.calls("nvmlDeviceGetRemappedRows") == [A], "what it never tells is asked once"


# --- operational events ---


def test_operational_events_are_heard_and_those_that_are_xids_left_to_the_xid(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_OPERATIONAL", "1")
    nvml.show(gpu(A), gpu(B))
    informational, corrected, recoverable, fatal, simulated = 10, 20, 30, 40, 4
    with opened() as source:
        nvml.show(
            gpu(A),
            gpu(
                B,
                f"operational 1 {informational} 0 -",
                f"operational 2 {corrected} 0 -",
                f"operational 3 {recoverable} 0 -",
                f"operational 4 {fatal} 0 xid",
                f"operational 5 {fatal} {simulated} -",
                f"operational 6 {fatal} 0 -",
            ),
        )
        news: list[Health] = []
        until(lambda: news.extend(source.health()) or len(news) >= 2)
        assert [(h.gpu, h.drain) for h in news] == [(B, False), (B, True)]
        assert "a fatal error in GPU-NVLINK" in news[1].message
        assert source.health() == ()


# --- closing ---


def test_close_lets_go_and_discover_takes_up_again(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "gpm 1 1 1"))
    before = threading.active_count()
    source = NvmlSource(GpmProfiler())
    source.discover()
    source.sample(T)
    assert nvml.references == 1
    assert threading.active_count() > before
    source.close()
    source.close()
    assert (nvml.references, threading.active_count()) == (0, before)
    assert "released" in (only(source, T + 100).fault or "")
    assert nvml.references == 0
    source.discover()
    assert only(source).fault is None
    source.close()


# --- a driver that hangs ---

PROCESSES = "hang nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "ANSWER_WITHIN_S", 0.1)


def discovered(source: TelemetrySource) -> list[str]:
    with suppress(CarmaError):
        return [each.id for each in source.discover()]
    return []


def read(source: TelemetrySource, *gpus: str) -> None:
    """Wait until these are read, and no others."""
    until(lambda: {sample.gpu for sample in source.sample(T)}, wanted=lambda it: it == {*gpus})


@pytest.mark.usefixtures("impatient")
def test_a_gpu_that_hangs_takes_no_other_along(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, bus="1"), gpu(B, bus="2"))
    source = NvmlSource(Unprofiled("not asked for"))
    until(lambda: discovered(source))
    with closing(source):
        read(source, A, B)
        assert source.silent() == {}
        nvml.show(gpu(A, "compute 7 100", bus="1"), gpu(B, PROCESSES, bus="2"))
        read(source, A)
        silent = dict(source.silent())
        assert silent.keys() == {B}
        assert "does not answer nvmlDeviceGetComputeRunningProcesses" in silent[GpuId(B)]
        assert source.pids(GpuId(B)) is None
        until(lambda: source.pids(GpuId(A)), wanted=lambda pids: pids == {7})
        assert until(lambda: discovered(source)) == [A, B], "it is not gone"
        nvml.show(gpu(A, bus="1"), gpu(B, bus="2"))
        read(source, A, B)
        assert source.silent() == {}


@pytest.mark.usefixtures("impatient")
def test_a_driver_that_hangs_from_the_start_is_waited_for(nvml: FakeNvml) -> None:
    nvml.show("hang_init", gpu(A))
    source = NvmlSource(Unprofiled("not asked for"))
    with pytest.raises(CarmaError, match="the driver does not answer nvmlInit"):
        source.discover()
    with pytest.raises(CarmaError, match="the driver does not answer nvmlInit"):
        source.discover()
    nvml.show(gpu(A))
    until(lambda: discovered(source))
    read(source, A)
    source.close()


@pytest.mark.usefixtures("impatient")
def test_gpus_none_of_which_can_be_opened_are_there_all_the_same(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "hang nvmlDeviceGetName", bus="1"), gpu(B, "hang nvmlDeviceGetName", bus="2"))
    source = NvmlSource(Unprofiled("not asked for"))
    with pytest.raises(CarmaError, match="the driver does not answer nvmlDeviceGetName") as caught:
        source.discover()
    assert "nvidia-smi" in caught.value.hint
    nvml.show(gpu(A, bus="1"), gpu(B, bus="2"))
    until(lambda: discovered(source), wanted=lambda found: found == [A, B])
    read(source, A, B)
    source.close()


@pytest.mark.usefixtures("impatient")
def test_closing_does_not_wait_for_a_driver_that_hangs(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, bus="1"), gpu(B, PROCESSES, bus="2"))
    source = NvmlSource(Unprofiled("not asked for"))
    until(lambda: discovered(source))
    read(source, A)
    source.close()
    assert nvml.references == 1, "to end the session might hang, too"
    nvml.show(gpu(A, bus="1"), gpu(B, bus="2"))
    disconnect()


# --- GPM ---


def profiled(sample: GpuSample) -> tuple[float | None, float | None, float | None]:
    return sample.sm_active, sample.sm_occupancy, sample.dram_active


def test_gpm_needs_two_samples_and_gives_fractions(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "gpm 12.5 50 101"))
    with opened(GpmProfiler()) as source:
        assert source.name == "nvml+gpm"
        assert profiled(only(source)) == (None, None, None)
        # Asked again at once, it must not compare samples that lie too close.
        assert profiled(only(source)) == (None, None, None)
        found = until(lambda: profiled(only(source)), wanted=lambda value: value[0] is not None)
        assert found == (0.125, 0.5, 1.0)
        nvml.show(gpu(A, "gpm 0 25 75"))
        until(lambda: profiled(only(source)), wanted=lambda value: value == (0.0, 0.25, 0.75))
        assert "sm_active" in source.capabilities().provides
    assert len(nvml.calls("nvmlGpmSampleAlloc")) == len(nvml.calls("nvmlGpmSampleFree")) == 2


def test_gpm_tells_of_pipes_and_traffic_where_it_can(nvml: FakeNvml) -> None:
    pipes = ("gpm_metric 1 80", "gpm_metric 5 30", "gpm_metric 12 60")
    traffic = ("gpm_metric 20 1500", "gpm_metric 21 250", "gpm_metric 60 7", "gpm_metric 61 9")
    nvml.show(gpu(A, "gpm 10 20 30", *pipes, *traffic))
    with opened(GpmProfiler()) as source:
        found = until(lambda: only(source).more)
    assert dict(found) == {  # without fp16_active: this GPU does not count it
        "graphics_active": 0.8,
        "tensor_active": 0.3,
        "fp32_active": 0.6,
        "pcie_tx_mib_s": 1500.0,
        "pcie_rx_mib_s": 250.0,
        "nvlink_tx_mib_s": 9.0,
        "nvlink_rx_mib_s": 7.0,
    }


def test_each_gpm_metric_may_fail_alone(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "gpm 10 nan 30", "gpm_fail 2 3"))
    with opened(GpmProfiler()) as source:
        found = until(lambda: profiled(only(source)), wanted=lambda value: value[2] is not None)
    assert found == (None, None, 0.3)


def test_gpm_reads_mig_instances(nvml: FakeNvml) -> None:
    nvml.show(
        mig("gpm 90 90 90", instance(MIG1, 3, "gpm 10 20 30"), instance(MIG2, 5, "gpm 40 50 60"))
    )
    with opened(GpmProfiler()) as source:
        found = until(
            lambda: [profiled(sample) for sample in source.sample(T)],
            wanted=lambda values: values[0][0] is not None,
        )
    assert found == [(0.1, 0.2, 0.3), (0.4, 0.5, 0.6)]


def test_a_gpu_without_gpm_is_told_of(nvml: FakeNvml) -> None:
    nvml.show(gpu(A), gpu(B, "gpm 10 20 30"))
    with opened(GpmProfiler()) as source:
        found = until(
            lambda: [profiled(sample) for sample in source.sample(T)],
            wanted=lambda values: values[1][0] is not None,
        )
        assert found == [(None, None, None), (0.1, 0.2, 0.3)]
        missing = dict(source.capabilities().missing)
    assert A in missing["sm_active"] and B not in missing["sm_active"]


def test_a_gap_in_gpm_is_not_averaged_over(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "gpm 10 20 30"))
    with opened(GpmProfiler()) as source:
        until(lambda: only(source).sm_active)
        nvml.show(gpu(A, "gpm 10 20 30", "fail nvmlGpmSampleGet 999"))
        until(lambda: only(source), wanted=lambda sample: sample.sm_active is None)
        assert "Unknown" in dict(source.capabilities().missing)["sm_active"]
        nvml.show(gpu(A, "gpm 10 20 30"))
        assert only(source).sm_active is None
        until(lambda: only(source).sm_active)
        assert "sm_active" not in dict(source.capabilities().missing)


# --- choosing ---


@contextmanager
def chosen(name: str) -> Iterator[TelemetrySource]:
    source = choose(name, 1.0)
    source.discover()
    try:
        yield source
    finally:
        source.close()


def test_auto_takes_gpm_where_every_gpu_has_it(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, "gpm 1 1 1"), gpu(B, "gpm 1 1 1"))
    with chosen("auto") as source:
        assert source.name == "nvml+gpm"


def test_auto_takes_dcgm_where_it_is_installed_though_its_engine_may_come_later(
    nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi = tmp_path / "dcgmi"
    dcgmi.write_text("#!/bin/sh\necho 'Error: unable to establish a connection'\n")
    dcgmi.chmod(0o755)
    monkeypatch.setattr(choosing, "_DCGMI", str(dcgmi))
    nvml.show(gpu(A, "gpm 1 1 1"), gpu(B))
    with chosen("auto") as source:
        assert source.name == "nvml+dcgm"


def test_auto_falls_back_on_plain_nvml_and_says_what_to_do(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_DCGMI", "no-such-dcgmi")
    nvml.show(gpu(A))
    with chosen("auto") as source:
        assert source.name == "nvml"
        why = dict(source.capabilities().missing)["sm_occupancy"]
    assert "install datacenter-gpu-manager" in why
    assert "NVIDIA H100 80GB HBM3 has no GPM" in why
    assert "no-such-dcgmi is not installed" in why


def test_auto_needs_no_driver_until_it_is_asked_for_gpus(nvml: FakeNvml) -> None:
    nvml.show("init 9")
    source = choose("auto", 1.0)
    with pytest.raises(CarmaError, match="not loaded"):
        source.discover()
    nvml.show(gpu(A, "gpm 1 1 1"))
    assert [each.id for each in source.discover()] == [A]
    assert source.name == "nvml+gpm"
    source.close()


@pytest.mark.parametrize(
    ("name", "taken"), [("nvml", "nvml"), ("gpm", "nvml+gpm"), ("dcgm", "nvml+dcgm")]
)
def test_a_named_source_is_taken_unasked(name: str, taken: str) -> None:
    assert choose(name, 1.0).name == taken


@pytest.mark.parametrize("name", ["", "rocm", "emulated", "emulated:", "nvml:x"])
def test_an_unknown_source_is_a_user_error(name: str) -> None:
    with pytest.raises(CarmaError, match="no telemetry source"):
        choose(name, 1.0)


def test_the_emulated_source_can_be_chosen(tmp_path: Path) -> None:
    assert "emulated" in choose(f"emulated:{tmp_path}", 1.0).name


# --- the fake is faithful: unmodified clients read it ---


def client(nvml: FakeNvml, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=nvml.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    ).stdout


def test_gpustat_reads_the_fake(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, f"compute {ME} 321"), gpu(B, "fail * 15", bus="C1"))
    first, second = json.loads(client(nvml, "gpustat", "--json"))["gpus"]
    assert (first["uuid"], first["memory.used"], first["memory.total"]) == (A, 1000, 81920)
    assert (first["temperature.gpu"], first["utilization.gpu"], first["power.draw"]) == (
        55,
        37,
        250,
    )
    [process] = first["processes"]
    assert (process["pid"], process["gpu_memory_usage"]) == (ME, 321)
    assert "lost" in second["name"]


def test_nvitop_reads_the_fake(nvml: FakeNvml) -> None:
    nvml.show(gpu(A, f"compute {ME} 321", f"sample {ME} {us(0)} 44"), gpu(B, bus="C1"))
    shown = client(nvml, "nvitop", "--once", "--ascii")
    assert shown.count("1000MiB / 80.00GiB") == 2
    assert "00000000:C1:00.0" in shown
    assert str(ME) in shown
    assert "321.0MiB" in shown


# -- memory limits


@pytest.fixture
def cgroup(tmp_path: Path) -> str:
    """The fake driver takes any folder with such a file for one."""
    if os.geteuid() != 0:
        pytest.skip("only root may set limits")
    (tmp_path / "carma-job-7-1").mkdir()
    (tmp_path / "carma-job-7-1/cgroup.procs").touch()
    return str(tmp_path / "carma-job-7-1")


def set_to(limiter: NvmlLimiter, cgroup: str | None, *limits: MemoryLimits) -> str:
    return limiter.limit("/var/lib/carma/jobs/7.1", cgroup, limits)


def limits_of(uuid: str, cgroup: str) -> tuple[int, int]:
    its = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=cgroup.encode())
    pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), its)
    return its.softLimit, its.hardLimit


def test_limits_of_a_cgroup_are_set_changed_and_lifted(nvml: FakeNvml, cgroup: str) -> None:
    nvml.show(gpu(A), gpu(B, bus="C1"))
    limiter = NvmlLimiter()
    with opened() as source:
        assert all(each.guarantees for each in source.discover())
        both = MemoryLimits(GpuId(A), 12_288, 31_744), MemoryLimits(GpuId(B), 0, 40_960)
        for _ in range(2):
            assert set_to(limiter, cgroup, *both) == ""
        assert limits_of(A, cgroup) == (12_288 << 20, 31_744 << 20)
        assert limits_of(B, cgroup) == (0, 40_960 << 20)
        assert set_to(limiter, cgroup, MemoryLimits(GpuId(A))) == ""
        assert limits_of(A, cgroup) == (0, pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)


def test_why_limits_cannot_be_set_is_told(nvml: FakeNvml, cgroup: str) -> None:
    nvml.show(gpu(A, "fail nvmlDeviceSetMemoryLimits_v1 4"), gpu(B, bus="C1"))
    limiter, here = NvmlLimiter(), MemoryLimits(GpuId(A), 1, 2)
    with opened():
        assert set_to(limiter, cgroup, here) == "the driver lets only root set memory limits"
        assert set_to(limiter, None, here) == "it has no cgroup of its own"
        gone = cgroup + "-gone"
        assert set_to(limiter, gone, MemoryLimits(GpuId(B), 1, 2)) == "", "it has just ended"
    nvml.show(gpu(A, "hang nvmlDeviceSetMemoryLimits_v1"), gpu(B, bus="C1"))
    with opened():
        assert "does not answer" in set_to(limiter, cgroup, here)
        assert set_to(limiter, cgroup, MemoryLimits(GpuId(B), 1, 2)) == ""
        nvml.show(gpu(A), gpu(B, bus="C1"))
        until(lambda: set_to(limiter, cgroup, here) == "", "it to answer")


@pytest.mark.parametrize("code", [3, 13, 4])
def test_an_older_driver_or_another_user_guarantees_nothing(nvml: FakeNvml, code: int) -> None:
    nvml.show(gpu(A, f"fail nvmlDeviceGetMemoryLimits_v1 {code}"))
    with opened() as source:
        assert not any(each.guarantees for each in source.discover())


def test_instances_and_older_bindings_guarantee_nothing(
    nvml: FakeNvml, cgroup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.show(mig(instance(MIG1, 1)))
    with opened() as source:
        assert not any(each.guarantees for each in source.discover())
    nvml.show(gpu(A))
    for name in ("c_nvmlGetMemoryLimits_v1_t", "c_nvmlSetMemoryLimits_v1_t"):
        monkeypatch.delattr(pynvml, name)
    with opened() as source:
        assert not any(each.guarantees for each in source.discover())
        assert "older than 13.615" in set_to(NvmlLimiter(), cgroup, MemoryLimits(GpuId(A)))
