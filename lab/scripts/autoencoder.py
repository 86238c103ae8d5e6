"""A dense autoencoder with Adadelta."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(
    nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 784), nn.Sigmoid()
).to(device)
optimizer = torch.optim.Adadelta(model.parameters())
for _ in range(20):
    x = torch.rand(128, 784).to(device)
    loss = F.binary_cross_entropy(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
