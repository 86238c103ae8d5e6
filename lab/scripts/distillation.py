"""Knowledge distillation: a frozen teacher, a small student."""

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

teacher = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 100)).to(device).eval()
student = nn.Sequential(nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 100)).to(device)
optimizer = torch.optim.Adam(student.parameters())
for _ in range(5):
    x, y = torch.randn(64, 512, device=device), torch.randint(0, 100, (64,), device=device)
    with torch.no_grad():
        soft = F.softmax(teacher(x) / 4, 1)
    out = student(x)
    loss = F.kl_div(F.log_softmax(out / 4, 1), soft, reduction="batchmean") * 16 + F.cross_entropy(
        out, y
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
