"""Soft actor-critic: three optimizers and a learnt temperature."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

actor = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 4)).to(device)
q1, q2 = (
    nn.Sequential(nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 1)).to(device) for _ in range(2)
)
log_alpha = torch.zeros(1, device=device, requires_grad=True)
opt_a, opt_q = (
    torch.optim.Adam(actor.parameters()),
    torch.optim.Adam([*q1.parameters(), *q2.parameters()]),
)
opt_t = torch.optim.Adam([log_alpha])


def act(s):
    mean, log_std = actor(s).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    u = normal.rsample()
    return torch.tanh(u), (normal.log_prob(u) - torch.log(1 - torch.tanh(u).pow(2) + 1e-6)).sum(
        -1, keepdim=True
    )


for _ in range(5):
    s, r, n = (
        torch.randn(64, 8, device=device),
        torch.randn(64, 1, device=device),
        torch.randn(64, 8, device=device),
    )
    with torch.no_grad():
        a, logp = act(n)
        goal = r + 0.99 * (
            torch.min(q1(torch.cat([n, a], 1)), q2(torch.cat([n, a], 1))) - log_alpha.exp() * logp
        )
    a = torch.rand(64, 2, device=device)
    loss = F.mse_loss(q1(torch.cat([s, a], 1)), goal) + F.mse_loss(q2(torch.cat([s, a], 1)), goal)
    opt_q.zero_grad()
    loss.backward()
    opt_q.step()
    a, logp = act(s)
    loss = (log_alpha.exp().detach() * logp - q1(torch.cat([s, a], 1))).mean()
    opt_a.zero_grad()
    loss.backward()
    opt_a.step()
    opt_t.zero_grad()
    (-log_alpha.exp() * (logp.detach() - 2)).mean().backward()
    opt_t.step()
