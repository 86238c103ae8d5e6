"""What a check asks of PyTorch: `PYTHON with_torch.py WHAT`, in the Python that has it (3.8 or
newer). Prints a line of JSON. Imports nothing of CARMA.

    allocator   what is reserved for tensors of some sizes
    oom         allocates until it is refused, and lets the error end it
    stages      a small training, with the time of a step by the GPU's own events
"""

from __future__ import annotations

import json
import sys
from typing import Any

MIB = 1 << 20
SIZES_MIB = (0.5, 1.5, 100.5)
STEPS, MEASURED = 40, (24, 34)  # after the hook has measured its own (carmad/hooks/stages.py)


def main(what: str) -> None:
    import torch

    if not torch.cuda.is_available():
        tell(error="no GPU", call="PyTorch " + torch.__version__ + " finds no GPU")
        return
    {"allocator": allocator, "oom": oom, "stages": stages}[what](torch)


def tell(**found: object) -> None:
    print(json.dumps(found), flush=True)


def allocator(torch: Any) -> None:
    reserved = []
    for mib in SIZES_MIB:
        before = torch.cuda.memory_reserved()
        kept = torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
        reserved.append((torch.cuda.memory_reserved() - before) / MIB)
        del kept
        torch.cuda.empty_cache()
    tell(reserved_mib=reserved, version=torch.__version__)


def oom(torch: Any) -> None:
    tell(version=torch.__version__)
    kept = []
    while True:
        kept.append(torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda"))


def stages(torch: Any) -> None:
    layers = [torch.nn.Linear(2048, 2048) for _ in range(8)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(2048, 2048, device="cuda")
    events = []
    for step in range(STEPS):
        if step in MEASURED:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            events.append(event)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    steps = MEASURED[1] - MEASURED[0]
    tell(step_s=events[0].elapsed_time(events[1]) / 1000 / steps, version=torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1])
