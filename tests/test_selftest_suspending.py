"""The self-test's checks of suspending a process, on a machine with fake GPUs: each holds where the
driver does as documented, and differs where it does not."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from carmad import configwriting
from carmad.config import Settings, Suspending
from carmad.configfile import by_name, load
from carmad.selftest import bench as benches
from carmad.selftest import suspending, suspension
from carmad.selftest.report import Verdict
from tests import fake_gpu
from tests.test_selftest_checks import two_users  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine",)

SUSPENDING = [
    ("suspend_cycle", "checkpoint=999"),
    ("suspend_frees", "memory_kept"),
    ("suspend_contents", "contents_lost"),
    ("suspend_stopped", "restore=999"),
    ("suspend_busy", "lock_waits"),
    ("suspend_without_cuda", "cuda_everywhere"),
    ("suspend_mps", "clients_suspend"),
    ("suspend_no_room", "restored_anyway"),
    ("suspend_room_again", "restored_never_again"),
]
ON = Settings(suspend=Suspending(host_memory_mib=4096))
SLOW = Suspending(host_memory_mib=4096, out_mib_s=1e-3, in_mib_s=1e-3)
FAST = Suspending(host_memory_mib=4096, out_mib_s=1e12, in_mib_s=1e12, fixed_s=0.0)


@pytest.fixture(autouse=True)
def as_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests are run by somebody else."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("FAKE_UID", "0")
    monkeypatch.setattr(suspending, "LARGE_MIB", 512)
    monkeypatch.setattr(suspension, "WRITTEN_MIB", 40)
    for each in (suspending, suspension):
        monkeypatch.setattr(each, "LISTED_WITHIN_S", 0.3)
    monkeypatch.setattr(suspending, "TURNS", 1)


@pytest.mark.parametrize("name", [name for name, _ in SUSPENDING])
def test_a_check_holds_where_the_driver_does_as_documented(machine: Machine, name: str) -> None:
    found = machine.check(name, ON)
    assert found.verdict is Verdict.HOLDS, found
    assert not found.settings
    assert machine.pids() == []


@pytest.mark.parametrize(("name", "word"), SUSPENDING)
def test_a_check_differs_where_it_does_not(machine: Machine, name: str, word: str) -> None:
    machine.have(words=(word,))
    found = machine.check(name, ON)
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings.keys() <= by_name(Settings()).keys()
    assert machine.pids() == []


@pytest.mark.parametrize("name", ["suspend_cycle", "suspend_frees", "suspend_contents"])
def test_where_the_core_does_not_hold_suspending_is_switched_off(
    machine: Machine, name: str
) -> None:
    word = dict(SUSPENDING)[name]
    machine.have(words=(word,))
    assert machine.check(name, ON).settings == {"suspend.host_memory_mib": 0}
    assert not machine.check(name).settings, "it is off"


def test_an_old_driver_has_no_such_calls(machine: Machine) -> None:
    assert machine.check("suspend_api").verdict is Verdict.HOLDS
    (machine.folder / "lib").unlink()
    library = machine.folder / "lib/libcuda.so.1"
    library.parent.mkdir()
    source = machine.folder / "old.c"
    source.write_text("int cuInit(unsigned flags) { return flags; }\n")
    fake_gpu.compile_library(source, library)
    machine.have()
    found = machine.check("suspend_api", ON)
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings == {"suspend.host_memory_mib": 0}
    found = machine.check("suspend_speed")
    assert found.verdict is Verdict.UNKNOWN and not found.settings
    assert "driver 570 or newer: no settings are proposed" in found.detail


def test_only_root_can_tell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name, _ in SUSPENDING:
        found = machine.check(name)
        assert (found.verdict, found.failed) == (Verdict.UNKNOWN, False)
        assert found.detail == "only root may suspend processes"


def test_another_user_may_not(machine: Machine, two_users: None) -> None:  # noqa: F811
    assert machine.check("suspend_root").verdict is Verdict.HOLDS
    machine.have(words=("anyone_suspends",))
    assert machine.check("suspend_root").verdict is Verdict.DIFFERS


def test_what_nvml_does_not_list_is_judged_by_its_memory(machine: Machine) -> None:
    machine.have(words=("foreign_pids",))
    found = machine.check("suspend_frees")
    assert found.verdict is Verdict.HOLDS and "no pids are listed here" in found.detail
    assert "listed" not in found.observed


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
    off = Settings(suspend=Suspending(out_mib_s=1e-3, in_mib_s=1e-3))
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


@pytest.mark.parametrize("word", ["checkpoint=999", "memory_kept", "contents_lost"])
def test_no_settings_are_proposed_where_the_core_does_not_hold(machine: Machine, word: str) -> None:
    machine.have(words=(word,))
    found = machine.check("suspend_speed")
    assert found.verdict is Verdict.UNKNOWN and not found.settings
    assert found.detail.endswith(": no settings are proposed")


def test_a_driver_that_hangs_costs_a_check_and_no_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspension, "CALL_WITHIN_S", 1.0)
    monkeypatch.setattr(suspending, "REFUSED_AFTER_S", 100.0)
    monkeypatch.setattr(suspending, "HOLD_S", 1000.0)
    monkeypatch.setattr(benches, "ENDED_WITHIN_S", 1.0)
    found = machine.check("suspend_busy")
    assert found.verdict is Verdict.UNKNOWN and found.failed
    assert "not answered in 1 s" in found.detail
    assert machine.pids() == []


def test_the_speed_of_tiny_amounts_is_more_than_none() -> None:
    assert suspending._floor(1999.0, 100) == 1900
    assert suspending._floor(37.5, 100) == 37
    assert suspending._floor(0.2, 100) == 1
