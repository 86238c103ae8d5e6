"""CUDA's process checkpoint by ctypes: five functions of libcuda.so.1, from driver 570 on.

The structures are those of cuda.h as documented for CUDA 13.0 (docs.nvidia.com/cuda/archive/13.0.0,
driver API, "CUDA Checkpointing"; the same in cuda-python's `cydriver`): each has 64 bytes, and what
is reserved must be zero. 13.4 makes one reserved field a pointer, for which zero stands for "to
host memory". In 12.8 and 12.9 (drivers 570 and 575), a restore takes no pairs of GPUs.
"""

from __future__ import annotations

import ctypes
import time
import uuid
from ctypes import c_int, c_ubyte, c_uint, c_uint64

from carmad.gpu.cuda_state import (
    INVALID_VALUE,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    DriverError,
    Moves,
    State,
    is_gone,
)

MOVES_FROM = 13000  # cuDriverGetVersion of driver 580
LOOK_S = 0.05
_PREFIX = "cuCheckpointProcess"
_STATES = {0: State.RUNNING, 1: State.LOCKED, 2: State.CHECKPOINTED, 3: State.FAILED}
# Of newer drivers: checkpointing, and restoring. A helper that was killed has begun it.
_UNDER_WAY = (4, 5)


class LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", c_uint), ("reserved0", c_uint), ("reserved1", c_uint64 * 7))


class GpuPair(ctypes.Structure):
    _fields_ = (("old", c_ubyte * 16), ("new", c_ubyte * 16))


class RestoreArgs(ctypes.Structure):
    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", c_uint),
        ("reserved", c_ubyte * 44),
        ("reserved1", c_uint64),
    )


class NoArgs(ctypes.Structure):
    """Of a checkpoint, and of an unlock."""

    _fields_ = (("reserved", c_uint64 * 8),)


class LibCuda:
    """Raises DriverError, also if there is no such library, or it is too old."""

    def __init__(self) -> None:
        try:
            self._c = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(NOT_SUPPORTED, f"there is no NVIDIA driver: {error}") from error
        if not hasattr(self._c, f"{_PREFIX}GetState"):
            raise DriverError(NOT_SUPPORTED, "suspending jobs needs driver 570 or newer")
        self._initialized = False

    def state(self, pid: int) -> State:
        """Once what a killed helper has begun is over."""
        found = c_int()
        while True:
            try:
                self._call("GetState", pid, found)
            except DriverError as error:
                if error.code == NOT_INITIALIZED or is_gone(pid):
                    return State.NONE
                raise
            if found.value not in _UNDER_WAY:
                break
            time.sleep(LOOK_S)
        if found.value not in _STATES:
            raise DriverError(NOT_SUPPORTED, f"the driver reports an unknown state: {found.value}")
        return _STATES[found.value]

    def lock(self, pid: int, within_s: float) -> None:
        # 0 would be for ever.
        self._call("Lock", pid, LockArgs(timeout_ms=max(1, round(within_s * 1000))))

    def checkpoint(self, pid: int) -> None:
        self._call("Checkpoint", pid, NoArgs())

    def restore(self, pid: int, moves: Moves) -> None:
        args = RestoreArgs()
        if moves:
            self._require_moves()
            pairs = [GpuPair(_bytes(old), _bytes(new)) for old, new in moves]
            args.pairs = (GpuPair * len(pairs))(*pairs)
            args.count = len(pairs)
        if not self._initialized:
            # Needed where persistence mode is off. If it fails, the restore says so.
            self._c.cuInit(c_uint(0))
            self._initialized = True
        self._call("Restore", pid, args)

    def unlock(self, pid: int) -> None:
        self._call("Unlock", pid, NoArgs())

    def _require_moves(self) -> None:
        version = c_int()
        if self._c.cuDriverGetVersion(ctypes.byref(version)) or version.value < MOVES_FROM:
            words = "moving a job to another GPU needs driver 580 or newer"
            raise DriverError(NOT_SUPPORTED, words)

    def _call(self, name: str, pid: int, argument: ctypes.Structure | c_int) -> None:
        code = getattr(self._c, _PREFIX + name)(c_int(pid), ctypes.byref(argument))
        if code == OPERATING_SYSTEM and is_gone(pid):
            raise DriverError(code, "it has ended")
        if code:
            raise DriverError(code)


def _bytes(gpu: str) -> ctypes.Array[c_ubyte]:
    """Of a GPU's UUID. Raises DriverError for a MIG instance's, which cannot be moved to."""
    prefix, _, digits = gpu.partition("-")
    if prefix != "GPU":
        raise DriverError(INVALID_VALUE, f"no job can move to or from {gpu}")
    return (c_ubyte * 16)(*uuid.UUID(digits).bytes)
