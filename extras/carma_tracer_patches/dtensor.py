"""PyTorch's DTensor: the random states of the GPU; shapes that it finds out with fake tensors of
the whole size, which nobody allocates."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

MADE_FOR = "2.13"


class NoStates:
    distribute_region_enabled = False

    def _manual_seed(self, *_: Any) -> None:
        pass


class Unseen:
    """A context in which no mode sees operators, and so nothing is recorded."""

    def __enter__(self) -> None:
        self._modes = _disable_current_modes()
        self._modes.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)


def draw_alike(module: Any, tracer: Any) -> None:
    states = NoStates()
    tracer.replace(module, _rng_tracker=states, OffsetBasedRNGTracker=lambda *_, **__: states)


def find_shapes_unseen(module: Any, tracer: Any) -> None:
    if hasattr(module.ShardingPropagator, "_fake_mode_lock"):  # torch 2.9
        module.ShardingPropagator._fake_mode_lock = Unseen()


PATCHES = {
    "torch.distributed.tensor._random": draw_alike,
    "torch.distributed.tensor._sharding_prop": find_shapes_unseen,
}
