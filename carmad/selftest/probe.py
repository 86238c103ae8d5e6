"""One GPU process that does as it is told: `python -m carmad.selftest.probe`. It uses the CUDA
driver API by ctypes: neither a toolkit nor PyTorch.

A line of standard input is a request in JSON, `{"do": "allocate", "mib": 1024}`, answered by a line
of standard output: what was found, or the driver's `error` and the `call` that it came from. It
ends with its input, and with its parent.

    hello                   without the driver: has it come up?
    context                 the context alone; also what a first request makes
    allocate {mib}
    write {mib}             allocates it and writes to all of it; `crc` of that
    read                    `crc` of what is there now
    spin {s}                kernels, for so long
    fault                   an illegal address
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
KERNEL_S = 0.02  # of one launch: whoever waits for it can stop soon
WRITTEN_MIB = 16  # per call
THREADS, BLOCKS_PER_SM = 128, 4
SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT

# `spin` keeps an SM busy for so many ns, or at most some seconds if the timer stands still.
# `fault` writes to an address that nobody has.
PTX = Path(__file__).with_name("kernels.ptx").read_bytes()


class CudaError(Exception):
    """`name` is the driver's, such as CUDA_ERROR_OUT_OF_MEMORY."""

    def __init__(self, name: str, call: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name


class Cuda:
    """The primary context of the first visible device. Raises CudaError, and OSError if there is no
    libcuda.so.1."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL("libcuda.so.1")
        self.blocks: list[ctypes.c_uint64] = []
        self.written: list[tuple[ctypes.c_uint64, int]] = []  # with MiB
        self._functions: dict[str, ctypes.c_void_p] = {}
        self.call("cuInit", ctypes.c_uint(0))
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request. Returns what was found."""
        match request:
            case {"do": "context"}:
                return {"pid": os.getpid()}
            case {"do": "allocate", "mib": mib}:
                self.allocate(mib)
            case {"do": "write", "mib": mib}:
                return {"crc": self.write(mib)}
            case {"do": "read"}:
                return {"crc": self.read()}
            case {"do": "spin", "s": seconds}:
                self.spin(seconds)
            case {"do": "fault"}:
                self.fault()
            case _:
                raise ValueError(f"no such request: {request}")
        return {}

    def allocate(self, mib: int) -> ctypes.c_uint64:
        block = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(mib * MIB))
        self.blocks.append(block)
        return block

    def write(self, mib: int) -> int:
        """Allocate that much and write to all of it. Returns the checksum of what was written."""
        return self.fill(self.allocate(mib), mib)

    def fill(self, block: ctypes.c_uint64, mib: int) -> int:
        self.written.append((block, mib))
        content = bytearray(random.Random(block.value).randbytes(WRITTEN_MIB * MIB))
        buffer, crc = (ctypes.c_char * len(content)).from_buffer(content), 0
        for n, part, size in _parts(block, mib):
            struct.pack_into("<Q", content, 0, n)  # each is different
            self.call("cuMemcpyHtoD_v2", part, buffer, size)
            crc = zlib.crc32(content[: size.value], crc)
        return crc

    def read(self) -> int:
        """The checksum of what was written, as it is now."""
        content = bytearray(WRITTEN_MIB * MIB)
        buffer, crc = (ctypes.c_char * len(content)).from_buffer(content), 0
        for block, mib in self.written:
            for _, part, size in _parts(block, mib):
                self.call("cuMemcpyDtoH_v2", buffer, part, size)
                crc = zlib.crc32(content[: size.value], crc)
        return crc

    def spin(self, seconds: float) -> None:
        """Keep every SM busy; of memory and its bandwidth it takes next to nothing."""
        sms = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(sms), ctypes.c_int(SM_COUNT), self.device)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            wanted = ctypes.c_uint64(round(min(left, KERNEL_S) * 1e9))
            self.launch("spin", sms.value * BLOCKS_PER_SM, wanted)
            self.call("cuCtxSynchronize")

    def fault(self) -> None:
        """Raises CudaError; the context is of no use any more."""
        self.launch("fault", 1)
        self.call("cuCtxSynchronize")

    def launch(self, name: str, blocks: int, *parameters: ctypes.c_uint64) -> None:
        if name not in self._functions:
            self._load()
        words = (ctypes.c_void_p * max(1, len(parameters)))()
        for n, parameter in enumerate(parameters):
            words[n] = ctypes.addressof(parameter)
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        grid = (ctypes.c_uint(blocks), one, one)
        block = (ctypes.c_uint(THREADS if parameters else 1), one, one)
        self.call("cuLaunchKernel", self._functions[name], *grid, *block, none, None, words, None)

    def _load(self) -> None:
        """Only for the first kernel: loading takes memory that a context alone does not."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        for name in ("spin", "fault"):
            function = ctypes.c_void_p()
            named = ctypes.c_char_p(name.encode())
            self.call("cuModuleGetFunction", ctypes.byref(function), module, named)
            self._functions[name] = function

    def call(self, function: str, *arguments: object) -> None:
        code = getattr(self._c, function)(*arguments)
        if code:
            name = ctypes.c_char_p()
            known = self._c.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value
            raise CudaError(known.decode() if known else f"CUDA error {code}", function)


def _parts(
    block: ctypes.c_uint64, mib: int
) -> Iterator[tuple[int, ctypes.c_uint64, ctypes.c_size_t]]:
    """The block in pieces: number, address and size of each."""
    for n, first in enumerate(range(0, mib, WRITTEN_MIB)):
        size = min(WRITTEN_MIB, mib - first) * MIB
        yield n, ctypes.c_uint64(block.value + first * MIB), ctypes.c_size_t(size)


PR_SET_PDEATHSIG = 1


def main(make: Callable[[], Cuda] = Cuda) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the self-test ends its probes itself
    cuda: Cuda | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            if request["do"] != "hello":
                cuda = cuda or make()
                answer = cuda.do(request)
        except CudaError as error:
            answer = {"error": error.name, "call": str(error)}
        except OSError as error:
            answer = {"error": str(error), "call": "libcuda.so.1"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
