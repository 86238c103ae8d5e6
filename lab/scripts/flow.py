"""A normalizing flow of affine coupling layers."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

couplings = nn.ModuleList(
    [nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(4)]
).to(device)
optimizer = torch.optim.Adamax(couplings.parameters())
for _ in range(3):
    x, logdet = torch.randn(64, 64, device=device), 0
    for net in couplings:
        a, b = x.chunk(2, 1)
        scale, shift = net(a).chunk(2, 1)
        x, logdet = (
            torch.cat([b * torch.exp(torch.tanh(scale)) + shift, a], 1),
            logdet + torch.tanh(scale).sum(1),
        )
    loss = (0.5 * x.pow(2).sum(1) - logdet).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
