"""Whether CARMA recommends another policy, on what evidence, and how it is put in force."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from carma_testing import FakeServer
from carmad.api.advice import AdviceOut, command, read_advice, sentence, words
from carmad.config import Settings
from carmad.core.messages import Reconfigured
from carmad.core.types import Cause, JobState
from carmad.daemon import doctor
from carmad.daemon.advising import EVERY_S, Advising
from carmad.report import as_markdown
from carmad.sim import advice
from carmad.sim.experiment import Outcome
from carmad.sim.shadow import reproduce
from carmad.store import journal
from cli import advise
from tests.api_server import as_uid
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import NO_KERNELS, Carmad, running, train
from tests.outcomes import attempt, job, outcome

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
    found = advice.compare(recorded, present, instead)
    assert why_not in found.why_not if why_not else not found.why_not
    if saved is not None:
        assert found.saved == pytest.approx(saved)


def an_advice(**changed: Any) -> AdviceOut:
    usual: dict[str, Any] = {
        "policy": "magm",
        "instead": "carma",
        "days": 30,
        "jobs": 412,
        "saved": 0.312,
        "longer": False,
        "why_not": "",
        "made_at": datetime.now(UTC).isoformat(),
    }
    return AdviceOut(**{**usual, **changed})  # type: ignore[typeddict-item]


def test_how_it_reads() -> None:
    assert sentence(an_advice()) == (
        "Under policy carma, the 412 jobs of the last 30 days would have taken 31% less time on"
        " average, and no user would have waited longer."
    )
    assert words(an_advice(longer=True)).endswith(
        "no user would have waited longer by more than a minute, or a tenth"
    )
    assert command(an_advice()) == "carma config set policy carma"
    assert (
        words(an_advice(why_not="few jobs")) == "nothing speaks for carma instead of magm: few jobs"
    )


def test_the_doctor_says_so_and_is_content_all_the_same() -> None:
    (found,) = doctor._advice(an_advice())
    assert (found["ok"], found["hint"]) == (None, "carma config set policy carma")
    (found,) = doctor._advice(an_advice(why_not="few jobs"))
    assert found["ok"] is True and "few jobs" in found["detail"]
    assert not list(doctor._advice(None))


# -- another policy takes over


def test_a_policy_takes_over_at_once_in_its_own_order() -> None:
    settings = Settings(policy="exclusive")
    made: list[str] = []

    here = FakeServer(1, settings)
    here.scheduler._policies = lambda new: _made(new, made)
    first, long, short = here.submit(), here.submit(expected_s=900.0), here.submit(expected_s=9.0)
    here.tell(Reconfigured(here.now, Settings(policy="sjf")))
    assert made == ["sjf"] and here.scene.policy == "sjf"
    here.exit(first)
    assert here.job(short).state is JobState.STARTING
    assert here.job(long).state is JobState.QUEUED
    here.tell(Reconfigured(here.now, Settings(policy="sjf")))
    assert made == ["sjf"], "it is the same"


def _made(new: Settings, made: list[str]) -> Any:
    from carmad import registry

    made.append(new.policy)
    return registry.bare_policy(new)


# -- on a daemon


@pytest.fixture
def carmad(tmp_path: Path) -> Iterator[Carmad]:
    daemon = Carmad(tmp_path, "1xA100-40GB", **NO_KERNELS)
    file = tmp_path / "carma.toml"
    file.write_text("# ours\n[limits]\nbackfill = 2  # by vote\n")
    daemon.argv[daemon.argv.index("--config") + 1] = str(file)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.clear_away()


def advise_on(carmad: Carmad, **changed: Any) -> None:
    (carmad.state / "advice.json").write_text(json.dumps(an_advice(**changed)))


def test_the_last_month_is_replayed_apart_and_once_a_week(
    carmad: Carmad, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        carmad.ended(carmad.submit(*train(memory_mib=4000, seconds=0.5, warmup=0.1)))
    file = carmad.state / "advice.json"
    asked = Advising(file, carmad.socket, lambda: "magm")
    asked.advise_if_due()
    found = read_advice(file.parent, "magm")
    assert found and found["why_not"] == "3 past jobs can be compared, and it takes 100"
    file.write_text(json.dumps({**found, "why_not": "mine"}))
    asked.advise_if_due()
    assert read_advice(file.parent, "magm") == {**found, "why_not": "mine"}, "it is of this week"
    os.utime(file, (0, file.stat().st_mtime - EVERY_S))
    asked.advise_if_due()
    assert read_advice(file.parent, "magm") != {**found, "why_not": "mine"}
    assert read_advice(file.parent, "rr") is None, "it is of another policy"

    monkeypatch.setattr(advice, "LEAST_JOBS", 3)
    monkeypatch.setenv("CARMA_SOCKET", carmad.socket)
    again = advise.advise(30)
    assert (again["policy"], again["instead"], again["jobs"]) == ("magm", "carma", 3)
    assert again["saved"] is not None


def test_what_cannot_be_told_is_not_tried_again_at_once(tmp_path: Path) -> None:
    file = tmp_path / "advice.json"
    asked = Advising(file, str(tmp_path / "nobody"), lambda: "magm")
    asked.advise_if_due()
    assert file.read_text() == "" and read_advice(file.parent, "magm") is None
    os.utime(file, (0, 1e9))
    Advising(file, "", lambda: "carma").advise_if_due()
    assert file.stat().st_mtime == 1e9, "it is in force already"


def test_it_is_told_everywhere_and_put_in_force_by_a_command(carmad: Carmad) -> None:
    advise_on(carmad)
    said = sentence(an_advice())
    assert said[1:-1] in carmad.carma("doctor", rc=None)
    assert carmad.get("/v1/config")["advice"]["saved"] == 0.312
    carmad.ended(carmad.sh("true"))
    report = carmad.get("/v1/report")
    assert said in as_markdown(report)
    assert said in carmad.carma("report", "--since", "1d").replace("\\", "")
    waits = carmad.sh("sleep 600"), carmad.sh("sleep 1", expected_s=1.0)
    assert carmad.carma("config", "set", "policy", "carma") == (
        "the policy carma decides from now on\n"
    )
    assert carmad.get("/v1/status")["server"]["policy"] == "carma"
    text = (carmad.folder / "carma.toml").read_text()
    assert 'policy = "carma"' in text and "# ours" in text and "# by vote" in text
    assert "advice" not in str(carmad.carma("doctor", rc=None)), "it has been followed"
    for id in waits:
        carmad.cancel(id)
    carmad.kill()
    carmad.start()
    assert carmad.get("/v1/config")["settings"]["policy"] == "carma"
    carmad.stop()
    for segment in journal.segments(carmad.state / "journal"):
        assert reproduce(segment).first is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("policy", "no-such"), "no-such"),
        (("limits.backfill", "3"), "limits.backfill cannot be set by a command"),
    ],
)
def test_what_cannot_be_set(carmad: Carmad, words: tuple[str, str], said: str) -> None:
    before = (carmad.folder / "carma.toml").read_text()
    assert said in carmad.carma("config", "set", *words, rc=None)
    assert (carmad.folder / "carma.toml").read_text() == before
    assert carmad.get("/v1/status")["server"]["policy"] == "magm"


@needs_root
def test_only_administrators_set_it_and_read_it() -> None:
    with tempfile.TemporaryDirectory(prefix="carma-advice-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder), **NO_KERNELS) as carmad:
            advise_on(carmad)
            uid, where = HOSTILE[0], carmad.socket
            status, _ = as_uid(uid, where, "POST", "/v1/config", {"policy": "rr"})
            assert status == 403
            status, answer = as_uid(uid, where, "GET", "/v1/config")
            assert status == 200 and "advice" not in answer
            assert "advice" not in as_uid(uid, where, "GET", "/v1/report")[1]
            assert carmad.get("/v1/status")["server"]["policy"] == "magm"
