"""Builds the networks drawn by `synthesis`, in torch, and labels them: traced without a GPU, or
trained briefly on one. Each maps its inputs to its loss, so that training needs to know nothing
else about it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from estimators.gpumemnet.files import Origin
from estimators.tracer.modules import Layers
from estimators.tracer.recording import Recorder
from estimators.tracer.replay import replay
from estimators.tracer.report import Report
from lab.gpumemnet.data import Sample
from lab.gpumemnet.synthesis import Cnn, Mlp, Network, Transformer, synthesise

IN_PLACE = frozenset({"ReLU", "ReLU6", "LeakyReLU", "ELU", "SiLU", "Hardswish", "Mish"})
PATCH = 16  # pixels on a side
GROWTH = 4  # a block of a DenseNet adds its stage's width by this

CONTEXT_MIB = 544  # of an A100 in 2025, which is the default of `estimation.context_mib`
MIB = 2**20
STEPS = 2  # the second is the first one that has the optimizer's state
MEASURED_STEPS = 5
SETTLES = 20  # networks to try before a GPU counts as too small for all

Label = Callable[[Network], Sample | None]  # None: it did not fit


def build(network: Network) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module and its arguments, both on the current `torch.device`, with arbitrary values."""
    if isinstance(network, Mlp):
        inputs = torch.empty(network.batch, network.inputs)
        return _Classifier(_mlp(network)), (inputs, _labels(network.batch))
    if isinstance(network, Cnn):
        inputs = torch.empty(network.batch, 3, network.image, network.image)
        return _Classifier(_cnn(network)), (inputs, _labels(network.batch))
    if network.kind == "vision":
        side = PATCH * round(network.length**0.5)
        inputs = torch.empty(network.batch, 3, side, side)
        return _Classifier(_Attentive(network)), (inputs, _labels(network.batch))
    words = _labels(network.batch, network.length)
    return _Classifier(_Attentive(network)), (words, words)


