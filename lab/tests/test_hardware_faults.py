"""The campaign's stage `faults`, rehearsed on emulated cards: what is expected is what happens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab.hardware.cases import CASES, Case
from lab.hardware.faults import STAGE, tried
from lab.hardware.visit import Visit

pytest_plugins = ("tests.forked_carmad",)

DAILY = {"crash", "daemon killed"}
NEEDS_TORCH = {"host memory refused"}


def visit(folder: Path) -> Visit:
    return Visit(folder, STAGE.name, rehearse=True)


REHEARSED = [case for case in CASES if case.name not in {"storm of 3", "storm of 4"}]  # as of two


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in DAILY else pytest.mark.long)
        for case in REHEARSED
    ],
)
def test_a_rehearsed_fault_ends_as_expected(case: Case, forked: None, tmp_path: Path) -> None:
    if case.name in NEEDS_TORCH:
        pytest.importorskip("torch")
    if case.mps and shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the fake driver with")
    found = tried(case, visit(tmp_path))
    assert "failed" not in found, found
    assert found["checks"], "it expects nothing"
    assert not [check for check in found["checks"] if check["met"] is False], found
    # What this machine's cgroups cannot show is said to be unknown.
    unknown = [check for check in found["checks"] if check["met"] is None]
    assert not unknown or case.name == "host OOM"
    visit(tmp_path).keep(case.name, found)
    page = "\n".join(STAGE.blocks(visit(tmp_path)))
    assert case.name in page
    assert all(job["shown"] for job in found["jobs"])


def test_the_page_tells_what_was_missed_what_failed_and_what_is_left(tmp_path: Path) -> None:
    kept = visit(tmp_path)
    check = {"who": "all", "expected": "2 succeed", "observed": "1 of 2 succeeded", "met": False}
    told = {
        "who": "job 1",
        "state": "out_of_memory",
        "attempts": ["gpu_oom", "gpu_oom"],
        "evidence": "CUDA out of memory",
        "neighbours": ["job 2 held 24576 MiB"],
        "advice": "",
        "notes": [],
        "shown": "",
    }
    kept.keep("storm of 2", {"checks": [check], "jobs": [told], "seconds": 1.0})
    kept.keep("deaf", {"checks": [], "jobs": [], "failed": "TimeoutError: in vain", "seconds": 1.0})
    summary, checks, *_, said = STAGE.blocks(kept)
    assert summary.startswith("0 of 2 expectations met.")
    assert "Not tried yet: crash, crash under MPS" in summary and "deaf" not in summary
    assert checks.count("MISSED") == 2 and "TimeoutError: in vain" in checks
    assert "gpu_oom, gpu_oom" in said and "job 2 held 24576 MiB" in said


def test_what_was_kept_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in CASES:
        visit(tmp_path).keep(case.name, {"checks": [], "jobs": [], "seconds": 0.0})
    monkeypatch.setattr("lab.hardware.faults.tried", lambda *_: pytest.fail("tried"))
    STAGE.measure(visit(tmp_path))
