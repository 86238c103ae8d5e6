"""A Siamese network with a triplet loss and hard negatives."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(nn.Linear(512, 1024), nn.PReLU(), nn.Linear(1024, 128)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    x, y = torch.randn(64, 512, device=device), torch.randint(0, 8, (64,), device=device)
    z = model(x)
    far = torch.cdist(z, z)
    same = y[:, None] == y[None]
    positive = far.masked_fill(~same, 0).max(1).values
    negative = far.masked_fill(same, 1e9).min(1).values
    loss = F.relu(positive - negative + 0.2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
