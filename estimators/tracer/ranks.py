"""Traces only the first of several ranks or GPUs: torch.distributed and DataParallel.

The process group uses torch's "fake" backend, which needs no other process; communication is left
out, as before PyTorch 2.6 that backend takes no tensors without contents. NCCL has a GPU for each
rank, so the first stands for the others, which end where they join. torchrun starts its processes
without the agent that would ask other machines for theirs.
DistributedDataParallel allocates its gradient buckets as usual; FSDP shards, gathers and frees by
its own code. NCCL's own buffers are not traced.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Any, Callable

import torch
from torch import nn
from torch.utils._pytree import tree_map

from . import imports
from .command import whole
from .recording import Recorder

NOTE = "one of several processes: without NCCL's buffers"

# Collectives: their outputs are there already. What these write is not known, or stays.
_UNKNOWN = (
    "all_reduce_coalesced all_gather all_gather_into_tensor all_gather_coalesced reduce "
    "reduce_scatter reduce_scatter_tensor scatter gather all_to_all all_to_all_single recv irecv"
)
_NOTHING = "broadcast broadcast_object_list barrier monitored_barrier send isend"


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
        self.static_graph = options.get("static_graph", False)
        trained = [p for p in module.parameters() if p.requires_grad]
        self._buckets = []
        if not options.get("gradient_as_bucket_view", False):
            self._buckets = _buckets(trained, options.get("bucket_cap_mb") or 25)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.device_ids:  # then it moves its inputs to the GPU
            args, kwargs = tree_map(_to_gpu, (args, kwargs))
        return self.module(*args, **kwargs)

    def no_sync(self, *_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()

    join = no_sync

    def register_comm_hook(self, *_: Any) -> None:
        """A hook may compress what is sent. Nothing is sent, so it is ignored."""

    _set_static_graph = register_comm_hook


def _buckets(parameters: list[Any], cap_mib: float) -> list[Any]:
    """Filled from the last parameter on, as gradients come. The first bucket is smaller."""
    limits = [torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, int(cap_mib * 2**20)]
    parts, _ = torch.distributed._compute_bucket_assignment_by_size(parameters[::-1], limits)
    buckets = ([parameters[-1 - at] for at in part] for part in parts)
    return [one[0].new_empty(sum(each.numel() for each in one)) for one in buckets]


def _launch(module: Any) -> None:
    """Patches torchrun: without an agent, the processes of this machine are started at once; of
    functions, the first is called."""

    def elastic_launch(config: Any, entrypoint: Any, *_: Any) -> Callable[..., Any]:
        def start(*words: Any) -> Any:
            ranks = [_environment(rank, config) for rank in range(config.nproc_per_node)]
            if not isinstance(entrypoint, str):
                os.environ.update(ranks[0])
                return {0: entrypoint(*words)}
            processes = []
            for rank in ranks:
                given = [word.replace("${local_rank}", rank["LOCAL_RANK"]) for word in words]
                processes.append(subprocess.Popen([entrypoint, *given], env={**os.environ, **rank}))
            if failed := [one for one in processes if one.wait()]:
                raise subprocess.CalledProcessError(failed[0].returncode, entrypoint)
            return dict.fromkeys(range(len(ranks)))

        return start

    module.elastic_launch = elastic_launch


def _environment(rank: int, config: Any) -> dict[str, str]:
    """What torchrun gives to a process of the first machine."""
    here, everywhere = config.nproc_per_node, config.nproc_per_node * config.min_nodes
    variables = {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), rank),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), everywhere),
        **dict.fromkeys(("GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"), 0),
        "LOCAL_WORLD_SIZE": here,
        "GROUP_WORLD_SIZE": config.min_nodes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "ROLE_NAME": "default",
        "TORCHELASTIC_MAX_RESTARTS": config.max_restarts,
        "TORCHELASTIC_RUN_ID": config.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    return {name: str(value) for name, value in variables.items()}


def install(recorder: Recorder, leave: Callable[[], None]) -> None:
    """`leave` is called where a rank joins for which the first one stands."""
    _data_parallel(recorder)
    nn.parallel.DistributedDataParallel = DistributedDataParallel
    nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
    nn.SyncBatchNorm.forward = nn.modules.batchnorm._BatchNorm.forward  # exchanges a few numbers
    if not torch.distributed.is_available():
        return
    imports.after_import("torch.distributed.launcher.api", _launch)
    start = torch.distributed.init_process_group

    def init_process_group(
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if torch.distributed.is_initialized():
            return
        rank = rank if rank >= 0 else whole(os.environ.get("RANK", ""), 0)
        if "nccl" in str(backend or "nccl") and rank > 0:
            leave()
        recorder.note(NOTE)
        size = world_size if world_size > 0 else whole(os.environ.get("WORLD_SIZE", ""), 1)
        start("fake", rank=0, world_size=size, store=FakeStore())

    def unknown(*args: Any, **kwargs: Any) -> Any:
        recorder.values.forget((*args, *kwargs.values()))
        return _nothing(**kwargs)

    distributed = torch.distributed
    for module in (distributed, distributed.distributed_c10d, distributed.device_mesh):
        module.init_process_group = init_process_group
    for module in (distributed, distributed.distributed_c10d):
        functions: dict[str, Any] = {
            **dict.fromkeys(_UNKNOWN.split(), unknown),
            **dict.fromkeys(_NOTHING.split(), _nothing),
            "all_reduce": _all_reduce,
            "all_gather_object": _gather_objects,
            "is_nccl_available": lambda: True,
        }
        vars(module).update(functions)


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
    """A replica's output, with those of as many others that it stands for."""
    if not isinstance(part, torch.Tensor):
        return part
    part = part if part.dim() else part.reshape(1)
    return torch.cat([part, *[part.detach()] * (shares - 1)])
