"""QLoRA: layers quantized to 4 bits by bitsandbytes, trained through PEFT's adapters."""

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model
from torch import nn


def quantized(inner, outer):
    return bnb.nn.Linear4bit(inner, outer, compute_dtype=torch.bfloat16, quant_type="nf4")


base = nn.Sequential(
    nn.Embedding(1000, 1024), *(quantized(1024, 1024) for _ in range(4)), nn.Linear(1024, 1000)
)
model = get_peft_model(base.cuda(), LoraConfig(r=8, target_modules=["1", "2", "3", "4"])).cuda()
optimizer = bnb.optim.PagedAdamW8bit([p for p in model.parameters() if p.requires_grad])
for step in range(5):
    ids = torch.randint(0, 1000, (4, 128)).cuda()
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
