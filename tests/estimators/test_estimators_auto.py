"""Which estimators `auto` asks, which it chooses, and its refusal if none has an estimate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import estimators.auto as module
from carma_testing import a_run, a_server, a_spec
from carmad.config import Settings
from carmad.plugin import Estimate, JobSpec, Refusal, Server, Trial
from estimators.auto import auto
from estimators.history import WRITTEN
from estimators.tracer.report import No
from tests.here import Here
from tests.reports import a_report

GOOD = Trial(a_report().dumps(), "", code=0)


def estimated(server: Server, spec: JobSpec | None = None) -> Estimate:
    answer = auto(Settings(), server).estimate(spec or a_spec())
    assert isinstance(answer, Estimate), answer
    return answer


def test_the_owners_word_comes_first_and_history_is_judged_by_the_way() -> None:
    server = a_server(GOOD, [a_run(7000)] * 4)
    estimate = estimated(server, a_spec(memory_mib=9000))
    assert (estimate.mib, estimate.source, estimate.firm) == (9000, "declared", True)
    assert [(other.source, other.mib) for other in estimate.others] == [("history", 7000)]
    assert estimate.notes == ()
    assert not server.tried


def test_history_needs_no_look() -> None:
    server = a_server(GOOD, [a_run(7000)] * 4)
    estimate = estimated(server)
    assert (estimate.mib, estimate.source, estimate.others) == (7000, "history", ())
    assert estimate.notes == ("n=4", "no declared: no --gpu-mem was given")
    assert [WRITTEN in argv for argv in server.tried] == [True]  # when the script was changed


def test_one_look_for_all_others() -> None:
    server = a_server(GOOD)
    estimate = estimated(server)
    assert estimate.source == "trace"
    assert {"horus", "faketensor"} <= {other.source for other in estimate.others}
    assert len(server.tried) == 1
    assert "no history: no earlier run of this command" in estimate.notes
    assert "no declared: no --gpu-mem was given" in estimate.notes


def test_history_of_an_older_script_is_believed_less_than_a_trace(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    os.utime(tmp_path / "train.py", (1000, 1000))
    runs = [a_run(7000, cwd=str(tmp_path), ended_at=900.0)] * 4
    spec = a_spec(cwd=str(tmp_path))
    traced = estimated(Here(tmp_path / "answer", runs, GOOD), spec)
    assert traced.source == "trace"
    assert [other.mib for other in traced.others if other.source == "history"] == [7000]
    assert "no history: train.py was changed after all 4 runs" in traced.notes

    failed = Trial(No("it never imported torch").dumps(), "", code=0)
    guessed = estimated(Here(tmp_path / "answer", runs, failed), spec)
    assert (guessed.source, guessed.mib) == ("history", 7000)
    assert "no trace: it never imported torch" in guessed.notes


def test_a_script_that_stops_by_itself_does_so_whatever_its_history_says(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    spec = a_spec(cwd=str(tmp_path))
    broken = Trial(No("it stops", crash="at train.py:3: NameError: x").dumps(), "", code=0)
    runs = [a_run(7000, cwd=str(tmp_path), ended_at=900.0)] * 4
    assert estimated(Here(tmp_path / "a", runs, broken), spec).crash.startswith("at train.py:3")
    refused = auto(Settings(), a_server(broken)).estimate(spec)
    assert isinstance(refused, Refusal) and refused.crash == "at train.py:3: NameError: x"


def test_nobody_knows() -> None:
    server = a_server(Trial(No("it never imported torch").dumps(), "", code=0))
    answer = auto(Settings(), server).estimate(a_spec())
    assert isinstance(answer, Refusal)
    assert answer.source == "auto"
    assert answer.why == (
        "it never imported torch; no earlier run of this command; no --gpu-mem was given"
    )


def test_one_that_fails_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "broken"

        def estimate(self, spec: JobSpec) -> Estimate:
            raise ImportError("no numpy here")

    monkeypatch.setattr(module, "BY_LOOK", (lambda settings, server: Broken(), *module.BY_LOOK))
    estimate = estimated(a_server(GOOD))
    assert estimate.source == "trace"
    assert "no broken: it failed: ImportError('no numpy here')" in estimate.notes


def test_the_daemon_does_not_load_what_models_need() -> None:
    code = "import sys, estimators.auto; print({'torch', 'numpy', 'sklearn'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
