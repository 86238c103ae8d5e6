"""DeepSpeed: its optimizers keep their states, without the kernels that it would compile; every
step is taken."""

from __future__ import annotations

from typing import Any

import torch

MADE_FOR = "0.19"
# Names of its builders.
OPTIMIZERS = ("fused_adam", "fused_lamb", "fused_lion", "cpu_adam", "cpu_lion", "cpu_adagrad")


class Kernels:
    """They work in place, and allocate nothing. Contents are unknown afterwards."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder

    def __getattr__(self, name: str) -> Any:
        def work(*args: Any, **kwargs: Any) -> Any:
            self.recorder.values.forget((*args, *kwargs.values()))
            return torch.zeros(())  # LAMB's coefficient

        return work


def spare_compiler(module: Any, tracer: Any) -> None:
    load = module.OpBuilder.load

    def load_or_spare(builder: Any, *args: Any, **kwargs: Any) -> Any:
        spared = builder.name in OPTIMIZERS
        return Kernels(tracer.recorder) if spared else load(builder, *args, **kwargs)

    tracer.replace(module.OpBuilder, load=load_or_spare)


def never_overflow(module: Any, tracer: Any) -> None:
    """Overflow depends on the gradients' values, which are unknown."""
    for name in ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3", "CheckOverflow"):
        for check in ("has_overflow", "check_using_norm"):
            if hasattr(getattr(module, name, None), check):
                setattr(getattr(module, name), check, lambda *_, **__: False)


PATCHES = {
    "deepspeed.ops.op_builder.builder": spare_compiler,
    "deepspeed.runtime.utils": never_overflow,
    "deepspeed.runtime.zero.stage3": never_overflow,
    "deepspeed.runtime.zero.stage_1_and_2": never_overflow,
}
