"""Finding plugins by name, and a policy that raises, hangs or dawdles."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from carmad import registry
from carmad.config import Recovery, Settings
from carmad.core.decision import Placement
from carmad.core.view import View
from carmad.errors import CarmaError
from carmad.registry import Guarded
from carmad.testing import a_gpu_view, a_job, a_view, check_policy
from policies import builtin

VIEW = a_view([a_gpu_view()], [a_job()])
ANSWER = builtin.magm(Settings()).plan(VIEW)

MODULE = """
from policies.builtin import magm as good
def needs_things(settings):
    import no_such_module
def refuses(settings):
    raise ValueError("min_free_mib is too large")
"""
ENTRY_POINTS = """
[carma.policies]
carma_test_good = carma_test_plugin:good
carma_test_absent = carma_test_plugin_that_is_absent:policy
carma_test_misspelt = carma_test_plugin:no_such_name
carma_test_needs_things = carma_test_plugin:needs_things
carma_test_refuses = carma_test_plugin:refuses
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with policies, as pip would have installed it."""
    (tmp_path / "carma_test_plugin.py").write_text(MODULE)
    info = tmp_path / "carma_test_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: carma-test-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "carma_test_plugin", raising=False)


def test_found_by_name(installed: None) -> None:
    policy = registry.policy(Settings(policy="carma_test_good"))
    assert policy.name == "magm"
    check_policy(policy)


def test_an_unknown_name_lists_the_known_ones(installed: None) -> None:
    with pytest.raises(CarmaError, match="'nonesuch' among the installed policies") as raised:
        registry.policy(Settings(policy="nonesuch"))
    for name in registry.names("policies"):
        assert name in raised.value.hint
    assert "carma_test_good" in raised.value.hint


def test_unknown_recoveries_and_estimators() -> None:
    with pytest.raises(CarmaError, match="installed recoveries"):
        registry.recovery(Settings(recovery=Recovery(name="nonesuch")))
    with pytest.raises(CarmaError, match="installed estimators"):
        registry.estimator(Settings(estimator="nonesuch"))


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
        registry.policy(Settings(policy=name))


# -- Guarded ---------------------------------------------------------------------------------------


class Policy:
    name = "scripted"

    def __init__(self, *answers: Callable[[], tuple[Placement, ...]]) -> None:
        self.answers = list(answers)
        self.views: list[View] = []

    def plan(self, view: View) -> tuple[Placement, ...]:
        self.views.append(view)
        return self.answers.pop(0)()


def at_once() -> tuple[Placement, ...]:
    return ANSWER


def oops() -> tuple[Placement, ...]:
    raise ZeroDivisionError("oops")


def later(released: threading.Event) -> Callable[[], tuple[Placement, ...]]:
    def answer() -> tuple[Placement, ...]:
        assert released.wait(20)
        return ()

    return answer


def plan_when_ready(guarded: Guarded) -> tuple[Placement, ...]:
    """Ask until the policy is no longer busy with an earlier question."""
    for _ in range(1000):
        try:
            return guarded.plan(VIEW)
        except TimeoutError:
            threading.Event().wait(0.01)
    raise AssertionError("it has not come back")


def test_it_passes_answers_through() -> None:
    policy = Policy(at_once, at_once)
    guarded = Guarded(policy)
    assert guarded.name == "scripted"
    assert guarded.plan(VIEW) == ANSWER
    assert guarded.plan(VIEW) == ANSWER
    assert policy.views == [VIEW, VIEW]


def test_a_policy_that_raises_can_be_asked_again() -> None:
    guarded = Guarded(Policy(oops, at_once))
    with pytest.raises(ZeroDivisionError, match="oops"):
        guarded.plan(VIEW)
    assert guarded.plan(VIEW) == ANSWER


def test_an_answer_that_is_no_sequence_is_the_policys_error() -> None:
    guarded = Guarded(Policy(lambda: None, at_once))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError):
        guarded.plan(VIEW)
    assert guarded.plan(VIEW) == ANSWER


def test_a_policy_that_is_slow_but_in_time() -> None:
    released = threading.Event()
    guarded = Guarded(Policy(later(released)), timeout_s=20)
    threading.Timer(0.05, released.set).start()
    assert guarded.plan(VIEW) == ()


def test_a_policy_that_hangs_and_recovers() -> None:
    released = threading.Event()
    policy = Policy(later(released), at_once)
    guarded = Guarded(policy, timeout_s=0.05)
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
        assert released.wait(20)
        return oops()

    guarded = Guarded(Policy(late_oops, at_once), timeout_s=0.05)
    with pytest.raises(TimeoutError, match="no plan"):
        guarded.plan(VIEW)
    released.set()
    assert plan_when_ready(guarded) == ANSWER
