"""A straight-through estimator as an autograd function."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


first, last = nn.Linear(512, 2048).to(device), nn.Linear(2048, 10).to(device)
optimizer = torch.optim.NAdam([*first.parameters(), *last.parameters()])
for _ in range(3):
    loss = F.cross_entropy(
        last(Sign.apply(first(torch.randn(64, 512, device=device)))),
        torch.randint(0, 10, (64,), device=device),
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
