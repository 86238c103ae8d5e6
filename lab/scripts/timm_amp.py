"""A timm model with its own optimizer factory, augmentation on the GPU and an EMA."""

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV2

device = "cuda" if torch.cuda.is_available() else "cpu"
model = timm.create_model("mobilenetv3_small_050", num_classes=10).to(device)
ema = ModelEmaV2(model)
optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
for _ in range(3):
    x, y = torch.randn(4, 3, 64, 64, device=device), torch.randint(0, 10, (4,), device=device)
    with torch.autocast(device, enabled=device == "cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update(model)
