"""Two heads, parameter groups, gradient accumulation, a warm-up."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

trunk = nn.Sequential(nn.Linear(256, 512), nn.ReLU()).to(device)
heads = nn.ModuleDict({"class": nn.Linear(512, 10), "value": nn.Linear(512, 1)}).to(device)
optimizer = torch.optim.AdamW(
    [{"params": trunk.parameters(), "lr": 1e-4}, {"params": heads.parameters(), "lr": 1e-3}]
)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
for i in range(16):
    h = trunk(torch.randn(32, 256, device=device))
    loss = F.cross_entropy(heads["class"](h), torch.randint(0, 10, (32,), device=device))
    loss = loss + F.mse_loss(heads["value"](h).squeeze(1), torch.randn(32, device=device))
    (loss / 4).backward()
    if i % 4 == 3:
        optimizer.step()
        warm.step()
        optimizer.zero_grad()
