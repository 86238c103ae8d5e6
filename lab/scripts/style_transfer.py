"""The image itself is trained, with LBFGS and Gram matrices."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

features = (
    nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
    .to(device)
    .eval()
)
for p in features.parameters():
    p.requires_grad_(False)


def gram(x):
    b, c, h, w = features(x).shape
    f = features(x).view(b * c, h * w)
    return f @ f.T / (b * c * h * w)


style = gram(torch.rand(1, 3, 64, 64, device=device))
image = torch.rand(1, 3, 64, 64, device=device, requires_grad=True)
optimizer = torch.optim.LBFGS([image], max_iter=4)
for _ in range(3):

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(gram(image), style)
        loss.backward()
        return loss

    optimizer.step(closure)
