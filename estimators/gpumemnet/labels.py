"""Labels a generated network: traced without a GPU, or trained briefly on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice

import torch

from estimators.gpumemnet.dataset import Origin, Sample
from estimators.gpumemnet.networks import build
from estimators.gpumemnet.synthesis import Network, synthesise
from estimators.tracer.layers import Layers
from estimators.tracer.recording import Recorder
from estimators.tracer.replay import replay
from estimators.tracer.report import Report

CONTEXT_MIB = 544  # of an A100 in 2025, which is the default of `estimation.context_mib`
MIB = 2**20
STEPS = 2  # the second is the first one that has the optimizer's state
MEASURED_STEPS = 5
SETTLES = 20  # networks to try before a GPU counts as too small for all

Label = Callable[[Network], Sample | None]  # None: it did not fit


def samples(family: str, seed: int, count: int, label: Label) -> Iterator[Sample]:
    """The first `count` networks that a seed draws and that fit.

    Raises RuntimeError if hardly any does.
    """
    labelled = (label(network) for network in synthesise(family, seed))
    found = (sample for sample in _while_some_fit(labelled) if sample is not None)
    yield from islice(found, count)


def _while_some_fit(labelled: Iterator[Sample | None]) -> Iterator[Sample | None]:
    failed = 0
    for sample in labelled:
        failed = failed + 1 if sample is None else 0
        if failed == SETTLES:
            raise RuntimeError(f"{SETTLES} networks in a row did not fit on the GPU")
        yield sample


def traced(network: Network) -> Sample:
    """Two steps with Adam on fake tensors, plus a typical context."""
    report = trace(network)
    return Sample(report.batch, report.layers, CONTEXT_MIB + -(-report.reserved // MIB))


def trace(network: Network) -> Report:
    with Recorder() as recorder, Layers(recorder) as layers, torch.device("cuda"):
        model, inputs = build(network)
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(1, STEPS + 1):
            _step(model, inputs, optimizer)
            recorder.label_optimizer(optimizer)
            recorder.mark(f"step{step}")
    return replay(recorder, layers, STEPS, 0.0)


def measured(network: Network) -> Sample | None:
    """A few real steps on this machine's first GPU; None if it is too small."""
    layers = trace(network)
    try:
        peak = _peak(network)
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.empty_cache()
    return Sample(layers.batch, layers.layers, context_mib() + -(-peak // MIB))


def _peak(network: Network) -> int:
    """The peak of the caching allocator, in bytes."""
    torch.cuda.reset_peak_memory_stats()
    with torch.device("cuda"):
        model, inputs = build(network)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(MEASURED_STEPS):
        _step(model, inputs, optimizer)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_reserved())


def context_mib() -> int:
    """This process's memory in NVML beyond what the allocator holds now.

    Raises RuntimeError if NVML does not list it, as in a container with its own pid namespace.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return (int(process.usedGpuMemory) - int(torch.cuda.memory_reserved())) // MIB
    finally:
        pynvml.nvmlShutdown()
    raise RuntimeError("NVML does not tell this process's memory; in a container, share the pids")


def _step(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer
) -> None:
    optimizer.zero_grad()
    model(*inputs).backward()
    optimizer.step()


def origin(family: str, seed: int, on_gpu: bool) -> Origin:
    if not on_gpu:
        return Origin(family, seed, "traced", torch.__version__, CONTEXT_MIB)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    label = f"measured on {torch.cuda.get_device_name(0)}"
    return Origin(family, seed, label, torch.__version__, context_mib())
