"""Settings from file and environment: precedence and error messages."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad import registry
from carmad.config import Limits, Monitor, Preconditions, Risk, Settings
from carmad.configfile import by_name, change, dump, load
from carmad.edge import System
from carmad.errors import CarmaError
from policies.lucid import LucidSettings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "carma.toml"


def test_defaults(path: Path) -> None:
    assert load(None, {}) == Settings()
    path.write_text("")
    assert load(path, {}) == Settings()


def test_the_environment_wins_over_the_file_over_the_defaults(path: Path) -> None:
    path.write_text(
        """
        policy = "lug"
        estimator = "none"
        [monitor]
        window_s = 10
        stale_s = 3
        [limits]
        gpus_per_user = 2
        [policies.first_fit]
        utilization = false
        """
    )
    environ = {
        "CARMA_POLICY": "rr",
        "CARMA_MONITOR__WINDOW_S": "5",
        "CARMA_COLLOCATION__MPS": "true",
        "CARMA_POLICIES__FIRST_FIT__MIN_FREE_MIB": "7",
        "CARMA_ACCESS__ADMIN_GROUP": "1001",
    }
    found = load(path, environ)
    assert found.policy == "rr"
    assert found.estimator == "none"
    assert found.monitor == Monitor(window_s=5.0, stale_s=3.0)
    assert found.limits == Limits(gpus_per_user=2)
    assert found.collocation.mps is True
    assert found.access.admin_group == "1001"
    assert found.preconditions_for("first_fit") == Preconditions(7, utilization=False)
    assert found.preconditions_for("lug") == Preconditions()


def test_round_robin_has_no_preconditions_unless_they_are_set(path: Path) -> None:
    def of_rr(text: str) -> Preconditions:
        path.write_text(text)
        return load(path, {}).preconditions_for("rr")

    assert of_rr("") == Preconditions(min_free_mib=0, utilization=False)
    assert of_rr("[preconditions]\nmargin_mib = 5") == Preconditions(margin_mib=5)
    assert of_rr("[preconditions]\nmin_free_mib = 2048") == Preconditions(), "the default, but set"
    assert of_rr("[preconditions]") == Preconditions()
    assert of_rr("[policies.rr]\nmargin_mib = 6") == Preconditions(margin_mib=6)
    assert of_rr("[policies.rr]") == Preconditions()
    assert of_rr(dump(Settings())) == of_rr(""), "a dump sets nothing that was not set"
    assert of_rr(dump(Settings(preconditions=Preconditions()))) == Preconditions()
    some = change(Settings(), ["preconditions.margin_mib=5"])
    assert some.preconditions_for("rr") == Preconditions(margin_mib=5)
    assert change(some, ["policy=rr"]).preconditions_for("rr") == Preconditions(margin_mib=5)


def test_the_scope_of_mps_is_a_gpu_or_a_node(path: Path) -> None:
    assert load(None, {}).collocation.mps_scope == "gpu"
    path.write_text('[collocation]\nmps_scope = "node"')
    assert load(path, {}).collocation.mps_scope == "node"
    with pytest.raises(CarmaError, match="MPS_SCOPE should be 'gpu' or 'node', not 'rack'"):
        load(path, {"CARMA_COLLOCATION__MPS_SCOPE": "rack"})


def test_other_variables_are_not_settings() -> None:
    others = {
        "CARMA_SOCKET": "/run/carma.sock",
        "CARMA_STATE_DIR": "/tmp",
        "CARMA_CONFIG": "/etc/carma.toml",
        "CARMA_EMULATED_DIR": "/tmp/gpus",
        "CARMA_JOB_ID": "7",
        "CARMA_MONITOR": "7",
        "MONITOR__WINDOW_S": "x",
        "PATH": "/bin",
    }
    assert load(None, others) == Settings()


def test_settings_that_a_plugin_declares(path: Path) -> None:
    path.write_text("[policies.lucid]\nsharing_capacity = 3\nutilization = false\n")
    found = load(path, {"CARMA_POLICIES__LUCID__OFF_BELOW": "2"})
    assert found.plugins == {"policies.lucid": {"sharing_capacity": 3, "off_below": 2.0}}
    assert found.policies == {"lucid": Preconditions(utilization=False)}
    assert registry.bare_policy(replace(found, policy="lucid")).settings == LucidSettings(
        sharing_capacity=3, off_below=2
    )
    path.write_text(dump(found))
    assert load(path, {}) == found
    path.write_text("[policies.lucid]\nsharing_capacity = 2\n")
    assert load(path, {}) == Settings(), "the default, and no preconditions of its own"


def test_a_policy_brings_its_system(path: Path) -> None:
    """As in its paper, but for what is set otherwise, even to the default."""

    def system(settings: Settings) -> tuple[object, ...]:
        return settings.predictor, settings.profiling.gpus, settings.limits.preemption

    path.write_text('policy = "lucid"')
    lucid = load(path, {})
    assert system(lucid) == ("additive", "auto", True)
    path.write_text('policy = "lucid"\npredictor = "history"\n[profiling]\ngpus = 2')
    asked = {"CARMA_LIMITS__PREEMPTION": "false"}
    set_by_hand = load(path, asked)
    assert system(set_by_hand) == ("history", 2, False)
    assert set_by_hand.origins == {
        "policy": "file",
        "predictor": "file",
        "profiling.gpus": "file",
        "limits.preemption": "environment",
    }
    assert system(load(None, asked | {"CARMA_POLICY": "lucid"})) == ("additive", "auto", False)
    asrpt = load(None, {"CARMA_POLICY": "asrpt"})
    assert asrpt.predictor == "forest" and registry.bare_policy(asrpt).reserve
    assert load(None, {"CARMA_POLICY": "castor"}).profiling.gpus == "auto"
    assert load(None, {"CARMA_POLICY": "tiresias"}).limits.preemption is True
    for name in ("magm", "lug", "rr", "cuckoo", "carma"):
        assert load(None, {"CARMA_POLICY": name}) == Settings(policy=name)


def test_another_policy_brings_another_system(path: Path) -> None:
    lucid = change(Settings(), ["policy=lucid"])
    assert lucid == load(None, {"CARMA_POLICY": "lucid"})
    assert change(lucid, ["policy=magm"]) == Settings()
    assert change(lucid, ["policy=lucid", "predictor=history"]).predictor == "history"
    path.write_text('policy = "lucid"\npredictor = "history"')
    asrpt = change(load(path, {}), ["policy=asrpt"])
    assert (asrpt.predictor, asrpt.profiling.gpus) == ("history", 0)
    made = Settings(limits=Limits(preemption="suspend"))
    assert change(made, ["policy=lucid"]).limits.preemption == "suspend", "a program set it"


def test_a_dump_says_where_a_setting_comes_from(path: Path) -> None:
    path.write_text('policy = "lucid"\n[limits]\nbackfill = 1')
    found = load(path, {"CARMA_MONITOR__WINDOW_S": "30"})
    lines = dump(found).splitlines()
    assert {line for line in lines if "  # " in line} == {
        'policy = "lucid"  # file',
        'predictor = "additive"  # policy',
        "window_s = 30.0  # environment",
        'gpus = "auto"  # policy',
        "preemption = true  # policy",
        "backfill = 1  # file",
    }
    path.write_text(dump(found))
    assert load(path, {}) == found


@pytest.mark.parametrize(
    ("name", "value", "said", "hint"),
    [
        ("limits.preemptoin", True, "is not a setting", "Did you mean limits.preemption?"),
        ("limits", 3, "is a group of settings, not a setting", ""),
        ("profiling.gpus", -1, "should be ", "The default is 0."),
    ],
)
def test_a_system_that_is_wrong_is_refused_with_its_policy(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, said: str, hint: str
) -> None:
    monkeypatch.setattr(registry, "systems", lambda: {"tight": System({name: value})})
    assert load(None, {}) == Settings(), "nobody named it"
    with pytest.raises(CarmaError) as caught:
        load(None, {"CARMA_POLICY": "tight"})
    assert caught.value.message.startswith(f"{name}, as the system of the policy tight has it, ")
    assert said in caught.value.message and hint in caught.value.hint


MISTAKES = {
    # file, environment: message, hint
    ("windw_s = 1", ""): ("FILE: windw_s is not a setting", "Did you mean monitor.window_s?"),
    ("[monitor]\nwindw_s = 1", ""): ("monitor.windw_s is not", "Did you mean monitor.window_s?"),
    ("[nothing.like.it]\nq = 1", ""): ("nothing.like.it.q is not", "`carma config show` lists"),
    ("[monitor]\nwindow_s.x = 1", ""): ("monitor.window_s.x is not", "monitor.window_s?"),
    ("[policies.rr]\nfree = 1", ""): ("policies.rr.free is not", "policies.rr.min_free_mib?"),
    ("[policies]\nrr = 1", ""): ("policies.rr is not", "Did you mean policies.rr."),
    ("policies = 1", ""): ("FILE: policies is a group of settings", ""),
    ("monitor = 1", ""): ("FILE: monitor is a group of settings", ""),
    ("[[monitor]]\n", ""): ("FILE: monitor is a group of settings", ""),
    ("[monitor]\nwindow_s = '5'", ""): ("monitor.window_s should be a valid number", "is 30.0."),
    ("[monitor]\nwindow_s = true", ""): ("monitor.window_s should be a valid number", "is 30.0."),
    ("[monitor]\nwindow_s = {}", ""): ("monitor.window_s should be a valid number", "is 30.0."),
    ("policy = 5", ""): ("policy should be a valid string, not 5", 'default is "magm".'),
    ("policy = 2024-01-01", ""): ("policy should be a valid string", 'default is "magm".'),
    ("[collocation]\nmps = 1", ""): ("mps should be a valid boolean", "default is false."),
    ("[limits]\ngpus_per_user = 1.5", ""): ("gpus_per_user should be a valid integer", ""),
    ("[limits]\ngpus_per_user = -1", ""): (
        "gpus_per_user should be greater than or equal to 0, not -1",
        "",
    ),
    ("[monitor]\nperiod_s = 0", ""): ("period_s should be greater than 0, not 0", "is 1.0."),
    ("[monitor]\nperiod_s = nan", ""): ("period_s should be greater than 0, not nan", ""),
    ("[retention]\nended_days = inf", ""): ("is inf, but should be a finite number", "is 90.0."),
    ("[monitor]\nwindow_s = 0.5", ""): ("should be at least monitor.period_s, 1.0", "30.0."),
    ("[monitor]\nstale_s = 0.5", ""): ("should be at least monitor.period_s, 1.0", "5.0."),
    ("[risk]\nsm_active = 80", ""): (
        "sm_active should be less than or equal to 1",
        "default is 0.8.",
    ),
    ("[risk]\nmean = 0.3", ""): (
        "risk has weights (mean, median, p95, ema) that add up to 1.1",
        "",
    ),
    ("[policies.rr]\nmin_free_mib = -1", ""): ("policies.rr.min_free_mib should be greater", ""),
    ("[policies.cuckoo]\nweight = 2.0", ""): (
        "cuckoo.weight should be less than or equal to 1",
        "",
    ),
    ("[policies.cuckoo]\nweight = '1'", ""): ("weight should be a valid number", "is 0.6."),
    ("[policies.lucid]\noff_below = inf", ""): ("off_below is inf, but should be a finite", ""),
    ("[policies.lucid]\nof_below = 1", ""): ("is not a setting", "policies.lucid.off_below?"),
    ("[policies]\nlucid = 1", ""): ("policies.lucid is a group of settings", ""),
    ("", "CARMA_PROFILING__GPUS=two"): ("variable CARMA_PROFILING__GPUS should be a valid i", "0."),
    ("policy = ", ""): ("FILE is not valid TOML", "toml.io"),
    ("", "CARMA_MONITOR__WINDOW_S=x"): ("variable CARMA_MONITOR__WINDOW_S should be", "is 30.0."),
    ("", "CARMA_MONITOR__WINDOW_S=-1"): ("variable CARMA_MONITOR__WINDOW_S should be", "is 30.0."),
    ("", "CARMA_COLLOCATION__MPS=maybe"): ("valid boolean", "default is false."),
    ("", "CARMA_MONITR__WINDOW_S=1"): (
        "variable CARMA_MONITR__WINDOW_S is not a setting",
        "Did you mean CARMA_MONITOR__WINDOW_S?",
    ),
    ("[monitor]\nwindow_s = 9", "CARMA_MONITOR__WINDOW_S__X=1"): (
        "CARMA_MONITOR__WINDOW_S__X is not a setting",
        "Did you mean CARMA_MONITOR__WINDOW_S?",
    ),
}


@pytest.mark.parametrize(("given", "said"), MISTAKES.items())
def test_mistakes_are_explained(path: Path, given: tuple[str, str], said: tuple[str, str]) -> None:
    text, variable = given
    path.write_text(text)
    name, _, value = variable.partition("=")
    with pytest.raises(CarmaError) as caught:
        load(path, {name: value})
    message, hint = said
    assert message.replace("FILE", str(path)) in caught.value.message
    assert hint in caught.value.hint


def test_files_that_cannot_be_read(path: Path) -> None:
    with pytest.raises(CarmaError, match=r"cannot read .*: No such file"):
        load(path, {})
    path.write_bytes(b"policy = '\xff'")
    with pytest.raises(CarmaError, match="not valid TOML"):
        load(path, {})


def test_a_dump_says_all(path: Path) -> None:
    text = dump(Settings())
    for section in fields(Settings):
        assert section.name in text or section.name in ("policies", "plugins", "origins")
    assert "# gpus_per_user is not set" in text
    assert re.search(r"^\[monitor\]$", text, re.MULTILINE)


@given(
    policy=st.text(st.characters(exclude_categories=["Cs"])),
    named=st.text(st.characters(exclude_categories=["Cs"])),
    stale_s=st.floats(1.0, 1e300),
    gpus=st.none() | st.integers(0, 2**63 - 1),
    mps=st.booleans(),
    mean=st.floats(0.0, 0.5),
)
def test_a_dump_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    policy: str,
    named: str,
    stale_s: float,
    gpus: int | None,
    mps: bool,
    mean: float,
) -> None:
    default = Settings()
    settings = replace(
        default,
        policy=policy,
        policies={named: Preconditions(min_free_mib=1), "rr": Preconditions(utilization=False)},
        monitor=Monitor(stale_s=stale_s),
        limits=Limits(gpus_per_user=gpus),
        collocation=replace(default.collocation, mps=mps),
        risk=Risk(mean=mean, median=0.5 - mean),
    )
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_text(dump(settings), encoding="utf-8", newline="")
    assert load(path, {}) == settings


def test_every_setting_is_named_as_set_takes_it() -> None:
    settings = change(Settings(), ["policies.lucid.sharing_capacity=1"])
    before, after = by_name(Settings()), by_name(settings)
    assert {name: (before[name], after[name]) for name in after if before[name] != after[name]} == {
        "policies.lucid.sharing_capacity": (2, 1)
    }
