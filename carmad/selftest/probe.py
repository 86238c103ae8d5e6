"""One GPU process that does as it is told: `python -m carmad.selftest.probe`.

A line of standard input is a request in JSON, `{"do": "allocate", "mib": 1024}`, answered by a
line of standard output: what was found, or the driver's `error` and the `call` that it came from.
It ends with its input, and with its parent.

    hello                   without the driver: has it come up?
    context                 the context alone; also what a first request makes
    memory                  `free_mib` and `total_mib`, as the driver tells this process
    allocate {mib}, free
    spin {s}, copy {s}      kernels, or copies to the device at `mib_s`, for so long
    fault                   an illegal address
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from typing import Any

from carmad.selftest.cuda import Cuda, CudaError

PR_SET_PDEATHSIG = 1


def main() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the self-test ends its probes itself
    cuda: Cuda | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "hello":
            print("{}", flush=True)
            continue
        try:
            cuda = cuda or Cuda()
            answer = _do(cuda, request)
        except CudaError as error:
            answer = {"error": error.name, "call": str(error)}
        except OSError as error:
            answer = {"error": str(error), "call": "libcuda.so.1"}
        print(json.dumps(answer), flush=True)


def _do(cuda: Cuda, request: dict[str, Any]) -> dict[str, Any]:
    match request:
        case {"do": "context"}:
            return {"pid": os.getpid(), "uuid": cuda.uuid()}
        case {"do": "memory"}:
            free, total = cuda.memory_mib()
            return {"free_mib": free, "total_mib": total}
        case {"do": "allocate", "mib": mib}:
            cuda.allocate(mib)
        case {"do": "free"}:
            cuda.free()
        case {"do": "spin", "s": seconds}:
            cuda.spin(seconds)
        case {"do": "copy", "s": seconds}:
            return {"mib_s": cuda.copy(seconds)}
        case {"do": "fault"}:
            cuda.fault()
        case _:
            raise ValueError(f"no such request: {request}")
    return {}


if __name__ == "__main__":
    main()
