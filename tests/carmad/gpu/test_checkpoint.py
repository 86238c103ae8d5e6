"""The order of the driver's calls, against a model of a driver that is killed, fails, or hangs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carmad.gpu import checkpoint_helper
from carmad.gpu.checkpoint import Answer, Checkpoints, Request
from carmad.gpu.checkpoint_helper import resume, suspend
from carmad.gpu.cuda_state import (
    ILLEGAL_STATE,
    NOT_READY,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    DriverError,
    Moves,
    Outcome,
    State,
)

RUNNING, LOCKED, CHECKPOINTED = State.RUNNING, State.LOCKED, State.CHECKPOINTED
DONE = Outcome(True)
STATES = [RUNNING, LOCKED, CHECKPOINTED, State.NONE]
LEADS = {
    "lock": (RUNNING, LOCKED),
    "checkpoint": (LOCKED, CHECKPOINTED),
    "restore": (CHECKPOINTED, LOCKED),
    "unlock": (LOCKED, RUNNING),
}


class Killed(Exception):
    """By a SIGKILL, after the last call."""


class Model:
    """A driver with these processes: each call changes a state, unless a fault is planned for it.
    `left`: calls until it is killed; -1: it is not."""

    def __init__(self, *states: State, left: int = -1) -> None:
        self.states = dict(enumerate(states, 1))
        self.left = left
        self.faults: dict[tuple[str, int], int] = {}  # codes
        self.changes: dict[tuple[str, int], State] = {}  # with the fault
        self.calls: list[tuple[str, int]] = []
        self.moves: list[Moves] = []
        self.on_call: Callable[[str, int], None] = lambda *_: None

    @property
    def pids(self) -> list[int]:
        return list(self.states)

    def state(self, pid: int) -> State:
        self._count()
        return self.states[pid]

    def lock(self, pid: int, within_s: float) -> None:
        assert within_s > 0, "0 would be for ever"
        self._do("lock", pid)

    def checkpoint(self, pid: int) -> None:
        self._do("checkpoint", pid)

    def restore(self, pid: int, moves: Moves) -> None:
        self._do("restore", pid)
        self.moves.append(moves)

    def unlock(self, pid: int) -> None:
        self._do("unlock", pid)

    def _count(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def _do(self, call: str, pid: int) -> None:
        self._count()
        self.calls.append((call, pid))
        self.on_call(call, pid)
        if self.states[pid] is State.NONE:
            raise DriverError(OPERATING_SYSTEM)
        if code := self.faults.get((call, pid)):
            self.states[pid] = self.changes.get((call, pid), self.states[pid])
            raise DriverError(code)
        before, after = LEADS[call]
        if self.states[pid] is not before:
            raise DriverError(ILLEGAL_STATE)
        self.states[pid] = after

    def all_are(self, state: State) -> bool:
        return set(self.states.values()) <= {state, State.NONE}


BEGINS = {"suspend": RUNNING, "resume": CHECKPOINTED}
GOALS = {"suspend": CHECKPOINTED, "resume": RUNNING}
ACTS = {"lock": "suspend", "checkpoint": "suspend", "restore": "resume", "unlock": "resume"}


def act(do: str, model: Model) -> Outcome:
    if do == "suspend":
        return suspend(model, model.pids, 1.0)
    return resume(model, model.pids, ())


def names(model: Model) -> list[str]:
    return [f"{call} {pid}" for call, pid in model.calls]


def test_all_are_locked_before_any_is_checkpointed_and_restored_before_any_is_unlocked() -> None:
    model = Model(RUNNING, State.NONE, RUNNING)
    assert suspend(model, model.pids, 1.0) == DONE
    assert names(model) == ["lock 1", "lock 3", "checkpoint 1", "checkpoint 3"]
    model.calls.clear()
    assert resume(model, model.pids, [("GPU-1", "GPU-2")]) == DONE
    assert names(model) == ["restore 1", "restore 3", "unlock 1", "unlock 3"]
    assert model.moves == [[("GPU-1", "GPU-2")]] * 2


def test_without_cuda_there_is_nothing_to_do() -> None:
    for model in (Model(), Model(State.NONE)):
        assert suspend(model, model.pids, 1.0) == resume(model, model.pids, ()) == DONE
        assert not model.calls


@pytest.mark.parametrize("do", ["suspend", "resume"])
@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=4), st.integers(0, 40))
def test_it_may_be_killed_anywhere_and_repeated(do: str, states: list[State], left: int) -> None:
    model = Model(*states, left=left)
    with contextlib.suppress(Killed):
        act(do, model)
    model.left = -1
    assert act(do, model) == DONE
    assert model.all_are(GOALS[do])


@pytest.mark.parametrize("call", list(LEADS))
@given(st.integers(0, 60), st.integers(1, 3))
def test_it_may_be_killed_while_it_undoes(call: str, left: int, pid: int) -> None:
    do = ACTS[call]
    begin = BEGINS[do]
    model = Model(begin, begin, begin, left=left)
    model.faults[call, pid] = OUT_OF_MEMORY
    with contextlib.suppress(Killed):
        act(do, model)
    model.left = -1
    assert not act(do, model).done
    assert model.all_are(begin)


@pytest.mark.parametrize("code", [NOT_READY, NOT_SUPPORTED])
@pytest.mark.parametrize("pid", [1, 2, 3])
def test_what_cannot_be_locked_is_as_it_was(code: int, pid: int) -> None:
    model = Model(RUNNING, RUNNING, RUNNING)
    model.faults["lock", pid] = code
    outcome = suspend(model, model.pids, 1.0)
    assert (outcome.done, outcome.lost) == (False, False)
    assert outcome.why == f"process {pid}: {DriverError(code)}"
    assert model.all_are(RUNNING)
    assert "checkpoint" not in {call for call, _ in model.calls}


@pytest.mark.parametrize("pid", [1, 2, 3])
def test_what_cannot_be_checkpointed_runs_on(pid: int) -> None:
    model = Model(RUNNING, RUNNING, RUNNING)
    model.faults["checkpoint", pid] = 999
    assert suspend(model, model.pids, 1.0) == Outcome(False, f"process {pid}: CUDA error 999")
    assert model.all_are(RUNNING)


@pytest.mark.parametrize("call", ["restore", "unlock"])
@pytest.mark.parametrize("pid", [1, 2, 3])
def test_without_room_for_one_all_stay_suspended(call: str, pid: int) -> None:
    model = Model(CHECKPOINTED, CHECKPOINTED, CHECKPOINTED)
    model.faults[call, pid] = OUT_OF_MEMORY
    outcome = resume(model, model.pids, ())
    assert (outcome.done, outcome.lost) == (False, False)
    assert outcome.why == f"process {pid}: there is not enough free memory on the GPU"
    assert model.all_are(CHECKPOINTED)
    model.faults.clear()
    assert resume(model, model.pids, ()) == DONE


def test_a_job_of_which_only_a_part_has_moved_is_lost() -> None:
    """That part stays on the new GPU, and the next resume would be for all."""
    moves = [("GPU-1", "GPU-2")]
    model = Model(CHECKPOINTED, CHECKPOINTED)
    model.faults["restore", 1] = OUT_OF_MEMORY
    assert not resume(model, model.pids, moves).lost, "none has moved"
    model.faults = {("restore", 2): OUT_OF_MEMORY}
    assert resume(model, model.pids, moves).lost
    assert model.all_are(CHECKPOINTED)


def test_what_the_driver_never_restores_again_is_lost() -> None:
    model = Model(CHECKPOINTED)
    model.faults["restore", 1] = OPERATING_SYSTEM
    assert resume(model, model.pids, ()).lost


@pytest.mark.parametrize("call", list(LEADS))
def test_a_process_that_fails_is_lost(call: str) -> None:
    do = ACTS[call]
    model = Model(BEGINS[do], BEGINS[do])
    model.faults[call, 2], model.changes[call, 2] = 999, State.FAILED
    assert act(do, model) == Outcome(False, "process 2: CUDA error 999", lost=True)
    failed = Outcome(False, "process 2: its CUDA state has failed", lost=True)
    assert act(do, model) == failed


def test_what_cannot_be_brought_back_is_lost() -> None:
    model = Model(RUNNING, RUNNING)
    model.faults = {("checkpoint", 2): 999, ("restore", 1): OUT_OF_MEMORY}
    assert suspend(model, model.pids, 1.0).lost


@pytest.mark.parametrize("call", list(LEADS))
def test_a_process_may_end_meanwhile(call: str) -> None:
    do = ACTS[call]
    model = Model(BEGINS[do], BEGINS[do])

    def end(now: str, pid: int) -> None:
        if (now, pid) == (call, 1):
            model.states[1] = State.NONE

    model.on_call = end
    assert act(do, model) == DONE


def test_one_that_begins_to_use_cuda_meanwhile_is_suspended_too() -> None:
    model = Model(RUNNING, State.NONE)

    def begin(call: str, _: int) -> None:
        if call == "checkpoint" and model.states[2] is State.NONE:
            model.states[2] = RUNNING

    model.on_call = begin
    assert suspend(model, model.pids, 1.0) == DONE
    assert model.states[2] is CHECKPOINTED


def test_who_may_not_ask_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(RUNNING)

    def refuse(_: int) -> State:
        raise DriverError(OPERATING_SYSTEM)

    monkeypatch.setattr(model, "state", refuse)
    for outcome in (act("suspend", model), act("resume", model)):
        assert (outcome.done, outcome.lost) == (False, False)
        assert "only root may" in outcome.why
    assert not model.calls


def test_the_looks_for_new_processes_come_to_an_end() -> None:
    """A driver that says it has suspended a process, and has not, must not keep us for ever."""
    model = Model(RUNNING)
    model.on_call = lambda *_: model.states.update({1: RUNNING})

    def unchanged(call: str, pid: int) -> None:
        model.calls.append((call, pid))

    model._do = unchanged  # type: ignore[method-assign]
    outcome = suspend(model, model.pids, 1.0)
    assert outcome == Outcome(False, "process 1: it is running, not checkpointed")
    assert len(model.calls) == checkpoint_helper.LOOKS


# Where a helper has been killed.


class Interrupted(Checkpoints):
    """Its first helper is killed after so many calls; the others answer."""

    def __init__(self, model: Model, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.model = model
        model.left = calls
        monkeypatch.setattr(checkpoint_helper, "_driver", lambda _: model)
        monkeypatch.setattr(checkpoint_helper, "_runs_on", lambda _: True)

    def _ask(self, requests: Sequence[Request], within_s: float) -> list[Answer | str]:
        return [self._answer({"cards": "", **request}) for request in requests]

    def _answer(self, request: Request) -> Answer | str:
        try:
            return checkpoint_helper._carry_out(request)
        except Killed:
            self.model.left = -1
            return "it was killed"


@pytest.mark.parametrize("do", ["suspend", "resume", "move"])
@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=3), st.integers(0, 40))
def test_what_a_killed_helper_has_done_is_found_out(
    do: str, states: list[State], calls: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        model = Model(*states)
        killed = Interrupted(model, calls, patch)
        if do == "suspend":
            outcome = killed.suspend(lambda: model.pids, 1.0, 1.0)
            begin, goal = RUNNING, CHECKPOINTED
        else:
            moves = [("GPU-1", "GPU-2")] if do == "move" else []
            outcome = killed.resume(model.pids, moves, 1.0)
            begin, goal = CHECKPOINTED, RUNNING
    assert model.all_are(goal if outcome.done else begin)
    assert not outcome.lost or do == "move"
    assert not outcome.hung or outcome.why == "it was killed"


def test_what_has_moved_as_a_whole_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = [("GPU-1", "GPU-2")]
    for calls in range(60):
        model = Model(CHECKPOINTED, CHECKPOINTED)
        outcome = Interrupted(model, calls, monkeypatch).resume(model.pids, moves, 1.0)
        restored = model.moves.count(moves)
        assert outcome.done == (restored == 2)
        assert outcome.lost == (restored == 1)
