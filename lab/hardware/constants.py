"""What a stack takes beside tensors: a script that `memory` runs on an otherwise idle GPU.

It prints a JSON line for each probe ("constant"), with what the allocator and the device say, and
then waits for a line on standard input, so that NVML can be asked as well. Imports torch only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

MIB = 2**20
SIDE, CHANNELS = 56, 128  # of the convolutions
BATCH = {"cuda": 64, "cpu": 1}
TOKENS, WIDTH = 4096, 1024  # of what is normalised
# Convolutions by kind: batch, inputs, outputs, kernel, side of the planes, groups. The first peak
# is that of cudnn.benchmark's search, the second that of the algorithm it chose.
SEARCHED = {
    "1×1, a million pairs of channels": (64, 512, 2048, 1, 7, 1),
    "1×1, a quarter of that": (64, 512, 512, 1, 7, 1),
    "1×1, at a single point": (256, 576, 1024, 1, 1, 1),
    "3×3, large planes": (32, 64, 64, 3, 224, 1),
    "3×3, few channels": (64, 32, 64, 3, 112, 1),
    "3×3, small planes": (64, 512, 512, 3, 7, 1),
    "3×3, groups of 16": (64, 128, 128, 3, 56, 8),
    "3×3, groups of 56": (64, 168, 168, 3, 56, 3),
    "3×3, depthwise": (64, 128, 128, 3, 56, 128),
}


class Probe:
    """Prints what `do` took."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"

    def __call__(self, what: str, do: Callable[[], Any]) -> None:
        before = self._allocated()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        kept = do()  # referenced until it was counted
        if self._cuda:
            torch.cuda.synchronize()
        found = {
            "what": what,
            "kept_mib": round(self._allocated() - before, 3),
            "peak_mib": round(self._peak() - before, 3),
            "reserved_mib": self._reserved(),
        }
        print(json.dumps({"event": "constant", **found}), flush=True)
        sys.stdin.readline()
        del kept

    def _allocated(self) -> float:
        return torch.cuda.memory_allocated() / MIB if self._cuda else 0.0

    def _peak(self) -> float:
        return torch.cuda.max_memory_allocated() / MIB if self._cuda else 0.0

    def _reserved(self) -> float:
        return torch.cuda.memory_reserved() / MIB if self._cuda else 0.0


def product(device: str) -> None:
    """Its operands are freed: what stays is cuBLAS's workspace."""
    torch.ones(512, 512, device=device) @ torch.ones(512, 512, device=device)


def convolution(device: str, batch: int, of: Sequence[int]) -> None:
    inputs, outputs, kernel, side, groups = of
    layer = torch.nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups).to(device)
    images = torch.randn(batch, inputs, side, side, device=device, requires_grad=True)
    layer(images).sum().backward()


def normalised(kind: str, device: str, dtype: torch.dtype) -> Any:
    """The output, which holds what the backward pass needs of it, and the input. The layer's own
    parameters are counted too: 4 KiB."""
    layer = getattr(torch.nn, kind)(WIDTH).to(device, dtype)
    inputs = torch.randn(TOKENS, WIDTH, device=device, dtype=dtype, requires_grad=True)
    return layer(inputs), inputs


def main() -> None:
    parser = argparse.ArgumentParser(description="Probe what this stack takes beside tensors.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    device = parser.parse_args().device
    probe = Probe(device)
    probe("context", lambda: torch.ones(1, device=device))
    probe("cublas", lambda: product(device))
    probe("cublas again", lambda: product(device))
    square = (CHANNELS, CHANNELS, 3, SIDE, 1)
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        name = f"convolution, cudnn.benchmark {'on' if benchmark else 'off'}"
        # PyTorch keeps what was chosen for a shape, whether it searched or not: so another batch.
        batch = BATCH[device] + benchmark
        probe(name, lambda: convolution(device, batch, square))  # noqa: B023
        probe(f"{name}, again", lambda: convolution(device, batch, square))  # noqa: B023
    for name, (batch, *of) in SEARCHED.items():
        batch = batch if device == "cuda" else BATCH[device]
        probe(f"search, {name}", lambda: convolution(device, batch, of))  # noqa: B023
        probe(f"search, {name}, again", lambda: convolution(device, batch, of))  # noqa: B023
    for dtype in (torch.float32, torch.bfloat16):
        for kind in ("LayerNorm", "RMSNorm"):
            name = f"{kind}, {str(dtype).removeprefix('torch.')}"
            probe(name, lambda: normalised(kind, device, dtype))  # noqa: B023
    print(json.dumps({"event": "done"}), flush=True)


if __name__ == "__main__":
    main()
