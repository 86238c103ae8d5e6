"""Mixup with autocast, a gradient scaler and channels last."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(
    nn.Conv2d(3, 64, 3, 2, 1),
    nn.BatchNorm2d(64),
    nn.SiLU(),
    nn.Conv2d(64, 128, 3, 2, 1),
    nn.SiLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 100),
).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scaler = torch.amp.GradScaler(device)
for _ in range(5):
    x = torch.randn(16, 3, 64, 64, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (16,), device=device)
    share = torch.distributions.Beta(0.2, 0.2).sample().item()
    other = torch.randperm(16, device=device)
    with torch.autocast(device):
        out = model(share * x + (1 - share) * x[other])
        loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[other])
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
