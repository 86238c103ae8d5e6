"""The campaign's stage `suspend`: rehearsed on the tests' fake driver, and what its cases say where
the driver does otherwise."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from benchmarks import ROOT
from carmad.config import Settings
from carmad.selftest import suspending
from carmad.selftest.bench import Bench
from carmad.selftest.report import Finding, Verdict
from carmad.selftest.run import run
from lab.hardware import memory_limits, suspend, suspend_cases
from lab.hardware.suspend_cases import CASES, Run
from lab.hardware.visit import Visit
from lab.selftest import PROBE, suspension
from lab.tests.test_hardware_campaign import page_of, rehearsed
from tests.shared import rarely

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine",)

HELD = {"held_mib": 1424, "lock_s": 0.001, "checkpoint_s": 0.5, "restore_s": 0.0}
HELD |= {"unlock_s": 0.001, "host_mib": 1400, "taken_mib": 1401}


@pytest.fixture
def as_root(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("FAKE_UID", "0")
    monkeypatch.setattr(suspending, "WRITTEN_MIB", 40)
    monkeypatch.setattr(suspension, "LISTED_WITHIN_S", 0.3)


def check(machine: Machine, name: str) -> Finding:
    case = next(case for case in CASES if case.name == name)
    (found,) = run(Settings(), facts=[case.fact], busy_s=machine.busy_s, probe=PROBE).findings
    assert machine.pids() == []
    return found


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root suspends processes")
def test_a_rehearsal_of_suspend_keeps_every_case(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ("training", "10 GiB", "40 GiB")  # as others, in many seconds
    few = [case for case in CASES if case.name not in long]
    monkeypatch.setattr(suspend, "CASES", few)
    one = rehearsed("suspend", tmp_path)
    kept = one.entries()
    assert set(kept) == {case.name for case in few}
    verdicts = {name: entry["verdict"] for name, entry in kept.items()}
    assert verdicts.pop("another GPU") == "cannot be told here", "there is one"
    # Where this machine has room for it.
    assert verdicts.pop("1 GiB") == "holds" or "are free" in kept["1 GiB"]["detail"]
    assert set(verdicts.values()) == {"holds"}, kept
    assert not [entry for entry in kept.values() if "failed" in entry]
    for name, processes in (("data loader", 1), ("two processes", 2)):
        seen = kept[name]["observed"]
        assert (seen["processes"], seen["suspensions"]) == (processes, 5)
        assert seen["losses"] >= 48
    assert "## What was seen" in page_of(one) and "equal to the last bit" in page_of(one)


OTHERWISE = [
    ("1 GiB", "contents_lost"),
    ("1 GiB", "memory_kept"),
    ("managed memory", "contents_lost"),
    ("managed memory", "restore=999"),
    ("memory limits", "most_ignored"),
    ("memory limits", "guarantees_ignored"),
]


@pytest.mark.parametrize("name", ["killed", *dict.fromkeys(name for name, _ in OTHERWISE)])
def test_a_case_holds_where_the_driver_does_as_expected(
    machine: Machine, as_root: None, name: str
) -> None:
    found = check(machine, name)
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.parametrize(("name", "word"), rarely(OTHERWISE[1:], OTHERWISE[:1]))
def test_it_differs_where_the_driver_does_not(
    machine: Machine, as_root: None, name: str, word: str
) -> None:
    machine.have(words=(word,))
    found = check(machine, name)
    assert found.verdict is Verdict.DIFFERS, found


def test_managed_memory_may_be_refused(machine: Machine, as_root: None) -> None:
    machine.have(words=("checkpoint=999",))
    found = check(machine, "managed memory")
    assert found.verdict is Verdict.HOLDS, found
    assert "refused" in found.detail and "goes on" in found.detail


def test_a_driver_without_memory_limits_is_said_to_have_none(
    machine: Machine, as_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.have(words=("no_limits",))
    for name in ("memory limits", "memory limits under MPS"):
        found = check(machine, name)
        assert (found.verdict, found.failed) == (Verdict.UNKNOWN, False)
        assert found.detail == memory_limits.NONE
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root" in check(machine, "memory limits").detail


def test_what_does_not_fit_is_left_out(
    machine: Machine, as_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=11 << 30))
    found = check(machine, "10 GiB")
    assert (found.verdict, found.failed) == (Verdict.UNKNOWN, False)
    assert found.detail == "of the host's memory, only 11264 MiB are free"
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 50))
    lines = (machine.folder / "world").read_text().replace("memory 81559", "memory 12000")
    (machine.folder / "world").write_text(lines)
    assert "of the GPU's memory" in check(machine, "10 GiB").detail


TRAINING = """import itertools, sys, time
sys.path.insert(0, {root!r})
from carmad.selftest.probe import Cuda
cuda = Cuda()
print('{{"event": "ready"}}', flush=True)
for step in itertools.count():
    its = step + {wrong} * (step > 20), time.monotonic()
    print('{{"event": "loss", "loss": "%d", "at": %f}}' % its, flush=True)
    time.sleep(0.01)
"""


def train(monkeypatch: pytest.MonkeyPatch, *wrong: int) -> None:
    """Without PyTorch. `wrong`: whether the losses are, of the training that is suspended, and of
    the two others."""
    scripts = [TRAINING.format(root=str(ROOT), wrong=each) for each in wrong]

    def start(bench: Bench, workers: int) -> Run:
        return Run(bench.run([sys.executable, "-c", scripts.pop(0)], bench.environment()))

    monkeypatch.setattr(suspend_cases, "start", start)


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        ((0, 0, 0), Verdict.HOLDS),
        ((1, 0, 0), Verdict.DIFFERS),
        ((0, 0, 1), Verdict.UNKNOWN),  # what is computed is not repeatable
    ],
)
def test_losses_that_are_not_the_same(
    machine: Machine,
    as_root: None,
    monkeypatch: pytest.MonkeyPatch,
    wrong: tuple[int, ...],
    verdict: Verdict,
) -> None:
    train(monkeypatch, *wrong)
    found = check(machine, "training")
    assert found.verdict is verdict, found


def test_a_training_that_cannot_be_suspended_says_why(
    machine: Machine, as_root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.have(words=("checkpoint=999",))
    train(monkeypatch, 0, 0, 0)
    found = check(machine, "training")
    assert found.verdict is Verdict.DIFFERS
    assert found.detail.startswith("after 0 suspensions: it is not suspended: process ")


def test_the_page_has_the_speeds_and_what_was_seen(tmp_path: Path) -> None:
    visit = Visit(tmp_path, "suspend", rehearse=True)
    assert "Not tried yet: 1 GiB, 10 GiB" in suspend.blocks(visit)[-1]
    visit.keep("1 GiB", {"verdict": "holds", "detail": "free", "observed": HELD})
    visit.keep("40 GiB", {"verdict": "cannot be told here", "detail": "no | room", "observed": {}})
    visit.keep("killed", {"verdict": "cannot be told here", "detail": "hung", "failed": "hung"})
    page = "\n".join(suspend.blocks(visit))
    row = next(line for line in page.splitlines() if "1424" in line)
    assert [cell.strip() for cell in row.split("|")][1:-1] == [
        *("1424", "0.001", "0.50", "0.00", "0.001", "2.8", "–", "1400", "1401", "holds: free")
    ]
    assert "no \\| room" in page and "| hung |" in page
    assert "Not tried yet: 10 GiB, data loader, training" in page
