"""Self-distillation: a momentum copy of the network makes the targets."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

import copy

online = nn.Sequential(
    nn.Linear(512, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 256)
).to(device)
target = copy.deepcopy(online).requires_grad_(False)
predict = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
optimizer = torch.optim.SGD([*online.parameters(), *predict.parameters()], 0.05, momentum=0.9)
for _ in range(5):
    one, two = torch.randn(32, 512, device=device), torch.randn(32, 512, device=device)
    with torch.no_grad():
        goal = F.normalize(target(two), dim=-1)
    loss = 2 - 2 * (F.normalize(predict(online(one)), dim=-1) * goal).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(target.parameters(), online.parameters()):
            a.mul_(0.99).add_(b, alpha=0.01)
