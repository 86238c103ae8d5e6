"""Depthwise separable convolutions, squeeze and excitation, Hardswish."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Separable(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.dw, self.pw = (
            nn.Conv2d(i, i, 3, 2, 1, groups=i, bias=False),
            nn.Conv2d(i, o, 1, bias=False),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(i, i // 4, 1),
            nn.ReLU(),
            nn.Conv2d(i // 4, i, 1),
            nn.Hardsigmoid(),
        )
        self.norm = nn.BatchNorm2d(o)

    def forward(self, x):
        x = self.dw(x)
        return F.hardswish(self.norm(self.pw(x * self.squeeze(x))))


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1),
    Separable(16, 64),
    Separable(64, 128),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 1000),
).to(device)
optimizer = torch.optim.RMSprop(model.parameters(), 0.01, alpha=0.9, momentum=0.9)
for _ in range(5):
    loss = F.cross_entropy(
        model(torch.randn(8, 3, 64, 64, device=device)), torch.randint(0, 1000, (8,), device=device)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
