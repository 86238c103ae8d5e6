"""The self-test's checks of suspending a process, on a machine with fake GPUs: each holds where the
driver does as documented, and differs where it does not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from carmad import configwriting
from carmad.config import Settings, Suspending
from carmad.configfile import load
from carmad.selftest import suspending
from carmad.selftest.report import Verdict
from tests import fake_gpu

if TYPE_CHECKING:
    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine",)

CYCLE = "suspend_cycle"
WRONG = ("checkpoint=999", "restore=999", "memory_kept", "contents_lost")
ON = Settings(suspend=Suspending(host_memory_mib=4096))
SLOW = Suspending(host_memory_mib=4096, out_mib_s=1e-3, in_mib_s=1e-3)
FAST = Suspending(host_memory_mib=4096, out_mib_s=1e12, in_mib_s=1e12, fixed_s=0.0)


@pytest.fixture(autouse=True)
def as_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests are run by somebody else."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("FAKE_UID", "0")
    monkeypatch.setattr(suspending, "LARGE_MIB", 512)
    monkeypatch.setattr(suspending, "WRITTEN_MIB", 40)
    monkeypatch.setattr(suspending, "LISTED_WITHIN_S", 0.3)
    monkeypatch.setattr(suspending, "TURNS", 1)


def test_a_process_is_suspended_and_resumed(machine: Machine) -> None:
    found = machine.check(CYCLE, ON)
    assert found.verdict is Verdict.HOLDS, found
    assert not found.settings
    assert machine.pids() == []


@pytest.mark.parametrize("word", WRONG)
def test_where_the_core_does_not_hold_suspending_is_switched_off(
    machine: Machine, word: str
) -> None:
    machine.have(words=(word,))
    found = machine.check(CYCLE, ON)
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings == {"suspend.host_memory_mib": 0}
    assert machine.pids() == []


def test_an_old_driver_has_no_such_calls(machine: Machine) -> None:
    (machine.folder / "lib").unlink()
    library = machine.folder / "lib/libcuda.so.1"
    library.parent.mkdir()
    source = machine.folder / "old.c"
    of_today = (Path(__file__).parents[2] / "fake_cuda") / "fake_cuda.c"
    calls = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")
    lacking = "".join(f"#define cuCheckpointProcess{call} lacks{call}\n" for call in calls)
    source.write_text(f'{lacking}#include "{of_today}"\n')
    fake_gpu.compile_library(source, library)
    machine.have()
    found = machine.check(CYCLE, ON)
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings == {"suspend.host_memory_mib": 0}
    found = machine.check("suspend_speed")
    assert found.verdict is Verdict.UNKNOWN and not found.settings
    assert "driver 570 or newer: no settings are proposed" in found.detail


def test_only_root_can_tell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in (CYCLE, "suspend_moves"):
        found = machine.check(name)
        assert (found.verdict, found.failed) == (Verdict.UNKNOWN, False)
        assert found.detail == "only root may suspend processes"


def test_moving_to_another_gpu_is_proposed_where_it_is_seen(machine: Machine) -> None:
    found = machine.check("suspend_moves")
    assert (found.verdict, found.detail) == (Verdict.UNKNOWN, "no second GPU is idle")
    machine.have(gpus=2)
    found = machine.check("suspend_moves")
    assert found.verdict is Verdict.HOLDS, found
    assert found.settings == {"suspend.moves": True}
    machine.have(gpus=2, words=("restore=1",))
    found = machine.check("suspend_moves", Settings(suspend=Suspending(moves=True)))
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings == {"suspend.moves": False}
    lines = (machine.folder / "world").read_text().splitlines()
    lines[-lines[::-1].index("name NVIDIA H100 80GB HBM3") - 1] = "name NVIDIA A100"
    machine.world(*lines)
    assert "of another kind" in machine.check("suspend_moves").detail


def test_settings_are_proposed_where_all_of_it_holds(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(available=(9 << 30) + 5)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    off = Settings(suspend=Suspending(out_mib_s=1e-3, in_mib_s=1e-3, fixed_s=1e-3))
    found = machine.check("suspend_speed", off)
    assert found.verdict is Verdict.HOLDS, found
    assert found.settings["suspend.host_memory_mib"] == 4096
    names = ("host_memory_mib", "out_mib_s", "in_mib_s", "fixed_s")
    assert found.settings.keys() == {f"suspend.{name}" for name in names}
    file = machine.folder / "carma.toml"
    configwriting.write_settings(file, found.settings)
    its = load(file, {}).suspend
    assert its.host_memory_mib == 4096 and its.out_mib_s > 0 < its.in_mib_s
    assert machine.pids() == []


def test_a_server_that_suspends_jobs_keeps_its_settings_unless_it_is_slower(
    machine: Machine,
) -> None:
    found = machine.check("suspend_speed", Settings(suspend=SLOW))
    assert found.verdict is Verdict.HOLDS and not found.settings
    found = machine.check("suspend_speed", Settings(suspend=FAST))
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings.keys() == {f"suspend.{n}" for n in ("out_mib_s", "in_mib_s", "fixed_s")}


def test_no_settings_are_proposed_where_the_core_does_not_hold(machine: Machine) -> None:
    machine.have(words=("contents_lost",))
    found = machine.check("suspend_speed")
    assert found.verdict is Verdict.UNKNOWN and not found.settings
    assert found.detail.endswith(": no settings are proposed")


def test_the_speed_of_tiny_amounts_is_more_than_none() -> None:
    assert suspending._floor(1999.0, 100) == 1900
    assert suspending._floor(37.5, 100) == 37
    assert suspending._floor(0.2, 100) == 1
