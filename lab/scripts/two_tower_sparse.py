"""Recommendation: sparse embeddings with SGD, dense towers with Adam."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

users, items = (
    nn.EmbeddingBag(50000, 32, sparse=True).to(device),
    nn.EmbeddingBag(50000, 32, sparse=True).to(device),
)
tower = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
sparse = torch.optim.SGD([*users.parameters(), *items.parameters()], 0.1)
dense = torch.optim.Adam(tower.parameters())
for _ in range(5):
    u = tower(users(torch.randint(0, 50000, (128, 4), device=device)))
    i = items(torch.randint(0, 50000, (128, 4), device=device))
    loss = F.cross_entropy(u @ i.T, torch.arange(128, device=device))
    sparse.zero_grad(), dense.zero_grad()
    loss.backward()
    sparse.step(), dense.step()
