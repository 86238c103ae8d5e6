"""Suspends a job's processes, and resumes them, for the daemon, which starts this as a program: one
request in JSON on standard input, one answer on standard output.

`suspend` and `resume` are the order of the driver's calls, whatever has been done before; the calls
themselves are in `libcuda`, or in `emulated_driver`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from carmad.gpu.cuda_state import (
    ILLEGAL_STATE,
    LOCK_WITHIN_S,
    LOOKS,
    OPERATING_SYSTEM,
    Driver,
    DriverError,
    Moves,
    Outcome,
    State,
    is_stopped,
)
from carmad.gpu.emulated_driver import EmulatedDriver
from carmad.gpu.libcuda import LibCuda

PR_SET_PDEATHSIG = 1
CONTINUED_WITHIN_S = 1.0


def main() -> None:
    """It ends with the thread that asks: whoever comes after that begins with the states that it
    finds."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    request = json.load(sys.stdin)
    if os.getppid() == request["parent"]:
        print(json.dumps(_carry_out(request)), flush=True)


def _carry_out(request: dict[str, Any]) -> dict[str, Any]:
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
    return EmulatedDriver(cards) if cards else LibCuda()


def _runs_on(pid: int) -> bool:
    """Whether it runs, or is continued within CONTINUED_WITHIN_S."""
    until = time.monotonic() + CONTINUED_WITHIN_S
    while is_stopped(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# -- the order of the calls


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


if __name__ == "__main__":
    main()
