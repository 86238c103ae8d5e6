"""Traces a model object: the implementation of `estimators.trace`."""

import contextlib
import copy
import time
from typing import Any, Callable, Dict, Iterable, List, Optional

import torch
import torch.nn.functional as F

from .explanation import with_explanation
from .fakecuda import Unfit
from .modules import Attribution, Layers
from .operators import map_tensors
from .recording import GPU, Recorder
from .replay import replay
from .report import Report
from .substitutes import replace_attributes
from .values import tensors


def trace(
    model: Any,
    inputs: Any,
    optimizer: Optional[Callable[[Iterable[Any]], Any]] = None,
    *,
    loss: Optional[Callable[[Any], Any]] = None,
    steps: int = 2,
    explain: bool = False,
) -> Report:
    """See `estimators.trace`."""
    start = time.perf_counter()
    recorder = Recorder()
    yes = {"is_available": lambda: True, "is_bf16_supported": lambda *_, **__: True}
    attribution = Attribution(recorder)
    witness = attribution if explain else contextlib.nullcontext()
    with replace_attributes(torch.cuda, **yes), recorder, Layers(recorder) as layers, witness:
        model = _copy_modules(model) if isinstance(model, torch.nn.Module) else model()
        _move(model)
        try:
            _train(recorder, model, inputs, (optimizer or _adam)(model.parameters()), loss, steps)
        except RuntimeError as error:
            if "device_ready_queues_" not in str(error):
                raise
            raise Unfit(
                "PyTorch went backward in this process before the first trace, and has made up its"
                " mind that there is no GPU: trace in a new process"
            ) from error
    report = replay(recorder, layers, steps, time.perf_counter() - start)
    return with_explanation(report, recorder, attribution) if explain else report


def _train(
    recorder: Recorder, model: Any, inputs: Any, optimizer: Any, loss: Any, steps: int
) -> None:
    """Like a training loop: values of one iteration live until the next one replaces them."""
    for step in range(1, steps + 1):
        batch = map_tensors(_put_on_gpu, inputs)
        if isinstance(batch, dict):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
        value = (loss or _loss)(output)
        value.backward()
        recorder.mark("optimizer")
        optimizer.step()
        recorder.mark("stepped")
        recorder.label_optimizer(optimizer)
        recorder.mark(f"step{step}")
        optimizer.zero_grad()


def _adam(parameters: Iterable[Any]) -> Any:
    return torch.optim.Adam(p for p in parameters if p.requires_grad)


def _loss(output: Any) -> Any:
    """The output's own `.loss` if it has one; cross entropy if it is (batch, classes); else the sum
    of the means of all that comes from parameters."""
    own = getattr(output, "loss", None)
    if own is not None:
        return own
    if isinstance(output, torch.Tensor) and output.dim() == 2 and output.shape[1] > 1:
        return F.cross_entropy(output, torch.zeros(len(output), dtype=torch.long, device=GPU))
    return sum(part.mean() for part in tensors(output) if part.requires_grad)


def _copy_modules(model: Any) -> Any:
    """A copy of the modules that shares parameters; computed tensors are detached."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):
                shared[id(value)] = value.detach()
    return copy.deepcopy(model, shared)


def _move(model: Any) -> None:
    """As `model.cuda()`, but parameters on the meta device can be moved as well. Tensors that
    modules share are shared afterwards."""
    moved: Dict[int, Any] = {}
    alive: List[Any] = []  # so that ids stay those of these tensors
    for module in model.modules():
        for owned in (module._parameters, module._buffers):
            for name, tensor in owned.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    alive.append(tensor)
                    fake = torch.empty_like(tensor, device=GPU, requires_grad=False)
                    if isinstance(tensor, torch.nn.Parameter):
                        fake = torch.nn.Parameter(fake, tensor.requires_grad)
                    moved[id(tensor)] = fake
                owned[name] = moved[id(tensor)]


def _put_on_gpu(tensor: Any) -> Any:
    return torch.empty_like(tensor, device=GPU, requires_grad=tensor.requires_grad)
