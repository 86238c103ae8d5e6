"""The cause of a job's end, told from its traces."""

import pytest

from carmad.core.types import Cause
from recovery.classify import classify

TORCH_24 = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 9, in <module>\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    " capacity of 39.39 GiB of which 512.00 MiB is free. Process 71 has 20.00 GiB memory in use."
    " Including non-PyTorch memory, this process has 18.90 GiB memory in use. Of the allocated"
    " memory 18.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but"
    " unallocated.\n"
)
TORCH_112 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total"
    " capacity; 14.56 GiB already allocated; 244.00 MiB free; 14.74 GiB reserved in total"
    " by PyTorch)\n"
)


@pytest.mark.parametrize(
    "tail",
    [
        TORCH_24,
        TORCH_112,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n",
        "torch.AcceleratorError: CUDA error: out of memory\n",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`\n",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED\n",
        "NCCL WARN Cuda failure 2 'out of memory'\n",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying\n",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes\n",
        "ResourceExhaustedError: OOM when allocating tensor on /device:GPU:0 by allocator\n",
    ],
)
def test_every_library_s_gpu_oom_is_recognised(tail):
    exit = classify(1, None, "epoch 1\n" + tail + "wandb: done\n")
    assert exit.cause is Cause.GPU_OOM
    assert exit.evidence.removesuffix("…") in tail


def test_the_exit_status_comes_first():
    assert classify(0, None, TORCH_24).cause is Cause.SUCCESS


def test_four_ends_are_told_apart():
    assert classify(1, None, TORCH_24).cause is Cause.GPU_OOM
    assert classify(None, 9, "", host_oom=True).cause is Cause.HOST_OOM
    assert classify(None, 9, "").cause is Cause.FAILURE
    assert classify(2, None, "ValueError: unsuccessful OOM.py\n").cause is Cause.FAILURE


@pytest.mark.parametrize(
    "line",
    [
        "numpy.core._exceptions.MemoryError: Unable to allocate 90 GiB",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
        "RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed.",
    ],
)
def test_host_memory_is_not_gpu_memory(line):
    assert classify(1, None, line).cause is Cause.HOST_OOM


@pytest.mark.parametrize(
    "line", ["CUBLAS_STATUS_NOT_INITIALIZED", "ncclUnhandledCudaError: Call to CUDA failed"]
)
def test_an_ambiguous_line_counts_only_on_a_full_gpu(line):
    assert classify(1, None, line, gpu_full=True).cause is Cause.GPU_OOM
    assert classify(1, None, line, gpu_full=False).cause is Cause.FAILURE


def test_a_program_s_own_cap_is_its_own_failure():
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because"
        " it would exceed per_process_memory_fraction limit."
    )
    assert classify(1, None, line).cause is Cause.FAILURE


def test_sizes_are_read_and_fragmentation_is_recognised():
    exit = classify(1, None, TORCH_24)
    assert (exit.tried_mib, exit.free_mib, exit.unused_mib) == (2048, 512, 300)
    assert not exit.fragmented
    old = classify(1, None, TORCH_112)
    assert (old.tried_mib, old.free_mib) == (20, 244)
    assert old.fragmented
    own = TORCH_24.replace("300.00 MiB is reserved", "3.00 GiB is reserved")
    assert classify(1, None, own).fragmented


def test_a_plain_failure_keeps_its_last_line_as_evidence():
    assert classify(1, None, "boom\n\nValueError: no\n\n").evidence == "ValueError: no"
