"""Gradient checkpointing of each block."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(
    [
        nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
        for _ in range(4)
    ]
).to(device)
optimizer = torch.optim.AdamW(blocks.parameters())
for _ in range(3):
    x = torch.randn(8, 64, 256, device=device)
    for block in blocks:
        x = x + checkpoint(block, x, use_reentrant=False)
    loss = x.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
