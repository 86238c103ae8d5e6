"""Graph attention with a scatter softmax."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

source, target = torch.randint(0, 200, (2, 1500), device=device)
x, y = torch.randn(200, 64, device=device), torch.randint(0, 5, (200,), device=device)
project, score, head = (
    nn.Linear(64, 64).to(device),
    nn.Linear(128, 1).to(device),
    nn.Linear(64, 5).to(device),
)
optimizer = torch.optim.Adam([*project.parameters(), *score.parameters(), *head.parameters()])
for _ in range(3):
    h = project(x)
    e = F.leaky_relu(score(torch.cat([h[source], h[target]], 1))).squeeze(1).exp()
    total = torch.zeros(200, device=device).scatter_add_(0, target, e)
    h = torch.zeros_like(h).index_add_(0, target, h[source] * (e / total[target])[:, None])
    loss = F.cross_entropy(head(F.elu(h)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
