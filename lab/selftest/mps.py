"""Checks of MPS on which no setting depends: UUIDs, two users, memory limits."""

from __future__ import annotations

import os

from carmad.selftest.bench import NOBODY, Bench, ProbeFailed, Silent
from carmad.selftest.report import Seen, judge, unknown
from lab.selftest.memory import OOM

REFUSED_WITHIN_S = 5.0  # a client of another user is expected to wait at least so long


def names_gpu(bench: Bench) -> Seen:
    mps = bench.serve()
    try:
        its = bench.probe(mps).ask("context")["uuid"]
    except ProbeFailed as error:
        return judge(False, f"CUDA_VISIBLE_DEVICES={bench.gpu.id}: {error}")
    wanted = bench.gpu.id.partition("-")[2]
    return judge(its == wanted, f"CUDA_VISIBLE_DEVICES={bench.gpu.id} gives {its}")


def two_users(bench: Bench) -> Seen:
    if os.geteuid() != 0:
        return unknown("only root can run processes of two users")
    mps = bench.serve()
    first = bench.probe(mps)
    second = bench.probe(mps, uid=NOBODY, context=False)
    try:
        second.ask("context", within_s=REFUSED_WITHIN_S)
    except Silent:
        first.end()
        second.answer()
        return judge(True, "it waits, and is served when the first user's client has ended")
    except ProbeFailed as error:
        return judge(False, f"it does not wait, but fails: {error}", error=str(error))
    if second.pid in mps.daemon(bench.gpu.id).clients():
        return judge(False, "it is served at once, beside the first user's")
    return judge(False, "it runs at once, without MPS")


def limit(bench: Bench) -> Seen:
    mps = bench.serve()
    most = bench.mib(4096)
    probe = bench.probe(mps, limit_mib=most)
    got = 0
    step = most // 8
    try:
        while got < 2 * most:
            probe.ask("allocate", mib=step)
            got += step
    except ProbeFailed as error:
        held = error.name == OOM and most // 2 <= got <= most
        detail = f"with a limit of {most} MiB, {got} MiB were allocated, then {error.name}"
        return judge(held, detail, limit_mib=most, allocated_mib=got, error=error.name)
    detail = f"with a limit of {most} MiB, {got} MiB were allocated without an error"
    return judge(False, detail, limit_mib=most, allocated_mib=got, error="")
