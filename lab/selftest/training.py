"""Checks with PyTorch, in whatever Python has it: its allocator, errors and profiler."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

from carmad.attempt.clues import classify
from carmad.attempt.environment import HOOKS
from carmad.plugin import Cause
from carmad.selftest.bench import Bench
from carmad.selftest.report import Seen, judge
from carmad.selftest.training import WITHIN_S, start

SCRIPT = Path(__file__).with_name("with_torch.py")
RESERVED_MIB = (2.0, 20.0, 102.0)  # for SIZES_MIB of with_torch.py; see docs/estimators
STEP_OFF = 0.30
JOB = "1"


def allocator(bench: Bench) -> Seen:
    found = start(bench, str(SCRIPT), "allocator").answer(WITHIN_S)
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
    program = start(bench, str(SCRIPT), "oom")
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
        program = start(bench, str(SCRIPT), "stages", more=hook)
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
