"""Segmentation with skip connections and a dice loss."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.down1, self.down2, self.mid = (
            block(3, width),
            block(width, 2 * width),
            block(2 * width, 4 * width),
        )
        self.up2, self.up1 = (
            nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
            nn.ConvTranspose2d(2 * width, width, 2, 2),
        )
        self.dec2, self.dec1 = block(4 * width, 2 * width), block(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        return self.head(self.dec1(torch.cat([self.up1(b), a], 1)))


model = UNet().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-8)
for _ in range(5):
    image, mask = (
        torch.rand(2, 3, 64, 64, device=device),
        torch.rand(2, 1, 64, 64, device=device).round(),
    )
    p = torch.sigmoid(model(image))
    dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
    (F.binary_cross_entropy(p, mask) + dice).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
