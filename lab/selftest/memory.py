"""Checks of memory and of the lists of processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from carmad.attempt import cgroup
from carmad.attempt.proc import tell_kernel
from carmad.core.jobs.attempt import MemoryLimits
from carmad.gpu.limits import set_limits
from carmad.selftest.bench import (
    ENDED_WITHIN_S,
    LISTED_WITHIN_S,
    NEAR_MIB,
    Bench,
    Probe,
    ProbeFailed,
)
from carmad.selftest.report import Seen, judge, unknown

LARGE_MIB = 4096
SPARE_MIB = 256  # what the driver may keep of what is free
OOM = "CUDA_ERROR_OUT_OF_MEMORY"
GONE_WITHIN_S = 10.0  # as long as a daemon waits for a job's memory to come back
LOOK_S = 0.02
GUARANTEES = "collocation.guarantee_memory"
NO_LIMITS = (
    "the driver has no memory limits per cgroup (they came with R615, not for MIG instances), or"
    " this process may not set them: only root may"
)
NO_CGROUP = "no cgroup (version 2) can be created here"
PIDS_HIDDEN = "the driver does not list our processes by their pids: is this a container?"


@cache
def lists_pids(bench: Bench) -> bool:
    """Whether the driver lists a process with a context by the pid that it has here. In a container
    it may list those of the host, or none."""
    before = bench.memory()[0]
    probe = bench.probe()
    found = bench.until(lambda sample: bench.use(probe, sample), LISTED_WITHIN_S)
    probe.end()
    back = before + NEAR_MIB
    bench.until(lambda sample: (sample.memory_used_mib or 0) <= back, ENDED_WITHIN_S)
    return found is not None


def totals(bench: Bench) -> Seen:
    probe = bench.probe()
    used_before, free_before = bench.memory()
    mib = bench.mib(LARGE_MIB)
    probe.ask("allocate", mib=mib)
    used, free = bench.memory()
    told = probe.ask("memory")["free_mib"]
    grown, shrunk = used - used_before, free_before - free
    smi = _nvidia_smi(bench)
    agree = [abs(grown - mib), abs(shrunk - mib), abs(free - told)]
    agree += [abs(used - smi)] if smi is not None else []
    fits = _fits(bench, free - SPARE_MIB)
    detail = (
        f"{mib} MiB allocated: used grew by {grown} MiB, free shrank by {shrunk} MiB; of {free} MiB"
        f" free, {free - SPARE_MIB} MiB could {'' if fits else 'not '}be allocated"
    )
    return judge(
        max(agree) <= NEAR_MIB and fits,
        detail,
        allocated_mib=mib,
        used_grew_mib=grown,
        free_shrank_mib=shrunk,
        free_nvml_mib=free,
        free_cuda_mib=told,
        free_can_be_allocated=fits,
        used_nvml_mib=used,
        used_nvidia_smi_mib=smi,
    )


def _fits(bench: Bench, mib: int) -> bool:
    """Whether a process of its own, less its context, gets so much, and no more than the spare."""
    before = bench.memory()[0]
    probe = bench.probe()
    its = bench.memory()[0] - before
    try:
        probe.ask("allocate", mib=mib - its)
    except ProbeFailed as error:
        if error.name != OOM:
            raise
        return False
    try:
        probe.ask("allocate", mib=2 * SPARE_MIB)
    except ProbeFailed as error:
        return error.name == OOM
    return False


def _nvidia_smi(bench: Bench) -> int | None:
    if bench.gpu.is_mig or shutil.which("nvidia-smi") is None:
        return None
    asked = subprocess.run(
        [
            "nvidia-smi",
            f"--id={bench.gpu.id}",
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    said = asked.stdout.strip()
    return int(said) if said.isdecimal() else None


def of_process(bench: Bench) -> Seen:
    if not lists_pids(bench):
        return unknown(PIDS_HIDDEN)
    before = bench.memory()[0]
    probe = bench.probe()
    context = bench.memory()[0] - before
    mib = bench.mib(LARGE_MIB)
    probe.ask("allocate", mib=mib)
    grown = bench.memory()[0] - before
    use = bench.use(probe)
    if use is None or use.memory_mib is None:
        return judge(False, "the process is not listed with its memory", gpu_grew_mib=grown)
    detail = f"the GPU's memory grew by {grown} MiB, the process has {use.memory_mib} MiB"
    return judge(
        abs(use.memory_mib - grown) <= NEAR_MIB,
        detail,
        allocated_mib=mib,
        context_mib=context,
        gpu_grew_mib=grown,
        process_mib=use.memory_mib,
    )


def leaves(bench: Bench) -> Seen:
    if not lists_pids(bench):
        return unknown(PIDS_HIDDEN)
    before = bench.memory()[0]
    probe = bench.probe()
    mib = bench.mib(2 * LARGE_MIB)
    probe.ask("allocate", mib=mib)
    probe.begin("spin", s=60)
    if bench.until(lambda sample: bench.use(probe, sample), bench.busy_s) is None:
        return unknown(f"the probe was not listed within {bench.busy_s:g} s")
    time.sleep(bench.busy_s / 4)
    probe.kill()
    killed = time.monotonic()
    left_s = back_s = held_mib = None
    while time.monotonic() - killed < GONE_WITHIN_S and None in (left_s, back_s):
        pids, more = bench.source.pids(bench.gpu.id), bench.memory()[0] - before
        after = time.monotonic() - killed
        if left_s is None and pids is not None and probe.pid not in pids:
            left_s, held_mib = after, more
        if back_s is None and more <= NEAR_MIB:
            back_s = after
        time.sleep(LOOK_S)
    if left_s is None or held_mib is None:
        detail = f"killed while busy, it is still listed after {GONE_WITHIN_S:g} s"
        return judge(False, detail, allocated_mib=mib, memory_back_s=back_s)
    detail = f"killed while busy, it left the list after {left_s:.2f} s"
    detail += "" if back_s is None else f", and its memory was free after {back_s:.2f} s"
    return judge(
        held_mib <= NEAR_MIB,
        detail,
        allocated_mib=mib,
        left_list_s=left_s,
        memory_back_s=back_s,
        held_when_it_left_mib=held_mib,
    )


def mps_lists(bench: Bench) -> Seen:
    if not lists_pids(bench):
        return unknown(PIDS_HIDDEN)
    mps = bench.serve()
    before = bench.memory()[0]
    one, other = bench.probe(mps), bench.probe(mps)
    wanted = {one: bench.mib(1024), other: bench.mib(2048)}
    for probe, mib in wanted.items():
        probe.ask("allocate", mib=mib)
    pids = {one.pid, other.pid}
    if not pids <= mps.daemon(bench.gpu.id).clients():
        return unknown("the probes are not clients of the MPS daemon")
    sample = bench.sample()
    uses = [use for use in sample.processes if use.pid in pids]
    listed = {use.pid: use.memory_mib or 0 for use in uses}
    others = [use for use in sample.processes if use.pid not in pids]  # the server
    server = sum(use.memory_mib or 0 for use in others)
    grown = (sample.memory_used_mib or 0) - before
    whole = abs(sum(listed.values()) + server - grown) <= 2 * NEAR_MIB
    right = whole and all(wanted[p] <= listed.get(p.pid, 0) for p in wanted)
    said = ", ".join(f"{listed.get(p.pid, 'no')} MiB for {wanted[p]} allocated" for p in wanted)
    return judge(
        len(uses) == 2 and right,
        f"two clients are listed {len(uses)} times: {said}",
        clients_listed=len(uses),
        others_listed=len(others),
        server_mib=server,
        gpu_grew_mib=grown,
    )


def limits(bench: Bench) -> Seen:
    if not bench.gpu.guarantees:
        return unknown(NO_LIMITS)
    with _new_cgroup() as group:
        if group is None:
            return unknown(NO_CGROUP)
        probe, other = bench.probe(context=False), bench.probe()
        try:
            return _limits(bench, group, probe, other)
        finally:
            probe.end()  # or the cgroup could not be removed


def _limits(bench: Bench, group: str, probe: Probe, other: Probe) -> Seen:
    mib = bench.mib(LARGE_MIB)
    guaranteed, most = 2 * mib, 3 * mib
    if why := set_limits(group, MemoryLimits(bench.gpu.id, guaranteed, most)):
        return judge(False, f"limits cannot be set: {why}", {GUARANTEES: False})
    tell_kernel(f"{group}/cgroup.procs", b"%d" % probe.pid)
    before = bench.memory()[0]
    probe.ask("context")
    fits = _gets(probe, mib)
    used, free = bench.memory()
    refused = not _gets(probe, most)
    kept = not _gets(other, free - (guaranteed - (used - before)) // 2)
    set_limits(group, MemoryLimits(bench.gpu.id))
    raised = _gets(probe, most)
    detail = (
        f"a process limited to {most} MiB could {'not ' if refused else ''}allocate more; another"
        f" could {'not ' if kept else ''}take a part of what it was guaranteed; the limit could"
        f" {'' if raised else 'not '}be raised while it ran"
    )
    seen = judge(
        fits and refused and kept and raised,
        detail,
        {GUARANTEES: False},
        within_limit_allocated=fits,
        beyond_limit_refused=refused,
        guarantee_kept=kept,
        raised_while_running=raised,
    )
    return seen if seen.settings else replace(seen, settings={GUARANTEES: True})


@contextlib.contextmanager
def _new_cgroup() -> Iterator[str | None]:
    """None: there can be none."""
    own = cgroup.own_cgroup()
    made = own and cgroup.create(f"{own}/carma-selftest-{os.getpid()}", {})
    try:
        yield made or None
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(made)  # noqa: PTH106 - only it: it has no files of ours


def _gets(probe: Probe, mib: int) -> bool:
    try:
        probe.ask("allocate", mib=mib)
    except ProbeFailed as error:
        if error.name != OOM:
            raise
        return False
    return True
