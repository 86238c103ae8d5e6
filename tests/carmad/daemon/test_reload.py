"""Reloading settings while the daemon runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from carma_testing import FakeServer
from carmad.config import Collocation, Limits, Settings, at_once
from carmad.core.jobs.states import JobState
from carmad.core.messages import Reconfigured
from carmad.daemon.service import merge
from carmad.store import journal
from lab.replay import reproduce
from tests.daemon import NO_KERNELS, Carmad, until

ONE = "[collocation]\nmax_jobs_per_gpu = 1\n"
TWO = f'policy = "rr"\npredictor = "forest"\n[models]\nretrain_days = 3\n{ONE.replace("1", "2")}'


@pytest.fixture
def carmad(tmp_path: Path) -> Iterator[Carmad]:
    """With a settings file of its own."""
    daemon = Carmad(tmp_path, "1xA100-40GB", **NO_KERNELS)
    file = tmp_path / "carma.toml"
    file.write_text(ONE)
    daemon.argv[daemon.argv.index("--config") + 1] = str(file)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.clear_away()


def reload(carmad: Carmad, toml: str) -> None:
    (carmad.folder / "carma.toml").write_text(toml)
    carmad.signal(signal.SIGHUP)


def await_log(carmad: Carmad, text: str) -> None:
    def there() -> bool:
        assert carmad.alive, "SIGHUP ended it"
        return text in carmad.log.read_text()

    until(there, f"the log to say {text!r}")


def test_a_reload_takes_what_it_can_and_says_what_needs_a_restart(carmad: Carmad) -> None:
    first, second = carmad.sh("sleep 600"), carmad.sh("sleep 600")
    carmad.await_state(first, "running", "starting")
    until(lambda: "jobs_per_gpu" in str(carmad.why(second)), "the second to wait")
    reload(carmad, TWO)
    await_log(carmad, "policy from magm to rr")
    await_log(carmad, "collocation.max_jobs_per_gpu from 1 to 2")
    await_log(carmad, "predictor from history to forest")
    await_log(carmad, "restart carmad to change models.retrain_days from 7.0 to 3.0")
    carmad.await_state(second, "running", "starting")
    config = carmad.get("/v1/config")
    assert config["waiting"] == ["models.retrain_days from 7.0 to 3.0"]
    checks = {check["name"]: check for check in carmad.get("/v1/doctor")["checks"]}
    waits = "only a restart changes models.retrain_days from 7.0 to 3.0"
    assert waits in checks["settings"]["detail"]
    assert checks["predictor"]["detail"] == "forest predicts how long jobs take"
    settings = config["settings"]
    assert settings["collocation"]["max_jobs_per_gpu"] == 2
    assert (settings["policy"], settings["predictor"]) == ("rr", "forest")
    assert carmad.get("/v1/status")["server"]["policy"] == "rr"
    assert "max_jobs_per_gpu = 2" in carmad.carma("config", "show")
    carmad.stop()
    (segment,) = journal.segments(carmad.state / "journal")
    assert reproduce(segment).first is None
    events = [event for turn in journal.read(segment)[1] for event in turn.events]
    assert sum(isinstance(event, Reconfigured) for event in events) == 1


@pytest.mark.parametrize("broken", ["policy = ", 'policy = "no-such"\n', 'predictor = "no-such"\n'])
def test_broken_settings_are_refused_and_the_old_ones_kept(carmad: Carmad, broken: str) -> None:
    before = carmad.get("/v1/config")["settings"]
    reload(carmad, broken)
    await_log(carmad, "the settings stay as they are: ")
    assert carmad.get("/v1/config")["waiting"] is None
    checks = {check["name"]: check for check in carmad.get("/v1/doctor")["checks"]}
    assert checks["settings"]["ok"] is False
    assert carmad.get("/v1/config")["settings"] == before
    reload(carmad, ONE)
    await_log(carmad, "settings reloaded: nothing changed")


def test_a_policy_brings_its_system_while_the_daemon_runs(carmad: Carmad) -> None:
    said = carmad.carma("config", "set", "policy", "lucid").splitlines()
    assert said[1].startswith("its system also sets predictor, profiling.gpus, limits.preemption")
    shown = carmad.carma("config", "show")
    assert 'policy = "lucid"  # file' in shown and 'predictor = "additive"  # policy' in shown
    checks = {check["name"]: check["detail"] for check in carmad.get("/v1/doctor")["checks"]}
    assert checks["predictor"] == "additive predicts how long jobs take"
    assert "there is no model yet" in checks["system: model"]
    reload(carmad, 'policy = "lucid"\npredictor = "forest"\n')
    await_log(carmad, "predictor from additive to forest")
    assert carmad.get("/v1/config")["origins"]["predictor"] == "file"
    carmad.carma("config", "set", "policy", "magm")
    config = carmad.get("/v1/config")
    assert "policy" not in config["origins"].values()
    assert config["settings"]["limits"]["preemption"] is False


def test_config_check_names_what_a_reload_does_not_change(carmad: Carmad) -> None:
    carmad.env |= {"CARMA_CONFIG": str(carmad.folder / "carma.toml")}
    assert "restart" not in carmad.carma("config", "check")
    (carmad.folder / "carma.toml").write_text("[limits]\nkill_grace_s = 60\n")
    checked = carmad.carma("config", "check")
    assert "restart" not in checked, "a variable of the daemon's own overrides it"
    (carmad.folder / "carma.toml").write_text(TWO)
    said = "restart carmad to change models.retrain_days from 7.0 to 3.0; running jobs continue"
    assert said in carmad.carma("config", "check").splitlines()
    assert said in carmad.carma("config", "check", str(carmad.folder / "carma.toml")).splitlines()
    other = carmad.folder / "other.toml"
    other.write_text(ONE)
    assert "restart" not in carmad.carma("config", "check", str(other))


def test_what_is_read_at_each_use_changes_at_once() -> None:
    changing = set(at_once())
    assert ("limits", "backfill") in changing, "an optional one"
    assert ("fairness", "weights") in changing, "a table"
    assert not {section for section, _ in changing} & {"monitor", "risk", "links", "notify"}


def test_the_rest_stays() -> None:
    limits = Limits(gpus_per_user=2, kill_grace_s=1)
    wanted = Settings(policy="rr", estimator="declared", limits=limits)
    taken = Settings(policy="rr", limits=Limits(gpus_per_user=2))
    wanted = replace(wanted, origins={"policy": "file", "estimator": "file"})
    merged = merge(Settings(), wanted)
    assert merged == taken
    assert merged.origins == {"policy": "file"}, "the estimator is the default, until a restart"


def test_the_core_judges_by_the_new_settings_at_once() -> None:
    settings = Settings(collocation=Collocation(max_jobs_per_gpu=1))
    server = FakeServer(gpus=1, settings=settings)
    first = server.submit()
    server.run_kernel(first)
    server.pass_time(32)
    second = server.submit()
    assert server.why(second) == ({0: ["jobs_per_gpu"]}, [])
    two = replace(settings, collocation=Collocation(max_jobs_per_gpu=2))
    server.tell(Reconfigured(server.now, two))
    assert server.job(second).state is JobState.STARTING


def test_jobs_at_a_terminal_go_first_as_soon_as_others_are_suspended_for_them() -> None:
    usual = Settings()
    suspending = replace(usual, limits=Limits(preemption="suspend"))
    server = FakeServer(gpus=1, settings=usual)
    server.submit()
    first, shell = server.submit(), server.submit(interactive=True)
    assert [job.id for job in server.scene.line] == [first, shell]
    server.tell(Reconfigured(server.now, suspending))
    assert [job.id for job in server.scene.line] == [shell, first]
    server.tell(Reconfigured(server.now, usual))
    assert [job.id for job in server.scene.line] == [first, shell]
