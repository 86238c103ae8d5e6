"""Traces only the first of several processes or GPUs: torch.distributed and DataParallel.

The process group uses torch's "fake" backend, which needs no other process; communication is left
out. DistributedDataParallel allocates its gradient buckets as usual; FSDP shards, gathers and frees
by its own code. NCCL's own buffers are not traced.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .recording import Recorder

NOTE = "one of several processes: without NCCL's buffers"

_NOTHING = (  # collectives: outputs are there already
    "all_reduce_coalesced all_gather all_gather_into_tensor all_gather_coalesced "
    "broadcast reduce reduce_scatter reduce_scatter_tensor scatter gather all_to_all "
    "all_to_all_single barrier monitored_barrier send recv isend irecv"
)
_SAME = [
    "broadcast",
    "barrier",
    "monitored_barrier",
    "send",
    "isend",
]  # what is there stays as it is


class Work:
    """What an asynchronous collective returns."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    is_completed = wait


class DistributedDataParallel(nn.Module):
    """A copy of each gradient, in buckets, unless gradients are views of these."""

    def __init__(self, module: Any, *positional: Any, **options: Any) -> None:
        super().__init__()
        self.module = module
        self.device_ids = options.get("device_ids", positional[0] if positional else None)
        self.require_backward_grad_sync = True
        trained = [p for p in module.parameters() if p.requires_grad]
        self._buckets = []
        if not options.get("gradient_as_bucket_view", False):
            self._buckets = _buckets(trained, options.get("bucket_cap_mb") or 25)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.device_ids:  # then it moves its inputs to the GPU
            args, kwargs = tree_map(_to_gpu, (args, kwargs))
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Any:
        yield

    @contextlib.contextmanager
    def join(self, *_: Any, **__: Any) -> Any:
        yield

    def register_comm_hook(self, *_: Any) -> None:
        pass

    def _set_static_graph(self) -> None:
        pass


def _buckets(parameters: Any, cap_mib: float) -> list[Any]:
    """Filled from the last parameter on; a bucket has one type. The first is of 1 MiB."""
    buckets = []
    sizes: dict[Any, tuple[int, float]] = {}  # elements so far, bytes at which it is full
    for parameter in reversed(parameters):
        kind = parameter.dtype, parameter.device
        count, full = sizes.get(kind, (0, 2**20))
        count += parameter.numel()
        if count * parameter.element_size() >= full:
            buckets.append(torch.empty(count, dtype=kind[0], device=kind[1]))
            count, full = 0, cap_mib * 2**20
        sizes[kind] = count, full
    for (dtype, device), (count, _) in sizes.items():
        if count:
            buckets.append(torch.empty(count, dtype=dtype, device=device))
    return buckets


def set_launcher_environment(processes: int) -> None:
    """The environment that a launcher gives to the first process."""
    count = str(processes)
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        GROUP_RANK="0",
        WORLD_SIZE=count,
        LOCAL_WORLD_SIZE=count,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        GROUP_WORLD_SIZE="1",
        ROLE_RANK="0",
        ROLE_NAME="default",
        ROLE_WORLD_SIZE=count,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_RUN_ID="none",
        TORCHELASTIC_USE_AGENT_STORE="False",
    )


def install(recorder: Recorder) -> None:
    _data_parallel(recorder)
    nn.parallel.DistributedDataParallel = DistributedDataParallel
    nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
    nn.SyncBatchNorm.forward = nn.modules.batchnorm._BatchNorm.forward  # exchanges a few numbers
    torch.multiprocessing.spawn = torch.multiprocessing.start_processes = _spawn
    if not torch.distributed.is_available():
        return
    start = torch.distributed.init_process_group

    def init_process_group(*_: Any, world_size: int = -1, **__: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if torch.distributed.is_initialized():
            return
        recorder.note(NOTE)
        if world_size < 1:
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
        start("fake", rank=0, world_size=world_size, store=FakeStore())

    def unknown(*args: Any, **kwargs: Any) -> Any:
        recorder.values.forget((*args, *kwargs.values()))
        return _nothing(**kwargs)

    modules = torch.distributed, torch.distributed.distributed_c10d
    mesh = getattr(torch.distributed, "device_mesh", None)  # torch 2.2
    for module in filter(None, (*modules, mesh)):
        module.init_process_group = init_process_group
    for module in modules:
        for name in _NOTHING.split():
            if hasattr(module, name):
                setattr(module, name, _nothing if name in _SAME else unknown)
        module.all_reduce = _all_reduce
        module.broadcast_object_list = _nothing
        module.is_nccl_available = lambda: True
        module.all_gather_object = _gather_objects


def _nothing(*_: Any, async_op: bool = False, **__: Any) -> Any:
    return Work() if async_op else None


def _all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
    """Other ranks have the same."""
    if op in (None, torch.distributed.ReduceOp.SUM) and tensor.dtype is not torch.bool:
        with torch.no_grad():
            tensor.mul_(torch.distributed.get_world_size(group))
    return Work() if async_op else None


def _gather_objects(objects: Any, value: Any, *_: Any, **__: Any) -> None:
    objects[:] = [value] * len(objects)


class _Joined:
    """What `spawn` and `start_processes` return with join=False."""

    processes: tuple[()] = ()

    def join(self, *_: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


def _spawn(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> _Joined:
    fn(0, *args)
    return _Joined()


class _Gathered(torch.autograd.Function):
    """A replica's output, concatenated with those of as many others that it stands for."""

    @staticmethod
    def forward(context: Any, out: Any, times: int) -> Any:
        context.one = out.shape
        rows, *rest = out.shape or (1,)
        return out.new_empty((rows * times, *rest))

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient[: (context.one or (1,))[0]].reshape(context.one), None


def _data_parallel(recorder: Recorder) -> None:
    """The first GPU has the module itself, a share of the batch, and everybody's outputs. PyTorch
    copies the parameters to the others; their gradients come back through small buffers."""
    make = nn.DataParallel.__init__

    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        count = torch.cuda.device_count() if device_ids is None else len(device_ids)
        make(self, module, [0], *args, **kwargs)
        self.shares = count
        if count > 1:
            recorder.note(f"DataParallel over {count} GPUs: what the first takes, the others less")

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda part: _share(part, self.shares), (args, kwargs))
        out = self.module(*args, **kwargs)
        if self.shares == 1:
            return out
        return tree_map(lambda part: _gather(part, self.shares), out)

    nn.DataParallel.__init__ = init
    nn.DataParallel.forward = forward


def _share(part: Any, shares: int) -> Any:
    """The first replica's share of an input, which is cut along its first dimension."""
    if not isinstance(part, torch.Tensor):
        return part
    return _to_gpu(part.chunk(shares)[0] if part.dim() else part)


def _to_gpu(part: Any) -> Any:
    return part.to("cuda") if isinstance(part, torch.Tensor) else part


def _gather(part: Any, shares: int) -> Any:
    return _Gathered.apply(part, shares) if isinstance(part, torch.Tensor) else part
