"""BERT's objective: some tokens are masked, a boolean index picks them."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = nn.ModuleDict(
    {
        "embed": nn.Embedding(5000, 128),
        "body": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        "head": nn.Linear(128, 5000),
    }
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(3):
    ids = torch.randint(5, 5000, (8, 32))
    masked = torch.rand(ids.shape) < 0.15
    labels = ids.masked_fill(~masked, -100)
    ids = ids.masked_fill(masked, 4)
    ids, labels = ids.to(device), labels.to(device)
    out = model["head"](model["body"](model["embed"](ids)))
    keep = labels != -100
    loss = F.cross_entropy(out[keep], labels[keep])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
