"""Checks with PyTorch, in whatever Python has it: its context, allocator, errors and profiler."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

from carmad.attempt.clues import classify
from carmad.attempt.environment import HOOKS
from carmad.contexts import Context, find_context
from carmad.plugin import Cause
from carmad.selftest.bench import PIDS_HIDDEN, Bench, Probe, ProbeFailed
from carmad.selftest.report import Seen, judge, unknown

SCRIPT = Path(__file__).with_name("with_torch.py")
WITHIN_S = 90.0  # importing torch takes long where its files are not cached
SOURCE = "carma doctor --gpu"
CONTEXT_OFF = 0.25  # of the constant that estimates reckon with
RESERVED_MIB = (2.0, 20.0, 102.0)  # for SIZES_MIB of with_torch.py; see docs/estimators
STEP_OFF = 0.30
JOB = "1"
HAS_TORCH = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"
FINDS_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def context(bench: Bench) -> Seen:
    if not bench.lists_pids():
        return unknown(PIDS_HIDDEN)
    program = _start(bench, "context")
    beside: list[int] = []  # the tensors: with the context, with cuBLAS too, and with cuDNN too
    for _ in range(3):
        found = program.answer(WITHIN_S)
        use = bench.use(program)
        if use is None or use.memory_mib is None:
            return judge(False, "the process is not listed with its memory")
        beside.append(round(use.memory_mib - found["reserved_mib"]))
        program.begin("go on")
    bare, with_cublas, constant = beside
    card, version = bench.gpu.name, found["version"]
    here = Context(card, version, bare, with_cublas - bare, constant - with_cublas, SOURCE)
    chosen = bench.settings.estimation
    table = find_context(card, version) if chosen.context_mib is None else None
    expected = table.mib if table else chosen.any_context_mib
    return judge(
        abs(constant - expected) <= CONTEXT_OFF * expected,
        f"PyTorch {version} takes {constant} MiB beside its tensors; {expected} MiB are reckoned"
        f" with. As a row of carmad/contexts.csv: {here.row}",
        {"estimation.context_mib": constant},
        context_mib=constant,
        cublas_mib=here.cublas_mib,
        cudnn_mib=here.cudnn_mib,
        torch=version,
    )


def allocator(bench: Bench) -> Seen:
    found = _start(bench, "allocator").answer(WITHIN_S)
    got = tuple(found["reserved_mib"])
    said = ", ".join(f"{mib:g} MiB" for mib in got)
    expected = ", ".join(f"{mib:g}" for mib in RESERVED_MIB)
    return judge(
        got == RESERVED_MIB,
        f"for tensors of 0.5, 1.5 and 100.5 MiB it reserves {said}; expected are {expected}",
        torch=found["version"],
        **{f"reserved_{n}_mib": mib for n, mib in enumerate(got, 1)},
    )


def oom_text(bench: Bench) -> Seen:
    program = _start(bench, "oom")
    program.answer(WITHIN_S)
    end = classify(program.code(WITHIN_S), None, program.errors())
    line = program.errors().rpartition("\n")[2]
    return judge(
        end.cause is Cause.GPU_OOM and end.tried_mib == 1024,
        f"read as {end.cause.value}: {line}",
        cause=end.cause.value,
        tried_mib=end.tried_mib,
        free_mib=end.free_mib,
        text=line,
    )


def profiler(bench: Bench) -> Seen:
    """Of a training with the hook that `--watch-stages` puts into it."""
    told: list[dict[str, Any]] = []
    path = bench.folder / "socket"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(WITHIN_S)
        threading.Thread(target=_listen, args=(listener, told), daemon=True).start()
        folders = os.pathsep.join(filter(None, (HOOKS, os.environ.get("PYTHONPATH"))))
        hook = {"CARMA_JOB_ID": JOB, "CARMA_SOCKET": str(path), "PYTHONPATH": folders}
        program = _start(bench, "stages", hook)
        found = program.answer(WITHIN_S)
    said = program.errors()
    if not told:
        return judge(False, f"nothing was measured: {said or 'nothing is said'}", text=said)
    parts = told[0]["stages"]
    kernels = parts["forward_s"] + parts["backward_s"]
    step = found["step_s"]
    return judge(
        abs(kernels - step) <= STEP_OFF * step,
        f"a step took {1000 * step:.1f} ms by the GPU's clock; its kernels take"
        f" {1000 * kernels:.1f} ms by the profiler",
        step_ms=1000 * step,
        forward_ms=1000 * parts["forward_s"],
        backward_ms=1000 * parts["backward_s"],
        torch=found["version"],
    )


def _listen(listener: socket.socket, told: list[dict[str, Any]]) -> None:
    """As carmad: takes one report."""
    try:
        connection = listener.accept()[0]
    except OSError:  # nobody came
        return
    with connection:
        request = b""
        while (part := connection.recv(65536)) and not (request := request + part).endswith(b"}"):
            pass
        told.append(json.loads(request.partition(b"\r\n\r\n")[2]))
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")


@cache
def python() -> str:
    """The first Python, of this one and those on PATH, whose PyTorch finds a GPU; "" for none."""
    for name in (sys.executable, "python3", "python"):
        found = shutil.which(name)
        if found and _says(found, HAS_TORCH, 10.0) and _says(found, FINDS_GPU, WITHIN_S):
            return found
    return ""


def _says(program: str, code: str, within_s: float) -> bool:
    try:
        tried = subprocess.run(
            [program, "-c", code], timeout=within_s, capture_output=True, cwd="/"
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return tried.returncode == 0


def _start(bench: Bench, what: str, more: dict[str, str] | None = None) -> Probe:
    """Raises ProbeFailed."""
    program = python()
    if not program:
        raise ProbeFailed("no Python on PATH has a PyTorch that finds a GPU")
    return bench.run([program, str(SCRIPT), what], bench.environment() | (more or {}))
