"""nn.Transformer with masks, a Noam schedule and Adam."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Transformer(128, 4, 2, 2, 256, batch_first=True).to(device)
source_in, target_in, head = (
    nn.Embedding(1000, 128).to(device),
    nn.Embedding(1000, 128).to(device),
    nn.Linear(128, 1000).to(device),
)
parameters = [p for m in (model, source_in, target_in, head) for p in m.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1.0, betas=(0.9, 0.98))
noam = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda n: 128**-0.5 * min((n + 1) ** -0.5, (n + 1) * 4000**-1.5)
)
for _ in range(3):
    source, target = (
        torch.randint(1, 1000, (8, 16), device=device),
        torch.randint(1, 1000, (8, 13), device=device),
    )
    causal = model.generate_square_subsequent_mask(12, device=device)
    out = model(
        source_in(source),
        target_in(target[:, :-1]),
        tgt_mask=causal,
        src_key_padding_mask=source == 0,
    )
    loss = F.cross_entropy(head(out).flatten(0, 1), target[:, 1:].reshape(-1), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    noam.step()
