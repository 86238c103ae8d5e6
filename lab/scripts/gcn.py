"""Graph convolution over an edge list, full batch."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

edges = torch.randint(0, 500, (2, 3000), device=device)
x, y = torch.randn(500, 128, device=device), torch.randint(0, 7, (500,), device=device)
train = torch.rand(500, device=device) < 0.5
first, second = nn.Linear(128, 64).to(device), nn.Linear(64, 7).to(device)
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], weight_decay=5e-4)


def spread(h):
    return torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]])


for _ in range(5):
    out = spread(second(F.dropout(F.relu(spread(first(x))))))
    loss = F.cross_entropy(out[train], y[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
