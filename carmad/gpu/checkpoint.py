"""Suspends jobs: moves their GPU memory to host memory and back, by CUDA's process checkpoint.

`Checkpoints` has the driver's calls made by a helper (`checkpoint_helper`): the daemon never loads
libcuda, which hangs or dies with some processes.

The package cuda-core has the same five calls (`cuda.core.checkpoint.Process`), with numpy and 15 MB
of CUDA bindings. Five functions by ctypes, whose structures are as stable as the driver's ABI, need
nothing, start faster, and say plainly what an older driver lacks.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from carmad import units
from carmad.children import hear
from carmad.gpu.cuda_state import LOCK_WITHIN_S, LOOKS, Moves, Outcome, State

Request = dict[str, object]
Answer = dict[str, Any]

STATE_WITHIN_S = 10.0  # a helper starts in a tenth of a second
HELPERS = 16  # at once


class Checkpoints:
    """Has jobs suspended and resumed, each by a helper that is killed when it takes too long. Any
    number of threads may use it. `cards`: the directory of the emulated GPUs; "": they are real.
    """

    def __init__(self, cards: str = "") -> None:
        self._cards = cards

    def suspend(
        self, find_pids: Callable[[], Collection[int]], lock_within_s: float, within_s: float
    ) -> Outcome:
        """Suspend all processes of a job; `find_pids` is asked again afterwards, for those that it
        has started meanwhile."""
        outcome, pids = Outcome(True), set[int]()
        for _ in range(LOOKS):
            found = set(find_pids())
            if found <= pids or not outcome.done:
                break
            pids |= found
            request = Request(do="suspend", lock_within_s=lock_within_s)
            outcome = self._act(request, sorted(pids), State.CHECKPOINTED, within_s)
        return outcome

    def resume(self, pids: Collection[int], moves: Moves, within_s: float) -> Outcome:
        request = Request(do="resume", moves=list(moves))
        return self._act(request, sorted(pids), State.RUNNING, within_s)

    def states(self, pids: Collection[int]) -> dict[int, State]:
        """Without those of which the driver says nothing in time."""
        (answer,) = answers = self._ask([Request(do="states", pids=list(pids))], STATE_WITHIN_S)
        if isinstance(answer, str):  # it hangs with one of them
            answers = self._ask([Request(do="states", pids=[pid]) for pid in pids], STATE_WITHIN_S)
        return {
            int(pid): State(state)
            for answer in answers
            if isinstance(answer, dict)
            for pid, state in answer.get("states", {}).items()
        }

    def _act(self, request: Request, pids: Sequence[int], goal: State, within_s: float) -> Outcome:
        (answer,) = self._ask([{**request, "pids": pids}], within_s)
        if isinstance(answer, dict):
            return Outcome(**answer)
        moves = bool(request.get("moves"))
        return self._settle(pids, goal, moves, answer, within_s)

    def _settle(
        self, pids: Sequence[int], goal: State, moves: bool, why: str, within_s: float
    ) -> Outcome:
        """What has come of it where the helper has not said so: the processes' states tell. If they
        are in between, each is brought back by a helper of its own, as the driver may hang with one
        until another is unlocked (github.com/NVIDIA/cuda-checkpoint/issues/30)."""
        forward = Request(do="resume", moves=[])
        before, back = State.RUNNING, forward
        if goal is State.RUNNING:
            before, back = State.CHECKPOINTED, Request(do="suspend", lock_within_s=LOCK_WITHIN_S)
        has_moved = False
        for attempt in range(2):
            states = self.states(pids)
            found = {states.get(pid) for pid in pids} - {State.NONE}
            if found <= {goal}:
                return Outcome(True)
            if found <= {before}:
                return Outcome(False, why, lost=has_moved, hung=True)
            if attempt == 0:
                has_moved = moves
                all_have = has_moved and found <= {State.LOCKED, State.RUNNING}
                strays = [pid for pid in pids if states.get(pid) not in (before, State.NONE)]
                way = forward if all_have else back
                self._ask([{**way, "pids": [pid]} for pid in strays], within_s)
        return Outcome(False, f"{why}, and its processes could not be brought back", lost=True)

    def _ask(self, requests: Sequence[Request], within_s: float) -> list[Answer | str]:
        """The answer to each, from a helper of its own; or why there is none."""
        answers: list[Answer | str] = []
        for first in range(0, len(requests), HELPERS):
            helpers = [self._start(each) for each in requests[first : first + HELPERS]]
            until = time.monotonic() + within_s
            late = f"the driver did not answer within {within_s:g} s"
            answers += [_answer(helper, until, late) for helper in helpers]
        return answers

    def _start(self, request: Request) -> subprocess.Popen[bytes] | Answer:
        """A helper; or, if none can be started, the answer."""
        try:
            helper = subprocess.Popen(
                units.program("carmad.gpu.checkpoint_helper"),
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return asdict(Outcome(False, f"no helper can be started: {error.strerror}"))
        assert helper.stdin
        words = {"cards": self._cards, "parent": os.getpid(), **request}
        with contextlib.suppress(OSError), helper.stdin:
            helper.stdin.write(json.dumps(words).encode())
        return helper


def _environment() -> dict[str, str]:
    """Ours, without what would change libcuda, or make its user a client of an MPS server."""
    others = ("LD_PRELOAD", "LD_AUDIT", "CUDA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**kept, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent/carma-without-mps"}


def _answer(helper: subprocess.Popen[bytes] | Answer, until: float, late: str) -> Answer | str:
    if isinstance(helper, dict):
        return helper
    helper.stdin = None  # it is closed
    try:
        found: Answer = json.loads(hear(helper, max(0.0, until - time.monotonic())))
        return found
    except subprocess.TimeoutExpired:
        return late
    except ValueError:  # it died, maybe in the driver
        return f"the helper that calls the driver ended with {helper.returncode}"
