"""Checks of suspending a process (CUDA's process checkpoint) as the daemon does, which also has it
stopped meanwhile; and the settings that follow."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from carmad.configwriting import Setting
from carmad.core.jobs.attempt import GpuId
from carmad.core.jobs.control import cost_s
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.cuda_state import Moves, Outcome
from carmad.selftest.bench import LISTED_WITHIN_S, NEAR_MIB, ONE_GPU, Bench, Probe, ProbeFailed
from carmad.selftest.report import Seen, judge, unknown

WRITTEN_MIB = 256  # of what a process has
LARGE_MIB = 4096
LOCK_WITHIN_S, WITHIN_S = 5.0, 60.0  # of a few GiB; what takes longer hangs
STOPPED_S = 0.1
TOO_LONG = 1.25  # times what `[suspend]` says
TURNS = 2  # of a measurement: the slower counts
GIB = 1024  # MiB
ON_MIG = "jobs on a MIG instance cannot be suspended"
NOT_ROOT = "only root may suspend processes"
WITHOUT = {"suspend.host_memory_mib": 0}


def refusal(bench: Bench) -> str:
    """Why nothing is tried here; "" if it can be."""
    return ON_MIG if bench.gpu.is_mig else "" if os.geteuid() == 0 else NOT_ROOT


@dataclass(frozen=True, slots=True)
class Cycle:
    """A process that was suspended and resumed. `listed`: as one of the GPU's, meanwhile."""

    held_mib: int
    left_mib: int  # while it was suspended
    listed: bool
    same: bool  # its contents, afterwards
    out_s: float
    in_s: float

    @property
    def fault(self) -> str:
        """What is not as it has to be; "" for nothing."""
        if not self.same:
            return "the contents of its memory are not the same afterwards"
        freed = self.left_mib <= NEAR_MIB and not self.listed
        return "" if freed else "its memory is not free while it is suspended"


def run_cycle(bench: Bench, mib: int) -> Cycle:
    """Of a process that has allocated so much, at least WRITTEN_MIB. Raises ProbeFailed."""
    before = bench.memory()[0]
    probe, crc = fill(bench, mib)
    held_mib = bench.memory()[0] - before
    out_s = suspend(probe)
    gone = bench.until(lambda its: (its.memory_used_mib or 0) <= before + NEAR_MIB, LISTED_WITHIN_S)
    left_mib = 0 if gone else bench.memory()[0] - before
    listed = bench.use(probe) is not None
    process = psutil.Process(probe.pid)
    process.suspend()
    time.sleep(STOPPED_S)
    process.resume()
    in_s = resume(probe)
    same = probe.ask("read")["crc"] == crc
    probe.end()
    bench.until(lambda its: (its.memory_used_mib or 0) <= before + NEAR_MIB, LISTED_WITHIN_S)
    return Cycle(held_mib, left_mib, listed, same, out_s, in_s)


def fill(bench: Bench, mib: int) -> tuple[Probe, int]:
    """A probe that has allocated so much, and the checksum of what it has written there."""
    probe = bench.probe()
    crc: int = probe.ask("write", mib=WRITTEN_MIB)["crc"]
    if mib > WRITTEN_MIB:
        probe.ask("allocate", mib=mib - WRITTEN_MIB)
    return probe, crc


def suspend(probe: Probe) -> float:
    """Returns the seconds that it took. Raises ProbeFailed."""
    begun = time.monotonic()
    _check(Checkpoints().suspend(lambda: [probe.pid], LOCK_WITHIN_S, WITHIN_S))
    return time.monotonic() - begun


def resume(probe: Probe, moves: Moves = ()) -> float:
    """Returns the seconds that it took. Raises ProbeFailed."""
    begun = time.monotonic()
    _check(Checkpoints().resume([probe.pid], moves, WITHIN_S))
    return time.monotonic() - begun


def _check(outcome: Outcome) -> None:
    if not outcome.done:
        raise ProbeFailed(outcome.why)


def cycle(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    try:
        its = run_cycle(bench, bench.mib(LARGE_MIB))
    except ProbeFailed as error:
        return judge(False, str(error), WITHOUT)
    return judge(
        not its.fault,
        f"{its.held_mib} MiB went out in {its.out_s:.2f} s and came back in {its.in_s:.2f} s; "
        + (its.fault or "they were free meanwhile, and are the same"),
        WITHOUT,
        held_mib=its.held_mib,
        left_mib=its.left_mib,
        out_s=its.out_s,
        in_s=its.in_s,
    )


def moves(bench: Bench) -> Seen:
    if why := refusal(bench):
        return unknown(why)
    other = bench.second()
    if other is None:
        return unknown(ONE_GPU)
    kinds = {gpu.id: gpu.name for gpu in bench.source.discover()}
    if kinds[other] != bench.gpu.name:
        return unknown("the other GPU is of another kind")
    gpus = (bench.gpu.id, other)
    before = _used_mib(bench, gpus)
    probe, crc = fill(bench, WRITTEN_MIB)
    suspend(probe)
    try:
        resume(probe, [gpus, gpus[::-1]])
    except ProbeFailed as error:
        return judge(False, f"it cannot move: {error}", {"suspend.moves": False})
    here, there = (now - then for now, then in zip(_used_mib(bench, gpus), before, strict=True))
    same = probe.ask("read")["crc"] == crc
    seen = "the same" if same else "not the same"
    found = judge(
        there >= WRITTEN_MIB and here <= NEAR_MIB and same,
        f"{there} MiB came to the other GPU, {here} MiB stayed; contents are {seen}",
        {"suspend.moves": False},
        moved_mib=there,
        stayed_mib=here,
    )
    return found if found.settings else replace(found, settings={"suspend.moves": True})


def _used_mib(bench: Bench, gpus: Sequence[GpuId]) -> list[int]:
    used = {its.gpu: its.memory_used_mib or 0 for its in bench.source.sample(time.time())}
    return [used[gpu] for gpu in gpus]


def speed(bench: Bench) -> Seen:
    """Proposes all of `[suspend]` but `moves` where no job is suspended yet, and otherwise what is
    too low. Conservative: the bandwidth is that of a few GiB, with the fixed time in it, and
    `fixed_s` that of a context and a little more."""
    if why := refusal(bench):
        return unknown(f"{why}: no settings are proposed")
    try:
        small, large = (
            [run_cycle(bench, mib) for _ in range(TURNS)]
            for mib in (WRITTEN_MIB, bench.mib(LARGE_MIB))
        )
    except ProbeFailed as error:
        return unknown(f"{error}: no settings are proposed")
    if fault := next((its.fault for its in (*small, *large) if its.fault), ""):
        return unknown(f"{fault}: no settings are proposed")
    out_mib_s = _floor(min(its.held_mib / its.out_s for its in large), 100)
    in_mib_s = _floor(min(its.held_mib / its.in_s for its in large), 100)
    fixed_s = math.ceil(10 * max(max(its.out_s, its.in_s) for its in small)) / 10
    host_mib = (psutil.virtual_memory().available >> 20) // (2 * GIB) * GIB  # half, in whole GiB
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
    return replace(found, settings={"suspend.host_memory_mib": host_mib, **measured})


def _floor(value: float, step: int) -> int:
    """To a multiple of `step`, or of 1 below that."""
    return int(value // step * step) or max(1, int(value))
