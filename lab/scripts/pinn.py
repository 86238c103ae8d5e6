"""A physics-informed network: derivatives of the network in the loss."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(
    nn.Linear(2, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)
).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    xt = torch.rand(512, 2, device=device, requires_grad=True)
    u = model(xt)
    du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
    dxx = torch.autograd.grad(du[:, 0].sum(), xt, create_graph=True)[0][:, 0]
    loss = (du[:, 1] - 0.1 * dxx + u[:, 0] * du[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
