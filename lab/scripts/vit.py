"""A vision transformer with class token, cosine schedule and label smoothing."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class ViT(nn.Module):
    def __init__(self, width=128, depth=3):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.blocks(x)[:, 0])


model = ViT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
for _ in range(5):
    x, y = torch.randn(8, 3, 64, 64, device=device), torch.randint(0, 10, (8,), device=device)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    schedule.step()
