"""The driver's side of suspended jobs on emulated cards: what `libcuda` does to real processes.

As with the real one, the restore of a stopped process (SIGSTOP) waits until that is continued. Work
given to the GPU is done at once, so a lock always succeeds. Any user may do it to any process.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from carmad.gpu import card
from carmad.gpu.card import Card
from carmad.gpu.cuda_state import (
    ILLEGAL_STATE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    DriverError,
    Moves,
    State,
    is_stopped,
)

NO_DEVICE = 100
SPEED = "gib_s"  # a file beside the cards: GiB/s of their copies; without it, these take no time
LOOK_S = 0.05
_STATES = {card.FREE: State.RUNNING, card.LOCKED: State.LOCKED}


class EmulatedDriver:
    """Of the cards in this directory."""

    def __init__(self, directory: str) -> None:
        try:
            opened = [Card(path) for path in card.paths(directory)]
        except (OSError, ValueError) as error:
            raise DriverError(NO_DEVICE, f"cannot read emulated cards: {error}") from error
        self._cards = sorted(opened, key=lambda each: each.index)
        try:
            self._gib_s = float(Path(directory, SPEED).read_text())
        except (OSError, ValueError):
            self._gib_s = float("inf")

    def state(self, pid: int) -> State:
        holds = [each.hold(slot) for each, slot in self._entries(pid)]
        return _STATES.get(min(holds), State.CHECKPOINTED) if holds else State.NONE

    def lock(self, pid: int, within_s: float) -> None:
        self._change(pid, card.FREE, card.LOCKED)

    def checkpoint(self, pid: int) -> None:
        self._copy(pid)
        self._change(pid, card.LOCKED, card.CHECKPOINTED)

    def restore(self, pid: int, moves: Moves) -> None:
        while is_stopped(pid):
            time.sleep(LOOK_S)
        self._copy(pid)
        entries = self._entries(pid)
        goals = [self._goal(each, moves) for each, _ in entries]
        with self._locks({*goals, *(each for each, _ in entries)}):
            self._require(pid, card.CHECKPOINTED)
            for (each, slot), goal in zip(entries, goals, strict=True):
                if not goal.has_room(each.held_mib(slot), each.group(slot)):
                    raise DriverError(OUT_OF_MEMORY)
            for (each, slot), goal in zip(entries, goals, strict=True):
                if goal is each:
                    each.set_hold(slot, card.LOCKED)
                else:
                    goal.admit(each, slot)

    def unlock(self, pid: int) -> None:
        self._change(pid, card.LOCKED, card.FREE)

    def _change(self, pid: int, before: int, after: int) -> None:
        with self._locks({each for each, _ in self._entries(pid)}):
            self._require(pid, before)
            for each, slot in self._entries(pid):
                if each.hold(slot) == before:
                    each.set_hold(slot, after)

    def _require(self, pid: int, hold: int) -> None:
        if self.state(pid) is not _STATES.get(hold, State.CHECKPOINTED):
            raise DriverError(ILLEGAL_STATE)

    def _entries(self, pid: int) -> list[tuple[Card, int]]:
        return [(each, slot) for each in self._cards if (slot := each.entry(pid))]

    def _goal(self, each: Card, moves: Moves) -> Card:
        """Where what is on this card is to be restored."""
        if not moves:
            return each
        wanted = dict(moves).get(each.uuid)
        goal = next((other for other in self._cards if other.uuid == wanted), None)
        if goal is None:
            raise DriverError(INVALID_VALUE, f"where to move from {each.uuid} is not said")
        if goal.name != each.name:
            raise DriverError(INVALID_VALUE, f"nothing moves from {each.name} to {goal.name}")
        return goal

    def _locks(self, cards: set[Card]) -> ExitStack:
        """All of them, in the same order as everybody."""
        stack = ExitStack()
        for each in self._cards:
            if each in cards:
                stack.enter_context(each.lock())
        return stack

    def _copy(self, pid: int) -> None:
        mib = sum(each.held_mib(slot) for each, slot in self._entries(pid))
        time.sleep(mib / 1024 / self._gib_s)
