"""What a training script must hold, counted while it runs on the CPU: a bound for its trace.

Run as `python -m lab.memory.held script.py …`: prints one JSON object after the second step
of each optimizer. It uses nothing of the tracer: parameters, gradients and states are those that
the optimizers name, and what is saved for a backward pass is what autograd hands out. Attention,
recurrent layers and dropout are left out of the latter: on the CPU they keep more than on a GPU.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import weakref
from pathlib import Path
from typing import Any

STEPS, ENOUGH = 2, 12


class Held:
    """Bytes, by storage, so that shared ones count once."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self._saved: dict[int, int] = {}  # since the last backward pass
        self._most_saved = 0
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def save(self, tensor: Any) -> Any:
        import torch

        if tensor.layout is torch.strided and not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            self._saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def passed(self) -> None:
        """Call this after each backward pass."""
        self._most_saved = max(self._most_saved, sum(self._saved.values()))
        self._saved.clear()

    def stepped(self, optimizer: Any, *_: Any) -> None:
        self._taken[optimizer] = self._taken.get(optimizer, 0) + 1
        groups = [p for one in self._taken for g in one.param_groups for p in g["params"]]
        state = [t for one in self._taken for s in one.state.values() for t in s.values()]
        now = {
            "parameters": _bytes(groups),
            "gradients": _bytes(p.grad for p in groups),
            "optimizer": _bytes(t for t in state if getattr(t, "dim", int)() > 0),
            "saved": self._most_saved,
        }
        self.most = {key: max(size, self.most.get(key, 0)) for key, size in now.items()}
        if min(self._taken.values()) >= STEPS or max(self._taken.values()) >= ENOUGH:
            self.tell()

    def tell(self) -> None:
        """Does not return."""
        sys.stdout.flush()
        os.write(1, b"\n" + json.dumps(self.most).encode() + b"\n")
        os._exit(0)


def _overlook(owner: Any, name: str) -> None:
    """Do not count what this function saves."""
    import torch

    run = getattr(owner, name)

    def unseen(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            return run(*args, **kwargs)

    setattr(owner, name, unseen)


def _bytes(tensors: Any) -> int:
    import torch

    strided = [t for t in tensors if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in strided}
    return sum(storages.values())


def main() -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    del sys.argv[0]
    held = Held()
    register_optimizer_step_post_hook(held.stepped)
    backward = torch.autograd.backward

    def then(*args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        held.passed()

    torch.autograd.backward = then
    for name in ("scaled_dot_product_attention", "dropout"):
        _overlook(torch.nn.functional, name)
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        _overlook(torch._VF, name)
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    with torch.autograd.graph.saved_tensors_hooks(held.save, lambda tensor: tensor):
        runpy.run_path(sys.argv[0], run_name="__main__")
    held.tell()


if __name__ == "__main__":
    main()
