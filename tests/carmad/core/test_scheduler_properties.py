"""Any order of any reports, late and repeated: the core never loses sight of a live process.

The world is `tests.model`. Hypothesis throws its dice and shrinks what it finds; a few of the seeds
of `python -m benchmarks.daemon.soak` are lived through here, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from carmad.core.jobs.attempt import Cause, Exit
from carmad.core.jobs.job import stopping
from carmad.core.jobs.knowledge import end
from carmad.core.jobs.states import JobState
from carmad.core.messages import CancelRequested
from carmad.core.scheduler import HANDLERS
from carmad.core.state import State
from carmad.engine import engine
from carmad.engine.engine import Engine
from tests.model import SHARED, STEPS, UNDER_MPS, Model, live_through

SEEDS = range(60)
SERVERS = (("magm", SHARED), ("lug", UNDER_MPS), ("exclusive", SHARED))


class Server(RuleBasedStateMachine):
    server = SERVERS[0]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(*self.server)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        self.model.check()

    @invariant()
    def what_was_kept_is_what_would_be_worked_out_anew(self) -> None:
        self.model.check_what_was_kept()

    def teardown(self) -> None:
        self.model.settle()


def step(name: str) -> Callable[[Server, random.Random], None]:
    def happens(self: Server, dice: random.Random) -> None:
        getattr(self.model, name)(dice)

    happens.__name__ = name
    return happens


for name in STEPS:
    setattr(Server, name, rule(dice=st.randoms())(step(name)))


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server[0])
def test_the_core_against_a_model_of_the_world(server: tuple[str, object]) -> None:
    machine = type("ServerOf", (Server,), {"server": server})
    run_state_machine_as_test(
        machine,
        settings=hypothesis_settings(max_examples=30, stateful_step_count=40),
    )


def test_whole_lives_with_every_fault() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen.update(live_through(seed).seen)
    assert min(seen.values()) > 0, seen


def test_a_seed_is_one_and_the_same_life() -> None:
    one, other = live_through(7), live_through(7)
    assert one.disk.jobs == other.disk.jobs
    assert one.attempts == other.attempts


def never_again(self: Engine, history: object = None) -> None:
    """A daemon that does not do what the one before it owed."""
    self._reload(history)


def act_first(scheduler, store, world, *events, committed, **unused) -> None:
    step = scheduler.handle(*events)
    for action in step.actions:
        world.perform(action)
    store.commit(step)
    committed(step)


def cancelled_at_once(state: State, event: CancelRequested) -> None:
    """Its GPUs are free before its processes are gone."""
    job = state.ledger.jobs.get(event.job)
    if job and job.state is not JobState.STOPPING:
        state.ledger.put(job)
        if job.holds_gpus:
            job = stopping(job, Cause.CANCELLED)
            state.ledger.put(job)
        end(state, job, JobState.CANCELLED, Exit(Cause.CANCELLED), event.at)


@pytest.mark.parametrize(
    ("where", "what", "fault", "noticed"),
    [
        (Engine, "restore", never_again, "never ended"),
        (Engine, "_reload", lambda self, history=None: (), "tell two stories"),
        (engine, "turn", act_first, "runs unseen"),
        (HANDLERS, CancelRequested, cancelled_at_once, "runs unseen"),
    ],
)
def test_a_fault_of_ours_would_be_seen(
    monkeypatch: pytest.MonkeyPatch, where: Any, what: Any, fault: object, noticed: str
) -> None:
    patch = monkeypatch.setitem if where is HANDLERS else monkeypatch.setattr
    patch(where, what, fault)
    with pytest.raises(AssertionError, match=noticed):
        for seed in SEEDS:
            live_through(seed)
