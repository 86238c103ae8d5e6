"""The stage of the campaign that runs the self-test, and the page of what was seen to hold."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import psutil
import pytest

from carmad.attempt.proc import own_environment
from carmad.selftest import bench as benches
from carmad.selftest import report
from carmad.selftest.bench import Probe
from carmad.selftest.report import Finding, Verdict
from docs.pages import hardware
from lab.hardware import child, facts
from lab.hardware.visit import Visit
from lab.selftest.facts import ASSUMPTIONS

pytest_plugins = ("tests.fake_machine",)

ISLANDS = next(fact for fact in ASSUMPTIONS if fact.name == "islands").fact


def test_the_stage_keeps_an_entry_per_fact_and_goes_on_where_it_ended(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("context_unsampled", "mps_uuid", "islands")
    monkeypatch.setattr(facts, "CHECKED", [fact for fact in ASSUMPTIONS if fact.name in few])
    visit = Visit(tmp_path / "h100", "facts", rehearse=True)
    visit.keep("mps_uuid", {"verdict": "differs", "detail": "as | it was"})
    facts.measure(visit)
    entries = visit.entries()
    assert {name: entry["verdict"] for name, entry in entries.items()} == {
        "mps_uuid": "differs",
        "context_unsampled": "holds",
        "islands": "cannot be told here",
    }
    assert not [entry for entry in entries.values() if "failed" in entry]
    kept = entries["context_unsampled"]
    assert kept["gpu"] == "NVIDIA H100 80GB HBM3" and kept["driver"] and kept["date"]
    about, table = facts.blocks(visit)
    assert "1 hold and 1 differ" in about
    assert table.count("\n") == 4 and "as \\| it was" in table
    facts.measure(dataclasses.replace(visit, until=0.0))
    assert len((tmp_path / "h100/facts.jsonl").read_text().splitlines()) == 3


def test_a_fact_whose_check_hangs_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs in the driver, as nothing else of the child's does: neither the next fact nor
    the next command waits for it, and nothing of it is left."""
    few = ("context_unsampled", "energy")
    chosen = sorted(
        (fact for fact in ASSUMPTIONS if fact.name in few), key=lambda f: few.index(f.name)
    )
    monkeypatch.setattr(facts, "CHECKED", chosen)
    monkeypatch.setattr(facts, "FACT_S", 2.0)
    monkeypatch.setattr(child, "END_S", 0.0)
    started: list[Probe] = []

    def start(command: object, env: dict[str, str]) -> Probe:
        driver = env | {"HANGS": str(hangs.exists())}
        started.append(Probe([sys.executable, "-c", HANGING], driver))
        return started[-1]

    hangs = tmp_path / "hangs"
    hangs.touch()
    monkeypatch.setattr(child, "Probe", start)
    visit = Visit(tmp_path / "h100", "facts", rehearse=False)
    facts.measure(visit)
    kept = visit.entries()
    assert kept["context_unsampled"]["failed"] == "the probe has not answered in 2 s"
    assert kept["context_unsampled"]["verdict"] == "cannot be told here"
    assert kept["energy"]["verdict"] == "holds", "by another child"
    assert len(started) == 2 and not any(psutil.pid_exists(each.pid) for each in started)
    assert [fact.name for fact in visit.todo(chosen, lambda fact: fact.name)] == [few[0]]
    assert "1 hold and 0 differ" in facts.blocks(visit)[0]
    hangs.unlink()  # a later command, when the driver is well again
    facts.measure(visit)
    assert visit.entries()["context_unsampled"]["verdict"] == "holds"
    assert len(started) == 3
    assert "2 hold and 0 differ" in facts.blocks(visit)[0]


HANGING = """\
import json, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    if json.loads(line)["do"] == "context_unsampled" and os.environ["HANGS"] == "True":
        signal.pause()
    print(json.dumps({"verdict": "holds", "detail": ""}), flush=True)
"""

