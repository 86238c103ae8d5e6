"""Checks of MPS: daemons, clients, limits, faults and kills."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

from carmad.config import Preconditions
from carmad.core.types import GpuId
from carmad.errors import CarmaError
from carmad.gpu.mps import Mps, ServerState
from carmad.selftest.bench import NEAR_MIB, Bench, Probe, ProbeFailed, Silent
from carmad.selftest.memory import OOM
from carmad.selftest.report import Seen, judge, unknown

CONTROL = "nvidia-cuda-mps-control"
NOBODY = 65534
REFUSED_WITHIN_S = 5.0  # a client of another user is expected to wait at least so long
WITHOUT = {"collocation.mps": False}
PER_GPU = {"collocation.mps_scope": "gpu"}
ONE_GPU = "no second GPU is idle"
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
    clients = mps.clients(bench.gpu.id)
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
    served = mps.clients(bench.gpu.id) == {here.pid} and mps.clients(other) == {there.pid}
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
    served = mps.clients(other)
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


def names_gpu(bench: Bench) -> Seen:
    mps = bench.serve()
    try:
        its = bench.probe(mps).ask("context")["uuid"]
    except ProbeFailed as error:
        return judge(False, f"CUDA_VISIBLE_DEVICES={bench.gpu.id}: {error}", WITHOUT)
    wanted = bench.gpu.id.partition("-")[2]
    return judge(its == wanted, f"CUDA_VISIBLE_DEVICES={bench.gpu.id} gives {its}", WITHOUT)


def multiuser(bench: Bench) -> Seen:
    if os.geteuid() != 0:
        return unknown("only root may start a server for several users")
    try:
        mps = bench.serve(multiuser=True)
    except CarmaError as error:
        said = f"{error.message}; {error.hint}"
        return judge(False, said, {"collocation.mps_multiuser": False})
    one, other = bench.probe(mps), bench.probe(mps, uid=NOBODY)
    clients = mps.clients(bench.gpu.id)
    return judge(
        {one.pid, other.pid} <= clients,
        f"clients of two users: {len(clients)} served",
        {"collocation.mps_multiuser": False},
        clients=len(clients),
    )


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
    if second.pid in mps.clients(bench.gpu.id):
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


def fault(bench: Bench) -> Seen:
    mps = bench.serve()
    faulty, neighbour, outside = bench.probe(mps), bench.probe(mps), bench.probe()
    neighbour.begin("spin", s=4 * bench.busy_s)
    outside.begin("spin", s=bench.busy_s)
    time.sleep(bench.busy_s / 4)
    own = _error(faulty, "fault")
    theirs = _answer(neighbour)
    state = mps.server_state(bench.gpu.id)
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
    deadline = time.monotonic() + 2 * REFUSED_WITHIN_S
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
    disconnected = mps.terminate(bench.gpu.id, cancelled.pid)
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
