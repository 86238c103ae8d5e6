"""DistributedDataParallel under torchrun, with a distributed sampler."""
# run: gpus=2 torchrun --standalone --nproc_per_node=2 {script}

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

gpu = torch.cuda.is_available()
if "RANK" not in os.environ:  # alone, without a launcher
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511"
    )
dist.init_process_group("nccl" if gpu else "gloo")
rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank) if gpu else torch.device("cpu")
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device),
    device_ids=[rank] if gpu else None,
)
data = TensorDataset(torch.randn(256, 512), torch.randint(0, 10, (256,)))
sampler = DistributedSampler(data)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 32, sampler=sampler):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seen = torch.ones(1, device=device)
    dist.all_reduce(seen)
dist.destroy_process_group()
