"""A state space layer: a scan over time in Python."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Scan(nn.Module):
    def __init__(self, width=64, state=16):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Parameter(torch.rand(width, state)),
            nn.Linear(width, state),
            nn.Linear(width, state),
        )
        self.step = nn.Linear(width, width)

    def forward(self, x):
        delta, b, c = F.softplus(self.step(x)), self.b(x), self.c(x)
        h, out = x.new_zeros(len(x), x.shape[2], self.a.shape[1]), []
        for t in range(x.shape[1]):
            h = (
                h * torch.exp(-delta[:, t, :, None] * self.a)
                + delta[:, t, :, None] * b[:, t, None] * x[:, t, :, None]
            )
            out.append((h * c[:, t, None]).sum(-1))
        return torch.stack(out, 1)


model = nn.Sequential(nn.Embedding(256, 64), Scan(), nn.LayerNorm(64), nn.Linear(64, 256)).to(
    device
)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    ids = torch.randint(0, 256, (4, 17), device=device)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
