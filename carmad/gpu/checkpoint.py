"""Suspends jobs: moves their GPU memory to host memory and back, by CUDA's process checkpoint.

`suspend` and `resume` are the order of the driver's calls, whatever has been done before; the calls
themselves are in `libcuda`, or in `emulated_driver`. `Checkpoints` has them made by a helper (this
module's `main`): the daemon never loads libcuda, which hangs or dies with some processes.

The package cuda-core has the same five calls (`cuda.core.checkpoint.Process`), with numpy and 15 MB
of CUDA bindings. Five functions by ctypes, whose structures are as stable as the driver's ABI, need
nothing, start faster, and say plainly what an older driver lacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from carmad import units

LOCK_WITHIN_S = 10.0  # where a resume has to be undone
LOOKS = 3  # for processes that begin to use a GPU meanwhile

Moves = Sequence[tuple[str, str]]  # UUIDs of GPUs: from which to which
Request = dict[str, object]
Answer = dict[str, Any]


class State(StrEnum):
    """Of a process, as the driver sees it."""

    RUNNING = "running"
    LOCKED = "locked"  # its next CUDA call waits
    CHECKPOINTED = "checkpointed"  # locked, with its GPU memory in host memory
    FAILED = "failed"  # for good
    NONE = "none"  # it does not use CUDA, or is gone


INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 304, 401, 600, 801
_WORDS = {
    OUT_OF_MEMORY: "there is not enough free memory on the GPU",
    OPERATING_SYSTEM: "the driver may not do that to it (only root may), or cannot do it any more",
    ILLEGAL_STATE: "it is in another state than the call is for",
    NOT_READY: "its kernels did not end in time",
    NOT_SUPPORTED: "the driver cannot suspend such a process (a client of MPS, on a MIG instance,"
    " or on an ARM machine)",
}


class DriverError(Exception):
    """`code`: the driver's, as in cuda.h."""

    def __init__(self, code: int, words: str = "") -> None:
        self.code = code
        self.words = words or _WORDS.get(code, f"CUDA error {code}")
        super().__init__(self.words)


