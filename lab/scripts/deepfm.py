"""Factorisation machine and a deep part over categorical fields."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DeepFM(nn.Module):
    def __init__(self, fields=(1000, 500, 20), width=16):
        super().__init__()
        self.embed, self.linear = nn.Embedding(sum(fields), width), nn.Embedding(sum(fields), 1)
        self.register_buffer("offset", torch.tensor([0, *fields[:-1]]).cumsum(0))
        self.deep = nn.Sequential(
            nn.Linear(width * len(fields), 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Linear(400, 1)
        )

    def forward(self, x):
        x = x + self.offset
        e = self.embed(x)
        pair = (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True) / 2
        return (self.linear(x).sum(1) + pair + self.deep(e.flatten(1))).squeeze(1)


model = DeepFM().to(device)
optimizer = torch.optim.Adagrad(model.parameters(), 0.01)
for _ in range(3):
    x = torch.stack([torch.randint(0, n, (256,)) for n in (1000, 500, 20)], 1).to(device)
    loss = F.binary_cross_entropy_with_logits(model(x), torch.rand(256, device=device).round())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
