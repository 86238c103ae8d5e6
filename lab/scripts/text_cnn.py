"""Convolutions over words, max over time."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class TextCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20000, 64, padding_idx=0)
        self.convs = nn.ModuleList([nn.Conv1d(64, 100, k) for k in (3, 4, 5)])
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(300, 2)

    def forward(self, x):
        x = self.embed(x).transpose(1, 2)
        return self.head(self.drop(torch.cat([F.relu(c(x)).max(2).values for c in self.convs], 1)))


model = TextCNN().to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    loss = F.cross_entropy(
        model(torch.randint(0, 20000, (32, 40), device=device)),
        torch.randint(0, 2, (32,), device=device),
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
