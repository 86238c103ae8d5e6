"""The laboratory's checks of suspending a process, on a machine with fake GPUs: each holds where
the driver does as documented, and differs where it does not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from carmad.config import Settings, Suspending
from carmad.selftest import bench as benches
from carmad.selftest import suspending as ours
from carmad.selftest.report import Verdict
from lab.selftest import suspending, suspension
from tests import fake_gpu
from tests.shared import rarely

if TYPE_CHECKING:
    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine", "lab.tests.selftests")
pytestmark = pytest.mark.usefixtures("laboratory")

SUSPENDING = [
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


@pytest.fixture(autouse=True)
def as_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests are run by somebody else."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("FAKE_UID", "0")
    monkeypatch.setattr(ours, "LARGE_MIB", 512)
    monkeypatch.setattr(ours, "WRITTEN_MIB", 40)
    for each in (suspending, suspension):
        monkeypatch.setattr(each, "LISTED_WITHIN_S", 0.3)


@pytest.mark.parametrize("name", [name for name, _ in SUSPENDING])
def test_a_check_holds_where_the_driver_does_as_documented(machine: Machine, name: str) -> None:
    found = machine.check(name, ON)
    assert found.verdict is Verdict.HOLDS, found
    assert not found.settings
    assert machine.pids() == []


@pytest.mark.parametrize(("name", "word"), rarely(SUSPENDING[1:], SUSPENDING[:1]))
def test_a_check_differs_where_it_does_not(machine: Machine, name: str, word: str) -> None:
    machine.have(words=(word,))
    found = machine.check(name, ON)
    assert found.verdict is Verdict.DIFFERS, found
    assert not found.settings
    assert machine.pids() == []


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


def test_only_root_can_tell(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name, _ in SUSPENDING:
        found = machine.check(name)
        assert (found.verdict, found.failed) == (Verdict.UNKNOWN, False)
        assert found.detail == "only root may suspend processes"


def test_another_user_may_not(machine: Machine, two_users: None) -> None:
    assert machine.check("suspend_root").verdict is Verdict.HOLDS
    machine.have(words=("anyone_suspends",))
    assert machine.check("suspend_root").verdict is Verdict.DIFFERS


def test_what_nvml_does_not_list_is_judged_by_its_memory(machine: Machine) -> None:
    machine.have(words=("foreign_pids",))
    found = machine.check("suspend_frees")
    assert found.verdict is Verdict.HOLDS and "no pids are listed here" in found.detail
    assert "listed" not in found.observed


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
