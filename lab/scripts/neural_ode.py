"""A Runge-Kutta integrator around a network."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

f = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(device)
optimizer = torch.optim.Adam(f.parameters())
for _ in range(3):
    y = torch.randn(32, 64, device=device)
    for _ in range(8):
        a = f(y)
        b = f(y + 0.05 * a)
        c = f(y + 0.05 * b)
        y = y + 0.1 / 6 * (a + 2 * b + 2 * c + f(y + 0.1 * c))
    loss = y.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
