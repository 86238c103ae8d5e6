"""The shape of a diffusion model's training: a U-Net with attention, EMA, AMP, a noise schedule."""

import copy
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset

steps, width, size = 1000, 32, 32
results = Path("./results")
results.mkdir(exist_ok=True)


class Images(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        return torch.rand(3, size, size) * 2 - 1


class Residual(nn.Module):
    def __init__(self, i, o, time):
        super().__init__()
        self.time = nn.Linear(time, o)
        self.a = nn.Sequential(nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.b = nn.Sequential(
            nn.GroupNorm(8, o), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(o, o, 3, padding=1)
        )
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        return self.b(self.a(x) + self.time(t)[:, :, None, None]) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, dim)
        self.qkv, self.out = nn.Conv2d(dim, dim * 3, 1), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (
            t.reshape(b, self.heads, c // self.heads, h * w).transpose(2, 3)
            for t in self.qkv(self.norm(x)).chunk(3, dim=1)
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(out.transpose(2, 3).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        time = width * 4
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.pool1 = Residual(width, width, time), nn.Conv2d(width, width * 2, 4, 2, 1)
        self.down2, self.pool2 = (
            Residual(width * 2, width * 2, time),
            nn.Conv2d(width * 2, width * 4, 4, 2, 1),
        )
        self.mid1, self.attn, self.mid2 = (
            Residual(width * 4, width * 4, time),
            Attention(width * 4),
            Residual(width * 4, width * 4, time),
        )
        self.up2, self.up1 = Residual(width * 6, width * 2, time), Residual(width * 3, width, time)
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x, t):
        half = width // 2
        frequencies = torch.exp(
            torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1))
        )
        angles = t[:, None].float() * frequencies[None]
        t = self.time(torch.cat((angles.sin(), angles.cos()), dim=-1))
        a = self.down1(self.first(x), t)
        b = self.down2(self.pool1(a), t)
        x = self.mid2(self.attn(self.mid1(self.pool2(b), t)), t)
        x = self.up2(torch.cat((F.interpolate(x, scale_factor=2, mode="nearest"), b), dim=1), t)
        x = self.up1(torch.cat((F.interpolate(x, scale_factor=2, mode="nearest"), a), dim=1), t)
        return self.last(x)


model = UNet().cuda()
ema = copy.deepcopy(model).requires_grad_(False)
betas = torch.linspace(1e-4, 0.02, steps, dtype=torch.float64)
alphas = torch.cumprod(1.0 - betas, dim=0).float().cuda()
generator = torch.Generator(device="cuda").manual_seed(0)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
scaler = GradScaler("cuda")
loader = DataLoader(
    Images(), batch_size=16, shuffle=True, num_workers=8, pin_memory=True, drop_last=True
)
for epoch in range(100):
    for images in loader:
        images = images.cuda(non_blocking=True)
        t = torch.randint(0, steps, (images.size(0),), device="cuda", generator=generator)
        noise = torch.randn_like(images)
        level = alphas[t][:, None, None, None]
        with autocast("cuda", dtype=torch.float16):
            predicted = model(level.sqrt() * images + (1 - level).sqrt() * noise, t)
            loss = F.mse_loss(predicted.float(), noise)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for kept, now in zip(ema.parameters(), model.parameters()):
                kept.lerp_(now, 1e-3)
    torch.save({"ema": ema.state_dict(), "epoch": epoch}, results / f"model-{epoch}.pt")
