# run: gpus=2 torchrun --standalone --nproc_per_node=2 {script}
"""DeepSpeed's ZeRO stage 2 with bf16, over as many GPUs as it is started on."""

import deepspeed
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 4_000_000},
}
engine, optimizer, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=config
)
for step in range(10):
    x = torch.randn(16, 1024, device=engine.device, dtype=torch.bfloat16)
    loss = engine(x).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    print(step, loss.item())
