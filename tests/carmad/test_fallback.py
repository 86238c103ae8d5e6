"""A policy that raises, hangs, recovers or returns invalid answers, and its fallback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from carma_testing import FakeServer, a_job
from carmad import beats, configfile, guards, registry
from carmad.config import Settings
from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step
from carmad.core.placing.decision import Failure, Placement
from carmad.core.state import FIRST_TRY_S
from carmad.daemon import doctor
from carmad.errors import CarmaError
from carmad.guards import GuardedPolicy, GuardedPredictor, GuardedRecovery, Trouble
from lab import replay
from policies import builtin
from tests.waiting import PATIENCE_S, until

LONG = 60.0  # s: nobody waits for it
SHORT = 0.0625


class Fake:
    """A policy, a predictor and a recovery that does as it is told, and otherwise as magm does;
    the newest jobs are first in its line."""

    name = "fake"

    def __init__(self) -> None:
        self.plans = self.orders = 0
        self.act: Callable[[], object] = lambda: None

    def order(self, job):
        self.orders += 1
        self.act()
        return -job.id

    def plan(self, view):
        self.plans += 1
        if answer := self.act():
            return answer
        return builtin.magm(Settings()).plan(view)

    def predict(self, job, history, models, now):
        self.plans += 1
        return self.act()

    def decide(self, job, exit):
        self.plans += 1
        return self.act()


def oops() -> None:
    raise KeyError("x")


@pytest.fixture
def hanging() -> Iterator[Callable[[], None]]:
    """Until the test is over, or the event is set."""
    released = threading.Event()

    def hang() -> None:
        assert released.wait(LONG)

    hang.release = released.set  # type: ignore[attr-defined]
    yield hang
    released.set()


def served(
    fake: Fake, fallback: bool = True, timeout_s: float = LONG, **more: object
) -> FakeServer:
    """With the fake policy, and a busy GPU, so that further jobs wait."""
    settings = Settings(policy="fake", policy_fallback="magm" if fallback else "")
    deputy = GuardedPolicy(builtin.magm(settings), LONG) if fallback else None
    policy = GuardedPolicy(fake, timeout_s, deputy=settings.policy_fallback)
    return FakeServer(gpus=1, settings=settings, policy=policy, fallback=deputy, **more)


def story(server: FakeServer, id: int) -> tuple[str, list[str], list[str]]:
    decision = server.scene.decisions[id]
    reasons, explanation = decision.placement.reasons, decision.placement.explanation
    return decision.policy, [r.code for r in reasons], [r.code for r in explanation]


BROKEN = [oops, lambda: 42, lambda: [42], lambda: [Placement("1")]]


@pytest.mark.parametrize("act", BROKEN)
def test_the_fallback_decides_while_the_policy_raises_or_answers_nonsense(act) -> None:
    fake = Fake()
    fake.act = act
    server = served(fake)
    id = server.submit()
    assert server.job(id).state is JobState.STARTING
    assert story(server, id) == ("magm", [], ["policy_fallback"])


def test_and_while_it_hangs(hanging) -> None:
    fake = Fake()
    fake.act = hanging
    server = served(fake, timeout_s=SHORT)
    id = server.submit()
    assert server.job(id).state is JobState.STARTING
    assert story(server, id) == ("magm", [], ["policy_fallback"])
    server.submit()
    server.pass_time(20)
    assert fake.orders + fake.plans == 1, "one that hangs is asked nothing more"


def test_without_a_fallback_jobs_wait_and_start_as_soon_as_it_answers() -> None:
    fake = Fake()
    server = served(fake, fallback=False)
    fake.act = oops
    id = server.submit()
    server.pass_time(3)
    assert server.job(id).state is JobState.QUEUED
    assert story(server, id) == ("fake", ["policy_failed"], [])
    fake.act = lambda: None
    server.pass_time(1)
    assert server.job(id).state is JobState.STARTING
    assert story(server, id) == ("fake", [], [])


def test_the_policy_takes_over_again_with_its_own_order() -> None:
    fake = Fake()
    server = served(fake)
    first = server.submit()
    fake.act = oops
    waiting = [server.submit(), server.submit()]
    assert [job.id for job in server.scene.line] == waiting, "magm's line: by arrival"
    assert story(server, waiting[0])[0] == "magm"
    fake.act = lambda: None
    server.pass_time(FIRST_TRY_S + 1)
    assert [job.id for job in server.scene.line] == waiting[::-1], "the newest first"
    assert server.scheduler.acting.name == "fake"
    server.exit(first)
    assert server.job(waiting[1]).state is JobState.STARTING
    assert story(server, waiting[1]) == ("fake", [], [])


def test_a_place_in_line_that_could_not_be_said_is_asked_for_again() -> None:
    fake = Fake()
    server = served(fake, fallback=False)
    first = server.submit()
    older = server.submit()
    fake.act = oops
    newer = server.submit()
    assert [job.id for job in server.scene.line] == [older, newer]
    fake.act = lambda: None
    server.pass_time(1)
    assert [job.id for job in server.scene.line] == [newer, older]
    server.exit(first)


def test_one_that_goes_on_failing_is_asked_ever_more_seldom() -> None:
    fake = Fake()
    server = served(fake)
    server.submit()
    fake.act = oops
    server.submit()
    before = fake.plans
    server.pass_time(1_500)
    assert 6 <= fake.plans - before <= 12


def test_one_that_comes_and_goes_is_not_asked_more_often_for_that() -> None:
    """Each switch of policies sorts the whole queue again."""
    fake = Fake()
    server = served(fake)
    server.submit()
    turns = iter([None, oops] * 10_000)
    fake.act = lambda: (next(turns) or (lambda: None))()
    server.submit()
    changes, before = 0, server.scheduler.acting.name
    for _ in range(1_500):
        server.pass_time(1)
        changes += server.scheduler.acting.name != before
        before = server.scheduler.acting.name
    assert changes <= 20


def test_a_fallback_that_fails_too_is_reported() -> None:
    settings = Settings(policy="fake", policy_fallback="other")
    fake, other = Fake(), Fake()
    fake.act = other.act = oops
    server = FakeServer(gpus=1, settings=settings, policy=fake, fallback=other)
    id = server.submit()
    assert server.job(id).state is JobState.QUEUED
    assert story(server, id)[1:] == (["policy_failed"], ["policy_fallback"])


def test_the_fallback_breaks_no_hard_rule_and_keeps_no_memory_of_the_policys() -> None:
    seen = []

    class Other(Fake):
        name = "other"

        def plan(self, view):
            seen.append(view.memory)
            return [Placement(job.id, (view.gpus[0].id,)) for job in view.queue]

    fake = Fake()
    fake.act = oops
    server = FakeServer(gpus=1, settings=Settings(policy="fake"), policy=fake, fallback=Other())
    first, second = server.submit(), server.submit()
    assert server.job(first).state is JobState.STARTING
    assert story(server, second)[1] == ["first_kernel"]
    assert set(seen) == {None}


# -- what is said of it


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().splitlines()[0] for record in caplog.records]


def test_an_episode_is_logged_once_with_its_traceback(caplog) -> None:
    fake = Fake()
    server = served(fake)
    server.submit()
    fake.act = oops
    server.submit()
    server.pass_time(100)
    assert lines(caplog) == ["the policy fake fails: magm decides meanwhile"]
    assert "oops" in caplog.text and "KeyError: 'x'" in caplog.text
    fake.act = lambda: None
    server.pass_time(100)
    assert len(lines(caplog)) == 2
    assert lines(caplog)[1].startswith("the policy fake answers again; it failed ")
    fake.act = oops
    server.pass_time(100)
    assert len(lines(caplog)) == 2, "one that comes and goes does not fill the log"


def test_an_answer_to_another_question_ends_no_trouble(caplog) -> None:
    fake = Fake()
    guarded = GuardedPolicy(fake)
    for _ in range(3):
        fake.act = oops
        with pytest.raises(KeyError):
            guarded.plan(FakeServer().scheduler.view(0.0))
        fake.act = lambda: None
        guarded.order(a_job(1))
    assert guarded.trouble and (guarded.trouble.times, guarded.trouble.over) == (3, False)
    guarded.plan(FakeServer().scheduler.view(0.0))
    assert guarded.trouble.over
    assert len(lines(caplog)) == 2


def test_one_that_hangs_is_logged_and_the_watchdog_says_where_it_is(
    caplog, hanging, monkeypatch
) -> None:
    monkeypatch.setattr(guards, "LATE_S", 0.0)
    fake = Fake()
    fake.act = hanging
    server = served(fake, fallback=False, timeout_s=SHORT)
    server.submit()
    server.pass_time(10)
    assert lines(caplog) == ["the policy fake fails: no job is started meanwhile"]
    beats.Watcher(lambda: None).look()
    assert "the thread policy-fake has been at a call for" in caplog.text
    assert "assert released.wait(LONG)" in caplog.text


def test_doctor_fails_until_it_answers() -> None:
    fake = Fake()
    policy = GuardedPolicy(fake, LONG)
    server = FakeServer(gpus=1, policy=policy)
    settings = Settings(policy="fake")

    def said() -> list[tuple[bool | None, str]]:
        found = doctor._deciding(settings, [policy.trouble] if policy.trouble else [])
        return [(check["ok"], check["name"]) for check in found if "policy" in check["name"]]

    server.submit()
    assert said() == [(True, "policy")]
    fake.act = oops
    server.submit()
    assert said() == [(False, "policy fake")]
    (*_, check) = doctor._deciding(settings, [policy.trouble])
    assert "KeyError('x')" in check["detail"] and "no job is started" in check["detail"]
    assert "policy_fallback" in check["hint"] and "restart" in check["hint"]
    fake.act = lambda: None
    server.pass_time(1)
    assert said() == [(None, "policy fake")]


def test_a_trouble_with_another_plugin_leaves_the_policy_well() -> None:
    trouble = Trouble("predictor x", "KeyError()", 0.0, 1.0, 3, "jobs are unpredicted")
    settings = Settings(policy_fallback="rr")
    policy, recovery, predictor = doctor._deciding(settings, [trouble])
    assert (policy["ok"], policy["detail"]) == (True, "magm decides; rr takes over if it fails")
    assert (recovery["ok"], recovery["name"]) == (True, "recovery")
    assert predictor["ok"] is False and "policy_fallback" not in predictor["hint"]


def test_doctor_names_everything_that_the_core_asks_and_counts_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "PLUGINS_WITHIN_S", PATIENCE_S)
    found = {check["name"]: check["detail"] for check in doctor._deciding(Settings(), [])}
    assert found.keys() == {"policy", "predictor", "recovery"}
    assert found["predictor"] == "history predicts how long jobs take"
    installed = doctor._plugins()
    assert installed["ok"] is True
    for kind in registry.KINDS:
        assert f"{len(registry.names(kind))} {kind}" in installed["detail"]


def test_a_fallback_is_another_policy() -> None:
    with pytest.raises(CarmaError, match="policy_fallback is the policy itself"):
        configfile.change(Settings(), ["policy_fallback=magm"])
    assert configfile.change(Settings(), ["policy_fallback=rr"]).policy_fallback == "rr"
    assert Settings().policy_fallback == "", "who chose a policy did not choose another"


# -- hanging


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The guards' clock, in seconds, controlled by the test."""
    now = [1000.0]
    monkeypatch.setattr(guards, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    yield now


def asked(guarded: GuardedPredictor | GuardedRecovery | GuardedPolicy) -> str:
    try:
        match guarded:
            case GuardedPredictor():
                guarded.predict(a_job(), None, {}, 0.0)  # type: ignore[arg-type]
            case GuardedRecovery():
                guarded.decide(a_job(), Exit(Cause.GPU_OOM))
            case _:
                guarded.order(a_job())
    except TimeoutError as error:
        return str(error)
    return "answered"


@pytest.mark.parametrize("kind", [GuardedPredictor, GuardedRecovery, GuardedPolicy])
def test_one_that_hangs_costs_its_time_once(kind, clock, hanging) -> None:
    """Whichever call hangs; and after it returns, the plugin is not called for a while."""
    fake = Fake()
    fake.act = hanging
    guarded = kind(fake, SHORT)
    assert "within 0.0625 s" in asked(guarded)
    for _ in range(100):
        assert "earlier question" in asked(guarded)
    hanging.release()
    guarded._call.exception(LONG)
    assert fake.plans + fake.orders == 1
    assert "not asked for a while" in asked(guarded)
    fake.act = lambda: None
    clock[0] += SHORT * guards.REST
    assert asked(guarded) == "answered"


def test_an_error_that_cannot_be_shown_does_not_end_the_plugins_thread() -> None:
    class Mute(Exception):
        def __repr__(self) -> str:
            raise ValueError("no words")

    class Moody:
        name = "moody"
        error: Exception | None = Mute()

        def decide(self, job: object, exit: Exit) -> None:
            if self.error:
                raise self.error

    plugin = Moody()
    recovery = GuardedRecovery(plugin)
    with pytest.raises(Exception):  # noqa: B017 - whichever
        recovery.decide(a_job(), Exit(Cause.FAILURE, 1))
    plugin.error = None
    assert recovery.decide(a_job(), Exit(Cause.FAILURE, 1)) is None


def test_the_thread_of_one_that_is_replaced_ends() -> None:
    before = threading.active_count()
    guarded = GuardedPolicy(Fake())
    assert asked(guarded) == "answered"
    guarded.close()
    until(lambda: threading.active_count() <= before, "its thread to end")


def test_a_policy_that_hangs_at_one_question_is_asked_no_other(hanging) -> None:
    fake = Fake()
    fake.act = hanging
    guarded = GuardedPolicy(fake, SHORT)
    with pytest.raises(TimeoutError, match="no place in line"):
        guarded.order(a_job())
    with pytest.raises(TimeoutError, match="earlier question"):
        guarded.plan(None)  # type: ignore[arg-type]


def test_one_that_was_late_decides_again_and_its_trouble_is_over(clock, hanging) -> None:
    fake = Fake()
    fake.act = hanging
    guarded = GuardedPolicy(fake, SHORT)
    assert asked(guarded) != "answered"
    clock[0] += SHORT * guards.REST
    assert "earlier question" in asked(guarded), "it still hangs"
    hanging.release()
    guarded._call.exception(LONG)
    fake.act = lambda: None
    assert asked(guarded) == "answered"
    assert guarded.trouble is not None and guarded.trouble.over


# -- again, as from a journal


def replayed(server: FakeServer, settings: Settings, policy, fallback) -> list[Step]:
    """The decisions of a new core for the same events, with working plugins."""
    from carmad.core.placing.decision import FALLBACK
    from carmad.core.scheduler import Scheduler
    from recovery import ladder

    script = replay.Script()
    core = Scheduler(
        settings,
        replay.failing(policy, script),
        replay.failing(ladder.exclusive(settings), script),
        None,
        replay.failing(fallback, script, FALLBACK) if fallback else None,
    )
    made = []
    for step in server.steps:
        script.begin(step.failures)
        made.append(core.handle(*step.events))
    return made


def test_decisions_made_with_a_fallback_are_made_again(hanging) -> None:
    fake = Fake()
    server = served(fake)
    settings = Settings(policy="fake", policy_fallback="magm")
    first = server.submit()
    fake.act = oops
    server.submit()
    server.submit()
    server.pass_time(30)
    server.exit(first)
    fake.act = lambda: None
    server.pass_time(30)
    server.submit()
    made = replayed(server, settings, Fake(), builtin.magm(settings))
    assert [step.decisions for step in made] == [step.decisions for step in server.steps]
    assert [step.failures for step in made] == [step.failures for step in server.steps]
    assert {d.policy for step in made for d in step.decisions} == {"fake", "magm"}
    assert any(step.failures == (Failure("plan", 1, "KeyError('x')"),) for step in made)


def test_without_the_failures_it_would_be_another_story() -> None:
    fake = Fake()
    fake.act = oops
    server = served(fake, fallback=False)
    server.submit()
    made = replayed(server, Settings(), Fake(), None)
    assert [step.decisions for step in made] == [step.decisions for step in server.steps]
    server.steps = [replace(step, failures=()) for step in server.steps]
    made = replayed(server, Settings(), Fake(), None)
    assert [step.decisions for step in made] != [step.decisions for step in server.steps]
