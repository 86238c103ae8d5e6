"""Whether CARMA recommends another policy, on what evidence, and how it is put in force."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from carma_testing import FakeServer
from carmad.api.advice import AdviceOut, command, sentence, words
from carmad.config import Settings
from carmad.core.jobs.states import JobState
from carmad.core.messages import Reconfigured
from carmad.daemon import doctor
from carmad.replay import reproduce
from carmad.report import as_markdown
from carmad.store import journal
from tests.api_server import as_uid
from tests.attack.users import HOSTILE, needs_root
from tests.daemon import NO_KERNELS, Carmad, running


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
    here.scheduler.state.make_policy = lambda new: _made(new, made)
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


def test_it_is_told_everywhere_and_put_in_force_by_a_command(carmad: Carmad) -> None:
    advise_on(carmad)
    said = sentence(an_advice())
    assert said[1:-1] in carmad.carma("doctor", rc=None)
    assert carmad.get("/v1/config")["advice"]["saved"] == 0.312
    carmad.ended(carmad.sh("true"))
    report = carmad.get("/v1/report")
    assert said in as_markdown(report)
    assert said in carmad.carma("stats", "--report", "week", "--since", "1d").replace("\\", "")
    waits = carmad.sh("sleep 600"), carmad.sh("sleep 1", expected_s=1.0)
    assert carmad.carma("config", "set", "policy", "carma") == (
        "the policy carma decides from now on\n"
    )
    assert carmad.get("/v1/status")["server"]["policy"] == "carma"
    text = (carmad.folder / "carma.toml").read_text()
    assert 'policy = "carma"' in text and "# ours" in text and "# by vote" in text
    assert said[1:-1] not in carmad.carma("doctor", rc=None), "it has been followed"
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
