"""safetensors: nothing of a fake tensor can be written, so `torch.save` keeps it."""

from __future__ import annotations

from typing import Any

import torch

MADE_FOR = "0.8"


def keep(module: Any, tracer: Any) -> None:
    load_file = module.load_file

    def load(filename: Any, device: Any = "cpu", **options: Any) -> Any:
        saved = tracer.is_saved(filename)
        return torch.load(filename, device) if saved else load_file(filename, device, **options)

    def save(tensors: Any, filename: Any, metadata: Any = None, **_: Any) -> None:
        torch.save(tensors, filename)

    tracer.replace(module, load_file=load, save_file=save)


PATCHES = {"safetensors.torch": keep}
