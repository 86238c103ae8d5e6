"""What programs print when memory is short: which of it counts as out of GPU memory, and which does
not. Each with the program and where its words are, as project:file, or `report` for an issue."""

from __future__ import annotations

# The GPU's memory, whoever reads them.
GPU = {
    "PyTorch": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
        " capacity of 39.39 GiB of which 512.00 MiB is free.",
        "pytorch:c10/cuda/CUDACachingAllocator.cpp",
    ),
    "PyTorch, cudaMallocAsync": (
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of"
        " memory)\nCurrently allocated     : 9.43 GiB\nRequested               : 640.00 MiB",
        "pytorch:c10/cuda/CUDAMallocAsyncAllocator.cpp",
    ),
    "PyTorch, expandable segments": (
        "RuntimeError: CUDA driver error: out of memory",
        "pytorch:c10/cuda/driver_api.h",
    ),
    "PyTorch 0.4": (
        "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THC.cu:58",
        "pytorch 0.4:aten/src/THC/THCGeneral.cpp",
    ),
    "PyTorch, any call": (
        "torch.AcceleratorError: CUDA error: out of memory",
        "pytorch:c10/cuda/CUDAException.cpp",
    ),
    "cuBLAS": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "pytorch:aten/src/ATen/cuda/Exceptions.h",
    ),
    "cuDNN": (
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN:cudnn_graph.h",
    ),
    "cuFFT": ("cupy.cuda.cufft.CuFFTError: CUFFT_ALLOC_FAILED", "report cupy#1063"),
    "cuSOLVER": (
        "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling"
        " `cusolverDnCreate(handle)`",
        "pytorch:aten/src/ATen/cuda/Exceptions.h",
    ),
    "NCCL": ("n1:8:9 [0] NCCL WARN Cuda failure 2 'out of memory'", "nccl:src/include/checks.h"),
    "NCCL, its own": (
        "n1:8:9 [0] NCCL WARN Failed to CUDA calloc async 608 bytes",
        "nccl:src/include/alloc.h",
    ),
    "Triton": (
        "RuntimeError: Triton Error [CUDA]: out of memory",
        "triton:third_party/nvidia/backend/driver.c",
    ),
    "llama.cpp": (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 590.07 MiB on device 0: cudaMalloc"
        " failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0"
        " buffer",
        "llama.cpp:ggml/src/ggml-cuda/ggml-cuda.cu",
    ),
    "vLLM, at start": (
        "ValueError: Free memory on device cuda:0 (12.38/79.65 GiB) on startup is less than desired"
        " GPU memory utilization (0.92, 73.28 GiB). Decrease GPU memory utilization or reduce GPU"
        " memory used by other processes.",
        "vllm:vllm/v1/worker/utils.py",
    ),
    "vLLM, no blocks": (
        "ValueError: No available memory for the cache blocks. Try increasing"
        " `gpu_memory_utilization` when initializing the engine.",
        "vllm:vllm/v1/core/kv_cache_utils.py",
    ),
    "vLLM, few blocks": (
        "ValueError: To serve at least one request with the models's max seq len (32768), (4.00 GiB"
        " KV cache is needed, which is larger than the available KV cache memory (1.20 GiB). Try"
        " increasing `gpu_memory_utilization` or decreasing `max_model_len`.",
        "vllm:vllm/v1/core/kv_cache_utils.py",
    ),
    "ONNX Runtime": (
        "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 :"
        " CUDA failure 2: out of memory ; GPU=0 ; hostname=n1 ; expr=cudaMalloc((void**)&p, size);",
        "onnxruntime:onnxruntime/core/providers/cuda/cuda_call.cc",
    ),
    "TensorFlow": (
        "ResourceExhaustedError: OOM when allocating tensor with shape[256,1024] and type float on"
        " /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        "tensorflow:tensorflow/core/framework/op_kernel.cc",
    ),
    "XLA": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to"
        " allocate 8589934592 bytes.",
        "xla:xla/tsl/framework/bfc_allocator.cc",
    ),
    "XLA, its executor": (
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device"
        " ordinal 0",
        "xla:xla/stream_executor/integrations/device_mem_allocator.h",
    ),
    "Paddle": (
        "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 15.503906GB"
        " memory on GPU 0, 28.770508GB memory has been allocated",
        "Paddle:paddle/phi/core/memory/allocation/cuda_allocator.cc",
    ),
    "spconv": (
        "RuntimeError: mmdet3d/ops/spconv/src/indice_cuda.cu 124\n"
        "cuda execution failed with error 2",
        "mmdetection3d 0:mmdet3d/ops/spconv",
    ),
    "FasterTransformer": (
        "RuntimeError: [FT][ERROR] CUDA runtime error: out of memory /ft/src/allocator.h:181",
        "FasterTransformer:src/fastertransformer/utils/cuda_utils.h",
    ),
    "RMM": (
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at:"
        " /rmm/mr/device/cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory",
        "rmm:include/rmm/mr/device/cuda_memory_resource.hpp",
    ),
    "RMM's pool": (
        "MemoryError: std::bad_alloc: RMM failure at: /opt/include/rmm/mr/device/"
        "pool_memory_resource.hpp:196: Maximum pool size exceeded",
        "rmm:include/rmm/mr/device/pool_memory_resource.hpp",
    ),
    "CuPy": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes",
        "cupy:cupy/cuda/memory.pyx",
    ),
    "bitsandbytes": (
        "Error out of memory at line 380 in file /src/csrc/ops.cu",
        "bitsandbytes:csrc/ops.cuh",
    ),
    "Numba": (
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in"
        " CUDA_ERROR_OUT_OF_MEMORY",
        "numba:numba/cuda/cudadrv/driver.py",
    ),
    "Warp": (
        "Warp CUDA error 2: out of memory (in function wp_alloc_device_async)",
        "warp:warp/native/cuda_util.cpp",
    ),
    "Warp, in Python": (
        "RuntimeError: Failed to allocate 137,367,584,768 bytes on device 'cuda:0'",
        "warp:warp/context.py",
    ),
    "CUDA.jl": (
        "ERROR: LoadError: Out of GPU memory trying to allocate 11.921 GiB\n"
        "Effective GPU memory usage: 99.85% (15.758 GiB/15.782 GiB)",
        "CUDA.jl:src/pool.jl",
    ),
    "LightGBM": (
        "[LightGBM] [Fatal] [CUDA] out of memory /src/cuda_utils.hpp 118",
        "LightGBM:include/LightGBM/cuda/cuda_utils.hu",
    ),
    "XGBoost": (
        "xgboost.core.XGBoostError: [10:00:00] Memory allocation error on worker 0: bad allocation:"
        " cudaErrorMemoryAllocation: out of memory\n- Free memory: 1.2GB",
        "xgboost:src/common/device_vector.cu",
    ),
    "TensorRT": (
        "[TRT] [E] Requested amount of GPU memory (57662592 bytes) could not be allocated. There"
        " may not be enough free memory for allocation to succeed.",
        "report deepstream",
    ),
    "CTranslate2": (
        "RuntimeError: CUDA failed with error out of memory",
        "CTranslate2:src/cuda/utils.h",
    ),
    "a common macro": ("GPUassert: out of memory relation.cu 473", "report gdlog"),
    "a wrapper": ("failure when calling cudaMalloc: out of memory", "none: as one may word it"),
    "Isaac": ("CUDA error: 2: out of memory", "report IsaacGym"),
}
# These may be about any memory: they count if a GPU of the job was full.
VAGUE = {
    "cuBLAS": ("CUBLAS_STATUS_NOT_INITIALIZED", "pytorch:aten/src/ATen/cuda/Exceptions.h"),
    "cuDNN": ("CUDNN_STATUS_NOT_INITIALIZED", "pytorch:aten/src/ATen/cudnn/Exceptions.h"),
    "NCCL": (
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "pytorch:torch/csrc/distributed/c10d/NCCLUtils.cpp",
    ),
    "NCCL, older": ("NCCL error in: NCCL.cpp:1269, unhandled cuda error", "the same"),
    "ONNX Runtime's arena": (
        "/onnxruntime/core/framework/bfc_arena.cc:342 void* BFCArena::AllocateRawInternal(size_t)"
        " Failed to allocate memory for requested buffer of size 67108864",
        "onnxruntime:onnxruntime/core/framework/bfc_arena.cc",
    ),
    "TensorFlow 2": (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\n"
        "Out of memory while trying to allocate 18874368 bytes.\n\t [[{{node StatefulCall}}]]",
        "xla:xla/tsl/framework/bfc_allocator.cc",
    ),
    "SGLang": (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "sglang:python/sglang/srt/model_executor/model_runner.py",
    ),
}
# The host's memory. Some are known as that, others are just a failure.
HOST = {
    "NumPy": ("numpy._core._exceptions.MemoryError: Unable to allocate 90 GiB for an array", True),
    "PyTorch": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't"
        " allocate memory: you tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)",
        True,
    ),
    "its DataLoader": (
        "RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed.",
        True,
    ),
    "TensorFlow": (
        "OOM when allocating tensor with shape[99999] and type float on"
        " /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu",
        True,
    ),
    "Warp": ("RuntimeError: Failed to allocate 137,367,584,768 bytes on device 'cpu'", True),
    "llama.cpp": (
        "ggml_cuda_host_malloc: failed to allocate 1024.00 MiB of pinned memory: out of memory",
        True,
    ),
    "Java": ("java.lang.OutOfMemoryError: Java heap space", True),
    "PyTorch, between processes": (
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_71_2_3>: Resource"
        " temporarily unavailable (11)",
        True,
    ),
    "CUDA": ("cudaMallocHost of size 10485760 bytes failed: out of memory", True),
    "Ray": (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        True,
    ),
    "the kernel": ("Out of memory: Killed process 71 (python) total-vm:9kB", True),
    "C++": ("terminate called after throwing an instance of 'std::bad_alloc'", False),
    "Python": ("MemoryError", False),
    "the C library": ("OSError: [Errno 12] Cannot allocate memory", False),
    "a shell": ("bash: fork: Cannot allocate memory", False),
}
_KEY_ERROR = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'
    "    lr = config['lr']\nKeyError: 'lr'\n"
)
_LAST = "KeyError: 'lr'\n"
_OOM = GPU["PyTorch"][0] + "\n"
# No memory was short, or the program went on.
NOT = {
    "a limit of its own": (
        "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because"
        " it would exceed per_process_memory_fraction limit."
    ),
    "TensorFlow without some": (
        "W bfc_allocator.cc:243] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.25GiB"
        " with freed_by_count=0. The caller indicates that this is not a failure, but may mean that"
        " there could be performance gains if more memory were available."
    ),
    "shared memory of a kernel": (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840,"
        " Hardware limit: 101376. Reducing block sizes may help."
    ),
    "another error of CUDA": "RuntimeError: CUDA error: device-side assert triggered",
    "another number": "Warp CUDA error 209: no kernel image is available",
    "a build": "make[1]: *** [CMakeFiles/cuda.dir/all] Error 2",
    "a disk": "RuntimeError: [enforce fail at inline_container.cc] . No space left on device",
    "what vLLM has": "INFO [gpu_worker.py:298] Available KV cache memory: 30.1 GiB",
    "its usage": (
        "usage: train.py [--low-vram]\n  --low-vram  slower, if CUDA runs out of memory\n"
        "train.py: error: unrecognized arguments: --lr"
    ),
    "its usage, in other words": (
        "usage: train.py [--retry]\n  --retry  again with a smaller batch when the GPU is out of"
        " memory\ntrain.py: error: unrecognized arguments: --lr"
    ),
    "one that was caught, then a full disk": (
        f"WARNING: {_OOM}{_KEY_ERROR[: -len(_LAST)]}OSError: [Errno 28] No space left on device\n"
    ),
    **{
        f"one that was caught, then {error}": f"WARNING: {_OOM}{_KEY_ERROR[: -len(_LAST)]}{error}\n"
        for error in (
            "TypeError: f() missing 1 required positional argument: 'device'",
            "ValueError: the processor and the pipeline differ by a factor of two",
            "AttributeError: module bloom has no room",
        )
    },
    "one that was caught, then a file that is missing": (
        f"WARNING: {_OOM}{_KEY_ERROR[: -len(_LAST)]}FileNotFoundError: [Errno 2] No such file or"
        " directory: '/data/gpu_runs/memory.json'\n"
    ),
    "advice": "set PYTORCH_CUDA_ALLOC_CONF to avoid CUDA out of memory\nwrong number of layers",
    "a data set": '{"text": "My GPU ran out of memory, what now?"}\n' + _KEY_ERROR,
    "one that was caught": f"WARNING: {_OOM}| skipping this batch\nepoch 2\n{_KEY_ERROR}",
    "one that was caught, in a rank": (
        f"[rank1]: WARNING: {_OOM}"
        + "".join(f"[rank1]: {line}\n" for line in _KEY_ERROR.splitlines())
    ),
    "one that was caught, with rich": (
        f"WARNING: {_OOM}╭──── Traceback (most recent call last) ────╮\n"
        "│ train.py:9 in <module>                    │\n"
        "╰───────────────────────────────────────────╯\nKeyError: 'lr'\n"
    ),
    "one that was caught, then wandb": (
        f"WARNING: {_OOM}{_KEY_ERROR}wandb: Find logs at: ./wandb/run-1/logs\n"
    ),
}
_FAILED = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'
    f"    loss.backward()\n{_OOM}"
)
# The program ended for want of GPU memory, and that was not the last of it.
AFTER = {
    "another rank": (
        "".join(f"[rank0]: {line}\n" for line in _FAILED.splitlines())
        + '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, remote"
        " process exited or there was a network error\n"
    ),
    "the watchdog of NCCL": (
        f"{_FAILED}[rank1]:[E1129 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective"
        " operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600029 ms\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    ),
    "torchrun": (
        f"{_FAILED}E1129 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 71)\n"
        'Traceback (most recent call last):\n  File "torchrun", line 8, in <module>\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "train.py FAILED\nRoot Cause (first observed failure):\n  exitcode  : 1 (pid: 71)\n"
    ),
    "srun": f"{_FAILED}srun: error: n1: task 0: Exited with exit code 1\n",
    "the next call": (
        f'{_FAILED}Traceback (most recent call last):\n  File "free.py", line 2\n'
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    ),
    "a worker of the DataLoader": (
        f"{_FAILED}Exception ignored in: <function _DataLoaderIter.__del__ at 0x7f>\n"
        'Traceback (most recent call last):\n  File "dataloader.py", line 1663, in __del__\n'
        "AssertionError: can only test a child process\n"
    ),
    "a thread": (
        f"{_FAILED}Exception in thread Thread-3:\nTraceback (most recent call last):\n"
        "  File \"log.py\", line 1, in run\nAttributeError: 'NoneType' object has no attribute\n"
    ),
    "wandb": f"{_FAILED}wandb: Run history:\nwandb:   loss \nwandb: Synced 5 file(s)\n",
    "its launcher": (
        f'{_FAILED}Traceback (most recent call last):\n  File "accelerate", line 8, in <module>\n'
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit"
        " status 1.\n"
    ),
    "vLLM's front": (
        f'{_FAILED}Traceback (most recent call last):\n  File "vllm", line 8, in <module>\n'
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    ),
    "Ray's training": (
        f'{_FAILED}Traceback (most recent call last):\n  File "tune.py", line 8, in <module>\n'
        "ray.tune.error.TuneError: ('Trials did not complete', [train_0])\n"
    ),
    "an error while it was handled": (
        f"{_FAILED}\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{_KEY_ERROR}"
    ),
    "one that it was the cause of": (
        f"{_FAILED}\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "run.py", line 9, in <module>\n'
        "ValueError: no result\n"
    ),
    "an earlier error that was caught": f"{_KEY_ERROR}no lr, so 0.1\n{_FAILED}",
}
