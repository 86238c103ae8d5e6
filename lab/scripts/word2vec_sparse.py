"""Skip-gram with negative samples: sparse gradients and SparseAdam."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

inside, outside = (
    nn.Embedding(30000, 100, sparse=True).to(device),
    nn.Embedding(30000, 100, sparse=True).to(device),
)
optimizer = torch.optim.SparseAdam([*inside.parameters(), *outside.parameters()])
for _ in range(5):
    word, near, far = (
        torch.randint(0, 30000, shape, device=device) for shape in ((256,), (256,), (256, 5))
    )
    v = inside(word)
    loss = (
        -F.logsigmoid((v * outside(near)).sum(1)).mean()
        - F.logsigmoid(-(outside(far) @ v[:, :, None])).mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
