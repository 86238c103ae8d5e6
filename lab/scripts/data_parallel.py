"""DataParallel over all GPUs of the job."""
# run: gpus=2 python {script}

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).to(device)
if torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    loss = F.mse_loss(
        model(torch.randn(64, 1024, device=device)), torch.zeros(64, 1024, device=device)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(getattr(model, "module", model).state_dict(), "last.pt")
