"""The checks of the self-test, on a machine with fake GPUs (fake_machine): each holds where the
driver does as documented, and differs where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from carmad.config import Preconditions, Settings
from carmad.configfile import by_name
from carmad.selftest import activity
from carmad.selftest.facts import FACTS
from carmad.selftest.report import Verdict
from tests.shared import rarely

if TYPE_CHECKING:
    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine",)

BOTH_WAYS = [
    ("gpm_activity", "gpm_in_ratios"),
    ("mps_daemon", "no_mps"),
    ("mps_fault", "fault_alone"),
    ("mps_fault", "faults_unseen"),
    ("mps_terminate", "terminate_spreads"),
    ("contexts", "large_contexts"),
]


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in BOTH_WAYS))
def test_a_check_holds_where_the_driver_does_as_documented(machine: Machine, name: str) -> None:
    found = machine.check(name)
    assert found.verdict is Verdict.HOLDS, found
    assert not found.settings
    assert machine.pids() == []


@pytest.mark.parametrize(("name", "word"), rarely(BOTH_WAYS[2:], BOTH_WAYS[:2]))
def test_a_check_differs_where_it_does_not(machine: Machine, name: str, word: str) -> None:
    machine.have(words=(word,))
    found = machine.check(name)
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings.keys() <= by_name(Settings(preconditions=Preconditions())).keys()
    assert machine.pids() == []


def test_where_pids_are_hidden_the_context_is_not_known(machine: Machine, torch: None) -> None:
    machine.have(words=("foreign_pids",))
    found = machine.check("torch_context")
    assert found.verdict is Verdict.UNKNOWN, found
    assert "pid" in found.detail
    assert machine.pids() == []


BOTH_SCOPES = [
    ("mps_daemons", "one_daemon"),
    ("mps_node", "no_mps"),
    ("mps_node", "fault_crosses"),
    ("mps_node", "faults_forgiven"),
]


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in BOTH_SCOPES))
def test_checks_of_a_daemon_per_gpu_and_of_one_per_node(machine: Machine, name: str) -> None:
    assert machine.check(name).verdict is Verdict.UNKNOWN, "there is one GPU"
    machine.have(gpus=2)
    found = machine.check(name)
    assert found.verdict is Verdict.HOLDS, found
    assert not found.settings
    assert machine.pids() == []


@pytest.mark.parametrize(("name", "word"), rarely(BOTH_SCOPES[2:], BOTH_SCOPES[:2]))
def test_they_differ_where_the_driver_does(machine: Machine, name: str, word: str) -> None:
    machine.have(gpus=2, words=(word,))
    found = machine.check(name)
    assert found.verdict is Verdict.DIFFERS, found
    assert machine.pids() == []


def test_clients_of_two_users(machine: Machine, two_users: None) -> None:
    assert machine.check("mps_multiuser").verdict is Verdict.HOLDS
    machine.have(words=("no_multiuser",))
    assert machine.check("mps_multiuser").verdict is Verdict.DIFFERS


@pytest.mark.long
def test_dcgm(machine: Machine) -> None:
    assert machine.check("dcgm_activity").verdict is Verdict.UNKNOWN
    machine.have(dcgm=True)
    assert machine.check("dcgm_activity").verdict is Verdict.HOLDS
    machine.have(dcgm=True, words=("dcgm_in_percent",))
    differs = machine.check("dcgm_activity")
    assert differs.verdict is Verdict.DIFFERS and not differs.settings, "GPM is still read"
    machine.have(dcgm=True, words=("dcgm_in_percent", "no_gpm"))
    assert machine.check("dcgm_activity").settings == {"monitor.source": "nvml"}
    assert "has no GPM" in machine.check("gpm_activity").detail


def test_a_dcgm_that_is_not_running_is_no_difference(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "ANSWERS_WITHIN_S", 1.0)
    machine.program("dcgmi", "#!/bin/sh\necho 'Error: unable to establish a connection'\nexit 1\n")
    found = machine.check("dcgm_activity")
    assert found.verdict is Verdict.UNKNOWN
    assert "unable to establish a connection" in found.detail


def test_the_context_of_torch(
    machine: Machine, torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.check("torch_context").verdict is Verdict.HOLDS
    monkeypatch.setenv("FAKE_TORCH", "heavy")
    assert machine.check("torch_context").verdict is Verdict.DIFFERS
    monkeypatch.setenv("FAKE_TORCH", "no_gpu")
    found = machine.check("torch_context")
    assert found.verdict is Verdict.UNKNOWN
    assert "finds no GPU" in found.detail


def test_a_large_context_of_torch_is_proposed(
    machine: Machine, torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TORCH", "heavy")
    assert machine.check("torch_context").settings == {"estimation.context_mib": 2550}


def test_the_context_is_printed_as_a_row_of_the_table(machine: Machine, torch: None) -> None:
    found = machine.check("torch_context")
    assert found.observed["cublas_mib"] == 60
    row = found.detail.rpartition(": ")[2].split(",")
    assert row[1:] == ["2.15.0", "490", "60", "0", "carma doctor --gpu"]


def test_without_the_programs_of_mps_nothing_can_be_told(machine: Machine) -> None:
    (machine.folder / "bin/nvidia-cuda-mps-control").unlink()
    for name in ("mps_daemon", "mps_fault"):
        found = machine.check(name)
        assert found.verdict is Verdict.UNKNOWN
        assert "nvidia-cuda-mps-control is not on PATH" in found.detail


def test_what_an_mps_daemon_says_is_told(machine: Machine) -> None:
    machine.have(words=("no_mps",))
    found = machine.check("mps_daemon")
    assert "unrecognized option" in found.detail
    assert not found.settings, "mps is off already"


def test_every_fact_is_tried_both_ways() -> None:
    from tests.carmad.selftest.test_selftest_suspending import CYCLE

    tried = {name for name, _ in (*BOTH_WAYS, *BOTH_SCOPES)} | {
        *("mps_multiuser", "dcgm_activity", "torch_context"),
        *(CYCLE, "suspend_moves", "suspend_speed"),
    }
    assert tried == {fact.name for fact in FACTS}
