"""A GPU process as `carmad.selftest.probe`, which can do more: `python -m lab.selftest.probe`.

context                 also its `uuid`, without NVML's prefix (GPU- or MIG-)
memory                  `free_mib` and `total_mib`, as the driver tells this process
free                    everything allocated
managed {mib}           as `write`, of managed memory (UVM)
copy {s}                copies to the device at `mib_s`, for so long
hold {s}                one kernel that takes so long: an answer when it has been launched, and
                        another when it has ended, with how long it took (`s`)
"""

from __future__ import annotations

import ctypes
import os
import time
import uuid
from typing import Any

from carmad.selftest import probe
from carmad.selftest.probe import MIB

COPIED_MIB = 256  # per call
MANAGED_EVERYWHERE = 1  # CU_MEM_ATTACH_GLOBAL


class Cuda(probe.Cuda):
    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"do": "context"}:
                return {"pid": os.getpid(), "uuid": self.uuid()}
            case {"do": "memory"}:
                free, total = self.memory_mib()
                return {"free_mib": free, "total_mib": total}
            case {"do": "free"}:
                self.free()
            case {"do": "managed", "mib": mib}:
                return {"crc": self.write_managed(mib)}
            case {"do": "copy", "s": seconds}:
                return {"mib_s": self.copy(seconds)}
            case {"do": "hold", "s": seconds}:
                return {"s": self.hold(seconds)}
            case _:
                return super().do(request)
        return {}

    def uuid(self) -> str:
        its = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", its, self.device)
        return str(uuid.UUID(bytes=bytes(its)))

    def memory_mib(self) -> tuple[int, int]:
        """Free and total, as the driver tells this process."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB

    def free(self) -> None:
        self.written.clear()
        while self.blocks:
            self.call("cuMemFree_v2", self.blocks.pop())

    def write_managed(self, mib: int) -> int:
        block = ctypes.c_uint64()
        everywhere = ctypes.c_uint(MANAGED_EVERYWHERE)
        self.call("cuMemAllocManaged", ctypes.byref(block), ctypes.c_size_t(mib * MIB), everywhere)
        self.blocks.append(block)
        return self.fill(block, mib)

    def copy(self, seconds: float) -> float:
        """Copy to the device. Returns at how many MiB/s."""
        source = ctypes.create_string_buffer(COPIED_MIB * MIB)
        size = ctypes.c_size_t(COPIED_MIB * MIB)
        block = self.allocate(COPIED_MIB)
        begun, copied = time.monotonic(), 0
        while (elapsed := time.monotonic() - begun) < seconds:
            self.call("cuMemcpyHtoD_v2", block, source, size)
            copied += COPIED_MIB
        return copied / elapsed

    def hold(self, seconds: float) -> float:
        """Run one kernel for so long. Returns how long it took."""
        self.launch("spin", 1, ctypes.c_uint64(round(seconds * 1e9)))
        print("{}", flush=True)
        begun = time.monotonic()
        self.call("cuCtxSynchronize")
        return time.monotonic() - begun


if __name__ == "__main__":
    probe.main(Cuda)