def _labels(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


class _Classifier(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = self.network(inputs)
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def _activation(name: str, in_place: bool = False) -> nn.Module:
    layer = getattr(nn, name)
    return layer(inplace=True) if in_place and name in IN_PLACE else layer()


def _mlp(network: Mlp) -> nn.Module:
    layers: list[nn.Module] = []
    width = network.inputs
    for wide in network.widths:
        layers.append(nn.Linear(width, wide))
        layers += [nn.BatchNorm1d(wide)] if network.batch_norm else []
        layers.append(_activation(network.activation))
        layers += [nn.Dropout(0.3)] if network.dropout else []
        width = wide
    return nn.Sequential(*layers, nn.Linear(width, network.outputs))


def _cnn(network: Cnn) -> nn.Module:
    first = network.stages[0].width if network.block in ("plain", "basic") else 32
    layers = [*_convolution(network, 3, first, 7 if network.stem > 2 else 3, min(network.stem, 2))]
    layers += [nn.MaxPool2d(3, 2, 1)] if network.stem > 2 else []
    width, side = first, network.image // network.stem
    for number, stage in enumerate(network.stages):
        for block in range(stage.blocks):
            stride = 2 if number and not block and side > 4 else 1
            side //= stride
            made = _BLOCKS[network.block](network, width, stage.width, stride)
            layers.append(made)
            width = made.width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if network.hidden:
        layers += [nn.Linear(width, network.hidden), _activation(network.activation, True)]
        width = network.hidden
    layers += [nn.Dropout(0.2)] if network.dropout else []
    return nn.Sequential(*layers, nn.Linear(width, network.outputs))


def _convolution(
    network: Cnn,
    inputs: int,
    outputs: int,
    size: int = 3,
    stride: int = 1,
    groups: int = 1,
    active: bool = True,
) -> Iterator[nn.Module]:
    """A convolution with batch norm and activation, in place where timm and torchvision do so."""
    bias = not network.batch_norm
    yield nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=bias)
    if network.batch_norm:
        yield nn.BatchNorm2d(outputs)
    if active:
        yield _activation(network.activation, in_place=True)


class _Plain(nn.Sequential):
    """As in VGG: pooling halves the resolution."""

    def __init__(self, network: Cnn, inputs: int, width: int, stride: int) -> None:
        pool = [nn.MaxPool2d(2)] if stride == 2 else []
        super().__init__(*pool, *_convolution(network, inputs, width))
        self.width = width


class _Residual(nn.Module):
    """As in ResNet: of two convolutions, or of three with a narrow one (`bottleneck`)."""

    def __init__(
        self, network: Cnn, inputs: int, width: int, stride: int, narrow: bool = False
    ) -> None:
        super().__init__()
        self.width = width
        inner = max(8, width // 4) if narrow else width
        size = 1 if narrow else 3
        self.body = nn.Sequential(
            *_convolution(network, inputs, inner, size, 1 if narrow else stride),
            *(_convolution(network, inner, inner, 3, stride) if narrow else ()),
            *_convolution(network, inner, width, size, active=False),
        )
        same = inputs == width and stride == 1
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(*_convolution(network, inputs, width, 1, stride, active=False))
        )
        self.active = _activation(network.activation, in_place=True)

    def forward(self, images: Tensor) -> Tensor:
        out = self.body(images)
        out += self.short(images)
        return self.active(out)


class _Bottleneck(_Residual):
    def __init__(self, network: Cnn, inputs: int, width: int, stride: int) -> None:
        super().__init__(network, inputs, width, stride, narrow=True)


class _Inverted(nn.Module):
    """As in MobileNet and EfficientNet: wide in the middle, where it is depthwise."""

    def __init__(self, network: Cnn, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.width = width
        self.adds = inputs == width and stride == 1
        wide = 4 * inputs
        self.expand = nn.Sequential(
            *_convolution(network, inputs, wide, 1),
            *_convolution(network, wide, wide, 3, stride, groups=wide),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, max(4, inputs // 4), 1),
            _activation(network.activation, in_place=True),
            nn.Conv2d(max(4, inputs // 4), wide, 1),
            nn.Sigmoid(),
        )
        self.project = nn.Sequential(*_convolution(network, wide, width, 1, active=False))

    def forward(self, images: Tensor) -> Tensor:
        out = self.expand(images)
        out = self.project(out * self.squeeze(out))
        return images + out if self.adds else out


class _Dense(nn.Module):
    """As in DenseNet: a block concatenates its output to its input."""

    def __init__(self, network: Cnn, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        grown = max(8, width // GROWTH)
        kept = inputs // stride
        self.width = kept + grown
        self.halve = (
            nn.Sequential(*_convolution(network, inputs, kept, 1), nn.AvgPool2d(2))
            if stride == 2
            else nn.Identity()
        )
        self.body = nn.Sequential(
            *_convolution(network, kept, width, 1), *_convolution(network, width, grown)
        )

    def forward(self, images: Tensor) -> Tensor:
        images = self.halve(images)
        return torch.cat([images, self.body(images)], 1)


_BLOCKS: dict[str, Any] = {
    "plain": _Plain,
    "basic": _Residual,
    "bottleneck": _Bottleneck,
    "inverted": _Inverted,
    "dense": _Dense,
}


class _Attentive(nn.Module):
    """A transformer: BERT's encoder, GPT's decoder, or ViT."""

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        width = network.width
        self.vision = network.kind == "vision"
        self.embed = (
            nn.Conv2d(3, width, PATCH, PATCH)
            if self.vision
            else nn.Embedding(network.outputs, width)
        )
        self.place = nn.Embedding(network.length, width)
        self.drop = _dropout(network)
        self.blocks = nn.Sequential(*(_Block(network, wide) for wide in network.feed_forward))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, network.outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.embed(inputs)
        if self.vision:
            tokens = tokens.flatten(2).transpose(1, 2)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        out = self.norm(self.blocks(self.drop(tokens + self.place(places))))
        return self.head(out.mean(1) if self.vision else out)


class _Block(nn.Module):
    def __init__(self, network: Transformer, wide: int) -> None:
        super().__init__()
        width = network.width
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(network)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, wide),
            _activation(network.activation),
            nn.Linear(wide, width),
            _dropout(network),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.before(tokens))
        return tokens + self.feed_forward(self.between(tokens))


class _Attention(nn.Module):
    def __init__(self, network: Transformer) -> None:
        super().__init__()
        width, self.heads, self.fused = network.width, network.heads, network.fused
        self.causal = network.kind == "decoder"
        outputs = [3 * width] if network.joint else [width] * 3
        self.project = nn.ModuleList(nn.Linear(width, each) for each in outputs)
        self.softmax = nn.Softmax(-1)
        self.drop = _dropout(network)
        self.out = nn.Linear(width, width)
        self.after = _dropout(network)

    def forward(self, tokens: Tensor) -> Tensor:
        projected = [layer(tokens) for layer in self.project]
        parts = projected[0].chunk(3, -1) if len(projected) == 1 else projected
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(
                query, key, value, is_causal=self.causal
            )
        else:
            weights = self._mask(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5)
            mixed = self.drop(self.softmax(weights)) @ value
        return self.after(self.out(mixed.transpose(1, 2).flatten(2)))

    def _mask(self, weights: Tensor) -> Tensor:
        if not self.causal:
            return weights
        side = weights.shape[-1]
        later = torch.ones(side, side, dtype=torch.bool, device=weights.device).triu(1)
        return weights.masked_fill(later, float("-inf"))


def _dropout(network: Transformer) -> nn.Module:
    return nn.Dropout(0.1) if network.dropout else nn.Identity()


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


def label_by_trace(network: Network) -> Sample:
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


def label_by_run(network: Network) -> Sample | None:
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
