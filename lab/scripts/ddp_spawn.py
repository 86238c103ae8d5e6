"""DistributedDataParallel by torch.multiprocessing.spawn."""
# run: gpus=2 python {script}

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def work(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=world)
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    model = DistributedDataParallel(
        nn.Linear(1024, 1024).to(device), device_ids=[rank] if gpu else None
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(20, 1024, device=device)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    world = torch.cuda.device_count() or 1
    mp.spawn(work, args=(world,), nprocs=world, join=True)
