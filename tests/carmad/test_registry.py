"""Finding plugins by name, and plugins that raise, hang or are slow."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from carma_testing import a_gpu_view, a_job, a_server, a_spec, a_view
from carmad import guards, registry
from carmad.api import admission
from carmad.api.reasons import phrase, short, wordings
from carmad.config import Recovery, Settings
from carmad.configfile import load
from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.findings import Estimate, Refusal
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.placing.decision import Placement, Reason
from carmad.core.placing.view import View
from carmad.core.ports import Estimator, Measures
from carmad.daemon import parts
from carmad.edge import Checked, SubmissionCheck
from carmad.errors import CarmaError
from carmad.estimates.experience import Experience
from carmad.guards import GuardedEstimator, GuardedPolicy, GuardedRecovery
from policies import builtin
from tests.waiting import PATIENCE_S

VIEW = a_view([a_gpu_view()], [a_job()])
ANSWER = builtin.magm(Settings()).plan(VIEW)

MODULE = """
from dataclasses import dataclass
from carmad.plugin import System, Wording
from policies.builtin import magm
def good(settings, own):
    assert own.cap == 0.6
    return magm(settings)
@dataclass
class Knobs:
    cap: float = 0.6
@dataclass
class WithoutDefaults:
    cap: float
@dataclass
class OfEveryPolicy:
    min_free_mib: int = 7
REASONS = {
    "mood": Wording("Mood", lambda r: f"is in a mood of {r.have:g}", lambda r: f"{r.have:g}"),
    "wordless": Wording("Wordless", lambda r: 7),
    "fails": Wording("Fails", lambda r: 1 / 0, lambda r: 1 / 0),
    "held": Wording("Mine", lambda r: "is mine"),
    "memory": Wording("Mine", lambda r: "is mine"),
}
NO_WORDS = {"silent": "words"}
SYSTEM = System({"predictor": "forest"})
def needs_things(settings):
    import no_such_module
def refuses(settings):
    raise ValueError("min_free_mib is too large")
def nameless(settings):
    return object()
class Knows:
    name = "a-first"
    def estimate(self, spec):
        raise NotImplementedError
    measured = estimate
def knows(settings, server):
    return Knows()
