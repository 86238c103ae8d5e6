"""Checks of MPS: daemons, clients, limits, faults and kills."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

from carmad.config import Preconditions
from carmad.core.jobs.attempt import GpuId
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps, ServerState
from carmad.selftest.bench import NEAR_MIB, NOBODY, ONE_GPU, Bench, Probe, ProbeFailed
from carmad.selftest.report import Seen, judge, unknown

CONTROL = "nvidia-cuda-mps-control"
SERVED_WITHIN_S = 10.0  # again, after a fault
WITHOUT = {"collocation.mps": False}
PER_GPU = {"collocation.mps_scope": "gpu"}
CLIENTS = 4


def daemon(bench: Bench) -> Seen:
    if shutil.which(CONTROL) is None:
        return unknown(f"{CONTROL} is not on PATH")
    try:
        mps = bench.serve()
    except CarmaError as error:
        return judge(False, f"{error.message}; {error.hint}", WITHOUT)
    try:
        probe = bench.probe(mps)
    except ProbeFailed as error:
        return judge(False, f"a client cannot start: {error}", WITHOUT)
    probe.ask("spin", s=bench.busy_s / 4)
    clients = mps.daemon(bench.gpu.id).clients()
    detail = f"its clients are {sorted(clients)}; the probe is {probe.pid}"
    if not clients:
        return judge(False, "the process runs without MPS, and nothing says so", WITHOUT)
    return judge(clients == {probe.pid}, detail, WITHOUT, clients=len(clients))


def daemons(bench: Bench) -> Seen:
    other = bench.second()
    if other is None:
        return unknown(ONE_GPU)
    try:
        mps = bench.serve(bench.gpu.id, other)
    except CarmaError as error:
        return judge(False, f"{error.message}; {error.hint}", WITHOUT)
    here, there = bench.probe(mps), bench.probe(mps, gpu=other)
    for probe in (here, there):
        probe.ask("spin", s=bench.busy_s / 4)
    pairs = ((bench.gpu.id, here), (other, there))
    served = all(mps.daemon(gpu).clients() == {probe.pid} for gpu, probe in pairs)
    detail = (
        f"the daemons of two GPUs {'each serve' if served else 'do not serve'} their own client"
    )
    return judge(served, detail, WITHOUT)


def node(bench: Bench) -> Seen:
    other = bench.second()
    if other is None:
        return unknown(ONE_GPU)
    try:
        mps = bench.serve(bench.gpu.id, other, one=True)
    except CarmaError as error:
        return judge(False, f"{error.message}; {error.hint}", PER_GPU)
    faulty, neighbour = bench.probe(mps), bench.probe(mps)
    elsewhere = bench.probe(mps, gpu=other)
    served = mps.daemon(other).clients()
    if served != {faulty.pid, neighbour.pid, elsewhere.pid}:
        detail = f"of three clients on two GPUs, one daemon serves {len(served)}"
        return judge(False, detail, PER_GPU, clients=len(served))
    neighbour.begin("spin", s=4 * bench.busy_s)
    elsewhere.begin("spin", s=bench.busy_s)
    time.sleep(bench.busy_s / 4)
    _error(faulty, "fault")
    near, far = _answer(neighbour), _answer(elsewhere)
    refused = not _serves(bench, mps, other)
    for probe in (faulty, neighbour):
        probe.end()
    recovered = _comes_back(bench, mps, other)
    detail = (
        f"a fault on one GPU ended {'the other client' if near else 'no other client'} there and"
        f" {'the' if far else 'not the'} one on the other GPU; meanwhile, a new client on the other"
        f" GPU was {'refused' if refused else 'served'}, and afterwards it is"
        f" {'served' if recovered else 'refused'}"
    )
    return judge(
        bool(near) and not far and refused and recovered,
        detail,
        PER_GPU if far or not recovered else None,
        neighbour_error=near,
        elsewhere_error=far,
        refused=refused,
        recovered=recovered,
    )


def multiuser(bench: Bench) -> Seen:
    if os.geteuid() != 0:
        return unknown("only root may start a server for several users")
    try:
        mps = bench.serve(multiuser=True)
    except CarmaError as error:
        said = f"{error.message}; {error.hint}"
        return judge(False, said, {"collocation.mps_multiuser": False})
    one, other = bench.probe(mps), bench.probe(mps, uid=NOBODY)
    clients = mps.daemon(bench.gpu.id).clients()
    return judge(
        {one.pid, other.pid} <= clients,
        f"clients of two users: {len(clients)} served",
        {"collocation.mps_multiuser": False},
        clients=len(clients),
    )


def fault(bench: Bench) -> Seen:
    mps = bench.serve()
    faulty, neighbour, outside = bench.probe(mps), bench.probe(mps), bench.probe()
    neighbour.begin("spin", s=4 * bench.busy_s)
    outside.begin("spin", s=bench.busy_s)
    time.sleep(bench.busy_s / 4)
    own = _error(faulty, "fault")
    theirs = _answer(neighbour)
    state = mps.daemon(bench.gpu.id).state()
    others = _answer(outside)
    for probe in (faulty, neighbour):
        probe.end()
    recovered = _comes_back(bench, mps)
    detail = (
        f"an illegal address ended its own process ({own or 'no error'}) and"
        f" {'the other client' if theirs else 'no other client'} ({theirs or 'no error'}),"
        f" {'and' if others else 'not'} one outside of MPS; the server's state: {state or 'none'};"
        f" a new client is {'served' if recovered else 'refused'} afterwards"
    )
    return judge(
        bool(own and theirs) and not others and state is ServerState.FAULT and recovered,
        detail,
        WITHOUT if others or not recovered else None,
        own_error=own,
        neighbour_error=theirs,
        outside_error=others,
        state=str(state or ""),
        recovered=recovered,
    )


def _comes_back(bench: Bench, mps: Mps, gpu: GpuId | None = None) -> bool:
    """Whether a new client is served once all that the fault has hit are gone."""
    deadline = time.monotonic() + SERVED_WITHIN_S
    while time.monotonic() < deadline:
        if _serves(bench, mps, gpu):
            return True
        time.sleep(0.5)
    return False


def _serves(bench: Bench, mps: Mps, gpu: GpuId | None) -> bool:
    """Whether a new client runs kernels."""
    try:
        bench.probe(mps, gpu=gpu).ask("spin", s=0.1)
    except ProbeFailed:
        return False
    return True


def terminate(bench: Bench) -> Seen:
    mps = bench.serve()
    cancelled, neighbour = bench.probe(mps), bench.probe(mps)
    cancelled.begin("spin", s=4 * bench.busy_s)
    neighbour.begin("spin", s=bench.busy_s)
    time.sleep(bench.busy_s / 4)
    disconnected = mps.daemon(bench.gpu.id).terminate(cancelled.pid)
    cancelled.kill()
    harm = _answer(neighbour) or _error(neighbour, "spin", s=bench.busy_s / 4)
    detail = (
        f"a busy client was {'' if disconnected else 'not '}disconnected and then killed;"
        f" its neighbour {'ended with ' + harm if harm else 'went on'}"
    )
    return judge(
        disconnected and not harm,
        detail,
        WITHOUT if harm else None,
        disconnected=disconnected,
        neighbour_error=harm,
    )


def contexts(bench: Bench) -> Seen:
    """Bare ones, after a first kernel: libraries, PyTorch's too, take more."""
    alone = _growth(bench, [None])
    try:
        mps = bench.serve()
    except CarmaError as error:
        served: list[int] = []
        why = f"; MPS: {error.message}"
    else:
        served = _growth(bench, [mps] * CLIENTS)
        why = f"; clients of MPS: {', '.join(f'{mib} MiB' for mib in served)}, server included"
    expected = bench.settings.estimation.any_context_mib
    largest = max([*alone, *served[1:]])
    settings = {"estimation.context_mib": _round(largest)}
    if largest > (bench.settings.preconditions or Preconditions()).min_free_mib:
        settings["preconditions.min_free_mib"] = 2 * _round(largest)
    return judge(
        largest <= expected,
        f"without MPS {alone[0]} MiB{why}; {expected} MiB are reckoned with, libraries included",
        settings,
        context_mib=alone[0],
        **{f"mps_client_{n}_mib": mib for n, mib in enumerate(served, 1)},
    )


def _growth(bench: Bench, served: Sequence[Mps | None]) -> list[int]:
    """By how many MiB each context made the GPU's memory grow."""
    grown = []
    for mps in served:
        before = bench.memory()[0]
        bench.probe(mps).ask("spin", s=0.1)
        grown.append(bench.memory()[0] - before)
    return grown


def _round(mib: int) -> int:
    return -(-(mib + NEAR_MIB) // 64) * 64


def _answer(probe: Probe) -> str:
    """The error of what it had begun; "" for none."""
    try:
        probe.answer()
    except ProbeFailed as error:
        return error.name or str(error)
    return ""


def _error(probe: Probe, do: str, **words: float) -> str:
    probe.begin(do, **words)
    return _answer(probe)
