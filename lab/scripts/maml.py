"""Meta-learning: an inner step by functional_call, second derivatives outside."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

from torch.func import functional_call

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 5)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    loss = 0
    for _ in range(2):
        x, y = torch.randn(25, 64, device=device), torch.randint(0, 5, (25,), device=device)
        weights = dict(model.named_parameters())
        inner = F.cross_entropy(functional_call(model, weights, (x,)), y)
        grads = torch.autograd.grad(inner, weights.values(), create_graph=True)
        fast = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads)}
        loss = loss + F.cross_entropy(functional_call(model, fast, (x,)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
