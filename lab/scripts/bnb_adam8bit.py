"""bitsandbytes' 8-bit Adam; where it is not installed, to be refused by name."""

import bitsandbytes as bnb
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = bnb.optim.Adam8bit(model.parameters())
for _ in range(3):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
