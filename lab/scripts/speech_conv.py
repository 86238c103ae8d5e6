"""Strided 1-d convolutions, a transformer and CTC, in bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(
    nn.Conv1d(1, 64, 10, 5), nn.GELU(), nn.Conv1d(64, 64, 8, 4), nn.GroupNorm(8, 64), nn.GELU()
).to(device)
layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
body, head = (
    nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device),
    nn.Linear(64, 32).to(device),
)
optimizer = torch.optim.AdamW([*model.parameters(), *body.parameters(), *head.parameters()])
for _ in range(3):
    sound = torch.randn(4, 1, 1600, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = head(body(model(sound).transpose(1, 2)))
    logp = out.float().log_softmax(-1).transpose(0, 1)
    loss = F.ctc_loss(
        logp, torch.randint(1, 32, (4, 6)), torch.full((4,), len(logp)), torch.full((4,), 6)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
