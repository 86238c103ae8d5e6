"""Torchvision: a ResNet without weights, its body frozen, its head replaced."""

import torch
import torchvision
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torchvision.models.resnet18(weights=None)
for p in model.parameters():
    p.requires_grad = False
model.fc = nn.Linear(model.fc.in_features, 5)
model = model.to(device)
optimizer = torch.optim.SGD(model.fc.parameters(), 0.001, momentum=0.9)
for _ in range(3):
    x, y = torch.randn(4, 3, 64, 64).to(device), torch.randint(0, 5, (4,)).to(device)
    optimizer.zero_grad()
    with torch.set_grad_enabled(True):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
