"""Denoising score matching with an averaged model from torch.optim.swa_utils."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

net = nn.Sequential(nn.Linear(65, 512), nn.SiLU(), nn.Linear(512, 64)).to(device)
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.999))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    x, level = torch.randn(64, 64, device=device), torch.rand(64, 1, device=device)
    noise = torch.randn_like(x)
    loss = F.mse_loss(net(torch.cat([x + level * noise, level], 1)), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update_parameters(net)