"""
ENTRY_POINTS = """
[carma.policies]
carma_test_good = carma_test_plugin:good
carma_test_absent = carma_test_plugin_that_is_absent:policy
carma_test_misspelt = carma_test_plugin:no_such_name
carma_test_needs_things = carma_test_plugin:needs_things
carma_test_refuses = carma_test_plugin:refuses
carma_test_nameless = carma_test_plugin:nameless
[carma.estimators]
a-first = carma_test_plugin:knows
[carma.settings]
policies.carma_test_good = carma_test_plugin:Knobs
policies.carma_test_refuses = carma_test_plugin:WithoutDefaults
policies.carma_test_absent = carma_test_plugin:OfEveryPolicy
recoveries.carma_test_any = carma_test_plugin:OfEveryPolicy
carma_test_kindless = carma_test_plugin:Knobs
[carma.systems]
carma_test_good = carma_test_plugin:SYSTEM
carma_test_absent = carma_test_plugin:NO_WORDS
[carma.reasons]
carma_test_words = carma_test_plugin:REASONS
carma_test_absent = carma_test_plugin:nothing
carma_test_silent = carma_test_plugin:NO_WORDS
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with policies, as installed by pip."""
    (tmp_path / "carma_test_plugin.py").write_text(MODULE)
    info = tmp_path / "carma_test_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carma-test-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "carma_test_plugin", raising=False)
    found = (registry.settings_of_plugins, registry.systems, registry.wordings)
    for each in found:
        each.cache_clear()
    yield
    for each in found:
        each.cache_clear()


def test_found_by_name(installed: None) -> None:
    assert registry.bare_policy(Settings(policy="carma_test_good")).name == "magm"


def test_a_package_declares_its_policys_system(
    installed: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(None, {"CARMA_POLICY": "carma_test_good"}).predictor == "forest"
    assert load(None, {"CARMA_POLICY": "carma_test_absent"}).predictor == "history"
    assert "carma_test_absent of carma.systems is left out" in caplog.text


def test_an_unknown_name_lists_the_known_ones(installed: None) -> None:
    with pytest.raises(CarmaError, match="'nonesuch' among the installed policies") as raised:
        registry.bare_policy(Settings(policy="nonesuch"))
    for name in registry.names("policies"):
        assert name in raised.value.hint
    assert "carma_test_good" in raised.value.hint


def test_unknown_recoveries_and_estimators() -> None:
    with pytest.raises(CarmaError, match="installed recoveries"):
        registry.bare_recovery(Settings(recovery=Recovery(name="nonesuch")))
    with pytest.raises(CarmaError, match="installed estimators"):
        registry.estimator("nonesuch", Settings(), a_server())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("carma_test_absent", "carma_test_plugin_that_is_absent"),
        ("carma_test_misspelt", "no_such_name"),
        ("carma_test_needs_things", "no_such_module"),
        ("carma_test_refuses", "min_free_mib is too large"),
    ],
)
def test_a_plugin_that_cannot_be_loaded(installed: None, name: str, says: str) -> None:
    with pytest.raises(CarmaError, match=f"'{name}' of policies cannot be loaded.*{says}"):
        registry.bare_policy(Settings(policy=name))


def test_what_earlier_runs_used_is_asked_of_our_own_estimator_first(installed: None) -> None:
    for _ in range(2):
        able = registry.estimators_that(Measures, Settings(), a_server())
        assert [each.name for each in cast(Iterator[Estimator], able)] == ["history", "a-first"]


def test_a_check_of_submissions_that_exits_refuses_the_job() -> None:
    class Exits(SubmissionCheck):
        def check(self, spec: JobSpec) -> Checked:
            raise SystemExit(3)

    with pytest.raises(CarmaError, match=r"the check .*Exits of submissions fails"):
        admission._ask([Exits()], a_spec())


def test_settings_that_are_declared_wrongly_are_left_out(installed: None, caplog) -> None:
    mine = {key for key in registry.settings_of_plugins() if key[1].startswith("carma_test")}
    assert mine == {("policies", "carma_test_good"), ("recoveries", "carma_test_any")}
    assert {record.getMessage() for record in caplog.records} == {
        "policies.carma_test_refuses of carma.settings is left out, as"
        " carma_test_plugin:WithoutDefaults fails",
        "policies.carma_test_absent has a setting min_free_mib, but so has every policy",
        "settings 'carma_test_kindless' are not of KIND.NAME, as in policies.magm",
    }


def test_the_words_for_a_reason_come_with_the_plugin(installed: None, caplog) -> None:
    mood = Reason("mood", have=7)
    assert (phrase(mood), short(mood, "GPU1")) == ("is in a mood of 7", "Mood: GPU1 7")
    assert phrase(Reason("silent")) == "silent", "those that are no words are left out"
    assert short(Reason("silent")) == "silent"
    assert {"memory", "mood", "fails", "held"} <= wordings().keys()
    assert [record.getMessage() for record in caplog.records] == [
        "carma_test_absent of carma.reasons is left out, as carma_test_plugin:nothing fails",
        "the reason 'silent' of carma_test_silent has no Wording",
    ]


def test_a_plugin_cannot_change_the_words_of_others(installed: None) -> None:
    assert short(Reason("held")) == "Held"
    assert short(Reason("memory")).startswith("GpuMemory")
    assert wordings()["held"].name == "Held"


def test_words_that_raise_do_no_harm(installed: None, caplog) -> None:
    assert phrase(Reason("fails", 1, 2)) == "fails: needs 1, has 2"
    assert short(Reason("fails"), "GPU1") == "Fails: GPU1"
    assert phrase(Reason("wordless")) == "7"
    logged = [record.getMessage() for record in caplog.records]
    assert logged.count("the wording of the reason 'fails' failed") == 1


# -- Guards ----------------------------------------------------------------------------------------


class Policy:
    name = "scripted"

    def __init__(self, *answers: Callable[[], tuple[Placement, ...]]) -> None:
        self.answers = list(answers)
        self.views: list[View] = []

    def order(self, job: Job) -> float:
        return 0.0

    def plan(self, view: View) -> tuple[Placement, ...]:
        self.views.append(view)
        return self.answers.pop(0)()


def at_once() -> tuple[Placement, ...]:
    return ANSWER


def oops() -> tuple[Placement, ...]:
    raise ZeroDivisionError("oops")


def later(released: threading.Event) -> Callable[[], tuple[Placement, ...]]:
    def answer() -> tuple[Placement, ...]:
        assert released.wait(PATIENCE_S)
        return ()

    return answer


def plan_when_ready(guarded: GuardedPolicy) -> tuple[Placement, ...]:
    """Retry until the policy is no longer busy with an earlier call."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return guarded.plan(VIEW)
        except TimeoutError:
            assert time.monotonic() < deadline, "it has not come back"
            time.sleep(0.01)


