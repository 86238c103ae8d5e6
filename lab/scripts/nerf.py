"""Volume rendering along rays, with positional encoding."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

net = nn.Sequential(
    nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
).to(device)
optimizer = torch.optim.Adam(net.parameters(), 5e-4)
for _ in range(3):
    rays, depth = torch.randn(64, 2, 3, device=device), torch.linspace(2, 6, 32, device=device)
    points = rays[:, 0, None] + rays[:, 1, None] * depth[:, None]
    waves = torch.cat([w(points * 2**k) for k in range(6) for w in (torch.sin, torch.cos)], -1)
    out = net(waves)
    alpha = 1 - torch.exp(-F.relu(out[..., 3]) * 0.125)
    weight = (
        alpha
        * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    )
    loss = F.mse_loss(
        (weight[..., None] * torch.sigmoid(out[..., :3])).sum(1), torch.rand(64, 3, device=device)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
