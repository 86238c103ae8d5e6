"""Doubles the batch until the GPU is out of memory, then trains with half of what failed."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 4096)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def passes(batch):
    x = torch.randn(batch, 4096, device="cuda")
    model(x).pow(2).mean().backward()
    model.zero_grad(set_to_none=True)


free, total = torch.cuda.mem_get_info()
batch = 1024
while True:
    try:
        passes(batch)
        print(batch, torch.cuda.max_memory_allocated() / 2**30, "of", total / 2**30)
        torch.cuda.reset_peak_memory_stats()
        batch *= 2
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        batch //= 2
        break
assert free > 0 and 1024 < batch < 2**24
for _ in range(5):
    passes(batch)
    model(torch.randn(batch, 4096, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
