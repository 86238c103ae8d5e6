"""Multivariate forecasting: windows, early stopping, ReduceLROnPlateau."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

series = torch.randn(300, 8).cumsum(0)
windows = series.unfold(0, 33, 1).transpose(1, 2)
lstm, head = nn.LSTM(8, 128, batch_first=True).to(device), nn.Linear(128, 8).to(device)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()])
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
best = float("inf")
for epoch in range(3):
    for batch in windows.split(64)[:3]:
        batch = batch.to(device)
        loss = F.mse_loss(head(lstm(batch[:, :-1])[0][:, -1]), batch[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val = F.mse_loss(
            head(lstm(windows[:32, :-1].to(device))[0][:, -1]), windows[:32, -1].to(device)
        ).item()
    plateau.step(val)
    if val > best:
        break
    best = val
