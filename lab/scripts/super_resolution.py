"""Pixel shuffle and an L1 loss."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(
    nn.Conv2d(3, 64, 5, padding=2),
    nn.Tanh(),
    nn.Conv2d(64, 32, 3, padding=1),
    nn.Tanh(),
    nn.Conv2d(32, 3 * 9, 3, padding=1),
    nn.PixelShuffle(3),
).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    small, large = torch.rand(4, 3, 32, 32, device=device), torch.rand(4, 3, 96, 96, device=device)
    optimizer.zero_grad()
    F.l1_loss(model(small), large).backward()
    optimizer.step()
