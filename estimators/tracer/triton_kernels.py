"""Kernels in Triton, which need a GPU: they are left out.

A kernel allocates nothing: what it writes to was made before. Its contents are unknown afterwards.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def leave_out(module: Any) -> None:
    for name in ("JITFunction", "Autotuner", "Heuristics"):
        if hasattr(module, name):
            getattr(module, name).run = _write_unknown


def _write_unknown(_: Any, *args: Any, **kwargs: Any) -> None:
    recorder: Any = _get_current_dispatch_mode()
    if recorder is not None:
        recorder.note("Triton's kernels are not run")
        recorder.deceive()
        recorder.values.forget((*args, *kwargs.values()))


def drive(module: Any) -> None:
    """What libraries ask it about the GPU, often while they are imported."""
    try:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
    except ImportError:  # before Triton 3
        return
    major, minor = torch.cuda.get_device_capability()
    module.driver.set_active(
        types.SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 10 * major + minor, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device=None: 0,
            get_active_torch_device=lambda: torch.device("cuda"),
            get_device_interface=lambda: torch.cuda,
            utils=types.SimpleNamespace(
                get_device_properties=lambda device=0: {
                    "max_shared_mem": 166_912,
                    "multiprocessor_count": 108,
                    "warpSize": 32,
                }
            ),
        )
    )
