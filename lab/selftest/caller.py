"""A process that suspends others: `python -m lab.selftest.caller`. Each call of CUDA's process
checkpoint (`carmad.gpu.libcuda`) by itself, where the daemon's helper makes all that a job needs.

Requests and answers are lines of JSON, as of `carmad.selftest.probe`. An answer has `s`, the
seconds that the call took, or the driver's `error` as a number, and the `call` that it came from.

    hello                        has it come up?
    open                         are the calls there?
    state {pid}                  as `state`
    lock {pid, timeout_s}, checkpoint {pid}, restore {pid, moves}, unlock {pid}
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import sys
import time
from typing import Any

from carmad.gpu.cuda_state import Driver, DriverError
from carmad.gpu.libcuda import LibCuda

PR_SET_PDEATHSIG = 1


def main() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the self-test ends it
    driver: Driver | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if request["do"] != "hello":
                driver = driver or LibCuda()
                answer = _do(driver, request)
        except DriverError as error:
            answer = {"error": str(error.code), "call": f"{request['do']}: {error}"}
        print(json.dumps(answer), flush=True)


def _do(driver: Driver, request: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    match request:
        case {"do": "open"}:
            pass
        case {"do": "state", "pid": pid}:
            return {"state": driver.state(pid)}
        case {"do": "lock", "pid": pid, "timeout_s": timeout_s}:
            driver.lock(pid, timeout_s)
        case {"do": "checkpoint", "pid": pid}:
            driver.checkpoint(pid)
        case {"do": "restore", "pid": pid, "moves": moves}:
            driver.restore(pid, moves)
        case {"do": "unlock", "pid": pid}:
            driver.unlock(pid)
        case _:
            raise ValueError(f"no such request: {request}")
    return {"s": time.monotonic() - begun}


if __name__ == "__main__":
    main()