class Driver(Protocol):
    """What can be done to a process, by its pid. All raise DriverError."""

    def state(self, pid: int) -> State: ...

    def lock(self, pid: int, within_s: float) -> None:
        """From RUNNING to LOCKED, when what it has given to the GPU is done."""
        ...

    def checkpoint(self, pid: int) -> None:
        """From LOCKED to CHECKPOINTED."""
        ...

    def restore(self, pid: int, moves: Moves) -> None:
        """From CHECKPOINTED to LOCKED. `moves`: all its GPUs, if it moves to others."""
        ...

    def unlock(self, pid: int) -> None:
        """From LOCKED to RUNNING."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """Not `done` and not `lost`: the job is as it was before. `lost`: it is of no use any more, as
    not all its processes can be brought to either state. `hung`: the driver did not answer."""

    done: bool
    why: str = ""
    lost: bool = False
    hung: bool = False


# -- the order of the calls ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fault:
    pid: int
    error: DriverError

    def __str__(self) -> str:
        return f"process {self.pid}: {self.error}"


def suspend(driver: Driver, pids: Iterable[int], lock_within_s: float) -> Outcome:
    """Suspend those that use CUDA, in whatever state they are. All are locked before any is
    checkpointed: they may share memory."""
    pids = tuple(pids)
    if refusal := _refusal(driver, pids):
        return refusal
    fault = next(_suspend(driver, pids, lock_within_s), None)
    if fault is None:
        return Outcome(True)
    for _ in _resume(driver, pids, ()):
        pass
    return Outcome(False, str(fault), lost=not _all_are(driver, pids, State.RUNNING))


def resume(driver: Driver, pids: Iterable[int], moves: Moves) -> Outcome:
    """Let those run again that are suspended, in whatever state they are. All are restored before
    any is unlocked."""
    pids = tuple(pids)
    if refusal := _refusal(driver, pids):
        return refusal
    fault = next(_resume(driver, pids, moves), None)
    if fault is None:
        return Outcome(True)
    # What has moved can be suspended again, but stays where it is.
    is_divided = bool(moves) and not _all_are(driver, pids, State.CHECKPOINTED)
    for _ in _suspend(driver, pids, LOCK_WITHIN_S):
        pass
    # Driver 580 restores nothing any more once a restore has failed for want of memory, and gives
    # this error from then on: github.com/NVIDIA/cuda-checkpoint/issues/44.
    is_dead = fault.error.code == OPERATING_SYSTEM
    lost = is_divided or is_dead or not _all_are(driver, pids, State.CHECKPOINTED)
    return Outcome(False, str(fault), lost)


def _refusal(driver: Driver, pids: Iterable[int]) -> Outcome | None:
    """Why nothing is tried."""
    for pid in pids:
        try:
            if driver.state(pid) is State.FAILED:
                return Outcome(False, f"process {pid}: its CUDA state has failed", lost=True)
        except DriverError as error:
            return Outcome(False, str(_Fault(pid, error)))
    return None


def _suspend(driver: Driver, pids: Sequence[int], lock_within_s: float) -> Iterator[_Fault]:
    """The faults, as they come up; it goes on with the next process."""

    def lock(pid: int) -> None:
        driver.lock(pid, lock_within_s)

    for _ in range(LOOKS):
        yield from _do_to_each(driver, pids, State.RUNNING, lock)
        yield from _do_to_each(driver, pids, State.LOCKED, driver.checkpoint)
        if _all_are(driver, pids, State.CHECKPOINTED):
            return
    yield from _others(driver, pids, State.CHECKPOINTED)


def _resume(driver: Driver, pids: Sequence[int], moves: Moves) -> Iterator[_Fault]:
    """Likewise."""

    def restore(pid: int) -> None:
        driver.restore(pid, moves)

    yield from _do_to_each(driver, pids, State.CHECKPOINTED, restore)
    yield from _do_to_each(driver, pids, State.LOCKED, driver.unlock)
    yield from _others(driver, pids, State.RUNNING)


def _do_to_each(
    driver: Driver, pids: Iterable[int], state: State, do: Callable[[int], None]
) -> Iterator[_Fault]:
    """Do it to those in this state. One that ends meanwhile is no fault."""
    for pid in pids:
        try:
            if driver.state(pid) is state:
                do(pid)
        except DriverError as error:
            if _state(driver, pid) is not State.NONE:
                yield _Fault(pid, error)


def _others(driver: Driver, pids: Iterable[int], wanted: State) -> Iterator[_Fault]:
    for pid in pids:
        if not _all_are(driver, (pid,), wanted):
            state = _state(driver, pid) or "in no state that can be read"
            yield _Fault(pid, DriverError(ILLEGAL_STATE, f"it is {state}, not {wanted}"))


def _all_are(driver: Driver, pids: Iterable[int], wanted: State) -> bool:
    return all(_state(driver, pid) in (wanted, State.NONE) for pid in pids)


def _state(driver: Driver, pid: int) -> State | None:
    try:
        return driver.state(pid)
    except DriverError:
        return None


# -- for the daemon ------------------------------------------------------------------------------

STATE_WITHIN_S = 10.0  # a helper starts in a tenth of a second
ENDED_WITHIN_S = 1.0  # after a SIGKILL; one that waits in the kernel is left
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
                units.program("carmad.gpu.checkpoint"),
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
    assert helper.stdout
    helper.stdin = None  # it is closed
    try:
        said, _ = helper.communicate(timeout=max(0.0, until - time.monotonic()))
        found: Answer = json.loads(said)
        return found
    except subprocess.TimeoutExpired:
        return late
    except ValueError:  # it died, maybe in the driver
        return f"the helper that calls the driver ended with {helper.returncode}"
    finally:
        helper.kill()
        helper.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            helper.wait(ENDED_WITHIN_S)


# -- the helper ----------------------------------------------------------------------------------

PR_SET_PDEATHSIG = 1
CONTINUED_WITHIN_S = 1.0


def main() -> None:
    """One request in JSON on standard input, one answer on standard output. It ends with the thread
    that asks: whoever comes after that begins with the states that it finds."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    request = json.load(sys.stdin)
    if os.getppid() == request["parent"]:
        print(json.dumps(_carry_out(request)), flush=True)


def _carry_out(request: dict[str, Any]) -> Answer:
    pids, goal = request["pids"], State.RUNNING
    try:
        driver = _driver(request["cards"])
        if request["do"] == "states":
            return {"states": {pid: state for pid in pids if (state := _state(driver, pid))}}
        if request["do"] == "suspend":
            goal = State.CHECKPOINTED
        for pid in pids:
            if driver.state(pid) not in (goal, State.NONE) and not _runs_on(pid):
                return asdict(Outcome(False, f"process {pid} is stopped (SIGSTOP) or frozen"))
    except DriverError as error:
        return asdict(Outcome(False, str(error)))
    if request["do"] == "suspend":
        return asdict(suspend(driver, pids, request["lock_within_s"]))
    return asdict(resume(driver, pids, request["moves"]))


def _driver(cards: str) -> Driver:
    if cards:
        from carmad.gpu.emulated_driver import EmulatedDriver

        return EmulatedDriver(cards)
    from carmad.gpu.libcuda import LibCuda

    return LibCuda()


def _runs_on(pid: int) -> bool:
    """Whether it runs, or is continued within CONTINUED_WITHIN_S."""
    until = time.monotonic() + CONTINUED_WITHIN_S
    while is_stopped(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it, or its cgroup is frozen: the driver would wait for it."""
    return _letter(pid) in ("T", "t") or any(
        "frozen 1" in _text(f"{mount}{line[3:]}/cgroup.events")
        for line in _text(f"/proc/{pid}/cgroup").splitlines()
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
        if line.startswith("0::")
    )


def is_gone(pid: int) -> bool:
    return _letter(pid) in ("", "Z", "X")


def _letter(pid: int) -> str:
    """The state of a process as `ps` shows it; "": there is none."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main()
