"""Dilated causal convolutions with weight norm."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

from torch.nn.utils.parametrizations import weight_norm

layers = []
for level in range(4):
    layers += [
        nn.ConstantPad1d((2**level * 2, 0), 0),
        weight_norm(nn.Conv1d(64 if level else 1, 64, 3, dilation=2**level)),
        nn.ReLU(),
    ]
model = nn.Sequential(*layers, nn.Conv1d(64, 1, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    x = torch.randn(16, 1, 100, device=device)
    loss = F.mse_loss(model(x)[..., :-1], x[..., 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
