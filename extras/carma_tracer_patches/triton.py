"""Triton: kernels need a GPU, and are left out. One allocates nothing: what it writes to was made
before. Its contents are unknown afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

MADE_FOR = "3.5"


def leave_out(module: Any, tracer: Any) -> None:
    def write_unknown(_: Any, *args: Any, **kwargs: Any) -> None:
        tracer.recorder.note("Triton's kernels are not run")
        tracer.recorder.deceive()
        tracer.recorder.values.forget((*args, *kwargs.values()))

    for name in ("JITFunction", "Autotuner", "Heuristics"):
        if hasattr(module, name):
            tracer.replace(getattr(module, name), run=write_unknown)


def drive(module: Any, tracer: Any) -> None:
    """What libraries ask it about the GPU, often while they are imported."""
    try:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
    except ImportError:  # before Triton 3
        return
    major, minor = torch.cuda.get_device_capability()
    properties = {"max_shared_mem": 166_912, "multiprocessor_count": 108, "warpSize": 32}
    module.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 10 * major + minor, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device=None: 0,
            get_active_torch_device=lambda: torch.device("cuda"),
            get_device_interface=lambda: torch.cuda,
            utils=SimpleNamespace(get_device_properties=lambda device=0: properties),
        )
    )


PATCHES = {
    "triton.runtime.autotuner": leave_out,
    "triton.runtime.driver": drive,
    "triton.runtime.jit": leave_out,
}
