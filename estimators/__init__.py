"""GPU memory estimators: from a job's specification to MiB per GPU."""

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
    explain: bool = False,
) -> Report:
    """The memory that training `model` takes on a GPU, without a GPU and without computing.

    model: a torch module with parameters on the CPU or the meta device; it is not changed, since
        a copy that shares its parameters is traced. Or a function that makes the module, which is
        faster: its parameters are never initialised.
    inputs: arguments of the model: a tensor, a tuple of them (positional) or a dict (by name),
        nested as the model expects. Shapes and dtypes matter, values do not.
    optimizer: makes one from the parameters: `lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)`.
        Adam by default.
    loss: makes a scalar from what the model returns. By default the output's own `.loss`, cross
        entropy if the output is (batch, classes), else the mean of everything.
    steps: how many times forward, backward, `step` and `zero_grad` are run. The second takes more
        than the first, because the optimizer has its state by then.
    explain: fill in `Report.explanation`: which modules and lines hold the most, and what would
        help. Takes about twice as long.

    Raises what the model raises, and `estimators.tracer.fakecuda.Unfit` if it does not work with
    this PyTorch, or if the process has run a backward pass on the CPU before. Not thread-safe:
    PyTorch is patched while it runs.
    """
    from estimators.tracer.model import trace as trace_module

    return trace_module(model, inputs, optimizer, loss=loss, steps=steps, explain=explain)
