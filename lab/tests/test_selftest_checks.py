"""The laboratory's checks of what no setting depends on, on a machine with fake GPUs: each holds
where the driver does as documented, and differs where it does not."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from carmad import units
from carmad.attempt import cgroup
from carmad.config import Preconditions, Settings
from carmad.configfile import by_name
from carmad.selftest.facts import FACTS
from carmad.selftest.report import Verdict
from lab.selftest import faults
from lab.selftest.facts import ASSUMPTIONS, EXPLAINING, SECTIONS
from tests import fake_gpu
from tests.shared import rarely

if TYPE_CHECKING:
    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine", "lab.tests.selftests")
pytestmark = pytest.mark.usefixtures("laboratory")

BOTH_WAYS = [
    ("memory_used", "reserved_is_free"),
    ("process_memory", "contexts_uncounted"),
    ("process_lists", "clients_unlisted"),
    ("process_leaves", "memory_lags"),
    ("busy_sampled", "kernels_unsampled"),
    ("mps_clients_sampled", "clients_unsampled"),
    ("mps_clients_sampled", "clients_alike"),
    ("context_unsampled", "contexts_sampled"),
    ("gpm_traffic", "gpm_in_bytes"),
    ("mps_uuid", "no_uuids_under_mps"),
    ("mps_limit", "limit_ignored"),
    ("own_kills", "kills_look_like_faults"),
    ("conditions", "always_hot"),
    ("energy", "energy_doubled"),
]
CHECKS = list(dict.fromkeys(name for name, _ in BOTH_WAYS))


@pytest.mark.parametrize("name", rarely(CHECKS[4:], CHECKS[:4]))
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


@pytest.fixture
def cgroups() -> None:
    own = cgroup.own_cgroup()
    if os.geteuid() != 0 or own is None or not os.access(own, os.W_OK):
        pytest.skip("no cgroup (version 2) can be made here")


@pytest.mark.usefixtures("cgroups")
def test_where_memory_limits_hold_guarantees_are_proposed(machine: Machine) -> None:
    found = machine.check("memory_limits")
    assert found.verdict is Verdict.HOLDS, found
    assert found.settings == {"collocation.guarantee_memory": True}
    assert machine.pids() == []


@pytest.mark.usefixtures("cgroups")
@pytest.mark.parametrize("word", ["most_ignored", "guarantees_ignored"])
def test_where_they_do_not_none_are(machine: Machine, word: str) -> None:
    machine.have(words=(word,))
    found = machine.check("memory_limits")
    assert found.verdict is Verdict.DIFFERS, found
    assert not found.settings, "it is off already"
    assert machine.pids() == []


def test_without_memory_limits_it_is_said_what_they_need(machine: Machine) -> None:
    world = (machine.folder / "world").read_text().splitlines()
    machine.world(*world, "fail nvmlDeviceGetMemoryLimits_v1 13")
    found = machine.check("memory_limits")
    assert found.verdict is Verdict.UNKNOWN, found
    assert "R615" in found.detail


@pytest.mark.parametrize(
    "name",
    [
        *("process_memory", "process_leaves", "mps_clients_sampled"),
    ],
)
def test_where_pids_are_hidden_what_is_said_of_a_process_is_not_known(
    machine: Machine, torch: None, name: str
) -> None:
    machine.have(words=("foreign_pids",))
    found = machine.check(name)
    assert found.verdict is Verdict.UNKNOWN, found
    assert "pids" in found.detail
    assert machine.pids() == []


def test_where_no_xid_is_told_it_is_not_known_which_drain(machine: Machine) -> None:
    machine.have(words=("xids_unseen",))
    found = machine.check("own_kills")
    assert found.verdict is Verdict.UNKNOWN, found


@pytest.mark.long
def test_a_second_users_client(machine: Machine, two_users: None) -> None:
    assert machine.check("mps_two_users").verdict is Verdict.HOLDS
    machine.have(words=("users_mixed",))
    assert machine.check("mps_two_users").verdict is Verdict.DIFFERS


@pytest.mark.long
def test_the_traffic_that_dcgm_reports(machine: Machine) -> None:
    assert machine.check("dcgm_traffic").verdict is Verdict.UNKNOWN
    machine.have(dcgm=True)
    assert machine.check("dcgm_traffic").verdict is Verdict.HOLDS
    machine.have(dcgm=True, words=("dcgm_in_mib",))
    assert machine.check("dcgm_traffic").verdict is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("allocator", "small_segments"),
        ("oom_text", "reworded"),
        ("profiler", "unwatched"),
        ("profiler", "host_times"),
    ],
)
def test_checks_with_torch(
    machine: Machine, torch: None, monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    assert machine.check(name).verdict is Verdict.HOLDS
    monkeypatch.setenv("FAKE_TORCH", word)
    assert machine.check(name).verdict is Verdict.DIFFERS
    monkeypatch.setenv("FAKE_TORCH", "no_gpu")
    found = machine.check(name)
    assert found.verdict is Verdict.UNKNOWN
    assert "finds no GPU" in found.detail


def test_the_order_of_gpus(machine: Machine) -> None:
    assert machine.check("index_order").verdict is Verdict.UNKNOWN
    machine.have(gpus=2)
    assert machine.check("index_order").verdict is Verdict.HOLDS
    lines = (machine.folder / "world").read_text().splitlines()
    machine.world(*(line.replace("pci 0 10", "pci 0 90") for line in lines))
    assert machine.check("index_order").verdict is Verdict.DIFFERS


TOPOLOGY = "\x1b[4m\tGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \t{}\t0-15\nGPU1\t{}\t X \t0-15\n"


def test_islands_beside_what_nvidia_smi_shows(machine: Machine) -> None:
    assert machine.check("islands").verdict is Verdict.UNKNOWN
    machine.have(gpus=2)
    lines = (machine.folder / "world").read_text().splitlines()
    apart = [*lines, "node 1"]
    for link, world, verdict in (
        ("NV18", [*lines, f"nvlink {fake_gpu.uuid(0)}"], Verdict.HOLDS),
        ("SYS", apart, Verdict.HOLDS),
        ("NV18", apart, Verdict.DIFFERS),
    ):
        machine.world(*world)
        machine.program("nvidia-smi", f"#!/bin/sh\nprintf '%b' {TOPOLOGY.format(link, link)!r}\n")
        assert machine.check("islands").verdict is verdict, (link, world)


def test_links_in_what_nvidia_smi_shows() -> None:
    assert faults.links_of(TOPOLOGY.format("NV18", "NV18"), 2) == [(0, 1)]
    assert faults.links_of(TOPOLOGY.format("PIX", "PIX"), 2) == []
    assert faults.links_of("no matrix", 2) is None


def test_a_process_on_a_mig_instance(machine: Machine) -> None:
    assert machine.check("mig_utilization").verdict is Verdict.UNKNOWN
    instance = "MIG-7a5e1b0a-7f31-4e11-9a3e-0123456789ab"
    world = [f"gpu {fake_gpu.uuid()}", "name H100", "pci 0 10 0", "memory 81559 600 0", "mig"]
    machine.world(*world, f"slot 1 0 {instance}", "name H100 MIG 1g.10gb", "memory 9856 0 0")
    assert machine.check("mig_utilization").verdict is Verdict.HOLDS
    fake_gpu.deviate(machine.folder, "foreign_pids")
    assert machine.check("mig_utilization").verdict is Verdict.UNKNOWN
    fake_gpu.deviate(machine.folder, "contexts_unlisted")
    assert machine.check("mig_utilization").verdict is Verdict.DIFFERS


SYSTEMD_RUN = """\
#!{python} -IS
import subprocess, sys
command = [word for n, word in enumerate(sys.argv[1:]) if not word.startswith("--")]
subprocess.Popen(command, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
"""


def test_the_kernels_kills_for_memory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "available", lambda: False)
    assert machine.check("host_oom").verdict is Verdict.UNKNOWN
    monkeypatch.setattr(units, "available", lambda: True)
    machine.program("systemd-run", SYSTEMD_RUN.format(python=sys.executable))
    monkeypatch.setattr(faults, "GREEDY", "import os; os.kill(os.getpid(), 9)")
    found = machine.check("host_oom")  # there is no cgroup: nobody counts
    assert found.verdict is Verdict.DIFFERS, found
    exited = faults.exits.read_exit

    def counted(directory: Path) -> Any:
        record = exited(directory)
        return record and dataclasses.replace(record, host_oom_kills=1)

    monkeypatch.setattr(faults.exits, "read_exit", counted)
    found = machine.check("host_oom")
    assert found.verdict is Verdict.HOLDS, found
    assert found.observed["cause"] == "host_oom"


def test_every_assumption_has_a_check_or_says_how_to_find_out() -> None:
    assert len({each.name for each in ASSUMPTIONS}) == len(ASSUMPTIONS)
    assert all(each.check or each.by_hand for each in ASSUMPTIONS)
    assert {fact.name for fact in FACTS} <= {each.name for each in ASSUMPTIONS}, "the product's"
    from lab.tests.test_selftest_suspending import SUSPENDING

    tried = {name for name, _ in BOTH_WAYS} | {
        *("mps_two_users", "dcgm_traffic", "allocator", "oom_text", "profiler", "index_order"),
        *("islands", "mig_utilization", "host_oom", "memory_limits"),
        *(name for name, _ in SUSPENDING),
        *("suspend_api", "suspend_root"),
    }
    assert tried == {fact.name for fact in EXPLAINING}
    assert all(SECTIONS.values())
