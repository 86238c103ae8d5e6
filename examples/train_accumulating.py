"""A training loop that lets CARMA split its batches.

    carma submit --batch-size 64 -- python examples/train_accumulating.py --batch-size 64

CARMA's own `--batch-size` says what a whole batch is, and that this job can run it in parts. If it
is started beside another job, where memory is too short for all of a batch at once, it finds

    CARMA_ACCUMULATION_STEPS=4 CARMA_BATCH_SIZE=16

in its environment, goes through every batch in four passes of 16 samples, adds up their gradients,
and takes one optimizer step. The gradients are those of the whole batch but for rounding, as long
as no layer looks across the batch (batch normalisation does: it sees one part at a time). After
each epoch it tells CARMA how long a step took, so that CARMA knows what splitting costs. This loop
needs only the second number; Hugging Face's Trainer, for one, wants both, as
`gradient_accumulation_steps` and `per_device_train_batch_size`.

It needs PyTorch, and uses a GPU if there is one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    options = read_options()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    part = int(os.environ.get("CARMA_BATCH_SIZE", options.batch_size))
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    batches = DataLoader(points(options.samples), options.batch_size, shuffle=True)
    print(f"batches of {options.batch_size}, {part} samples at a time, on {device}", flush=True)
    for epoch in range(options.epochs):
        begun = time.perf_counter()
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = accumulate(model, inputs.to(device), targets.to(device), part)
            optimizer.step()
        report((time.perf_counter() - begun) / len(batches))
        print(f"epoch {epoch + 1}: loss {loss:.4f}", flush=True)


def accumulate(model: nn.Module, inputs: Tensor, targets: Tensor, part: int) -> float:
    """The gradients of the batch's mean loss, `part` samples at a time; returns that loss.

    Each part's mean counts by its share of the batch. To divide by the number of parts instead
    would be wrong for a last batch, or a last part, that is not full.
    """
    loss = 0.0
    for some, wanted in zip(inputs.split(part), targets.split(part), strict=True):
        share = len(some) / len(inputs)
        mean = functional.cross_entropy(model(some), wanted) * share
        mean.backward()
        loss += mean.item()
    return loss


def report(step_s: float) -> None:
    """Where CARMA runs this, and no matter if it cannot be told."""
    if "CARMA_JOB_ID" in os.environ and shutil.which("carma"):
        report = ["carma", "report", "--step", f"{step_s:.6f}s"]
        subprocess.run(report, check=False, stdout=subprocess.DEVNULL)


def points(samples: int) -> TensorDataset:
    """Of ten classes, which a small network can tell apart."""
    targets = torch.randint(10, (samples,))
    centres = torch.randn(10, 32)
    return TensorDataset(centres[targets] + 0.5 * torch.randn(samples, 32), targets)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64, help="samples per optimizer step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