def test_it_passes_answers_through() -> None:
    policy = Policy(at_once, at_once)
    guarded = GuardedPolicy(policy)
    assert guarded.name == "scripted"
    assert guarded.plan(VIEW) == ANSWER
    assert guarded.plan(VIEW) == ANSWER
    assert policy.views == [VIEW, VIEW]


def test_a_policy_that_raises_can_be_asked_again() -> None:
    guarded = GuardedPolicy(Policy(oops, at_once))
    with pytest.raises(ZeroDivisionError, match="oops"):
        guarded.plan(VIEW)
    assert guarded.plan(VIEW) == ANSWER


def test_an_answer_that_is_no_sequence_is_the_policys_error() -> None:
    guarded = GuardedPolicy(Policy(lambda: None, at_once))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError):
        guarded.plan(VIEW)
    assert guarded.plan(VIEW) == ANSWER


def test_a_policy_that_is_slow_but_in_time() -> None:
    released = threading.Event()
    guarded = GuardedPolicy(Policy(later(released)), timeout_s=20)
    threading.Timer(0.05, released.set).start()
    assert guarded.plan(VIEW) == ()


def test_a_policy_that_hangs_and_recovers() -> None:
    released = threading.Event()
    policy = Policy(later(released), at_once)
    guarded = GuardedPolicy(policy, timeout_s=0.05)
    with pytest.raises(TimeoutError, match=r"no plan within 0\.05 s"):
        guarded.plan(VIEW)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="earlier question"):
            guarded.plan(VIEW)
    assert len(policy.views) == 1, "one that hangs is asked nothing more"
    released.set()
    assert plan_when_ready(guarded) == ANSWER, "the late plan is dropped: it is about the past"


def test_a_policy_that_hangs_and_then_raises() -> None:
    released = threading.Event()

    def late_oops() -> tuple[Placement, ...]:
        assert released.wait(PATIENCE_S)
        return oops()

    guarded = GuardedPolicy(Policy(late_oops, at_once), timeout_s=0.05)
    with pytest.raises(TimeoutError, match="no plan"):
        guarded.plan(VIEW)
    released.set()
    assert plan_when_ready(guarded) == ANSWER


class Hanging:
    """A recovery and estimator that does not answer until released."""

    def __init__(self) -> None:
        self.name = "hanging"
        self.released = threading.Event()

    def decide(self, job: object, exit: object) -> None:
        assert self.released.wait(PATIENCE_S)

    def estimate(self, spec: object) -> None:
        assert self.released.wait(PATIENCE_S)


