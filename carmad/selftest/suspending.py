"""Checks of suspending a process (CUDA's process checkpoint), and the settings that follow."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from carmad.configwriting import Setting
from carmad.core.suspending import cost_s
from carmad.core.types import GpuId
from carmad.gpu.checkpoint import NOT_READY, NOT_SUPPORTED, OPERATING_SYSTEM, State
from carmad.selftest import suspension
from carmad.selftest.bench import LISTED_WITHIN_S, NEAR_MIB, Bench, Probe, ProbeFailed
from carmad.selftest.mps import NOBODY, ONE_GPU
from carmad.selftest.report import Seen, judge, unknown
from carmad.selftest.suspension import Caller, available_mib, fill, refusal, run_cycle

LARGE_MIB = 4096
HOLD_S, REFUSED_AFTER_S = 3.0, 0.5  # a kernel's duration, and the timeout of a lock meanwhile
STOPPED_S = 0.5
TOO_LONG = 1.25  # times what `[suspend]` says
TURNS = 2  # of a measurement: the slower counts
GIB = 1024  # MiB
WITHOUT = {"suspend.host_memory_mib": 0}


def api(bench: Bench) -> Seen:
    if bench.gpu.is_mig:
        return unknown(suspension.ON_MIG)
    try:
        Caller(bench).open()
    except ProbeFailed as error:
        if error.name != str(NOT_SUPPORTED):
            raise
        return judge(False, str(error), WITHOUT)
    return judge(True, "libcuda offers process checkpoint")


def cycle(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    try:
        its = run_cycle(bench, suspension.WRITTEN_MIB)
    except ProbeFailed as error:
        return judge(False, str(error), WITHOUT)
    return judge(
        True,
        f"with {its.held_mib} MiB: lock {its.lock_s:.3f} s, checkpoint {its.checkpoint_s:.2f} s,"
        f" restore {its.restore_s:.2f} s, unlock {its.unlock_s:.3f} s",
        held_mib=its.held_mib,
        lock_s=its.lock_s,
        checkpoint_s=its.checkpoint_s,
        restore_s=its.restore_s,
        unlock_s=its.unlock_s,
    )


def frees(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    its = run_cycle(bench, bench.mib(LARGE_MIB))
    in_list = {True: "it is listed", False: "it is not listed", None: "no pids are listed here"}
    return judge(
        its.frees,
        f"of {its.held_mib} MiB, {its.left_mib} MiB stay in use while it is suspended;"
        f" {in_list[its.listed]}; its memory on the host grew by {its.host_mib} MiB",
        WITHOUT,
        held_mib=its.held_mib,
        left_mib=its.left_mib,
        listed=its.listed,
        host_mib=its.host_mib,
    )


def contents(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    same = run_cycle(bench, suspension.WRITTEN_MIB).same
    seen = "the same" if same else "another"
    return judge(same, f"{suspension.WRITTEN_MIB} MiB have {seen} checksum afterwards", WITHOUT)


def stopped(bench: Bench) -> Seen:
    """As the daemon does: frozen once it is suspended, and thawed before it resumes."""
    if why := refusal(bench):
        return unknown(why)
    probe, crc = fill(bench, suspension.WRITTEN_MIB)
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
        return judge(False, str(error), WITHOUT)
    same = probe.ask("read")["crc"] == crc
    seen = "the same" if same else "not the same"
    return judge(same, f"stopped and continued meanwhile, it resumes; contents are {seen}", WITHOUT)


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


def _lock(
    caller: Caller, probe: Probe, timeout_s: float = suspension.LOCK_WITHIN_S
) -> tuple[str, float]:
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
    if client.pid not in mps.clients(bench.gpu.id):
        return unknown("the probe is not a client of the MPS daemon")
    code, _ = _lock(caller, client)
    if not code:
        return judge(False, "a client of MPS can be locked", error="")
    client.ask("spin", s=bench.busy_s / 4)
    return judge(code == str(NOT_SUPPORTED), f"error {code}; the client goes on", error=code)


# -- a GPU that has become too full, and another GPU -----------------------------------------------


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
    mib = bench.mib(LARGE_MIB)
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


def moves(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    other = bench.second()
    if other is None:
        return unknown(ONE_GPU)
    kinds = {gpu.id: gpu.name for gpu in bench.source.discover()}
    if kinds[other] != bench.gpu.name:
        return unknown("the other GPU is of another kind")
    try:
        here_mib, there_mib, same = _move(bench, other)
    except ProbeFailed as error:
        return judge(False, f"it cannot move: {error}", {"suspend.moves": False})
    seen = "the same" if same else "not the same"
    found = judge(
        there_mib >= suspension.WRITTEN_MIB and here_mib <= NEAR_MIB and same,
        f"{there_mib} MiB came to the other GPU, {here_mib} MiB stayed; contents are {seen}",
        {"suspend.moves": False},
        moved_mib=there_mib,
        stayed_mib=here_mib,
    )
    return found if found.settings else _with(found, {"suspend.moves": True})


def _move(bench: Bench, other: GpuId) -> tuple[int, int, bool]:
    """MiB by which the GPUs' memory has grown, and whether the contents are the same."""
    gpus = (bench.gpu.id, other)
    before = _used_mib(bench, gpus)
    probe, crc = fill(bench, suspension.WRITTEN_MIB)
    caller = Caller(bench)
    caller.lock(probe)
    caller.checkpoint(probe)
    caller.restore(probe, [gpus, gpus[::-1]])
    caller.unlock(probe)
    here, there = (now - then for now, then in zip(_used_mib(bench, gpus), before, strict=True))
    return here, there, probe.ask("read")["crc"] == crc


