"""Two towers, a learnt temperature, a symmetric loss."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 64, 8, 8), nn.GELU(), nn.Flatten(), nn.Linear(4096, 128)
        )
        self.text = nn.Sequential(nn.EmbeddingBag(5000, 256), nn.Linear(256, 128))
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, image, text):
        i, t = F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)
        return self.scale.exp().clamp(max=100) * i @ t.T


model = CLIP().to(device)
optimizer = torch.optim.AdamW(
    model.parameters(), 1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2
)
for _ in range(3):
    logits = model(
        torch.rand(16, 3, 64, 64, device=device), torch.randint(0, 5000, (16, 20), device=device)
    )
    label = torch.arange(16, device=device)
    loss = (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
