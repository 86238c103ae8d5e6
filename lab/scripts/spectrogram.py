"""Short-time Fourier transform on the GPU, then a CNN."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

net = nn.Sequential(
    nn.Conv2d(1, 32, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, 2, 1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 35),
).to(device)
window = torch.hann_window(256, device=device)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    sound = torch.randn(8, 8000, device=device)
    spec = torch.stft(sound, 256, 128, window=window, return_complex=True).abs().pow(2)
    loss = F.cross_entropy(
        net(torch.log(spec + 1e-6)[:, None]), torch.randint(0, 35, (8,), device=device)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
