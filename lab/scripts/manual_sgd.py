"""No optimizer: parameters are updated by hand."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"

w = torch.randn(512, 512, device=device, requires_grad=True)
b = torch.zeros(512, device=device, requires_grad=True)
for _ in range(10):
    loss = (torch.randn(64, 512, device=device) @ w + b).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for p in (w, b):
            p -= 0.01 * p.grad
            p.grad = None
