"""torch.compile, a DataLoader with workers, bf16 autocast, channels-last, gradient accumulation."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.randn(3, 32, 32), index % 10


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).to(device, memory_format=torch.channels_last)
    if device == "cuda":
        model = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    loader = DataLoader(
        Images(), 32, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True
    )
    for step, (x, y) in enumerate(loader):
        x = x.to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(x), y.to(device, non_blocking=True)) / 4
        loss.backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if device == "cuda":
                print(
                    step, loss.item(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
                )


if __name__ == "__main__":
    main()
