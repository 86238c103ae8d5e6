"""Whether another policy would have been better, on the evidence of past jobs, simulated; and when
that is found out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carma_simulator.advice import compare
from carma_simulator.advice.__main__ import advise
from carma_simulator.advice.service import EVERY_S, Advising, advising
from carma_simulator.experiment import Outcome
from carmad.api.advice import OWN, AdviceOut, read_advice
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause
from carmad.core.jobs.states import JobState
from carmad.edge import Chore
from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.extras.carma_simulator.outcomes import attempt, job, outcome

RUN_S = 100.0


def ran(waits_s: dict[str, float], jobs: int = 100, crashes: int = 0, lost: int = 0) -> Outcome:
    """A hundred jobs of each user, which wait for so long."""
    found = []
    for user, wait_s in waits_s.items():
        for n in range(jobs // len(waits_s)):
            tries = [attempt(wait_s, wait_s, cause=Cause.GPU_OOM)] if n < crashes else []
            state = JobState.OUT_OF_MEMORY if n < lost else JobState.SUCCEEDED
            tries.append(attempt(wait_s, wait_s + RUN_S))
            found.append(job(0.0, *tries, user=user, state=state))
    return outcome(*found)


LONG = {"ada": 300.0, "bob": 100.0}


@pytest.mark.parametrize(
    ("recorded", "instead", "saved", "why_not"),
    [
        (ran(LONG), ran({"ada": 100.0, "bob": 100.0}), 1 / 3, ""),
        (ran(LONG), ran({"ada": 100.0, "bob": 150.0}), 0.25, ""),  # less than a minute longer
        (ran(LONG), ran({"ada": 100.0, "bob": 170.0}), 13 / 60, "1 user would have waited longer"),
        (ran(LONG), ran({"ada": 290.0, "bob": 100.0}), 1 / 60, "would have taken 2% less time"),
        (ran(LONG), ran({"ada": 360.0, "bob": 100.0}), -0.1, "would have taken 10% more time"),
        (ran({"ada": 90.0, "bob": 90.0}), ran({"ada": 100.0, "bob": 100.0}), -1 / 19, "5% more"),
        (ran(LONG), ran({"ada": 1.0, "bob": 1.0}, crashes=2), None, "4 more out-of-memory crashes"),
        (
            ran(LONG, 110),
            ran({"ada": 1.0, "bob": 1.0}, 110, lost=1),
            None,
            "2 more past jobs",
        ),
        (ran(LONG, 98), ran({"ada": 1.0, "bob": 1.0}, 98), None, "98 past jobs can be compared"),
    ],
)
def test_when_a_policy_is_recommended(
    recorded: Outcome, instead: Outcome, saved: float | None, why_not: str
) -> None:
    present = ran(LONG, len(recorded.jobs))
    found = compare.compare(recorded, present, instead)
    assert why_not in found.why_not if why_not else not found.why_not
    if saved is not None:
        assert found.saved == pytest.approx(saved)


def test_the_last_month_is_replayed_apart_and_once_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, gpus="1xA100-40GB", **NO_KERNELS) as carmad:
        _replay_last_month(carmad, monkeypatch)


def _replay_last_month(carmad: Carmad, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> AdviceOut | None:
        return read_advice(carmad.state, "magm")

    for _ in range(3):
        carmad.ended(carmad.submit(*train(memory_mib=4000, seconds=0.5, warmup=0.1)))
    file = carmad.state / "advice.json"
    asked = Advising(carmad.state, carmad.socket, lambda: "magm")
    asked.advise_if_due()
    found = read()
    assert found and found["why_not"] == "3 past jobs can be compared, and it takes 100"
    file.write_text(json.dumps({**found, "why_not": "mine"}))
    asked.advise_if_due()
    assert read() == {**found, "why_not": "mine"}, "it is of this week"
    os.utime(file, (0, file.stat().st_mtime - EVERY_S))
    asked.advise_if_due()
    assert read() != {**found, "why_not": "mine"}
    assert read_advice(carmad.state, "rr") is None, "it is of another policy"

    monkeypatch.setattr(compare, "LEAST_JOBS", 3)
    monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
    again = advise(30)
    assert (again["policy"], again["instead"], again["jobs"]) == ("magm", "carma", 3)
    assert again["saved"] is not None


def test_the_daemon_looks_every_hour(tmp_path: Path) -> None:
    chores: list[Chore] = []
    host: Any = SimpleNamespace(
        state_dir=tmp_path,
        socket="",
        settings=lambda: Settings(policy=OWN),
        add_chore=chores.append,
    )
    advising(host)
    (chore,) = chores
    assert (chore.trigger, chore.when) == ("interval", {"hours": 1})
    chore.do()
    assert not list(tmp_path.iterdir()), "its own policy is in force"


def test_what_cannot_be_told_is_not_tried_again_at_once(tmp_path: Path) -> None:
    file = tmp_path / "advice.json"
    asked = Advising(tmp_path, str(tmp_path / "nobody"), lambda: "magm")
    asked.advise_if_due()
    assert file.read_text() == "" and read_advice(tmp_path, "magm") is None
    os.utime(file, (0, 1e9))
    Advising(tmp_path, "", lambda: "carma").advise_if_due()
    assert file.stat().st_mtime == 1e9, "it is in force already"
