"""Checks of each call of CUDA's process checkpoint, which no setting depends on: `suspend_cycle` of
`carma doctor --gpu` has them all."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from carmad.gpu.cuda_state import NOT_READY, NOT_SUPPORTED, OPERATING_SYSTEM, State
from carmad.selftest import suspending as ours
from carmad.selftest.bench import LISTED_WITHIN_S, NOBODY, Bench, Probe, ProbeFailed
from carmad.selftest.report import Seen, judge, unknown
from carmad.selftest.suspending import LOCK_WITHIN_S, fill
from lab.selftest.suspension import Caller, refusal, run_cycle

HOLD_S, REFUSED_AFTER_S = 3.0, 0.5  # a kernel's duration, and the timeout of a lock meanwhile
STOPPED_S = 0.5


def api(bench: Bench) -> Seen:
    if bench.gpu.is_mig:
        return unknown(ours.ON_MIG)
    try:
        Caller(bench).open()
    except ProbeFailed as error:
        if error.name != str(NOT_SUPPORTED):
            raise
        return judge(False, str(error))
    return judge(True, "libcuda offers process checkpoint")


def frees(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    its = run_cycle(bench, bench.mib(ours.LARGE_MIB))
    in_list = {True: "it is listed", False: "it is not listed", None: "no pids are listed here"}
    return judge(
        its.frees,
        f"of {its.held_mib} MiB, {its.left_mib} MiB stay in use while it is suspended;"
        f" {in_list[its.listed]}; its memory on the host grew by {its.host_mib} MiB",
        held_mib=its.held_mib,
        left_mib=its.left_mib,
        listed=its.listed,
        host_mib=its.host_mib,
    )


def contents(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    same = run_cycle(bench, ours.WRITTEN_MIB).same
    seen = "the same" if same else "another"
    return judge(same, f"{ours.WRITTEN_MIB} MiB have {seen} checksum afterwards")


def stopped(bench: Bench) -> Seen:
    """As the daemon does: frozen once it is suspended, and thawed before it resumes."""
    if why := refusal(bench):
        return unknown(why)
    probe, crc = fill(bench, ours.WRITTEN_MIB)
    caller, process = Caller(bench), psutil.Process(probe.pid)
    try:
        caller.lock(probe)
        caller.checkpoint(probe)
        process.suspend()
        time.sleep(STOPPED_S)
        process.resume()
        caller.restore(probe)
        caller.unlock(probe)
    except ProbeFailed as error:
        return judge(False, str(error))
    same = probe.ask("read")["crc"] == crc
    seen = "the same" if same else "not the same"
    return judge(same, f"stopped and continued meanwhile, it resumes; contents are {seen}")


# -- processes that cannot be suspended ------------------------------------------------------------


def busy(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    probe, caller = bench.probe(), Caller(bench)
    caller.open()
    probe.ask("spin", s=0.1)  # the kernel is loaded
    probe.ask("hold", s=HOLD_S)
    code, after_s = _lock(caller, probe, REFUSED_AFTER_S)
    state = caller.state(probe) if code else State.LOCKED
    if not code:
        caller.unlock(probe)
    held_s = probe.answer()["s"]
    if held_s < REFUSED_AFTER_S:
        return unknown(f"the kernel ended after {held_s:.1f} s: the lock had not to wait for it")
    probe.ask("spin", s=0.1)
    return judge(
        code == str(NOT_READY) and state is State.RUNNING,
        f"beside a kernel of {held_s:.1f} s, a lock with a timeout of {REFUSED_AFTER_S:g} s"
        f" {f'failed with error {code}' if code else 'succeeded'} after {after_s:.1f} s; the"
        f" process was {state}, and went on",
        error=code,
        after_s=after_s,
        kernel_s=held_s,
        state=state,
    )


def _lock(caller: Caller, probe: Probe, timeout_s: float = LOCK_WITHIN_S) -> tuple[str, float]:
    """The driver's error, "" for none, and after how many seconds."""
    begun = time.monotonic()
    try:
        caller.lock(probe, timeout_s)
    except ProbeFailed as error:
        if not error.name:
            raise
        return error.name, time.monotonic() - begun
    return "", time.monotonic() - begun


def without_cuda(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    state = Caller(bench).state(bench.probe(context=False))
    return judge(state is State.NONE, f"the driver says of it: {state}", state=state)


def root_only(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    probe = bench.probe(uid=NOBODY)
    code, _ = _lock(Caller(bench, uid=NOBODY), probe)
    state = Caller(bench).state(probe)
    return judge(
        code == str(OPERATING_SYSTEM) and state is State.RUNNING,
        f"{f'error {code}' if code else 'no error'} for its own user; afterwards it is {state}",
        error=code,
        state=state,
    )


def mps_client(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    mps = bench.serve()
    client, caller = bench.probe(mps), Caller(bench)
    if client.pid not in mps.daemon(bench.gpu.id).clients():
        return unknown("the probe is not a client of the MPS daemon")
    code, _ = _lock(caller, client)
    if not code:
        return judge(False, "a client of MPS can be locked", error="")
    client.ask("spin", s=bench.busy_s / 4)
    return judge(code == str(NOT_SUPPORTED), f"error {code}; the client goes on", error=code)


# -- a GPU that has become too full ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crowded:
    """What came of a restore to a full GPU, and of the next, once there was room again."""

    error: str  # the driver's, "" for none
    state: State  # then
    later: str  # why the next failed; "": it succeeded
    same: bool  # the contents, then

    @property
    def was_refused(self) -> bool:
        return bool(self.error) and self.state is State.CHECKPOINTED


def _crowd(bench: Bench) -> Crowded:
    mib = bench.mib(ours.LARGE_MIB)
    probe, crc = fill(bench, mib)
    caller = Caller(bench)
    caller.lock(probe)
    caller.checkpoint(probe)
    other = bench.probe()
    free_mib = bench.memory()[1]
    other.ask("allocate", mib=free_mib - mib // 2)
    try:
        caller.restore(probe)
    except ProbeFailed as error:
        if not error.name:
            raise
        code = error.name
    else:
        return Crowded("", State.LOCKED, "", same=False)
    state = caller.state(probe)
    other.end()
    bench.until(lambda its: (its.memory_free_mib or 0) >= free_mib, LISTED_WITHIN_S)
    try:
        caller.restore(probe)
        caller.unlock(probe)
    except ProbeFailed as error:
        return Crowded(code, state, str(error), same=False)
    return Crowded(code, state, "", probe.ask("read")["crc"] == crc)


def no_room(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    its = _crowd(bench)
    said = f"error {its.error}, and the process is {its.state}" if its.error else "it succeeds"
    return judge(its.was_refused, f"a restore without room: {said}", error=its.error)


def room_again(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    its = _crowd(bench)
    if not its.was_refused:
        return unknown("a restore without room is not refused, see `suspend_no_room`")
    if its.later:
        return judge(False, f"the next restore, with room: {its.later}", error=its.error)
    seen = "the same" if its.same else "not the same"
    return judge(its.same, f"the next restore succeeds; contents are {seen}", error=its.error)
