"""A Wasserstein GAN with gradient penalty: five critic steps for one of the generator."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)
generator = nn.Sequential(
    nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 784), nn.Tanh()
).to(device)
opt_c = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9))
opt_g = torch.optim.Adam(generator.parameters(), 1e-4, betas=(0.0, 0.9))
for i in range(20):
    real, noise = torch.randn(64, 784, device=device), torch.randn(64, 64, device=device)
    fake = generator(noise).detach()
    mix = torch.rand(64, 1, device=device)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
    opt_c.zero_grad()
    (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
    opt_c.step()
    if i % 5 == 0:
        opt_g.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        opt_g.step()