CHILD = """\
import json, os, subprocess, sys
for line in sys.stdin:
    fact = json.loads(line)["do"]
    if fact == "islands":
        print(json.dumps({"error": "NVMLError", "call": "NVMLError: unknown"}), flush=True)
    elif fact == "energy":
        print("a library is loaded")
        print(json.dumps({"verdict": "holds", "detail": ""}), flush=True)
    else:
        subprocess.Popen(["sleep", "1000"], stdout=2, start_new_session=True)
        sys.exit("the driver is gone")
"""


def test_a_fact_whose_check_breaks_costs_no_other_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("context_unsampled", "islands", "energy")
    chosen = sorted(
        (fact for fact in ASSUMPTIONS if fact.name in few), key=lambda f: few.index(f.name)
    )
    monkeypatch.setattr(facts, "CHECKED", chosen)
    ended: list[Path] = []
    kill_leftovers = benches.kill_leftovers

    def ends(folder: Path) -> None:
        kill_leftovers(folder)
        ended.append(folder)
        assert str(folder) not in {_mark(process) for process in psutil.process_iter()}

    monkeypatch.setattr(benches, "kill_leftovers", ends)
    monkeypatch.setattr(
        child, "Probe", lambda command, env: Probe([sys.executable, "-c", CHILD], env)
    )
    visit = Visit(tmp_path / "h100", "facts", rehearse=False)
    facts.measure(visit)
    kept = visit.entries()
    assert kept["context_unsampled"]["failed"] == "the probe has ended: the driver is gone"
    assert kept["islands"]["failed"] == "NVMLError: unknown"
    assert kept["energy"]["verdict"] == "holds"
    assert len(ended) == 3 and not ended[0].exists()


def _mark(process: psutil.Process) -> str:
    return own_environment(process.pid).get(benches.MARK, "")


def test_a_check_that_was_not_completed_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    where = report.Report("NVIDIA H200", 1, "580.1", "13.0", "", "", "root", ())
    broken = Finding(Verdict.UNKNOWN, "it hangs", fact="islands", failed=True)
    told = dataclasses.replace(where, findings=(broken,))
    monkeypatch.setattr(child, "run", lambda *_, **__: told)
    assert child.answer(ISLANDS, 1.0, "")["failed"] == "it hangs"


def test_what_a_driver_raises_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("libnvidia-ml.so.1 is broken")

    monkeypatch.setattr(child, "run", broken)
    assert child.answer(ISLANDS, 1.0, "") == {
        "error": "OSError",
        "call": "OSError: libnvidia-ml.so.1 is broken",
    }


def test_the_page_says_where_each_fact_was_seen(tmp_path: Path) -> None:
    assert "no report of a real GPU has been committed" in hardware.page(tmp_path)
    where = {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-12-01T10:00:00Z"}
    visit = Visit(tmp_path / "h200", "facts", rehearse=False)
    for name, verdict in (
        ("energy", Verdict.DIFFERS),
        ("energy", Verdict.HOLDS),  # a later visit's
        ("mps_fault", Verdict.DIFFERS),
        ("islands", Verdict.UNKNOWN),
    ):
        visit.keep(name, {**where, "fact": name, "verdict": verdict, "detail": "it fell"})
    page = hardware.page(tmp_path)
    assert "- NVIDIA H200, driver 580.1, 2026-12-01\n" in page
    seen = {name: _row(page, name) for name in ("energy", "mps_fault", "islands", "contexts")}
    assert seen["energy"].endswith("| NVIDIA H200, driver 580.1, 2026-12-01 |")
    assert "**differs** on NVIDIA H200, driver 580.1, 2026-12-01: it fell" in seen["mps_fault"]
    assert seen["islands"].endswith("| not yet |")
    assert seen["contexts"].endswith("| not yet |")


def _row(page: str, name: str) -> str:
    return next(line for line in page.splitlines() if f"| `{name}` |" in line)
