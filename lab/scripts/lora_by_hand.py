"""Low-rank adapters on a frozen model, with hooks on nothing else."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class LoRA(nn.Module):
    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


model = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(1024, 1024), nn.GELU())])
for name, child in list(model.named_children()):
    if isinstance(child, nn.Linear):
        setattr(model, name, LoRA(child))
model.to(device)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-4)
for _ in range(3):
    loss = model(torch.randn(16, 1024, device=device)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
