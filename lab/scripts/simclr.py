"""Contrastive learning: two views, NT-Xent over the whole batch."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

encoder = nn.Sequential(
    nn.Conv2d(3, 64, 3, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(1024, 512),
    nn.ReLU(),
    nn.Linear(512, 128),
).to(device)
optimizer = torch.optim.AdamW(encoder.parameters(), 3e-4)
for _ in range(5):
    views = torch.randn(64, 3, 32, 32).to(device)
    z = F.normalize(encoder(views), dim=1)
    similar = z @ z.T / 0.5
    labels = torch.cat([torch.arange(32) for _ in range(2)]).to(device)
    positive = (labels[:, None] == labels[None]).float()
    eye = torch.eye(64, dtype=torch.bool, device=device)
    logp = F.log_softmax(similar.masked_fill(eye, float("-inf")), 1)
    loss = -(logp.masked_fill(eye, 0) * positive).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
