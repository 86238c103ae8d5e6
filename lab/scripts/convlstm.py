"""A convolutional LSTM over video frames."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Cell(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.o, self.gates = o, nn.Conv2d(i + o, 4 * o, 3, padding=1)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


cell, head = Cell(1, 32).to(device), nn.Conv2d(32, 1, 1).to(device)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
for _ in range(3):
    video = torch.rand(4, 6, 1, 32, 32, device=device)
    state = (torch.zeros(4, 32, 32, 32, device=device), torch.zeros(4, 32, 32, 32, device=device))
    loss = 0
    for frame in range(5):
        state = cell(video[:, frame], state)
        loss = loss + F.mse_loss(head(state[0]), video[:, frame + 1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
