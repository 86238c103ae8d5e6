"""GPU memory estimators: a job's words in, MiB per GPU out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators.tracer.report import Report


def trace(
    model: Any,
    inputs: Any,
    optimizer: Callable[[Iterable[Any]], Any] | None = None,
    *,
    loss: Callable[[Any], Any] | None = None,
    steps: int = 2,
) -> Report:
    """The memory that training `model` takes on a GPU, without one and without computing.

    model: a torch module, its parameters on the CPU or the meta device; it is left as it is, for a
        copy that shares its parameters is traced. Or a function that makes the module, which is
        quicker: its parameters are never initialised.
    inputs: what it is called with: a tensor, a tuple of them (positional) or a dict (by name),
        nested as the model likes. Shapes and dtypes count, values do not.
    optimizer: makes one from the parameters: `lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)`.
        Adam by default.
    loss: makes a scalar from what the model returns. By default the output's own `.loss`, cross
        entropy if the output is (batch, classes), else the mean of everything.
    steps: how many times forward, backward, `step` and `zero_grad` are run. The second takes more
        than the first, because the optimizer has its state by then.

    Raises what the model raises, and `estimators.tracer.fakecuda.Unfit` where this PyTorch cannot
    be made to do it, as where the process has gone backward on the CPU before. Not for threads:
    PyTorch is patched while it runs.
    """
    from estimators.tracer.module import trace as trace_module

    return trace_module(model, inputs, optimizer, loss=loss, steps=steps)
