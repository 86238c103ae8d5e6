"""The driver's memory limits of a cgroup (NVML, from driver 615 on): are they kept, and can they be
changed while a process of the cgroup runs?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pynvml

from carmad.attempt import cgroup
from carmad.selftest.bench import Bench, Probe, ProbeFailed
from carmad.selftest.report import Seen, judge, unknown
from lab.selftest.memory import NO_CGROUP, OOM

HARD_MIB = 2048
STEP_MIB, STEPS_OF_OTHERS_MIB = 128, 512
NONE = "the driver has no memory limits"
LACKING = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED)


def check(under_mps: bool, bench: Bench) -> Seen:
    if os.geteuid() != 0:
        return unknown("only root may set memory limits")
    if not hasattr(pynvml, "nvmlDeviceSetMemoryLimits_v1"):
        return unknown("this nvidia-ml-py knows no memory limits: 13.615 does")
    if not _are_there(bench):
        return unknown(NONE)
    with _group(bench) as group:
        if group is None:
            return unknown(NO_CGROUP)
        return _check(bench, group, under_mps)


def _are_there(bench: Bench) -> bool:
    """Whether the driver has such limits: it says so even when asked about no cgroup."""
    try:
        _limit(bench, Path("/nonexistent"), 0, None)
    except pynvml.NVMLError as error:
        return error.value not in LACKING
    return True


def _check(bench: Bench, group: Path, under_mps: bool) -> Seen:
    hard_mib = bench.mib(HARD_MIB)
    _limit(bench, group, 0, hard_mib)
    probe = bench.probe(bench.serve() if under_mps else None, context=False)
    with (group / "cgroup.procs").open("a") as members:
        members.write(f"{probe.pid}\n")
    probe.ask("context")
    total_mib = probe.ask("memory")["total_mib"]
    got_mib = _take(probe, 2 * hard_mib)
    _limit(bench, group, 0, 2 * hard_mib)
    more_mib = _take(probe, 2 * hard_mib)
    lowered = _lower(bench, group, hard_mib // 2)
    after_mib = _take(probe, STEP_MIB)
    probe.ask("spin", s=0.1)
    # What it has, and a soft limit that guarantees more.
    probe.ask("free")
    _limit(bench, group, hard_mib, None)
    other = bench.probe()
    others_mib = _take(other, bench.gpu.memory_mib, STEPS_OF_OTHERS_MIB)
    soft_mib = _take(probe, hard_mib // 2)
    hard_is_kept = got_mib <= hard_mib < got_mib + more_mib <= 2 * hard_mib
    soft_is_kept = soft_mib >= hard_mib // 2
    return judge(
        hard_is_kept and soft_is_kept,
        f"with a hard limit of {hard_mib} MiB, {got_mib} MiB could be allocated, and"
        f" {more_mib} MiB more once it was twice that; to lower it below what is in use was"
        f" {lowered}, and {after_mib} MiB could be allocated then; the process is told of"
        f" {total_mib} MiB in all. With a soft limit of {hard_mib} MiB, another process took"
        f" {others_mib} MiB, and {soft_mib} of {hard_mib // 2} MiB could still be allocated",
        hard_mib=hard_mib,
        allocated_mib=got_mib,
        allocated_later_mib=more_mib,
        lowered=lowered,
        allocated_after_mib=after_mib,
        total_told_mib=total_mib,
        others_mib=others_mib,
        soft_allocated_mib=soft_mib,
    )


@contextlib.contextmanager
def _group(bench: Bench) -> Iterator[Path | None]:
    """A cgroup of its own, which is gone afterwards, with its limits; None: none can be made."""
    own = cgroup.own_cgroup()
    group = Path(own or "/nonexistent", f"carma-visit-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        bench.clear()  # nothing can be removed that has processes
        with contextlib.suppress(OSError):
            group.rmdir()


def _limit(bench: Bench, group: Path, soft_mib: int, hard_mib: int | None) -> None:
    """Raises NVMLError. `hard_mib`: None for no limit."""
    most = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace = str(group).encode()
    limits.softLimit = soft_mib << 20
    limits.hardLimit = most if hard_mib is None else hard_mib << 20
    device = pynvml.nvmlDeviceGetHandleByUUID(bench.gpu.id)
    pynvml.nvmlDeviceSetMemoryLimits_v1(device, limits)


def _lower(bench: Bench, group: Path, hard_mib: int) -> str:
    try:
        _limit(bench, group, 0, hard_mib)
    except pynvml.NVMLError as error:
        return f"refused ({error})"
    return "accepted"


def _take(probe: Probe, mib: int, step_mib: int = STEP_MIB) -> int:
    """How much it can allocate, up to so much, in steps. Raises ProbeFailed for another error than
    being out of memory."""
    got_mib = 0
    try:
        while got_mib < mib:
            probe.ask("allocate", mib=step_mib)
            got_mib += step_mib
    except ProbeFailed as error:
        if error.name != OOM:
            raise
    return got_mib