def test_a_recovery_that_hangs() -> None:
    plugin = Hanging()
    guarded = GuardedRecovery(plugin, timeout_s=0.05)
    with pytest.raises(TimeoutError, match=r"no decision within 0\.05 s"):
        guarded.decide(a_job(), Exit(Cause.GPU_OOM))
    plugin.released.set()


def test_an_estimator_that_hangs_keeps_nobody_else_waiting() -> None:
    plugin = Hanging()

    def asked() -> None:
        GuardedEstimator(plugin, timeout_s=0.01).estimate(a_spec())  # type: ignore[arg-type]

    for _ in range(guards.MOST_UNANSWERED):
        with pytest.raises(TimeoutError, match=r"no estimate within 0\.01 s"):
            asked()
    with pytest.raises(TimeoutError, match="earlier questions"):
        asked()
    with pytest.raises(TimeoutError, match="no estimate"):
        GuardedEstimator(plugin, 0.01).estimate(a_spec(uid=7))  # type: ignore[arg-type]
    plugin.released.set()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            asked()
        except TypeError:  # None, its answer at last
            return
        except TimeoutError:
            assert time.monotonic() < deadline, "once it has come back it is asked again"
            time.sleep(0.01)


def test_a_thread_that_cannot_be_started_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    answer = Estimate(100, "me")
    guarded = GuardedEstimator(Scripted(lambda: answer), 20)  # type: ignore[arg-type]
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        for _ in range(2 * guards.MOST_UNANSWERED):
            with pytest.raises(RuntimeError, match="start"):
                guarded.estimate(a_spec())
    assert guarded.estimate(a_spec()) == answer


class Scripted:
    name = "scripted"

    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer = answer

    def estimate(self, spec: object) -> object:
        return self.answer()


@pytest.mark.parametrize(
    "answer",
    [
        Estimate("8G", "me"),  # type: ignore[arg-type]
        Estimate(100, "me", high=50),
        Estimate(100, "me", notes=("fine", 3)),  # type: ignore[arg-type]
        Estimate(100, "me", others=(None,)),  # type: ignore[arg-type]
        Refusal(None, "me"),  # type: ignore[arg-type]
        Refusal("half a pair: \ud800", "me"),
        Refusal("long" * 2000, "me"),
        Refusal("why", "me", float("nan")),
        Estimate(100, "me", notes=("\ud800",)),
        Estimate(100, "me", notes=("note",) * 65),
        Estimate(100, "me", parts=(("part", 1),) * 65),
        Estimate(100, "me", others=(Estimate(1, "you"),) * 17),
        Estimate(1 << 70, "me"),
        None,
    ],
)
def test_an_estimate_that_is_none(answer: object) -> None:
    guarded = GuardedEstimator(Scripted(lambda: answer), 20)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it answered"):
        guarded.estimate(a_spec())


def test_an_estimator_that_leaves_or_times_out_itself() -> None:
    def late() -> None:
        raise TimeoutError("my own")

    with pytest.raises(RuntimeError, match="it gave up: SystemExit"):
        GuardedEstimator(Scripted(lambda: sys.exit(3)), 20).estimate(a_spec())  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="my own"):
        GuardedEstimator(Scripted(late), 20).estimate(a_spec())  # type: ignore[arg-type]


def test_what_the_daemon_asks_is_guarded(installed: None) -> None:
    """The core's thread calls policies and recoveries, and must not be blocked."""
    scheduler, _ = parts._core(Settings(policy_fallback="rr"), Experience(Settings()))
    deciding = scheduler.state.deciding
    assert isinstance(deciding.policy, GuardedPolicy)
    assert isinstance(deciding.fallback, GuardedPolicy) and deciding.fallback.name == "rr"
    assert isinstance(scheduler.state.recovery, GuardedRecovery)
    assert isinstance(registry.estimator("declared", Settings(), a_server()), GuardedEstimator)
    with pytest.raises(CarmaError, match="'carma_test_nameless' of policies has no name"):
        registry.bare_policy(Settings(policy="carma_test_nameless"))
