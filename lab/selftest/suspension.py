"""Suspends a process for a check: CUDA's process checkpoint, whose calls another process makes."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from carmad.gpu.cuda_state import Moves, State
from carmad.paths import python
from carmad.selftest import suspending
from carmad.selftest.bench import LISTED_WITHIN_S, NEAR_MIB, Bench, Probe, ProbeFailed
from carmad.selftest.suspending import LOCK_WITHIN_S, fill
from lab.selftest.memory import lists_pids

CALL_WITHIN_S = 60.0  # of a few GiB; one that takes longer hangs


class Caller:
    """Makes the calls one by one. Each raises ProbeFailed, whose `name` is the driver's error."""

    def __init__(self, bench: Bench, uid: int | None = None) -> None:
        hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # as the daemon's helper: all GPUs
        env = {name: its for name, its in bench.environment().items() if name not in hidden}
        self._process = bench.run(python("lab.selftest.caller"), env, uid)
        self._process.ask("hello")

    def open(self) -> None:
        self._process.ask("open")

    def state(self, probe: Probe) -> State:
        return State(self._process.ask("state", pid=probe.pid)["state"])

    def lock(self, probe: Probe, timeout_s: float = LOCK_WITHIN_S) -> float:
        """Returns the seconds that it took, as do the other calls."""
        return self._call("lock", probe, State.LOCKED, timeout_s=timeout_s)

    def checkpoint(self, probe: Probe) -> float:
        return self._call("checkpoint", probe, State.CHECKPOINTED)

    def restore(self, probe: Probe, moves: Moves = ()) -> float:
        return self._call("restore", probe, State.LOCKED, moves=moves)

    def unlock(self, probe: Probe) -> float:
        return self._call("unlock", probe, State.RUNNING)

    def end(self) -> None:
        self._process.end()

    def _call(self, do: str, probe: Probe, leads_to: State, **words: object) -> float:
        took_s: float = self._process.ask(do, CALL_WITHIN_S, pid=probe.pid, **words)["s"]
        if (state := self.state(probe)) is not leads_to:
            raise ProbeFailed(f"{do}: the process is {state} afterwards, not {leads_to}")
        return took_s


def refusal(bench: Bench) -> str:
    """Why nothing can be told of suspending here; "" if it can."""
    if why := suspending.refusal(bench):
        return why
    caller = Caller(bench)
    try:
        caller.open()
    except ProbeFailed as error:
        return str(error)
    finally:
        caller.end()
    return ""


# -- one process, suspended and resumed ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cycle:
    """What was seen of it. MiB by NVML; `listed`: as a process of the GPU while it was suspended,
    None where the driver lists no pids of ours."""

    held_mib: int
    left_mib: int  # while it was suspended
    listed: bool | None
    host_mib: int  # by which its resident memory grew
    taken_mib: int  # by which the host had less memory available
    same: bool  # its contents, afterwards
    lock_s: float
    checkpoint_s: float
    restore_s: float
    unlock_s: float

    @property
    def out_s(self) -> float:
        return self.lock_s + self.checkpoint_s

    @property
    def in_s(self) -> float:
        return self.restore_s + self.unlock_s

    @property
    def frees(self) -> bool:
        return self.left_mib <= NEAR_MIB and not self.listed

    @property
    def fault(self) -> str:
        """What is not as it has to be; "" for nothing."""
        if not self.same:
            return "the contents of its memory are not the same afterwards"
        return "" if self.frees else "its memory is not free while it is suspended"


def run_cycle(bench: Bench, mib: int) -> Cycle:
    """Of a process that has allocated so much, at least that of `fill`. Raises ProbeFailed."""
    has_pids = lists_pids(bench)
    before = bench.memory()[0]
    probe, crc = fill(bench, mib)
    held_mib = bench.memory()[0] - before
    caller = Caller(bench)
    caller.open()
    resident, available = _resident_mib(probe), available_mib()
    out_s = (caller.lock(probe), caller.checkpoint(probe))
    host_mib, taken_mib = _resident_mib(probe) - resident, available - available_mib()
    gone = bench.until(lambda its: (its.memory_used_mib or 0) <= before + NEAR_MIB, LISTED_WITHIN_S)
    left_mib = 0 if gone else bench.memory()[0] - before
    listed = bench.use(probe) is not None if has_pids else None
    in_s = (caller.restore(probe), caller.unlock(probe))
    same = probe.ask("read")["crc"] == crc
    caller.end()
    probe.end()
    bench.until(lambda its: (its.memory_used_mib or 0) <= before + NEAR_MIB, LISTED_WITHIN_S)
    return Cycle(held_mib, left_mib, listed, host_mib, taken_mib, same, *out_s, *in_s)


def _resident_mib(probe: Probe) -> int:
    resident: int = psutil.Process(probe.pid).memory_info().rss
    return resident >> 20


def available_mib() -> int:
    available: int = psutil.virtual_memory().available
    return available >> 20