def _used_mib(bench: Bench, gpus: Sequence[GpuId]) -> list[int]:
    used = {its.gpu: its.memory_used_mib or 0 for its in bench.source.sample(time.time())}
    return [used[gpu] for gpu in gpus]


# -- how fast, and the settings that follow --------------------------------------------------------


def speed(bench: Bench) -> Seen:
    """Proposes all of `[suspend]` but `moves` where no job is suspended yet, and otherwise what is
    too low. Conservative: the bandwidth is that of a few GiB, with the fixed time in it, and
    `fixed_s` that of a context and a little more."""
    if why := refusal(bench):
        return unknown(f"{why}: no settings are proposed")
    try:
        small, large = (
            [run_cycle(bench, mib) for _ in range(TURNS)]
            for mib in (suspension.WRITTEN_MIB, bench.mib(LARGE_MIB))
        )
    except ProbeFailed as error:
        return unknown(f"{error}: no settings are proposed")
    if fault := next((its.fault for its in (*small, *large) if its.fault), ""):
        return unknown(f"{fault}: no settings are proposed")
    out_mib_s = _floor(min(its.held_mib / its.out_s for its in large), 100)
    in_mib_s = _floor(min(its.held_mib / its.in_s for its in large), 100)
    fixed_s = math.ceil(10 * max(max(its.out_s, its.in_s) for its in small)) / 10
    host_mib = available_mib() // (2 * GIB) * GIB  # half, in whole GiB
    its, had = large[0], bench.settings.suspend
    measured: dict[str, Setting] = {
        "suspend.out_mib_s": out_mib_s,
        "suspend.in_mib_s": in_mib_s,
        "suspend.fixed_s": fixed_s,
    }
    took_s = min(each.out_s + each.in_s for each in large)
    expected_s = cost_s(its.held_mib, had)
    found = judge(
        took_s <= TOO_LONG * expected_s,
        f"{its.held_mib} MiB, out and in: {took_s:.1f} s, {expected_s:.1f} s by `[suspend]`."
        f" {out_mib_s} MiB/s out, {in_mib_s} MiB/s in; {small[0].held_mib} MiB take {fixed_s:g} s"
        f" at most each way. Half of the host's free memory is {host_mib} MiB",
        measured,
        held_mib=its.held_mib,
        out_mib_s=out_mib_s,
        in_mib_s=in_mib_s,
        fixed_s=fixed_s,
        small_mib=small[0].held_mib,
        took_s=took_s,
    )
    if had.host_memory_mib or not host_mib:
        return found
    return _with(found, {"suspend.host_memory_mib": host_mib, **measured})


def _floor(value: float, step: int) -> int:
    """To a multiple of `step`, or of 1 below that."""
    return int(value // step * step) or max(1, int(value))


def _with(found: Seen, settings: dict[str, Setting]) -> Seen:
    """With these settings to propose, whatever was found."""
    return replace(found, settings=settings)
