"""A 3D convolutional network for video clips, in channels-last form."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def block(inner, outer, stride):
    return nn.Sequential(
        nn.Conv3d(inner, outer, 3, stride, 1, bias=False),
        nn.BatchNorm3d(outer),
        nn.ReLU(inplace=True),
    )


model = nn.Sequential(
    block(3, 16, (1, 2, 2)),
    block(16, 32, 2),
    nn.MaxPool3d(2),
    block(32, 64, 1),
    nn.AdaptiveAvgPool3d(1),
    nn.Flatten(),
    nn.Linear(64, 20),
).to(device, memory_format=torch.channels_last_3d)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for _ in range(5):
    clips = torch.randn(2, 3, 16, 64, 64).to(device, memory_format=torch.channels_last_3d)
    labels = torch.randint(0, 20, (2,)).to(device)
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(clips), labels).backward()
    optimizer.step()
