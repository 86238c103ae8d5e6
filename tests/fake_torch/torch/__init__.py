"""As much of PyTorch as carmad/selftest/training.py and lab/selftest/with_torch.py use, on the fake
GPU. $FAKE_TORCH has the words of what it does otherwise than expected: no_gpu, small_segments,
reworded, heavy, unwatched, host_times."""

import json
import os
import socket
from unittest.mock import MagicMock

from carmad.selftest.probe import Cuda, CudaError

MIB = 1 << 20
LIBRARIES_MIB = 90  # beside the context
CUBLAS_MIB = 60
STEP_MS = 20.0
WORDS = os.environ.get("FAKE_TORCH", "").split()

__version__ = "2.15.0"
uint8 = nn = optim = randn = add = conv2d = MagicMock()


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"


class _Gpu:
    cuda = None
    reserved_mib = 0


class _Tensor:
    def __init__(self, mib):
        if _Gpu.cuda is None:
            _Gpu.cuda = Cuda()
            _Gpu.cuda.allocate(LIBRARIES_MIB + (2000 if "heavy" in WORDS else 0))
        segment = -(-mib // 2) * 2 if mib >= 10 else 2 if mib <= 1 else 20
        its = round(mib) if "small_segments" in WORDS else segment
        try:
            _Gpu.cuda.allocate(int(its))
        except CudaError:
            said = (
                "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of"
            )
            said = "The GPU is full: it has" if "reworded" in WORDS else said
            raise OutOfMemoryError(
                said + " 79.06 GiB of which 500.00 MiB is free. Of the allocated memory 78.00 GiB"
                " is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
            ) from None
        _Gpu.reserved_mib += its


def matmul(one, other):
    _Gpu.cuda.allocate(CUBLAS_MIB)


def ones(*shape, device):
    return _Tensor(4)


def empty(size, *, dtype, device):
    return _Tensor(size / MIB)


class cuda:
    @staticmethod
    def is_available():
        return "no_gpu" not in WORDS

    @staticmethod
    def memory_reserved():
        return _Gpu.reserved_mib * MIB

    @staticmethod
    def empty_cache():
        pass

    @staticmethod
    def Event(enable_timing):
        event = MagicMock()
        event.elapsed_time = lambda other: STEP_MS * 10
        return event

    @staticmethod
    def synchronize():
        """By now the hook would have told what it measured."""
        path = os.environ.get("CARMA_SOCKET")
        if path is None or "unwatched" in WORDS:
            return
        forward = STEP_MS / 3000 / (10 if "host_times" in WORDS else 1)
        stages = {"load_s": 0.0, "forward_s": forward, "backward_s": 2 * forward}
        body = json.dumps({"seconds": STEP_MS / 1000, "stages": stages})
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(f"POST /v1/jobs/1/step HTTP/1.0\r\n\r\n{body}".encode())
            connection.recv(100)
