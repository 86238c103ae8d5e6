"""Saves checkpoints each epoch, and resumes if one is there."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

from pathlib import Path

model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer, start = torch.optim.Adam(model.parameters()), 0
path = Path("checkpoints/last.pt")
path.parent.mkdir(exist_ok=True)
if path.exists():
    state = torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["epoch"]
for epoch in range(start, 3):
    loss = F.cross_entropy(
        model(torch.randn(64, 256, device=device)), torch.randint(0, 10, (64,), device=device)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, path
    )
