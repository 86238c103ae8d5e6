"""Momentum contrast: a queue of keys as a buffer."""
# run: python -m moco_queue

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MoCo(nn.Module):
    def __init__(self, width=128, size=4096):
        super().__init__()
        self.query, self.key = nn.Linear(512, width), nn.Linear(512, width)
        self.key.load_state_dict(self.query.state_dict())
        self.register_buffer("queue", F.normalize(torch.randn(width, size), dim=0))
        self.at = 0

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.key(b), dim=1)
        logits = (
            torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1) / 0.07
        )
        self.queue[:, self.at : self.at + len(k)] = k.T
        self.at = (self.at + len(k)) % self.queue.shape[1]
        return logits


model = MoCo().to(device)
optimizer = torch.optim.SGD(model.query.parameters(), 0.03, momentum=0.9)
for _ in range(5):
    logits = model(torch.randn(64, 512, device=device), torch.randn(64, 512, device=device))
    loss = F.cross_entropy(logits, torch.zeros(64, dtype=torch.long, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
